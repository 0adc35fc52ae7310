"""Attention sinks: logits of no token that compete with the keys for a query's attention.

gpt-oss (OpenAI 2025, arXiv 2508.10925) adds one learned logit of each head to the softmax and
drops its weight, so that the weights of the tokens sum to one minus the sink's share.
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from nope_interp.hooked_model import HookedModel
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import AttentionMaps
from nope_interp.sites import layer_ranges


def attention_sinks(model: HookedModel) -> dict[int, Float[Tensor, " head"]]:
    """The sinks' logits of each layer that has them; empty for models without, such as all of ours.

    Args:
        model: a HookedTransformer or a TransformerBridge.
    """
    if isinstance(model, HookedTransformer):
        return {}
    attentions = (getattr(block, "attn", None) for block in model.blocks)
    inside = (getattr(attn, "original_component", None) for attn in attentions)
    sinks = {layer: getattr(module, "sinks", None) for layer, module in enumerate(inside)}
    return {layer: found for layer, found in sinks.items() if isinstance(found, Tensor)}


def sink_share(
    scores: AttentionMaps, sinks: Float[Tensor, " head"]
) -> Float[Tensor, "batch head query"]:
    """The sink's share of each query's attention, from 0 to 1.

    Args:
        scores: before the softmax, hidden keys at minus infinity or near it.
        sinks: a logit for each head.

    Returns:
        `[batch head query]`, in single precision.
    """
    column = rearrange(sinks, "head -> 1 head 1 1").to(scores).expand(*scores.shape[:3], 1)
    every = torch.cat((scores, column), dim=-1)
    # The largest is taken away in the model's own precision, as gpt-oss does.
    every = every - every.max(dim=-1, keepdim=True).values
    return every.softmax(dim=-1, dtype=torch.float32)[..., -1]


def sinks_note(model: HookedModel) -> str | None:
    """What a reader of attention weights has to know of a model with sinks; None without."""
    layers = attention_sinks(model)
    if not layers:
        return None
    return (
        f"Heads in {layer_ranges(layers)} have attention sinks, which take a share of attention "
        "away from all tokens: weights sum to less than one."
    )
