"""Row variance: its law recovered, its kernel regression against the textbook formula."""

import numpy as np
import pytest
import torch

from probes.estimators.variance import VarianceRegressor
from probes.scores import SHUFFLED
from probes.variance import VarianceProbe, activation_variance, variance_law

POSITIONS = torch.arange(1, 33)


def test_row_variance_is_numpys():
    x = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0)) + 1000
    # float32 numbers around 1000 hold 4 digits of a spread of 1.
    np.testing.assert_allclose(activation_variance(x), x.double().numpy().var(axis=-1), rtol=1e-3)
    np.testing.assert_allclose(activation_variance(x.double()), x.double().numpy().var(axis=-1))


def test_variance_law_is_the_least_squares_fit():
    rng = np.random.default_rng(0)
    t = np.arange(3, 40)
    curves = rng.normal(size=(4, 37)) + 5 / (t + 1)
    for curve, law in zip(curves, variance_law(curves, t), strict=True):
        slope, level = np.polyfit(1 / (t + 1), curve, 1)
        np.testing.assert_allclose(law, [level, slope])
    np.testing.assert_allclose(variance_law(0.3 + 2 / (t + 1), t), [0.3, 2])


def test_regressor_is_nadaraya_and_watsons():
    rng = np.random.default_rng(0)
    y = rng.uniform(0, 10, size=500)
    X = rng.normal(size=(500, 20)) * np.exp(y / 5)[:, None] + rng.normal(size=(500, 1))
    u = np.log(X.var(axis=1))
    bandwidth = 1.06 * u.std() * 500**-0.2
    weights = np.exp(-0.5 * ((u[:, None] - u) / bandwidth) ** 2)
    expected = weights @ y / weights.sum(axis=1)

    fitted = VarianceRegressor().fit(X, y)
    # The grid is a thirty-second of the bandwidth, and the kernel is cut at four of them: where
    # rows are thin a bin's width shows, elsewhere it does not.
    difference = np.abs(fitted.predict(X) - expected)
    assert np.quantile(difference, 0.95) < 0.03
    assert difference.max() < 0.3
    assert fitted.score(X, y) > 0.8

    parts = VarianceRegressor()
    for rows, targets in zip(np.array_split(X, 7), np.array_split(y, 7), strict=True):
        parts.partial_fit(rows, targets)
    np.testing.assert_allclose(parts.predict(X), fitted.predict(X), rtol=1e-9)


def test_regressor_sees_the_variance_and_nothing_else():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 6)), rng.normal(size=400)
    fitted = VarianceRegressor().fit(X, y)
    rotated = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    # Rotations of the space orthogonal to the mean, shifts and permutations keep the variance.
    basis = np.linalg.qr(np.column_stack([np.ones(6), rng.normal(size=(6, 5))]))[0]
    turned = X @ basis[:, :1] @ basis[:, :1].T + X @ basis[:, 1:] @ rotated @ basis[:, 1:].T
    for same in (turned, X + 3, -X, X[:, ::-1]):
        np.testing.assert_allclose(fitted.predict(same), fitted.predict(X), atol=1e-6)
    assert np.abs(fitted.predict(2 * X) - fitted.predict(X)).max() > 1e-3


def test_a_constant_row_is_a_row_like_others():
    X = np.concatenate([np.zeros((50, 4)), np.random.default_rng(0).normal(size=(50, 4))])
    y = np.repeat([1.0, 2.0], 50)
    predicted = VarianceRegressor().fit(X, y).predict(X)
    assert np.isfinite(predicted).all()
    assert predicted[:50].max() < predicted[50:].min()


@pytest.mark.parametrize("share", [0.005, 0.05])
def test_massive_activations_do_not_hide_the_variance_of_the_others(share: float) -> None:
    """As found in trained models: a few tokens with one component of some thousands."""
    generator = torch.Generator().manual_seed(0)
    clean = torch.randn(2, 100, 32, 64, generator=generator) * (0.2 + 2 / POSITIONS).sqrt()[:, None]
    massive = clean.clone()
    struck = torch.rand(clean.shape[:-1], generator=generator) < share
    massive[..., 5] = torch.where(struck, 3000.0, massive[..., 5])

    def error(fitted: torch.Tensor, held_out: torch.Tensor) -> float:
        probe = VarianceProbe()
        probe.update(fitted, POSITIONS)
        probe.evaluate(held_out, POSITIONS)
        return probe.result()["variance"].score("mae").value

    without = error(*clean)
    # Of the struck tokens nothing can be read: chance, 8 positions.
    assert error(*massive) < without + 1.5 * share * 8 + 0.1


@pytest.fixture
def chi() -> torch.Tensor:
    """Rows of independent components with variance 0.5 + 4/m."""
    x = torch.randn(90, 32, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x * (0.5 + 4 / (POSITIONS + 1))[:, None].sqrt()


def test_held_out_numbers_are_numpys(chi, feed):
    fit, held_out = chi[:60], chi[60:]
    result = feed(VarianceProbe(), fit, held_out, POSITIONS)["variance"]

    t = POSITIONS.numpy()
    curve = held_out.numpy().var(axis=-1).mean(axis=0)
    slope, level = np.polyfit(1 / (t + 1), fit.numpy().var(axis=-1).mean(axis=0), 1)
    missed = (curve - curve.mean()) - slope * (1 / (t + 1) - (1 / (t + 1)).mean())
    np.testing.assert_allclose(result.arrays["curve"], curve)
    np.testing.assert_allclose(result.arrays["law"], [level, slope])
    assert result.score("law_r2").value == pytest.approx(
        1 - (missed**2).sum() / ((curve - curve.mean()) ** 2).sum()
    )
    by_hand = VarianceRegressor().fit(fit.flatten(0, 1).numpy(), np.tile(t, 60))
    error = by_hand.predict(held_out.flatten(0, 1).numpy()) - np.tile(t, 30)
    assert result.score("mae").value == pytest.approx(np.abs(error).mean(), rel=1e-6)
    assert result.score("r2").value == pytest.approx(1 - (error**2).mean() / t.var(), rel=1e-6)


def test_the_law_is_recovered_and_its_curve_covered(chi, feed):
    result = feed(VarianceProbe(), chi[:60], chi[60:], POSITIONS)["variance"]
    # Variances of 64 components have a spread of sqrt(2/64) = 18%; means of 60 of them 2.3%.
    np.testing.assert_allclose(result.arrays["law"], [0.5, 4], rtol=0.05)
    # The variance about the mean of 64 components is 63/64 of theirs.
    truth = (0.5 + 4 / (POSITIONS.numpy() + 1)) * 63 / 64
    covered = (result.arrays["curve_low"] < truth) & (truth < result.arrays["curve_high"])
    assert covered.mean() > 0.8
    assert result.score("law_r2").value > 0.98
    assert result.score("law_r2", SHUFFLED).value < 0.1


def test_sequences_of_one_token_each_leave_nothing_to_explain(feed):
    x = torch.randn(40, 1, 8, generator=torch.Generator().manual_seed(0)).repeat(1, 27, 1)
    result = feed(VarianceProbe(), x[:30], x[30:], torch.arange(1, 28))
    score = result["variance"].score("law_r2")
    assert (score.value, score.ci_low, score.ci_high) == (0, 0, 0)


def test_noise_of_few_sequences_lowers_the_fit_of_the_law(feed):
    size = (0.5 + 1 / (POSITIONS + 1))[:, None].sqrt()
    found = {2: [], 32: []}
    for n, scores in found.items():
        for seed in range(20):
            generator = torch.Generator().manual_seed(seed)
            x = size * torch.randn(40 + n, len(POSITIONS), 16, generator=generator)
            result = feed(VarianceProbe(n_resamples=200), x[:40], x[40:], POSITIONS)
            scores.append(result["variance"].score("law_r2"))
    few, many = ([score.value for score in scores] for scores in found.values())
    assert np.mean(few) < np.mean(many) - 0.2
    # Intervals hold what as many sequences give.
    for scores in found.values():
        mean = np.mean([score.value for score in scores])
        assert np.mean([score.ci_low < mean < score.ci_high for score in scores]) > 0.8


def test_rows_of_one_variance_leave_nothing_to_explain(feed):
    x = torch.randn(20, 32, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = torch.nn.functional.layer_norm(x, (64,), eps=0)
    scores = feed(VarianceProbe(), x[:10], x[10:], POSITIONS)["variance"].scores
    assert all(np.isfinite([s.value, s.ci_low, s.ci_high]).all() for s in scores)
    assert all(s.value < 0.05 for s in scores if s.metric != "mae")
