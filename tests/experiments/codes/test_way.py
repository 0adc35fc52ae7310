"""How far a run goes towards another: against torch's own divergences, and at known places."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from experiments.codes.text_runs import exceeds_noise
from experiments.codes.way import Way, as_written, mean_prediction, share, way_between
from experiments.results.interchange import NEITHER, STAYS, TOWARDS

SHARES = (TOWARDS, STAYS, NEITHER)


def logits(seed: int, sequences: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((sequences, 5, 11), generator=generator, dtype=torch.float64)


def runs(*seeds: int) -> list[Tensor]:
    return [logits(seed).log_softmax(dim=-1) for seed in seeds]


def divergence(one: Tensor, other: Tensor) -> np.ndarray:
    found = kl_divergence(Categorical(logits=one), Categorical(logits=other))
    return np.asarray(found.mean(dim=-1))


def shares(way: Way, reached: Tensor) -> list[float]:
    means = way.measured(reached).mean(axis=0)[None]
    return [float(share(name)(means)[0]) for name in SHARES]


def test_what_lies_along_the_way_is_the_law_of_cosines_of_kl() -> None:
    start, end, reached = runs(0, 1, 2)
    way = way_between(start, end)
    along, changed, length = way.measured(reached).T
    cosines = divergence(end, start) + divergence(start, reached) - divergence(end, reached)
    np.testing.assert_allclose(along, cosines)
    np.testing.assert_allclose(changed, divergence(reached, start) + divergence(start, reached))
    np.testing.assert_allclose(length, divergence(end, start) + divergence(start, end))
    assert (way.noise == 0).all()


def test_the_end_is_all_of_the_way_the_start_none_and_a_broken_run_neither() -> None:
    start, end, elsewhere = runs(0, 1, 2)
    way = way_between(start, end)
    np.testing.assert_allclose(shares(way, end), [1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(shares(way, start), [0, 1, 0], atol=1e-12)
    # In the logits a small step is a straight one: a tenth of it is a tenth of the way.
    near = (start + 0.01 * (end - start)).log_softmax(dim=-1)
    short = way_between(start, near)
    tenth = (start + 0.001 * (end - start)).log_softmax(dim=-1)
    np.testing.assert_allclose(shares(short, tenth), [0.1, 0.9, 0], atol=1e-3)
    # Something else, many times as far from the start as the end is.
    towards, stays, neither = shares(short, elsewhere)
    assert abs(towards) < 0.05
    assert stays == pytest.approx(0)
    assert neither > 0.95
    np.testing.assert_allclose(shares(way_between(start, start), start), [0, 1, 0])
    for reached in (end, elsewhere, tenth):
        assert sum(shares(way, reached)) == pytest.approx(1)


@pytest.fixture(scope="module")
def places() -> tuple[Tensor, Tensor, list[Tensor]]:
    """Where a way starts, where it ends, and two halves that stand there by noise of their own."""
    generator = torch.Generator().manual_seed(3)
    start, place = logits(0, 400), logits(0, 400) + 0.2 * logits(1, 400)
    noisy = [
        (place + 0.5 * torch.randn(place.shape, generator=generator, dtype=torch.float64))
        for _ in range(2)
    ]
    halves = [half.log_softmax(dim=-1) for half in noisy]
    return start.log_softmax(dim=-1), place.log_softmax(dim=-1), halves


def test_two_halves_have_no_noise_in_the_length_of_the_way(
    places: tuple[Tensor, Tensor, list[Tensor]],
) -> None:
    """Both halves stand at the same place, each beside it by noise of its own: products with the
    noise of both average out, while that of either with itself makes the way too long."""
    begin, end, noisy = places
    true = way_between(begin, end).length.mean()
    halves = way_between(begin, *noisy)
    alone = way_between(begin, noisy[0]).length.mean()
    assert halves.length.mean() == pytest.approx(true, rel=0.25)
    assert alone > 3 * true
    # The mean of two has half the noise of one, which is what one is too long by.
    assert halves.noise.mean() == pytest.approx((alone - true) / 2, rel=0.25)


def test_a_way_exceeds_its_noise_where_it_is_surely_longer(
    places: tuple[Tensor, Tensor, list[Tensor]],
) -> None:
    begin, _, noisy = places
    way = way_between(begin, *noisy)
    # Surely longer than nothing, and still no longer than its noise.
    assert way.length.mean() > 5 * way.length.std() / len(way.length) ** 0.5
    assert way.length.mean() < way.noise.mean()
    assert not exceeds_noise(way, seed=0)
    assert exceeds_noise(replace(way, noise=way.noise / 10), seed=0)
    # Of a way just as long as its noise nothing is sure.
    assert not exceeds_noise(replace(way, noise=way.length), seed=0)


def test_what_is_written_is_held_against_lengths_and_angles() -> None:
    start, end, reached = (logits(seed) for seed in range(3))
    along, changed, length = way_between(start, end, dual=as_written).measured(reached).T
    step, way = reached - start, end - start
    np.testing.assert_allclose(along, (step * way).sum(dim=-1).mean(dim=-1))
    np.testing.assert_allclose(changed, step.norm(dim=-1).square().mean(dim=-1))
    np.testing.assert_allclose(length, way.norm(dim=-1).square().mean(dim=-1))


def test_the_mean_of_predictions_is_that_of_their_logits() -> None:
    one, other = logits(0), logits(1)
    wanted = ((one + other) / 2).softmax(dim=-1)
    found = mean_prediction([one.log_softmax(dim=-1), other.log_softmax(dim=-1)])
    torch.testing.assert_close(found.exp(), wanted)
