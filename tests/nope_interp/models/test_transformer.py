"""The model against its own equations, and what it takes and gives."""

from typing import Any

import pytest
import torch
from torch import Tensor

from nope_interp.errors import UserError
from nope_interp.models.config import POSITIONS, TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from tests.small_models import D_VOCAB, model, random_tokens


def recomputed_norm(kind: str, x: Tensor) -> Tensor:
    if kind == "layer":
        return (x - x.mean(-1, keepdim=True)) / (
            x.var(-1, correction=0, keepdim=True) + 1e-5
        ).sqrt()
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() if kind == "rms" else x


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("kind", ["layer", "rms", "none"])
def test_the_stream_follows_the_blocks_equations(kind: str, placement: str, residual: bool) -> None:
    ours = model(double=True, normalization=kind, norm_placement=placement, residual=residual)
    logits, cache = ours.run_with_cache(random_tokens())

    def merged(stream: Tensor, written: Tensor) -> Tensor:
        total = stream + written if residual else written
        return recomputed_norm(kind, total) if placement == "post" else total

    def read(stream: Tensor) -> Tensor:
        return recomputed_norm(kind, stream) if placement == "pre" else stream

    for layer, block in enumerate(ours.blocks):
        pre, mid = cache["resid_pre", layer], cache["resid_mid", layer]
        torch.testing.assert_close(mid, merged(pre, cache["attn_out", layer]))
        torch.testing.assert_close(cache["resid_post", layer], merged(mid, cache["mlp_out", layer]))
        queries = torch.einsum("bpm,hmd->bphd", read(pre), block.attn.W_Q) + block.attn.b_Q
        torch.testing.assert_close(cache["q", layer], queries)
        torch.testing.assert_close(cache["pre", layer], read(mid) @ block.mlp.W_in + block.mlp.b_in)
        torch.testing.assert_close(
            cache["mlp_out", layer], cache["post", layer] @ block.mlp.W_out + block.mlp.b_out
        )
    last = cache["resid_post", 1]
    final = recomputed_norm(kind, last) if placement == "pre" else last
    torch.testing.assert_close(logits, final @ ours.W_U + ours.b_U)


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("relu", lambda gate, _: gate.clamp(min=0)),
        ("gelu", lambda gate, _: gate * torch.special.ndtr(gate)),
        ("silu", lambda gate, _: gate * torch.sigmoid(gate)),
        ("swiglu", lambda gate, value: gate * torch.sigmoid(gate) * value),
        ("geglu", lambda gate, value: gate * torch.special.ndtr(gate) * value),
    ],
)
def test_activations_follow_their_formulas(activation: str, function: Any) -> None:
    ours = model(double=True, activation=activation)
    _, cache = ours.run_with_cache(random_tokens())
    value = cache.cache_dict.get("blocks.0.mlp.hook_pre_linear")
    torch.testing.assert_close(cache["post", 0], function(cache["pre", 0], value))
    mlp = ours.blocks[0].mlp
    if ours.config.gated:
        read = cache["normalized", 0, "ln2"]
        torch.testing.assert_close(cache["pre", 0], read @ mlp.W_gate + mlp.b_gate)
        torch.testing.assert_close(value, read @ mlp.W_in + mlp.b_in)


def test_tanh_gelu_is_near_gelu_and_not_equal() -> None:
    exact, approximate = (model(activation=name)(random_tokens()) for name in ("gelu", "gelu_tanh"))
    assert 0 < (exact - approximate).abs().max() < 0.05


def test_the_attention_scale_multiplies_the_scores() -> None:
    plain, scaled = model(double=True, n_layers=1), model(double=True, n_layers=1, attn_scale=1.0)
    scores = [ours.run_with_cache(random_tokens())[1]["attn_scores", 0] for ours in (plain, scaled)]
    torch.testing.assert_close(scores[0] * 8**0.5, scores[1])
    torch.testing.assert_close(
        scaled(random_tokens()), scaled.run_with_cache(random_tokens())[0], atol=1e-10, rtol=0
    )


def test_weights_by_head_are_views_of_the_fused_ones() -> None:
    ours = model(activation="swiglu")
    tokens = random_tokens()
    block = ours.blocks[0]
    views = [
        getattr(block.attn, name) for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V")
    ]
    views += [block.mlp.W_in, block.mlp.W_gate, block.mlp.W_out, block.mlp.b_in, block.mlp.b_gate]
    for view in [*views, block.attn.b_O, block.mlp.b_out, ours.W_E, ours.W_U, ours.b_U]:
        before = ours(tokens)
        with torch.no_grad():
            view[0] += 0.7 + torch.arange(view[0].numel()).reshape(view[0].shape) / 10
        change = (ours(tokens) - before).abs().max()
        # Key biases alone cancel in the softmax.
        assert (change < 1e-4) if view is views[5] else (change > 1e-4)


def test_tied_embeddings_share_one_weight() -> None:
    tied, untied = model(tied_embeddings=True), model()
    assert torch.equal(tied.W_U.T, tied.W_E)
    assert tied.W_U.data_ptr() == tied.W_E.data_ptr()
    assert not torch.equal(untied.W_U.T, untied.W_E)
    n_tied, n_untied = (sum(p.numel() for p in m.parameters()) for m in (tied, untied))
    assert n_untied - n_tied == D_VOCAB * 24


def test_the_loss_is_the_cross_entropy_of_the_next_token() -> None:
    ours, tokens = model(), random_tokens()
    log_probabilities = ours(tokens).log_softmax(-1)
    each = [-log_probabilities[b, p, tokens[b, p + 1]] for b in range(3) for p in range(19)]
    torch.testing.assert_close(ours(tokens, return_type="loss"), torch.stack(each).mean())


def test_return_type_none_runs_every_hook_and_no_unembedding() -> None:
    ours, tokens = model(), random_tokens()
    calls: list[str] = []
    ours.unembed.register_forward_hook(lambda *_: calls.append("unembed"))
    result = ours.run_with_hooks(
        tokens,
        return_type=None,
        fwd_hooks=[(lambda name: True, lambda tensor, hook: calls.append(hook.name))],
    )
    assert result is None
    fired = calls.copy()
    assert fired == list(ours.run_with_cache(tokens)[1].cache_dict)
    assert calls[-1] == "unembed"  # which that second run, asked for logits, did call
    assert fired[-2:] == ["ln_final.hook_scale", "ln_final.hook_normalized"]


@pytest.mark.parametrize("layer", [0, 1, 2, -1, -2])
def test_stopping_at_a_layer_returns_its_input(layer: int) -> None:
    ours, tokens = model(), random_tokens()
    _, cache = ours.run_with_cache(tokens)
    expected = cache["resid_post", 1] if layer == 2 else cache["resid_pre", layer]
    torch.testing.assert_close(ours(tokens, stop_at_layer=layer), expected, atol=1e-5, rtol=0)
    _, stopped = ours.run_with_cache(tokens, stop_at_layer=1)
    assert "blocks.0.hook_resid_post" in stopped.cache_dict
    assert "blocks.1.hook_resid_pre" not in stopped.cache_dict


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.arange(5), "tokens have shape (5,): give a tensor of shape (batch, pos)."),
        (torch.ones(1, 5), "tokens are torch.float32: give torch.int64 or torch.int32."),
        (torch.ones(1, 5).bool(), "tokens are torch.bool"),
        (torch.zeros(1, 0).long(), "there are no tokens"),
        (torch.tensor([[1, 2, 40]]), "token 40 is not in the vocabulary: give ids from 0 to 39."),
        (torch.tensor([[1, -7, 40]]), "token -7 is not in the vocabulary"),
        (torch.zeros(1, 25).long(), "25 tokens in a row are more than the context of 24: cut"),
    ],
)
@pytest.mark.parametrize("positions", ["none", "learned", "alibi"])
def test_wrong_tokens_are_refused_whatever_the_encoding(
    tokens: Any, message: str, positions: str
) -> None:
    ours = model(positions=positions)
    for run in (ours, lambda tokens: ours.generate(tokens, 1)):
        with pytest.raises(UserError) as caught:
            run(tokens)
        assert message in str(caught.value)


def test_other_wrong_arguments_are_refused() -> None:
    ours, tokens = model(), random_tokens()
    # Called directly, for the tests' type checker lets no text through to forward.
    with pytest.raises(UserError, match=r"tokens are a str: give a tensor .*to_tokens"):
        ours._check_tokens("some text")
    with pytest.raises(UserError, match="unknown return type 'lossy': did you mean 'loss'"):
        ours(tokens, return_type="lossy")
    with pytest.raises(UserError, match="stop_at_layer is 3: give a layer from -2 to 2"):
        ours(tokens, stop_at_layer=3)
    with pytest.raises(UserError, match="at least two tokens"):
        ours(tokens[:, :1], return_type="loss")


def test_int32_tokens_do() -> None:
    ours, tokens = model(), random_tokens()
    assert torch.equal(ours(tokens.int()), ours(tokens))
    assert torch.equal(ours(tokens.int(), return_type="loss"), ours(tokens, return_type="loss"))


def test_dropout_acts_in_training_alone() -> None:
    ours, tokens = model(dropout=0.3), random_tokens()
    assert not ours.training
    assert torch.equal(ours(tokens), ours(tokens))
    ours.train()
    assert not torch.equal(ours(tokens), ours(tokens))
    with ours.hooks([("blocks.0.attn.hook_pattern", lambda pattern, hook: None)]):
        assert not torch.equal(ours(tokens), ours(tokens))


def test_a_few_steps_of_training_lower_the_loss() -> None:
    ours, tokens = model(positions="t5").train(), random_tokens()
    optimizer = torch.optim.Adam(ours.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        loss = ours(tokens, return_type="loss")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_a_reading_from_some_place_is_that_part_of_the_whole(
    positions: str, placement: str, causal: bool
) -> None:
    built = model(double=True, positions=positions, norm_placement=placement, causal=causal)
    tokens = random_tokens(batch=3, pos=9)
    whole = built.ln_final(built(tokens, stop_at_layer=built.config.n_layers))
    for first in (0, 4, 8):
        part = built.read_from(tokens, first)
        torch.testing.assert_close(part, whole[:, first:], atol=1e-12, rtol=0)
        # What is not computed has no gradient that is missed.
        weights = list(built.blocks.parameters())
        found = torch.autograd.grad(part.pow(3).sum(), weights)
        expected = torch.autograd.grad(whole[:, first:].pow(3).sum(), weights, retain_graph=True)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("name", ["blocks.1.hook_resid_mid", "ln_final.hook_normalized"])
def test_a_hook_behind_what_is_not_read_sees_all_places(name: str) -> None:
    built = model()
    tokens = random_tokens(batch=3, pos=9)
    seen = []

    def double(activation: torch.Tensor, hook: object) -> torch.Tensor:
        seen.append(activation.shape)
        return 2 * activation

    with torch.no_grad(), built.hooks(fwd_hooks=[(name, double)]):
        part = built.read_from(tokens, 4)
        expected = built.ln_final(built(tokens, stop_at_layer=2))[:, 4:]
    assert seen == [(3, 9, built.config.d_model)] * 2
    torch.testing.assert_close(part, expected, atol=0, rtol=0)
    assert not torch.allclose(part, built.read_from(tokens, 4), atol=1e-2)


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_to_look_at_a_norm_changes_nothing_in_half_precision(kind: str, dtype: torch.dtype) -> None:
    """Activations of which the squares are beyond float16."""
    model = HookedTransformer(
        TransformerConfig(2, 24, 3, d_vocab=30, n_ctx=40, normalization=kind, init_scale=0.2)
    )
    with torch.no_grad():
        model.W_E.mul_(2000)
    tokens = torch.randint(30, (2, 12), generator=torch.Generator().manual_seed(0))
    expected = model(tokens)
    half = model.to(dtype)
    assert half.W_E.abs().max() > 300
    logits, cache = half.run_with_cache(tokens)
    allowed = 0.1 if dtype is torch.bfloat16 else 0.02
    torch.testing.assert_close(logits.float(), expected, atol=allowed, rtol=allowed)
    assert cache["blocks.0.ln1.hook_scale"].isfinite().all()
