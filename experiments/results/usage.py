"""From what a model loses without a position code to a word, by rules stated here.

The lead is what a guesser who knows no order loses more than the model, in nats per token. A code's
necessity is the share of it that its removal alone costs; its sufficiency is the share that it
gives back when it alone is kept, over none of the four. The total effect is the loss increase
without all four codes. A broken model may lose far more than the guesser: shares are shown up to
100%, and judged as they are. A code is

- `used`       where its necessity is surely a tenth or more, and its removal surely costs more nats
               than each of two controls: the size-matched control, and random rescaling of the
               residuals about the mean;
- `not used`   where necessity and sufficiency are surely less than a tenth, another code is used,
               and coverage is at least half: so much of what is scored is predicted from
               activations that codes were taken away from;
- `undecided`  otherwise: the intervals are too wide, the removal costs no more than a control does,
               or others can stand in for this code, by itself or together.

A code in the mean activations, a smooth trend or what it leaves, is taken away by subtracting
vectors: its size-matched control moves activations as far in random directions. The other codes
are in the residuals about the mean: their control mixes in another sequence's content. Random
rescaling blurs the variance code, so a user of that has to lose more than by the blur. A network
that no change of that size leaves working is `undecided`, whatever it uses. A loss beyond
the guesser's counts there: planted models of variance lose their whole lead by the blur, too.

Surely means by the 95% interval over held-out sequences, widened (Bonferroni) for the number of
codes and, at single sites, of these too. The total effect must also surely be a tenth of the lead,
and the lead surely above zero: else every code is `undecided`, since there is nothing to share out.

Of a model that has not learned order, by its answers or its predictions, a comparison calls no code
anything else (`UseVerdict.unjudged`).

The words speak of what the interventions change. Similarity is made by pooling earlier tokens, and
its removal undoes the pooling: a model that uses what was pooled, in whatever order, counts as a
user of similarity, too.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from experiments.results.code_ablation import (
    EVERYWHERE,
    INTACT_CONDITION,
    NONE_KEPT,
    OVER_CONTROL,
    RANDOM_RESCALING,
    SIZE_MATCHED,
    STREAM,
    only,
    without,
)
from experiments.results.guesser import guesser_words
from experiments.results.intervals import Interval, percents
from experiments.results.measurements import LOSS, finished
from experiments.results.percent import percent
from experiments.results.position_use import Word
from experiments.results.readability import (
    SETTING,
    layer_and_site,
    setting_words,
    widened,
)
from experiments.results.worth import WORTH_NAMING
from nope_interp.errors import UserError
from probes.code_names import CODES
from probes.scores import SHUFFLED

_WORDS = (Word.USED, Word.NOT_USED, Word.UNDECIDED)

# The coverage without which no code is called not used.
_LEAST_COVERAGE = 0.5

# The rows of a site, by condition, control and metric.
_There = dict[tuple[str, str, str], dict[Hashable, Any]]


@dataclass(frozen=True)
class Use:
    """Whether a code is used, through the whole stream or at one site.

    Attributes:
        code: one of `probes.code_names.CODES`.
        layer, site: where it was taken away; layer -1 stands for the whole stream.
        word: `USED`, `NOT_USED` or `UNDECIDED`; `NO_ORDER` of a model that has not learned order.
        increase: the loss increase without it, in nats per token: value, low, high.
        size_matched: the same of the size-matched control.
        rescaled: the same of random rescaling.
        necessity: the increase as a share of the lead; None where that, or the total effect, is
            not surely above zero.
        sufficiency: the share of the lead that the code gives back when it alone is kept.
        shuffled: its sufficiency with positions permuted; None where that was not tried, as at
            single sites.
    """

    code: str
    layer: int
    site: str
    word: Word
    increase: Interval
    size_matched: Interval
    rescaled: Interval
    necessity: Interval | None
    sufficiency: Interval | None
    shuffled: Interval | None


@dataclass(frozen=True)
class UseVerdict:
    """What code ablation comes to in one setting.

    Attributes:
        variant, tokens, begin_token: which one.
        intact: the loss of the model as it is, in nats per token: value, low, high.
        chance: the loss of a guesser who knows no order, in nats per token.
        lead: that loss less the intact one, paired by sequence.
        total_effect: the loss increase without all four codes through the whole stream, in nats
            per token.
        coverage: the share of scored tokens predicted from activations that lost their codes.
        uses: of each code through the whole stream, and then site by site.
    """

    variant: str
    tokens: str
    begin_token: bool
    intact: Interval
    chance: float
    lead: Interval
    total_effect: Interval
    coverage: float
    uses: tuple[Use, ...]

    @property
    def of_stream(self) -> tuple[Use, ...]:
        """The uses through the whole stream, one for each code."""
        return tuple(use for use in self.uses if use.layer == EVERYWHERE)

    @property
    def unjudged(self) -> "UseVerdict":
        """The same of a model that has not learned order, of whose codes nothing is said."""
        return replace(self, uses=tuple(replace(use, word=Word.NO_ORDER) for use in self.uses))

    @property
    def guesser(self) -> str:
        """Who is to be beaten, in words."""
        return guesser_words(self.tokens)

    @property
    def sentence(self) -> str:
        """The words for the whole stream, with their numbers."""
        value, low, high = self.total_effect
        start = (
            f"On {setting_words(self.tokens, self.begin_token)} the loss of "
            f"the {self.variant} model is {self.intact[0]:.3g} nats per token, of "
            f"{self.guesser} {self.chance:.3g}. Removing all four position codes adds "
            f"{value:.3g} nats per token [{low:.3g}, {high:.3g}] to this loss: the total effect."
        )
        if self.of_stream[0].word is Word.NO_ORDER:
            return f"{start} The model has not learned order: no code is called used."
        if self.lead[1] <= 0:
            return f"{start} The model does not surely beat the guesser: no code is called used."
        if self.of_stream[0].necessity is None:
            return f"{start} The total effect is not surely above zero: no code has a share in it."
        said = ". ".join(_words(word, self.of_stream) for word in _WORDS)
        shares = f"Percentages are shares of the lead over that guesser, {self.lead[0]:.3g} nats."
        return f"{start} {said}. {shares}{self._at_single_sites()}"

    def _at_single_sites(self) -> str:
        sites = {
            code: [
                layer_and_site(use.layer, use.site)
                for use in self.uses
                if use.code == code and use.layer != EVERYWHERE and use.word is Word.USED
            ]
            for code in CODES
        }
        named = [f"{code} ({', '.join(where)})" for code, where in sites.items() if where]
        if len(self.uses) == len(self.of_stream):
            return ""
        return f" Used at a single site: {'; '.join(named) or 'none'}."


def _words(word: Word, uses: tuple[Use, ...]) -> str:
    named = [
        f"{use.code} (necessity {percents(use.necessity)}, "
        f"sufficiency {percent(use.sufficiency[0])})"
        for use in uses
        if use.word == word and use.necessity is not None and use.sufficiency is not None
    ]
    return f"{word.capitalize()}: {', '.join(named) or 'none'}"


def use_verdicts(measurements: pd.DataFrame) -> list[UseVerdict]:
    """One verdict for each setting in which codes were taken away.

    Args:
        measurements: the tidy table.

    Returns:
        Verdicts in the order of the table.

    Raises:
        UserError: a setting lacks one of the conditions that codes are judged by, as in what
            another version wrote.
    """
    losses = finished(measurements[measurements["probe"] == LOSS])
    try:
        return [_verdict(group) for _, group in losses.groupby(SETTING, sort=False, observed=True)]
    except KeyError as error:
        raise UserError(
            f"the measurements of another version lack a loss that codes are judged by ({error}): "
            "delete the run folder and run the command again."
        ) from error


def _verdict(losses: pd.DataFrame) -> UseVerdict:
    stream = _at(losses, EVERYWHERE, STREAM)
    first = losses.iloc[0]
    sites = losses[["layer", "site"]].drop_duplicates().itertuples(index=False, name=None)
    return UseVerdict(
        variant=str(first["variant"]),
        tokens=str(first["tokens"]),
        begin_token=bool(first["begin_token"]),
        intact=_interval(stream, *INTACT_CONDITION, "nats", len(CODES)),
        chance=float(stream[(*INTACT_CONDITION, "nats")]["chance"]),
        lead=_interval(stream, *INTACT_CONDITION, "lead", len(CODES)),
        total_effect=_interval(stream, NONE_KEPT, "", "increase", len(CODES)),
        coverage=_coverage(stream),
        uses=tuple(use for layer, site in sites for use in uses_at(losses, layer, site)),
    )


def uses_at(losses: pd.DataFrame, layer: int, site: str) -> list[Use]:
    """Whether each code is used at a site, or, for layer -1, through the whole stream.

    Args:
        losses: rows of the probe "loss" of one setting, at all of its sites.
        layer: of the site where codes were taken away.
        site: its hook.

    Returns:
        One for each code.

    Raises:
        KeyError: one of the conditions that codes are judged by is missing there.
    """
    single = losses.loc[losses["layer"] != EVERYWHERE, ["layer", "site"]].drop_duplicates()
    n_compared = len(CODES) * (1 if layer == EVERYWHERE else len(single))
    there = _at(losses, layer, site)
    uses = [_use(there, code, layer, site, n_compared) for code in CODES]
    # The total effect has to come from somewhere.
    found = any(use.word is Word.USED for use in uses)
    if found and _matters(there, n_compared):
        return uses
    return [replace(use, word=Word.UNDECIDED) for use in uses]


def _matters(there: _There, n_compared: int) -> bool:
    """Whether the total effect is surely a tenth of the lead."""
    lead, _, _ = _interval(there, *INTACT_CONDITION, "lead", n_compared)
    _, least, _ = _interval(there, NONE_KEPT, "", "increase", n_compared)
    return least >= WORTH_NAMING * lead


def _coverage(there: _There) -> float:
    """1 where the run did not say."""
    row = there.get((*INTACT_CONDITION, "coverage"))
    return 1.0 if row is None else float(row["value"])


def _at(losses: pd.DataFrame, layer: int, site: str) -> _There:
    rows = losses[(losses["layer"] == layer) & (losses["site"] == site)]
    there: _There = {}
    for row in rows.to_dict("records"):
        # The first of several counts.
        there.setdefault((row["positions"], row["control"], row["metric"]), row)
    return there


def _use(there: _There, code: str, layer: int, site: str, n_compared: int) -> Use:
    def interval(condition: str, control: str, metric: str) -> Interval:
        return _interval(there, condition, control, metric, n_compared)

    taken, alone = without(code), only(code)
    total_effect, lead = (
        interval(*of) for of in ((NONE_KEPT, "", "increase"), (*INTACT_CONDITION, "lead"))
    )
    shared = min(total_effect[1], lead[1]) > 0 and (taken, "", "necessity") in there
    necessity = interval(taken, "", "necessity") if shared else None
    sufficiency = interval(alone, "", "sufficiency") if shared else None
    permuted = (alone, SHUFFLED, "sufficiency")
    elsewhere = interval(*permuted) if shared and permuted in there else None
    above = min(interval(taken, "", metric)[1] for metric in OVER_CONTROL.values())
    return Use(
        code=code,
        layer=layer,
        site=site,
        word=_word(necessity, sufficiency, above, _coverage(there)),
        increase=interval(taken, "", "increase"),
        size_matched=interval(taken, SIZE_MATCHED, "increase"),
        rescaled=interval(taken, RANDOM_RESCALING, "increase"),
        necessity=_shown(necessity),
        sufficiency=_shown(sufficiency),
        shuffled=_shown(elsewhere),
    )


def _shown(share: Interval | None) -> Interval | None:
    """Up to the whole: beyond, a share says how wrong a broken model is, and not what it knows."""
    if share is None:
        return None
    value, low, high = (float(np.clip(bound, -1, 1)) for bound in share)
    return value, low, high


def _word(
    necessity: Interval | None, sufficiency: Interval | None, above_controls: float, coverage: float
) -> Word:
    if necessity is None or sufficiency is None:
        return Word.UNDECIDED
    if necessity[1] >= WORTH_NAMING and above_controls > 0:
        return Word.USED
    if max(necessity[2], sufficiency[2]) < WORTH_NAMING and coverage >= _LEAST_COVERAGE:
        return Word.NOT_USED
    return Word.UNDECIDED


def _interval(
    there: _There, condition: str, control: str, metric: str, n_compared: int
) -> Interval:
    """Value and widened bounds of a number, one of so many that are compared."""
    row = there[condition, control, metric]
    value, n = float(row["value"]), int(row["n"])
    return value, *widened(value, float(row["ci_low"]), float(row["ci_high"]), n_compared, n)
