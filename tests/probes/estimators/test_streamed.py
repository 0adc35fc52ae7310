"""A scikit-learn regressor in a stream: the same numbers as by hand, and as our own ridge."""

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import Ridge, SGDClassifier, SGDRegressor

from probes.errors import ProbeError
from probes.estimators.ridge import RidgeRegressor
from probes.estimators.streamed import EstimatorProbe
from probes.regression import LinearProbe

POSITIONS = torch.arange(1, 17)


@pytest.fixture
def activations() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(60, 16, 6, generator=generator, dtype=torch.float64)
    noise[:, :, 2] += 0.4 * POSITIONS
    return noise


def test_our_ridge_in_it_equals_the_linear_probe(activations, feed):
    parts = activations[:40], activations[40:]
    wrapped = feed(EstimatorProbe(RidgeRegressor()), *parts, POSITIONS)["estimator"]
    linear = feed(LinearProbe(), *parts, POSITIONS)["linear"]
    for metric in ("mae", "r2"):
        assert wrapped.score(metric).value == pytest.approx(linear.score(metric).value, rel=1e-9)
    np.testing.assert_allclose(wrapped.arrays["error"], linear.arrays["error"], rtol=1e-9)
    assert wrapped.score("mae").ci_high < 0.9 * wrapped.score("mae").chance
    control = wrapped.score("mae", "shuffled positions")
    assert control.ci_high > 0.95 * control.chance


def test_scikit_learns_own_equals_a_loop_by_hand(activations):
    probe, by_hand = EstimatorProbe(SGDRegressor(random_state=0)), SGDRegressor(random_state=0)
    by_hand = clone(by_hand)
    t = POSITIONS.numpy().astype(float)
    for batch in activations[:40].split(10):
        probe.update(batch, POSITIONS)
        by_hand.partial_fit(batch.reshape(-1, 6).numpy(), np.tile(t, 10))
    probe.evaluate(activations[40:], POSITIONS)
    error = by_hand.predict(activations[40:].reshape(-1, 6).numpy()) - np.tile(t, 20)
    assert probe.result()["estimator"].score("mae").value == pytest.approx(np.abs(error).mean())


class Halved(RegressorMixin, BaseEstimator):
    """A regressor whose part draws at random."""

    def __init__(self, part=None):
        self.part = part

    def partial_fit(self, X, y):
        self.part.partial_fit(X / 2, y)
        return self

    def predict(self, X):
        return self.part.predict(X / 2)


@pytest.mark.parametrize("wrapped", [lambda part: part, Halved])
def test_what_a_regressor_draws_comes_from_the_seed(wrapped, activations, feed):
    def mae(seed, random_state=None):
        given = SGDRegressor(random_state=random_state)
        probe = EstimatorProbe(wrapped(given), seed=seed)
        found = feed(probe, activations[:40], activations[40:], POSITIONS)["estimator"]
        assert given.random_state is random_state
        return found.score("mae").value

    assert mae(seed=0) == mae(seed=0) != mae(seed=1)
    # What was chosen stays.
    assert mae(seed=0, random_state=7) == mae(seed=1, random_state=7)


def test_an_estimator_that_needs_all_data_at_once_is_refused():
    with pytest.raises(ProbeError, match="Ridge has no partial_fit"):
        EstimatorProbe(Ridge())


def test_estimators_that_were_fitted_apart_are_not_merged(activations):
    probes = EstimatorProbe(SGDRegressor()), EstimatorProbe(SGDRegressor())
    for probe, part in zip(probes, activations.split(30), strict=True):
        probe.update(part, POSITIONS)
    with pytest.raises(ProbeError, match=r"no sums to add: fit on one machine, then .* for_shard"):
        probes[0].merge(probes[1])


@pytest.mark.parametrize("estimator", [MiniBatchKMeans(), SGDClassifier()])
def test_what_is_no_regressor_is_refused(estimator):
    with pytest.raises(ProbeError, match="is no regressor: give a regressor that learns"):
        EstimatorProbe(estimator)
