"""Codes exchanged between positions: on planted ones, and against least squares by numpy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import hyp2f1
from scipy.stats import binom

from probes.code_names import HALVES, IRREGULAR, MEAN_RESIDUAL, SMOOTH, VARIANCE
from probes.codes.interchange import interchange, levelled, put_back, variation_at
from probes.codes.statistics import CodeStatistics
from probes.codes.trends import MOVABLE, TRENDS, carries, random_functions, told_by
from probes.errors import ProbeError
from probes.variance import activation_variance
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
    [(SMOOTH, planted_counting()), (IRREGULAR, planted_vectors())],
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
    half = interchange(statistics, code, NEXT).by(0.5)(activations).double() - activations
    torch.testing.assert_close(2 * half, moved, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("code", [MEAN_RESIDUAL, SMOOTH, VARIANCE])
def test_between_two_positions_the_code_is_in_between(
    statistics: CodeStatistics, activations: torch.Tensor, code: str
) -> None:
    def told(share: float) -> torch.Tensor:
        """The mean residual and the squared deviations that the first position is given."""
        sources = STAY.float()
        sources[0] = 4 + share
        first = interchange(statistics, code, sources)(activations)[:, 0].double()
        mean = first.mean(dim=0)
        squares = (first - mean).square().sum(dim=1).mean()
        spread = mean.var(correction=0) + squares * (len(mean) - 1) / len(mean) ** 2
        return spread if code == VARIANCE else mean

    torch.testing.assert_close(told(0.25), 0.75 * told(0) + 0.25 * told(1), rtol=1e-3, atol=1e-4)


def test_positions_of_two_runs_side_by_side_keep_their_numbers() -> None:
    """What t explains of 2 t + 3 is all of it, where t comes twice, too."""
    numbers = torch.tensor([1, 2, 3, 4, 2, 3, 4, 5])
    activations = (2.0 * numbers + 3).view(1, -1, 1).repeat(2, 1, 4)
    both = CodeStatistics()
    both.update(activations, torch.arange(8))
    told = told_by(both.among(torch.arange(8), numbers), "t")
    expected = (2.0 * numbers - 6).double()
    torch.testing.assert_close(told, expected[:, None].expand(8, 4), rtol=0, atol=1e-9)


def test_the_mean_residual_is_both_its_parts(
    statistics: CodeStatistics, activations: torch.Tensor
) -> None:
    whole = interchange(statistics, MEAN_RESIDUAL, NEXT)(activations) - activations
    parts = sum(
        interchange(statistics, code, NEXT)(activations) - activations
        for code in (SMOOTH, IRREGULAR)
    )
    torch.testing.assert_close(whole, parts, rtol=1e-3, atol=1e-4)
    means = activations.double().mean(dim=0)
    torch.testing.assert_close(
        whole.mean(dim=0).double(), means[NEXT] - means, rtol=1e-3, atol=1e-4
    )


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


def test_activations_get_the_variance_of_the_position_they_move_to(
    statistics: CodeStatistics, activations: torch.Tensor
) -> None:
    far = torch.full((len(POSITIONS),), 20)
    moved = interchange(statistics, VARIANCE, far)(activations)
    before, after = (activation_variance(x).mean(dim=0) for x in (activations, moved))
    np.testing.assert_allclose(after, np.full(len(after), before[20]), rtol=0.05)
    assert before[0] > 3 * before[20]  # they were far apart
    torch.testing.assert_close(moved.mean(dim=0), activations.mean(dim=0), rtol=1e-3, atol=1e-4)


def test_what_was_moved_before_is_not_moved_again(
    statistics: CodeStatistics, activations: torch.Tensor
) -> None:
    """Half of the way is gone, in part across the code: the other half brings it there."""
    told = told_by(statistics, SMOOTH)
    across = torch.randn(64, generator=torch.Generator().manual_seed(5)).double()
    along = torch.linalg.svd(told, full_matrices=False).Vh[:2]
    across = across - along.mT @ (along @ across)
    on_the_way = activations + (0.5 * (told[NEXT] - told) + across).float()
    move = interchange(statistics, SMOOTH, NEXT, current=fitted(on_the_way))
    ended = (move(on_the_way) - activations).mean(dim=0).double()
    # The last position has no next one and stays as it is.
    torch.testing.assert_close(ended[:-1], (told[NEXT] - told + across)[:-1], rtol=1e-3, atol=1e-4)
    spread = 1.5 * (activations - activations.mean(dim=0)) + activations.mean(dim=0)
    move = interchange(statistics, VARIANCE, NEXT, current=fitted(spread))
    wanted = interchange(statistics, VARIANCE, NEXT)(activations)
    torch.testing.assert_close(move(spread)[:, :-1], wanted[:, :-1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("code", [MEAN_RESIDUAL, SMOOTH, "log m"])
def test_one_code_alone_is_put_back(
    statistics: CodeStatistics, activations: torch.Tensor, code: str
) -> None:
    origins = torch.arange(len(POSITIONS)).flip(0)
    move = put_back(statistics, code, origins, levelled(statistics))
    base, back = move.base(activations).double(), move(activations).double()
    # The base tells no position, by the mean or by the spread about it.
    assert base.mean(dim=0).std(dim=0).max() < 1e-5
    lengths = (base - base.mean(dim=0)).square().sum(dim=-1).mean(dim=0)
    torch.testing.assert_close(lengths, lengths.mean().expand_as(lengths), rtol=1e-4, atol=0)
    told = told_by(statistics, code)
    added = (back - base).mean(dim=0)
    torch.testing.assert_close(added, told[origins] - told.mean(dim=0), rtol=1e-3, atol=1e-5)


def test_random_functions_and_those_they_leave_are_all_functions_but_the_constant() -> None:
    few, others = random_functions(9, 2, torch.Generator().manual_seed(0))
    assert (few.shape, others.shape) == ((9, 2), (9, 6))
    every = torch.cat([torch.full((9, 1), 1 / 3), few, others], dim=1).double()
    torch.testing.assert_close(every.mT @ every, torch.eye(9).double())


def test_what_a_code_was_made_into_on_the_way_stays(
    statistics: CodeStatistics, activations: torch.Tensor
) -> None:
    """The run with the code put back below comes with another code that the base does not have."""
    origins, base = torch.arange(len(POSITIONS)).flip(0), levelled(statistics)
    told = told_by(statistics, SMOOTH)[origins]
    terms = torch.stack([POSITIONS.double(), 1 / (POSITIONS.double() + 1)], dim=1)[origins]
    terms = torch.linalg.qr(terms - terms.mean(dim=0)).Q
    made = torch.randn(24, 64, generator=torch.Generator().manual_seed(5)).double()
    made -= terms @ (terms.mT @ made) + made.mean(dim=0)
    # Half of the code has come back by itself.
    base = replace(base, scale=torch.ones(24))
    # All positions have come to stand elsewhere, too.
    comes = activations + (made + 0.5 * told + 3).float()
    move = put_back(statistics, SMOOTH, origins, base, current=fitted(comes))
    ended = (move(comes) - base(activations)).mean(dim=0).double()
    torch.testing.assert_close(ended, told + made, rtol=1e-3, atol=1e-3)
    # Deviations get the spread of other positions about wherever their means have come to.
    move = put_back(statistics, VARIANCE, origins, base, current=fitted(comes))
    ended = (move(comes) - base(comes)).mean(dim=0)
    torch.testing.assert_close(ended, torch.full_like(ended, -3), rtol=0, atol=1e-3)


def test_a_code_that_no_sequence_has_is_found_once_in_a_hundred_times() -> None:
    """Deviations that resemble one another between positions, as those of a stream do."""
    draws = torch.Generator().manual_seed(0)
    found = dict.fromkeys((MEAN_RESIDUAL, *HALVES), 0)
    for _ in range(300):
        content = torch.randn(30, 24, 16, generator=draws).cumsum(dim=1)
        statistics = fitted(content * torch.linspace(0.2, 3, 16))
        for code in found:
            found[code] += carries(statistics, code)
    assert max(found.values()) <= binom.ppf(0.999, 300, 0.01)


def test_a_faint_code_is_found_amid_content(activations: torch.Tensor) -> None:
    """A code whose means err by more than it is long, over many functions and components."""
    draws = torch.Generator().manual_seed(1)
    content = torch.randn(200, 24, 64, generator=draws)
    vectors = torch.randn(24, 64, generator=draws) * 0.4 / math.sqrt(200)
    assert carries(fitted(content + vectors), IRREGULAR)
    assert not carries(fitted(content), IRREGULAR)


def test_variance_alone_is_put_back(statistics: CodeStatistics, activations: torch.Tensor) -> None:
    origins = torch.arange(len(POSITIONS)).flip(0)
    back = put_back(statistics, VARIANCE, origins, levelled(statistics))(activations).double()
    assert back.mean(dim=0).std(dim=0).max() < 1e-5
    # That of the activations themselves, to which means that differ in size add theirs.
    spread = activations.double().var(dim=-1, correction=0).mean(dim=0)
    assert spread.max() > 2 * spread.min()
    found = back.var(dim=-1, correction=0).mean(dim=0)
    torch.testing.assert_close(found, spread[origins], rtol=0.03, atol=0)


@pytest.mark.parametrize("code", MOVABLE)
def test_a_control_moves_as_far_along_the_models_own_variation(
    statistics: CodeStatistics, activations: torch.Tensor, code: str
) -> None:
    move = interchange(statistics, code, NEXT)
    variation = variation_at(statistics)
    # All variation in two directions: those of the control lie there, too.
    plane = torch.zeros_like(variation)
    plane[:, :2] = variation[:, :2]
    control = move.size_matched(plane, torch.Generator().manual_seed(0), dose=0.5)
    moved = (control(activations) - activations).double()
    assert moved[..., 2:].abs().max() < 1e-4
    lengths = torch.linalg.vector_norm(moved, dim=-1)
    if code == VARIANCE:
        wanted = (move.scaled * move.lengths).abs()
    else:
        wanted = torch.linalg.vector_norm(move.told, dim=-1)
    torch.testing.assert_close(
        lengths, 0.5 * wanted.double().expand_as(lengths), rtol=1e-3, atol=1e-4
    )
    # Every sequence has directions of its own.
    assert torch.linalg.matrix_rank(moved[:50, 0].float(), atol=1e-3) == 2


def test_directions_of_controls_have_the_covariance_of_the_variation(
    statistics: CodeStatistics, activations: torch.Tensor
) -> None:
    variation = variation_at(statistics) * torch.linspace(0.2, 2, 64)
    move = interchange(statistics, "t", NEXT)
    many = activations[:1].expand(4000, -1, -1)
    control = move.size_matched(variation, torch.Generator().manual_seed(1))
    moved = (control(many) - many)[:, 0].double()
    wanted = (variation.mT @ variation).double()
    found = moved.mT @ moved
    # Lengths are made equal, which leaves directions and turns no axis.
    cosine = (found * wanted).sum() / found.norm() / wanted.norm()
    assert cosine > 0.97


@pytest.mark.parametrize("code", [MEAN_RESIDUAL, SMOOTH])
def test_positions_of_a_control_lie_to_one_another_as_those_of_the_move(
    statistics: CodeStatistics, activations: torch.Tensor, code: str
) -> None:
    """Cosines of Gaussian vectors that correlate are known (Hotelling 1953)."""
    move = interchange(statistics, code, STAY.roll(5))
    cosines = torch.cosine_similarity(move.told, move.told[:, None], dim=-1).double().numpy()
    assert (np.abs(cosines) > 0.5).sum() > 2 * 24  # more than the own ones
    control = move.size_matched(torch.eye(64), torch.Generator().manual_seed(0))
    many = activations[:1].expand(4000, -1, -1)
    moved = torch.nn.functional.normalize((control(many) - many).double(), dim=-1)
    found = torch.einsum("bid,bjd->ij", moved, moved) / len(many)
    ratio = math.exp(2 * (math.lgamma(65 / 2) - math.lgamma(64 / 2))) * 2 / 64
    wanted = ratio * cosines * hyp2f1(0.5, 0.5, 33, np.minimum(cosines**2, 1))
    # The mean of 4000 cosines in 64 dimensions has a standard error of 0.002.
    np.testing.assert_allclose(found, wanted, atol=0.01)


def test_a_site_without_the_code_has_nothing_to_move(statistics: CodeStatistics) -> None:
    bare = fitted(torch.randn(600, 24, 16, generator=torch.Generator().manual_seed(3)))
    assert not any(carries(bare, code) for code in MOVABLE)
    assert all(carries(statistics, code) for code in MOVABLE)
    counting = fitted(planted(400, seed=1) - planted_vectors().float())
    assert carries(counting, "1/m")
    assert not carries(counting, IRREGULAR)


def test_statistics_of_some_positions_are_as_if_there_were_no_others(
    statistics: CodeStatistics, activations: torch.Tensor
) -> None:
    chosen = torch.tensor([2, 3, 5, 8, 9])
    some, wanted = statistics.among(chosen), fitted(activations[:, chosen], POSITIONS[chosen])
    torch.testing.assert_close(some.positional_vectors(), wanted.positional_vectors())
    torch.testing.assert_close(some.deviation_squares(), wanted.deviation_squares())
    torch.testing.assert_close(some.example_deviations(), wanted.example_deviations())
    assert some.variance_between() == pytest.approx(wanted.variance_between())
    assert some.noise() == pytest.approx(wanted.noise())
    assert torch.equal(some.positions, POSITIONS[chosen])


@pytest.mark.parametrize(
    ("code", "sources", "dose", "said"),
    [
        ("countin", NEXT, 1.0, "no position code 'countin' that can move"),
        (SMOOTH, NEXT[:3], 1.0, "give one for each of the 24 positions"),
        (SMOOTH, NEXT + 1, 1.0, "an index from 0 to 23"),
        (SMOOTH, NEXT, 0.0, "dose is 0.0"),
        (VARIANCE, NEXT, 1.5, "dose is 1.5"),
    ],
)
def test_nonsense_is_one_sentence(
    statistics: CodeStatistics, code: str, sources: torch.Tensor, dose: float, said: str
) -> None:
    with pytest.raises(ProbeError, match=said):
        interchange(statistics, code, sources).by(dose)
