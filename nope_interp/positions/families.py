"""What is known of families of pretrained models: how each encodes positions, and in which layers.

A family is a Hugging Face `model_type`. Everything here is read from a config; what a loaded model
has is found in `layers`.
"""

from functools import cache
from typing import Any

# Families, by Hugging Face `model_type`, whose every source of position is known. Any other may
# carry positions where nothing here looks, so it is refused.
_BY_ENCODING = {
    "learned": ("gpt2", "gpt_bigcode", "gpt_neo", "opt"),
    "rotary": (
        *("afmoe", "apertus", "arcee", "codegen", "cohere", "cohere2", "ernie4_5", "exaone4"),
        *("falcon", "gemma", "gemma2", "gemma3_text", "gemma4_text", "glm", "glm4", "glm4_moe"),
        *("gpt_neox", "gpt_oss", "gptj", "granite", "granitemoe", "granitemoehybrid"),
        *("hunyuan_v1_dense", "llama", "llama4_text", "ministral3", "mistral", "mixtral"),
        *("nanochat", "nemotron", "olmo", "olmo2", "olmo3", "olmo_hybrid", "olmoe", "phi"),
        *("phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_5_text", "qwen3_moe", "qwen3_next"),
        *("seed_oss", "smollm3", "stablelm", "starcoder2", "vaultgemma"),
    ),
    "alibi": ("bloom", "mpt"),
    "t5": ("t5",),
    # Recurrent layers tell order; attention has no positions.
    "none": ("jamba",),
}
FAMILIES = {family: encoding for encoding, names in _BY_ENCODING.items() for family in names}

# Families whose frequencies turn neighbouring dimensions; the others' turn one of each half.
NEIGHBOURS = ("codegen", "cohere", "cohere2", "ernie4_5", "glm", "glm4", "gptj", "llama4_text")
# Of these, families whose angles come in halves all the same: attention deals them out.
ANGLES_IN_HALVES = ("ernie4_5", "glm", "glm4")

# Set in a pretrained model's config where its family's positions are switched off: it has none.
WITHOUT = "without_positions"
# Families whose attention looks its sines and cosines up in a table of its own.
TABLED = ("gptj", "codegen")
# Families whose attention is given its angles: no hook shows them.
GIVEN = ("afmoe", "gemma4_text", "llama4_text", "nanochat", "olmo_hybrid")


def family_encoding(config: Any) -> str | None:
    """How the family of a Hugging Face config encodes positions; None where that is not known.

    Args:
        config: of a loaded model, or of one that is to be loaded.
    """
    if config.model_type == "falcon" and config.alibi:
        return "alibi"
    return FAMILIES.get(config.model_type)


def has_encoding(config: Any, layer: int) -> bool:
    """Whether a layer has its family's encoding: in hybrids some layers have none.

    Args:
        config: of a model of a known family.
        layer: from 0.
    """
    family, kind = config.model_type, layer_type(config, layer)
    if family in ("smollm3", "llama4_text"):
        return bool(config.no_rope_layers[layer])
    if family in ("afmoe", "cohere2"):
        return kind == "sliding_attention"
    if family == "exaone4":
        return kind == "sliding_attention" or config.sliding_window is None
    if family == "olmo_hybrid":
        return (config.rope_parameters or {}).get("rope_theta") is not None
    if family == "granitemoehybrid":
        return bool(config.position_embedding_type == "rope")
    return True


def rotates_somewhere(config: Any) -> bool:
    """Whether any layer of a rotary family's model has its rotation, by its own config.

    Args:
        config: of a loaded model, or of one that is to be loaded.
    """
    return any(has_encoding(config, layer) for layer in range(config.num_hidden_layers))


@cache
def declared(family: Any) -> frozenset[str]:
    """What a family's config declares, and its code heeds: transformers keeps other keys, too.

    Args:
        family: the class of the config.
    """
    return frozenset(family().to_dict())


def _heeded(config: Any, name: str) -> Any:
    return getattr(config, name, None) if name in declared(config.__class__) else None


def layer_type(config: Any, layer: int) -> str | None:
    """What a config calls a layer, such as "sliding_attention"; None where all are alike.

    Args:
        config: of a model of a known family.
        layer: from 0.
    """
    # Jamba's are made of other fields.
    own = config.model_type == "jamba"
    types = config.layer_types if own else _heeded(config, "layer_types")
    return None if types is None else types[layer]


def window_of(config: Any, layer: int) -> int | None:
    """How many tokens a query sees there, itself included; None where it sees all before it.

    Args:
        config: of a model of a known family.
        layer: from 0.
    """
    if config.model_type == "gpt_neo":
        return config.window_size if config.attention_layers[layer] == "local" else None
    windowed = layer_type(config, layer) in (None, "sliding_attention")
    return _heeded(config, "sliding_window") if windowed else None
