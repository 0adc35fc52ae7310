"""Chance levels against brute force, the streamed bootstrap against scipy's."""

import pickle

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.bootstrap import SequenceBootstrap
from probes.controls import chance_error, half_of, shuffled_positions, skip_shuffled
from probes.errors import ProbeError
from probes.regression import LinearProbe


@pytest.fixture
def skewed() -> np.ndarray:
    """200 sequences with a skewed and a symmetric number each."""
    rng = np.random.default_rng(0)
    return np.stack([rng.exponential(size=200), rng.normal(3, 1, size=200)], axis=1)


def assert_near_scipy(ours, theirs) -> None:
    # Both are quantiles over 4000 random resamples: they agree to a few percent of their width.
    width = theirs.high - theirs.low
    np.testing.assert_allclose(ours[0], theirs.low, atol=0.06 * np.max(width))
    np.testing.assert_allclose(ours[1], theirs.high, atol=0.06 * np.max(width))


def test_interval_of_means_is_scipys_percentile_interval(skewed):
    bootstrap = SequenceBootstrap(4000)
    for batch in np.array_split(skewed, 7):
        bootstrap.update(batch)
    theirs = scipy.stats.bootstrap(
        (skewed,), np.mean, n_resamples=4000, method="percentile", rng=np.random.default_rng(1)
    )
    assert_near_scipy(bootstrap.interval(), theirs.confidence_interval)


def test_interval_of_a_ratio_of_means_is_scipys_percentile_interval(skewed):
    bootstrap = SequenceBootstrap(4000).update(skewed)
    theirs = scipy.stats.bootstrap(
        tuple(skewed.T),
        lambda sse, sst, axis: 1 - sse.mean(axis) / sst.mean(axis),
        paired=True,
        n_resamples=4000,
        method="percentile",
        rng=np.random.default_rng(1),
    )
    ours = bootstrap.interval_of(lambda means: 1 - means[..., 0] / means[..., 1])
    assert_near_scipy(ours, theirs.confidence_interval)


def test_95_percent_intervals_cover_the_truth_about_95_times_in_100():
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(400, 50, 1))
    low, high = (
        np.array(
            [SequenceBootstrap(300, seed).update(x).interval() for seed, x in enumerate(samples)]
        )
        .squeeze(-1)
        .T
    )
    covered = np.mean((low <= 0) & (high >= 0))
    assert 0.917 < covered < 0.983  # three binomial errors of 400 draws


@pytest.mark.parametrize("n", [2, 3, 5, 20])
def test_intervals_of_few_sequences_cover_the_truth_too(n):
    rng = np.random.default_rng(n)
    covered = 0
    for draw in range(1000):
        rows = rng.normal(size=(n, 1))
        low, high = SequenceBootstrap(500, seed=draw).update(rows).interval()
        covered += bool(low[0] <= 0 <= high[0])
    # 95 in 100, less or more than three standard errors of a thousand draws and a little skew.
    assert 920 <= covered <= 975


def test_an_interval_holds_its_own_estimate_where_resamples_are_all_biased():
    # The R2 of a noisy mean curve: every resample has the noise twice.
    rng = np.random.default_rng(0)
    truth = np.linspace(-1, 1, 200)
    curves = truth + rng.normal(0, np.sqrt(40 / 3), size=(40, 200))

    def r2(means):
        return 1 - ((means - truth) ** 2).sum(-1) / (
            (means - means.mean(-1, keepdims=True)) ** 2
        ).sum(-1)

    estimate = r2(curves.mean(axis=0))
    low, high = SequenceBootstrap(500).update(curves).interval_of(r2)
    resampled = [r2(rng.choice(curves, 40).mean(axis=0)) for _ in range(200)]
    assert max(resampled) < estimate, "the case must be one where plain quantiles fail"
    assert low < estimate < high


@settings(max_examples=25)
@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=6), seed=st.integers(0, 2**32 - 1))
def test_shards_give_the_exact_mean_of_the_whole(sizes, seed):
    values = np.random.default_rng(seed).normal(5, 1, size=(sum(sizes) + 2, 3))
    whole = SequenceBootstrap(50, seed=999).update(values[:2])
    shards = np.split(values[2:], np.cumsum(sizes)[:-1])
    for shard_seed, shard in enumerate(shards):
        whole.merge(SequenceBootstrap(50, seed=shard_seed).update(shard))
    assert whole.n == len(values)
    # Sums in another order: equal to rounding.
    np.testing.assert_allclose(whole.mean(), values.mean(axis=0), rtol=1e-13)


def test_merged_shards_have_the_interval_of_the_whole(skewed):
    merged = SequenceBootstrap(4000, seed=1).update(skewed[:120])
    merged.merge(SequenceBootstrap(4000, seed=2).update(skewed[120:]))
    low, high = SequenceBootstrap(4000, seed=3).update(skewed).interval()
    np.testing.assert_allclose(merged.interval()[0], low, atol=0.06 * max(high - low))
    np.testing.assert_allclose(merged.interval()[1], high, atol=0.06 * max(high - low))


def test_same_seed_same_bits_other_seed_other_resamples(skewed):
    first, again, other = (SequenceBootstrap(100, s).update(skewed).interval() for s in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert (np.array(first) != np.array(other)).all()


def test_memory_does_not_grow_with_the_number_of_sequences(skewed):
    bootstrap = SequenceBootstrap(100).update(skewed)
    size = len(pickle.dumps(bootstrap))
    for _ in range(20):
        bootstrap.update(skewed)
    # A larger count may take a few more digits.
    assert len(pickle.dumps(bootstrap)) <= size + 16


def test_numbers_without_a_second_axis_are_refused_at_once(skewed):
    for wrong in (skewed[:, 0], torch.from_numpy(skewed[:, 0]), 3.0):
        with pytest.raises(ProbeError, match=r"have shape .*; expected \(batch, k\), with k"):
            SequenceBootstrap().update(wrong)
    half = torch.from_numpy(skewed).bfloat16()
    halved = SequenceBootstrap().update(half).mean()
    np.testing.assert_array_equal(halved, SequenceBootstrap().update(half.double()).mean())


def test_tensors_and_arrays_are_the_same_to_it(skewed):
    as_tensor = SequenceBootstrap(100).update(torch.from_numpy(skewed))
    np.testing.assert_array_equal(
        as_tensor.interval(), SequenceBootstrap(100).update(skewed).interval()
    )


def test_sequences_that_outweigh_others_are_fewer_than_were_seen(skewed):
    alike, one, none = np.full(10, 3.0), np.eye(10)[0], np.zeros(10)
    bootstrap = SequenceBootstrap(10).update(np.stack([alike, one, none], axis=1))
    assert [bootstrap.n_effective(column) for column in range(3)] == [10, 2, 10]
    sizes = np.abs(skewed)
    kish = sizes.sum(axis=0) ** 2 / (sizes**2).sum(axis=0)
    for column in range(2):
        found = SequenceBootstrap(10).update(sizes).n_effective(column)
        assert found == pytest.approx(kish[column])


def test_half_of_reads_the_measurement_or_its_control():
    means = np.arange(12.0).reshape(2, 6)
    np.testing.assert_array_equal(half_of(0, lambda m: m)(means), means[:, :3])
    np.testing.assert_array_equal(half_of(1, lambda m: m)(means), means[:, 3:])


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda: SequenceBootstrap(1), "n_resamples is 1: give a whole number, at least 2"),
        (lambda: SequenceBootstrap(9, -1), "seed is -1: give a whole number, at least 0"),
        (lambda: LinearProbe(seed=2**64), "seed is 18446744073709551616: give at most"),
        (lambda: SequenceBootstrap(9).update(np.full((3, 1), np.nan)), "NaN or infinite"),
        (lambda: SequenceBootstrap(9).update(np.zeros((1, 2))).mean(), "at least 2 .* got 1"),
        (lambda: SequenceBootstrap(9).interval(), "at least 2 .* got 0"),
        (
            lambda: SequenceBootstrap(9).update(np.zeros((2, 2))).update(np.zeros((2, 3))),
            "2 numbers as before; got 3",
        ),
        (
            lambda: (
                SequenceBootstrap(9, 4)
                .update(np.zeros((2, 2)))
                .merge(SequenceBootstrap(9, 4).update(np.zeros((2, 2))))
            ),
            "share the seed 4.*seed of its own",
        ),
        (
            lambda: SequenceBootstrap(9).merge(SequenceBootstrap(8, 1).update(np.zeros((2, 2)))),
            "cannot merge 8 resamples into 9",
        ),
    ],
)
def test_misuse_is_said_in_a_sentence(misuse, message):
    with pytest.raises(ProbeError, match=message):
        misuse()


def test_chance_error_of_contiguous_positions_is_a_quarter_of_the_length():
    assert chance_error(torch.arange(128)) == 32
    assert chance_error(torch.arange(1, 129)) == 32


@given(st.sets(st.integers(0, 200), min_size=2, max_size=30))
def test_chance_error_is_that_of_the_best_constant(positions):
    labels = np.array(sorted(positions))
    best = min(np.abs(labels - guess).mean() for guess in range(201))
    assert chance_error(torch.from_numpy(labels)) == pytest.approx(best)


def test_shuffled_positions_permute_each_sequence_on_its_own():
    positions = torch.tensor([1, 2, 3, 5, 8, 13])
    labels = shuffled_positions(3000, positions, torch.Generator().manual_seed(0))
    assert (labels.sort(dim=-1).values == positions).all()
    # Each label in each place one time in six: the standard error of 3000 draws is 0.007.
    frequency = (labels[:, :, None] == positions).double().mean(dim=0)
    assert (frequency - 1 / 6).abs().max() < 0.03
    again = shuffled_positions(3000, positions, torch.Generator().manual_seed(0))
    assert torch.equal(labels, again)


@pytest.mark.parametrize("n", [0, 1, 7, 1024, 2500])
def test_skipped_labels_are_those_of_the_sequences_before(n):
    positions = torch.arange(1, 8)
    permuted, skipped = (torch.Generator().manual_seed(5) for _ in range(2))
    whole = shuffled_positions(n + 4, positions, permuted)
    skip_shuffled(n, positions, skipped)
    assert torch.equal(shuffled_positions(4, positions, skipped), whole[n:])
