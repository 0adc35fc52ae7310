"""Where each family keeps its positions, as changes to a module's arguments or to its output.

A change sits on a torch module and not in TransformerLens's lists of hooks, so that contexts of
hooks inside an ablation, and `reset_hooks`, leave it alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.models.transformer import HookedTransformer
from nope_interp.positions.conditions import Condition
from nope_interp.positions.layers import LayerPositions, rotary_attribute
from nope_interp.shapes import AttentionMaps


@dataclass(frozen=True)
class Change:
    """One thing to change in a forward pass.

    Attributes:
        name: what error messages call it.
        module: where it happens.
        what: "output" hands `apply` the module's output and puts what it returns in its place;
            "arguments" hands it the positional and the keyword arguments and does the same.
        apply: the change.
        undo: called once when the change is taken away, for what it did to the module itself.
    """

    name: str
    module: nn.Module
    what: Literal["output", "arguments"]
    apply: Callable[..., Any]
    undo: Callable[[], None] | None = None


Heads = Sequence[int] | None
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def turning_frequencies(condition: Condition, n: int) -> Bool[Tensor, " frequency"]:
    """Which of `n` rotary frequencies, highest first, still turn.

    Args:
        condition: which frequencies are kept.
        n: how many there are.

    Raises:
        UserError: for a band beyond them.
    """
    index = torch.arange(n)
    highest = index < round(condition.share * n)
    if condition.name == "keep_highest":
        return highest
    if condition.name == "drop_highest":
        return ~highest
    if condition.name == "band":
        low, high = condition.band
        if high > n:
            raise UserError(
                f"the band {low}-{high} goes beyond the model's {n} rotary frequencies: give one "
                f"from 0-1 to {n - 1}-{n}, or 0-{n} for all."
            )
        return (index >= low) & (index < high)
    return torch.full((n,), condition.name == "shuffled")


def shuffled_positions(n: int, seed: int) -> Int[Tensor, " pos"]:
    """The permutation of positions 0..n-1 that `shuffled` uses in every layer and pass.

    Args:
        n: how many positions.
        seed: of the permutation.
    """
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def embedding_changes(model: HookedModel, condition: Condition, seed: int) -> Iterator[Change]:
    """For learned and sinusoidal positions: what is added to the embedding."""

    changes: dict[str, Callable[[Tensor], Tensor]] = {
        "none": torch.zeros_like,
        "mean": lambda x: x.mean(dim=1, keepdim=True).expand_as(x),
        "constant": lambda x: x[:, :1].expand_as(x),
        "shuffled": lambda x: x[:, shuffled_positions(x.shape[1], seed).to(x.device)],
    }
    change, name = changes[condition.name], "hook_pos_embed"
    # A copy each time, since hooks after this one may write into their tensor.
    yield Change(name, model.hook_dict[name], "output", lambda x: change(x).clone())


def rotary_changes(
    model: HookedModel, layer: LayerPositions, condition: Condition, heads: Heads, seed: int
) -> Iterator[Change]:
    """For rotary positions: other cosines and sines; for some heads, a second rotation."""
    attn, at = model.blocks[layer.layer].attn, f"blocks.{layer.layer}.attn"
    # The cosine of angle 0 is 1, or the factor by which YaRN and LongRoPE scale queries and keys.
    still = 1.0
    if not isinstance(model, HookedTransformer):
        still = float(rotary_attribute(model, layer.layer, "attention_scaling"))
    rotation = _Rotation(condition, still, (layer.rotary_dims or 0) // 2, seed)
    if heads is None:
        yield Change(f"{at}.hook_cos", attn.hook_cos, "output", rotation.cosines)
        yield Change(f"{at}.hook_sin", attn.hook_sin, "output", rotation.sines)
        return
    second = _SecondRotation(rotation)
    yield Change(at, attn, "arguments", second.remember)
    n_heads, n_keys = model.cfg.n_heads, key_heads(model)
    groups = sorted({head * n_keys // n_heads for head in heads})
    for letter, chosen, count in (("q", heads, n_heads), ("k", groups, n_keys)):
        name, pattern = _rotated(model, attn, letter)
        module = getattr(attn, name)
        yield Change(f"{at}.{name}", module, "output", second.of_heads(pattern, chosen, count))


@dataclass(frozen=True)
class _Rotation:
    """What cosines and sines, `[1 pos rotated]`, become; `still` is the cosine of angle 0."""

    condition: Condition
    still: float
    n_frequencies: int
    seed: int

    def cosines(self, cos: Float[Tensor, "1 pos rotated"]) -> Float[Tensor, "1 pos rotated"]:
        return self._changed(cos, self.still)

    def sines(self, sin: Float[Tensor, "1 pos rotated"]) -> Float[Tensor, "1 pos rotated"]:
        return self._changed(sin, 0.0)

    def _changed(self, x: Tensor, still: float) -> Tensor:
        if self.condition.name == "shuffled":
            return x[:, shuffled_positions(x.shape[1], self.seed).to(x.device)]
        turning = turning_frequencies(self.condition, self.n_frequencies).to(x.device)
        # Ours has one column for each frequency, Hugging Face's models have all of them twice.
        return torch.where(turning.repeat(x.shape[2] // self.n_frequencies), x, still)


class _SecondRotation:
    """Turns the queries and keys of some heads on, from the angle they get to the one they should.

    In single precision at least. The rounding of the first rotation stays, so that in bfloat16 what
    is left differs between positions a little, unlike in an ablation of whole layers.
    """

    def __init__(self, rotation: _Rotation) -> None:
        self.rotation = rotation
        self.cos, self.sin = torch.empty(0), torch.empty(0)

    def remember(self, args: Args, kwargs: Kwargs) -> tuple[Any, Any]:
        if "position_embeddings" in kwargs:
            cos, sin = kwargs["position_embeddings"]
        else:  # our own attention: hidden states, its context, KV cache
            cos, sin = args[1].rotation
        new_cos, new_sin = self.rotation.cosines(cos).float(), self.rotation.sines(sin).float()
        cos, sin = cos.float(), sin.float()
        # Scaled rotary positions have cos² + sin² above 1; the first rotation has scaled already.
        square = self.rotation.still**2
        self.cos = (new_cos * cos + new_sin * sin) / square
        self.sin = (new_sin * cos - new_cos * sin) / square
        return args, kwargs

    def of_heads(self, pattern: str, heads: Sequence[int], n_heads: int) -> Callable[..., Tensor]:
        """A change of queries or keys, whose axes `pattern` names, in these heads of `n_heads`."""

        def change(x: Tensor) -> Tensor:
            each = rearrange(x, f"{pattern} -> batch head pos d", head=n_heads).clone()
            each[:, list(heads)] = self._turned(each[:, list(heads)])
            return rearrange(each, f"batch head pos d -> {pattern}")

        return change

    def _turned(self, x: Float[Tensor, "batch head pos d"]) -> Float[Tensor, "batch head pos d"]:
        half = self.rotation.n_frequencies
        cos, sin = self.cos[..., :half].unsqueeze(1), self.sin[..., :half].unsqueeze(1)
        a, b, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)
        return torch.cat((turned, rest), dim=-1)


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
        yield Change(f"{at}.output", attn, "output", shared.unchanged_for_the_next)
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
        causal = torch.ones(bias.shape[-2:], dtype=torch.bool, device=bias.device).tril()
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
    """For a layer with a sliding window: the plain causal mask instead."""
    attn, at = model.blocks[layer.layer].attn, f"blocks.{layer.layer}.attn"
    if model.original_model.config.model_type == "gpt_neo":
        yield _gpt_neo_window(attn.original_component, at)
        return

    def change(args: Args, kwargs: Kwargs) -> tuple[Any, Any]:
        mask = kwargs.get("attention_mask")
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

    return Change(f"{at} bias", attention, "output", lambda output: output, undo)


def key_heads(model: HookedModel) -> int:
    """How many heads have keys of their own."""
    return getattr(model.cfg, "n_key_value_heads", None) or model.cfg.n_heads


def _rotated(model: HookedModel, attn: Any, letter: str) -> tuple[str, str]:
    """The module whose output is queries ("q") or keys ("k") next to their rotation, and its axes.

    Rotations in the same plane commute, so it does not matter that the bridges of models with
    fused projections offer queries and keys before the rotation only.
    """
    if isinstance(model, HookedTransformer):
        return f"hook_rot_{letter}", "batch pos head d"
    from transformer_lens.model_bridge.generalized_components import (
        JointQKVPositionEmbeddingsAttentionBridge,
    )

    if isinstance(attn, JointQKVPositionEmbeddingsAttentionBridge):
        return letter, "batch pos (head d)"
    return f"hook_rot_{letter}", "batch head pos d"
