"""From what a model loses without a position code to a word, by rules stated here.

What all four codes are worth is what the model loses without any of them. A code is

- `used`       where taking it away surely costs a tenth of that or more, and surely more than each
               of two controls: the size-matched control, all codes left in place, and rests
               rescaled as much at random;
- `unused`     where it surely costs less than a tenth, alone surely gives back less than a tenth of
               what is lost without all four, some other code is used, and at least half of what is
               scored is predicted from rows that codes were taken away from;
- `undecided`  otherwise: the intervals are too wide, the intervention hurts no more than a control
               does, or others can stand in for this one, by itself or together.

A code in the mean of rows, counting or positional vectors, is taken away by subtracting vectors:
displaced rows have the same vectors subtracted along random directions. The others are changes of
the rests: there other content is mixed in. Random rescaling blurs the variance code, so to be found
a user of that a model has to lose more than by the blur. A network that no displacement of that
size leaves alive is `undecided`, whatever it uses.

Surely means by the 95% interval over held-out sequences, widened (Bonferroni) for the number of
codes and, at single places, of these too; there, what all codes are worth has also to be a tenth,
surely, of what they are worth through the stream. Where the model does not surely lose anything
without all four there is nothing to share out, and where it does not surely do better as it is than
one that sees no context there is nothing that it uses: then every code is `undecided`.

The words speak of what the interventions change. Similarity is made by pooling earlier tokens, and
to take it away undoes the pooling: a model that uses what was pooled, in whatever order, is called
a user of similarity, too.
"""

from dataclasses import dataclass, replace

import pandas as pd

from experiments.results.code_ablation import (
    EVERYWHERE,
    INTACT_CONDITION,
    NONE_KEPT,
    RANDOM_RESCALING,
    SIZE_MATCHED,
    STREAM,
    only,
    without,
)
from experiments.results.measurements import LOSS
from experiments.results.readability import CONDITION, widened
from probes.code_names import CODES
from probes.scores import SHUFFLED

WORDS = ("used", "unused", "undecided")

_WORTH_NAMING = 0.1
# Of what is scored, the share predicted from rows without the code that its clearance needs.
_REACHED = 0.5

# A number and the bounds of its interval.
Interval = tuple[float, float, float]


@dataclass(frozen=True)
class Use:
    """Whether a code is used, through the whole stream or at one place.

    Attributes:
        code: one of `probes.code_names.CODES`.
        layer, site: where it was taken away; layer -1 stands for the whole stream.
        word: "used", "unused" or "undecided".
        increase: what the model loses more without it, in nats: value, low, high.
        displaced: the same for size-matched control, with all codes left in place.
        rescaled: the same for rests rescaled as much at random.
        needed: the increase as a share of what all codes are worth; None where that may be nothing.
        enough: the share of that which the code alone gives back.
        shuffled: the share that it gives back with positions shuffled; None where that
            was not tried, as at single places.
    """

    code: str
    layer: int
    site: str
    word: str
    increase: Interval
    size_matched: Interval
    rescaled: Interval
    necessity: Interval | None
    sufficiency: Interval | None
    shuffled: Interval | None


@dataclass(frozen=True)
class UseVerdict:
    """What code ablation of one variant and condition comes to.

    Attributes:
        variant, tokens, begin_token: which one.
        intact: what the model loses as it is, in nats: value, low, high.
        chance: what it would lose without any context.
        worth: what it loses more without all four codes through the whole stream.
        reached: the share of scored tokens that are predicted from rows where codes are taken away.
        uses: of each code through the whole stream, and then place by place.
    """

    variant: str
    tokens: str
    begin_token: bool
    intact: Interval
    chance: float
    total_effect: Interval
    coverage: float
    uses: tuple[Use, ...]

    @property
    def of_stream(self) -> tuple[Use, ...]:
        """The uses through the whole stream, one for each code."""
        return tuple(use for use in self.uses if use.layer == EVERYWHERE)

    @property
    def sentence(self) -> str:
        """The words for the whole stream, with their numbers."""
        value, low, high = self.total_effect
        start = (
            f"On {self.tokens} with{'' if self.begin_token else 'out'} a begin token the "
            f"{self.variant} model without its four position codes loses {value:.3g} nats more "
            f"[{low:.3g}, {high:.3g}], on top of {self.intact[0]:.3g} (chance {self.chance:.3g})"
        )
        if self.intact[2] >= self.chance:
            return f"{start}: it does not surely do better than chance as it is."
        if self.of_stream[0].necessity is None:
            return f"{start}: that may be nothing, so no code has a share in it."
        said = "; ".join(_words(word, self.of_stream) for word in WORDS)
        misled = ""
        if self.intact[0] + value > self.chance:
            misled = " Who is misled does worse than chance: shares are of all that is lost then."
        return f"{start}: {said}.{misled}{self._at_single_places()}"

    def _at_single_places(self) -> str:
        places = {
            code: [
                f"layer {use.layer} {use.site}"
                for use in self.uses
                if use.code == code and use.layer != EVERYWHERE and use.word == "used"
            ]
            for code in CODES
        }
        named = [f"{code} ({', '.join(where)})" for code, where in places.items() if where]
        if len(self.uses) == len(self.of_stream):
            return ""
        return f" Taken away at one place only, used: {'; '.join(named) or 'none'}."


def _words(word: str, uses: tuple[Use, ...]) -> str:
    named = [
        f"{use.code} ({_share(use.necessity)} of that without it, {use.sufficiency[0]:.0%} back "
        "with it alone)"
        for use in uses
        if use.word == word and use.necessity is not None and use.sufficiency is not None
    ]
    return f"{word}: {', '.join(named) or 'none'}"


def _share(interval: Interval) -> str:
    value, low, high = interval
    return f"{value:.0%} [{low:.0%}, {high:.0%}]"


def use_verdicts(measurements: pd.DataFrame) -> list[UseVerdict]:
    """One verdict for each variant and condition that a tournament was held on."""
    losses = measurements[(measurements["probe"] == LOSS) & measurements["step"].isna()]
    return [_verdict(group) for _, group in losses.groupby(CONDITION, sort=False, observed=True)]


def _verdict(losses: pd.DataFrame) -> UseVerdict:
    stream = _at(losses, EVERYWHERE, STREAM)
    first = losses.iloc[0]
    places = losses[["layer", "site"]].drop_duplicates().itertuples(index=False, name=None)
    return UseVerdict(
        variant=str(first["variant"]),
        tokens=str(first["tokens"]),
        begin_token=bool(first["begin_token"]),
        intact=_interval(stream, *INTACT_CONDITION, "nats", len(CODES)),
        chance=_chance(stream),
        total_effect=_interval(stream, NONE_KEPT, "", "increase", len(CODES)),
        coverage=_reached(stream),
        uses=tuple(use for layer, site in places for use in uses_at(losses, layer, site)),
    )


def uses_at(losses: pd.DataFrame, layer: int, site: str) -> list[Use]:
    """Whether each code is used at a place, or, for layer -1, through the whole stream.

    `losses` are rows of the probe "loss" for one variant and condition, at all of its places.
    """
    single = losses.loc[losses["layer"] != EVERYWHERE, ["layer", "site"]].drop_duplicates()
    n_compared = len(CODES) * (1 if layer == EVERYWHERE else len(single))
    there = _at(losses, layer, site)
    uses = [_use(there, code, layer, site, n_compared) for code in CODES]
    # What all are worth has to come from somewhere.
    found = any(use.word == "used" for use in uses)
    matters = layer == EVERYWHERE or _matters(there, losses, n_compared)
    if found and matters and _beats_chance(there):
        return uses
    return [replace(use, word="undecided") for use in uses]


def _matters(there: pd.DataFrame, losses: pd.DataFrame, n_compared: int) -> bool:
    """Whether codes at a place are surely worth a tenth of what they are through the stream."""
    stream = _at(losses, EVERYWHERE, STREAM)
    if stream.empty:
        return True
    whole, _, _ = _interval(stream, NONE_KEPT, "", "increase", 1)
    return _interval(there, NONE_KEPT, "", "increase", n_compared)[1] >= _WORTH_NAMING * whole


def _reached(there: pd.DataFrame) -> float:
    """1 where the run did not say."""
    key = (*INTACT_CONDITION, "coverage")
    return float(there.loc[[key]].iloc[0]["value"]) if key in there.index else 1.0


def _beats_chance(there: pd.DataFrame) -> bool:
    _, _, high = _interval(there, *INTACT_CONDITION, "nats", len(CODES))
    return high < _chance(there)


def _chance(there: pd.DataFrame) -> float:
    """What the model would lose without any context."""
    return float(there.loc[[(*INTACT_CONDITION, "nats")]].iloc[0]["chance"])


def _at(losses: pd.DataFrame, layer: int, site: str) -> pd.DataFrame:
    """The rows of a place, by condition, control and metric."""
    there = losses[(losses["layer"] == layer) & (losses["site"] == site)]
    return there.set_index(["positions", "control", "metric"])


def _use(there: pd.DataFrame, code: str, layer: int, site: str, n_compared: int) -> Use:
    def interval(condition: str, control: str, metric: str) -> Interval:
        return _interval(there, condition, control, metric, n_compared)

    taken, alone = without(code), only(code)
    shared = interval(NONE_KEPT, "", "increase")[1] > 0 and (taken, "", "necessity") in there.index
    necessity = interval(taken, "", "necessity") if shared else None
    sufficiency = interval(alone, "", "sufficiency") if shared else None
    permuted = (alone, SHUFFLED, "sufficiency")
    elsewhere = interval(*permuted) if shared and permuted in there.index else None
    above = min(
        interval(taken, "", f"over_{control}")[1] for control in ("size_matched", "rescaled")
    )
    return Use(
        code=code,
        layer=layer,
        site=site,
        word=_word(necessity, sufficiency, above, _reached(there)),
        increase=interval(taken, "", "increase"),
        size_matched=interval(taken, SIZE_MATCHED, "increase"),
        rescaled=interval(taken, RANDOM_RESCALING, "increase"),
        necessity=necessity,
        sufficiency=sufficiency,
        shuffled=elsewhere,
    )


def _word(
    necessity: Interval | None, sufficiency: Interval | None, above_controls: float, coverage: float
) -> str:
    if necessity is None or sufficiency is None:
        return "undecided"
    if necessity[1] >= _WORTH_NAMING and above_controls > 0:
        return "used"
    if max(necessity[2], sufficiency[2]) < _WORTH_NAMING and coverage >= _REACHED:
        return "unused"
    return "undecided"


def _interval(
    there: pd.DataFrame, condition: str, control: str, metric: str, n_compared: int
) -> Interval:
    """Value and widened bounds of a number, one of so many that are compared."""
    row = there.loc[[(condition, control, metric)]].iloc[0]
    value, n = float(row["value"]), int(row["n"])
    return value, *widened(value, float(row["ci_low"]), float(row["ci_high"]), n_compared, n)
