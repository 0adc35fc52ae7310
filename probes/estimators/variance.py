"""Targets read from an activation's variance alone, as an estimator of scikit-learn's."""

from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from probes.variance import LogVarianceBins, log_variance


class VarianceRegressor(RegressorMixin, BaseEstimator):
    """A regressor that sees nothing of an activation but the log variance across its components.

    Kernel regression on sums over a fixed grid of log variances, so that `partial_fit` is exact
    and memory does not grow with the data.
    """

    def fit(self, X: Any, y: Any) -> "VarianceRegressor":
        """Fits to activations X [n d] and targets y [n], forgetting what was seen before.

        Args:
            X: activations [n d].
            y: targets [n].
        """
        return self._absorb(LogVarianceBins(), X, y, reset=True)

    def partial_fit(self, X: Any, y: Any) -> "VarianceRegressor":
        """Adds activations to what was seen before.

        Args:
            X: activations [n d].
            y: targets [n].
        """
        first = not hasattr(self, "bins_")
        return self._absorb(LogVarianceBins() if first else self.bins_, X, y, reset=first)

    def predict(self, X: Any) -> Float[np.ndarray, " n"]:
        """The mean target of activations with nearly the same variance."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return np.asarray(
            np.interp(log_variance(X.var(axis=1)), self.log_variance_, self.mean_target_)
        )

    def _absorb(self, bins: LogVarianceBins, X: Any, y: Any, reset: bool) -> "VarianceRegressor":
        X, y = validate_data(self, X, y, reset=reset, dtype=np.float64, y_numeric=True)
        self.bins_ = bins.update(X.var(axis=1), column_or_1d(y, dtype=np.float64)[:, None])
        self.log_variance_, means = bins.curve()
        self.mean_target_ = means[:, 0]
        return self

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # An activation's variance alone says little about most targets: that is the point of it.
        tags.regressor_tags.poor_score = True
        return tags
