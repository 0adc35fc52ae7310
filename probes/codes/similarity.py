"""Similarity moved: which positions' activations resemble which, exchanged for that of others.

Similarity has no value at a position: it is the correlation between positions. Told that they stand
elsewhere, positions resemble one another as those there do.

To give an activation another correlation with the earlier ones is to mix these into it. If all
components got the same correlations, content that belongs to one position would be mixed into
others. But components differ: a token's own are hardly alike between positions, those of a running
mean are. So principal components are ordered by how alike positions are along them, and cut into
groups. Each group gets the correlations that it has elsewhere, shrunk by the share that chance
explains: where it has none, hardly anything is mixed.

To move by groups is our own method, from no paper.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.codes.correlations import correlation, require_determined, turning
from probes.codes.filter import matched_variance, require_fitted_shape, same_norms
from probes.errors import ProbeError
from probes.shapes import Activations, PerPosition, PositionalVectors
from probes.streaming import StreamingFit, few_at_a_time, require_finite, upcast
from probes.variance import activation_variance

# At most so many groups. Each needs so many numbers at a position (sequences times components) for
# every position.
_GROUPS, _ENOUGH = 16, 10
# Components with a smaller share of the largest variance are rounding.
_SMALLEST = 1e-7
# A deviation smaller than this share of a number is the rounding of float32.
_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Correlations:
    """How alike the deviations of different positions are, by groups of principal components.

    Attributes:
        means: at each position.
        components: of each group, orthonormal columns.
        between: of each group, the correlations between positions.
        lengths: of each group, the root of the sum of squares at each position; infinite where
            there is no deviation.
    """

    means: PositionalVectors
    components: Sequence[Float[Tensor, "d_model _"]]
    between: Sequence[Float[Tensor, "pos pos"]]
    lengths: Sequence[PerPosition]


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
        require_finite(upcast(activations).mean(dim=0))
        self._kept.append(activations.to("cpu", torch.float32, copy=True))
        self._found = None

    def _merge_fit(self, other: "SimilarityFit") -> None:
        self._kept += other._kept
        self._found = None

    def correlations(self) -> Correlations:
        """The correlations between positions, by groups of principal components.

        Components are those of deviations at all positions. Along each, likeness is the mean
        product of deviations at different positions over the mean square. Sorted by it, components
        are cut into up to sixteen groups of equally many. Each has ten times as many numbers at a
        position as there are positions; with fewer numbers one group holds all. In a group all
        components count alike, however large they are.

        Returns:
            The groups, the least alike first.

        Raises:
            ProbeError: where the sequences do not determine correlations.
        """
        if self._found is None:
            self._found = self._correlations()
        return self._found

    def _correlations(self) -> Correlations:
        if self.n_fitted < 3:
            raise ProbeError(
                f"similarity was fitted on {self.n_fitted} sequences: give at least 3 to update(), "
                "better some hundreds"
            )
        pos = len(self.positions)
        require_determined(self.n_fitted, self.d_model, pos)
        activations = torch.cat(self._kept)
        means = activations.mean(dim=0, dtype=torch.float64)
        deviations = activations - means.float()
        components, sizes, likeness = _principal(deviations)
        n_groups = (self.n_fitted - 1) * len(sizes) // (_ENOUGH * pos)
        chosen = likeness.argsort().tensor_split(max(1, min(_GROUPS, n_groups)))
        groups = [some for some in chosen if len(some)]
        found = [_between(deviations, means, components[:, some], sizes[some]) for some in groups]
        return Correlations(
            means,
            [components[:, some] for some in groups],
            [between for between, _ in found],
            [lengths for _, lengths in found],
        )


@dataclass(frozen=True, eq=False)
class SimilarityMoved:
    """Activations whose deviations resemble one another as at other positions."""

    means: PositionalVectors
    components: Sequence[Float[Tensor, "d_model _"]]
    maps: Sequence[Float[Tensor, "pos pos"]]

    def __call__(self, x: Activations) -> Activations:
        """The activations so moved; raises ProbeError for another number of positions or width."""
        require_fitted_shape(x, self.means)
        work = upcast(x)
        groups = [group.to(work) for group in self.components]
        moved = [self._moved(some, groups) for some in few_at_a_time(work)]
        return torch.cat(moved).to(x.dtype)

    def _moved(self, x: Activations, groups: Sequence[Tensor]) -> Activations:
        deviation = x - self.means.to(x)
        turned = deviation
        for group, change in zip(groups, self.maps, strict=True):
            along = deviation @ group
            turned = turned + (change.to(x) @ along - along) @ group.mT
        turned = same_norms(turned, deviation)
        return matched_variance(x - deviation + turned, turned, activation_variance(x))


def moved_similarity(correlations: Correlations, sources: Int[Tensor, " own"]) -> SimilarityMoved:
    """Activations whose deviations have the correlations between positions of other positions.

    Each keeps its variance over components, and each position nearly its mean. Earlier activations
    know nothing of later ones.

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
    each = zip(correlations.between, correlations.lengths, strict=True)
    maps = [_told(between, lengths, sources).float() for between, lengths in each]
    return SimilarityMoved(means[: len(sources)].float(), correlations.components, maps)


def _told(
    between: Float[Tensor, "pos pos"], lengths: PerPosition, sources: Int[Tensor, " own"]
) -> Float[Tensor, "own own"]:
    """What gives the first positions the correlations of their sources, each at its own size."""
    n = len(sources)
    change = turning(between[:n, :n], between[sources][:, sources])
    own = lengths[:n]
    # Where there is no deviation, nothing is given and nothing got.
    return own.masked_fill(own.isinf(), 0.0)[:, None] * change / own + own.isinf().to(own).diag()


def _between(
    deviations: Activations,
    means: PositionalVectors,
    group: Float[Tensor, "d_model component"],
    sizes: Float[Tensor, " component"],
) -> tuple[Float[Tensor, "pos pos"], PerPosition]:
    """Correlations between positions along a group of components of these sizes, and the root of
    the sum of squares at each position, as `correlation` gives them."""
    n, pos, _ = deviations.shape
    alike = group / sizes.float()
    products, squares = torch.zeros(2, pos, pos, dtype=torch.float64)
    for some in few_at_a_time(deviations):
        along = some @ alike
        of_each = along @ along.mT
        products += of_each.sum(dim=0, dtype=torch.float64)
        squares += of_each.square().sum(dim=0, dtype=torch.float64)
    # Each component of an activation rounds by itself.
    rounding = _ROUNDING * (n * means.square() @ alike.double().square().sum(dim=1)).sqrt()
    # Deviations are from the mean of the same sequences, which takes a second degree of freedom.
    by_chance = n / (n - 2) * (squares - products.square() / n)
    return correlation(products, rounding, by_chance)


def _principal(
    deviations: Activations,
) -> tuple[
    Float[Tensor, "d_model component"], Float[Tensor, " component"], Float[Tensor, " component"]
]:
    """Principal components of deviations, the root of the sum of squares along each, and how alike
    positions are there."""
    width = deviations.shape[-1]
    squares = torch.zeros(width, width, dtype=torch.float64)
    for some in few_at_a_time(deviations):
        rows = some.flatten(0, 1)
        squares += (rows.mT @ rows).double()
    variances, vectors = torch.linalg.eigh(squares)
    components = vectors[:, variances > _SMALLEST * variances[-1]].float()
    own, every = (torch.zeros(components.shape[1], dtype=torch.float64) for _ in range(2))
    for some in few_at_a_time(deviations):
        along = some @ components
        own += along.square().sum(dim=(0, 1), dtype=torch.float64)
        every += along.sum(dim=1).square().sum(dim=0, dtype=torch.float64)
    return components, own.sqrt(), (every - own) / own / (deviations.shape[1] - 1)
