"""The share of variance that position explains: by hand, of a known size, and of nothing."""

import numpy as np
import pytest
import torch

from probes.positional_vectors import PositionalVectorProbe
from probes.scores import SHUFFLED

POSITIONS = torch.arange(1, 21)


def planted(share: float, n: int, seed: int = 0) -> torch.Tensor:
    """Rows with that share of their variance in a vector of their position, and a large mean."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(20, 30, generator=generator, dtype=torch.float64)
    vectors = vectors - vectors.mean(dim=0)
    vectors = vectors / vectors.square().mean().sqrt() * share**0.5
    noise = torch.randn(n, 20, 30, generator=generator, dtype=torch.float64)
    return 100 + vectors + noise * (1 - share) ** 0.5


def test_share_is_its_formula(feed):
    x = planted(0.3, 50)
    fit, held_out = x[:30].numpy(), x[30:].numpy()
    vectors = fit.mean(axis=0)
    mean = vectors.mean(axis=0)
    centred = held_out - mean
    expected = ((vectors - mean) * centred).sum() / (centred**2).sum()
    result = feed(PositionalVectorProbe(), x[:30], x[30:], POSITIONS)["positional_vectors"]
    assert result.score("share").value == pytest.approx(expected)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.95])
def test_a_share_of_known_size_is_recovered_without_bias(share, feed):
    results = [
        feed(PositionalVectorProbe(n_resamples=200), x[:16], x[16:], POSITIONS)
        for x in (planted(share, 40, seed) for seed in range(20))
    ]
    shares = [result["positional_vectors"].score("share") for result in results]
    estimates = np.array([score.value for score in shares])
    error = estimates.std() / np.sqrt(len(shares))
    # Within three standard errors. The plain share of the fitted sequences would be too high by
    # (1 - share) / 16, which is many of them.
    assert abs(estimates.mean() - share) < 3 * error + 1e-4
    plain_bias = (1 - share) / 16
    assert plain_bias > 6 * error
    covered = [score.ci_low <= share <= score.ci_high for score in shares]
    if share == 0:
        assert np.mean(covered) > 0.8


def test_few_sequences_that_outweigh_the_others_are_few(feed):
    # Sequences hold nothing but noise, and of some it is many times as large as of others.
    covered = []
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        size = torch.exp(1.5 * torch.randn(80, 1, 1, generator=generator))
        x = size * torch.randn(80, 20, 8, generator=generator)
        probe = PositionalVectorProbe(seed=seed, n_resamples=200)
        score = feed(probe, x[:64], x[64:], POSITIONS)["positional_vectors"].score("share")
        covered.append(score.ci_low <= 0 <= score.ci_high)
    # Intervals of 16 sequences held 0 in 46 of them.
    assert np.mean(covered) > 0.9


def test_shuffled_positions_explain_nothing(feed):
    x = planted(0.5, 200)
    result = feed(PositionalVectorProbe(), x[:120], x[120:], POSITIONS)["positional_vectors"]
    assert result.score("share").ci_low > 0.45
    control = result.score("share", SHUFFLED)
    assert abs(control.value) < 0.01
    assert control.ci_low < 0.002


def test_rows_that_never_vary_have_no_share_to_speak_of(feed):
    x = torch.zeros(20, 20, 3)
    result = feed(PositionalVectorProbe(), x[:10], x[10:], POSITIONS)["positional_vectors"]
    assert result.score("share").value == 0
