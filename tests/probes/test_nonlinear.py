"""The two-layer probe: what a linear one cannot read, and the same bits from the same seed."""

import numpy as np
import pytest
import torch
from sklearn.datasets import make_moons
from sklearn.linear_model import LogisticRegression

from probes import nonlinear
from probes.errors import ProbeError
from probes.estimators.two_layer import TwoLayerClassifier
from probes.nonlinear import TwoLayerProbe
from probes.regression import LinearProbe
from probes.scores import SHUFFLED
from tests.peak import Peak


def test_classifier_learns_what_a_linear_one_cannot():
    X, y = make_moons(600, noise=0.1, random_state=0)
    X_new, y_new = make_moons(600, noise=0.1, random_state=1)
    assert TwoLayerClassifier().fit(X, y).score(X_new, y_new) > 0.97
    assert LogisticRegression().fit(X, y).score(X_new, y_new) < 0.9


@pytest.mark.parametrize("size", ["hidden", "passes", "batch_size"])
def test_a_classifier_of_nothing_is_refused(size):
    X, y = make_moons(20, noise=0.1, random_state=0)
    with pytest.raises(ProbeError, match=f"{size} is 0: give a whole number, at least 1"):
        TwoLayerClassifier(**{size: 0}).fit(X, y)
    with pytest.raises(ProbeError, match=f"{size} is 0: give a whole number, at least 1"):
        TwoLayerProbe(**{size: 0})


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_learning_rate_that_learns_nothing_is_refused(rate):
    with pytest.raises(ProbeError, match=r"learning_rate is .*: give a number above 0"):
        TwoLayerProbe(learning_rate=rate)


def test_classifier_with_one_seed_has_the_same_bits():
    X, y = make_moons(200, noise=0.1, random_state=0)
    first, again, other = (
        TwoLayerClassifier(passes=2, seed=seed).fit(X, y).predict_proba(X) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    numpys = TwoLayerClassifier(passes=2, seed=np.int64(1)).fit(X, y).predict_proba(X)
    np.testing.assert_array_equal(numpys, other)
    with pytest.raises(ProbeError, match=r"seed is 1\.5: give a whole number"):
        TwoLayerClassifier(seed=1.5).fit(X, y)


def test_a_classifier_takes_either_precision_after_the_other():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 5))
    y = (x[:, 0] > 0).astype(int)
    fitted = TwoLayerClassifier(passes=40).fit(x.astype(np.float32), y)
    assert (fitted.predict(x) == fitted.predict(x.astype(np.float32))).all()
    assert (fitted.predict(x) == y).mean() > 0.9
    fitted.partial_fit(x, y)
    assert (fitted.predict(x) == y).mean() > 0.9


@pytest.mark.parametrize("value", [0.1, 0.1001])
def test_a_component_that_is_nearly_constant_at_first_counts_as_others_do_later(value):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(400, 5))
    y = (x[:, 0] > 0).astype(int)
    first = x[:200].copy()
    first[:, 4] = 0.1
    first[0, 4] = value
    fitted = TwoLayerClassifier(passes=20).fit(first, y[:200])
    for _ in range(5):
        fitted.partial_fit(x[200:], y[200:])
    assert (fitted.predict(x[200:]) == y[200:]).mean() > 0.9


def test_partial_fit_goes_on_where_it_stopped():
    X, y = make_moons(600, noise=0.1, random_state=0)
    model = TwoLayerClassifier()
    with pytest.raises(ProbeError, match="the first partial_fit needs classes"):
        model.partial_fit(X, y)
    model.partial_fit(X, y, classes=[0, 1])
    once = model.score(X, y)
    for _ in range(60):
        model.partial_fit(X, y)
    assert model.score(X, y) > max(0.97, once)
    with pytest.raises(ProbeError, match=r"y holds np.int64\(2\), which is not among the classes"):
        model.partial_fit(X, y + 1)


@pytest.mark.slow
def test_random_causal_residuals_tell_position_to_two_layers_and_not_to_one(random_residuals, feed):
    positions = torch.arange(1, 128)
    fit, held_out = random_residuals(1, 320)[:, 1:], random_residuals(2, 96)[:, 1:]
    linear = feed(LinearProbe(), fit, held_out, positions)["linear"]
    two_layer = feed(TwoLayerProbe(), fit, held_out, positions)["two_layer"]

    # Position enters even moments only (no begin token, uniform tokens). What the vocabulary's
    # embeddings and the MLP's outputs share is a weak begin token, worth 1% of r2 here.
    assert linear.score("r2").ci_low < 0 < linear.score("r2").ci_high
    assert linear.score("mae").value > 0.99 * linear.score("mae").chance
    assert two_layer.score("mae").ci_high < 0.95 * two_layer.score("mae").chance
    assert two_layer.score("r2").ci_low > 0.05
    assert two_layer.score("mae", SHUFFLED).value > 0.99 * two_layer.score("mae").chance
    assert two_layer.score("r2", SHUFFLED).ci_low < 0
    # All cues lose resolution like 1/m: it is the early positions that are told.
    error = two_layer.arrays["error"]
    always_the_middle = np.abs(np.arange(1, 128) - 64)
    assert error[:20].mean() < 0.85 * always_the_middle[:20].mean()


def test_predicts_the_median_of_its_distribution(feed):
    """On rows that say nothing the distribution is uniform and its median the middle position."""
    positions = torch.tensor([1, 2, 4, 8, 16])
    x = torch.ones(64, 5, 3)
    result = feed(TwoLayerProbe(learning_rate=1e-3, passes=30), x, x, positions)["two_layer"]
    np.testing.assert_array_equal(result.arrays["error"], np.abs(positions.numpy() - 4))
    assert result.score("mae").value == result.score("mae").chance == 4.2


def test_long_sequences_are_read_few_rows_at_a_time(monkeypatch):
    positions, generator = torch.arange(128), torch.Generator().manual_seed(0)
    x = torch.randn(24, 128, 4, generator=generator)
    read = {}
    for at_once in (nonlinear._LOGITS, 2 * 128 * 7):  # all rows, and seven
        monkeypatch.setattr(nonlinear, "_LOGITS", at_once)
        probe = TwoLayerProbe(passes=1)
        probe.update(x, positions)
        with Peak() as peak:
            probe.evaluate(x, positions)
        read[at_once] = probe.result()["two_layer"].arrays["error"]
        assert (peak.numbers >= 2 * 24 * 128 * 128) == (at_once == 2**22)
    np.testing.assert_array_equal(*read.values())
