"""Whether a bridge does what the model in it does, and its attention what it is said to do."""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.models.sinks import attention_sinks, sink_share
from nope_interp.positions.families import family_encoding
from nope_interp.positions.layers import layer_positions
from nope_interp.positions.order import ROUNDING, order_dependence
from nope_interp.shapes import AttentionMaps, Tokens

# Largest difference of logits, relative to their largest size, between bridge and plain model,
# which sum in another order. Rounding over a few dozen layers: bfloat16 keeps 2 to 3 digits,
# float16 is eight times finer, float32 keeps seven digits. (An 18-layer Gemma differs by 0.03,
# 0.006 and 2e-6.) A missing or misplaced part of the architecture shows as tenths in any of them.
PARITY = {"float32": 1e-4, "float16": 0.0125, "bfloat16": 0.1}


def check_bridge(
    bridge: HookedModel, tokens: Tokens, expected: Float[Tensor, "batch pos d_vocab"], name: str
) -> None:
    """Compare a bridge with the plain model, and look at its attention.

    Where a head has an attention sink, the weights of its tokens sum to at most one, and the sink's
    share is what lacks.

    Args:
        bridge: the wrapped model.
        tokens: what both models read.
        expected: the plain model's logits.
        name: what the model is called in errors.

    Raises:
        UserError: where logits differ by more than `PARITY`, where the model shows no attention
            patterns, and where weights do not sum to one or a query sees the future.
    """
    sinks, seen = attention_sinks(bridge), dict[str, Tensor]()

    def keep(activations: Tensor, hook: object, name: str) -> None:
        seen[name] = activations

    sites = ("attn.hook_pattern", "attn.hook_attn_scores")[: 2 if sinks else 1]
    hooks = [(n, partial(keep, name=n)) for n in bridge.hook_dict if n.endswith(sites)]
    with torch.no_grad(), bridge.hooks(fwd_hooks=hooks):
        logits = bridge.original_model(tokens, use_cache=False).logits
    difference = (logits - expected).abs().max() / expected.abs().max()
    # Written so that a NaN fails too.
    if not difference <= PARITY[dtype_name(expected)]:
        raise UserError(
            f"the hooked {name!r} differs from the plain model by {float(difference):.1e} of its "
            "largest logit: its architecture is not wrapped faithfully, so it is refused."
        )
    patterns = {n: x for n, x in seen.items() if n.endswith("hook_pattern")}
    if not patterns:
        raise UserError(
            f"{name!r}, a {type(bridge.original_model).__name__}, shows no attention patterns: "
            "choose a transformer."
        )
    for site, pattern in patterns.items():
        layer = int(site.split(".")[1])
        scores = seen.get(f"blocks.{layer}.attn.hook_attn_scores")
        share = None if layer not in sinks or scores is None else sink_share(scores, sinks[layer])
        _check_pattern(pattern, share, f"of {name!r}", layer)


def check_order(bridge: HookedModel, name: str) -> None:
    """Look whether layers that are said to have no positions tell the order of tokens.

    Args:
        bridge: the wrapped model; of an unknown family nothing is said.
        name: what the model is called in errors.

    Raises:
        UserError: where one does.
    """
    if family_encoding(bridge.original_model.config) is None:
        return
    layers = layer_positions(bridge)
    if all(layer.encoding != "none" for layer in layers):
        return
    rounding = ROUNDING[next(bridge.parameters()).dtype]
    for layer, change in order_dependence(bridge, layers).items():
        if layers[layer].encoding == "none" and not change <= rounding:
            raise UserError(
                f"layer {layer} of {name!r} is said to have no positions, but its attention "
                f"changes by {change:.1e} with the order of tokens: choose another model."
            )


def _check_pattern(
    pattern: AttentionMaps, sink: Float[Tensor, "batch head query"] | None, whose: str, layer: int
) -> None:
    # Each weight is rounded to the model's precision, half a unit in the last place.
    tolerance = max(1e-4, torch.finfo(pattern.dtype).eps)
    sums = pattern.float().sum(-1)
    whole = sums if sink is None else sums + sink
    if not torch.allclose(whole, torch.ones_like(whole), atol=tolerance):
        with_sink = "" if sink is None else " with the sink's share"
        raise UserError(
            f"attention weights {whose} do not sum to one{with_sink} in layer {layer}: choose "
            "another model."
        )
    if pattern.triu(1).abs().max() > 0:
        raise UserError(
            f"attention {whose} sees the future in layer {layer}: choose a causal model."
        )


def dtype_name(x: Tensor) -> str:
    """Such as "float32"."""
    return str(x.dtype).removeprefix("torch.")
