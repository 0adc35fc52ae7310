"""Activations rebuilt from some of their position codes: what `probes.codes.statistics` fits."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from probes.errors import ProbeError
from probes.shapes import Activations, PerActivation, PositionalVectors
from probes.streaming import few_at_a_time, upcast
from probes.variance import activation_variance

# A deviation that would have to grow more, to make up for a mean code many times its size, is
# hardly there: its rounding would be made content.
_LARGEST_FACTOR = 10.0


@dataclass(frozen=True, eq=False)
class CodeFilter:
    """Activations rebuilt from some of their position codes; made by `CodeStatistics.kept`.

    With y the mean part that is kept and b the deviation (whitened where similarity is not kept,
    each activation at the norm it had), an activation becomes

        x' = y + g b,   g >= 0 such that activation_variance(x') = v*

    where v* is the activation's own variance, or, where variance is not kept, that variance mapped
    to the law that all positions share. Where two factors g would do it is the one nearer to 1,
    where none up to 10 does the one that comes nearest to v*. All four codes kept give the
    activations back as they came.

    g depends on its activation, so that g b need not have mean 0: where one direction holds much of
    the deviation's variance, about that share of a mean code along it comes back. LEACE leaves
    none.

    Earlier activations know nothing of later ones: the whitening is lower-triangular. Statistics
    are float32 and follow the activations' device and precision.
    """

    means: PositionalVectors
    removed: PositionalVectors  # the mean codes that are not kept
    whitening: Float[Tensor, "pos pos"] | None
    variance_map: Float[Tensor, "slope_intercept pos"] | None

    def __call__(self, x: Activations) -> Activations:
        """The same activations, rebuilt; positions are those fitted on, all of them.

        Raises ProbeError for another number of positions or another width.
        """
        rebuilt = [with_deviation_scaled(*self.parts(some)) for some in few_at_a_time(x)]
        return torch.cat(rebuilt).to(x.dtype)

    def parts(self, x: Activations) -> tuple[Activations, Activations, PerActivation]:
        """y + b, b and g of the activations; half precision is raised to float32."""
        require_fitted_shape(x, self.means)
        x = upcast(x)
        deviation = x - self.means.to(x)
        unscaled = x - self.removed.to(x)
        if self.whitening is not None:
            whitened = same_norms(self.whitening.to(x) @ deviation, deviation)
            unscaled, deviation = unscaled - deviation + whitened, whitened
        variance = activation_variance(x)
        if self.variance_map is not None:
            slope, intercept = self.variance_map.to(variance)
            variance = (intercept + slope * log_variance(x)).exp()
        return unscaled, deviation, _factor(unscaled, deviation, variance)


def log_variance(x: Activations) -> PerActivation:
    """`activation_variance` in nats; a constant activation's counts as the smallest number."""
    return activation_variance(x).clamp(min=torch.finfo(torch.float64).tiny).log()


def with_deviation_scaled(
    unscaled: Activations, deviation: Activations, factor: PerActivation
) -> Activations:
    """y + g b from y + b, b and g; exactly y + b where g is 1."""
    return torch.addcmul(unscaled, deviation, (factor - 1).to(deviation)[..., None])


def matched_variance(
    unscaled: Activations, deviation: Activations, variance: PerActivation
) -> Activations:
    """y + g b from y + b and b, with the g of `CodeFilter` that gives it this variance."""
    return with_deviation_scaled(unscaled, deviation, _factor(unscaled, deviation, variance))


def require_fitted_shape(x: Float[Tensor, "*shape"], fitted: PositionalVectors) -> None:
    """Raises ProbeError unless every sequence of x has the shape of `fitted`."""
    if x.shape[1:] != fitted.shape:
        raise ProbeError(
            f"activations have shape {tuple(x.shape)}, but the intervention was fitted on "
            f"(batch, {fitted.shape[0]}, {fitted.shape[1]}): give it the positions and the site "
            "that it was fitted on"
        )


def same_norms(x: Activations, model: Activations) -> Activations:
    """x with each activation at the norm of the model's activation; activations of zeros stay."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    wanted: Tensor = torch.linalg.vector_norm(model, dim=-1, keepdim=True)
    return x * (wanted / norm.clamp(min=torch.finfo(x.dtype).tiny))


def _factor(
    unscaled: Activations, deviation: Activations, variance: PerActivation
) -> PerActivation:
    """g with activation_variance(y + g b) = variance, from y + b and b (float64).

    Solved for h = g - 1: a h^2 + 2 c h + excess = 0, with a the variance of b, c its covariance
    with y + b, and the excess of y + b's variance over the one wanted. Activations that need no
    scaling have an excess near 0 and get h near 0 without losing digits.
    """
    centred = deviation - deviation.mean(dim=-1, keepdim=True)
    a = torch.linalg.vector_norm(centred, dim=-1).double().square() / deviation.shape[-1]
    c = torch.linalg.vecdot(unscaled, centred).double() / deviation.shape[-1]
    excess = activation_variance(unscaled) - variance
    discriminant = c.square() - a * excess
    steep = c + torch.copysign(discriminant.clamp(min=0).sqrt(), c)
    near, far = -excess / steep, -steep / a
    # Without a real root `far` is the parabola's vertex, which comes nearest; g stays above 0.
    h = torch.where((discriminant >= 0) & (near >= -1), near, far).clamp(-1, _LARGEST_FACTOR - 1)
    # A deviation without variance cannot change the activation's.
    return 1 + torch.where((a > 0) & (steep != 0), h, 0.0)
