"""Finished trainings: what could be read at every step, and in which order it came.

Times are compared in doublings of the number of steps, which is how finely they are known: step 0
counts as one doubling before step 1, and what never comes as one after the end, the earliest that
it could. Each code is timed by its own measure against its own chance, and one that is measured
more finely is seen earlier: the order is that of readings, not of what the model does with the
codes. That is told by codes which are moved: when the model follows each of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import pandas as pd

from experiments.results.adjacency import ADJACENCY
from experiments.results.emergence import (
    NEVER_ORDER,
    code_gains,
    follow_onsets,
    followed_codes,
    never_knows_order,
    onsets,
    with_nothing,
)
from experiments.results.figures import figure
from experiments.results.findings import Figure, Panel, exactly, over_seeds, panel
from experiments.results.markdown import markdown_table
from experiments.results.measured import Measured
from experiments.results.measurements import LOSS
from experiments.results.readability import widened
from experiments.results.worth import WORTH_NAMING
from experiments.runs.folder import Kind
from experiments.runs.of_figures import RunOfFigures
from probes.head_rules import RULES
from probes.scores import SHUFFLED

# Onsets are whole doublings: two or three seeds agree by chance, and show no spread at all.
SEEDS_TO_BE_SURE = 5

_LEAST = "a tenth: a whole interval above it counts"


@dataclass(frozen=True, repr=False)
class Emergence(RunOfFigures):
    """Finished trainings: what could be read at every step, and in which order it came."""

    experiment: ClassVar[str] = "emergence"
    needs_info: ClassVar[Mapping[str, Kind]] = {
        "setting": str,
        "notes": list,
        "config": dict,
        "command": str,
    }
    leads_to: ClassVar[tuple[str, ...]] = (".onsets", ".gains", ".followed")

    @property
    def about(self) -> str:
        """The trainings."""
        return str(self.info["setting"])

    @cached_property
    def onsets(self) -> pd.DataFrame:
        """One row for each seed: `results.emergence.onsets`, of each code and of the loss."""
        found = {seed: onsets(rows) for seed, rows in self.measurements.groupby("seed")}
        return pd.DataFrame(found).T.rename_axis("seed")

    @cached_property
    def follow_onsets(self) -> pd.DataFrame:
        """One row for each seed: `experiments.results.emergence.follow_onsets`."""
        found = {seed: follow_onsets(rows) for seed, rows in self.measurements.groupby("seed")}
        return pd.DataFrame(found).T.rename_axis("seed")

    @cached_property
    def followed(self) -> pd.DataFrame:
        """`experiments.results.emergence.followed_codes` of every seed."""
        by_seed = {seed: followed_codes(rows) for seed, rows in self.measurements.groupby("seed")}
        found = pd.concat([rows.assign(seed=seed) for seed, rows in by_seed.items()])
        # In a training in which no code could be moved, nothing was followed.
        levels = ["seed", "code", "step"]
        every = [[*by_seed], *(found[level].unique().tolist() for level in levels[1:])]
        index = pd.MultiIndex.from_product(every, names=levels)
        return with_nothing(found.set_index(levels), index)

    def markdown(self) -> str:
        """The onsets, in optimiser steps.

        Returns:
            A Markdown table, one row for each seed.
        """
        told = self.onsets.map(lambda step: "never" if np.isnan(step) else f"{step:.0f}")
        return markdown_table(told.reset_index())

    @cached_property
    def gains(self) -> pd.DataFrame:
        """`experiments.results.emergence.code_gains` of every seed."""
        by_seed = self.measurements.groupby("seed")
        return pd.concat([code_gains(rows).assign(seed=seed) for seed, rows in by_seed])

    @property
    def doublings(self) -> pd.DataFrame:
        """The onsets as powers of two; see the head of this module."""
        return self._in_doublings(self.onsets)

    def _in_doublings(self, onsets: pd.DataFrame) -> pd.DataFrame:
        last_step = float(self.measurements["step"].max())
        return onsets.clip(lower=0.5).fillna(2 * last_step).apply(np.log2)

    @cached_property
    def claims(self) -> dict[str, Measured]:
        """Differences of onsets in doublings and changes of gains, both over seeds, and the most
        that shuffled positions gain; by what they are of. Of codes that no seed follows there is no
        delay."""
        doublings = self.doublings
        ever = self._in_doublings(self.follow_onsets.dropna(axis="columns", how="all"))
        delays = {
            f"doublings, following of {code} after loss": over_seeds(
                (ever[code] - doublings[LOSS]).to_numpy()
            )
            for code in ever
        }
        return _times(doublings) | delays | _changes(self.gains)

    @property
    def figures(self) -> tuple[Figure, ...]:
        """What is told, step by step."""
        rows = self.measurements
        return (
            _figure_of_loss(rows[rows["probe"] == LOSS]),
            _figure_of_gains(self.gains),
            *([_figure_of_following(self.followed)] if len(self.followed) else []),
            _figure_of_adjacency(rows[rows["metric"].isin(ADJACENCY)]),
            _figure_of_heads(rows[rows["probe"] == "heads"]),
        )

    @property
    def headline(self) -> str:
        """Which code is readable first and which never, and which is followed first."""
        doublings, followed = self.doublings, self.follow_onsets.dropna(axis="columns", how="all")
        told = _headline(self.onsets, _in_order(doublings), _first_together(doublings))
        if followed.empty:
            return told
        first = _first_together(self._in_doublings(followed))
        return f"{told} {_followed_first(followed, first)}"

    @property
    def sentences(self) -> list[str]:
        """What comes later by how much, and what training changes."""
        read = _sentences(self.onsets, _in_order(self.doublings), self.claims)
        codes = _in_order(self._in_doublings(self.follow_onsets))
        if all(never_knows_order(rows) for _, rows in self.measurements.groupby("seed")):
            return [*read, f"{NEVER_ORDER}."]
        return [*read, *_of_following(self.follow_onsets[codes], self.claims)]

    def html(self) -> str:
        title = "When do the position codes appear?"
        return self.page("emergence.html", title, self.sentences, claims=self.claims)


def _in_order(doublings: pd.DataFrame) -> list[str]:
    """The codes as they come in the mean, those that come together as they stand."""
    mean = doublings.drop(columns=LOSS, errors="ignore").mean()
    return [str(code) for code in mean.sort_values(kind="stable").index]


def _times(doublings: pd.DataFrame) -> dict[str, Measured]:
    first, *later = _in_order(doublings)
    pairs = [(name, first) for name in (*later, LOSS)] + [(code, LOSS) for code in (first, *later)]
    return {
        f"doublings, {name} after {other}": over_seeds(
            (doublings[name] - doublings[other]).to_numpy()
        )
        for name, other in pairs
    }


def _changes(gains: pd.DataFrame) -> dict[str, Measured]:
    changes = {
        f"change of gain, {code}": over_seeds(values[:, -1] - values[:, 0])
        for code, values in _by_code(gains, "gain").items()
    }
    return {**changes, f"largest gain, {SHUFFLED}": exactly(gains["control"])}


def _never(onsets: pd.DataFrame, codes: list[str]) -> list[str]:
    return [code for code in codes if onsets[code].isna().all()]


def _first_together(doublings: pd.DataFrame) -> list[str]:
    """The codes that come first in the mean."""
    mean = doublings.drop(columns=LOSS, errors="ignore").mean()
    return [str(code) for code in mean.index[mean == mean.min()]]


def _headline(onsets: pd.DataFrame, codes: list[str], first: list[str]) -> str:
    never = _never(onsets, codes)
    if first[0] in never:
        return "No code is surely readable at any step."
    told = "Every code is readable"
    if len(first) < len(codes):
        told = f"On average {_who(first)} readable first"
    told = f"{told}, {_in_seeds(onsets[first[0]])}"
    return f"{told}; never surely readable: {', '.join(never)}." if never else f"{told}."


def _followed_first(onsets: pd.DataFrame, first: list[str]) -> str:
    told = f"{_who(first)} followed first, {_in_seeds(onsets[first[0]])}."
    return f"{told[0].upper()}{told[1:]}"


def _who(codes: list[str]) -> str:
    *others, last = codes
    return f"{', '.join(others)} and {last} are" if others else f"{last} is"


def _in_seeds(onsets: "pd.Series[float]") -> str:
    """At which step something comes in the middle of the seeds, or in how few it does at all."""
    median = onsets.fillna(np.inf).median()
    if np.isfinite(median):
        when = f"at step {median:g}" if median else "before training"
        return f"{when} in the median of {len(onsets)} seeds"
    return f"in {onsets.notna().sum()} of {len(onsets)} seeds only"


def _sentences(onsets: pd.DataFrame, codes: list[str], claims: dict[str, Measured]) -> list[str]:
    first, *later = codes
    never = _never(onsets, codes)
    if first in never:
        return []

    def delay(name: str) -> str:
        found = claims[f"doublings, {name} after {first}"]
        if found.value == found.ci_low == found.ci_high == 0:
            return "at the same step"
        return _earlier_or_later(found, len(codes))

    falls = onsets[LOSS].notna().any()
    changes = [
        f"{code} by {_told(change)}"
        for code in codes
        if _sure(change := claims[f"change of gain, {code}"], len(codes))
    ]
    sentences = [
        f"Delays after {first} are in doublings of the number of training steps",
        *(f"{code} is readable {delay(code)}" for code in later if code not in never),
        f"The loss is half way down {delay(LOSS)}" if falls else "The loss falls in no seed",
        *_counted_past_the_end(onsets[[first, *later, LOSS]].rename(columns={LOSS: "the loss"})),
        f"Gains (chance 0) that training surely changes: {', '.join(changes) or 'none'}",
        f"Shuffled positions gain {claims[f'largest gain, {SHUFFLED}'].value:.2g} at most",
    ]
    return [f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences]


def _counted_past_the_end(onsets: pd.DataFrame) -> Iterator[str]:
    """What comes in some seeds only, whose delay is no time at which it came."""
    n_all = len(onsets)
    missed = {name: count for name, count in onsets.isna().sum().items() if 0 < count < n_all}
    if missed:
        told = ", ".join(f"{name} in {count} of {n_all} seeds" for name, count in missed.items())
        yield f"What never comes in a seed counts there as a doubling past the end: {told}"


def _of_following(onsets: pd.DataFrame, claims: dict[str, Measured]) -> list[str]:
    """When moved codes are followed, and how long after the loss is half way down."""
    sentences = []
    for code, of_code in onsets.items():
        steps = of_code.dropna()
        if steps.empty:
            sentences.append(f"once order is known, {code} is followed at no step, in any seed")
            continue
        seeds = f"in {len(steps)} of {len(onsets)} seeds"
        at = f"first at step {steps.median():g} in their median"
        found = claims[f"doublings, following of {code} after loss"]
        delay = _earlier_or_later(found, len(onsets.columns))
        counted = "With the others counted a doubling past the end, that"
        over = "That" if len(steps) == len(onsets) else counted
        sentences += [
            f"{code} is surely followed {seeds}, {at}",
            f"{over} is {delay} than the loss is half way down",
        ]
    return [f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences]


def _earlier_or_later(delay: Measured, n_compared: int) -> str:
    word = "surely" if _sure(delay, n_compared) else "perhaps"
    if delay.value < 0:
        before = replace(delay, value=-delay.value, ci_low=-delay.ci_high, ci_high=-delay.ci_low)
        return f"{word} {_told(before, 'doublings')} earlier"
    return f"{word} {_told(delay, 'doublings')} later"


def _sure(found: Measured, n_compared: int) -> bool:
    """Whether one of so many differences is beyond its interval, over enough seeds."""
    low, high = widened(found.value, found.ci_low, found.ci_high, n_compared, found.n)
    return found.n >= SEEDS_TO_BE_SURE and not low <= 0 <= high


def _told(found: Measured, unit: str = "") -> str:
    value = f"{found.value:.2g}"
    in_unit = f" {unit.removesuffix('s') if value == '1' else unit}" if unit else ""
    return f"{value}{in_unit} [{found.ci_low:.2g}, {found.ci_high:.2g}]"


def _by_code(gains: pd.DataFrame, column: str) -> dict[str, np.ndarray]:
    """A column of the gains as [seed step], by code."""
    return {str(code): _by_step(rows, column) for code, rows in gains.groupby("code", sort=False)}


def _by_step(rows: pd.DataFrame, column: str = "value") -> np.ndarray:
    """The largest of each seed and step, [seed step]."""
    return rows.groupby(["seed", "step"])[column].max().unstack().to_numpy(dtype=float)


def _steps(rows: pd.DataFrame) -> tuple[str, ...]:
    """The watched steps, which stand at 0, 1, 2, ..."""
    return tuple(str(step) for step in sorted(rows["step"].unique()))


def _over_steps(title: str, **drawn: Mapping[str, np.ndarray | float]) -> Panel:
    (values, *_) = drawn["measured"].values()
    return panel(title, np.arange(np.shape(values)[1]), **drawn)


@figure("loss", "step", "nats per token", ticks=_steps)
def _figure_of_loss(losses: pd.DataFrame) -> Iterator[Panel]:
    """The loss.

    Mean over seeds on held-out sequences. The dashed line is the best guesser who knows no order.
    """
    chance = {"no order": losses["chance"].mean()}
    yield _over_steps("", measured={"loss": _by_step(losses)}, chance=chance)


@figure("gains", "step", "gain", ticks=_steps)
def _figure_of_gains(gains: pd.DataFrame) -> Iterator[Panel]:
    """The position codes.

    The gain at the best site of each step, and that of shuffled positions there. Both are means
    over seeds. Chance is 0. A gain is the share of the chance error that the probe removes. For
    counting it is R² of 1/m, for the mean residual the share of variance explained. Gains of
    different codes cannot be compared. For the headline a code is readable in a seed from the step
    at which that seed's own interval, over sequences, lies above a tenth.
    """
    shuffled = _by_code(gains, "control")
    for code, values in _by_code(gains, "gain").items():
        control = {SHUFFLED: shuffled[code]}
        tenth = {_LEAST: WORTH_NAMING}
        yield _over_steps(code, measured={"gain": values}, reference=control, chance=tenth)


@figure("following", "step", "net share", ticks=_steps)
def _figure_of_following(followed: pd.DataFrame) -> Iterator[Panel]:
    """What the model follows where it is moved.

    Each code is moved through the whole stream. The share of answers that follows, or of the way of
    predictions, minus that of a move of the same size. On text an unrelated order is subtracted in
    its place where it is followed more. So are random functions of the position from a smooth trend
    in answers. Mean over seeds. Chance is 0. Where no site carries a code, nothing follows it. A
    model that does not know order yet uses nothing, whatever follows.
    """
    for code, values in _by_code(followed, "net").items():
        tenth = {_LEAST: WORTH_NAMING}
        yield _over_steps(code, measured={"net": values}, chance=tenth)


@figure("adjacency", "step", "probability", ticks=_steps)
def _figure_of_adjacency(of_cosines: pd.DataFrame) -> Iterator[Panel]:
    """Adjacency.

    The largest score of any site, of real and of shuffled positions. Both are means over seeds. A
    score is the probability that the nearer of two activations has the larger cosine.
    """
    for metric, rows in of_cosines.groupby("metric"):
        real, shuffled = (_by_step(rows[rows["control"] == c]) for c in ("", SHUFFLED))
        yield _over_steps(
            ADJACENCY[str(metric)],
            measured={"score": real},
            reference={SHUFFLED: shuffled},
            chance={"chance": rows["chance"].mean()},
        )


@figure("heads", "step", "score", ticks=_steps)
def _figure_of_heads(scores: pd.DataFrame) -> Iterator[Panel]:
    """The heads.

    The largest score of any head, mean over seeds. The largest of many scores exceeds chance by
    luck alone.
    """
    for rule in RULES:
        rows = scores[scores["metric"] == rule.metric]
        yield _over_steps(
            rule.label,
            measured={"strongest head": _by_step(rows)},
            reference={"threshold of the label": rule.threshold},
            chance={"chance": rows["chance"].mean()} if rows["chance"].notna().all() else {},
        )
