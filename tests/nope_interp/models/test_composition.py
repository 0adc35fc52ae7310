"""K-composition against its definition with whole matrices, on our models and on bridges."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nope_interp.errors import UserError
from nope_interp.models.composition import k_composition
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.pretrained.load import load_pretrained
from tests.huggingface import bridged_model, save_folder, tiny_gemma3


def ours(width: int = 24) -> HookedTransformer:
    model = HookedTransformer(TransformerConfig(3, width, 3, d_vocab=20, n_ctx=16))
    with torch.no_grad():
        for block in model.blocks:
            block.ln1.w.copy_(torch.rand(width) + 0.5)
    return model


def by_definition(
    model: Any, layer: int, later: int, reads_as: Tensor, writes_as: Tensor, shared: int
) -> Tensor:
    """The score of each pair from d_model x d_model matrices, and those of the norms between."""
    writes, reads = model.blocks[layer].attn, model.blocks[later].attn
    scores = torch.zeros(len(writes.W_O), len(reads.W_Q))
    for a in range(len(writes.W_O)):
        ov = writes.W_V[a // shared] @ writes.W_O[a] @ writes_as
        for b in range(len(reads.W_Q)):
            qk = reads_as @ reads.W_Q[b] @ reads.W_K[b // shared].T @ reads_as.T
            scores[a, b] = (ov @ qk.T).norm() / (ov.norm() * qk.norm())
    return scores.detach()


@pytest.mark.parametrize("width", [24, 15, 9, 3])
def test_it_is_the_ratio_of_norms(width: int) -> None:
    model = ours(width)
    centring = torch.eye(width) - 1 / width
    reads_as = centring @ torch.diag(model.blocks[2].ln1.w)
    expected = by_definition(model, 0, 2, reads_as, centring, shared=1)
    torch.testing.assert_close(k_composition(model, 0, 2), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("width", [24, 15])
def test_small_gains_of_a_norm_cancel(kind: str, width: int) -> None:
    """What a norm multiplies all components by alike is in both parts of the ratio."""
    sizes = {"n_layers": 2, "d_model": width, "n_heads": 3, "d_vocab": 20, "n_ctx": 16}
    model = HookedTransformer(TransformerConfig.from_dict({**sizes, "normalization": kind}))
    with torch.no_grad():
        # A part of what is written, and of what is read, is the same in all components.
        model.blocks[0].attn.W_O.add_(1.0)
        model.blocks[1].attn.W_K.add_(0.5)
        expected = k_composition(model, 0, 1)
        for gain in (0.005, 100.0):
            model.blocks[1].ln1.w.fill_(gain)
            torch.testing.assert_close(k_composition(model, 0, 1), expected)


def test_grouped_heads_and_both_norms_of_gemma(tmp_path: Path) -> None:
    plain = tiny_gemma3()
    with torch.no_grad():
        for layer in plain.model.layers:
            layer.input_layernorm.weight.copy_(torch.rand(32))
            layer.post_attention_layernorm.weight.copy_(torch.rand(32) - 0.5)
    # Gemma's norms multiply by one plus their weight.
    gain = 1 + plain.model.layers[1].input_layernorm.weight.detach().clone()
    out_gain = 1 + plain.model.layers[0].post_attention_layernorm.weight.detach().clone()
    model = load_pretrained(str(save_folder(plain, tmp_path / "gemma"))).model
    reads_as, writes_as = torch.diag(gain), torch.diag(out_gain)
    expected = by_definition(model, 0, 1, reads_as, writes_as, shared=2)
    torch.testing.assert_close(k_composition(model, 0, 1), expected, atol=1e-5, rtol=1e-4)


def test_a_planted_circuit_stands_out() -> None:
    model = ours()
    with torch.no_grad():
        for block in model.blocks:
            block.ln1.w.fill_(1.0)
        # Head 1 of layer 0 writes just where head 2 of layer 1 has its keys.
        model.blocks[0].attn.W_O[1].copy_(model.blocks[1].attn.W_K[2].T)
    scores = k_composition(model, 0, 1)
    assert scores.flatten().argmax() == 1 * 3 + 2
    assert scores[1, 2] > 1.5 * scores.flatten().sort().values[-2]


@pytest.mark.parametrize(("layer", "later"), [(1, 1), (2, 0), (0, 3), (-1, 1)])
def test_layers_that_do_not_follow_each_other_are_refused(layer: int, later: int) -> None:
    with pytest.raises(UserError, match=f"layer {later} does not read layer {layer}"):
        k_composition(ours(), layer, later)


def test_what_layer_norm_hides_is_no_composition() -> None:
    model = ours()
    with torch.no_grad():
        # Head 0 of layer 0 writes to all components alike, apart from a grain of noise.
        model.blocks[0].attn.W_O[0].copy_(torch.ones(8, 24) + 1e-3 * torch.randn(8, 24))
    assert k_composition(model, 0, 1)[0].max() < 0.6


@pytest.mark.parametrize("family", ["olmo2", "olmo3"])
def test_attention_that_reads_the_stream_as_it_is(family: str) -> None:
    """OLMo 2 and 3 have norms behind attention alone."""
    model = bridged_model(family)
    plain = model.original_model.model.layers
    with torch.no_grad():
        for layer in plain:
            layer.post_attention_layernorm.weight.copy_(torch.rand(32) + 0.5)
    writes_as = torch.diag(plain[0].post_attention_layernorm.weight.detach().clone())
    expected = by_definition(model, 0, 1, torch.eye(32), writes_as, shared=2)
    torch.testing.assert_close(k_composition(model, 0, 1), expected, atol=1e-5, rtol=1e-4)


def test_without_a_stream_heads_do_not_add_up() -> None:
    config = TransformerConfig(2, 24, 3, d_vocab=20, n_ctx=16, residual=False)
    with pytest.raises(UserError, match="no sum of what heads write"):
        k_composition(HookedTransformer(config), 0, 1)


def test_post_norm_models_are_refused() -> None:
    config = TransformerConfig(2, 24, 3, d_vocab=20, n_ctx=16, norm_placement="post")
    with pytest.raises(UserError, match="choose a pre-norm one"):
        k_composition(HookedTransformer(config), 0, 1)
    with pytest.raises(UserError, match="choose a pre-norm one"):
        k_composition(bridged_model("opt_post_norm"), 0, 1)
    assert k_composition(bridged_model("opt"), 0, 1).shape == (4, 4)
