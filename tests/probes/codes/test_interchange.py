"""Codes exchanged between positions: on planted ones, and against least squares by numpy."""

import numpy as np
import pytest
import torch

from probes.codes.filter import log_variance
from probes.codes.interchange import MEAN_RESIDUAL, MOVABLE, TRENDS, interchange, relative_size
from probes.codes.statistics import CodeStatistics
from probes.errors import ProbeError
from tests.probes.codes.test_codes import (
    POSITIONS,
    fitted,
    planted,
    planted_counting,
    planted_vectors,
)

NEXT = (torch.arange(len(POSITIONS)) + 1).clamp(max=len(POSITIONS) - 1)
STAY = torch.arange(len(POSITIONS))


@pytest.fixture(scope="module")
def activations() -> torch.Tensor:
    return planted(400, seed=0)


@pytest.fixture(scope="module")
def statistics(activations: torch.Tensor) -> CodeStatistics:
    return fitted(activations)


@pytest.mark.parametrize("code", MOVABLE)
def test_who_keeps_the_own_position_keeps_everything(
    statistics: CodeStatistics, activations: torch.Tensor, code: str
) -> None:
    moved = interchange(statistics, code, STAY)(activations)
    torch.testing.assert_close(moved, activations, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("code", "vectors"),
    [("counting", planted_counting()), ("positional vectors", planted_vectors())],
)
def test_the_planted_vectors_are_exchanged_and_nothing_else(
    statistics: CodeStatistics, activations: torch.Tensor, code: str, vectors: torch.Tensor
) -> None:
    moved = interchange(statistics, code, NEXT)(activations).double() - activations.double()
    wanted = vectors[NEXT] - vectors
    # The same for every sequence, and the planted difference but for the means' sampling error.
    assert moved.std(dim=0).max() < 1e-5
    error = (moved.mean(dim=0) - wanted).square().sum().sqrt() / wanted.square().sum().sqrt()
    assert error < 0.35
    half = interchange(statistics, code, NEXT, dose=0.5)(activations).double() - activations
    torch.testing.assert_close(2 * half, moved, rtol=1e-3, atol=1e-4)


def test_the_mean_residual_is_both_codes_in_the_mean(
    statistics: CodeStatistics, activations: torch.Tensor
) -> None:
    whole = interchange(statistics, MEAN_RESIDUAL, NEXT)(activations) - activations
    parts = sum(
        interchange(statistics, code, NEXT)(activations) - activations
        for code in ("counting", "positional vectors")
    )
    torch.testing.assert_close(whole, parts, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("trend", TRENDS)
def test_a_trend_is_a_least_squares_fit(
    statistics: CodeStatistics, activations: torch.Tensor, trend: str
) -> None:
    m = POSITIONS.double().numpy() + 1
    formula = {"1/m": 1 / m, "t": m, "log m": np.log(m), "slow cosine": np.cos(np.pi * m / m[-1])}
    design = np.stack([np.ones_like(m), formula[trend]], axis=1)
    means = activations.double().mean(dim=0).numpy()
    fitted = design @ np.linalg.lstsq(design, means, rcond=None)[0]
    moved = (interchange(statistics, trend, NEXT)(activations) - activations).mean(dim=0)
    np.testing.assert_allclose(moved, (fitted[NEXT] - fitted), atol=1e-4)


def test_deviations_get_the_spread_of_the_position_they_move_to(
    statistics: CodeStatistics, activations: torch.Tensor
) -> None:
    far = torch.full((len(POSITIONS),), 20)
    moved = interchange(statistics, "variance", far)(activations)
    logs, wanted = log_variance(moved).mean(dim=0), log_variance(activations).mean(dim=0)
    np.testing.assert_allclose(logs, np.full(len(logs), wanted[20]), atol=0.02)
    assert (wanted[0] - wanted[20]).abs() > 1  # they were far apart


def test_a_site_without_the_code_has_nothing_to_move() -> None:
    bare = torch.randn(2000, 24, 16, generator=torch.Generator().manual_seed(3))
    nothing = fitted(bare)
    assert relative_size(interchange(nothing, "1/m", NEXT), nothing) < 0.02
    planted_statistics = fitted(planted(400, seed=1))
    size = relative_size(interchange(planted_statistics, "1/m", NEXT), planted_statistics)
    assert size > 0.02
    assert relative_size(interchange(nothing, "1/m", STAY), nothing) == 0


@pytest.mark.parametrize(
    ("code", "sources", "dose", "said"),
    [
        ("countin", NEXT, 1.0, "no position code 'countin' that can move"),
        ("counting", NEXT[:3], 1.0, "give one for each of the 24 positions"),
        ("counting", NEXT + 1, 1.0, "an index from 0 to 23"),
        ("counting", NEXT, 0.0, "dose is 0.0"),
        ("variance", NEXT, 0.5, "leave dose out"),
    ],
)
def test_nonsense_is_one_sentence(
    statistics: CodeStatistics, code: str, sources: torch.Tensor, dose: float, said: str
) -> None:
    with pytest.raises(ProbeError, match=said):
        interchange(statistics, code, sources, dose=dose)
