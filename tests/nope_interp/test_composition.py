"""K-composition against its definition with whole matrices, on our models and on bridges."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nope_interp.composition import k_composition
from nope_interp.config import TransformerConfig
from nope_interp.errors import UserError
from nope_interp.pretrained import load_pretrained
from nope_interp.transformer import HookedTransformer
from tests.huggingface import save_folder, tiny_gemma3


def ours() -> HookedTransformer:
    model = HookedTransformer(TransformerConfig(3, 24, 3, d_vocab=20, n_ctx=16))
    with torch.no_grad():
        for block in model.blocks:
            block.ln1.w.copy_(torch.rand(24) + 0.5)
    return model


def by_definition(
    model: Any, layer: int, later: int, gain: Tensor, out_gain: Tensor, shared: int
) -> Tensor:
    """The score of each pair from d_model x d_model matrices."""
    writes, reads = model.blocks[layer].attn, model.blocks[later].attn
    scores = torch.zeros(len(writes.W_O), len(reads.W_Q))
    for a in range(len(writes.W_O)):
        ov = writes.W_V[a // shared] @ writes.W_O[a] @ torch.diag(out_gain)
        for b in range(len(reads.W_Q)):
            qk = torch.diag(gain) @ reads.W_Q[b] @ reads.W_K[b // shared].T @ torch.diag(gain)
            scores[a, b] = (ov @ qk.T).norm() / (ov.norm() * qk.norm())
    return scores.detach()


def test_it_is_the_ratio_of_norms() -> None:
    model = ours()
    expected = by_definition(model, 0, 2, model.blocks[2].ln1.w, torch.ones(24), shared=1)
    torch.testing.assert_close(k_composition(model, 0, 2), expected, atol=1e-6, rtol=1e-5)


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
    expected = by_definition(model, 0, 1, gain, out_gain, shared=2)
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
