"""Adjacency by brute force, theory of cumulative means, seriation against scipy's Kendall tau."""

from collections.abc import Iterable
from itertools import combinations, permutations

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import cosine_similarity as sklearn_cosines
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probes import similarity
from probes.adjacency import adjacency_a, adjacency_a_mirrored, adjacency_b, adjacency_c
from probes.errors import ProbeError
from probes.scores import SHUFFLED
from probes.similarity import (
    SimilarityProbe,
    chance_tau,
    cosine_profile,
    cosine_similarity,
    kendall_tau,
    seriate,
)


def beats(near: float, far: float) -> float:
    return float(near > far) + 0.5 * float(near == far)


def brute_force(C: np.ndarray, rows: Iterable[int] | None = None) -> tuple[float, float, float]:
    """A, B and C over all triples, as they are defined; or over those of some rows i."""
    n = len(C)
    every = range(n)
    some = every if rows is None else rows
    a = [beats(C[i, j], C[i, k]) for i in some for j in range(i) for k in range(j)]
    b = [beats(C[i, j], C[i, j - 1]) for i in some for j in range(1, i)]
    c = [
        beats(C[i, j], C[i, k])
        for i in some
        for j in every
        for k in every
        if i not in (j, k) and abs(i - j) < abs(i - k)
    ]
    return float(np.mean(a)), float(np.mean(b)), float(np.mean(c))


def adjacency(cosines: torch.Tensor) -> np.ndarray:
    return torch.stack(
        [score(cosines) for score in (adjacency_a, adjacency_b, adjacency_c)]
    ).numpy()


@settings(max_examples=40)
@given(n=st.integers(3, 9), levels=st.integers(1, 40), seed=st.integers(0, 2**16))
def test_adjacency_is_its_definition_ties_included(n, levels, seed):
    rng = np.random.default_rng(seed)
    matrices = rng.integers(levels, size=(3, n, n)) / 8
    expected = np.transpose([brute_force(matrix) for matrix in matrices])
    np.testing.assert_allclose(adjacency(torch.from_numpy(matrices)), expected)
    triples = list(combinations(range(n), 3))
    later = [[beats(C[i, j], C[i, k]) for i, j, k in triples] for C in matrices]
    found = adjacency_a_mirrored(torch.from_numpy(matrices))
    np.testing.assert_allclose(found, np.mean(later, axis=1))


def test_a_matrix_that_falls_from_its_diagonal_is_perfect():
    place = torch.arange(40.0)
    robinsonian = torch.exp(-(place - place[:, None]).abs() / 10)[None]
    np.testing.assert_array_equal(adjacency(robinsonian), 1)
    np.testing.assert_array_equal(adjacency(-robinsonian), 0)
    order = seriate(robinsonian, torch.Generator().manual_seed(0))
    assert kendall_tau(order, place.long()[None]) == 1
    # More pairs than half precision can count.
    many = torch.arange(400.0)
    np.testing.assert_array_equal(adjacency(-(many - many[:, None]).abs()[None].half()), 1)


def test_a_matrix_without_any_pattern_is_at_chance():
    # All ties: nothing may be read from the order in which the rows came.
    same = torch.eye(40).expand(200, 40, 40)
    np.testing.assert_array_equal(adjacency(same), 0.5)
    labels = torch.arange(40).expand(200, 40)
    tau = kendall_tau(seriate(same, torch.Generator().manual_seed(0)), labels)
    # Mean of 200, each with a spread of about 0.6 of the mean.
    assert tau.mean() == pytest.approx(chance_tau(40), rel=0.15)


def test_adjacency_of_long_sequences_is_that_of_its_definition_in_numpy():
    C = np.random.default_rng(0).normal(size=(60, 60))
    np.testing.assert_allclose(adjacency(torch.from_numpy(C)[None])[:, 0], brute_force(C))


def test_two_positions_are_too_few():
    with pytest.raises(ProbeError, match="at three positions; got 2 positions"):
        adjacency_a(torch.eye(2)[None])


def test_cosines_are_scikit_learns():
    x = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0))
    x[0, 2] = 0
    for rows, cosines in zip(x, cosine_similarity(x), strict=True):
        np.testing.assert_allclose(cosines, sklearn_cosines(rows.numpy()), atol=1e-6)
    assert cosine_similarity(x.bfloat16()).dtype == torch.float32


def test_cosines_of_causal_means_follow_theory():
    """First attention layer: cos(c_i, c_j) = sqrt(i/j), i <= j, for means of independent values."""
    values = torch.randn(40, 64, 2000, generator=torch.Generator().manual_seed(0))
    m = torch.arange(1.0, 65)
    means = values.cumsum(dim=1) / m[:, None]
    theory = (torch.minimum(m, m[:, None]) / torch.maximum(m, m[:, None])).sqrt()
    cosines = cosine_similarity(means).mean(dim=0)
    # A cosine of 2000 components has a spread of 1/sqrt(2000); of 40 means, 0.0035.
    np.testing.assert_allclose(cosines, theory, atol=0.015)
    # Not Robinsonian in theory's limit only because of noise: adjacency is near perfect.
    assert (adjacency(theory[None])[[0, 1]] == 1).all()


@given(seed=st.integers(0, 2**16), n=st.integers(2, 8))
@settings(max_examples=20)
def test_a_profile_does_not_know_where_its_row_stands(seed, n):
    generator = torch.Generator().manual_seed(seed)
    cosines = cosine_similarity(torch.randn(1, n, 4, generator=generator))
    order = torch.randperm(n, generator=generator)
    profile = cosine_profile(cosines, n_quantiles=n - 1)
    assert profile.shape == (1, n, n - 1)
    moved = cosine_profile(cosines[:, order][:, :, order], n_quantiles=n - 1)
    assert torch.equal(moved, profile[:, order])
    others = [sorted(np.delete(row, i)) for i, row in enumerate(cosines[0].numpy())]
    np.testing.assert_array_equal(profile[0], others)
    few = cosine_profile(cosines, n_quantiles=3)
    quantiles = np.quantile(others, [0, 0.5, 1], axis=1, method="nearest").T
    np.testing.assert_array_equal(few[0, :, [0, 2]], quantiles[:, [0, 2]])
    assert all(middle in row for middle, row in zip(few[0, :, 1].tolist(), others, strict=True))


@settings(max_examples=20)
@given(seed=st.integers(0, 2**16), n=st.integers(2, 20))
def test_kendall_tau_is_scipys(seed, n):
    rng = np.random.default_rng(seed)
    order, labels = rng.permutation(n), np.sort(rng.choice(100, n, replace=False))
    theirs = abs(scipy.stats.kendalltau(labels[order], np.arange(n)).statistic)
    ours = kendall_tau(torch.from_numpy(order)[None], torch.from_numpy(labels)[None])
    assert float(ours) == pytest.approx(theirs)


@pytest.mark.parametrize("n", range(2, 9))
def test_chance_tau_is_the_mean_over_all_orders(n):
    every = torch.tensor(list(permutations(range(n))))
    exact = float(kendall_tau(every, torch.arange(n).expand(len(every), n)).mean())
    assert chance_tau(n) == pytest.approx(exact)


def test_chance_tau_is_the_mean_over_random_orders():
    generator = torch.Generator().manual_seed(0)
    many = torch.rand(1000, 127, generator=generator).argsort(dim=-1)
    simulated = float(kendall_tau(many, torch.arange(127).expand(1000, 127)).mean())
    # The mean of 1000, each with a spread of 0.75 of the mean.
    assert chance_tau(127) == pytest.approx(simulated, rel=0.08)


def test_seriation_does_not_depend_on_the_order_of_the_rows():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 30, 50, generator=generator).cumsum(dim=1)
    cosines = cosine_similarity(x.double())
    mixed = torch.randperm(30, generator=generator)
    straight = seriate(cosines, torch.Generator().manual_seed(1))[0]
    again = mixed[seriate(cosines[:, mixed][:, :, mixed], torch.Generator().manual_seed(2))[0]]
    assert torch.equal(again, straight) or torch.equal(again, straight.flip(0))


POSITIONS = torch.arange(1, 25)


@pytest.fixture
def walks() -> torch.Tensor:
    """Causal means of independent values."""
    x = torch.randn(80, 24, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x.cumsum(dim=1) / (POSITIONS + 1)[:, None]


def test_held_out_numbers_are_computed_by_hand(walks, feed):
    fit, held_out = walks[:40], walks[40:]
    result = feed(SimilarityProbe(), fit, held_out, POSITIONS)["similarity"]

    def cosines(x):
        return np.stack([sklearn_cosines(rows) for rows in x.numpy()])

    def profiles(C):
        others = np.array([np.sort(np.delete(C[i], i)) for i in range(len(C))])
        return others[:, np.round(np.linspace(0, 22, 9)).astype(int)]

    C = cosines(held_out[:32])
    np.testing.assert_allclose(result.arrays["cosine"], C.mean(axis=0))
    t = POSITIONS.numpy()
    X = np.concatenate([profiles(matrix) for matrix in cosines(fit[:32])])
    ridge = make_pipeline(StandardScaler(), Ridge(1.0)).fit(X, np.tile(t, 32))
    error = ridge.predict(np.concatenate([profiles(matrix) for matrix in C])) - np.tile(t, 32)
    assert result.score("mae").value == pytest.approx(np.abs(error).mean())
    assert result.score("r2").value == pytest.approx(1 - (error**2).mean() / t.var())
    scores = np.mean([brute_force(matrix) for matrix in C], axis=0)
    for metric, value in zip("abc", scores, strict=True):
        assert result.score(f"adjacency_{metric}").value == pytest.approx(value)
    assert all(score.n == 32 for score in result.scores)


def test_shuffled_rows_and_columns_are_at_chance_where_the_true_ones_are_not(walks, feed):
    result = feed(SimilarityProbe(), walks[:40], walks[40:], POSITIONS)["similarity"]
    for metric in ("adjacency_a", "adjacency_b", "adjacency_c", "seriation_tau"):
        found, control = result.score(metric), result.score(metric, SHUFFLED)
        assert found.ci_low > found.chance + 0.1
        assert control.ci_low - 0.01 < control.chance < control.ci_high + 0.01


def test_only_the_first_sequences_are_kept(walks, feed):
    few = SimilarityProbe(n_sequences=10)
    result = feed(few, walks[:40], walks[40:], POSITIONS)["similarity"]
    same = feed(SimilarityProbe(), walks[:10], walks[40:50], POSITIONS)["similarity"]
    for ours, theirs in zip(result.scores, same.scores, strict=True):
        if not ours.control:
            assert ours.value == pytest.approx(theirs.value)
            assert ours.n == 10
    assert few.n_held_out == 40
    with pytest.raises(ProbeError, match="n_sequences is 1"):
        SimilarityProbe(n_sequences=1)


@settings(max_examples=15)
@given(n=st.integers(9, 40), cells=st.integers(1, 3000), seed=st.integers(0, 2**16))
def test_long_sequences_are_read_few_rows_at_a_time(feed, n, cells, seed):
    """The same numbers as of whole maps; seriation and the map itself are of fewer tokens."""
    walks = torch.randn(12, n, 6, generator=torch.Generator().manual_seed(seed)).cumsum(dim=1)
    parts = walks[:6], walks[6:], torch.arange(n)
    whole = feed(SimilarityProbe(), *parts)["similarity"]
    seen = []

    def spied(x, *rows):
        seen.append(cosine_similarity(x, *rows))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(similarity, "_MAPPED", 8)
        patch.setattr(similarity, "_CELLS", cells)
        patch.setattr(similarity, "cosine_similarity", spied)
        few = feed(SimilarityProbe(), *parts)["similarity"]
    assert max(block.numel() for block in seen) <= max(cells, 6 * max(n, 64))
    for metric in ("mae", "r2", "adjacency_a", "adjacency_b", "adjacency_c"):
        for control in ("", SHUFFLED):
            found, expected = (one.score(metric, control) for one in (few, whole))
            assert vars(found) == pytest.approx(vars(expected), abs=1e-4), metric
    some = few.arrays["positions"]
    assert len(some) == 8
    assert {0, n - 1} < {*some.tolist()}
    expected = whole.arrays["cosine"][np.ix_(some, some)]
    np.testing.assert_allclose(few.arrays["cosine"], expected, atol=1e-6)


def test_adjacency_of_very_long_sequences_is_over_some_rows():
    x = torch.randn(2, 20, 6, generator=torch.Generator().manual_seed(0)).cumsum(dim=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(similarity, "_TRIPLES", 7 * 20**2)
        found = similarity._read_long(x, torch.arange(20).expand(2, 20))["adjacency"]
    rows = {0, 3, 6, 10, 13, 16, 19}  # seven, evenly spread
    expected = [brute_force(C, rows) for C in cosine_similarity(x).numpy()]
    np.testing.assert_allclose(found[:, 0], expected)
    np.testing.assert_array_equal(found[:, 1], found[:, 0])  # an order that changes nothing


def test_a_shared_vector_whose_weight_falls_is_read_without_any_nearness(feed):
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(32, generator=generator)
    noise = torch.randn(80, 24, 32, generator=generator)
    x = shared + noise * (2 / (POSITIONS + 1))[:, None].sqrt()
    result = feed(SimilarityProbe(), x[:40], x[40:], POSITIONS)["similarity"]
    assert result.score("mae").ci_high < 0.8 * result.score("mae").chance
    assert result.score("adjacency_a").ci_low > 0.7
    # Of two later activations the farther one is the more similar.
    mirrored = adjacency_a_mirrored(cosine_similarity(x[40:]))
    assert mirrored.max() < 0.5
