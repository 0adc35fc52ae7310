"""Position codes taken away or changed along directions: LEACE, projection, a channel, a swap.

Beside `probes.codes.statistics`, which takes an activation apart by its codes, these are the
interventions of the literature: they know directions only, and leave variance and similarity to
change as they will.
"""

from dataclasses import dataclass, replace

import torch
from concept_erasure import LeaceEraser, LeaceFitter
from jaxtyping import Float
from torch import Tensor

from probes.codes.interchange import Moved
from probes.codes.statistics import CodeStatistics
from probes.errors import ProbeError
from probes.moments import LinearMoments
from probes.regression import LinearProbe, targets_of
from probes.shapes import Activations
from probes.streaming import upcast


@dataclass(frozen=True, eq=False)
class Leace:
    """Affine map after which no linear map reads what it was fitted on, such as t and 1/m; it need
    not know the position.

    x' = x - (x - centre) right^T left^T, of rank `rank`; statistics are float32 and follow the
    activations.
    """

    left: Float[Tensor, "d_model k"]
    right: Float[Tensor, "k d_model"]
    centre: Float[Tensor, " d_model"]

    @property
    def rank(self) -> int:
        """How many directions are taken away."""
        return int((torch.linalg.vector_norm(self.right, dim=-1) > 0).sum())

    def __call__(self, x: Activations) -> Activations:
        """What no linear map can read remains; raises ProbeError for another width."""
        require_width(x, self.centre)
        parts = (self.left, self.right, self.centre)
        eraser = LeaceEraser(*(part.to(upcast(x)) for part in parts))
        erased: Tensor = eraser(upcast(x)).to(x.dtype)
        return erased


def leace(probe: LinearProbe) -> Leace:
    """LEACE of (t, 1/m), from what a LinearProbe was given with `update` (Belrose et al. 2023).

    Of all affine maps that leave t and 1/m uncorrelated with every direction, LEACE moves
    activations the least, in mean square. t and 1/m are brought to standard deviation 1, since
    directions with a correlation below 0.01 are left in (the package's svd_tol). Sums are float64.
    Raises ProbeError for a probe that was fitted on fewer than 2 sequences, or on fewer activations
    than determine the correlation of all directions.
    """
    moments = _enough(probe)
    deviations = torch.stack(targets_of(probe.positions)).std(dim=-1, correction=0)
    cross = torch.stack(probe.cross(), dim=-1)
    return _leace(moments, cross / deviations.to(cross))


def leace_of_code(probe: LinearProbe, statistics: CodeStatistics, code: str) -> Leace:
    """LEACE of one of `CodeStatistics.mean_codes`: of every function of the position that it holds.

    These are t and 1/m for a smooth trend, and for an irregular part all with no part along them,
    each brought to standard deviation 1.

    Args:
        probe: given the sequences with `update`.
        statistics: given the same sequences.
        code: "smooth trend" or "irregular part".

    Returns:
        The intervention, to be called with activations of the site.

    Raises:
        ProbeError: as `leace`.
    """
    moments, vectors = _enough(probe), statistics.mean_codes()[code]
    _, sizes, along = torch.linalg.svd(vectors, full_matrices=False)
    # A code holds so many functions of the position; what is left of others is rounding.
    held = sizes > sizes[0] * 1e-9
    pos = len(vectors)
    cross = (along.mT * sizes)[:, held] * (pos**0.5 * probe.n_fitted)
    return _leace(moments, cross)


def _enough(probe: LinearProbe) -> LinearMoments:
    """The moments of a probe that was given enough for LEACE."""
    if probe.n_fitted < 2:
        raise ProbeError(
            f"LEACE needs a LinearProbe fitted on 2 sequences at least; got {probe.n_fitted}"
        )
    moments, d_model = probe.moments, probe.d_model
    least = d_model + 2
    if moments.n < least:
        raise ProbeError(
            f"{probe.n_fitted} sequences are {moments.n} activations, too few for LEACE in "
            f"{d_model} dimensions, which needs {least} at least, better ten times "
            "that: give more sequences to update()"
        )
    return moments


def _leace(moments: LinearMoments, cross: Float[Tensor, "d_model k"]) -> Leace:
    # The package's bound on the trace never binds for LEACE but by rounding, and would then leave
    # the concept in.
    cross = cross.to(moments.mean)
    fitter = LeaceFitter(
        *cross.shape, constrain_cov_trace=False, device=cross.device, dtype=cross.dtype
    )
    fitter.sigma_xx_ = moments.gram()
    fitter.sigma_xz_ = cross
    fitter.mean_x = moments.mean
    fitter.n = torch.tensor(moments.n, device=cross.device)
    eraser = fitter.eraser
    return Leace(eraser.proj_left.float(), eraser.proj_right.float(), moments.mean.float())


@dataclass(frozen=True, eq=False)
class ScaledDirections:
    """Activations with their components along some orthonormal directions scaled, about a centre.

    x' = x + (factor - 1) V^T V (x - centre), V the directions; factor 0 projects them out.
    """

    directions: Float[Tensor, "k d_model"]
    centre: Float[Tensor, " d_model"]
    factor: float = 0.0

    @property
    def rank(self) -> int:
        """How many directions are scaled."""
        return len(self.directions)

    def __call__(self, x: Activations) -> Activations:
        """The activations so scaled; raises ProbeError for another width."""
        require_width(x, self.centre)
        work = upcast(x)
        directions = self.directions.to(work)
        along = (work - self.centre.to(work)) @ directions.mT
        return torch.add(work, along @ directions, alpha=self.factor - 1).to(x.dtype)


def principal_directions(statistics: CodeStatistics) -> Float[Tensor, "k d_model"]:
    """Directions of p(t) - p_bar, orthonormal, by falling share of its variance (float64).

    k is at most one less than there are positions. Raises ProbeError before 2 sequences.
    """
    vectors = statistics.positional_vectors()
    directions: Tensor = torch.linalg.svd(vectors - vectors.mean(dim=0), full_matrices=False).Vh
    return directions[: len(vectors) - 1]


def positional_rank(statistics: CodeStatistics, share: float) -> int:
    """How many principal directions hold this share of what the positional vectors vary by.

    That variation is what p(t) vary by less what means of so many deviations vary by without any
    code (`CodeStatistics.noise`); at least one direction, though there be nothing.

    Args:
        statistics: those of the site.
        share: of the variance, 0 to 1.

    Returns:
        The number of directions.

    Raises:
        ProbeError: before 2 sequences.
    """
    vectors = statistics.positional_vectors()
    held = torch.linalg.svdvals(vectors - vectors.mean(dim=0)).square().cumsum(dim=0)
    wanted = share * (held[-1] - statistics.noise())
    return int((held < wanted).sum()) + 1


def project_out(statistics: CodeStatistics, rank: int) -> ScaledDirections:
    """The leading principal directions of the positional vectors, `rank` of them, projected out.

    Activations keep p_bar along them; with the positional vectors goes whatever else lies along the
    directions.

    Args:
        statistics: those of the site.
        rank: how many directions, from 1.

    Returns:
        The intervention, to be called with activations of the site.

    Raises:
        ProbeError: for a rank that there are no directions for.
    """
    directions = principal_directions(statistics)
    if not 1 <= rank <= len(directions):
        raise ProbeError(
            f"rank is {rank}, but the positional vectors span {len(directions)} directions: give a "
            f"rank of 1 to {len(directions)}"
        )
    centre = statistics.positional_vectors().mean(dim=0)
    return ScaledDirections(directions[:rank].float(), centre.float())


def scale_channel(statistics: CodeStatistics, factor: float) -> ScaledDirections:
    """The first principal direction of the positional vectors scaled by a factor, about p_bar.

    After the positional channel of Yu et al. 2024 (arXiv 2406.02536), one component of the
    residual; here it is a principal direction, since components mean nothing after a rotation.

    Args:
        statistics: those of the site.
        factor: on the component; 0.5 halves it.

    Returns:
        The intervention, to be called with activations of the site.

    Raises:
        ProbeError: where there is a single position.
    """
    return replace(project_out(statistics, rank=1), factor=factor)


def swap_vectors(statistics: CodeStatistics, offset: int) -> Moved:
    """p(t) replaced by p(t + offset), in steps of the positions fitted on.

    Beyond the ends stands the vector of the first or last position, so that every vector is one
    that the model makes: the |offset| outermost activations share one, and effects are best read on
    the others.

    Args:
        statistics: those of the site.
        offset: in steps of the positions fitted on, negative ones towards the start.

    Returns:
        The intervention, to be called with activations of the site.

    Raises:
        ProbeError: for an offset that would leave a single vector.
    """
    vectors = statistics.positional_vectors()
    last = len(vectors) - 1
    if not abs(offset) < last:
        raise ProbeError(
            f"offset is {offset}, but there are {last + 1} positions: give an offset between "
            f"{1 - last} and {last - 1}"
        )
    source = (torch.arange(last + 1) + offset).clamp(0, last)
    added = (vectors[source] - vectors).float()
    return Moved(vectors.float(), torch.ones(len(vectors)), added)


def require_width(x: Float[Tensor, "*shape"], fitted: Float[Tensor, " d_model"]) -> None:
    """Raises ProbeError unless the activations of x are as wide as `fitted`."""
    if x.shape[-1] != len(fitted):
        raise ProbeError(
            f"activations have width {x.shape[-1]}, but the intervention was fitted on width "
            f"{len(fitted)}: give it activations of the site that it was fitted on"
        )
