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
# keeps those that a family does not declare, and does not heed them.
_DENIED_BY_FALSE = ("use_rope", "rope", "use_rotary", "use_rotary_embeddings")
_DENIED_BY_TRUE = ("nope", "use_nope", "no_rope")
_DENIED_BY_NULL = ("rope_theta", "rope_parameters")
_DENIED_BY_NAME = (
    "position_embedding_type",
    "positional_embedding_type",
    "position_encoding_type",
    "positional_encoding",
    "attention_type",
)
_DENIED_BY_LIST = ("no_rope_layers", "no_rope_layer_interval")
# Encodings that can be switched off in a checkpoint which has none.
_SWITCHED_OFF = ("rotary", "learned")
_NO_ENCODING = re.compile(r"(^|[^a-z])(nope|none|null)([^a-z]|$)")
_NAME = re.compile(r"(^|[^a-z])(nope|drope)([^a-z]|$)")


def is_known(name: str) -> bool:
    """Whether a hub name is that of a published checkpoint without positions that says so nowhere.

    Args:
        name: as the user gave it.
    """
    return name.lower() in _KNOWN


def check_pairs(name: str, raw: Mapping[str, Any]) -> None:
    """Raise UserError where transformers would turn an odd number of dimensions in pairs.

    It reads no such config, not even for a model whose positions are switched off.

    Args:
        name: the checkpoint's, as the user gave it.
        raw: its config as the file has it.
    """
    size, width, heads = (raw.get(k) for k in ("head_dim", "hidden_size", "num_attention_heads"))
    if size is None and isinstance(width, int) and isinstance(heads, int) and heads > 0:
        size = width // heads
    turned = raw.get("partial_rotary_factor") or raw.get("rotary_pct") or 1
    encoding = FAMILIES.get(raw.get("model_type", ""))
    if encoding == "rotary" and turned == 1 and isinstance(size, int) and size % 2:
        raise UserError(
            f"transformers turns dimensions in pairs, but a head of {name!r} has {size}: choose "
            "another model."
        )


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
    heeded = declared(config.__class__) - set(_DENIED_BY_NULL)
    rope = getattr(config, "rope_parameters", None) or {}
    bases = [kind.get("rope_theta") for kind in (rope, *rope.values()) if isinstance(kind, dict)]
    if not any(bases):
        heeded |= set(_DENIED_BY_NULL)
    for key, value in raw.items():
        if key not in heeded and _denies(key, value):
            return f"`{key}: {_cut(json.dumps(value))}` in the config of {name!r}"
    # MPT's code adds ALiBi whatever this says.
    if config.model_type == "mpt" and raw.get("attn_config", {}).get("alibi") is False:
        return f"`alibi: false` in the `attn_config` of {name!r}"
    if _NAME.search(re.split(r"[/\\]", name.rstrip("/\\"))[-1].lower()):
        return f"the name {name!r}"
    return None


def _denies(key: str, value: Any) -> bool:
    return (
        (key in _DENIED_BY_FALSE and value is False)
        or (key in _DENIED_BY_TRUE and value is True)
        or (key in _DENIED_BY_NULL and value is None)
        or (key in _DENIED_BY_NAME and bool(_NO_ENCODING.search(str(value).lower())))
        or (key in _DENIED_BY_LIST and bool(value))
    )


def _cut(text: str, most: int = 40) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
