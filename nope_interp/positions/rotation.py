"""Rotary positions taken away: other angles for a layer, or a second rotation of some heads."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Complex, Float
from torch import Tensor

from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel, key_heads
from nope_interp.models.transformer import HookedTransformer
from nope_interp.positions.changes import Args, Change, Heads, Kwargs, position_permutation
from nope_interp.positions.conditions import Condition
from nope_interp.positions.families import ANGLES_IN_HALVES, GIVEN, TABLED
from nope_interp.positions.layers import LayerPositions, rotary_attribute


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


def rotary_changes(
    model: HookedModel, layer: LayerPositions, condition: Condition, heads: Heads, seed: int
) -> Iterator[Change]:
    """For rotary positions: other cosines and sines; for some heads, a second rotation.

    Raises:
        UserError: for some heads of a family whose attention shows no rotated queries.
    """
    attn, at = model.blocks[layer.layer].attn, f"blocks.{layer.layer}.attn"
    family, still = None, 1.0
    if not isinstance(model, HookedTransformer):
        family = model.original_model.config.model_type
    own = family in (*TABLED, *GIVEN)
    if own and heads is not None:
        raise UserError(f"a {family} model shows no rotated queries: ablate whole layers of it.")
    # The cosine of angle 0 is 1, or the factor by which YaRN and LongRoPE scale queries and keys.
    if family is not None and family not in TABLED:
        still = float(rotary_attribute(model, layer.layer, "attention_scaling"))
    n_frequencies = (layer.rotary_dims or 0) // 2
    beside = layer.neighbours and family not in ANGLES_IN_HALVES
    rotation = _Rotation(condition, still, n_frequencies, seed, layer.neighbours, beside)
    if family in TABLED:
        table = _Table(attn.original_component, rotation)
        yield Change(at, attn, "arguments", table.swap)
        put_back = table.put_back, table.undo
        yield Change(f"{at}.embed_positions", attn, "output", *put_back, gives_back=True)
    elif family in GIVEN or (family and condition.name == "shuffled" and heads is None):
        # The hooks of cosines see a block of queries at a time, and these trade places with all.
        yield Change(f"{at} position_embeddings", attn, "arguments", rotation.of_arguments)
    elif heads is None:
        yield Change(f"{at}.hook_cos", attn.hook_cos, "output", rotation.cosines)
        yield Change(f"{at}.hook_sin", attn.hook_sin, "output", rotation.sines)
    else:
        yield from _of_heads(model, layer.layer, rotation, heads)


def _of_heads(
    model: HookedModel, layer: int, rotation: "_Rotation", heads: list[int]
) -> Iterator[Change]:
    attn, at = model.blocks[layer].attn, f"blocks.{layer}.attn"
    second = _SecondRotation(rotation)
    yield Change(at, attn, "arguments", second.remember)
    n_heads, n_keys = model.cfg.n_heads, key_heads(model, layer)
    groups = sorted({head * n_keys // n_heads for head in heads})
    for letter, chosen, count in (("q", heads, n_heads), ("k", groups, n_keys)):
        name, pattern = _rotated(model, attn, letter)
        module = getattr(attn, name)
        turn = second.of_heads(letter, pattern, chosen, count)
        yield Change(f"{at}.{name}", module, "output", turn)


@dataclass(frozen=True)
class _Rotation:
    """What cosines and sines, `[rows pos column]`, become: one row for all sequences, or one each.

    `still` is the cosine of angle 0. A frequency turns two dimensions, `neighbours` or one of each
    half. It has one column, or two: each `beside` its first one, or after all the first ones.
    """

    condition: Condition
    still: float
    n_frequencies: int
    seed: int
    neighbours: bool
    beside: bool

    def cosines(self, cos: Float[Tensor, "rows pos column"]) -> Float[Tensor, "rows pos column"]:
        return self._changed(cos, self.still)

    def sines(self, sin: Float[Tensor, "rows pos column"]) -> Float[Tensor, "rows pos column"]:
        return self._changed(sin, 0.0)

    def of_arguments(self, args: Args, kwargs: Kwargs) -> tuple[Any, Any]:
        """Of an attention that is given them, or both of them as complex numbers."""
        given = kwargs["position_embeddings"]
        if isinstance(given, Tensor):
            turns: Complex[Tensor, "rows pos frequency"] = given
            return args, {**kwargs, "position_embeddings": self._changed(turns, self.still)}
        cos, sin = given
        changed = (self.cosines(cos), self.sines(sin))
        return args, {**kwargs, "position_embeddings": changed}

    def each_once(self, x: Float[Tensor, "rows pos column"]) -> Float[Tensor, "rows pos frequency"]:
        """One column for each frequency."""
        copies = x.shape[-1] // self.n_frequencies
        return x[..., :: copies if self.beside else 1][..., : self.n_frequencies]

    def _changed(self, x: Tensor, still: float) -> Tensor:
        if self.condition.name == "shuffled":
            return x[:, position_permutation(x.shape[1], self.seed).to(x.device)]
        turning = turning_frequencies(self.condition, self.n_frequencies).to(x.device)
        columns = "(frequency copy)" if self.beside else "(copy frequency)"
        copies = x.shape[-1] // self.n_frequencies
        return torch.where(repeat(turning, f"frequency -> {columns}", copy=copies), x, still)


class _Table:
    """GPT-J's and CodeGen's attention looks its sines and cosines up: another table for a pass."""

    def __init__(self, attention: Any, rotation: _Rotation) -> None:
        self.attention, self.rotation = attention, rotation
        self.own: Tensor | None = None

    def swap(self, args: Args, kwargs: Kwargs) -> tuple[Any, Any]:
        if self.own is None:  # else a pass ended inside attention, and nothing was put back
            self.own = self.attention.embed_positions
        own = self.own
        positions = kwargs["position_ids"][0]
        sin, cos = own[positions].chunk(2, dim=-1)
        changed = (self.rotation.sines(sin[None]), self.rotation.cosines(cos[None]))
        self.attention.embed_positions = own.index_copy(0, positions, torch.cat(changed, -1)[0])
        return args, kwargs

    def put_back(self, output: Any) -> Any:
        self.undo()
        return output

    def undo(self) -> None:
        if self.own is not None:
            self.attention.embed_positions, self.own = self.own, None


class _SecondRotation:
    """Turns the queries and keys of some heads on, from the angle they get to the one they should.

    In single precision at least. The rounding of the first rotation stays, so that in bfloat16 what
    is left differs between positions a little, unlike in an ablation of whole layers.
    """

    def __init__(self, rotation: _Rotation) -> None:
        self.rotation = rotation
        self.cos, self.sin = torch.empty(0), torch.empty(0)
        # Where the next block of queries, or of keys, begins.
        self.next: dict[str, int] = {}

    def remember(self, args: Args, kwargs: Kwargs) -> tuple[Any, Any]:
        if "position_embeddings" in kwargs:
            cos, sin = kwargs["position_embeddings"]
        else:  # our own attention: hidden states, its context, KV cache
            cos, sin = args[1].rotation
        new_cos, new_sin = self.rotation.cosines(cos).float(), self.rotation.sines(sin).float()
        cos, sin = cos.float(), sin.float()
        # Scaled rotary positions have cos² + sin² above 1; the first rotation has scaled already.
        square = self.rotation.still**2
        self.cos = self.rotation.each_once((new_cos * cos + new_sin * sin) / square)
        self.sin = self.rotation.each_once((new_sin * cos - new_cos * sin) / square)
        self.next.clear()
        return args, kwargs

    def of_heads(
        self, letter: str, pattern: str, heads: list[int], n_heads: int
    ) -> Callable[..., Tensor]:
        """A change of queries ("q") or keys ("k"), whose axes `pattern` names, in these heads of
        `n_heads`. Attention may hand them over in blocks, one after the other."""

        def change(x: Tensor) -> Tensor:
            each = rearrange(x, f"{pattern} -> batch head pos d", head=n_heads).clone()
            first = self.next.get(letter, 0)
            self.next[letter] = last = first + each.shape[2]
            each[:, heads] = self._turned(each[:, heads], slice(first, last))
            return rearrange(each, f"batch head pos d -> {pattern}")

        return change

    def _turned(
        self, x: Float[Tensor, "batch head pos d"], where: slice
    ) -> Float[Tensor, "batch head pos d"]:
        n = self.rotation.n_frequencies
        cos, sin = self.cos[:, where].unsqueeze(1), self.sin[:, where].unsqueeze(1)
        columns = "(frequency pair)" if self.rotation.neighbours else "(pair frequency)"
        a, b = rearrange(
            x[..., : 2 * n].float(),
            f"batch head pos {columns} -> pair batch head pos frequency",
            pair=2,
        )
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin))
        turned = rearrange(turned, f"pair batch head pos frequency -> batch head pos {columns}")
        return torch.cat((turned.to(x.dtype), x[..., 2 * n :]), dim=-1)


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
