"""Ridge regression as an estimator of scikit-learn's, which learns batch by batch, too."""

from typing import Any, no_type_check

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from probes.moments import LinearMoments


class RidgeRegressor(RegressorMixin, BaseEstimator):
    """Ridge regression on standardised features, fitted at once or batch by batch.

    Equal to scikit-learn's `make_pipeline(StandardScaler(), Ridge(alpha))` in float64, whatever the
    precision of X, but `partial_fit` is exact: it sees batches as `fit` sees their concatenation,
    in memory of the number of features squared.

    Args:
        alpha: the penalty on squared coefficients of the standardised features, above 0.

    Attributes:
        coef_: [d], or [k d] for k targets, in the units of X.
        intercept_: a number, or [k].

    Example:
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
        """Fits to features and targets, forgetting what was seen before.

        Args:
            X: features [n d].
            y: targets [n] or [n k].

        Returns:
            This regressor.

        Raises:
            ProbeError: where alpha is not positive.
            ValueError: scikit-learn's, for other shapes, NaN or infinity.
        """
        return self._absorb(LinearMoments(exact=True), X, y, reset=True)

    def partial_fit(self, X: Any, y: Any) -> "RidgeRegressor":
        """Adds activations to what was seen before and solves again.

        Args:
            X: features [n d].
            y: targets [n] or [n k].

        Returns:
            This regressor.

        Raises:
            ProbeError: where alpha is not positive.
            ValueError: scikit-learn's, for other shapes, NaN or infinity.
        """
        first = not hasattr(self, "moments_")
        moments = LinearMoments(exact=True) if first else self.moments_
        return self._absorb(moments, X, y, reset=first)

    def predict(self, X: Any) -> Float[np.ndarray, "*shape"]:
        """What the fitted map makes of features.

        Args:
            X: features [n d].

        Returns:
            Predictions, shaped as y was: [n] or [n k].

        Raises:
            NotFittedError: scikit-learn's, before a fit.
            ValueError: scikit-learn's, for other shapes, NaN or infinity.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=(np.float64, np.float32))
        return np.asarray(X @ self.coef_.T + self.intercept_)

    def _absorb(self, moments: LinearMoments, X: Any, y: Any, reset: bool) -> "RidgeRegressor":
        kinds = {"y_numeric": True, "dtype": (np.float64, np.float32)}
        X, y = validate_data(self, X, y, reset=reset, multi_output=True, **kinds)
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
