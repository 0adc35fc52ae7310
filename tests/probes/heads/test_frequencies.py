"""Frequency usage against plain loops, and what rotation must not change."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nope_interp.models.encodings import rotate
from probes.errors import ProbeError
from probes.heads.frequencies import FrequencyUsage, frequency_shares, n_high


@settings(max_examples=20)
@given(
    batch=st.integers(2, 3),
    pos=st.integers(1, 4),
    groups=st.integers(1, 2),
    shared=st.integers(1, 3),
    half=st.integers(1, 4),
    rest=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_norms_are_those_of_the_pairs(
    batch: int, pos: int, groups: int, shared: int, half: int, rest: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    width = 2 * half + rest
    queries = torch.randn(batch, pos, groups * shared, width, generator=generator)
    keys = torch.randn(batch, pos, groups, width, generator=generator)
    usage = FrequencyUsage(2 * half)
    usage.update(queries[:1], keys[:1])
    usage.update(queries[1:], keys[1:])
    query, key = np.zeros((groups * shared, half)), np.zeros((groups * shared, half))
    for head in range(groups * shared):
        for k in range(half):
            pair = [k, k + half]
            query[head, k] = np.hypot(*queries[:, :, head, pair].numpy().T).mean()
            key[head, k] = np.hypot(*keys[:, :, head // shared, pair].numpy().T).mean()
    np.testing.assert_allclose(usage.query_norm(), query, rtol=1e-5)
    np.testing.assert_allclose(usage.key_norm(), key, rtol=1e-5)


def test_rotation_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(2, 3, 10, 2, 8, generator=generator)
    angles = torch.arange(10)[:, None, None] * torch.tensor([1.0, 0.3, 0.1, 0.01])
    usages = []
    for turned in (False, True):
        usage = FrequencyUsage(8)
        pair = (queries, keys)
        usage.update(*(rotate(x, angles.cos(), angles.sin()) if turned else x for x in pair))
        usages.append(usage)
    np.testing.assert_allclose(usages[0].query_norm(), usages[1].query_norm(), rtol=1e-5)
    np.testing.assert_allclose(usages[0].key_norm(), usages[1].key_norm(), rtol=1e-5)


def test_a_head_that_lives_off_high_frequencies_is_told_from_one_that_uses_all() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(2, 40, 6, 2, 16, generator=generator)
    queries[:, :, 0, [0, 1, 8, 9]] *= 50  # frequencies 0 and 1 of 8 in head 0
    usage = FrequencyUsage(16)
    usage.update(queries, keys)
    high, even = usage.high_frequency_share()
    assert high.chance == even.chance == 0.25
    assert high.ci_low > 0.9
    assert even.ci_low < 0.25 < even.ci_high
    assert high.n == 40


def test_shares_of_a_sequence_are_those_of_a_pass_over_it_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(3, 5, 4, 10, generator=generator)
    keys = torch.randn(3, 5, 2, 10, generator=generator)
    shares = frequency_shares(queries, keys, 8).numpy()
    np.testing.assert_allclose(shares.sum(-1), 1)
    for i in range(3):
        usage = FrequencyUsage(8)
        usage.update(queries[i : i + 1], keys[i : i + 1])
        alone = usage.query_norm() * usage.key_norm()
        np.testing.assert_allclose(shares[i], alone / alone.sum(-1, keepdims=True))


def test_a_head_that_writes_no_queries_uses_all_frequencies_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(2, 8, 5, 2, 16, generator=generator)
    expected = frequency_shares(queries, keys, 16)[:, 1]
    queries[:, :, 0] = 0
    shares = frequency_shares(queries, keys, 16)
    assert (shares[:, 0] == 1 / 8).all()
    assert torch.equal(shares[:, 1], expected)
    usage = FrequencyUsage(16)
    usage.update(queries, keys)
    silent, _ = usage.high_frequency_share()
    assert silent.value == silent.chance == 0.25


def test_merged_parts_are_the_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(2, 9, 5, 2, 8, generator=generator)
    whole, merged = FrequencyUsage(8), FrequencyUsage(8)
    whole.update(queries, keys)
    for seed, part in ((1, slice(0, 4)), (2, slice(4, 9))):
        share = FrequencyUsage(8, seed=seed)
        share.update(queries[part], keys[part])
        merged.merge(share)
    np.testing.assert_allclose(merged.query_norm(), whole.query_norm())
    np.testing.assert_allclose(merged.key_norm(), whole.key_norm())
    for ours, truth in zip(
        merged.high_frequency_share(), whole.high_frequency_share(), strict=True
    ):
        assert ours.value == pytest.approx(truth.value)
        assert ours.n == truth.n == 9
    with pytest.raises(ProbeError, match="cannot merge 6 rotated dimensions into 8"):
        merged.merge(FrequencyUsage(6))


def test_a_quarter_counts_as_high() -> None:
    assert [n_high(n) for n in (1, 4, 16, 128)] == [1, 1, 4, 32]


def test_what_does_not_fit_is_one_sentence() -> None:
    with pytest.raises(ProbeError, match="3 rotated dimensions do not make pairs"):
        FrequencyUsage(3)
    usage = FrequencyUsage(8)
    with pytest.raises(ProbeError, match=r"call update\(\) first"):
        usage.query_norm()
    x = torch.zeros(2, 3, 2, 8)
    with pytest.raises(ProbeError, match="do not fit together"):
        usage.update(x[..., :6], x[..., :6])
    with pytest.raises(ProbeError, match="do not fit together"):
        usage.update(x, torch.zeros(2, 3, 3, 8))
    with pytest.raises(ProbeError, match="NaN or infinite"):
        usage.update(x / 0, x)
