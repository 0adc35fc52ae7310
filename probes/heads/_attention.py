"""What the head detectors share: checks on attention maps, and sums along their diagonals."""

from collections.abc import Iterator

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from probes.errors import ProbeError
from probes.shapes import AttentionMaps
from probes.streaming import require_numbers, upcast

# A query that sees few keys cannot but give each much weight, which makes all heads look alike.
FIRST_QUERY = 8

# Few sequences at a time, so that what is computed of them stays in the processor's cache.
_CELLS_AT_A_TIME = 2**19


def require_maps(maps: object, name: str) -> None:
    """Raises ProbeError for anything but attention maps, [batch head query key]."""
    axes = ("batch", "head", "query", "key")
    require_numbers(maps, name, axes, " with as many queries as keys")


def checked_patterns(
    pattern: Tensor, window: int | None
) -> Iterator[Float[Tensor, "part head query key"]]:
    """The patterns few sequences at a time, each part a probability over the keys a query sees.

    Raises ProbeError where weights are negative or NaN, lie on later keys or outside the window, or
    where a row does not sum to one within what its type can resolve.
    """
    require_maps(pattern, "patterns")
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
        if part.triu(1).amax() > 0:
            raise ProbeError(
                "patterns give weight to later tokens: the detectors need a causal model"
            )
        if window is not None and part.tril(-window).amax() > 0:
            raise ProbeError(
                f"patterns give weight beyond the window of {window} keys: start the probe with "
                "the window that the layer has, or with none"
            )
        yield part


def parts(maps: AttentionMaps) -> Iterator[Tensor]:
    """The sequences of a batch, few at a time."""
    return iter(maps.split(max(1, _CELLS_AT_A_TIME // maps[0].numel())))


def n_visible(length: int, window: int | None) -> Int[np.ndarray, " query"]:
    """How many keys each query sees, itself included."""
    return np.minimum(np.arange(1, length + 1), window or length)


def offset_sums(maps: AttentionMaps, first_query: int) -> Float[Tensor, "batch head offset"]:
    """Sums over queries from `first_query` (1 or later) on, at every offset query - key.

    `maps` must be zero at later keys. Read as if its rows were one cell longer, the square shows
    each offset as a column, so that nothing is copied. An offset that reaches before the first key
    falls on a later key of the row above, which is zero.
    """
    maps = maps.contiguous()
    batch, head, length, _ = maps.shape
    skewed = maps.as_strided(
        (batch, head, length - first_query, length),
        (head * length**2, length**2, length + 1, 1),
        maps.storage_offset() + first_query * (length + 1) - (length - 1),
    )
    return skewed.sum(dim=2).flip(-1)


def distance_from_uniform(
    rows: Float[Tensor, "*batch query key"], level: Float[Tensor, "*#batch query"]
) -> Float[Tensor, "*batch query"]:
    """Total variation distance of each row from `level` at all its visible keys.

    The sum of what exceeds the level: as both sum to the same it is half the sum of absolute
    differences, and hidden keys, whose weight is zero, add nothing.
    """
    return (rows - rearrange(level, "... query -> ... query 1")).relu_().sum(dim=-1)
