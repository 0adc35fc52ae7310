"""Where a model's layers get positions from: their encoding, its base, and attention windows."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nope_interp.attention_shapes import keys_of
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel, wrapped
from nope_interp.models.transformer import HookedTransformer
from nope_interp.positions.families import (
    FAMILIES,
    NEIGHBOURS,
    TABLED,
    WITHOUT,
    family_encoding,
    has_encoding,
    layer_type,
    window_of,
)
from nope_interp.sites import layer_ranges

_NAMES = {"rotary": "rotary positions", "alibi": "ALiBi", "t5": "T5's relative bias"}


@dataclass(frozen=True)
class LayerPositions:
    """What tells one layer where its tokens are, apart from the causal mask.

    Attributes:
        layer: which block, from 0.
        encoding: "none", "learned", "sinusoidal" (these two are added to the embedding and so
            reach every layer), "rotary", "alibi", "t5", or "recurrence" of a layer that has no
            attention and tells order by itself.
        rotary_base: radians per token of frequency k are base ** (-2k / rotary_dims), before any
            scaling for long contexts; None without rotation.
        rotary_dims: how many dimensions of a head rotate, in pairs, those of p-RoPE that stand
            still among them; None without rotation.
        window: a query sees this many tokens, itself included; None where it sees all before it.
        chunk: a query sees no token before the last multiple of this many; None where it does.
        neighbours: whether a frequency turns two dimensions beside each other.
        rotary_still: how many of the rotary dimensions stand still.
        keys_of: the earlier layer whose keys and values it reads; None where it makes its own.
    """

    layer: int
    encoding: str
    rotary_base: float | None = None
    rotary_dims: int | None = None
    window: int | None = None
    chunk: int | None = None
    neighbours: bool = False
    rotary_still: int = 0
    keys_of: int | None = None

    @property
    def turning(self) -> int | None:
        """How many dimensions of a head turn; None without rotation."""
        return None if self.rotary_dims is None else self.rotary_dims - self.rotary_still

    @property
    def reach(self) -> int | None:
        """How many tokens a query sees at most; None without a limit."""
        return self.window if self.chunk is None else self.chunk

    @property
    def limit(self) -> str | None:
        """The same in words, such as "window of 512 tokens"."""
        if self.reach is None:
            return None
        return f"{'window' if self.chunk is None else 'chunks'} of {self.reach} tokens"

    def sees(self, n: int, *, causal: bool = True) -> Bool[Tensor, "query key"]:
        """Which keys each of n queries sees.

        Args:
            n: tokens.
            causal: whether a query sees no later token; else it sees all.

        Returns:
            True where it sees them.
        """
        query, key = torch.arange(n)[:, None], torch.arange(n)
        if not causal:
            return torch.ones(n, n, dtype=torch.bool)
        seen = key <= query
        if self.window is not None:
            seen &= key > query - self.window
        if self.chunk is not None:
            seen &= key >= query // self.chunk * self.chunk
        return seen


def edge_notes(layers: Iterable[LayerPositions], seq_len: int) -> tuple[str, ...]:
    """What the windows and chunks of attention show in longer sequences, in sentences.

    Args:
        layers: as `layer_positions` finds them.
        seq_len: tokens in a sequence.

    Returns:
        One for each window or chunk that is shorter than the sequences; none where there is none.
    """
    edges: dict[str, list[int]] = {}
    for layer in layers:
        if layer.reach is not None and layer.reach < seq_len:
            edges.setdefault(str(layer.limit), []).append(layer.layer)
    return tuple(
        f"Sequences of {seq_len} tokens are longer than the attention {edge} in "
        f"{layer_ranges(at)}, whose edge shows position."
        for edge, at in edges.items()
    )


def layer_positions(model: HookedModel) -> tuple[LayerPositions, ...]:
    """Each layer's source of position, for a HookedTransformer or a bridge.

    Raises:
        UserError: for a pretrained model of a family that is not in `FAMILIES`, and for any other
            model.
    """
    if isinstance(model, HookedTransformer):
        return _own(model)
    if wrapped(model) is None:
        raise UserError(
            f"where a {type(model).__name__} keeps its positions is not known here: give a "
            "HookedTransformer or the model of load_pretrained."
        )
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

    Returns:
        `[frequency]`.

    Raises:
        UserError: as `layer_positions`.
    """
    if layer_positions(model)[layer].encoding != "rotary":
        return None
    if isinstance(model, HookedTransformer):
        return model.get_buffer("positions.frequencies")
    return _frequencies(model, layer)


def describe_positions(model: HookedModel) -> str:
    """One sentence about `layer_positions`, equal layers collapsed to ranges.

    Raises:
        UserError: as `layer_positions`.

    Example:
        >>> from nope_interp.models.config import TransformerConfig
        >>> describe_positions(HookedTransformer(TransformerConfig(2, 32, 4, 50, 16)))
        'No positional encoding in layers 0-1.'
    """
    kinds = by_kind(layer_positions(model))
    described = [f"{_describe(kind)} in {layer_ranges(layers)}" for kind, layers in kinds.items()]
    sentence = "; ".join(described)
    return f"{sentence[0].upper()}{sentence[1:]}."


def by_kind(layers: Iterable[LayerPositions]) -> dict[LayerPositions, list[int]]:
    """The numbers of the layers that are alike, by what they are, called layer 0.

    Args:
        layers: as `layer_positions` finds them.
    """
    kinds: dict[LayerPositions, list[int]] = {}
    for found in layers:
        kinds.setdefault(replace(found, layer=0), []).append(found.layer)
    return kinds


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
    rotary = config.positions == "rotary"
    turning = 2 * round(config.rotary_kept * config.rotary_dims / 2) if rotary else 0
    found = LayerPositions(0, "none" if rotary and not turning else config.positions)
    if turning:
        dims = config.rotary_dims
        found = replace(
            found, rotary_base=config.rotary_base, rotary_dims=dims, rotary_still=dims - turning
        )
    return tuple(replace(found, layer=layer) for layer in range(config.n_layers))


def _pretrained_layer(model: HookedModel, config: Any, layer: int) -> LayerPositions:
    encoding, kind = _encoding(config, layer), layer_type(config, layer)
    chunk = config.attention_chunk_size if kind == "chunked_attention" else None
    found = LayerPositions(
        layer,
        encoding,
        window=window_of(config, layer),
        chunk=chunk,
        keys_of=keys_of(config, layer),
    )
    if encoding != "rotary":
        return found
    frequencies = _frequencies(model, layer)
    if not len(frequencies):
        return replace(found, encoding="none")
    return replace(
        found,
        rotary_base=_base(config, kind),
        rotary_dims=2 * len(frequencies),
        neighbours=config.model_type in NEIGHBOURS,
        rotary_still=2 * int((frequencies == 0).sum()),
    )


def rotary_attribute(model: HookedModel, layer: int, name: str) -> Any:
    """What a model's rotary embedding holds for a layer: its own where types of layers differ."""
    trunk = model.original_model.base_model
    # Llama 4's names as its trunk what is none, and holds the trunk within.
    rotary = trunk.rotary_emb if hasattr(trunk, "rotary_emb") else trunk.model.rotary_emb
    rotary = getattr(rotary, "original_component", rotary)
    own = f"{layer_type(model.original_model.config, layer)}_{name}"
    return getattr(rotary, own if hasattr(rotary, own) else name)


def _frequencies(model: HookedModel, layer: int) -> Float[Tensor, " frequency"]:
    if model.original_model.config.model_type not in TABLED:
        return rotary_attribute(model, layer, "inv_freq")
    # A table of sines, then cosines: those of position 1, of angles up to one radian.
    table = model.blocks[layer].attn.original_component.embed_positions
    return table[1, : table.shape[1] // 2].asin()


def _base(config: Any, kind: str | None) -> float:
    if config.model_type in TABLED:
        return 10_000.0  # as their code has it
    rope = config.rope_parameters
    # Gemma 3 has one base for its local layers and one for its global ones.
    return float(rope.get(kind, rope)["rope_theta"])


def _encoding(config: Any, layer: int) -> str:
    if layer_type(config, layer) == "linear_attention":
        return "recurrence"
    if getattr(config, WITHOUT, False) or not has_encoding(config, layer):
        return "none"
    encoding = family_encoding(config)
    assert encoding is not None  # else `layer_positions` refused the family
    return encoding


def _describe(kind: LayerPositions) -> str:
    if kind.encoding == "none":
        words = "no positional encoding"
    elif kind.encoding == "recurrence":
        words = "a recurrence"
    elif kind.encoding in ("learned", "sinusoidal"):
        words = f"{kind.encoding} positions added to the embedding and read"
    else:
        words = _NAMES[kind.encoding]
    details = []
    if kind.rotary_base is not None:
        details.append(f"base {kind.rotary_base:,.10g}, {kind.rotary_dims} dimensions of a head")
    if kind.rotary_still:
        details.append(f"{kind.rotary_still} of which stand still")
    if kind.limit is not None:
        details.append(kind.limit)
    if kind.keys_of is not None:
        details.append(f"keys of layer {kind.keys_of}")
    return f"{words} ({', '.join(details)})" if details else words
