"""Sites in a block and their hook names. Imports nothing heavy."""

import re
from collections.abc import Collection, Iterable

from nope_interp.errors import UserError, unknown_name

RESIDUAL_SITES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
# What queries, keys and values are made of: in a pre-norm model the normalized stream.
ATTENTION_INPUT = "attn_in"


def check_site(site: str) -> str:
    """`site` itself.

    Raises:
        UserError: with the nearest right name, where there is no such site.
    """
    if site not in RESIDUAL_SITES:
        raise unknown_name("site", site, RESIDUAL_SITES)
    return site


def hook_name(layer: int, site: str) -> str:
    """The classic name of a residual-stream site, or of what a block's attention reads.

    Args:
        layer: which block, from 0.
        site: one of `RESIDUAL_SITES`, or `ATTENTION_INPUT`.

    Returns:
        The name of the hook point.

    Raises:
        UserError: for an unknown site.

    Example:
        >>> hook_name(3, "resid_post")
        'blocks.3.hook_resid_post'
    """
    if site == ATTENTION_INPUT:
        return f"blocks.{layer}.attn.hook_in"
    if site not in RESIDUAL_SITES:
        raise unknown_name("site", site, (*RESIDUAL_SITES, ATTENTION_INPUT))
    return f"blocks.{layer}.hook_{site}"


def pattern_hook(layer: int) -> str:
    """The name of the hook point that a block's attention weights pass.

    Args:
        layer: which block, from 0.

    Example:
        >>> pattern_hook(3)
        'blocks.3.attn.hook_pattern'
    """
    return f"blocks.{layer}.attn.hook_pattern"


def layers_with(name: str, known: Iterable[str]) -> list[int]:
    """The layers that have among `known` the hook point that `name` is in one of them.

    Args:
        name: of a hook point; others than those of blocks are in no layer.
        known: names of all that a model has.

    Returns:
        The layers, rising.

    Example:
        >>> layers_with("blocks.0.hook_attn_out", ["blocks.3.hook_attn_out", "hook_embed"])
        [3]
    """
    within = re.fullmatch(r"blocks\.\d+(\..+)", name)
    if within is None:
        return []
    found = (re.fullmatch(rf"blocks\.(\d+){re.escape(within[1])}", other) for other in known)
    return sorted({int(match[1]) for match in found if match})


def missing_hook(name: str, known: Collection[str]) -> UserError:
    """The error for a hook point that a model lacks.

    Blocks of a hybrid model differ, and not all of them have attention: where other layers have
    such a site the error names them, and else the nearest right name.

    Args:
        name: the hook point that was asked for.
        known: all that the model has.

    Returns:
        The error, to be raised.

    Example:
        >>> str(missing_hook("blocks.0.hook_attn_out", ["blocks.1.hook_attn_out"]))
        "the model has no 'blocks.0.hook_attn_out': choose from layer 1 for it (--layers 1)."
    """
    layers = layers_with(name, known)
    if not layers:
        return unknown_name("hook point", name, known)
    site = name.split(".hook_")[-1]
    option = f" (--layers {','.join(map(str, layers))})" if site in RESIDUAL_SITES else ""
    return UserError(
        f"the model has no {name!r}: choose from {layer_ranges(layers)} for it{option}."
    )


def layer_ranges(layers: Iterable[int]) -> str:
    """Layers in words.

    Example:
        >>> layer_ranges([0, 1, 2, 5])
        'layers 0-2, 5'
    """
    ranges: list[list[int]] = []
    for layer in sorted(layers):
        if ranges and layer == ranges[-1][1] + 1:
            ranges[-1][1] = layer
        else:
            ranges.append([layer, layer])
    shown = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)
    return f"layer {shown}" if shown.isdigit() else f"layers {shown}"
