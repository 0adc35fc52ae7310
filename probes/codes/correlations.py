"""Correlations between positions, brought to others causally."""

import torch
from jaxtyping import Float
from torch import Tensor

from probes.errors import ProbeError
from probes.shapes import PerPosition

# Weight of the identity in the correlation between positions before it is inverted. Running means
# over m tokens, the most correlated activations that theory gives, have eigenvalues down to 1/(4m):
# this is a twelfth of that at m = 2048. To invert it amplifies no direction more than 320-fold,
# which float32 bears.
_RIDGE = 1e-5


def require_determined(n_sequences: int, width: int, n_positions: int) -> None:
    """Refuse sequences too few to determine the correlation between positions.

    Args:
        n_sequences: how many were fitted on.
        width: components of an activation.
        n_positions: how many positions there are.

    Raises:
        ProbeError: for fewer numbers at a position than there are positions.
    """
    if (n_sequences - 1) * width < n_positions:
        raise ProbeError(
            f"{n_sequences} sequences of width {width} do not determine the "
            f"correlation between {n_positions} positions: (sequences - 1) * d_model must be "
            f"{n_positions} at least, better ten times that; give more sequences to update()"
        )


def correlation(
    products: Float[Tensor, "pos pos"],
    rounding: PerPosition,
    by_chance: Float[Tensor, "pos pos"] | None = None,
) -> tuple[Float[Tensor, "pos pos"], PerPosition]:
    """Sums of products between positions as correlations, with the identity mixed in.

    Args:
        products: of deviations, over sequences and components.
        rounding: the root of a sum of squares up to which deviations at a position are rounding
            alone. Such a position correlates with no other.
        by_chance: the variances of these sums, from sequence to sequence. The identity's weight is
            the share of the mean square of correlations that they explain: 1 where nothing really
            correlates. This is the shrinkage of Schäfer and Strimmer (2005) towards the identity.
            None mixes in the least weight alone.

    Returns:
        The correlations, `[pos pos]`, whose eigenvalues are at least the identity's weight, and the
        roots of the sums of squares, `[pos]`, infinite where there is rounding alone.
    """
    scale = products.diagonal().sqrt()
    bare = scale <= rounding
    scale = scale.masked_fill(bare, torch.inf)
    between = products / scale / scale[:, None] + bare.to(scale).diag()
    weight = _RIDGE
    if by_chance is not None:
        chance = _between_pairs(by_chance / scale.square() / scale.square()[:, None])
        found = _between_pairs(between.square())
        weight = min(max(_RIDGE, chance / found), 1.0) if found > 0 else 1.0
    mixed: Tensor = (1 - weight) * between + weight * torch.eye(len(scale)).to(scale)
    return mixed, scale


def _between_pairs(of: Float[Tensor, "pos pos"]) -> float:
    """The sum over pairs of different positions."""
    return float(of.sum() - of.diagonal().sum())


def turning(
    own: Float[Tensor, "pos pos"], wanted: Float[Tensor, "pos pos"]
) -> Float[Tensor, "pos pos"]:
    """The lower-triangular map that gives variables of unit variance another correlation.

    With Cholesky factors L of their own and L' of the wanted correlation it is L' L^-1.

    Args:
        own: the correlation that they have.
        wanted: the one that they get.

    Returns:
        The map; each variable is made of itself and of those before.
    """
    factor, wanted_factor = torch.linalg.cholesky(own), torch.linalg.cholesky(wanted)
    change: Tensor = torch.linalg.solve_triangular(factor, wanted_factor, upper=False, left=False)
    return change
