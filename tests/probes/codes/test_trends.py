"""Which smooth trend positions follow, seen beyond the range that trends were fitted on."""

import numpy as np
import pytest
import torch

from probes.codes.statistics import CodeStatistics
from probes.codes.trends import COUNTING, RIVALS, TRENDS, Extrapolation, sites_to_move
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
    errors = {}
    for name, values in {**formula, "constant": None}.items():
        columns = [np.ones_like(m)] if values is None else [np.ones_like(m), values]
        design = np.stack(columns, axis=1)
        curve = design @ np.linalg.lstsq(design[first], means[first], rcond=None)[0]
        errors[name] = np.square(held_out.numpy()[:, later] - curve[later]).sum(-1).mean(-1)
    apart = np.square(means[later] - means[first].mean(axis=0)).sum(-1).mean()
    by_chance = x.double().numpy().var(axis=0, ddof=1).sum(-1)[later].mean() / len(x)
    assert found.scale == pytest.approx(apart - by_chance)
    for rival, gain in found.gains(held_out).items():
        wanted = (errors[rival] - errors["1/m"]) / (apart - by_chance)
        np.testing.assert_allclose(gain.numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_few_positions_say_nothing() -> None:
    x = following(COUNTING, seed=4)
    for n, said in ((4, False), (5, True)):
        statistics = CodeStatistics()
        statistics.update(x[:, :n], POSITIONS[:n])
        assert bool(Extrapolation(statistics).gains(x[:, :n])) == said


def test_a_code_is_moved_where_it_is_found_and_everywhere_where_it_is_not() -> None:
    content = torch.randn(40, len(M), 16, generator=torch.Generator().manual_seed(5))
    plain, strong = fitted(content, POSITIONS), fitted(following(COUNTING, seed=6), POSITIONS)
    assert sites_to_move({"plain": plain, "strong": strong}, "smooth trend") == ["strong"]
    assert sites_to_move({"one": plain, "two": plain}, "smooth trend") == ["one", "two"]
    # Three positions: what t and 1/m leave of them is nothing.
    few = fitted(content[:, :3], POSITIONS[:3])
    assert sites_to_move({"one": few}, "irregular part") == []
    assert sites_to_move({"one": few}, "variance") == ["one"]
