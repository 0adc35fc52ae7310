"""The mean attention at each offset back on natural text, summed up over its sequences."""

import numpy as np
from jaxtyping import Float
from torch import Tensor

from probes.heads._attention import FIRST_QUERY, n_visible

PerHead = Float[np.ndarray, " head"]


class OffsetProfile:
    """Of each head, over the queries that reach so far, from `FIRST_QUERY` on.

    Args:
        window: how many keys back a query sees, itself included; None for all.
    """

    def __init__(self, window: int | None) -> None:
        self._window = window
        self.n = 0
        # Of each sequence's mean, and of its square.
        self._sums: Float[np.ndarray, "two head offset"] | None = None

    def add(self, by_offset: Float[Tensor, "batch head offset"]) -> None:
        """Adds sequences; sums over their queries from `FIRST_QUERY` on."""
        length = by_offset.shape[-1]
        each = by_offset.cpu().numpy() / _reaching(length)
        self._add(len(each), np.stack([each.sum(axis=0), np.square(each).sum(axis=0)]))

    def merge(self, other: "OffsetProfile") -> None:
        """Adds the other's sequences."""
        if other._sums is not None:
            self._add(other.n, other._sums)

    def _add(self, n: int, sums: Float[np.ndarray, "two head offset"]) -> None:
        self._sums = sums if self._sums is None else self._sums + sums
        self.n += n

    def means(self, n_heads: int) -> Float[np.ndarray, "head offset"]:
        """The means, of no offset where no text was given."""
        return np.zeros((n_heads, 0)) if self._sums is None else self._sums[0] / self.n

    def beyond_chance(self, offset: int, n_heads: int) -> tuple[PerHead, PerHead]:
        """By how much weights so far back exceed equal ones, and the standard error.

        Both are 0 where they do not, where no query of text sees so far, and without text.
        """
        nothing = np.zeros(n_heads)
        if self._sums is None or self.n < 2 or offset >= self._sums.shape[-1]:
            return nothing, nothing
        total, squares = self._sums[..., offset]
        chance = offset_chance(self._sums.shape[-1], self._window)[offset]
        variance = np.maximum(squares - total**2 / self.n, 0) / (self.n - 1)
        beyond = total / self.n - chance
        errors = np.sqrt(variance / self.n)
        return np.where(beyond > 0, beyond, 0.0), np.where(beyond > 0, errors, 0.0)


def _reaching(length: int) -> Float[np.ndarray, " offset"]:
    """How many of the queries reach back so far."""
    return np.asarray(length - np.maximum(np.arange(length), FIRST_QUERY), dtype=np.float64)


def local_chance(length: int, window: int | None = None, local_window: int = 8) -> float:
    """What `local` is where every query spreads evenly over the keys it sees.

    Args:
        length: tokens in a sequence, more than `FIRST_QUERY`.
        window: how many keys back a query sees, itself included; None for all.
        local_window: how many offsets count as local.

    Returns:
        A share of attention from 0 to 1.
    """
    m = n_visible(length, window)[FIRST_QUERY:]
    return float((np.minimum(local_window, m) / m).mean())


def offset_chance(length: int, window: int | None = None) -> Float[np.ndarray, " offset"]:
    """What `offset_profile` is where every query spreads evenly over the keys it sees.

    Args:
        length: tokens in a sequence.
        window: how many keys back a query sees, itself included; None for all.

    Returns:
        `[offset]`, shares of attention from 0 to 1.
    """
    m = n_visible(length, window)
    seen = [
        np.where(offset < m, 1 / m, 0)[max(offset, FIRST_QUERY) :].mean()
        for offset in range(length)
    ]
    return np.array(seen)
