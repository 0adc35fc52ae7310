"""Linear regression of position on activations, in closed form, from streamed moments."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from probes.checks import check_positive
from probes.errors import ProbeError, ProbeWarning
from probes.moments import LinearMoments
from probes.scores import ProbeResult
from probes.shapes import Activations
from probes.streaming import StreamingProbe, require_finite, require_numbers, upcast

# Below this penalty the rounding of float32 products, about 1e-7 of a feature's square for each
# activation, is no longer small beside it.
_LEAST_SINGLE_ALPHA = 1.0
_PER_COMPONENT = 10
# Single precision reads where it loses no more than about this share of a target's deviation.
_READ_TO = 2e-5


def enough_to_fit(d_model: int) -> int:
    """How many activations of that width are enough to fit a linear map on.

    With fewer than ten for each component held-out errors are a twentieth larger or more, since
    noise is fitted too.

    Args:
        d_model: components of an activation.
    """
    return _PER_COMPONENT * d_model


class ByTarget(NamedTuple):
    """One tensor for each target that a linear probe learns to read.

    Where they have a control axis, it holds the true positions, then those permuted in every
    sequence. The columns of the probe's moments are (target, control), in this order.
    """

    t: Tensor
    inverse_m: Tensor


def targets_of(positions: Int[Tensor, "*shape"]) -> ByTarget:
    """t and 1/m, with m = t + 1, at these positions (float64)."""
    return ByTarget(t=positions.double(), inverse_m=1 / (positions.double() + 1))


class LinearProbe(StreamingProbe):
    """How well a linear map reads position t, and the counting signal 1/m with m = t + 1.

    One Gram matrix answers for four ridge regressions: on t (probe "linear": mae in
    positions, r2), on 1/m as in Kazemnejad et al. 2023, Theorem 1 (probe "counting": r2 of 1/m, mae
    in positions of the decoded t = 1/prediction - 1, clipped to the positions seen), and on both
    with the labels of each sequence permuted, in fitting and in scoring.

    Chance is 0 for r2. For mae it is the error of knowing nothing: the best constant for t, and for
    the decoded 1/m the harmonic mean of m, which lies farther off.

    The first `evaluate` warns (ProbeWarning) where fewer than 10 activations were fitted for each
    component: noise that is fitted then makes held-out errors a twentieth larger or more, and what
    cannot be read looks worse than chance. Products of float32 activations are float32, unless
    alpha is below 1; the features' means may be of any size.

    Args:
        alpha: the ridge penalty on standardised activations, above 0.
        seed: of the permutations and of the bootstrap.
        n_resamples: of the bootstrap over held-out sequences.

    Attributes:
        moments: those of all activations fitted, and of the targets, each with its control.

    Raises:
        ProbeError: for an `alpha` that is no number above 0, and as `StreamingProbe`.

    Example:
        >>> x = torch.randn(64, 16, 4, generator=torch.Generator().manual_seed(0))
        >>> positions = torch.arange(16)
        >>> x[..., 0] += positions  # one component holds the position
        >>> probe = LinearProbe()
        >>> probe.update(x[:48], positions)
        >>> probe.evaluate(x[48:], positions)
        >>> score = probe.result()["linear"].score("mae")
        >>> score.value < 1 < score.chance
        True
    """

    def __init__(self, *, alpha: float = 1.0, seed: int = 0, n_resamples: int = 1000) -> None:
        super().__init__(seed=seed, n_resamples=n_resamples)
        self.alpha = check_positive("alpha", alpha)
        self.moments = LinearMoments(exact=self.alpha < _LEAST_SINGLE_ALPHA)
        self._in_double = False

    def _alike(self) -> tuple[Any, ...]:
        return (*super()._alike(), self.alpha)

    def cross(self) -> ByTarget:
        """Sums of centred component times centred target, with the true positions.

        Returns:
            [d_model] for each target (float64).
        """
        cross = rearrange(self.moments.cross, "d (target control) -> control target d", control=2)
        return ByTarget(*cross[0])

    def _fit(self, activations: Tensor) -> None:
        targets = torch.stack(targets_of(self._labels(len(activations))))
        columns = rearrange(targets, "target control batch pos -> batch pos (target control)")
        self.moments.update(activations, columns)

    def _solve(self) -> None:
        self._warn_of_few()
        self._coefficients, self._intercepts = self.moments.ridge(self.alpha)
        targets = targets_of(self.positions)
        self._in_double = self.moments.exact or self._rounds_away(targets)
        self._linear = self._position_errors(targets.t)
        # Who knows nothing predicts the mean of 1/m, which decodes to m's harmonic mean.
        uninformed = float(1 / targets.inverse_m.mean() - 1)
        self._counting = self._position_errors(targets.inverse_m, uninformed)

    def _warn_of_few(self) -> None:
        n, least = self.moments.n, enough_to_fit(self.d_model)
        if n < least:
            warnings.warn(
                f"{self.n_fitted} sequences are {n} activations, few to fit {self.d_model} "
                f"components on: noise is fitted too, and held-out errors can exceed chance; give "
                f"at least {least}, which is {-(-least // len(self.positions))} sequences",
                ProbeWarning,
                stacklevel=4,
            )

    def _rounds_away(self, targets: ByTarget) -> bool:
        """Whether single precision may lose what is read from activations of these sizes."""
        sizes = (self.moments.mean.abs() + self.moments.deviation).cpu().numpy()
        # Rounding errors are many and of either sign: they add up as squares do.
        lost = torch.finfo(torch.float32).eps * np.sqrt(sizes**2 @ self._coefficients**2)
        borne = _READ_TO * torch.stack(targets).std(dim=1, correction=0)
        return bool((lost > repeat(borne, "target -> (target control)", control=2).numpy()).any())

    def predict(self, activations: Activations) -> Float[np.ndarray, "batch pos"]:
        """The position that the fitted map reads, not rounded and not clipped.

        Args:
            activations: [batch pos d_model], at any positions.

        Returns:
            Positions [batch pos] (float64).

        Raises:
            ProbeError: before `evaluate` has solved the fit, for anything but such floats, for
                another width, and for NaN or infinity.
        """
        if not self._solved:
            raise ProbeError("predict() came before evaluate(), which solves the fit")
        require_numbers(activations, "activations", ("batch", "pos", "d_model"))
        if activations.shape[-1] != self.d_model:
            raise ProbeError(
                f"activations have width {activations.shape[-1]}; the probe was fitted at "
                f"{self.d_model}"
            )
        return np.asarray(self._read(activations.detach()).t[0].numpy())

    def _read(self, activations: Tensor) -> ByTarget:
        """[control batch pos] for each target."""
        activations = activations.double() if self._in_double else upcast(activations)
        coefficients = torch.from_numpy(self._coefficients).to(activations)
        read = (activations @ coefficients).double().cpu() + torch.from_numpy(self._intercepts)
        require_finite(read)
        by_target = "batch pos (target control) -> target control batch pos"
        return ByTarget(*rearrange(read, by_target, control=2))

    def _score(self, activations: Tensor) -> None:
        read, labels = self._read(activations), self._labels(len(activations))
        targets = targets_of(labels)
        error = read.t - targets.t
        self._linear.update(error, error)
        decoded = self._decoded(read.inverse_m)
        self._counting.update(decoded - labels, read.inverse_m - targets.inverse_m)

    def _decoded(self, inverse_m: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The position that a prediction of 1/m means, clipped to the positions seen."""
        first, last = (1 / (float(t) + 1) for t in self.positions[[0, -1]])
        return 1 / inverse_m.clamp(last, first) - 1

    def _fitted(self) -> Sequence[np.ndarray]:
        return self._coefficients, self._intercepts

    def _merge_fit(self, other: "LinearProbe") -> None:
        self.moments.merge(other.moments)

    def _merge_scores(self, other: "LinearProbe") -> None:
        self._linear.merge(other._linear)
        self._counting.merge(other._counting)

    def _result(self) -> dict[str, ProbeResult]:
        return {
            name: ProbeResult(errors.scores(), errors.arrays())
            for name, errors in (("linear", self._linear), ("counting", self._counting))
        }
