"""The variance of an activation's components: its law over positions, and position read from it.

Chi et al. 2023 derive that one causal layer at random initialisation gives its output a variance
proportional to 1/m over the m tokens that a query sees, on top of the residual's own. The variance
is taken across the components of one activation, as Zuo et al. 2025 describe it.
"""

from collections.abc import Sequence

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from scipy.ndimage import gaussian_filter1d
from torch import Tensor

from probes.bootstrap import ArrayFunction, SequenceBootstrap
from probes.controls import half_of
from probes.scores import SHUFFLED, ProbeResult
from probes.shapes import PerActivation
from probes.streaming import StreamingProbe, require_finite, upcast

# Bins of log variance, in nats: a thousandth is far below the spread of any activation's log
# variance (sqrt(2/d), 0.02 at d = 4096). Every shard uses the same grid, so that its bins add up.
_BIN_WIDTH = 1 / 1024
_BINS_PER_BANDWIDTH = 32
# The quartiles of a normal distribution, in standard deviations.
_QUARTILES_APART = 1.349
# Of a mean variance: more than sums over sequences lose.
_ROUNDING = 1e-12
# A constant activation has no log variance: it counts as this one.
_LOWEST = -100.0


def activation_variance(activations: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows"]:
    """The variance across each activation's components, by which layer norm divides (float64)."""
    activations = upcast(activations)
    centred = activations - activations.mean(dim=-1, keepdim=True)
    squares: Tensor = torch.linalg.vector_norm(centred, dim=-1).double().square()
    return squares / centred.shape[-1]


def variance_law(
    curve: Float[np.ndarray, "*curves pos"], positions: Int[np.ndarray, " pos"]
) -> Float[np.ndarray, "*curves 2"]:
    """(a, b) of the least-squares fit of a variance curve to a + b/m, with m = position + 1.

    After Chi et al. 2023, derived here: a is the residual's own variance, b what attention adds at
    the first position.

    Args:
        curve: variance at each position.
        positions: from 0.
    """
    terms = np.stack([np.ones(len(positions)), 1 / (positions + 1)], axis=1)
    return curve @ np.linalg.pinv(terms).T


def log_variance(variance: Float[np.ndarray, "*rows"]) -> Float[np.ndarray, "*rows"]:
    """Log variances, in nats; that of a constant activation is a number, too.

    Args:
        variance: of activations.
    """
    return np.asarray(np.log(np.maximum(variance, np.exp(_LOWEST))))


class LogVarianceBins:
    """Sums of targets by bin of log variance, which is all that kernel regression needs."""

    def __init__(self) -> None:
        self._bins = np.zeros(0, dtype=np.int64)
        self._sums = np.zeros((0, 0))  # [bin (count, target...)]

    def update(
        self, variance: Float[np.ndarray, " n"], targets: Float[np.ndarray, "n k"]
    ) -> "LogVarianceBins":
        """Adds activations.

        Args:
            variance: of each.
            targets: of each.

        Returns:
            These bins.
        """
        bins = np.floor(log_variance(variance) / _BIN_WIDTH).astype(np.int64)
        self._add(bins, np.column_stack([np.ones(len(bins)), targets]))
        return self

    def merge(self, other: "LogVarianceBins") -> None:
        """Adds what others saw.

        Args:
            other: those.
        """
        self._add(other._bins, other._sums)

    def _add(self, bins: np.ndarray, sums: np.ndarray) -> None:
        if len(self._bins):
            bins, sums = np.concatenate([self._bins, bins]), np.concatenate([self._sums, sums])
        self._bins, where = np.unique(bins, return_inverse=True)
        self._sums = np.stack(
            [np.bincount(where, column, minlength=len(self._bins)) for column in sums.T], axis=1
        )

    def curve(self) -> tuple[Float[np.ndarray, " point"], Float[np.ndarray, "point k"]]:
        """Log variances, and the targets' mean around each (Nadaraya 1964, Watson 1964).

        The kernel is Gaussian; its bandwidth is Silverman's (1986, equation 3.28), 1.06 sigma
        n^(-1/5), with sigma the standard deviation of the log variances, or what their quartiles
        say of it where outliers, such as massive activations, make it more than twice as large.
        """
        counts = self._sums[:, 0]
        deviation = np.sqrt(np.cov(self._bins, fweights=counts.astype(np.int64), ddof=0))
        ends = np.searchsorted(counts.cumsum(), counts.sum() * np.array([0.25, 0.75]))
        by_quartiles = np.diff(self._bins[ends])[0] / _QUARTILES_APART
        if 0 < by_quartiles < deviation / 2:
            deviation = by_quartiles
        bandwidth = 1.06 * deviation * counts.sum() ** -0.2
        # Bins far finer than the bandwidth add work and nothing else.
        merged = max(1, int(bandwidth / _BINS_PER_BANDWIDTH))
        bins = (self._bins - self._bins[0]) // merged
        dense = np.stack([np.bincount(bins, column) for column in self._sums.T], axis=1)
        if bandwidth > 0:
            dense = gaussian_filter1d(dense, bandwidth / merged, axis=0, mode="constant")
        # Beyond the kernel's reach of any activation there is nothing to average.
        reached = np.flatnonzero(dense[:, 0] > 0)
        centres = (self._bins[0] + (reached + 0.5) * merged) * _BIN_WIDTH
        return centres, dense[reached, 1:] / dense[reached, :1]


class VarianceProbe(StreamingProbe):
    """What the variance of an activation says about its position: "variance".

    * curve [pos]: mean activation variance of the held-out sequences, with its interval.
    * law [2]: (a, b) of a + b/m, by unweighted least squares on the mean curve of the fitted
      sequences; law_r2 is how much of the held-out curve's variation about its own mean b/m
      explains (at most 1; chance 0; below 0 where b is noise). The curve's noise is part of that
      variation: few sequences give a lower law_r2, and an interval that can lie below the truth.
      Where variances drift slowly along sequences, two curves are alike by chance more often: of
      simulated ones without a law 7% had an interval above 0.
    * mae, r2: position predicted from the activation's log variance alone, as by
      `VarianceRegressor` (`probes.estimators`).

    For the control, each sequence's variances are permuted over positions.

    Args:
        seed: of the permutations and of the bootstrap.
        n_resamples: of the bootstrap over held-out sequences.
    """

    def __init__(self, *, seed: int = 0, n_resamples: int = 1000) -> None:
        super().__init__(seed=seed, n_resamples=n_resamples)
        self._bins = LogVarianceBins()
        self._curves: Float[np.ndarray, "control pos"] = np.zeros((2, 1))  # sums over sequences

    def _variance(self, activations: Tensor) -> PerActivation:
        variance = activation_variance(activations).cpu()
        require_finite(variance)
        return variance

    def _by_label(
        self, variance: PerActivation, labels: Int[Tensor, "control batch pos"]
    ) -> Float[Tensor, "control batch pos"]:
        """Each sequence's variances in the order of its labels."""
        return variance.expand(labels.shape).gather(-1, labels.argsort(dim=-1))

    def _fit(self, activations: Tensor) -> None:
        variance, labels = self._variance(activations), self._labels(len(activations))
        self._curves = self._curves + self._by_label(variance, labels).sum(dim=1).numpy()
        targets = rearrange(labels, "control batch pos -> (batch pos) control")
        self._bins.update(variance.flatten().numpy(), targets.double().numpy())

    def _solve(self) -> None:
        self._log_variance, self._mean_position = self._bins.curve()
        self._law = variance_law(self._curves / self.n_fitted, self.positions.numpy())
        self._errors = self._position_errors(self.positions.double())
        self._bootstrap = SequenceBootstrap(self.n_resamples, self.seed)

    def _score(self, activations: Tensor) -> None:
        variance, labels = self._variance(activations), self._labels(len(activations))
        seen = log_variance(variance.numpy())
        predicted = np.stack(
            [np.interp(seen, self._log_variance, mean) for mean in self._mean_position.T]
        )
        error = torch.from_numpy(predicted) - labels
        self._errors.update(error, error)
        curves = self._by_label(variance, labels)
        self._bootstrap.update(rearrange(curves, "control batch pos -> batch (control pos)"))

    def _fitted(self) -> Sequence[np.ndarray]:
        return self._log_variance, self._mean_position, self._law

    def _merge_fit(self, other: "VarianceProbe") -> None:
        self._curves = self._curves + other._curves
        self._bins.merge(other._bins)

    def _merge_scores(self, other: "VarianceProbe") -> None:
        self._errors.merge(other._errors)
        self._bootstrap.merge(other._bootstrap)

    def _result(self) -> dict[str, ProbeResult]:
        positions = self.positions.numpy()
        shapes = self._law[:, 1:] / (positions + 1)  # b/m

        def law_r2(control: int) -> ArrayFunction:
            def r2(curve: np.ndarray) -> np.ndarray:
                # Sequences differ in level more than positions do where there is no law: the
                # spread of the difference, unlike its size, leaves the level out.
                missed, spread = (curve - shapes[control]).var(axis=-1), curve.var(axis=-1)
                # A curve that varies by no more than rounding leaves nothing to explain.
                varies = spread > np.square(_ROUNDING * curve.mean(axis=-1))
                return np.where(varies, 1 - missed / np.where(varies, spread, 1), 0.0)

            return half_of(control, r2)

        laws = tuple(
            self._bootstrap.score("law_r2", law_r2(i), chance=0.0, control=control)
            for i, control in enumerate(("", SHUFFLED))
        )
        pos = len(positions)
        low, high = self._bootstrap.interval()
        arrays = {
            "curve": self._bootstrap.mean()[:pos],
            "curve_low": low[:pos],
            "curve_high": high[:pos],
            "law": self._law[0],
            "positions": positions,
        }
        return {"variance": ProbeResult((*self._errors.scores(), *laws), arrays)}
