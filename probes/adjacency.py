"""Adjacency: whether of two activations the nearer one is the more similar.

Zuo, Guerzhoy and Guerzhoy 2025 (arXiv 2501.00073) score it with a probability whose exact formula
could not be checked: three candidates are computed here, and the mirror of one. A map of cosines
may come a few of its rows at a time.
"""

from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.errors import ProbeError
from probes.shapes import Cosines, PerSequence

# Some rows of maps of cosines, and which rows they are, growing.
Rows = Float[Tensor, "batch row pos"]
Numbers = Int[Tensor, " row"]
# By sequence, pairs of cells whose nearer one is larger less those whose farther one is; and how
# many pairs there are.
Counted = tuple[Float[Tensor, " batch"], float]


def adjacency_a(cosines: Cosines) -> PerSequence:
    """P(C_ij > C_ik) over k < j < i: of two earlier ones, the nearer is the more similar.

    The candidate over all pairs of the lower triangle. Chance 0.5, perfect 1; ties count 0.5, the
    diagonal never enters.
    """
    return _whole(_nearer_a, cosines)


def adjacency_a_mirrored(cosines: Cosines) -> PerSequence:
    """P(C_ij > C_ik) over i < j < k: as `adjacency_a`, of two later ones.

    Activations that come nearer to one common vector with position have a high A without any
    nearness: the later of two is then the more similar one. Their mirrored A is low.
    """
    return adjacency_a(cosines.flip((-2, -1)))


def adjacency_b(cosines: Cosines) -> PerSequence:
    """P(C_ij > C_i,j-1) over 2 <= j < i: as `adjacency_a`, between neighbouring cells only."""
    return _whole(_nearer_b, cosines)


def adjacency_c(cosines: Cosines) -> PerSequence:
    """P(C_ij > C_ik) over j, k other than i with |i-j| < |i-k|: as `adjacency_a`, on both sides."""
    return _whole(_nearer_c, cosines)


def adjacency(
    blocks: Iterable[tuple[Rows, Numbers]],
) -> Float[Tensor, "batch candidate"]:
    """`adjacency_a`, `adjacency_b` and `adjacency_c` over the rows of all blocks.

    Args:
        blocks: some rows of the maps, and which rows they are, growing.

    Raises:
        ProbeError: for fewer than three positions.
    """
    counted = [[nearer(rows, numbers) for nearer in _NEARER] for rows, numbers in blocks]
    return torch.stack([_probability(of_one) for of_one in zip(*counted, strict=True)], dim=-1)


def _whole(nearer: Callable[[Tensor, Tensor], Counted], cosines: Cosines) -> PerSequence:
    every = torch.arange(cosines.shape[-1], device=cosines.device)
    return _probability([nearer(cosines, every)])


def _probability(counted: Iterable[Counted]) -> PerSequence:
    excess, pairs = zip(*counted, strict=True)
    share: PerSequence = torch.stack(excess).sum(dim=0) / sum(pairs)
    return 0.5 + 0.5 * share


def _nearer_a(rows: Rows, numbers: Numbers) -> Counted:
    lower = _lower_triangle(rows, numbers)
    excess = torch.zeros(len(lower), dtype=torch.double, device=lower.device)
    for lag in range(1, int(numbers[-1])):
        # Only later rows have two cells that far apart below the diagonal.
        first = int((numbers <= lag).sum())
        excess += _excess(lower[:, first:, lag:], lower[:, first:, :-lag])
    return excess, float((numbers * (numbers - 1)).sum()) / 2


def _nearer_b(rows: Rows, numbers: Numbers) -> Counted:
    lower = _lower_triangle(rows, numbers)
    return _excess(lower[..., 1:], lower[..., :-1]), float((numbers - 1).clamp(min=0).sum())


def _nearer_c(rows: Rows, numbers: Numbers) -> Counted:
    pos = _n_positions(rows)
    distance = (torch.arange(pos, device=rows.device) - numbers[:, None]).abs()
    # Each row's other columns from near to far, so that no cell is missing at any lag.
    distance, columns = (cells[:, 1:] for cells in distance.sort(dim=-1, stable=True))
    outwards = rows.gather(-1, columns.expand(len(rows), -1, -1))
    lags = [_excess(outwards[..., :-lag], outwards[..., lag:]) for lag in range(1, pos - 1)]
    # The two columns at one distance are neighbours in that order, and no pair to compare.
    level = distance[:, 1:] == distance[:, :-1]
    excess = torch.stack(lags).sum(dim=0)
    excess = excess - _excess(outwards[..., :-1] * level, outwards[..., 1:] * level)
    return excess, len(numbers) * (pos - 1) * (pos - 2) / 2 - float(level.sum())


_NEARER = (_nearer_a, _nearer_b, _nearer_c)


def _n_positions(rows: Rows) -> int:
    pos = rows.shape[-1]
    if pos < 3:
        raise ProbeError(f"adjacency compares activations at three positions; got {pos} positions")
    return pos


def _lower_triangle(rows: Rows, numbers: Numbers) -> Rows:
    """NaN on and above the diagonal."""
    columns = torch.arange(_n_positions(rows), device=rows.device)
    return rows.masked_fill(columns >= numbers[:, None], torch.nan)


def _excess(
    near: Float[Tensor, "batch row cell"], far: Float[Tensor, "batch row cell"]
) -> PerSequence:
    """Cells where near > far, less those where near < far; the sign of NaN is 0.

    Few sequences at a time, so that the differences stay in the processor's cache.
    """
    parts = max(1, near.numel() // 2**19)
    # Half precision ends at 65504 cells; single precision counts them as fast as it did.
    wide = torch.promote_types(near.dtype, torch.float32)
    return torch.cat(
        [
            torch.sign(a - b).sum(dim=(-2, -1), dtype=wide).double()
            for a, b in zip(near.chunk(parts), far.chunk(parts), strict=True)
        ]
    )
