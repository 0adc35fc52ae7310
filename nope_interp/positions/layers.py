"""Where a model's layers get positions from: their encoding, its base, and attention windows."""

from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.models.transformer import HookedTransformer
from nope_interp.sites import layer_ranges

# Families, by Hugging Face `model_type`, whose every source of position is known. Any other may
# carry positions where nothing here looks, so it is refused.
_BY_ENCODING = {
    "learned": ("gpt2", "gpt_neo", "opt"),
    "rotary": (
        *("gpt_neox", "llama", "mistral", "gemma", "gemma2", "gemma3_text"),
        *("qwen2", "qwen3", "phi", "smollm3", "falcon"),
    ),
    "alibi": ("bloom", "mpt"),
    "t5": ("t5",),
}
FAMILIES = {family: encoding for encoding, names in _BY_ENCODING.items() for family in names}

# Set in a pretrained model's config where its family's positions are switched off: it has none.
WITHOUT = "without_positions"

_NAMES = {"rotary": "rotary positions", "alibi": "ALiBi", "t5": "T5's relative bias"}


@dataclass(frozen=True)
class LayerPositions:
    """What tells one layer where its tokens are, apart from the causal mask.

    Attributes:
        layer: which block, from 0.
        encoding: "none", "learned", "sinusoidal" (these two are added to the embedding and so
            reach every layer), "rotary", "alibi" or "t5".
        rotary_base: radians per token of frequency k are base ** (-2k / rotary_dims), before any
            scaling for long contexts; None without rotation.
        rotary_dims: how many dimensions of a head rotate, in pairs; None without rotation.
        window: a query sees this many tokens, itself included; None where it sees all before it.
    """

    layer: int
    encoding: str
    rotary_base: float | None = None
    rotary_dims: int | None = None
    window: int | None = None


def family_encoding(config: Any) -> str | None:
    """How the family of a Hugging Face config encodes positions; None where that is not known.

    Args:
        config: of a loaded model, or of one that is to be loaded.
    """
    if config.model_type == "falcon" and config.alibi:
        return "alibi"
    return FAMILIES.get(config.model_type)


def layer_positions(model: HookedModel) -> tuple[LayerPositions, ...]:
    """Each layer's source of position, for a HookedTransformer or a bridge.

    Raises:
        UserError: for a pretrained model of a family that is not in `FAMILIES`.
    """
    if isinstance(model, HookedTransformer):
        return _own(model)
    config = model.original_model.config
    if config.model_type not in FAMILIES:
        raise UserError(
            f"where a {config.model_type!r} model keeps its positions is not known here: choose a "
            f"model of a known family ({', '.join(sorted(FAMILIES))})."
        )
    return tuple(_pretrained_layer(model, config, layer) for layer in range(model.cfg.n_layers))


def rotary_frequencies(model: HookedModel, layer: int) -> Float[Tensor, " frequency"] | None:
    """Radians per token of a layer's rotary frequencies, highest first; None without rotation.

    Scaling for long contexts is part of them.

    Args:
        model: a HookedTransformer or a bridge.
        layer: which block, from 0.

    Raises:
        UserError: as `layer_positions`.
    """
    if layer_positions(model)[layer].encoding != "rotary":
        return None
    if isinstance(model, HookedTransformer):
        return model.get_buffer("positions.frequencies")
    return rotary_attribute(model, layer, "inv_freq")


def describe_positions(model: HookedModel) -> str:
    """One sentence about `layer_positions`, equal layers collapsed to ranges.

    Raises:
        UserError: as `layer_positions`.

    Example:
        >>> from nope_interp.models.config import TransformerConfig
        >>> describe_positions(HookedTransformer(TransformerConfig(2, 32, 4, 50, 16)))
        'No positional encoding in layers 0-1.'
    """
    kinds: dict[LayerPositions, list[int]] = {}
    for found in layer_positions(model):
        kinds.setdefault(replace(found, layer=0), []).append(found.layer)
    described = [f"{_describe(kind)} in {layer_ranges(layers)}" for kind, layers in kinds.items()]
    sentence = "; ".join(described)
    return f"{sentence[0].upper()}{sentence[1:]}."


def positions_in_words(model: HookedModel) -> str:
    """The encoding, such as "rotary, none in layers 3, 7"; "unknown" for an unknown family.

    Args:
        model: a HookedTransformer or a bridge.

    Example:
        >>> from nope_interp.models.config import TransformerConfig
        >>> positions_in_words(HookedTransformer(TransformerConfig(2, 32, 4, 50, 16)))
        'none'
    """
    bridged = not isinstance(model, HookedTransformer)
    if bridged and family_encoding(model.original_model.config) is None:
        return "unknown"
    layers = layer_positions(model)
    encodings = " and ".join(sorted({layer.encoding for layer in layers} - {"none"}))
    without = [layer.layer for layer in layers if layer.encoding == "none"]
    if not encodings:
        return "none"
    return f"{encodings}, none in {layer_ranges(without)}" if without else encodings


def _own(model: HookedTransformer) -> tuple[LayerPositions, ...]:
    config = model.config
    rotation = (config.rotary_base, config.rotary_dims) if config.positions == "rotary" else ()
    layers = range(config.n_layers)
    return tuple(LayerPositions(layer, config.positions, *rotation) for layer in layers)


def _pretrained_layer(model: HookedModel, config: Any, layer: int) -> LayerPositions:
    encoding = _encoding(config, layer)
    window = _window(config, layer)
    if encoding != "rotary":
        return LayerPositions(layer, encoding, window=window)
    rope = config.rope_parameters
    # Gemma 3 has one base for its local layers and one for its global ones.
    base = rope.get(_layer_type(config, layer), rope)["rope_theta"]
    rotated = 2 * len(rotary_attribute(model, layer, "inv_freq"))
    return LayerPositions(layer, encoding, float(base), rotated, window)


def rotary_attribute(model: HookedModel, layer: int, name: str) -> Any:
    """What a bridge's rotary embedding holds for a layer: its own where types of layers differ."""
    rotary = model.rotary_emb.original_component
    own = f"{_layer_type(model.original_model.config, layer)}_{name}"
    return getattr(rotary, own if hasattr(rotary, own) else name)


def _encoding(config: Any, layer: int) -> str:
    if getattr(config, WITHOUT, False):
        return "none"
    if config.model_type == "smollm3" and not config.no_rope_layers[layer]:
        return "none"
    encoding = family_encoding(config)
    assert encoding is not None  # else `layer_positions` refused the family
    return encoding


def _layer_type(config: Any, layer: int) -> str | None:
    types = getattr(config, "layer_types", None)
    return None if types is None else types[layer]


def _window(config: Any, layer: int) -> int | None:
    if config.model_type == "gpt_neo":
        return config.window_size if config.attention_layers[layer] == "local" else None
    windowed = _layer_type(config, layer) in (None, "sliding_attention")
    return getattr(config, "sliding_window", None) if windowed else None


def _describe(kind: LayerPositions) -> str:
    if kind.encoding == "none":
        words = "no positional encoding"
    elif kind.encoding in ("learned", "sinusoidal"):
        words = f"{kind.encoding} positions added to the embedding and read"
    else:
        words = _NAMES[kind.encoding]
    details = []
    if kind.rotary_base is not None:
        details.append(f"base {kind.rotary_base:,.10g}, {kind.rotary_dims} dimensions of a head")
    if kind.window is not None:
        details.append(f"window of {kind.window} tokens")
    return f"{words} ({', '.join(details)})" if details else words
