"""Which smooth trend positions follow, seen beyond the range that trends were fitted on."""

import numpy as np
import pytest
import scipy.stats
import torch

from probes.codes.statistics import CodeStatistics
from probes.codes.trends import COUNTING, RIVALS, TRENDS, Extrapolation, carries, sites_to_move
from tests.probes.codes.test_codes import fitted

POSITIONS = torch.arange(3, 18)
M = POSITIONS.double() + 1


def following(trend: str, seed: int, n: int = 300) -> torch.Tensor:
    """Activations whose mean follows one trend along one direction, beside content."""
    generator = torch.Generator().manual_seed(seed)
    values = TRENDS[trend](M, int(M[-1]))
    values = (values - values.mean()) / values.std()
    direction = torch.randn(16, generator=torch.Generator().manual_seed(9)).double()
    content = torch.randn(n, len(M), 16, generator=generator)
    return content + (2 * values[:, None] * direction / direction.norm()).float()


@pytest.mark.parametrize("trend", TRENDS)
def test_only_who_counts_is_told_to_count(trend: str) -> None:
    statistics = fitted(following(trend, seed=0), POSITIONS)
    gains = Extrapolation(statistics).gains(following(trend, seed=1))
    assert list(gains) == list(RIVALS)
    surely = {
        rival: float(of.mean() - 4 * of.std() / len(of) ** 0.5) > 0 for rival, of in gains.items()
    }
    assert all(surely.values()) == (trend == COUNTING)
    if trend != COUNTING:
        assert gains[trend].mean() < 0


def test_gains_are_differences_of_squared_errors_on_held_out_positions() -> None:
    x, held_out = following("log m", seed=2), following("log m", seed=3, n=40)
    found = Extrapolation(fitted(x, POSITIONS))
    first, later = slice(0, 9), slice(9, 15)
    assert found.predicted.tolist() == list(range(9, 15))
    m, means = M.numpy(), x.double().mean(dim=0).numpy()
    formula = {"1/m": 1 / m, "t": m, "log m": np.log(m), "slow cosine": np.cos(np.pi * m / m[-1])}
    told = held_out.numpy()[:, later] - held_out.numpy()[:, first].mean(axis=1, keepdims=True)
    errors = {}
    for name, values in {**formula, "constant": None}.items():
        columns = [np.ones_like(m)] if values is None else [np.ones_like(m), values]
        design = np.stack(columns, axis=1)
        curve = design @ np.linalg.lstsq(design[first], means[first], rcond=None)[0]
        left = told - curve[later] + means[first].mean(axis=0)
        errors[name] = np.square(left).sum(-1).mean(-1)
    apart = np.square(means[later] - means[first].mean(axis=0)).sum(-1).mean()
    contrasts = x.double()[:, later] - x.double()[:, first].mean(dim=1, keepdim=True)
    by_chance = contrasts.numpy().var(axis=0, ddof=1).sum(-1).mean() / len(x)
    assert found.scale == pytest.approx(apart - by_chance)
    for rival, gain in found.gains(held_out).items():
        wanted = (errors[rival] - errors["1/m"]) / (apart - by_chance)
        np.testing.assert_allclose(gain.numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_what_all_positions_of_a_sequence_share_does_not_hide_who_counts() -> None:
    """It moves later means and the constant alike. As noise it took all of the scale, and gains."""
    x, held_out = following(COUNTING, seed=10), following(COUNTING, seed=11)
    shared = 10 * torch.randn(2, 300, 1, 16, generator=torch.Generator().manual_seed(12))
    alone = Extrapolation(fitted(x, POSITIONS))
    beside = Extrapolation(fitted(x + shared[0], POSITIONS))
    assert beside.scale == pytest.approx(alone.scale, rel=1e-4)
    for rival, gain in beside.gains(held_out + shared[1]).items():
        wanted = alone.gains(held_out)[rival]
        torch.testing.assert_close(gain, wanted, rtol=1e-3, atol=1e-4)
        assert gain.mean() > 4 * gain.std() / len(gain) ** 0.5


def test_few_positions_say_nothing() -> None:
    x = following(COUNTING, seed=4)
    for n, said in ((4, False), (5, True)):
        statistics = CodeStatistics()
        statistics.update(x[:, :n], POSITIONS[:n])
        assert bool(Extrapolation(statistics).gains(x[:, :n])) == said


def lengths_that_vary(n: int, pos: int, seed: int, by: str) -> torch.Tensor:
    """Stationary content: each sequence, or each activation, has a length of its own."""
    generator = torch.Generator().manual_seed(seed)
    own = torch.randn(n, pos if by == "activation" else 1, 1, generator=generator)
    return torch.randn(n, pos, 8, generator=generator) * (own / 2).exp()


@pytest.mark.parametrize("pos", [2, 3, 8])
def test_a_variance_is_carried_beyond_the_quantile_of_a_chi_square_law_of_the_same_moments(
    pos: int,
) -> None:
    """By a formula, of the same content with the last position louder by degrees."""
    content, positions = lengths_that_vary(50, pos, 0, "activation"), POSITIONS[:pos]
    said = []
    for louder in torch.linspace(0, 1.5, 40):
        x = content.clone()
        x[:, -1] *= louder.exp()
        logs = np.log(x.double().numpy().var(axis=-1))
        squares = np.square(logs.mean(axis=0) - logs.mean()).sum()
        # A weighted sum of chi-squares has these weights: match its mean and variance.
        apart = logs - logs.mean(axis=1, keepdims=True)
        weights = np.linalg.eigvalsh(np.cov(apart, rowvar=False)) / len(x)
        factor = np.square(weights).sum() / weights.sum()
        law = scipy.stats.gamma(weights.sum() / factor / 2, scale=2 * factor)
        wanted = law.sf(squares) < 0.01
        assert carries(fitted(x, positions), "variance") == wanted
        said.append(wanted)
    assert set(said) == {True, False}


def test_where_nothing_tells_position_a_variance_is_found_once_in_a_hundred_times() -> None:
    """Of three positions: with a degree of freedom more it were 2.3%, with one less 0.1%."""
    for by in ("activation", "sequence"):
        assert found_by_chance(by) == pytest.approx(0.01, abs=0.0055)  # 3 standard errors


def test_how_loud_a_sequence_is_does_not_hide_which_of_its_positions_are() -> None:
    generator = torch.Generator().manual_seed(2)
    content = torch.randn(128, 12, 64, generator=generator)
    sequences = torch.randn(128, 1, 1, generator=generator)
    positions = torch.linspace(-0.1, 0.1, 12)[:, None]
    for level in (0.0, 0.6):
        louder = content * (level * sequences).exp()
        assert not carries(fitted_at_once(louder), "variance")
        assert carries(fitted_at_once(louder * positions.exp()), "variance")


def found_by_chance(by: str, n: int = 3000) -> float:
    content = lengths_that_vary(n * 60, 3, 1, by).view(n, 60, 3, 8)
    return float(np.mean([carries(fitted_at_once(x), "variance") for x in content]))


def fitted_at_once(x: torch.Tensor) -> CodeStatistics:
    statistics = CodeStatistics()
    statistics.update(x, POSITIONS[: x.shape[1]])
    return statistics


def test_a_code_is_moved_where_it_is_found_and_everywhere_where_it_is_not() -> None:
    content = torch.randn(40, len(M), 16, generator=torch.Generator().manual_seed(5))
    plain, strong = fitted(content, POSITIONS), fitted(following(COUNTING, seed=6), POSITIONS)
    assert sites_to_move({"plain": plain, "strong": strong}, "smooth trend") == ["strong"]
    assert sites_to_move({"one": plain, "two": plain}, "smooth trend") == ["one", "two"]
    # Three positions: what t and 1/m leave of them is nothing.
    few = fitted(content[:, :3], POSITIONS[:3])
    assert sites_to_move({"one": few}, "irregular part") == []
    assert sites_to_move({"one": few}, "variance") == ["one"]
