"""Each positional encoding against transformers' own, or against its paper's formula in NumPy."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from nope_interp.models.config import POSITIONS, TransformerConfig
from nope_interp.models.encodings import (
    ENCODINGS,
    AddedToEmbedding,
    NoPositions,
    RotaryPositions,
    ScoreBias,
    alibi_slopes,
    rotate,
    t5_buckets,
)
from nope_interp.models.initialization import Initializer

N_CTX = 300


def config(positions: str, **changes: object) -> TransformerConfig:
    sizes = {"n_layers": 1, "d_model": 48, "n_heads": 3, "d_vocab": 7, "n_ctx": N_CTX}
    return TransformerConfig.from_dict({**sizes, "positions": positions, **changes})


def encoding_of(config: TransformerConfig) -> Any:
    return ENCODINGS[config.positions](config)


def random_heads(seed: int, d_head: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, N_CTX, 3, d_head, generator=generator)


def test_the_registry_holds_exactly_the_names_that_a_config_accepts() -> None:
    assert set(ENCODINGS) == set(POSITIONS)


@pytest.mark.parametrize("name", POSITIONS)
def test_an_encoding_acts_in_one_place_and_none_in_none(name: str) -> None:
    encoding = encoding_of(config(name))
    places = [isinstance(encoding, kind) for kind in (AddedToEmbedding, RotaryPositions, ScoreBias)]
    assert sum(places) == (0 if name == "none" else 1)


def test_none_has_nothing_to_train_or_store() -> None:
    assert NoPositions(config("none")).state_dict() == {}
    assert not list(NoPositions(config("none")).buffers())


@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_rotary_equals_llama(base: float) -> None:
    llama = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=48,
            num_attention_heads=3,
            max_position_embeddings=N_CTX,
            rope_parameters={"rope_type": "default", "rope_theta": base},
        )
    )
    q, k = random_heads(0), random_heads(1)
    positions = torch.arange(N_CTX)
    cos, sin = llama(q, positions[None])
    theirs = apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=2)
    ours = RotaryPositions(config("rotary", rotary_base=base))(positions)
    # The same float32 operations, up to the order of a few additions.
    torch.testing.assert_close(rotate(q, *ours), theirs[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(rotate(k, *ours), theirs[1], atol=1e-6, rtol=0)


@given(
    kept=st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), fraction=st.sampled_from([0.25, 0.5, 1.0])
)
def test_rotary_turns_the_kept_frequencies_of_the_rotated_dimensions(
    kept: float, fraction: float
) -> None:
    d_head, dims = 16, int(16 * fraction)
    half = dims // 2
    frequencies = 10000.0 ** (-2 * np.arange(half) / dims)
    frequencies[round(kept * half) :] = 0
    x = random_heads(2)
    pairs = x[..., :half].numpy() + 1j * x[..., half:dims].numpy()
    turned = pairs * np.exp(1j * np.arange(N_CTX)[:, None] * frequencies)[None, :, None]
    expected = np.concatenate([turned.real, turned.imag, x[..., dims:].numpy()], axis=-1)
    encoding = RotaryPositions(config("rotary", rotary_kept=kept, rotary_fraction=fraction))
    ours = rotate(x, *encoding(torch.arange(N_CTX)))
    assert ours.shape[-1] == d_head
    # Angles reach 300 radians in float32: an error of 300 * 6e-8, times values up to about 4.
    np.testing.assert_allclose(ours.numpy(), expected, atol=2e-4)
    assert torch.equal(ours, x) == (round(kept * half) == 0)


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    q, k = random_heads(3)[:, :1].expand(-1, N_CTX, -1, -1), random_heads(4)[:, :1]
    turn = RotaryPositions(config("rotary"))(torch.arange(N_CTX))
    q, k = rotate(q, *turn)[0, :, 0], rotate(k.expand(-1, N_CTX, -1, -1), *turn)[0, :, 0]
    scores = q @ k.T
    # Same rounding as above on sums of 16 products.
    torch.testing.assert_close(scores[10, 3], scores[210, 203], atol=1e-3, rtol=0)
    assert (scores[10, 3] - scores[210, 190]).abs() > 1e-2


def test_sinusoids_are_all_sines_then_all_cosines() -> None:
    position, k = np.arange(N_CTX)[:, None], np.arange(24)
    angles = position / 10000.0 ** (2 * k / 48)
    expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    ours = encoding_of(config("sinusoidal"))(torch.arange(N_CTX))
    # Float32 angles up to 300 radians.
    np.testing.assert_allclose(ours.numpy(), expected, atol=5e-5)


def test_learned_positions_are_rows_of_a_trained_table() -> None:
    encoding = encoding_of(config("learned"))
    encoding.initialize(Initializer("normal", 1.0, seed=0))
    positions = torch.tensor([5, 0, 299])
    assert encoding(positions).requires_grad
    assert torch.equal(encoding(positions), encoding.table[positions])


@pytest.mark.parametrize("n_heads", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 25, 32])
def test_alibi_equals_bloom_and_mpt(n_heads: int) -> None:
    encoding = encoding_of(config("alibi", d_model=n_heads, n_heads=n_heads))
    positions = torch.arange(20)
    ours = encoding(positions, positions)
    bloom = build_alibi_tensor(torch.ones(1, 20), n_heads, torch.float32)
    mpt = build_mpt_alibi_tensor(n_heads, 20)
    for theirs in (bloom, mpt):
        # Theirs counts from a fixed place, ours from the query: rows differ by a constant that the
        # softmax removes. Compare what remains, over the keys that a causal query sees.
        theirs = theirs.reshape(n_heads, 1, 20).expand(-1, 20, -1)
        for query in (0, 7, 19):
            seen = slice(0, query + 1)
            gap = ours[:, query, seen] - theirs[:, query, seen]
            torch.testing.assert_close(gap, gap[:, :1].expand_as(gap), atol=1e-5, rtol=0)


def test_alibi_slopes_of_eight_heads_are_the_papers() -> None:
    assert alibi_slopes(8) == [2.0**-k for k in range(1, 9)]


def test_bidirectional_alibi_looks_the_same_both_ways() -> None:
    bias = encoding_of(config("alibi", causal=False))(torch.arange(9), torch.arange(9))
    assert torch.equal(bias, bias.transpose(1, 2))
    assert (bias.diagonal(dim1=1, dim2=2) == 0).all()


@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5_buckets_equal_transformers(bidirectional: bool) -> None:
    offsets = torch.arange(-700, 701)
    theirs = T5Attention._relative_position_bucket(offsets, bidirectional, 32, 128)
    assert torch.equal(t5_buckets(offsets, bidirectional), theirs)


@pytest.mark.parametrize("causal", [True, False])
def test_t5_bias_equals_transformers(causal: bool) -> None:
    encoding = encoding_of(config("t5", causal=causal))
    encoding.initialize(Initializer("normal", 1.0, seed=0))
    theirs = T5Attention(
        T5Config(d_model=48, num_heads=3, d_kv=16, is_decoder=causal),
        has_relative_attention_bias=True,
        layer_idx=0,
    )
    theirs.relative_attention_bias.weight.data = encoding.table.data
    positions = torch.arange(200)
    assert torch.equal(encoding(positions, positions)[None], theirs.compute_bias(200, 200))


@pytest.mark.parametrize("name", ["alibi", "t5"])
def test_a_bias_for_the_last_queries_is_the_last_rows_of_the_whole(name: str) -> None:
    encoding = encoding_of(config(name))
    encoding.initialize(Initializer("normal", 1.0, seed=0))
    positions = torch.arange(40)
    assert torch.equal(encoding(positions[-3:], positions), encoding(positions, positions)[:, -3:])
