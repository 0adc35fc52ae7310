"""Ranks among control draws: how many are taken, and what p-value that gives."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.codes.ranks import Rank, rank_rows
from experiments.results.position_use import FALSE_DISCOVERIES
from experiments.results.worth import WORTH_NAMING
from probes.bootstrap import benjamini_hochberg

TURN = 4


def rank_of(level: float, *, worth: bool = True, seed: int = 0) -> Rank:
    """An effect among draws from a standard normal distribution."""
    net = {"ci_low": WORTH_NAMING if worth else 0.0, "metric": "net"}
    draws = np.random.default_rng(seed)
    return Rank(net, lambda: level, lambda _: draws.standard_normal(TURN))


def settle(ranks: list[Rank], n_effects: int) -> list[dict[str, Any]]:
    return rank_rows([(rank, "moved") for rank in ranks], n_effects)


def test_without_a_net_effect_nothing_is_drawn() -> None:
    rank = rank_of(9.0, worth=False)
    settle([rank], 20)
    row = rank.row()
    assert (row["value"], row["n"]) == (1, 0)


def test_who_is_beaten_five_times_is_drawn_no_more() -> None:
    rank = rank_of(-9.0)
    settle([rank], 2000)
    assert rank.row()["n"] == 2 * TURN
    assert rank.row()["value"] == 1


@given(passing=st.integers(1, 6), failing=st.integers(0, 6), more=st.integers(0, 20))
def test_effects_that_no_draw_reaches_pass_together_and_by_no_more_draws_than_that_takes(
    passing: int, failing: int, more: int
) -> None:
    far = [rank_of(99.0, seed=seed) for seed in range(passing)]
    ranks = [*far, *(rank_of(-99.0, seed=seed) for seed in range(failing))]
    n_effects = len(ranks) + more
    settle(ranks, n_effects)
    p = np.array([rank.row()["value"] for rank in ranks] + [1.0] * more)
    q = benjamini_hochberg(p)
    assert (q[:passing] <= FALSE_DISCOVERIES).all()
    assert (q[passing:] > FALSE_DISCOVERIES).all()
    fewer = p.copy()
    fewer[:passing] = 1 / (far[0].row()["n"] + 1 - TURN - 1)
    assert not (benjamini_hochberg(fewer)[:passing] <= FALSE_DISCOVERIES * 0.999).all()


def test_one_that_a_draw_reaches_does_not_keep_the_others_from_passing() -> None:
    """Of 20 effects three are far off, and one is so in all but the first of its draws."""
    far = [rank_of(99.0, seed=seed) for seed in range(3)]
    once = iter([np.array([99.0]), *(np.full(TURN, -99.0) for _ in range(200))])
    border = Rank({"ci_low": WORTH_NAMING, "metric": "net"}, lambda: 9.0, lambda _: next(once))
    ranks = [*far, border]
    settle(ranks, 20)
    p = np.array([rank.row()["value"] for rank in ranks] + [1.0] * 16)
    assert (benjamini_hochberg(p)[:3] <= FALSE_DISCOVERIES).all()
    # By the draws that four would need together, three fail.
    assert far[0].row()["n"] > 100 + TURN


def test_a_rank_among_draws_of_its_own_kind_is_uniform() -> None:
    """Of 400 effects that are draws themselves, one in twenty has a p of 5% at most."""
    found = []
    for seed in range(400):
        level = float(np.random.default_rng(seed + 10_000).standard_normal())
        found.append(rank_of(level, seed=seed).among(100).row()["value"])
    # A binomial of 400 at 5% lies in 8 to 34 with 99.9%.
    assert 8 <= sum(p <= 0.05 for p in found) <= 34


def test_an_effect_that_stands_in_two_rows_counts_twice() -> None:
    alone, twice = rank_of(99.0), rank_of(99.0)
    settle([alone], 20)
    settle([twice, twice], 20)
    assert alone.row()["n"] == pytest.approx(400, abs=TURN)
    assert twice.row()["n"] == pytest.approx(200, abs=TURN)
