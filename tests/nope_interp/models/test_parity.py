"""Weights of random Hugging Face models, copied into a `HookedTransformer`, give their logits."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from tests.gpt2 import gpt2_weights

D_VOCAB, D_MODEL, N_CTX = 60, 48, 40
SPECIAL = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}


def randomized(model: Any) -> Any:
    """Every parameter drawn widely, so that no bias, gain or position is too small to matter."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
            if "norm" in name or "ln_" in name:
                parameter.add_("weight" in name)
    return model.eval()


def ours(n_heads: int, **changes: Any) -> HookedTransformer:
    return HookedTransformer(
        TransformerConfig(2, D_MODEL, n_heads, D_VOCAB, N_CTX, seed=1, **changes)
    )


def copy_norm(theirs: Any, norm: nn.Module) -> None:
    norm.w.copy_(theirs.weight)
    if hasattr(norm, "b"):
        norm.b.copy_(theirs.bias)


@torch.no_grad()
def gpt2(n_heads: int) -> tuple[Any, HookedTransformer]:
    config = GPT2Config(
        vocab_size=D_VOCAB, n_positions=N_CTX, n_embd=D_MODEL, n_layer=2, n_head=n_heads, **SPECIAL
    )
    theirs = randomized(GPT2LMHeadModel(config))
    model = ours(n_heads, positions="learned", activation="gelu_tanh", tied_embeddings=True)
    for own, weight in gpt2_weights(model, theirs):
        own.copy_(weight)
    return theirs, model


@torch.no_grad()
def llama(n_heads: int) -> tuple[Any, HookedTransformer]:
    config = LlamaConfig(
        vocab_size=D_VOCAB,
        hidden_size=D_MODEL,
        intermediate_size=100,
        num_hidden_layers=2,
        num_attention_heads=n_heads,
        max_position_embeddings=N_CTX,
        rms_norm_eps=1e-6,
        **SPECIAL,
    )
    theirs = randomized(LlamaForCausalLM(config))
    model = ours(
        n_heads,
        positions="rotary",
        activation="swiglu",
        normalization="rms",
        norm_eps=1e-6,
        d_mlp=100,
    )
    trunk = theirs.model
    model.W_E.copy_(trunk.embed_tokens.weight)
    model.W_U.copy_(theirs.lm_head.weight.T)
    for block, layer in zip(model.blocks, trunk.layers, strict=True):
        copy_norm(layer.input_layernorm, block.ln1)
        copy_norm(layer.post_attention_layernorm, block.ln2)
        for name, projection in (("W_Q", "q_proj"), ("W_K", "k_proj"), ("W_V", "v_proj")):
            weight = getattr(layer.self_attn, projection).weight
            by_head = weight.view(n_heads, D_MODEL // n_heads, D_MODEL).transpose(1, 2)
            getattr(block.attn, name).copy_(by_head)
        block.attn.out.weight.copy_(layer.self_attn.o_proj.weight)
        block.mlp.W_gate.copy_(layer.mlp.gate_proj.weight.T)
        block.mlp.W_in.copy_(layer.mlp.up_proj.weight.T)
        block.mlp.W_out.copy_(layer.mlp.down_proj.weight.T)
    copy_norm(trunk.norm, model.ln_final)
    return theirs, model


@torch.no_grad()
def bloom(n_heads: int) -> tuple[Any, HookedTransformer]:
    config = BloomConfig(
        vocab_size=D_VOCAB, hidden_size=D_MODEL, n_layer=2, n_head=n_heads, **SPECIAL
    )
    theirs = randomized(BloomForCausalLM(config))
    model = ours(n_heads, positions="alibi", activation="gelu_tanh")
    trunk = theirs.transformer
    # Bloom normalizes its embeddings: a function of the token alone, so the table can hold it.
    norm = trunk.word_embeddings_layernorm
    model.W_E.copy_(
        F.layer_norm(trunk.word_embeddings.weight, (D_MODEL,), norm.weight, norm.bias, norm.eps)
    )
    model.W_U.copy_(theirs.lm_head.weight.T)
    for block, layer in zip(model.blocks, trunk.h, strict=True):
        copy_norm(layer.input_layernorm, block.ln1)
        copy_norm(layer.post_attention_layernorm, block.ln2)
        fused = layer.self_attention.query_key_value
        for part, kind in enumerate("QKV"):
            weight = fused.weight.view(n_heads, 3, D_MODEL // n_heads, D_MODEL)[:, part]
            getattr(block.attn, f"W_{kind}").copy_(weight.transpose(1, 2))
            getattr(block.attn, f"b_{kind}").copy_(fused.bias.view(n_heads, 3, -1)[:, part])
        for linear, dense in (
            (block.attn.out, layer.self_attention.dense),
            (block.mlp.into, layer.mlp.dense_h_to_4h),
            (block.mlp.out, layer.mlp.dense_4h_to_h),
        ):
            linear.load_state_dict(dense.state_dict())
    copy_norm(trunk.ln_f, model.ln_final)
    return theirs, model


@pytest.fixture(
    params=[(gpt2, 4), (llama, 4), (bloom, 4), (bloom, 3)],
    ids=["gpt2", "llama", "bloom", "bloom-3-heads"],
)
def both(request: pytest.FixtureRequest) -> tuple[Any, HookedTransformer]:
    build, n_heads = request.param
    return build(n_heads)


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(D_VOCAB, (3, N_CTX - 5), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_copied_weights_give_the_same_logits(
    both: tuple[Any, HookedTransformer], tokens: Tensor
) -> None:
    theirs, model = both
    expected = theirs(tokens).logits
    assert expected.std() > 0.5
    # Float32 sums in another order; logits are of size 1 to 10.
    torch.testing.assert_close(model(tokens), expected, atol=1e-4, rtol=0)
    explicit, _ = model.run_with_cache(tokens)
    torch.testing.assert_close(explicit, expected, atol=1e-4, rtol=0)


@torch.no_grad()
def test_logits_differ_when_one_weight_does(
    both: tuple[Any, HookedTransformer], tokens: Tensor
) -> None:
    theirs, model = both
    model.blocks[0].attn.W_Q[0, 0, 0] += 1.0
    assert (model(tokens) - theirs(tokens).logits).abs().max() > 1e-3


@torch.no_grad()
def test_the_residual_stream_is_theirs_layer_by_layer(
    both: tuple[Any, HookedTransformer], tokens: Tensor
) -> None:
    theirs, model = both
    hidden = theirs(tokens, output_hidden_states=True).hidden_states
    _, cache = model.run_with_cache(tokens)
    # Their last hidden state is already normalized.
    for layer, expected in enumerate(hidden[:-1]):
        torch.testing.assert_close(cache["resid_pre", layer], expected, atol=1e-4, rtol=0)


def test_greedy_generation_is_theirs(both: tuple[Any, HookedTransformer], tokens: Tensor) -> None:
    theirs, model = both
    prompt = tokens[:, :10]
    expected = theirs.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=12,
        min_new_tokens=12,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=[],
    )
    assert torch.equal(model.generate(prompt, 12), expected)
