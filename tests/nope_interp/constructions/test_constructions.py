"""The theorems as weights: hooks show what the theorems say, and controls show why."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nope_interp.constructions.barbero import (
    positional_head,
    repeated_token_gap,
    rotary_frequencies,
    strength_needed,
    target_weight,
)
from nope_interp.constructions.kazemnejad import (
    POSITION,
    absolute_position,
    counting_config,
    relative_position,
)
from nope_interp.errors import UserError
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.pretrained.load import load_pretrained
from nope_interp.tasks.text import TextTask
from nope_interp.training.config import TrainingConfig
from nope_interp.training.train import train
from tests import typecheck
from tests.huggingface import save_folder, tiny_gpt2

BEGIN = 3


def after_begin(n_ctx: int, d_vocab: int, seed: int = 0) -> Tensor:
    """Two random sequences behind the begin token, which comes nowhere else."""
    generator = torch.Generator().manual_seed(seed)
    others = torch.tensor([token for token in range(d_vocab) if token != BEGIN])
    drawn = others[torch.randint(len(others), (2, n_ctx - 1), generator=generator)]
    return torch.nn.functional.pad(drawn, (1, 0), value=BEGIN)


def cache_of(model: HookedTransformer, tokens: Tensor) -> Any:
    with torch.no_grad():
        return model.run_with_cache(tokens, return_type=None)[1]


@settings(max_examples=25)
@given(
    st.integers(2, 80),
    st.integers(5, 30),
    st.sampled_from([(3, 1), (8, 2), (12, 4)]),
    st.integers(1, 3),
)
def test_theorem_1_writes_one_over_m_and_then_m(
    n_ctx: int, d_vocab: int, sizes: tuple[int, int], n_layers: int
) -> None:
    d_model, n_heads = sizes
    config = counting_config(n_ctx, d_vocab, n_layers, d_model=d_model, n_heads=n_heads)
    cache = cache_of(absolute_position(config, BEGIN).model, after_begin(n_ctx, d_vocab))
    m = torch.arange(1, n_ctx + 1).double().expand(2, -1)
    exact = {"rtol": 0, "atol": 1e-9}
    torch.testing.assert_close(cache["blocks.0.hook_resid_mid"][..., POSITION], 1 / m, **exact)
    for layer in range(n_layers):
        stream = cache[f"blocks.{layer}.hook_resid_post"]
        torch.testing.assert_close(stream[..., POSITION], m, **exact)
        # Nothing else has changed since the embedding.
        others = [i for i in range(d_model) if i != POSITION]
        torch.testing.assert_close(stream[..., others], cache["hook_embed"][..., others], **exact)


def test_without_the_begin_token_there_is_nothing_to_count() -> None:
    counter = absolute_position(counting_config(20, 10), BEGIN)
    cache = cache_of(counter.model, after_begin(21, 10)[:, 1:])
    assert cache["blocks.0.hook_resid_mid"][..., POSITION].abs().max() == 0


def test_the_reciprocals_error_is_the_models_and_falls_with_width() -> None:
    worst = []
    for width in (1, 4, 16, 63):
        counter = absolute_position(counting_config(64, 10, d_mlp=width), BEGIN)
        stream = cache_of(counter.model, after_begin(64, 10))["blocks.0.hook_resid_post"]
        measured = stream[0, :, POSITION].numpy() - np.arange(1, 65)
        np.testing.assert_allclose(measured, counter.reciprocal_error, atol=1e-9)
        worst.append(abs(measured).max())
    assert worst == sorted(worst, reverse=True)
    assert worst[0] > 1 > 0.2 > worst[2]
    assert worst[3] < 1e-9  # n_ctx - 1 ReLUs go through every point


@settings(max_examples=15)
@given(st.integers(2, 64), st.integers(0, 9), st.none() | st.floats(0.1, 3))
def test_theorem_2_scores_are_content_plus_distance(
    n_ctx: int, seed: int, attn_scale: float | None
) -> None:
    config = dataclasses.replace(counting_config(n_ctx, 12), seed=seed, attn_scale=attn_scale)
    model = relative_position(config, BEGIN).model
    tokens = after_begin(n_ctx, 12, seed)
    scores = cache_of(model, tokens)["blocks.1.attn.hook_attn_scores"][:, 0]
    drawn = HookedTransformer(config).double()
    words, attention = drawn.W_E[tokens][..., 3:], drawn.blocks[1].attn
    queries, keys = words @ attention.W_Q[0, 3:, 2:], words @ attention.W_K[0, 3:, 2:]
    content = (queries @ keys.transpose(1, 2)).detach()
    place = torch.arange(n_ctx)
    expected = content + (place - place[:, None])
    visible = scores.isfinite()
    assert visible.sum() == 2 * n_ctx * (n_ctx + 1) / 2
    torch.testing.assert_close(scores[visible], expected[visible], rtol=0, atol=1e-9)
    if n_ctx > 8:
        assert content.std() > 1  # there is content to add to


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"normalization": "layer"}, "needs normalization='none'"),
        ({"causal": False}, "needs causal=True"),
        ({"positions": "rotary"}, "needs positions='none'"),
        ({"residual": False}, "needs residual=True"),
        ({"attn_only": True}, "needs attn_only=False"),
        ({"activation": "gelu"}, "needs activation='relu'"),
        ({"d_model": 2}, "d_model of at least 3"),
    ],
)
def test_what_theorem_1_needs_is_said(changes: dict[str, Any], words: str) -> None:
    config = dataclasses.replace(counting_config(16, 10), **changes)
    with pytest.raises(UserError, match=words):
        absolute_position(config, BEGIN)


def test_what_theorem_2_needs_is_said() -> None:
    for changes, words in (
        ({"n_layers": 1}, "n_layers of at least 2"),
        ({"n_heads": 8}, "d_head of at least 3"),
        ({"d_model": 3, "n_heads": 1}, "d_model of at least 4"),
    ):
        with pytest.raises(UserError, match=words):
            relative_position(dataclasses.replace(counting_config(16, 10), **changes), BEGIN)


@pytest.mark.parametrize("begin_token", [None, -1, 10])
def test_counting_needs_a_begin_token(begin_token: int | None) -> None:
    with pytest.raises(UserError, match="needs a begin token"):
        absolute_position(counting_config(16, 10), begin_token)


def rotary(length: int = 512, **changes: Any) -> TransformerConfig:
    """Two heads of width 64."""
    sizes = {"n_layers": 1, "d_model": 128, "n_heads": 2, "d_vocab": 10, "n_ctx": length}
    return TransformerConfig.from_dict({**sizes, "positions": "rotary", **changes})


@pytest.mark.parametrize(
    ("offset", "weights"), [(0, [0.073, 0.732, 0.996, 1.0]), (1, [0.069, 0.587, 0.991, 1.0])]
)
def test_weights_of_positional_heads_in_the_reference(offset: int, weights: list[float]) -> None:
    """Computed by other code: width 64, 512 tokens, base 10,000."""
    frequencies = rotary_frequencies(rotary())
    found = [
        target_weight(strength, 512, offset, frequencies) for strength in (0.2, 1.0, 5.0, 20.0)
    ]
    assert [round(weight, 3) for weight in found] == weights


def test_the_highest_frequency_alone_fails_at_long_range() -> None:
    """1 radian per token nearly comes full circle: after 6, 44, 333 and 377 tokens."""
    frequencies = rotary_frequencies(rotary())
    top = frequencies[:1]
    assert [round(target_weight(strength, 512, 0, top), 3) for strength in (20.0, 200.0)] == [
        0.021,
        0.066,
    ]
    assert target_weight(20.0, 6, 0, top) > 0.99  # at short range it is enough
    assert strength_needed(0.01, 512, 0, top) > 1000 * strength_needed(0.01, 512, 0, frequencies)


@settings(max_examples=15)
@given(st.floats(1e-6, 0.5), st.integers(2, 300), st.integers(0, 4), st.sampled_from([1, 0.5]))
def test_a_head_looks_back_by_the_offset_with_the_weight_asked_for(
    eps: float, length: int, offset: int, kept: float
) -> None:
    """For every query and any tokens, repeated ones included; the last query has least."""
    offset = min(offset, length - 1)
    config = rotary(length, rotary_kept=kept)
    frequencies = rotary_frequencies(config)
    strength = strength_needed(eps, length, offset, frequencies)
    weight = target_weight(strength, length, offset, frequencies)
    assert weight >= 1 - eps - 1e-9
    assert weight == pytest.approx(1 - eps, abs=1e-9) or strength == 0
    model = positional_head(config, offset, strength)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.stack(
        (torch.randint(10, (length,), generator=generator), torch.full((length,), 7))
    )
    pattern = cache_of(model, tokens)["blocks.0.attn.hook_pattern"][:, 0]
    back = pattern.diagonal(-offset, dim1=1, dim2=2)
    # The model's sines are in single precision: angles are off by up to 300 * 6e-8.
    assert (back >= 1 - eps - 1e-4).all()
    torch.testing.assert_close(back[:, -1], torch.full((2,), weight).double(), rtol=0, atol=1e-4)


def test_what_a_positional_head_needs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    for config, words in (
        (rotary(positions="none"), "needs positions='rotary'"),
        (rotary(rotary_kept=0.0), "needs frequencies that turn"),
        (rotary(causal=False), "needs causal=True"),
    ):
        with pytest.raises(UserError, match=words):
            positional_head(config, 0, 1.0)
    config = rotary()
    for arguments, words in (
        ((-1, 1.0), "offset is -1"),
        ((512, 1.0), "offset is 512"),
        ((0, -1.0), "strength is -1"),
        ((1, math.inf), "strength is inf"),
        ((1.5, 1.0), r"offset is 1\.5"),
    ):
        with pytest.raises(UserError, match=words):
            positional_head(config, *arguments)
    frequencies = rotary_frequencies(config)
    with pytest.raises(UserError, match="eps is 1"):
        strength_needed(1.0, 8, 0, frequencies)
    with pytest.raises(UserError, match="no key lies 8 positions"):
        target_weight(1.0, 8, 8, frequencies)


@settings(max_examples=15)
@given(
    st.integers(0, 50),
    st.floats(0.02, 0.5),
    st.integers(2, 40),
    st.lists(st.integers(0, 9), max_size=4),
)
def test_copies_have_equal_weight_in_the_first_layer_without_positions(
    seed: int, scale: float, length: int, before: list[int]
) -> None:
    config = TransformerConfig(
        3, 32, 4, d_vocab=10, n_ctx=64, init_scale=scale, seed=seed, normalization="rms"
    )
    gap = repeated_token_gap(HookedTransformer(config).double(), 4, length, before)
    assert gap.shape == (3, 4)
    assert gap[0].max() < 1e-7
    if set(before) <= {4}:  # all rows are the same row, in every layer
        assert gap.max() < 1e-7


def test_later_layers_escape_through_the_causal_mask() -> None:
    config = TransformerConfig(3, 32, 4, d_vocab=10, n_ctx=64, init_scale=0.5)
    model = HookedTransformer(config).double()
    gap = repeated_token_gap(model, 4, 40, before=[0])
    assert gap[0].max() < 1e-7
    assert gap[1:].min(axis=1).max() > 1e-3
    blind = HookedTransformer(dataclasses.replace(config, causal=False)).double()
    assert repeated_token_gap(blind, 4, 40, before=[0]).max() < 1e-7  # and through it alone


def test_training_cannot_break_the_first_layers_tie() -> None:
    config = TransformerConfig(2, 32, 2, d_vocab=257, n_ctx=32)
    training = TrainingConfig(steps=60, batch_size=8, seq_len=32, warmup=3, learning_rate=1e-2)
    trained = train(config, training, TextTask(), show_progress=False).double()
    gap = repeated_token_gap(trained, 101, 24, before=[256, 65, 66])
    assert gap[0].max() < 1e-7 < 1e-4 < gap[1].max()


def test_positions_break_the_tie_in_the_first_layer() -> None:
    """The gap of a head that only looks back by one is its weight."""
    config = rotary(32)
    model = positional_head(config, 1, strength_needed(1e-6, 32, 1, rotary_frequencies(config)))
    assert repeated_token_gap(model, 5, 30)[0, 0] == pytest.approx(1, abs=1e-4)


def test_the_gap_of_a_pretrained_model_is_that_of_its_attentions(tmp_path: Path) -> None:
    plain = tiny_gpt2()
    plain.set_attn_implementation("eager")
    with torch.no_grad():
        patterns = plain(torch.tensor([[1] + [9] * 12]), output_attentions=True).attentions
    gap = repeated_token_gap(load_pretrained(str(save_folder(plain, tmp_path))).model, 9, 12, [1])
    for layer, pattern in enumerate(patterns):
        for head in range(4):
            rows = [pattern[0, head, query, 1 : query + 1] for query in range(1, 13)]
            worst = max((row.max() - row.min()).item() for row in rows)
            assert gap[layer, head] == pytest.approx(worst, abs=1e-6)
            assert worst > 1e-3  # learned positions


def test_one_copy_cannot_be_compared() -> None:
    with pytest.raises(UserError, match="at least 2 copies"):
        repeated_token_gap(HookedTransformer(counting_config(16, 10)), 4, 1)
