"""Linear regression of position on activations, in closed form, from streamed moments."""

from collections.abc import Sequence
from typing import Any, no_type_check

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from probes.errors import ProbeError
from probes.scores import ProbeResult
from probes.streaming import BaseStreamingProbe, require_finite, upcast

# Four column blocks spend 62.5% of the full product; more of them gain no time.
_BLOCKS = 4


class LinearMoments:
    """All that linear regression needs to know of features and targets, in constant memory.

    Two sets of rows merge by the pairwise formula of Chan, Golub and LeVeque (1983): the centred
    sums of products add up, plus the product of the difference of the means. Sums are float64. A
    batch's own product is taken in the precision of its numbers (half precision is raised to
    float32) and about the batch's own mean, so that large means do not eat the digits.
    """

    def __init__(self) -> None:
        self.n = 0
        self._mean = torch.zeros(0)  # [d]
        self._target_mean = torch.zeros(0)  # [k]
        self._gram = torch.zeros(0)  # [d d], centred, of which the upper triangle counts
        self._cross = torch.zeros(0)  # [d k], centred
        self._epsilon = 0.0

    def update(
        self, features: Float[Tensor, "*rows d"], targets: Float[Tensor, "*rows k"]
    ) -> "LinearMoments":
        """Adds rows; raises ProbeError where features hold NaN or infinity."""
        features, targets = upcast(features), targets.to(features.device, torch.float64)
        mean, target_mean = _row_mean(features), _row_mean(targets)
        require_finite(mean)
        # The one copy of the activations, contiguous whatever slice they came as.
        centred = rearrange(features - mean, "... d -> (...) d")
        centred_targets = rearrange(targets - target_mean, "... k -> (...) k").to(centred)

        self._epsilon = max(self._epsilon, torch.finfo(features.dtype).eps)
        self._shift(len(centred), mean.double(), target_mean)
        self._cross += (centred_targets.mT @ centred).mT
        width = -(-centred.shape[1] // _BLOCKS)
        for start in range(0, centred.shape[1], width):
            block = centred[:, start : start + width]
            self._gram[start : start + width, start:] += block.mT @ centred[:, start:]
        return self

    def merge(self, other: "LinearMoments") -> "LinearMoments":
        """Adds the rows that `other` saw."""
        if other.n:
            self._epsilon = max(self._epsilon, other._epsilon)
            device = self._mean.device if self.n else other._mean.device
            self._shift(other.n, other._mean.to(device), other._target_mean.to(device))
            self._gram += other._gram.to(device)
            self._cross += other._cross.to(device)
        return self

    def _shift(self, n: int, mean: Tensor, target_mean: Tensor) -> None:
        """Moves count and means to take in n rows, and the sums by the difference of the means."""
        if not self.n:
            d, k = len(mean), len(target_mean)
            self._mean, self._target_mean = torch.zeros_like(mean), torch.zeros_like(target_mean)
            self._gram, self._cross = mean.new_zeros(d, d), mean.new_zeros(d, k)
        step, target_step = mean - self._mean, target_mean - self._target_mean
        share = n / (self.n + n)
        self._gram.addr_(step, step, alpha=self.n * share)
        self._cross.addr_(step, target_step, alpha=self.n * share)
        self._mean += step * share
        self._target_mean += target_step * share
        self.n += n

    def ridge(self, alpha: float) -> tuple[Float[np.ndarray, "d k"], Float[np.ndarray, " k"]]:
        """Coefficients and intercepts of ridge regression on standardised features.

        Minimises |y - Zw|^2 + alpha |w|^2 with Z the features at mean 0 and standard deviation 1,
        and gives w in the units of the features as they came. Constant features get 0. Raises
        ProbeError where alpha is not positive.
        """
        if not alpha > 0:
            raise ProbeError(f"alpha is {alpha}; ridge regression needs a positive penalty")
        variance = self._gram.diagonal() / self.n
        # What rounding alone makes of a feature that never changes is no signal.
        constant = variance <= (16 * self._epsilon * self._mean) ** 2
        inverse = variance.clamp(min=torch.finfo(torch.float64).tiny).rsqrt()
        inverse = inverse.masked_fill(constant, 0.0)
        # Only the upper triangle of the Gram matrix counts.
        system = self._gram * inverse * inverse[:, None]
        system.diagonal().add_(alpha)
        factor, failed = torch.linalg.cholesky_ex(system, upper=True)
        if failed:
            raise ProbeError(
                f"the features are too collinear for alpha={alpha} in float32: "
                "raise alpha, or give float64 activations"
            )
        cross = inverse[:, None] * self._cross
        coefficients = inverse[:, None] * torch.cholesky_solve(cross, factor, upper=True)
        intercepts = self._target_mean.to(self._mean) - self._mean @ coefficients
        return coefficients.cpu().numpy(), intercepts.cpu().numpy()


def _row_mean(values: Float[Tensor, "*rows d"]) -> Float[Tensor, " d"]:
    # One axis at a time: several times faster than all at once on a slice of a larger tensor.
    while values.ndim > 1:
        values = values.mean(dim=0)
    return values


class RidgeRegressor(RegressorMixin, BaseEstimator):
    """Ridge regression on standardised features, fitted at once or batch by batch.

    Equal to scikit-learn's `make_pipeline(StandardScaler(), Ridge(alpha))`, but `partial_fit` is
    exact: it sees batches as `fit` sees their concatenation, in memory of d_model squared.

    >>> X = np.random.default_rng(0).normal(size=(100, 3))
    >>> y = X @ [1.0, 2.0, 3.0]
    >>> halves = RidgeRegressor().partial_fit(X[:50], y[:50]).partial_fit(X[50:], y[50:])
    >>> bool(np.allclose(halves.coef_, RidgeRegressor().fit(X, y).coef_))
    True
    """

    alpha: float

    @no_type_check  # scikit-learn wants whatever is given stored as it is
    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def fit(self, X: Any, y: Any) -> "RidgeRegressor":
        """Fits to X [n d] and y [n] or [n k], forgetting what was seen before."""
        return self._absorb(LinearMoments(), X, y, reset=True)

    def partial_fit(self, X: Any, y: Any) -> "RidgeRegressor":
        """Adds rows to what was seen before and solves again."""
        first = not hasattr(self, "moments_")
        return self._absorb(LinearMoments() if first else self.moments_, X, y, reset=first)

    def predict(self, X: Any) -> np.ndarray:
        """Predictions, shaped as y was: [n] or [n k]."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=(np.float64, np.float32))
        return X @ self.coef_.T + self.intercept_

    def _absorb(self, moments: LinearMoments, X: Any, y: Any, reset: bool) -> "RidgeRegressor":
        X, y = validate_data(
            self,
            X,
            y,
            reset=reset,
            multi_output=True,
            y_numeric=True,
            dtype=(np.float64, np.float32),
        )
        targets = torch.tensor(y.reshape(len(y), -1), dtype=torch.float64)
        # torch cannot read memory that it may not write.
        features = torch.from_numpy(np.require(X, requirements=["C", "W"]))
        self.moments_ = moments.update(features, targets)
        coefficients, intercepts = moments.ridge(self.alpha)
        self.coef_ = coefficients.T if y.ndim == 2 else coefficients[:, 0]
        self.intercept_ = intercepts if y.ndim == 2 else intercepts[0]
        return self

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class LinearProbe(BaseStreamingProbe):
    """How well a linear map reads position t, and the counting signal 1/m with m = t + 1.

    One Gram matrix answers for four ridge regressions: on t (probe "linear": mae in positions, r2),
    on 1/m as in Kazemnejad et al. 2023, Theorem 1 (probe "counting": r2 of 1/m, mae in positions of
    the decoded t = 1/prediction - 1, clipped to the positions seen), and on both with the labels of
    each sequence permuted, in fitting and in scoring.

    Chance is 0 for r2. For mae it is the error of knowing nothing: the best constant for t, and for
    the decoded 1/m the harmonic mean of m, which lies farther off.
    """

    def __init__(self, *, alpha: float = 1.0, seed: int = 0, n_resamples: int = 1000) -> None:
        super().__init__(seed=seed, n_resamples=n_resamples)
        self.alpha = alpha
        self._moments = LinearMoments()

    def _fit(self, activations: Tensor) -> None:
        targets = self._targets(self._labels(len(activations)))
        self._moments.update(activations, rearrange(targets, "c batch pos -> batch pos c"))

    @staticmethod
    def _targets(labels: Int[Tensor, "control batch pos"]) -> Float[Tensor, "four batch pos"]:
        """t of both controls, then 1/m of both."""
        return torch.cat([labels.double(), 1 / (labels.double() + 1)])

    def _solve(self) -> None:
        self._coefficients, self._intercepts = self._moments.ridge(self.alpha)
        t = self._positions.double()
        inverse_m = 1 / (t + 1)
        self._linear = self._position_errors(t)
        # Who knows nothing predicts the mean of 1/m, which decodes to m's harmonic mean.
        uninformed = float(1 / inverse_m.mean() - 1)
        self._counting = self._position_errors(inverse_m, uninformed)

    def predict(self, activations: Float[Tensor, "batch pos d_model"]) -> np.ndarray:
        """The position [batch pos] that the fitted map reads, not rounded and not clipped.

        Raises ProbeError before `evaluate` has solved the fit.
        """
        if not self._solved:
            raise ProbeError("predict() came before evaluate(), which solves the fit")
        return self._read(activations)[0].numpy()

    def _read(self, activations: Tensor) -> Float[Tensor, "four batch pos"]:
        activations = upcast(activations)
        coefficients = torch.from_numpy(self._coefficients).to(activations)
        read = (activations @ coefficients).double().cpu() + torch.from_numpy(self._intercepts)
        require_finite(read)
        return rearrange(read, "batch pos c -> c batch pos")

    def _score(self, activations: Tensor) -> None:
        predicted = self._read(activations)
        labels = self._labels(len(activations))
        t_residual, inverse_residual = (predicted - self._targets(labels)).chunk(2)
        self._linear.update(t_residual, t_residual)
        self._counting.update(self._decoded(predicted[2:]) - labels, inverse_residual)

    def _decoded(self, inverse_m: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The position that a prediction of 1/m means, clipped to the positions seen."""
        first, last = (1 / (float(t) + 1) for t in self._positions[[0, -1]])
        return 1 / inverse_m.clamp(last, first) - 1

    def _fitted(self) -> Sequence[np.ndarray]:
        return self._coefficients, self._intercepts

    def _merge_fit(self, other: "LinearProbe") -> None:
        self._moments.merge(other._moments)

    def _merge_scores(self, other: "LinearProbe") -> None:
        self._linear.merge(other._linear)
        self._counting.merge(other._counting)

    def _result(self) -> dict[str, ProbeResult]:
        return {
            name: ProbeResult(errors.scores(), errors.arrays())
            for name, errors in (("linear", self._linear), ("counting", self._counting))
        }
