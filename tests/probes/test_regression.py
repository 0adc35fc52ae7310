"""Streamed ridge regression against scikit-learn's, and the numbers of the linear probe by hand."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float32
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probes import moments
from probes.errors import ProbeError, ProbeWarning
from probes.estimators.ridge import RidgeRegressor
from probes.moments import LinearMoments
from probes.regression import LinearProbe
from probes.scores import SHUFFLED
from probes.similarity import SimilarityProbe
from tests import typecheck

POSITIONS = torch.arange(1, 13)


def test_positions_are_read_of_what_could_be_scored_and_of_nothing_else(monkeypatch):
    x = torch.randn(40, 12, 5, generator=torch.Generator().manual_seed(0))
    x[..., 0] += POSITIONS
    probe = LinearProbe()
    probe.update(x[:30], POSITIONS)
    probe.evaluate(x[30:], POSITIONS)
    wanted = probe.predict(x[30:])
    np.testing.assert_array_equal(probe.predict(x[30:].clone().requires_grad_()), wanted)
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    for wrong, said in (
        (x[30:].long(), "activations are torch.int64; expected floating point"),
        (x[30], r"shape \(12, 5\); expected \(batch, pos, d_model\)"),
        (x[30:, :, :3], "activations have width 3; the probe was fitted at 5"),
        (x[30:].numpy(), "activations are a ndarray; expected a tensor"),
    ):
        with pytest.raises(ProbeError, match=said):
            probe.predict(wrong)


def sklearn_ridge(alpha: float = 1.0):
    return make_pipeline(StandardScaler(), Ridge(alpha))


@pytest.fixture
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Features on unequal scales, far from 0, one of them constant; two targets."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 10)) * np.logspace(-3, 3, 10) + np.linspace(-1000, 1000, 10)
    X[:, 4] = 0.1
    y = np.stack([X[:, 0] * 1000 + rng.normal(size=300), X[:, 9] + X[:, 1]], axis=1)
    return X, y


@pytest.mark.parametrize("alpha", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize("column", [0, slice(None)], ids=["one target", "two targets"])
def test_ridge_regressor_equals_scikit_learns_on_standardised_features(rows, alpha, column):
    X, y = rows[0], rows[1][:, column]
    ours, theirs = RidgeRegressor(alpha).fit(X, y), sklearn_ridge(alpha).fit(X, y)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-8, atol=1e-8)
    assert ours.predict(X).shape == y.shape
    assert ours.score(X, y) == pytest.approx(theirs.score(X, y))
    assert (np.atleast_2d(ours.coef_)[:, 4] == 0).all()


def test_partial_fit_equals_fit(rows):
    X, y = rows
    whole, parts = RidgeRegressor().fit(X, y), RidgeRegressor()
    for rows_of_X, rows_of_y in zip(np.array_split(X, 5), np.array_split(y, 5), strict=True):
        parts.partial_fit(rows_of_X, rows_of_y)
    np.testing.assert_allclose(parts.coef_, whole.coef_, rtol=1e-8)
    np.testing.assert_allclose(parts.intercept_, whole.intercept_, rtol=1e-8)


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=2, max_size=6),
    d=st.integers(1, 9),
    offset=st.floats(-1e4, 1e4),
    seed=st.integers(0, 2**16),
)
def test_moments_of_shards_add_up_to_the_moments_of_the_whole(sizes, d, offset, seed):
    rng = np.random.default_rng(seed)
    X = torch.from_numpy(rng.normal(offset, 1, size=(sum(sizes), d)))
    y = torch.from_numpy(rng.normal(size=(sum(sizes), 2)))
    whole = LinearMoments().update(X, y)
    merged = LinearMoments()
    for features, targets in zip(X.split(sizes), y.split(sizes), strict=True):
        merged.merge(LinearMoments().update(features, targets))
    assert merged.n == whole.n == len(X)
    for ours, exact in zip(merged.ridge(1.0), whole.ridge(1.0), strict=True):
        # Rounding of numbers around the offset, relative to a spread of 1.
        np.testing.assert_allclose(ours, exact, rtol=1e-6, atol=1e-6)


def hard_activations(
    n: int, d: int, offset: float, spread: float, seed: int
) -> Float32[np.ndarray, "n d"]:
    """Features in float32 round means of size `offset`: one constant, two the same, one close to
    another, each as near to its mean as float32 lets it be."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X[:, 0] += np.linspace(0, 2, n)
    X[:, 1] = X[:, 0] + 1e-3 * X[:, 1]
    X[:, 2], X[:, 3] = X[:, 0], 0.1
    X = X * spread * np.logspace(-1, 1, d) + offset * rng.normal(size=d)
    return X.astype(np.float32)


hard = given(
    n=st.integers(4, 200),
    d=st.integers(4, 40),
    offset=st.sampled_from([0.0, 1.0, 1e2, 1e4, 1e6]),
    spread=st.sampled_from([1e-2, 1.0, 1e2]),
    alpha=st.sampled_from([1e-3, 1e-1, 1.0, 1e3]),
    seed=st.integers(0, 2**16),
)


@pytest.mark.filterwarnings("ignore::probes.errors.ProbeWarning")
@settings(max_examples=60)
@hard
def test_in_float32_the_regressor_is_scikit_learns_in_float64(n, d, offset, spread, alpha, seed):
    """Means up to 1e6, more features than activations, duplicates, penalties small and large."""
    X, y = hard_activations(n, d, offset, spread, seed), np.arange(n) % 128.0
    exact = X.astype(np.float64)
    expected = sklearn_ridge(alpha).fit(exact, y).predict(exact)
    np.testing.assert_allclose(RidgeRegressor(alpha).fit(X, y).predict(X), expected, atol=1e-3)
    parts = RidgeRegressor(alpha).partial_fit(X[: n // 2], y[: n // 2])
    parts.partial_fit(X[n // 2 :], y[n // 2 :])
    np.testing.assert_allclose(parts.predict(X), expected, atol=1e-3)


@pytest.mark.filterwarnings("ignore::probes.errors.ProbeWarning")
@settings(max_examples=60)
@hard
def test_in_float32_the_probe_is_scikit_learns_in_float64(n, d, offset, spread, alpha, seed):
    X = hard_activations(8 * n, d, offset, spread, seed)
    positions, probe = torch.arange(n), LinearProbe(alpha=alpha)
    x = torch.from_numpy(X).view(8, n, d)
    for some in x.split(3):
        probe.update(some, positions)
    probe.evaluate(x, positions)
    exact = X.astype(np.float64)
    expected = sklearn_ridge(alpha).fit(exact, np.tile(np.arange(n), 8)).predict(exact)
    # Where float32 is thought to do, single readings have a little more of its rounding.
    off = np.abs(probe.predict(x).ravel() - expected)
    assert off.mean() < 1e-3
    assert off.max() < 5e-3


def test_a_small_spread_about_a_large_mean_is_read():
    """The case that was lost: mean 1e4 and standard deviation 0.01 counted as a constant."""
    rng = np.random.default_rng(0)
    t = np.arange(4096) % 64
    X = (1e4 + 0.01 * (rng.normal(size=(4096, 4)) + t[:, None] / 16)).astype(np.float32)
    probe, x = LinearProbe(), torch.from_numpy(X).view(64, 64, 4)
    probe.update(x, torch.arange(64))
    probe.evaluate(x, torch.arange(64))
    expected = sklearn_ridge().fit(X.astype(np.float64), t).predict(X.astype(np.float64))
    assert np.abs(expected - t).mean() < 8 < np.abs(31.5 - t).mean()
    for read in (RidgeRegressor().fit(X, t).predict(X), probe.predict(x).ravel()):
        np.testing.assert_allclose(read, expected, atol=1e-3)


def test_features_that_hold_rounding_are_said_in_one_warning():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5)).astype(np.float32)
    X[:, 2:4] = 1e6 + 0.02 * X[:, 2:4]  # float32 steps by 0.0625 there
    with pytest.warns(
        ProbeWarning, match=r"2 of 5 features vary by less than .* feature 2 with mean 1e\+06"
    ) as said:
        RidgeRegressor().fit(X, X[:, 0])
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        X[:, 2:4] = 1e6  # a constant is no loss
        RidgeRegressor().fit(X, X[:, 0])


def test_few_activations_for_the_width_are_said_in_one_warning():
    x = torch.randn(12, 10, 12, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(10)

    def solved(n: int) -> None:
        probe = LinearProbe()
        probe.update(x[:n], positions)
        probe.evaluate(x, positions)
        probe.evaluate(x, positions)

    message = r"11 sequences are 110 activations, few to fit 12 components.* 120, which is 12 seq"
    with pytest.warns(ProbeWarning, match=message) as said:
        solved(11)
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solved(12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_far_from_zero_keeps_its_digits(dtype):
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.normal(50, 1, size=(2000, 20))).to(dtype)
    y = X[:, :1].double() - X[:, 1:2].double()
    coefficients, _ = LinearMoments().update(X, y).ridge(1.0)
    exact = sklearn_ridge().fit(X.double().numpy(), y.numpy()).predict(X.double().numpy())
    # float32 moments of 2000 rows: 1e-4 of a target whose spread is 1.4.
    ours = (X.double().numpy() - X.double().mean(0).numpy()) @ coefficients + float(y.mean())
    np.testing.assert_allclose(ours[:, 0], exact.ravel(), atol=2e-4)


def test_alpha_must_be_positive(rows):
    with pytest.raises(
        ProbeError, match=r"alpha is 0\.0; ridge regression needs a positive penalty"
    ):
        RidgeRegressor(alpha=0.0).fit(*rows)


@pytest.mark.parametrize("make", [LinearProbe, SimilarityProbe])
def test_a_probe_is_not_begun_with_a_penalty_that_is_none(make, monkeypatch):
    # As for a user, whose types nothing checks.
    monkeypatch.setattr(typecheck, "ON", False)
    for wrong in (0, -1, float("nan"), float("inf"), "1", True, None):
        with pytest.raises(ProbeError, match=f"^alpha is {wrong!r}: give a number above 0$"):
            make(alpha=wrong)
    assert make(alpha=np.float32(0.5)).alpha == 0.5


@pytest.mark.parametrize(
    ("precision", "remedy"),
    [
        (np.float32, "float32: raise alpha, or give float64 activations"),
        (np.float64, "float64: raise alpha"),
    ],
)
def test_features_that_are_all_but_the_same_need_a_larger_alpha(precision, remedy):
    rng = np.random.default_rng(0)
    X = (np.tile(rng.normal(size=(50, 3)), 20) * np.linspace(1, 3, 60)).astype(precision)
    with pytest.raises(ProbeError, match=f"too collinear for alpha=1e-20 in {remedy}$"):
        RidgeRegressor(alpha=1e-20).fit(X, rng.normal(size=50))
    RidgeRegressor(alpha=1e-3).fit(X, rng.normal(size=50))


def test_nothing_is_predicted_before_it_is_solved(activations):
    probe = LinearProbe()
    probe.update(activations[:40], POSITIONS)
    with pytest.raises(ProbeError, match=r"predict\(\) came before evaluate\(\), which solves"):
        probe.predict(activations[40:])


@pytest.fixture
def activations() -> torch.Tensor:
    """60 sequences whose rows hold t, and 1/m, each in a direction of its own, and noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 12, 8, generator=generator, dtype=torch.float64)
    x[..., 0] += POSITIONS / 3
    x[..., 1] += 8 / (POSITIONS + 1)
    return x


def test_held_out_numbers_are_scikit_learns(activations, feed):
    fit, held_out = activations[:40], activations[40:]
    result = feed(LinearProbe(), fit, held_out, POSITIONS)

    t = POSITIONS.numpy()
    X, y = fit.flatten(0, 1).numpy(), np.tile(t, 40)
    t_hat = sklearn_ridge().fit(X, y).predict(held_out.flatten(0, 1)).reshape(20, 12)
    inverse = sklearn_ridge().fit(X, 1 / (y + 1)).predict(held_out.flatten(0, 1)).reshape(20, 12)
    decoded = 1 / np.clip(inverse, 1 / 13, 1 / 2) - 1
    r2 = 1 - ((inverse - 1 / (t + 1)) ** 2).mean() / np.var(1 / (t + 1))

    linear, counting = result["linear"], result["counting"]
    assert linear.score("mae").value == pytest.approx(np.abs(t_hat - t).mean())
    assert linear.score("r2").value == pytest.approx(1 - ((t_hat - t) ** 2).mean() / np.var(t))
    assert counting.score("mae").value == pytest.approx(np.abs(decoded - t).mean())
    assert counting.score("r2").value == pytest.approx(r2)
    np.testing.assert_allclose(linear.arrays["error"], np.abs(t_hat - t).mean(axis=0))
    np.testing.assert_array_equal(linear.arrays["positions"], t)
    assert (linear.arrays["error_low"] < linear.arrays["error"]).all()
    assert (linear.arrays["error_high"] > linear.arrays["error"]).all()
    uninformed = np.abs(t - (1 / (1 / (t + 1)).mean() - 1)).mean()
    for scores, chance in ((linear.scores, 3.0), (counting.scores, uninformed)):
        for score in scores:
            assert score.n == 20
            assert score.ci_low < score.value < score.ci_high
            assert score.chance == pytest.approx(chance if score.metric == "mae" else 0.0)


def test_shuffled_positions_are_at_chance_where_the_true_ones_are_not(activations, feed):
    result = feed(LinearProbe(), activations[:40], activations[40:], POSITIONS)
    for name in ("linear", "counting"):
        assert result[name].score("r2").value > 0.6
        # A fit of 8 coefficients to 480 rows of noise costs about 8/480 of r2.
        assert -0.06 < result[name].score("r2", SHUFFLED).value < 0.02
    assert result["linear"].score("mae", SHUFFLED).value == pytest.approx(3.0, abs=0.15)


def test_a_constant_feature_costs_no_second_product(monkeypatch):
    """The products of the others stand: only what varies about a large mean is multiplied again."""
    products = []
    real = moments._upper_products
    monkeypatch.setattr(moments, "_upper_products", lambda x: products.append(0) or real(x))
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    alone = LinearMoments().update(x, x[:, :1]).gram()
    x[:, 2] = 0.1
    gram = LinearMoments().update(x, x[:, :1]).gram()
    assert len(products) == 2
    others = [0, 1, 3, 4, 5]
    assert (gram[2] == 0).all()
    assert torch.equal(gram[others][:, others], alone[others][:, others])
    x[:, 2] = 1e4 + 1e-2 * x[:, 3]
    LinearMoments().update(x, x[:, :1])
    assert len(products) == 4


def test_a_slice_of_a_larger_tensor_is_read_as_its_copy(activations, feed):
    sliced = activations.float()[:, 2:]
    apart = feed(LinearProbe(), sliced[:40].clone(), sliced[40:].clone(), POSITIONS[2:])
    # Rounding of float32 in another order of summation.
    assert feed(LinearProbe(), sliced[:40], sliced[40:], POSITIONS[2:])["linear"].score(
        "mae"
    ).value == pytest.approx(apart["linear"].score("mae").value, rel=1e-5)


def test_predictions_of_1_over_m_below_zero_decode_to_the_last_position():
    probe = LinearProbe()
    probe._adopt(8, POSITIONS)
    decoded = probe._decoded(torch.tensor([[-1.0, 0.0, 1 / 5, 9.0]]))
    np.testing.assert_allclose(decoded, [[12, 12, 4, 1]], rtol=1e-6)
