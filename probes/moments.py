"""Moments of features and targets, in constant memory, and the linear regression that follows."""

import warnings
from collections.abc import Iterator

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from probes.errors import ProbeError, ProbeWarning
from probes.streaming import require_finite, upcast

Features = Float[Tensor, "*rows d"]
Targets = Float[Tensor, "*rows k"]

# Four column blocks spend 62.5% of the full product; more of them gain no time.
_BLOCKS = 4
# The rounding of a feature's mean, in its standard deviations, from which the mean is taken anew.
_ROUNDED = 1e-4
# Activations that are copied into float64 at once.
_ACTIVATIONS_AT_ONCE = 2**16


class LinearMoments:
    """All that linear regression needs to know of features and targets, in constant memory.

    Two sets of activations merge by the pairwise formula of Chan, Golub and LeVeque (1983): the
    centred sums of products add up, plus the product of the difference of the means. Sums are
    float64. A batch's own product is taken in the precision of its numbers (half precision is
    raised to float32) and about the batch's own mean, so that large means do not eat the digits.

    Args:
        exact: whether products are float64 too, at half the speed. Collinear features need it
            where `alpha` is below 1: the rounding of float32 products is then no small penalty.

    Attributes:
        n: activations seen.
        mean: the features' means [d] (float64).
        cross: sums over activations of centred feature times centred target [d k] (float64).
    """

    def __init__(self, *, exact: bool = False) -> None:
        self.exact = exact
        self.n = 0
        self.mean = torch.zeros(0)  # [d]
        self._target_mean = torch.zeros(0)  # [k]
        self._gram = torch.zeros(0)  # [d d], centred, of which the upper triangle counts
        self.cross = torch.zeros(0)  # [d k], centred
        self._epsilon = 0.0

    def update(self, features: Features, targets: Targets) -> "LinearMoments":
        """Adds activations.

        Args:
            features: [... d], any float type.
            targets: [... k], as many.

        Returns:
            These moments.

        Raises:
            ProbeError: where features hold NaN or infinity.
        """
        features, targets = upcast(features), targets.to(features.device, torch.float64)
        self._epsilon = max(self._epsilon, torch.finfo(features.dtype).eps)
        if self.exact and features.dtype != torch.float64:
            for some in _parts(features, targets):
                self._add(*some)
        else:
            self._add(features, targets)
        return self

    def _add(self, features: Features, targets: Targets) -> None:
        mean, target_mean = _row_mean(features), _row_mean(targets)
        require_finite(mean)
        # The one copy of the activations, contiguous whatever slice they came as.
        centred = rearrange(features - mean, "... d -> (...) d")
        centred_targets = rearrange(targets - target_mean, "... k -> (...) k").to(centred)
        blocks = _upper_products(centred)
        mean = mean.double()
        spread = (torch.cat([block.diagonal() for block in blocks]) / len(centred)).sqrt()
        far = mean.abs() * torch.finfo(centred.dtype).eps > _ROUNDED * spread
        if far.any():
            # The distances from a rounded mean are exact, and so is their own mean.
            left = centred[:, far].mean(dim=0, dtype=torch.float64).to(centred)
            centred[:, far] -= left
            mean[far] += left
            if centred[:, far].any():
                blocks = _upper_products(centred)
            else:  # constant: nothing is left of them, and the products of the others stand
                kept = (~far).to(centred)
                rows = kept.split([len(block) for block in blocks])
                blocks = [
                    block * of_rows[:, None] * kept[-block.shape[1] :]
                    for block, of_rows in zip(blocks, rows, strict=True)
                ]
        self._shift(len(centred), mean, target_mean)
        self.cross += (centred_targets.mT @ centred).mT
        start = 0
        for block in blocks:
            self._gram[start : start + len(block), start:] += block
            start += len(block)

    def merge(self, other: "LinearMoments") -> "LinearMoments":
        """Adds the activations that `other` saw, and returns these moments."""
        if other.n:
            self._epsilon = max(self._epsilon, other._epsilon)
            device = self.mean.device if self.n else other.mean.device
            self._shift(other.n, other.mean.to(device), other._target_mean.to(device))
            self._gram += other._gram.to(device)
            self.cross += other.cross.to(device)
        return self

    def _shift(self, n: int, mean: Tensor, target_mean: Tensor) -> None:
        """Moves count and means to take in n activations, and the sums by the difference of the
        means."""
        if not self.n:
            d, k = len(mean), len(target_mean)
            # What is made in inference mode could not be added to outside of it.
            with torch.inference_mode(False):
                self.mean, self._target_mean = torch.zeros_like(mean), torch.zeros_like(target_mean)
                self._gram, self.cross = mean.new_zeros(d, d), mean.new_zeros(d, k)
        step, target_step = mean - self.mean, target_mean - self._target_mean
        share = n / (self.n + n)
        self._gram.addr_(step, step, alpha=self.n * share)
        self.cross.addr_(step, target_step, alpha=self.n * share)
        self.mean += step * share
        self._target_mean += target_step * share
        self.n += n

    @property
    def deviation(self) -> Float[Tensor, " d"]:
        """The features' standard deviations `[d]`, of all the activations seen (float64)."""
        return (self._gram.diagonal() / self.n).sqrt()

    def gram(self) -> Float[Tensor, "d d"]:
        """Sums over activations of the products of centred features (float64)."""
        upper = self._gram.triu()
        return upper + upper.triu(1).mT

    def ridge(
        self, alpha: float, *, coarse_is_constant: bool = False
    ) -> tuple[Float[np.ndarray, "d k"], Float[np.ndarray, " k"]]:
        """Coefficients and intercepts of ridge regression on standardised features.

        Minimises |y - Zw|^2 + alpha |w|^2 with Z the features at mean 0 and standard deviation 1,
        and gives w in the units of the features as they came. Constant features get 0. Warns
        (ProbeWarning) of features that vary by less than their own numbers resolve.

        Args:
            alpha: the penalty, above 0.
            coarse_is_constant: whether features that vary by less than their numbers resolve count
                as constant, without a warning: for features that are constant by what they are.

        Returns:
            The coefficients [d k] and the intercepts [k].

        Raises:
            ProbeError: where alpha is not positive, and where it is too small for features so
                collinear in the precision of the products.
        """
        if not alpha > 0:
            raise ProbeError(f"alpha is {alpha}; ridge regression needs a positive penalty")
        variance = self._gram.diagonal() / self.n
        # What rounding alone makes of a feature that never changes is no signal.
        epsilon = self._epsilon if coarse_is_constant else torch.finfo(torch.float64).eps
        constant = variance <= (16 * epsilon * self.mean) ** 2
        self._warn_of_coarse(~constant & (variance.sqrt() < self._epsilon * self.mean.abs()))
        inverse = variance.clamp(min=torch.finfo(torch.float64).tiny).rsqrt()
        inverse = inverse.masked_fill(constant, 0.0)
        # Only the upper triangle of the Gram matrix counts.
        system = self._gram * inverse * inverse[:, None]
        system.diagonal().add_(alpha)
        factor, failed = torch.linalg.cholesky_ex(system, upper=True)
        if failed:
            coarse = self._epsilon > torch.finfo(torch.float64).eps
            raise ProbeError(
                f"the features are too collinear for alpha={alpha} in "
                f"{'float32' if coarse else 'float64'}: raise alpha"
                f"{', or give float64 activations' if coarse else ''}"
            )
        cross = inverse[:, None] * self.cross
        coefficients = inverse[:, None] * torch.cholesky_solve(cross, factor, upper=True)
        intercepts = self._target_mean.to(self.mean) - self.mean @ coefficients
        return coefficients.cpu().numpy(), intercepts.cpu().numpy()

    def _warn_of_coarse(self, coarse: Bool[Tensor, " d"]) -> None:
        if coarse.any():
            i = int(coarse.int().argmax())
            mean, deviation = float(self.mean[i]), float(self.deviation[i])
            warnings.warn(
                f"{int(coarse.sum())} of {len(coarse)} features vary by less than their precision "
                f"resolves, such as feature {i} with mean {mean:.3g} and standard deviation "
                f"{deviation:.3g}: what they hold is rounding; give float64 activations, or "
                "subtract the mean before they are rounded",
                ProbeWarning,
                stacklevel=3,
            )


def _parts(features: Features, targets: Targets) -> Iterator[tuple[Tensor, Tensor]]:
    """Some of the activations at a time, in float64."""
    rows = [rearrange(values, "... c -> (...) c") for values in (features, targets)]
    for some, some_targets in zip(*(r.split(_ACTIVATIONS_AT_ONCE) for r in rows), strict=True):
        yield some.double(), some_targets


def _upper_products(centred: Float[Tensor, "n d"]) -> list[Tensor]:
    """The products of features: strips of the upper triangle, each from the diagonal on."""
    d = centred.shape[1]
    width = -(-d // _BLOCKS)
    return [
        centred[:, start : start + width].mT @ centred[:, start:] for start in range(0, d, width)
    ]


def _row_mean(values: Features) -> Float[Tensor, " d"]:
    # One axis at a time: several times faster than all at once on a slice of a larger tensor.
    while values.ndim > 1:
        values = values.mean(dim=0)
    return values
