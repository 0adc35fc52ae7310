"""What the head detectors share: checks on attention maps, and sums along their diagonals.

Maps come whole, or few queries at a time: blocks of their rows, in order. Every head of every
sequence stands for itself, so that inside they are just maps, few at a time.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.errors import ProbeError
from probes.shapes import AttentionMaps
from probes.streaming import require_numbers, upcast

# A query that sees few keys cannot but give each much weight, which makes all heads look alike.
FIRST_QUERY = 8

# Few maps at a time, so that what is computed of them stays in the processor's cache.
_CELLS_AT_A_TIME = 2**19

Maps = Float[Tensor, "map query key"]
PerMap = Float[Tensor, " map"]


@dataclass(frozen=True)
class Block:
    """Which rows of a map these are: queries in order, and the keys up to the last of them.

    Attributes:
        length: tokens in a sequence: queries and keys of the whole map.
        first_query: its position.
        n_queries: how many.
        n_keys: how many; those before them are seen by none of these queries.
    """

    length: int
    first_query: int
    n_queries: int
    n_keys: int

    @property
    def ahead(self) -> int:
        """How many keys come before the first query's own."""
        return self.n_keys - self.n_queries

    @property
    def first_key(self) -> int:
        return self.first_query - self.ahead

    @property
    def ends(self) -> bool:
        """Whether its last query is the sequence's."""
        return self.first_query + self.n_queries == self.length

    def skipped(self, query: int) -> int:
        """How many of these queries come before that one."""
        return min(max(query - self.first_query, 0), self.n_queries)

    def without(self, start: int) -> "Block":
        """What is left of it where sequences lose their first tokens."""
        queries, keys = self.skipped(start), max(start - self.first_key, 0)
        return Block(
            self.length - start,
            max(self.first_query - start, 0),
            self.n_queries - queries,
            max(self.n_keys - keys, 0),
        )

    def n_seen(self, window: int | None, skipped: int = 0) -> Int[Tensor, " query"]:
        """How many keys each query sees, from the one after so many on."""
        first, last = self.first_query + skipped, self.first_query + self.n_queries
        return torch.from_numpy(n_visible(last, window)[first:])

    def visible(self, window: int | None, device: torch.device) -> Bool[Tensor, "query key"]:
        """The keys that each query sees."""
        seen = torch.ones(self.n_queries, self.n_keys, dtype=torch.bool, device=device)
        seen = seen.tril(self.ahead)
        return seen if window is None else seen.triu(self.ahead + 1 - window)


def require_maps(maps: Any, name: str, whole: bool) -> None:
    """Raises ProbeError for anything but attention maps, [batch head query key], of all queries or
    of some."""
    axes = ("batch", "head", "query", "key")
    require_numbers(maps, name, axes, " with as many queries as keys" if whole else "")


def checked_patterns(pattern: AttentionMaps, block: Block, window: int | None) -> Iterator[Maps]:
    """The patterns few maps at a time, each row a probability over the keys a query sees.

    Raises ProbeError where weights are negative or NaN, lie on later keys or outside the window, or
    where a row does not sum to one within what its type can resolve.
    """
    maps = pattern.detach()
    tolerance = 1e-3 + torch.finfo(maps.dtype).eps
    for part in parts(maps):
        part = upcast(part)
        off = (part.sum(dim=-1) - 1).abs().amax()
        if off.isnan() or part.amin() < 0:
            raise ProbeError(
                "patterns hold NaN or negative weights: give the attention after the softmax"
            )
        if off > tolerance:
            raise ProbeError(
                f"a row of the patterns sums to one only within {float(off):.2g}: give the "
                "attention after the softmax and before any dropout"
            )
        if part.triu(block.ahead + 1).amax() > 0:
            raise ProbeError(
                "patterns give weight to later tokens: the detectors need a causal model"
            )
        if window is not None and part.tril(block.ahead - window).amax() > 0:
            raise ProbeError(
                f"patterns give weight beyond the window of {window} keys: start the probe with "
                "the window that the layer has, or with none"
            )
        yield part


def parts(maps: AttentionMaps) -> Iterator[Maps]:
    """The maps of all sequences and heads, few at a time."""
    each = rearrange(maps, "batch head query key -> (batch head) query key")
    return iter(each.split(max(1, _CELLS_AT_A_TIME // max(each[0].numel(), 1))))


def sums_of(
    maps: AttentionMaps, each: Iterator[Maps], summed: Callable[[Maps], Mapping[str, Tensor]]
) -> dict[str, Float[Tensor, "batch head *of"]]:
    """What a function of few maps gives, put together for all sequences and heads."""
    found = [summed(part) for part in each]
    return {
        name: torch.cat([some[name] for some in found]).double().unflatten(0, maps.shape[:2])
        for name in found[0]
    }


def n_visible(length: int, window: int | None) -> Int[np.ndarray, " query"]:
    """How many keys each query sees, itself included."""
    return np.minimum(np.arange(1, length + 1), window or length)


def offset_sums(maps: Maps, block: Block, skipped: int) -> Float[Tensor, "map offset"]:
    """Sums over queries, from the one after so many on, at every offset query - key.

    `maps` must be zero at later keys. Read as if its rows were one cell longer, the map shows each
    offset as a column, so that nothing is copied. An offset that reaches before the first key falls
    on a later key of the row above, which is zero; the first row has none above.
    """
    maps = maps.contiguous()
    n, n_keys = len(maps), block.n_keys
    own = block.ahead + 1
    sums = maps.new_zeros(n, block.length)
    if skipped < min(block.n_queries, 1):
        sums[:, :own] = maps[:, 0, :own].flip(-1)
    first = max(skipped, 1)
    if first < block.n_queries:
        skewed = maps.as_strided(
            (n, block.n_queries - first, n_keys),
            (block.n_queries * n_keys, n_keys + 1, 1),
            maps.storage_offset() + first * (n_keys + 1) - (block.n_queries - 1),
        )
        sums[:, :n_keys] += skewed.sum(dim=1).flip(-1)
    return sums


def at_keys(sums: Float[Tensor, "map key"], block: Block) -> Float[Tensor, "map length"]:
    """Numbers of the keys that a block has, among those of all keys."""
    return F.pad(sums, (block.first_key, block.length - block.first_key - block.n_keys))


def back(maps: Maps, block: Block, offset: int, first: int) -> PerMap:
    """The weights so many tokens back, summed over the queries from position `first` on."""
    diagonal = block.ahead - offset
    weights = maps.diagonal(diagonal, dim1=-2, dim2=-1)
    # A diagonal that begins to the left of the map begins in a later row.
    return weights[:, max(block.skipped(first) - max(-diagonal, 0), 0) :].sum(dim=-1)


def distance_from_uniform(
    rows: Float[Tensor, "*batch query key"], level: Float[Tensor, "*#batch query"]
) -> Float[Tensor, "*batch query"]:
    """Total variation distance of each row from `level` at all its visible keys.

    The sum of what exceeds the level: as both sum to the same it is half the sum of absolute
    differences, and hidden keys, whose weight is zero, add nothing.
    """
    return (rows - rearrange(level, "... query -> ... query 1")).relu_().sum(dim=-1)
