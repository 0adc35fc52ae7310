"""The answer at a glance: one sentence and, for each code, what one figure shows. Needs no torch.

A model's codes are judged by one kind of intervention or another; `Judged` is all that is asked of
either. What can be read comes from `experiments.results.readability`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.results.guesser import Score
from experiments.results.intervals import Interval
from experiments.results.measurements import RANDOM_INIT
from experiments.results.position_use import STRONGEST, Use, Word, strongest, telling
from experiments.results.readability import (
    HYPOTHESES,
    Verdict,
    gain,
    gain_bounds,
    setting_words,
)
from experiments.results.usage import UseVerdict
from probes.code_names import COUNTING, IRREGULAR, MEAN_RESIDUAL, SIMILARITY, SMOOTH, VARIANCE

# The hypotheses that are of one code each.
_OF_CODES = (VARIANCE, SIMILARITY, COUNTING, MEAN_RESIDUAL)
# What codes are called within a sentence, where that is not their name.
_SPOKEN = {
    MEAN_RESIDUAL: "the mean residual",
    SMOOTH: "the smooth trend",
    IRREGULAR: "the irregular part",
}

# Where position was read, in words.
_SITES = {
    "resid_pre": "the input of layer {layer}",
    "resid_mid": "the middle of layer {layer}",
    "resid_post": "the output of layer {layer}",
    "attn_out": "the attention of layer {layer}",
    "mlp_out": "the MLP of layer {layer}",
}

# What figures call the control that costs more than the others.
STRONGER_CONTROL = "the stronger control"

# How a reading is told after "position can be read", and how the last two codes are joined.
_READ = {
    "readable": ("from", "and"),
    "faint": ("faintly from", "and"),
    "unreadable": ("not from", "or"),
    "undecided": ("undecided:", "and"),
    "invalid": ("control failed:", "and"),
}


@dataclass(frozen=True)
class Judged:
    """What interventions say of a model's codes, whichever interventions they were.

    Attributes:
        variant, tokens, begin_token: what was judged.
        score: how well the intact model does.
        words: what is said of each code.
        shares: how much of what the model does rests on each code; None where it has no share.
        share_of: what `shares` are shares of, as a column is headed.
        restored: how much of that comes back, or stays, with each code alone.
        restored_of: what `restored` are shares of, as a column is headed.
        controls: `shares` of the strongest control of each code, where `shares` are not net of it.
        reason: a sentence in place of words, where nothing can be said of any code; else "".
    """

    variant: str
    tokens: str
    begin_token: bool
    score: Score
    words: Mapping[str, Word]
    shares: Mapping[str, Interval | None]
    share_of: str
    restored: Mapping[str, Interval | None] = field(default_factory=dict)
    restored_of: str = ""
    controls: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    @property
    def lacks_order(self) -> bool:
        """Whether the model has not learned order, so that no code is judged."""
        return Word.NO_ORDER in self.words.values()


@dataclass(frozen=True)
class Reading:
    """How well position can be read from one code in one model variant, at its best site.

    Attributes:
        variant: of which model.
        word: what `experiments.results.readability` says.
        gain: 0 is chance, 1 is the most: value, low, high.
        site: where.
    """

    variant: str
    word: str
    gain: Interval
    site: str


@dataclass(frozen=True)
class CodeAnswer:
    """What is shown of one code.

    Attributes:
        code: its name.
        word: whether it is used; None where no intervention was made.
        share: how much rests on it; None where it has no share.
        control: how much rests on its strongest control; None where `share` is net of it.
        restored: how much comes back, or stays, with it alone; None where it has no share.
        before: what can be read in the untrained model; None where that was not read.
        after: the same in the model in question.
    """

    code: str
    word: Word | None
    share: Interval | None
    before: Reading | None
    after: Reading | None
    control: float | None = None
    restored: Interval | None = None


@dataclass(frozen=True)
class Answer:
    """What a comparison comes to, at a glance.

    Attributes:
        codes: one answer for each code that was read or judged.
        tokens: what the model read, in words.
        score: how well it does; None where nothing was judged.
        share_of: what the shares of the codes are shares of; "" where nothing was judged.
        restored_of: the same of what comes back, or stays, with a code alone.
        reason: why no code has a word, a sentence; "" where they have.
    """

    codes: tuple[CodeAnswer, ...]
    tokens: str
    score: Score | None = None
    share_of: str = ""
    restored_of: str = ""
    reason: str = ""

    @property
    def sentence(self) -> str:
        """Which codes the model uses, in at most 25 words; where nothing was judged, what can be
        read."""
        if self.reason:
            return self.reason
        by_word = {word: [c.code for c in self.codes if c.word == word] for word in Word}
        if any(by_word.values()):
            return _of_use(by_word)
        return _of_reading([code.after for code in self.codes], [code.code for code in self.codes])

    @property
    def measured_on(self) -> str:
        """What the model read and how well it does there, against the guesser."""
        if self.score is None:
            return f"Read on {self.tokens}." if self.tokens else "Nothing was read yet."
        return f"Read on {self.tokens}. {self.score.sentence}"

    @property
    def measured_in_brief(self) -> str:
        """The same in one line of a phone; "" where nothing was judged."""
        if self.score is None:
            return ""
        kind, *_ = self.tokens.split(" with")
        return f"{kind[0].upper()}{kind[1:]}: {self.score.brief}"


def answer_of(found: Sequence[Verdict], judged: Judged | None) -> Answer:
    """The answer at a glance.

    Args:
        found: what can be read, as `experiments.results.readability.verdicts` gives it.
        judged: what is used; None where no intervention was made.

    Returns:
        One answer for each code that was read or judged, in the setting that was judged, or else
        in the one that was read first; codes that are used come first.
    """
    rows = {
        verdict.hypothesis: verdict.rows for verdict in found if verdict.hypothesis in _OF_CODES
    }
    first = next((row for own in rows.values() for row in own), None)
    if judged is not None:
        variant, setting = judged.variant, (judged.tokens, judged.begin_token)
    elif first is not None:
        variant, setting = str(first["variant"]), (str(first["tokens"]), bool(first["begin_token"]))
    else:
        return Answer((), "")
    words: Mapping[str, Word] = {} if judged is None else judged.words
    # What is judged is a smooth trend; what is read of it is counting: one line and not two.
    read_as = {code: COUNTING if code == SMOOTH else code for code in words}
    read_as |= {code: code for code in _OF_CODES if code in rows and code not in read_as.values()}
    codes = [
        CodeAnswer(
            code,
            words.get(code),
            None if judged is None else judged.shares.get(code),
            None if variant == RANDOM_INIT else _reading(read_as[code], rows, RANDOM_INIT, setting),
            _reading(read_as[code], rows, variant, setting),
            None if judged is None else judged.controls.get(code),
            None if judged is None else judged.restored.get(code),
        )
        for code in read_as
    ]
    tokens = setting_words(*setting)
    if judged is None:
        return Answer(tuple(codes), tokens)
    codes.sort(key=lambda code: STRONGEST.index(code.word or Word.UNDECIDED))
    of = (judged.share_of, judged.restored_of)
    return Answer(tuple(codes), tokens, judged.score, *of, judged.reason)


def judged_by_removal(verdict: UseVerdict) -> Judged:
    """What the removal of codes says, as `experiments.results.usage` judges it.

    Args:
        verdict: of one setting.

    Returns:
        The same as every intervention tells it; a code's share is its necessity, what stays with
        it alone its sufficiency.
    """
    uses = verdict.of_stream
    reason = ""
    if verdict.lead[1] <= 0:
        reason = f"This model does not surely beat {verdict.guesser}: no code is judged."
    elif all(use.necessity is None for use in uses):
        reason = (
            "Removing all four codes does not surely hurt this model, so no code is called used."
        )
    return Judged(
        variant=verdict.variant,
        tokens=verdict.tokens,
        begin_token=verdict.begin_token,
        score=Score("loss", "nats per token", verdict.intact, verdict.chance, verdict.guesser),
        words={use.code: use.word for use in uses},
        shares={use.code: use.necessity for use in uses},
        share_of="removed: lead lost",
        restored={use.code: use.sufficiency for use in uses},
        restored_of="kept alone: lead kept",
        controls={
            use.code: min(max(use.size_matched[0], use.rescaled[0]) / verdict.lead[0], 1)
            for use in uses
            if use.necessity is not None
        },
        reason=reason,
    )


def judged_by_moves(
    row: Mapping[Any, Any],
    score: Score,
    uses: Mapping[str, Sequence[Use]],
    follow: str,
    reason: str | None,
    unjudged: Sequence[str],
) -> Judged:
    """What moved positions say of codes in the setting of a row, net of controls.

    `follow` is what follows a moved position, "answers". Where there is a reason to say nothing of
    any code, it is said of the `unjudged` ones that the model has not learned order.
    """
    words = {code: strongest([use.word for use in of]) for code, of in uses.items()}
    shown = telling(uses)
    if reason is not None:
        words, shown = dict.fromkeys(unjudged, Word.NO_ORDER), {}
    return Judged(
        variant=str(row["variant"]),
        tokens=str(row["tokens"]),
        begin_token=bool(row["begin_token"]),
        score=score,
        words=words,
        shares={code: noising.least for code, (noising, _) in shown.items()},
        share_of=f"moved: {follow} follow",
        restored={code: denoising.least for code, (_, denoising) in shown.items()},
        restored_of=f"put back: {follow} return",
        reason="" if reason is None else f"{reason[0].upper()}{reason[1:]}",
    )


def site_words(site: str, layer: int) -> str:
    """A site as sentences and figures name it, such as the output of layer 1.

    Args:
        site: as the tidy table has it.
        layer: counted from 0.

    Returns:
        Words that fit within a sentence.
    """
    return _SITES.get(site, f"{site} of layer {{layer}}").format(layer=layer)


def _reading(
    code: str, rows: Mapping[str, list[dict[str, Any]]], variant: str, setting: tuple[str, bool]
) -> Reading | None:
    for row in rows.get(code, ()):
        smaller = HYPOTHESES[code][2]
        if (row["variant"], row["tokens"], bool(row["begin_token"])) == (variant, *setting):
            value = gain(row["value"], row["chance"], smaller)
            bounds = gain_bounds(row, smaller)
            place = site_words(str(row["site"]), int(row["layer"]))
            return Reading(variant, str(row["verdict"]), (value, *bounds), place)
    return None


def _of_use(by_word: Mapping[Word, list[str]]) -> str:
    leads = [
        f"{verb} {_listed(codes, 'and')}"
        for word, verb in ((Word.USED, "uses"), (Word.CONTRIBUTES, "follows"))
        if (codes := by_word[word])
    ]
    apart = [
        f"{_listed(codes, 'and')} {'are' if len(codes) > 1 else 'is'} {word}"
        for word in (Word.REDUNDANT, Word.UNDECIDED)
        if (codes := by_word[word])
    ]
    unused = by_word[Word.NOT_USED]
    if not leads and not unused and not by_word[Word.REDUNDANT]:
        return "Whether this model uses any of these position codes is undecided."
    parts = []
    if unused:
        parts.append(f"{'it' if leads else 'this model'} does not use {_listed(unused, 'or')}")
    rest = "; ".join([*parts, *apart])
    sentences = [f"This model {' and '.join(leads)}"] if leads else []
    sentences += [rest[0].upper() + rest[1:]] if rest else []
    return f"{'. '.join(sentences)}."


def _of_reading(readings: Sequence[Reading | None], codes: Sequence[str]) -> str:
    by_word: dict[str, list[str]] = {word: [] for word in _READ}
    for reading, code in zip(readings, codes, strict=True):
        if reading is not None:
            by_word[reading.word].append(code)
    said = [
        f"{how} {_listed(found, last)}"
        for word, (how, last) in _READ.items()
        if (found := by_word[word])
    ]
    if not said:
        return "No position code was read."
    sentence = "; ".join(said)
    if by_word["readable"] or by_word["faint"]:
        return f"Position can be read {sentence}."
    if by_word["unreadable"]:
        return f"Position cannot be read {sentence.removeprefix('not ')}."
    return f"Whether position can be read is not settled; {sentence}."


def _listed(names: Sequence[str], last: str) -> str:
    *others, final = (_SPOKEN.get(name, name) for name in names)
    return f"{', '.join(others)} {last} {final}" if others else final
