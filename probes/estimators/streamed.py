"""Any scikit-learn regressor as a streaming probe of position."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from einops import rearrange
from sklearn.base import clone, is_regressor
from torch import Tensor

from probes.errors import ProbeError
from probes.streaming import PositionProbe, require_finite, upcast


class EstimatorProbe(PositionProbe):
    """How well a scikit-learn regressor of the caller's reads position t: "estimator".

    The regressor needs `partial_fit`, since activations are not kept; scores are mae (in positions)
    and r2, with the error by position, as for the other probes. A clone of it learns the shuffled
    positions. Raises ProbeError for an estimator that cannot learn batch by batch.

    Where the regressor's `random_state`, or that of a part, is None, its clones get one drawn from
    the seed, so that the same seed gives the same bits; any other `random_state` stays.

    Args:
        estimator: a regressor, not fitted.
        seed: of the permutations, of the bootstrap, and of what the regressor draws.
        n_resamples: of the bootstrap over held-out sequences.

    Example:
        >>> from sklearn.linear_model import SGDRegressor
        >>> x = torch.randn(64, 16, 4, generator=torch.Generator().manual_seed(0))
        >>> positions = torch.arange(16)
        >>> x[..., 0] += positions / 4  # one component holds the position
        >>> probe = EstimatorProbe(SGDRegressor(random_state=0))
        >>> probe.update(x[:48], positions)
        >>> probe.evaluate(x[48:], positions)
        >>> score = probe.result()["estimator"].score("mae")
        >>> score.ci_high < score.chance
        True
    """

    name = "estimator"

    def __init__(self, estimator: Any, *, seed: int = 0, n_resamples: int = 1000) -> None:
        super().__init__(seed=seed, n_resamples=n_resamples)
        lacks = "has no partial_fit" if not hasattr(estimator, "partial_fit") else ""
        if lacks or not is_regressor(estimator):
            raise ProbeError(
                f"{type(estimator).__name__} {lacks or 'is no regressor'}: give a regressor that "
                "learns batch by batch, such as SGDRegressor or RidgeRegressor"
            )
        self.estimator = estimator
        self._learners = [_seeded(clone(estimator), self.seed) for _ in range(2)]

    def _fit(self, activations: Tensor) -> None:
        rows = self._rows(activations)
        for learner, labels in zip(self._learners, self._labels(len(activations)), strict=True):
            learner.partial_fit(rows, labels.flatten().double().numpy())

    def _rows(self, activations: Tensor) -> np.ndarray:
        rows = rearrange(upcast(activations), "batch pos d -> (batch pos) d")
        require_finite(rows.sum())
        return rows.cpu().numpy()

    def _score(self, activations: Tensor) -> None:
        rows, labels = self._rows(activations), self._labels(len(activations))
        predicted = np.stack([learner.predict(rows) for learner in self._learners])
        error = torch.from_numpy(predicted).double().view(labels.shape) - labels
        self._errors.update(error, error)

    def _fitted(self) -> Sequence[np.ndarray]:
        return [np.asarray(learner.predict(np.eye(self.d_model))) for learner in self._learners]

    def _merge_fit(self, other: "EstimatorProbe") -> None:
        raise ProbeError(
            "scikit-learn's estimators have no sums to add: fit on one machine, then hand out "
            "copies with for_shard()"
        )


def _seeded(estimator: Any, seed: int) -> Any:
    """The estimator, with a `random_state` wherever it has none, in its parts, too."""
    draw = np.random.default_rng(seed)
    free = {
        name: int(draw.integers(2**31))
        for name, value in sorted(estimator.get_params().items())
        if name.split("__")[-1] == "random_state" and value is None
    }
    return estimator.set_params(**free)
