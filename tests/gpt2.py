"""A GPT-2 of transformers and a model of ours, weight by weight."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from nope_interp.models.transformer import HookedTransformer


def gpt2_weights(ours: HookedTransformer, theirs: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of our weight and theirs, views of one shape that can be copied either way."""
    trunk = theirs.transformer
    yield ours.W_E, trunk.wte.weight
    yield ours.positions.table, trunk.wpe.weight
    yield from _norm(ours.ln_final, trunk.ln_f)
    for block, layer in zip(ours.blocks, trunk.h, strict=True):
        yield from _norm(block.ln1, layer.ln_1)
        yield from _norm(block.ln2, layer.ln_2)
        for linear, conv in (
            (block.attn.qkv, layer.attn.c_attn),
            (block.attn.out, layer.attn.c_proj),
            (block.mlp.into, layer.mlp.c_fc),
            (block.mlp.out, layer.mlp.c_proj),
        ):
            # GPT-2's Conv1D stores its weights transposed.
            yield linear.weight, conv.weight.T
            yield linear.bias, conv.bias


def _norm(ours: Any, theirs: Any) -> Iterator[tuple[Tensor, Tensor]]:
    yield ours.w, theirs.weight
    yield ours.b, theirs.bias
