"""A rotating layer's queries and keys, brought together wherever a model shows them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count

import torch
from einops import rearrange
from torch import Tensor

from nope_interp.hooked_model import HookedModel, key_heads
from nope_interp.positions.layers import LayerPositions, layer_positions
from nope_interp.streams import Listener, firing_hooks

Reader = Callable[[Tensor, Tensor], None]

# Where queries ("q") and keys ("k") are shown, the best place first: rotated; not yet or already
# rotated, but after their own norm; as they are projected, where there is no such norm.
_PLACES = ("hook_rot_{}", "{}_norm.hook_out", "hook_{}")


def on_rotated(model: HookedModel, readers: Mapping[int, Reader]) -> dict[str, Listener]:
    """Listeners that bring each rotating layer's queries and keys together, for its reader.

    They come after norms of queries and keys, and after the rotation where the model shows it
    there. A frequency's share is the same before. What it turns stands one half of the rotated
    dimensions apart, wherever the model has it.

    Args:
        model: a HookedTransformer or a bridge.
        readers: by layer, what takes its queries and its keys, `[batch pos head d_head]` each.

    Returns:
        Listeners by hook name, for `stream`.
    """
    layers, shown = layer_positions(model), _shown(model, readers)
    listeners: dict[str, Listener] = {}
    for layer, reader in readers.items():
        queries, keys = (_place(layer, letter, shown) for letter in "qk")
        heads = model.cfg.n_heads, key_heads(model, layer)
        pair = _Pair(reader, layers[layer], *heads, (shown[queries], shown[keys]))
        listeners |= {queries: pair.take_queries, keys: pair.take_keys}
    return listeners


def _shown(model: HookedModel, layers: Iterable[int]) -> dict[str, str]:
    """The axes of what each hook of queries or keys shows, for those that fire."""
    # As many tokens as there are no heads, so that a shape tells which axis is which.
    counts = {model.cfg.n_heads, *(key_heads(model, layer) for layer in layers)}
    n = next(n for n in count(2) if n not in counts)
    places = [place.format(letter) for place in _PLACES for letter in "qk"]
    names = [f"blocks.{layer}.attn.{place}" for layer in layers for place in places]
    shapes = firing_hooks(model, names, torch.zeros(1, n, dtype=torch.long))
    return {name: _axes(shape, n) for name, shape in shapes.items()}


def _axes(shape: tuple[int, ...], n_tokens: int) -> str:
    if len(shape) == 3:
        return "batch pos (head d)"
    return "batch pos head d" if shape[1] == n_tokens else "batch head pos d"


def _place(layer: int, letter: str, shown: Iterable[str]) -> str:
    names = (f"blocks.{layer}.attn.{place.format(letter)}" for place in _PLACES)
    return next(name for name in names if name in shown)


@dataclass
class _Pair:
    """Holds a layer's queries until its keys come."""

    reader: Reader
    layer: LayerPositions
    n_heads: int
    n_keys: int
    axes: tuple[str, str]
    queries: list[Tensor] = field(default_factory=list)

    def take_queries(self, x: Tensor) -> None:
        self.queries.append(self._arranged(x, self.axes[0], self.n_heads))

    def take_keys(self, x: Tensor) -> None:
        self.reader(self.queries.pop(), self._arranged(x, self.axes[1], self.n_keys))

    def _arranged(self, x: Tensor, axes: str, n_heads: int) -> Tensor:
        x = rearrange(x, f"{axes} -> batch pos head d", head=n_heads)
        if not self.layer.neighbours:
            return x
        turned, rest = x[..., : self.layer.rotary_dims], x[..., self.layer.rotary_dims :]
        turned = rearrange(turned, "... (frequency pair) -> ... (pair frequency)", pair=2)
        return torch.cat((turned, rest), dim=-1)
