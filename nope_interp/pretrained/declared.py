"""Which positions a checkpoint has, by what its config, its name and the user say.

transformers reads a config's family and rotates queries and keys as that family does, whatever the
authors of a checkpoint did: a model that was trained without positions may come as a plain Llama.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nope_interp.errors import UserError, unknown_name
from nope_interp.models.config import DECLARED
from nope_interp.positions.families import (
    FAMILIES,
    TABLED,
    WITHOUT,
    declared,
    family_encoding,
    rotates_somewhere,
)

# Published checkpoints without positions whose files do not say so, by their hub names: Wang et al.
# 2024 (arXiv 2404.12224) and Kim et al. 2025 (arXiv 2509.21042).
_KNOWN = frozenset(
    {
        "antnlp/tinyllama-nope-1.1b",
        "antnlp/tinyllama-nope-headscale8k",
        "starmpcc/nope_1.5b_fw_edu_15t",
    }
)

# Fields that say in some configs that there are no positions, or none in some layers. transformers
# keeps those that a family does not declare, and does not heed them. There are many spellings: a
# field tells of positions by one of these words, and has no word but these and the others.
_OF_ROTATION = frozenset({"rope", "rotary"})
_OF_ANY = frozenset({"pe", "pos", "position", "positional", "positions"})
_OTHERS = frozenset(
    {"use", "uses", "using", "with", "apply", "enable", "enabled", "has", "type", "kind", "name"}
    | {"emb", "embs", "embed", "embedding", "embeddings", "enc", "encoding", "encodings"}
)
# Where zero of these is turned, nothing is.
_AMOUNTS = frozenset(
    {"pct", "percent", "percentage", "factor", "partial", "fraction", "dim", "dims", "ndims"}
    | {"theta"}
)
_DENIED_BY_TRUE = ("nope", "use_nope", "no_rope", "no_pe", "no_pos_emb", "no_position_embeddings")
# Beside words of positions: that there are none where such a field is true.
_NEGATIONS = frozenset({"disable", "disabled", "no", "remove", "skip", "without"})
# Beside the word nope: in which layers, or how many of them.
_OF_LAYERS = frozenset({"every", "is", "interval", "layer", "layers", "nope", "pattern"})
# Which layers have them: all others have none.
_ROTATED_LAYERS = ("rope_layers", "rotary_layers")
# Words that stand in some configs for true and false.
_QUOTED = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_DENIED_BY_NULL = ("rope_theta", "rope_parameters")
# Encodings that can be switched off in a checkpoint which has none.
_SWITCHED_OFF = ("rotary", "learned")
_PART = "partial_rotary_factor"
_NO_ENCODING = re.compile(r"(^|[^a-z])(no_?pe|no_?pos[a-z_]*|none|null)([^a-z]|$)")
# In a class's name, from one of its words on.
_CLASS = re.compile(r"(?<![a-z])(NoPE|NoPe|NOPE)|Nope(?![a-z])")
_NAME = re.compile(r"(^|[^a-z])(nope|drope)([^a-z]|$)")


def is_known(name: str) -> bool:
    """Whether a hub name is that of a published checkpoint without positions that says so nowhere.

    Args:
        name: as the user gave it.
    """
    return name.lower() in _KNOWN


def check_rotation(name: str, raw: Mapping[str, Any]) -> None:
    """Raise UserError for a rotation that is none, by a word that transformers cannot read.

    Args:
        name: the checkpoint's, as the user gave it.
        raw: its config as the file has it.
    """
    if FAMILIES.get(raw.get("model_type", "")) != "rotary" or raw["model_type"] == "olmo_hybrid":
        return  # OLMo hybrid's code knows a base that is none
    for field, key, value in _said_of_rotation(raw):
        kind = key in ("rope_type", "type") and _is_none(value)
        of_layers = key.endswith("_attention") and value is None
        if kind or of_layers or (key == "rope_theta" and not value):
            raise _unreadable(name, field, f"`{key}: {json.dumps(value)}` in the `{field}`")
    if "rope_theta" in raw and raw["rope_theta"] is None and not raw.get("rope_parameters"):
        raise _unreadable(name, "rope_theta", "`rope_theta: null` in the config")


def _said_of_rotation(raw: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """What a config says of rotation in fields of its own, and there of each type of layers: field,
    key and value."""
    for field in ("rope_parameters", "rope_scaling"):
        inner = raw.get(field)
        inner = inner if isinstance(inner, dict) else {}
        for told in (inner, *(of for of in inner.values() if isinstance(of, dict))):
            yield from ((field, key, value) for key, value in told.items())


def _unreadable(name: str, field: str, hint: str) -> UserError:
    return UserError(
        f"{hint} of {name!r} hints at no positional encoding, and transformers cannot read it: "
        f"take `{field}` out of config.json, and give positions none or rotary."
    )


def check_pairs(name: str, raw: Mapping[str, Any]) -> None:
    """Raise UserError where transformers would turn an odd number of dimensions in pairs.

    It reads no such config, not even for a model whose positions are switched off.

    Args:
        name: the checkpoint's, as the user gave it.
        raw: its config as the file has it.
    """
    if FAMILIES.get(raw.get("model_type", "")) != "rotary":
        return
    turned = _turned(raw)
    if turned is not None and turned % 2:
        raise UserError(
            f"transformers turns dimensions in pairs, but a head of {name!r} has {turned} to turn: "
            "choose another model."
        )
    if turned == 0 and raw["model_type"] in TABLED:
        raise UserError(
            f"the config of {name!r} has `rotary_dim: 0`, which transformers cannot read: take "
            "`rotary_dim` out of config.json, and give positions none."
        )


def _turned(raw: Mapping[str, Any]) -> int | None:
    """How many dimensions of a head are turned; None where the config does not say."""
    if isinstance(raw.get("rotary_dim"), int) and raw["model_type"] in TABLED:
        return int(raw["rotary_dim"])
    size, width, heads = (raw.get(k) for k in ("head_dim", "hidden_size", "num_attention_heads"))
    if size is None and isinstance(width, int) and isinstance(heads, int) and heads > 0:
        size = width // heads
    # Of an odd number GPT-NeoX turns one less.
    if not isinstance(size, int) or raw["model_type"] == "gpt_neox":
        return None
    from transformers import CONFIG_MAPPING

    inner = raw.get("rope_parameters")
    told = {**raw, **(inner if isinstance(inner, dict) else {})}
    usual = _usual_rotation(CONFIG_MAPPING[raw["model_type"]])
    heeded = told.get(_PART) if _PART in usual else None
    return int(size * heeded) if isinstance(heeded, int | float) else size


def _usual_rotation(family: Any) -> Mapping[str, Any]:
    """What a family's config says of its rotation where nothing else is said."""
    return getattr(family(), "rope_parameters", None) or {}


def without_positions(
    name: str, raw: Mapping[str, Any], config: Any, asked: str, *, published: bool
) -> bool:
    """Whether the positions of the checkpoint's family are to be switched off, as it has none.

    Args:
        name: the checkpoint's, as the user gave it.
        raw: its config as the file has it.
        config: its config as transformers reads it.
        asked: "auto" goes by the config and by the names of published checkpoints; an encoding's
            name is what the checkpoint has, whatever these say.
        published: whether it is of a published format that has no positions.

    Raises:
        UserError: for an unknown word, for positions that the family or its weights cannot have,
            and, of "auto", where something hints at none that transformers does not heed.
    """
    if asked not in DECLARED:
        raise unknown_name("positions", asked, DECLARED)
    own = family_encoding(config)
    # A hybrid's code, or its config, may say that its attention has none: transformers heeds that.
    heeded = own == "none" or (own == "rotary" and not rotates_somewhere(config))
    if asked == "auto":
        none = published or is_known(name) or raw.get(WITHOUT) is True
        hint = None if none or heeded or own is None else _hint(name, raw, config, own)
        if hint is not None:
            none_too = "none or " if own in _SWITCHED_OFF else ""
            raise UserError(
                f"{hint} hints at no positional encoding, but transformers would use {own} "
                f"positions: give positions {none_too}{own}."
            )
    else:
        none = asked == "none"
        if heeded and not none:
            raise UserError(
                f"no layer of {name!r} has positions, by its config: leave positions at auto, or "
                "mend its config.json."
            )
        if not heeded:
            _check_possible(f"{name!r}, a {config.model_type!r} model,", own, asked)
    return none and not heeded


def _check_possible(model: str, own: str | None, asked: str) -> None:
    """Raise UserError where a checkpoint of a family with its own encoding cannot have these."""
    if own is None:
        raise UserError(
            f"where {model} keeps its positions is not known here: leave positions at auto."
        )
    if asked == "none" and own not in _SWITCHED_OFF:
        raise UserError(
            f"{model} cannot be loaded without its {own} positions: leave positions at auto, and "
            "ablate them."
        )
    if asked not in ("none", own):
        raise UserError(
            f"{model} cannot have {asked} positions: give positions auto, none or {own}."
        )


def _hint(name: str, raw: Mapping[str, Any], config: Any, own: str) -> str | None:
    """What hints at a checkpoint without positions, where transformers does not heed it."""
    # What a family declares, its code heeds; a base of rotation only where it does without one.
    heeded = declared(config.__class__) - {*_DENIED_BY_NULL, "architectures"}
    rope = getattr(config, "rope_parameters", None) or {}
    bases = [kind.get("rope_theta") for kind in (rope, *rope.values()) if isinstance(kind, dict)]
    if not any(bases):
        heeded |= set(_DENIED_BY_NULL)
    # A family that turns a part of each head does so where it is none, too.
    turns_none = _PART in _usual_rotation(config.__class__) and rope.get(_PART) == 0
    words = _Words(
        _OF_ANY | (_OF_ROTATION if own == "rotary" else frozenset()),
        frozenset() if turns_none else _AMOUNTS,
        any(_affirms(key, value) for key, value in raw.items()),
    )
    inner = ((key, value) for _, key, value in _said_of_rotation(raw))
    for key, value in (*raw.items(), *inner):
        if key not in heeded and _denies(key, value, raw, words):
            return f"`{key}: {_cut(json.dumps(value))}` in the config of {name!r}"
    # MPT's code adds ALiBi whatever this says.
    if config.model_type == "mpt" and (raw.get("attn_config") or {}).get("alibi") is False:
        return f"`alibi: false` in the `attn_config` of {name!r}"
    if _NAME.search(re.split(r"[/\\]", name.rstrip("/\\"))[-1].lower()):
        return f"the name {name!r}"
    return None


class _Words(NamedTuple):
    """What denies positions in a config: words of positions, amounts that can be none, and whether
    another field says that there are some."""

    of_positions: frozenset[str]
    amounts: frozenset[str]
    affirmed: bool


def _denies(key: str, value: Any, raw: Mapping[str, Any], words: _Words) -> bool:
    value = _meant(value)
    return (
        (key in _DENIED_BY_TRUE and bool(value))
        or (key in _DENIED_BY_NULL and value is None)
        or (key == "no_rope_layer_interval" and bool(value))
        or (key == "no_rope_layers" and _some_without(value, raw))
        or (key in _ROTATED_LAYERS and _not_all(value, raw))
        or (key == "attention_type" and _is_none(value))
        or _names_nope(frozenset(key.lower().split("_")), value)
        or (key == "architectures" and bool(_CLASS.search(str(value))))
        or _switches_off(frozenset(key.lower().split("_")), value, words)
    )


def _names_nope(key: frozenset[str], value: Any) -> bool:
    """Whether a field says by that word that there are layers without positions."""
    return "nope" in key and key <= _OF_LAYERS | _OTHERS and bool(value)


def _some_without(layers: Any, raw: Mapping[str, Any]) -> bool:
    """Whether a list of layers without rotation has any: their numbers, or a 0 for each of them."""
    return 0 in layers if _flags(layers, raw) else bool(layers)


def _not_all(layers: Any, raw: Mapping[str, Any]) -> bool:
    """Whether a list of layers with rotation leaves one out: their numbers, or a 1 for each."""
    if _flags(layers, raw):
        return 0 in layers
    n_layers = raw.get("num_hidden_layers")
    return isinstance(layers, list) and isinstance(n_layers, int) and len(layers) < n_layers


def _flags(layers: Any, raw: Mapping[str, Any]) -> bool:
    """Whether a list has a 0 or a 1 for each layer."""
    each = isinstance(layers, list) and len(layers) == raw.get("num_hidden_layers")
    return each and all(of in (0, 1) for of in layers)


def _switches_off(key: frozenset[str], value: Any, words: _Words) -> bool:
    """Whether a field of these words says that there are no positions."""
    if not key & words.of_positions:
        return False
    if key & _NEGATIONS:
        return key <= words.of_positions | _OTHERS | _NEGATIONS and bool(value)
    if key <= words.of_positions | _OTHERS:
        # One for all layers, or one for each; false equals 0.
        said_off = any(of == 0 for of in (value if isinstance(value, list) else [value]))
        # That one kind is off says little where another one is on.
        off = said_off and not (words.affirmed and not key & _OF_ROTATION)
        return off or _is_none(value)
    # True and false are numbers, too.
    counted = isinstance(value, int | float) and not isinstance(value, bool)
    return key <= words.of_positions | _OTHERS | words.amounts and counted and value == 0


def _affirms(key: str, value: Any) -> bool:
    """Whether a field says that there are rotations, or another kind of positions."""
    value = _meant(value)
    words, named = frozenset(key.lower().split("_")), isinstance(value, str) and not _is_none(value)
    if not words <= _OF_ROTATION | _OF_ANY | _OTHERS | {"alibi"}:
        return False
    on = bool(words & (_OF_ROTATION | {"alibi"})) and value is True
    return on or (bool(words & _OF_ANY) and named)


def _meant(value: Any) -> Any:
    """True or false where a config has such a word in quotes."""
    return _QUOTED.get(value.lower(), value) if isinstance(value, str) else value


def _is_none(value: Any) -> bool:
    return isinstance(value, str) and bool(_NO_ENCODING.search(value.lower()))


def _cut(text: str, most: int = 40) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
