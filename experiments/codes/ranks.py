"""The rank of a code's effect among those of control draws, each of other directions.

Ranks are taken on a panel of sequences, the same ones for the code and for every draw: effects
differ by their directions alone.

Draws are made in turns, as many as are needed to settle the rank. Where the net effect is not
surely worth naming, no rank makes it so: then none are made.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from experiments.results import interchange as names
from experiments.results.position_use import FALSE_DISCOVERIES
from experiments.results.worth import WORTH_NAMING

# Effects of the draws of a turn.
PerDraw = Float[np.ndarray, " draw"]

# Of fewer sequences little can be said.
FEWEST_SEQUENCES = 20
# Sequences of a panel: the same ones for the code and for every draw. With eight of them strong
# effects no longer ranked first.
PANEL = 32
# A rank is settled once so many draws have come as far as the code (Besag and Clifford 1991).
_SETTLED = 5


def enough_draws(n_effects: int, passing: int) -> int:
    """So many that this many may pass by themselves among so many effects."""
    return math.ceil(n_effects / FALSE_DISCOVERIES / passing)


class Rank:
    """The rank of an effect among those of its control.

    Args:
        net: the row of the net effect, whose columns the rank's row has.
        level: makes the code's own effect.
        drawn: makes the draws of a turn, from its number.
    """

    def __init__(
        self,
        net: Mapping[str, Any],
        level: Callable[[], float],
        drawn: Callable[[int], PerDraw],
    ) -> None:
        self._net, self._level, self._drawn = net, level, drawn
        self._made: list[PerDraw] = []

    @property
    def open(self) -> bool:
        """Whether a rank may still make it pass: the net effect is surely worth naming, and few
        draws have come as far."""
        return self._net["ci_low"] >= WORTH_NAMING and self.reached < _SETTLED

    def among(self, most: int) -> "Rank":
        """The same, of as many draws as settle it, or as these."""
        while self.open and self._n < most:
            self._made.append(self._drawn(len(self._made)))
        return self

    def row(self) -> dict[str, Any]:
        """A row of the tidy table: the share of draws, the code among them, that come as far; `n`
        is how many draws. Without any, it is 1."""
        p = (1 + self.reached) / (1 + self._n)
        return fact(names.RANK, p, {**self._net, "n": self._n})

    @cached_property
    def _own(self) -> float:
        return self._level()

    @property
    def _n(self) -> int:
        return sum(map(len, self._made))

    @property
    def reached(self) -> int:
        """How many draws have come as far."""
        return sum(int((of >= self._own).sum()) for of in self._made)


# The rank of an effect, and the condition that it is of.
Ranked = tuple[Rank, str]


def rank_rows(ranks: Sequence[Ranked], n_effects: int) -> list[dict[str, Any]]:
    """The ranks of a run's effects, of no more draws than it takes.

    Draws are made until all that no draw has reached pass together, whatever becomes of the others.

    Args:
        ranks: of all effects, each with its condition; the same rank where several are one.
        n_effects: how many effects are tested.

    Returns:
        As many rows of the tidy table.
    """
    most = 0
    while any(rank.open for rank, _ in ranks):
        # One that a draw has reached may still pass, but the others must not need it to.
        sure = sum(rank.open and not rank.reached for rank, _ in ranks)
        if (needed := enough_draws(n_effects, max(sure, 1))) <= most:
            break
        most = needed
        for rank, _ in ranks:
            rank.among(most)
    return [{**rank.row(), "positions": condition} for rank, condition in ranks]


def fact(metric: str, value: float, context: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the tidy table: a number without an interval.

    Args:
        metric: what it is.
        value: the number.
        context: fills all other columns; `n` is 0 where it has none.
    """
    bare = {"control": "", "ci_low": value, "ci_high": value, "chance": math.nan}
    return {"n": 0, **context, **bare, "metric": metric, "value": value}
