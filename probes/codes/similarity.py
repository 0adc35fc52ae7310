"""Similarity moved: which positions' activations resemble which, exchanged for that of others.

Similarity has no value at a position: it is the correlation between positions. Told that they stand
elsewhere, positions resemble one another as those there do.

To give an activation another correlation with the earlier ones is to mix these into it. What the
activation is about would be mixed, too, were all its components to get the same correlations. But
components differ: a token's own are hardly alike between positions, those of a running mean are.
So principal components are sorted by how alike positions are along them, and cut into groups. Each
group gets the correlations that it has elsewhere: where it has none, nothing is mixed.

The groups are our own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.codes.correlations import correlation, require_determined, turning
from probes.codes.filter import matched_variance, require_fitted_shape, same_norms
from probes.errors import ProbeError
from probes.shapes import Activations, PositionalVectors
from probes.streaming import StreamingFit, few_at_a_time, require_finite, upcast
from probes.variance import activation_variance

# Groups at most, and how many numbers at a position each has for every position.
_GROUPS, _ENOUGH = 16, 10
# The share of the largest variance up to which a component's is rounding.
_ROUNDING = 1e-7


@dataclass(frozen=True, eq=False)
class Correlations:
    """How alike the deviations of different positions are, by groups of principal components.

    Attributes:
        means: at each position.
        components: of each group, orthonormal columns.
        products: of each group, the sums of products between positions.
    """

    means: PositionalVectors
    components: Sequence[Float[Tensor, "d_model _"]]
    products: Sequence[Float[Tensor, "pos pos"]]


class SimilarityFit(StreamingFit):
    """What similarity is moved by, at one site.

    It keeps the activations that it is given: along which directions positions are alike is known
    from all of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[Tensor] = []
        self._found: Correlations | None = None

    def _fit(self, activations: Tensor) -> None:
        activations = upcast(activations)
        require_finite(activations.mean(dim=0))
        self._kept.append(activations.to("cpu", copy=True))
        self._found = None

    def _merge_fit(self, other: "SimilarityFit") -> None:
        self._kept += other._kept
        self._found = None

    def correlations(self) -> Correlations:
        """The correlations between positions, by groups of principal components.

        Components are those of deviations at all positions. Along each, likeness is the mean
        product of deviations at different positions over the mean square. Sorted by it, components
        are cut into sixteen groups of as many components, or into fewer: each group must have ten
        times as many numbers at a position as there are positions.

        Returns:
            Them, in rising order of likeness.

        Raises:
            ProbeError: where the sequences do not determine correlations.
        """
        if self._found is None:
            self._found = self._correlations()
        return self._found

    def _correlations(self) -> Correlations:
        activations = torch.cat(self._kept) if self._kept else torch.zeros(0, 1, 1)
        n, pos, width = activations.shape
        require_determined(n, width, pos)
        means = activations.double().mean(dim=0)
        deviations = activations - means.float()
        components, likeness = _principal(deviations)
        n_groups = max(1, min(_GROUPS, (n - 1) * components.shape[1] // (_ENOUGH * pos)))
        groups = [components[:, some] for some in likeness.argsort().tensor_split(n_groups)]
        products = [_products(deviations @ group) for group in groups]
        return Correlations(means, groups, products)


@dataclass(frozen=True, eq=False)
class SimilarityMoved:
    """Activations whose deviations resemble one another as at other positions."""

    means: PositionalVectors
    components: Sequence[Float[Tensor, "d_model _"]]
    maps: Sequence[Float[Tensor, "pos pos"]]

    def __call__(self, x: Activations) -> Activations:
        """The activations so moved; raises ProbeError for another number of positions or width."""
        require_fitted_shape(x, self.means)
        return torch.cat([self._moved(some) for some in few_at_a_time(x)]).to(x.dtype)

    def _moved(self, x: Activations) -> Activations:
        x = upcast(x)
        deviation = x - self.means.to(x)
        turned = deviation
        for group, change in zip(self.components, self.maps, strict=True):
            directions = group.to(x)
            along = deviation @ directions
            turned = turned + (change.to(x) @ along - along) @ directions.mT
        turned = same_norms(turned, deviation)
        return matched_variance(x - deviation + turned, turned, activation_variance(x))


def moved_similarity(correlations: Correlations, sources: Int[Tensor, " own"]) -> SimilarityMoved:
    """Activations whose deviations have the correlations between positions of other positions.

    Each keeps its length and its variance over components, and each position its mean. Earlier
    activations know nothing of later ones.

    Args:
        correlations: those of the site.
        sources: `[own]`, for each of the first positions fitted on the one (as an index into these)
            that it is to resemble others as.

    Returns:
        The intervention, for activations at these first positions.

    Raises:
        ProbeError: for sources that are no such indices, and for one source of two positions, which
            would then have one content.
    """
    means = correlations.means
    if len(sources) > len(means) or not ((sources >= 0) & (sources < len(means))).all():
        raise ProbeError(
            f"sources are {sources.tolist()}: give one for each of the first positions, as an "
            f"index from 0 to {len(means) - 1}"
        )
    if len(sources.unique()) < len(sources):
        raise ProbeError(
            "two positions would get the similarity of one, and so its content: give each position "
            "a source of its own"
        )
    maps = [_told(products, sources).float() for products in correlations.products]
    return SimilarityMoved(means[: len(sources)].float(), correlations.components, maps)


def _told(
    products: Float[Tensor, "pos pos"], sources: Int[Tensor, " own"]
) -> Float[Tensor, "own own"]:
    """What gives the first positions the correlations of their sources, at their mean squares."""
    own = torch.arange(len(sources))
    between, scale = correlation(products, _ROUNDING * float(products.diagonal().max().sqrt()))
    change = turning(between[own][:, own], between[sources][:, sources])
    # Where there is no deviation, its scale is infinite: it gives nothing and gets nothing.
    lengths = scale[own].masked_fill(scale[own].isinf(), 0.0)
    return lengths[:, None] * change / scale[own] + scale[own].isinf().to(scale).diag()


def _principal(
    deviations: Activations,
) -> tuple[Float[Tensor, "d_model component"], Float[Tensor, " component"]]:
    """Principal components of deviations, and how alike positions are along each."""
    width = deviations.shape[-1]
    squares = torch.zeros(width, width, dtype=torch.float64)
    for some in few_at_a_time(deviations):
        rows = some.flatten(0, 1)
        squares += (rows.mT @ rows).double()
    variances, vectors = torch.linalg.eigh(squares)
    components = vectors[:, variances > _ROUNDING * variances[-1]].float()
    own, every = (torch.zeros(components.shape[1], dtype=torch.float64) for _ in range(2))
    for some in few_at_a_time(deviations):
        along = some @ components
        own += along.square().sum(dim=(0, 1), dtype=torch.float64)
        every += along.sum(dim=1).square().sum(dim=0, dtype=torch.float64)
    return components, (every - own) / own / (deviations.shape[1] - 1)


def _products(along: Float[Tensor, "example pos component"]) -> Float[Tensor, "pos pos"]:
    total = torch.zeros(along.shape[1], along.shape[1], dtype=torch.float64)
    for some in few_at_a_time(along):
        total += (some @ some.mT).sum(dim=0, dtype=torch.float64)
    return total
