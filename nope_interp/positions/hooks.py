"""Where each family keeps learned positions, score biases and windows, as changes to modules."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool
from torch import Tensor

from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.models.transformer import HookedTransformer
from nope_interp.positions.changes import Args, Change, Heads, Kwargs, position_permutation
from nope_interp.positions.conditions import Condition
from nope_interp.positions.layers import LayerPositions
from nope_interp.query_blocks import MaskRows
from nope_interp.shapes import AttentionMaps


def embedding_changes(model: HookedModel, condition: Condition, seed: int) -> Iterator[Change]:
    """For learned and sinusoidal positions: what is added to the embedding."""

    changes: dict[str, Callable[[Tensor], Tensor]] = {
        "none": torch.zeros_like,
        "mean": lambda x: x.mean(dim=1, keepdim=True).expand_as(x),
        "constant": lambda x: x[:, :1].expand_as(x),
        "shuffled": lambda x: x[:, position_permutation(x.shape[1], seed).to(x.device)],
    }
    change, name = changes[condition.name], "hook_pos_embed"
    # A copy each time, since hooks after this one may write into their tensor.
    yield Change(name, model.hook_dict[name], "output", lambda x: change(x).clone())


def bias_changes(
    model: HookedModel, layer: LayerPositions, condition: Condition, heads: Heads
) -> Iterator[Change]:
    """For ALiBi and T5's bias: zeros, or the mean of what is visible, in the chosen heads."""
    attn, at = model.blocks[layer.layer].attn, f"blocks.{layer.layer}.attn"
    chosen = torch.zeros(model.cfg.n_heads, dtype=torch.bool)
    chosen[slice(None) if heads is None else list(heads)] = True

    def flat(bias: AttentionMaps) -> AttentionMaps:
        return _flattened(bias, chosen.to(bias.device), condition.name == "mean")

    if isinstance(model, HookedTransformer):
        yield Change(f"{at}.hook_score_bias", attn.hook_score_bias, "output", flat)
        return
    family = model.original_model.config.model_type
    if family == "t5":
        shared = _SharedBias(attn, flat)
        yield Change(at, attn, "arguments", shared.changed_for_this_layer)
        yield Change(f"{at}.output", attn, "output", shared.unchanged_for_the_next, gives_back=True)
        return
    # Bloom's bias is [batch * head 1 key], MPT's [head 1 key]; Falcon's is a part of its mask.
    name = {"bloom": "alibi", "mpt": "position_bias", "falcon": "attention_mask"}[family]
    pattern = "batch head query key" if family == "falcon" else "(batch head) query key"

    def change(args: Args, kwargs: Kwargs) -> tuple[Any, Any]:
        if not isinstance(kwargs.get(name), Tensor):
            raise UserError(f"{at} of this {family} model gets no {name}: it cannot be ablated.")
        if family == "falcon" and kwargs.get("alibi") is not None:
            raise UserError("this Falcon adds its ALiBi twice: load it with load_pretrained.")
        each = rearrange(kwargs[name], f"{pattern} -> batch head query key", head=len(chosen))
        changed = rearrange(flat(each), f"batch head query key -> {pattern}")
        return args, {**kwargs, name: changed}

    yield Change(f"{at} {name}", attn, "arguments", change)


def _flattened(bias: AttentionMaps, chosen: Bool[Tensor, " head"], mean: bool) -> AttentionMaps:
    """The bias without its dependence on positions in the chosen heads; hidden cells stay."""
    # Hidden keys have minus infinity in our models and the smallest number in Hugging Face's.
    hidden = bias <= torch.finfo(bias.dtype).min
    if mean:
        # A block of queries is the last of its keys.
        n_query, n_key = bias.shape[-2:]
        causal = torch.ones(n_query, n_key, dtype=torch.bool, device=bias.device)
        causal = causal.tril(n_key - n_query)
        seen = causal & ~hidden
        total = bias.masked_fill(~seen, 0).sum(dim=(0, 2, 3), keepdim=True)
        level = total / seen.sum(dim=(0, 2, 3), keepdim=True)
    else:
        level = torch.zeros((), dtype=bias.dtype, device=bias.device)
    replaced = rearrange(chosen, "head -> 1 head 1 1") & ~hidden
    return torch.where(replaced, level, bias)


class _SharedBias:
    """T5's first layer computes the bias and hands it on; each layer gets its own version."""

    def __init__(self, attn: Any, flat: Callable[[Tensor], Tensor]) -> None:
        self.attn, self.flat = attn, flat
        self.original: Tensor | None = None

    def changed_for_this_layer(self, args: Args, kwargs: Kwargs) -> tuple[Any, Any]:
        bias = kwargs["position_bias"]
        if bias is None:
            length = args[0].shape[1]
            bias = self.attn.original_component.compute_bias(length, length)
        self.original = bias
        return args, {**kwargs, "position_bias": self.flat(bias)}

    def unchanged_for_the_next(self, output: tuple[Any, ...]) -> tuple[Any, ...]:
        return (output[0], self.original, *output[2:])


def window_changes(model: HookedModel, layer: LayerPositions) -> Iterator[Change]:
    """For a layer with a sliding window or chunks: the plain causal mask instead."""
    attn, at = model.blocks[layer.layer].attn, f"blocks.{layer.layer}.attn"
    if model.original_model.config.model_type == "gpt_neo":
        yield _gpt_neo_window(attn.original_component, at)
        return

    def change(args: Args, kwargs: Kwargs) -> tuple[Any, Any]:
        mask = kwargs.get("attention_mask")
        if isinstance(mask, MaskRows):
            return args, {**kwargs, "attention_mask": mask.causal()}
        if mask is None:  # then the sequence fits the window, and the layer masks the future itself
            return args, kwargs
        return args, {**kwargs, "attention_mask": _causal_like(mask)}

    yield Change(f"{at} attention_mask", attn, "arguments", change)


def _causal_like(mask: Tensor) -> Tensor:
    """A causal mask of the shape and type of `mask`: True where a key is seen, or 0."""
    n_query, n_key = mask.shape[-2:]
    seen = torch.ones(n_query, n_key, dtype=torch.bool, device=mask.device).tril(n_key - n_query)
    if mask.dtype != torch.bool:
        hidden = torch.finfo(mask.dtype).min
        seen = torch.zeros_like(seen, dtype=mask.dtype).masked_fill(~seen, hidden)
    return seen.expand_as(mask)


def _gpt_neo_window(attention: Any, at: str) -> Change:
    """GPT-Neo's local layers keep their window in a buffer of their own."""
    windowed = attention.bias
    attention.bias = torch.ones_like(windowed).tril()

    def undo() -> None:
        attention.bias = windowed

    return Change(f"{at} bias", attention, "arguments", lambda *given: given, undo)
