"""Which positions a checkpoint has, by what its config, its name and the user say.

transformers reads a config's family and rotates queries and keys as that family does, whatever the
authors of a checkpoint did: a model that was trained without positions may come as a plain Llama.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from nope_interp.errors import UserError, unknown_name
from nope_interp.models.config import DECLARED
from nope_interp.positions.layers import FAMILIES, WITHOUT, declared, family_encoding

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
_OF_POSITIONS = frozenset({"rope", "rotary", "pe", "pos", "position", "positional", "positions"})
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
_DENIED_BY_NULL = ("rope_theta", "rope_parameters")
_DENIED_BY_LIST = ("no_rope_layers", "no_rope_layer_interval")
# Encodings that can be switched off in a checkpoint which has none.
_SWITCHED_OFF = ("rotary", "learned")
_NO_ENCODING = re.compile(r"(^|[^a-z])(no_?pe|no_?pos[a-z_]*|none|null)([^a-z]|$)")
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
    if raw.get("model_type") == "olmo_hybrid":  # its code knows a base that is none
        return
    for field in ("rope_parameters", "rope_scaling"):
        inner = raw.get(field)
        for key, value in inner.items() if isinstance(inner, dict) else ():
            kind = key in ("rope_type", "type") and _NO_ENCODING.search(str(value).lower())
            if kind or (key == "rope_theta" and not value):
                raise UserError(
                    f"`{key}: {json.dumps(value)}` in the `{field}` of {name!r} hints at no "
                    f"positional encoding, and transformers cannot read it: take `{field}` out of "
                    "config.json, and add --positions none, or --positions rotary."
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


def _turned(raw: Mapping[str, Any]) -> int | None:
    """How many dimensions of a head are turned; None where the config does not say."""
    if isinstance(raw.get("rotary_dim"), int) and raw["model_type"] in ("gptj", "codegen"):
        return int(raw["rotary_dim"])
    size, width, heads = (raw.get(k) for k in ("head_dim", "hidden_size", "num_attention_heads"))
    if size is None and isinstance(width, int) and isinstance(heads, int) and heads > 0:
        size = width // heads
    # Of an odd number GPT-NeoX turns one less.
    if not isinstance(size, int) or raw["model_type"] == "gpt_neox":
        return None
    inner = raw.get("rope_parameters")
    told = {**raw, **(inner if isinstance(inner, dict) else {})}
    return int(size * (told.get("partial_rotary_factor") or 1))


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
    if asked == "auto":
        none = published or is_known(name) or raw.get(WITHOUT) is True
        hint = None if none or own is None else _hint(name, raw, config)
        if hint is not None:
            none_too = "--positions none, or " if own in _SWITCHED_OFF else ""
            raise UserError(
                f"{hint} hints at no positional encoding, but transformers would use {own} "
                f"positions: add {none_too}--positions {own}."
            )
    else:
        none = asked == "none"
        _check_possible(f"{name!r}, a {config.model_type!r} model,", own, asked)
    return none


def _check_possible(model: str, own: str | None, asked: str) -> None:
    """Raise UserError where a checkpoint of a family with its own encoding cannot have these."""
    if own is None:
        raise UserError(
            f"where {model} keeps its positions is not known here: leave --positions out."
        )
    if asked == "none" and own not in _SWITCHED_OFF:
        raise UserError(
            f"{model} cannot be loaded without its {own} positions: leave --positions out, and "
            "take them away with --ablate."
        )
    if asked not in ("none", own):
        raise UserError(
            f"{model} cannot have {asked} positions: give --positions auto, none or {own}."
        )


def _hint(name: str, raw: Mapping[str, Any], config: Any) -> str | None:
    """What hints at a checkpoint without positions, where transformers does not heed it."""
    # What a family declares, its code heeds; a base of rotation only where it does without one.
    heeded = declared(config.__class__) - {*_DENIED_BY_NULL, "architectures"}
    rope = getattr(config, "rope_parameters", None) or {}
    bases = [kind.get("rope_theta") for kind in (rope, *rope.values()) if isinstance(kind, dict)]
    if not any(bases):
        heeded |= set(_DENIED_BY_NULL)
    # Of a family that turns a part of each head, none of it can be turned.
    usual = getattr(config.__class__(), "rope_parameters", None) or {}
    amounts = frozenset() if "partial_rotary_factor" in usual else _AMOUNTS
    for key, value in raw.items():
        if key not in heeded and _denies(key, value, amounts):
            return f"`{key}: {_cut(json.dumps(value))}` in the config of {name!r}"
    # MPT's code adds ALiBi whatever this says.
    if config.model_type == "mpt" and raw.get("attn_config", {}).get("alibi") is False:
        return f"`alibi: false` in the `attn_config` of {name!r}"
    if _NAME.search(re.split(r"[/\\]", name.rstrip("/\\"))[-1].lower()):
        return f"the name {name!r}"
    return None


def _denies(key: str, value: Any, amounts: frozenset[str]) -> bool:
    return (
        (key in _DENIED_BY_TRUE and bool(value))
        or (key in _DENIED_BY_NULL and value is None)
        or (key in _DENIED_BY_LIST and bool(value))
        or (key == "attention_type" and _is_none(value))
        or (key == "architectures" and "nope" in str(value).lower())
        or _switches_off(set(key.lower().split("_")), value, amounts)
    )


def _switches_off(words: set[str], value: Any, amounts: frozenset[str]) -> bool:
    """Whether a field of these words says that there are no positions."""
    if not words & _OF_POSITIONS:
        return False
    if words <= _OF_POSITIONS | _OTHERS:
        return value is False or value == 0 or _is_none(value)
    # True and false are numbers, too.
    counted = isinstance(value, int | float) and not isinstance(value, bool)
    return words <= _OF_POSITIONS | _OTHERS | amounts and counted and value == 0


def _is_none(value: Any) -> bool:
    return isinstance(value, str) and bool(_NO_ENCODING.search(value.lower()))


def _cut(text: str, most: int = 40) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
