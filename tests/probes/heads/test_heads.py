"""The head detectors against plain double loops, explicit regressions and TransformerLens's own."""

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformer_lens.head_detector import detect_head

from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from probes.errors import ProbeError
from probes.head_rules import METRICS
from probes.heads._attention import FIRST_QUERY
from probes.heads._settling import Settling
from probes.heads.detectors import HeadProbe, offset_chance
from tests import typecheck
from tests.small_models import LetterTokenizer


def visible(length: int, window: int | None = None) -> Tensor:
    keys = torch.arange(length)
    back = keys[:, None] - keys
    return (back >= 0) & (back < (window or length))


def random_scores(seed: int, batch: int, heads: int, length: int) -> Tensor:
    return 2 * torch.randn(
        batch, heads, length, length, generator=torch.Generator().manual_seed(seed)
    )


def random_pattern(
    seed: int, batch: int, heads: int, length: int, window: int | None = None
) -> Tensor:
    scores = random_scores(seed, batch, heads, length)
    return scores.masked_fill(~visible(length, window), -torch.inf).softmax(dim=-1)


def column(probe: HeadProbe, metric: str, of: str = "value") -> np.ndarray:
    result = probe.result()
    return getattr(result, of)[:, result.column(metric)]


SIZES = {
    "seed": st.integers(0, 10**6),
    "batch": st.integers(2, 4),
    "heads": st.integers(1, 3),
    "length": st.integers(FIRST_QUERY + 1, 24),
    "window": st.one_of(st.none(), st.integers(2, 30)),
}


@settings(max_examples=30)
@given(**SIZES, local_window=st.integers(1, 12))
def test_text_metrics_are_those_of_a_plain_loop(seed, batch, heads, length, window, local_window):
    pattern = random_pattern(seed, batch, heads, length, window)
    probe = HeadProbe(n_resamples=20, local_window=local_window, window=window)
    probe.read_text(pattern[:1])
    probe.read_text(pattern[1:])
    result = probe.result()
    p = pattern.double().numpy()
    expected = {name: np.zeros((batch, heads)) for name in METRICS[:6]}
    chance = dict.fromkeys(METRICS[:4], 0.0)
    profile = np.zeros((heads, length))
    queries = range(FIRST_QUERY, length)
    for q in queries:
        keys = [k for k in range(q + 1) if q - k < (window or length)]
        m = len(keys)
        row = p[:, :, q, keys]
        near = [k for k in keys if q - k < local_window]
        expected["diagonal"] += p[:, :, q, q]
        expected["previous_token"] += p[:, :, q, q - 1]
        expected["first_token"] += p[:, :, q, 0]
        expected["local"] += p[:, :, q, near].sum(-1)
        expected["uniform"] += 1 - 0.5 * np.abs(row - 1 / m).sum(-1)
        expected["entropy"] -= (row * np.log(row)).sum(-1) / np.log(m)
        chance["diagonal"] += 1 / m
        chance["previous_token"] += 1 / m
        chance["first_token"] += (0 in keys) / m
        chance["local"] += len(near) / m
    for offset in range(length):
        reaching = [q for q in queries if q >= offset]
        profile[:, offset] = np.mean([p[:, :, q, q - offset].mean(0) for q in reaching], axis=0)
    for i, name in enumerate(METRICS[:6]):
        of_sequences = expected[name] / len(queries)
        np.testing.assert_allclose(result.value[:, i], of_sequences.mean(0), atol=2e-6)
        error = of_sequences.std(0, ddof=1) / np.sqrt(batch)
        np.testing.assert_allclose(result.stderr[:, i], error, atol=2e-6)
        if name in chance:
            np.testing.assert_allclose(result.chance[:, i], chance[name] / len(queries))
        else:
            assert np.isnan(result.chance[:, i]).all()
    np.testing.assert_allclose(result.offset_profile, profile, atol=2e-6)
    assert (result.n[:, :6] == batch).all()
    assert (result.n[:, 6:] == 0).all()
    assert np.isnan(result.value[:, 6:]).all()


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    period=st.integers(2, 9),
    start=st.integers(0, 3),
    window=st.one_of(st.none(), st.integers(2, 25)),
)
def test_repeats_are_those_of_a_plain_loop(seed, period, start, window):
    length = start + 2 * period
    pattern = random_pattern(seed, 3, 2, length, window)
    probe = HeadProbe(n_resamples=20, window=window)
    probe.read_repeated(pattern, period, start)
    for metric, offset in (("induction", period - 1), ("duplicate_token", period)):
        queries = range(start + period, length)
        expected = np.mean([pattern[:, :, q, q - offset].mean(0).numpy() for q in queries], axis=0)
        np.testing.assert_allclose(column(probe, metric), expected, atol=1e-6)
        m = [min(q + 1, window or length) for q in queries]
        chance = np.mean([(offset < seen) / seen for seen in m])
        np.testing.assert_allclose(column(probe, metric, "chance"), chance)


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    start=st.integers(0, 3),
    length=st.integers(FIRST_QUERY + 4, 24),
    window=st.one_of(st.none(), st.integers(2, 25)),
)
def test_copies_are_those_of_a_plain_loop(seed, start, length, window):
    pattern = random_pattern(seed, 3, 2, length, window)
    probe = HeadProbe(n_resamples=20, window=window)
    probe.read_copies(pattern, start)
    distances = []
    for q in range(start + FIRST_QUERY, length):
        keys = [k for k in range(start, q + 1) if q - k < (window or length)]
        row = pattern[:, :, q, keys].double().numpy()
        row = row / row.sum(-1, keepdims=True)
        distances.append(0.5 * np.abs(row - 1 / len(keys)).sum(-1).mean(0))
    np.testing.assert_allclose(column(probe, "repeated_token"), np.mean(distances, 0), atol=1e-6)
    assert (column(probe, "repeated_token", "chance") == 0).all()


@pytest.mark.parametrize("window", [None, 6])
def test_equal_weights_on_copies_score_exactly_zero(window):
    length, start = 40, 2
    # Equal scores on the copies, others on the two tokens before, as a head without positions has.
    scores = torch.zeros(3, 2, length, length)
    scores[..., :start] = random_scores(0, 3, 2, length)[..., :start]
    pattern = scores.masked_fill(~visible(length, window), -torch.inf).softmax(dim=-1)
    probe = HeadProbe(n_resamples=20, window=window)
    probe.read_copies(pattern, start)
    assert (column(probe, "repeated_token") == 0).all()
    scores[..., start:] += torch.arange(length - start) / 5
    pattern = scores.masked_fill(~visible(length, window), -torch.inf).softmax(dim=-1)
    told_apart = HeadProbe(n_resamples=20, window=window)
    told_apart.read_copies(pattern, start)
    assert (column(told_apart, "repeated_token") > 0.1).all()


def test_a_row_that_leaves_the_copies_nothing_prefers_none():
    pattern = torch.zeros(2, 1, 12, 12)
    pattern[..., 0] = 1
    probe = HeadProbe(n_resamples=20)
    probe.read_copies(pattern, 1)
    assert column(probe, "repeated_token") == 0


def test_offset_profile_sums_to_one_where_every_query_reaches():
    # Each query looks no further than 8 back, as far as the first query used can.
    pattern = random_pattern(0, 4, 3, 40, window=FIRST_QUERY)
    probe = HeadProbe(n_resamples=20, window=FIRST_QUERY)
    probe.read_text(pattern)
    profile = probe.result().offset_profile
    np.testing.assert_allclose(profile[:, :FIRST_QUERY].sum(axis=1), 1, atol=1e-6)
    assert (profile[:, FIRST_QUERY:] == 0).all()


@pytest.mark.parametrize("window", [None, 11, FIRST_QUERY, 40, 50])
def test_the_chance_of_a_profile_is_that_of_uniform_heads(window):
    seen = visible(40, window).float()
    probe = HeadProbe(n_resamples=20, window=window)
    probe.read_text((seen / seen.sum(dim=-1, keepdim=True)).expand(2, 3, -1, -1))
    chance = offset_chance(40, window)
    for profile in probe.result().offset_profile:
        np.testing.assert_allclose(chance, profile, rtol=1e-5)


def explicit_shares(
    scores: np.ndarray, tokens: np.ndarray, n_fit: int, window: int | None
) -> np.ndarray:
    """[held-out share] of one head: least squares with a dummy for every group, rows centred."""
    length, ids = scores.shape[-1], np.unique(tokens)
    targets, designs = [], []
    for s, t in zip(scores, tokens, strict=True):
        y, by_offset, by_token = [], [], []
        for q in range(FIRST_QUERY, length):
            keys = np.array([k for k in range(q + 1) if q - k < (window or length)])
            y.append(s[q, keys] - s[q, keys].mean())
            for dummies, groups, names in (
                (by_offset, q - keys, np.arange(length)),
                (by_token, t[keys], ids),
            ):
                dummy = (groups[:, None] == names).astype(float)
                dummies.append(dummy - dummy.mean(axis=0))
        targets.append(np.concatenate(y))
        designs.append((np.concatenate(by_offset), np.concatenate(by_token)))
    shares = []
    for kind in range(2):
        design = np.concatenate([d[kind] for d in designs[:n_fit]])
        fitted, *_ = np.linalg.lstsq(design, np.concatenate(targets[:n_fit]))
        held_out = zip(targets[n_fit:], designs[n_fit:], strict=True)
        shares.append([1 - ((y - d[kind] @ fitted) ** 2).sum() / (y**2).sum() for y, d in held_out])
    return np.array(shares).T


@settings(max_examples=10)
@given(
    seed=st.integers(0, 10**6),
    length=st.integers(FIRST_QUERY + 2, 16),
    window=st.one_of(st.none(), st.integers(2, 20)),
    mask=st.sampled_from([-np.inf, torch.finfo(torch.float32).min]),
    alphabet=st.integers(2, 6),
)
def test_shares_are_those_of_an_explicit_regression(seed, length, window, mask, alphabet):
    n_fit, batch = 6, 9
    generator = torch.Generator().manual_seed(seed)
    tokens = 7 + 3 * torch.randint(alphabet, (batch, length), generator=generator)
    # Something of both, and a constant of each row, which must not matter.
    scores = random_scores(seed, batch, 2, length)
    scores = scores + torch.sin(tokens.float())[:, None, None, :] - 0.1 * torch.arange(length)
    scores += 30 * torch.randn(batch, 2, length, 1, generator=generator)
    masked = scores.masked_fill(~visible(length, window), mask)
    probe = HeadProbe(n_resamples=20, window=window)
    probe.read_scores(masked[:2], tokens[:2])
    probe.read_scores(masked[2:n_fit], tokens[2:n_fit])
    probe.read_scores(masked[n_fit:], tokens[n_fit:], held_out=True)
    for head in range(2):
        expected = explicit_shares(
            scores[:, head].double().numpy(), tokens.numpy(), n_fit, window
        ).mean(axis=0)
        found = [column(probe, name)[head] for name in ("positional_share", "token_share")]
        # Rounding of float32 scores about 60 in size, against a spread of about 2.
        np.testing.assert_allclose(found, expected, atol=1e-3)


def share_probe(kind: str, window: int | None = None, noise: float = 0.0) -> HeadProbe:
    length, batch = 48, 24
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(16, (batch, length), generator=generator)
    taste = 3 * torch.randn(16, generator=generator)
    offset = torch.arange(length)[:, None] - torch.arange(length)
    scores = {
        "alibi": -0.5 * offset.float().expand(batch, 1, -1, -1),
        "token": taste[tokens][:, None, None, :].expand(-1, 1, length, -1),
    }
    both = sum(scores.values()) if kind == "both" else scores.get(kind, torch.zeros(1))
    rows = 5 * torch.randn(batch, 1, length, 1, generator=generator)
    both = both + rows + noise * torch.randn(batch, 1, length, length, generator=generator)
    both = both.masked_fill(~visible(length, window), torch.finfo(torch.float32).min)
    probe = HeadProbe(n_resamples=50, window=window)
    probe.read_scores(both[:16], tokens[:16])
    probe.read_scores(both[16:], tokens[16:], held_out=True)
    return probe


@pytest.mark.parametrize("window", [None, 20])
def test_a_bias_on_distance_is_all_position_and_a_taste_for_tokens_all_token(window):
    alibi, token = share_probe("alibi", window), share_probe("token", window)
    assert column(alibi, "positional_share") == pytest.approx(1, abs=1e-4)
    assert abs(column(alibi, "token_share")) < 0.05
    assert column(token, "token_share") == pytest.approx(1, abs=1e-4)
    assert abs(column(token, "positional_share")) < 0.05


def test_shares_of_two_causes_add_up_and_those_of_noise_are_none():
    both = share_probe("both")
    shares = [column(both, name)[0] for name in ("positional_share", "token_share")]
    assert min(shares) > 0.1
    # In 24 sequences of random tokens some tastes come early and some late: not quite apart.
    assert sum(shares) == pytest.approx(1, abs=0.1)
    noise = share_probe("noise", noise=2.0)
    for name in ("positional_share", "token_share"):
        assert -0.05 < column(noise, name) < 0.01


def test_scores_that_never_vary_have_no_share_to_speak_of():
    probe = HeadProbe(n_resamples=20)
    tokens = torch.arange(12).repeat(3, 1)
    probe.read_scores(torch.ones(3, 2, 12, 12), tokens)
    probe.read_scores(torch.ones(3, 2, 12, 12), tokens, held_out=True)
    assert (column(probe, "positional_share") == 0).all()
    assert (column(probe, "token_share") == 0).all()


def test_a_begin_token_is_neither_position_nor_token():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 9, (20, 30), generator=generator)
    tokens[:, 0] = 0
    scores = random_scores(0, 20, 2, 30)
    sunk = scores.clone()
    sunk[..., 0] += 20
    found = {}
    for name, read, start in (("kept", sunk, 0), ("left out", sunk, 1), ("cut", scores, 0)):
        first = 1 if name == "cut" else 0
        probe = HeadProbe(n_resamples=20)
        for held_out in (False, True):
            half = slice(10, 20) if held_out else slice(0, 10)
            cut = read[half, :, first:, first:]
            probe.read_scores(cut, tokens[half, first:], held_out, start)
        found[name] = column(probe, "token_share")
    np.testing.assert_array_equal(found["left out"], found["cut"])
    assert (found["kept"] > 0.5).all()
    assert (found["left out"] < 0.05).all()


def test_a_token_that_was_never_fitted_is_predicted_as_the_mean():
    known, length = torch.arange(12).repeat(4, 1) % 4, 12
    scores = torch.sin(known.float())[:, None, None, :].expand(-1, 1, length, -1).contiguous()
    probe = HeadProbe(n_resamples=20)
    probe.read_scores(scores, known)
    probe.read_scores(scores[:2], known[:2] + 100, held_out=True)
    assert column(probe, "token_share") == 0


def fed(seed: int, sequences: slice, *, whole_fit: HeadProbe | None = None) -> HeadProbe:
    """A probe that was given the same slice of every kind of tokens."""
    length = 20
    patterns = random_pattern(5, 12, 3, length)[sequences]
    scores = random_scores(6, 12, 3, length)[sequences]
    tokens = torch.randint(5, (12, length), generator=torch.Generator().manual_seed(7))[sequences]
    probe = HeadProbe(seed, n_resamples=2000) if whole_fit is None else whole_fit.for_shard(seed)
    probe.read_text(patterns)
    probe.read_repeated(patterns, 9, 2)
    probe.read_copies(patterns, 1)
    if whole_fit is None:
        probe.read_scores(scores, tokens)
    probe.read_scores(scores, tokens, held_out=True)
    return probe


def test_what_comes_after_a_merge_changes_no_stage():
    rows = np.random.default_rng(0).normal(size=(16, 3))
    merged, other = Settling(), Settling()
    merged.add(rows[:4])
    other.add(rows[4:8])
    merged.merge(other)
    before = merged.stages()
    assert [n for n, _, _ in before] == [8, 4]
    merged.add(rows[8:])
    for (n, *kept), (then, *now) in zip(before, merged.stages(), strict=True):
        assert n == then
        np.testing.assert_array_equal(kept, now)


def test_merged_shards_are_the_whole():
    scores, tokens = random_scores(8, 10, 3, 20), torch.arange(20).repeat(10, 1) % 5
    fits = [HeadProbe(seed, n_resamples=2000) for seed in (0, 1)]
    fits[0].read_scores(scores[:4], tokens[:4])
    # Another machine sees another alphabet, which overlaps.
    fits[1].read_scores(scores[4:], tokens[4:] + 2)
    fits[0].merge(fits[1])
    alone = HeadProbe(2, n_resamples=2000)
    alone.read_scores(scores, torch.cat([tokens[:4], tokens[4:] + 2]))
    whole = fed(3, slice(0, 12), whole_fit=alone).result()
    shards = [fed(4, slice(0, 5), whole_fit=fits[0]), fed(5, slice(5, 12), whole_fit=fits[0])]
    shards[0].merge(shards[1])
    merged = shards[0].result()
    for name in ("value", "chance", "stderr", "offset_profile", "by_offset"):
        np.testing.assert_allclose(getattr(merged, name), getattr(whole, name), atol=1e-6)
    np.testing.assert_array_equal(merged.n, whole.n)
    width = whole.ci_high - whole.ci_low
    # Other resamples of the same sequences: bounds agree to a fraction of the width.
    assert (np.abs(merged.ci_low - whole.ci_low) < 0.15 * width + 1e-9).all()
    assert (np.abs(merged.ci_high - whole.ci_high) < 0.15 * width + 1e-9).all()


def test_same_seed_same_bits_and_feeds_do_not_share_their_resamples():
    first, again, other = fed(1, slice(0, 12)), fed(1, slice(0, 12)), fed(2, slice(0, 12))
    np.testing.assert_array_equal(first.result().replicates, again.result().replicates)
    assert (first.result().replicates != other.result().replicates).any()
    replicates = first.result().replicates[:, 0]
    correlation = np.abs(np.corrcoef(replicates.T))
    # uniform and entropy, nearly one thing, of the same resamples; and metrics of other feeds, here
    # of the very same patterns. The error of 2000 resamples is 0.02.
    assert correlation[4, 5] > 0.9
    assert correlation[:6, 6:].max() < 0.1


def test_replicates_average_to_the_value_and_hold_its_interval():
    result = fed(0, slice(0, 12)).result()
    np.testing.assert_allclose(
        result.replicates.std(axis=0), result.stderr, rtol=0.2, err_msg="resamples of 12 sequences"
    )
    # Bounds are drawn out for so few: by Student's t, and as an unbiased variance is.
    few = scipy.stats.t.isf(0.025, 11) / scipy.stats.norm.isf(0.025) * np.sqrt(12 / 11)
    below = np.quantile(result.replicates, 0.025, axis=0) - result.value
    np.testing.assert_allclose(result.value + few * below, result.ci_low, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_patterns_of_any_float_type_are_read(dtype):
    pattern = random_pattern(0, 3, 2, 30)
    exact, rounded = HeadProbe(n_resamples=20), HeadProbe(n_resamples=20)
    exact.read_text(pattern)
    rounded.read_text(pattern.to(dtype))
    np.testing.assert_allclose(rounded.result().value, exact.result().value, atol=4e-3)


def test_a_view_that_is_not_contiguous_is_read_as_it_looks():
    pattern = random_pattern(0, 3, 2, 30)
    strided = pattern.transpose(2, 3).contiguous().transpose(2, 3)
    tokens = torch.arange(30).repeat(3, 1) % 4
    plain, viewed = HeadProbe(n_resamples=20), HeadProbe(n_resamples=20)
    for probe, maps in ((plain, pattern), (viewed, strided)):
        probe.read_text(maps)
        probe.read_copies(maps, 1)
        probe.read_repeated(maps, 15, 0)
        probe.read_scores(maps, tokens)
        probe.read_scores(maps, tokens, held_out=True)
    # Sums in another order: equal to rounding.
    np.testing.assert_allclose(viewed.result().value, plain.result().value, atol=1e-6)


def test_many_sequences_at_once_are_read_in_parts_alike():
    pattern = random_pattern(0, 40, 2, 100)  # more cells than are taken at a time
    together, apart = HeadProbe(n_resamples=20), HeadProbe(n_resamples=20)
    together.read_text(pattern)
    for sequence in pattern:
        apart.read_text(sequence[None])
    np.testing.assert_allclose(together.result().value, apart.result().value, atol=1e-7)


def test_transformer_lens_detects_the_same():
    config = TransformerConfig(n_layers=2, d_model=24, n_heads=3, d_vocab=26, n_ctx=32)
    model = HookedTransformer(config, LetterTokenizer()).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(20)
    period, start = 11, 1
    text = "z" + 2 * "qwertyuiopa"
    length = len(text)
    _, cache = model.run_with_cache(model.to_tokens(text))
    theirs = {
        name: detect_head(model, text, f"{name}_head", error_measure="mul")
        for name in ("previous_token", "duplicate_token", "induction")
    }
    for layer in range(2):
        pattern = cache["pattern", layer]
        probe = HeadProbe(n_resamples=20)
        # Twice, since an interval needs two sequences.
        probe.read_text(pattern.repeat(2, 1, 1, 1))
        probe.read_repeated(pattern.repeat(2, 1, 1, 1), period, start)
        # "mul" divides by all the attention, which is 1 for each of the queries; the patterns of
        # duplicates and induction are those of the second time, with all tokens different.
        for name in ("duplicate_token", "induction"):
            expected = theirs[name][layer].numpy()
            np.testing.assert_allclose(column(probe, name) * period / length, expected)
        # Ours leaves the first queries out: what they give the token before is added back.
        early = pattern[0].diagonal(-1, 1, 2)[:, : FIRST_QUERY - 1].sum(dim=-1).numpy()
        ours = column(probe, "previous_token") * (length - FIRST_QUERY) + early
        np.testing.assert_allclose(ours / length, theirs["previous_token"][layer].numpy())
        assert ours.std() > 1e-3


def spoiled(change) -> Tensor:
    pattern = random_pattern(0, 2, 2, 12)
    change(pattern)
    return pattern


def put(value: float, *at: int):
    def change(pattern: Tensor) -> None:
        pattern[at] = value

    return change


TOKENS = torch.zeros(2, 12, dtype=torch.int64)


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda p: p.read_text(torch.zeros(2, 12, 12)), "expected .batch, head, query, key"),
        (lambda p: p.read_text(torch.zeros(2, 2, 12, 11)), "as many queries as keys"),
        (lambda p: p.read_text(torch.zeros(0, 2, 12, 12)), "the batch axis is empty"),
        (lambda p: p.read_text(torch.zeros(2, 2, 12, 12).long()), "expected floating point"),
        (lambda p: p.read_text(random_pattern(0, 2, 2, 8)), "8 tokens are too short.*at least 9"),
        (lambda p: p.read_text(spoiled(put(np.nan, 0, 0, 9, 3))), "NaN or negative"),
        (lambda p: p.read_text(spoiled(put(-0.1, 0, 0, 9, 3))), "NaN or negative"),
        (lambda p: p.read_text(spoiled(put(3.0, 0, 0, 9, 3))), "sums to one only within"),
        (lambda p: p.read_text(torch.full((2, 2, 10, 10), 0.1)), "later tokens"),
        (lambda p: p.read_repeated(random_pattern(0, 2, 2, 12), 5, 1), "12 tokens are not 1 and"),
        (lambda p: p.read_repeated(random_pattern(0, 2, 2, 12), 1, 10), "at least 2"),
        (lambda p: p.read_copies(random_pattern(0, 2, 2, 12), 5), "too short.*at least 14"),
        (lambda p: p.read_copies(random_pattern(0, 2, 2, 12), -1), "start is -1"),
        (lambda p: p.read_scores(torch.zeros(2, 2, 12, 12), TOKENS, start=4), "at least 13"),
        (lambda p: p.read_scores(torch.zeros(2, 2, 12, 12), TOKENS, start=-1), "start is -1"),
        (lambda p: p.read_scores(torch.zeros(2, 2, 12, 12), TOKENS[:, 1:]), "tokens have shape"),
        (lambda p: p.read_scores(torch.zeros(2, 2, 12, 12), TOKENS.float()), "whole numbers"),
        (lambda p: p.read_scores(spoiled(put(np.nan, 1, 0, 9, 3)), TOKENS), "NaN, infinite"),
        (lambda p: p.read_scores(spoiled(put(-np.inf, 1, 0, 9, 3)), TOKENS), "masked"),
        (lambda p: p.read_scores(torch.zeros(2, 2, 12, 12), TOKENS, True), "at least 2 with"),
        (
            lambda p: p.read_scores(torch.zeros(30, 1, 20, 20), torch.arange(600).view(30, 20)),
            "600 different tokens.*at most 512",
        ),
        (
            lambda p: p.read_scores(
                torch.zeros(2, 2, 12, 12).masked_fill(~visible(12, 5), -torch.inf), TOKENS
            ),
            "last query show 5 of 12 keys.*window is None",
        ),
        (lambda p: p.result(), "given nothing"),
        (lambda p: (p.read_text(random_pattern(0, 1, 2, 12)), p.result()), "at least 2.*got 1"),
        (
            lambda p: (p.read_scores(torch.zeros(2, 2, 12, 12), TOKENS), p.result()),
            "fitted and never judged",
        ),
        (
            lambda p: [p.read_text(random_pattern(0, 2, heads, 12)) for heads in (2, 3)],
            "heads changed from 2 to 3",
        ),
        (
            lambda p: [p.read_text(random_pattern(0, 2, 2, length)) for length in (12, 13)],
            "changed their layout",
        ),
        (
            lambda p: [
                p.read_scores(random_scores(0, 2, 2, 12), TOKENS, held_out)
                for held_out in (False, True, False)
            ],
            "came after held-out ones",
        ),
        (lambda p: p.merge(HeadProbe(local_window=3)), "cannot merge probes with"),
        (
            lambda p: (p.read_scores(random_scores(0, 2, 2, 12), TOKENS), p.merge(p)),
            "cannot merge a probe with itself",
        ),
        (lambda p: p.for_shard(1), "at least 2 with held_out=False"),
        (lambda p: fed(1, slice(0, 6)).merge(fed(2, slice(6, 12))), "two different fits"),
        (lambda p: HeadProbe(local_window=0), "local_window is 0"),
        (lambda p: HeadProbe(window=1), "window is 1"),
        (lambda p: HeadProbe(seed=-1), "seed is -1: give a whole number"),
        (lambda p: HeadProbe(window=4).read_text(random_pattern(0, 2, 2, 12)), "beyond the window"),
        (lambda p: fed(0, slice(0, 4)).result().column("previous"), "no metric 'previous'"),
    ],
)
def test_misuse_is_said_in_a_sentence(misuse, message):
    with pytest.raises(ProbeError, match=message):
        misuse(HeadProbe(n_resamples=20))


def test_arrays_in_place_of_tensors_are_answered_with_the_remedy(monkeypatch):
    # As for a user, whose types nothing checks.
    monkeypatch.setattr(typecheck, "ON", False)
    pattern = random_pattern(0, 2, 2, 12)
    with pytest.raises(ProbeError, match=r"patterns are a ndarray.*torch\.from_numpy"):
        HeadProbe().read_text(pattern.numpy())
    with pytest.raises(ProbeError, match="tokens must be a tensor"):
        HeadProbe().read_scores(pattern, TOKENS.tolist())
