"""How much the keys of a later head read what an earlier head writes: K-composition.

Elhage et al. 2021, *A Mathematical Framework for Transformer Circuits*, section on composition:
with x W_OV what the earlier head writes and W_QK the bilinear form of the later head's scores,
score = |W_OV W_QK^T| / (|W_OV| |W_QK|), norms of Frobenius. The gains of norms between the two are
folded into the weights, and so is the centring of layer norms, which hides what is written to all
components alike; their data-dependent scales cancel in the ratio.
"""

from typing import Any

import torch
from einops import einsum, repeat
from jaxtyping import Float
from torch import Tensor

from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.models.transformer import HookedTransformer


def adds_up(model: HookedModel) -> bool:
    """Whether a model's stream is the sum of what its layers write, as pre-norm leaves it.

    Args:
        model: a HookedTransformer or a TransformerBridge.
    """
    if isinstance(model, HookedTransformer):
        return model.config.norm_placement == "pre" and model.config.residual
    config = model.original_model.config
    # OPT's name for it, and Bloom's, whose residual branch starts behind the norm.
    return getattr(config, "do_layer_norm_before", True) and not getattr(
        config, "apply_residual_connection_post_layernorm", False
    )


@torch.no_grad()
def k_composition(model: HookedModel, layer: int, later: int) -> Float[Tensor, "head later_head"]:
    """K-composition of every head of `layer` with every head of `later`, each from 0 to 1.

    Positional encodings play no part in it: rotary models have the score of offset zero.

    Args:
        model: one of ours, or a bridge.
        layer: the one that writes.
        later: the one that reads.

    Returns:
        `[head later_head]`, from 0 to 1.

    Raises:
        UserError: where `later` does not come after `layer`, and for post-norm models, whose stream
            is no sum of what heads write.
    """
    if not adds_up(model):
        raise UserError(
            "the stream of this model is no sum of what heads write: choose a pre-norm one with a "
            "residual stream."
        )
    if not 0 <= layer < later < model.cfg.n_layers:
        raise UserError(
            f"layer {later} does not read layer {layer}: give an earlier and a later layer of "
            f"0 to {model.cfg.n_layers - 1}."
        )
    writes, reads = model.blocks[layer], model.blocks[later]
    heads = model.cfg.n_heads
    value = _per_head(writes.attn.W_V, heads)
    out = _per_head(writes.attn.W_O, heads) * _gain(getattr(writes, "ln1_post", None), value)
    norm = getattr(reads, "ln1", None)  # OLMo 2 and 3 have norms behind attention alone
    gain = _gain(norm, value)[:, None]
    query, key = (_per_head(w, heads) * gain for w in (reads.attn.W_Q, reads.attn.W_K))
    if norm is not None and _centres(norm, value):
        out = out - out.mean(dim=2, keepdim=True)
        query, key = (w - w.mean(dim=1, keepdim=True) for w in (query, key))

    # Norms of products of thin matrices, from the small Gram matrices between their factors.
    through = einsum(out, key, "head a d_model, later d_model b -> head later a b")
    value_gram, query_gram = _gram(value), _gram(query)
    squared = einsum(
        value_gram, through, query_gram, through, "h a c, h l c e, l e b, h l a b -> h l"
    )
    written = _pair_norm(value_gram, _gram(out.mT))
    read = _pair_norm(query_gram, _gram(key))
    return (squared.clamp(min=0).sqrt() / (written[:, None] * read)).float().cpu()


def _per_head(weight: Tensor, heads: int) -> Float[Tensor, "head in out"]:
    """Float64 weights of every query head; grouped heads share keys and values."""
    weight = weight.detach().double()
    return repeat(weight, "group ... -> (group shared) ...", shared=heads // len(weight))


def _gain(norm: Any, like: Float[Tensor, "head d_model d_head"]) -> Float[Tensor, " d_model"]:
    """What a norm multiplies each component by, whatever its kind: it maps a vector of mean 0 and
    mean square 1 to itself times the gain, plus a bias."""
    if norm is None:
        return like.new_ones(like.shape[1])
    vector = _alternating(norm, like)
    return ((norm(vector) - norm(-vector)) / (2 * vector))[0, 0].double()


def _centres(norm: Any, like: Float[Tensor, "head d_model d_head"]) -> bool:
    """Whether a norm subtracts the mean: adding a constant then changes nothing."""
    vector = _alternating(norm, like)
    changed = (norm(vector + 1) - norm(vector)).abs().amax()
    # Beside what it makes of the vector: some norms have gains of a hundredth or less.
    size = (norm(vector) - norm(-vector)).abs().amax() / 2
    return bool(changed <= 1e-2 * size)


def _alternating(norm: Any, like: Float[Tensor, "head d_model d_head"]) -> Tensor:
    """A vector of mean 0 and mean square 1, as the norm takes it: `[1 1 d_model]`."""
    vector = like.new_ones(like.shape[1])
    vector[1::2] = -1
    if len(vector) % 2 and len(vector) > 1:
        vector[-3:] = vector.new_tensor([0.5, 0.5, 2.0]).sqrt()
        vector[-1] *= -1
    return vector.to(next(iter(norm.parameters()), vector).dtype)[None, None]


def _gram(weight: Float[Tensor, "head d_model d_head"]) -> Float[Tensor, "head d_head d_head"]:
    return weight.mT @ weight


def _pair_norm(
    first: Float[Tensor, "head d d"], second: Float[Tensor, "head d d"]
) -> Float[Tensor, " head"]:
    """|A B^T| from the Gram matrices of A and B."""
    return einsum(first, second, "head a b, head a b -> head").sqrt()
