"""Whether each layer's attention tells the order of the tokens before a query, measured.

What a config says of a layer is believed nowhere: here earlier activations change places, and a
layer without positions gives the query the same for them.
"""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nope_interp.hooked_model import HookedModel
from nope_interp.positions.layers import LayerPositions, by_kind, layer_positions
from nope_interp.sites import layer_ranges
from nope_interp.streams import run_trunk

_TOKENS = 8
_WRITTEN = ("hook_attn_out", "mixer.hook_out", "linear_attn.hook_out")

# Rounding of a sum in another order, relative to its largest entry: a position shows as tenths.
ROUNDING = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1, torch.float64: 1e-8}


@torch.no_grad()
def order_dependence(model: HookedModel, layers: tuple[LayerPositions, ...]) -> dict[int, float]:
    """By how much each layer's attention changes when what precedes the query changes places.

    One pass of two equal sequences, in the second of which every layer is given the first one's
    activations with all but the last in reverse. What a layer's attention writes at the last
    position is compared, relative to its largest entry. 0 but for rounding means that the layer
    tells no order by itself: positions that are added to the embedding come with what it is given.

    Args:
        model: a HookedTransformer or a bridge.
        layers: its layers, as `layer_positions` finds them.

    Returns:
        The change by layer, for those that show what their attention, or recurrence, writes.
    """
    reaches = [layer.reach for layer in layers if layer.reach is not None]
    length = min(_TOKENS, model.cfg.n_ctx, *reaches)
    generator = torch.Generator().manual_seed(0)
    device = next(model.parameters()).device
    tokens = torch.randint(model.cfg.d_vocab, (1, length), generator=generator).to(device)
    found: dict[int, float] = {}

    def write(activations: Tensor, hook: Any) -> Tensor:
        return torch.cat((activations[:1], _reversed_past(activations[:1])))

    def read(activations: Tensor, hook: Any, layer: int) -> None:
        first, second = activations[:, -1].float()
        change, largest = (first - second).abs().max(), first.abs().max()
        # A layer that writes nothing tells no order.
        found[layer] = float(change / largest) if change > 0 else 0.0

    hooks = []
    for layer in range(len(layers)):
        # What attention writes, or the recurrence that stands in its place.
        written = (f"blocks.{layer}.{name}" for name in _WRITTEN)
        for out in [name for name in written if name in model.hook_dict][:1]:
            into = f"blocks.{layer}.hook_resid_pre"
            hooks += [(into, write), (out, partial(read, layer=layer))]
    with model.hooks(fwd_hooks=hooks):
        run_trunk(model, tokens.expand(2, -1))
    return found


def position_table(model: HookedModel) -> list[dict[str, Any]]:
    """Which layers have which positions, equal layers in one row, and whether they tell order.

    Args:
        model: a HookedTransformer or a bridge.

    Returns:
        For each kind of layer: `layers`, `positions`, `base` of rotation, `rotated` dimensions of a
        head, `sees` (how many tokens a query sees), and `order`, the least and the largest change
        that `order_dependence` found among them. None where there is nothing to say.

    Raises:
        UserError: as `layer_positions`.
    """
    layers = layer_positions(model)
    changes = order_dependence(model, layers)
    rows = []
    for kind, alike in by_kind(layers).items():
        found = [changes[layer] for layer in alike if layer in changes]
        rows.append(
            {
                "layers": layer_ranges(alike).partition(" ")[2],
                "positions": kind.encoding,
                "base": kind.rotary_base,
                "rotated": kind.turning,
                "sees": kind.limit,
                "order": [min(found), max(found)] if found else None,
            }
        )
    return rows


def _reversed_past(x: Float[Tensor, "1 pos d_model"]) -> Float[Tensor, "1 pos d_model"]:
    return torch.cat((x[:, :-1].flip(1), x[:, -1:]), dim=1)
