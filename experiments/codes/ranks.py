"""The rank of a code's effect among those of control draws, each of other directions.

Each sequence has draws of its own, made in turns of one for every sequence.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from experiments.results import interchange as names
from experiments.results.position_use import FALSE_DISCOVERIES, WORTH_NAMING

PerSequence = Float[np.ndarray, " sequence"]
# How many of the draws, one array for each turn, come as far as a level, and how many there are.
Reached = Callable[[float, Sequence[PerSequence]], tuple[int, int]]

# A rank among fewer draws says little.
FEWEST_DRAWS = 20
# A rank is settled once so many draws have come as far as the code (Besag and Clifford 1991).
_SETTLED = 5


def enough_draws(n_effects: int, passing: int = 1) -> int:
    """So many that this many may pass by themselves among so many effects."""
    return math.ceil(n_effects / FALSE_DISCOVERIES / passing)


def rank_row(
    net: Mapping[str, Any],
    level: float,
    made: Sequence[PerSequence],
    drawn: Callable[[int], PerSequence],
    reached: Reached,
    most: int,
) -> dict[str, Any]:
    """The rank of an effect, as a row of the tidy table.

    Where the net effect is not surely worth naming, no rank makes it so: then no more are made.

    Args:
        net: the row of the net effect, whose columns the rank's row has.
        level: the code's own effect.
        made: those of turns that were made.
        drawn: makes those of a later turn, from its number.
        reached: how draws are counted.
        most: draws that are enough.

    Returns:
        The row: the share of draws, the code among them, that come as far; `n` is how many.
    """
    of_draws = [*made]
    while net["ci_low"] >= WORTH_NAMING and not _settled(reached(level, of_draws), most):
        of_draws.append(drawn(len(of_draws)))
    above, n = reached(level, of_draws)
    return fact(names.RANK, (1 + above) / (1 + n), {**net, "n": n})


def fact(metric: str, value: float, context: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the tidy table: a number without an interval.

    Args:
        metric: what it is.
        value: the number.
        context: fills all other columns; `n` is 0 where it has none.
    """
    bare = {"control": "", "ci_low": value, "ci_high": value, "chance": math.nan}
    return {"n": 0, **context, **bare, "metric": metric, "value": value}


def _settled(counted: tuple[int, int], most: int) -> bool:
    above, n = counted
    return above >= _SETTLED or n >= most
