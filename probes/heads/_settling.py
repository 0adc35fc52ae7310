"""How means over sequences settle: what the first 2, 4, 8, ... of them gave. Needs no torch."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

# Labels by fewer sequences mean little.
FEWEST = 8


class Settling:
    """Sums over the first 2, 4, 8, ... sequences that came, in memory that hardly grows.

    Merged, it is of the first 2, 4, 8, ... sequences of every shard.
    """

    def __init__(self) -> None:
        self._n = 0
        self._sums: Float[np.ndarray, "two k"] | None = None  # of values and of their squares
        # By the number in each shard: how many in all, and their sums.
        self._kept: dict[int, tuple[int, Float[np.ndarray, "two k"]]] = {}

    def add(self, rows: Float[np.ndarray, "sequence k"]) -> None:
        """Adds sequences, in their order."""
        if self._n and self._sums is None:  # merged: its stages stay those of the shards
            self._n += len(rows)
        elif len(rows):
            self._add(rows)

    def _add(self, rows: Float[np.ndarray, "sequence k"]) -> None:
        running = np.stack([rows, np.square(rows)], axis=1).cumsum(axis=0)
        if self._sums is not None:
            running += self._sums
        count = 2
        while count <= self._n + len(rows):
            if count > self._n:
                self._kept[count] = (count, running[count - 1 - self._n].copy())
            count *= 2
        self._n += len(rows)
        self._sums = running[-1]

    def merge(self, other: "Settling") -> None:
        """Adds another shard; what only one of the two reached is forgotten."""
        if not other._n:
            return
        if not self._n:
            self._kept = dict(other._kept)
        else:
            together = {}
            for count in sorted(self._kept.keys() & other._kept.keys()):
                (n, sums), (more, theirs) = self._kept[count], other._kept[count]
                together[count] = (n + more, sums + theirs)
            self._kept = together
        self._n += other._n
        self._sums = None

    def stages(self) -> list[tuple[int, Float[np.ndarray, " k"], Float[np.ndarray, " k"]]]:
        """How many sequences, their means and the standard errors of these; the most come first."""
        found = []
        for n, (total, squares) in sorted(self._kept.values(), key=lambda kept: -kept[0]):
            variance = np.maximum(squares - total**2 / n, 0) / (n - 1)
            found.append((n, total / n, np.sqrt(variance / n)))
        return found


def aligned(
    feeds: Sequence[Mapping[str, np.ndarray]],
) -> list[Float[np.ndarray, "stage three head metric"]]:
    """What several kinds of tokens kept of fewer sequences, stage by stage; NaN where one has none.

    The kind of which most sequences came has the most stages, those of `FEWEST` or more.
    """
    longest = max((feed["early"] for feed in feeds), key=len)
    stages = int((longest[:, 2, 0, 0] >= FEWEST).sum())
    found = []
    for feed in feeds:
        early = np.full((stages, *feed["early"].shape[1:]), np.nan)
        kept = min(stages, len(feed["early"]))
        early[:kept] = feed["early"][:kept]
        found.append(early)
    return found
