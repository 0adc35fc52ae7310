"""Published models that also read images: of these the part that reads text, as its own family."""

from collections.abc import Iterable, Mapping
from typing import Any

# Types whose text part, read alone, gives the logits of the whole model on text.
_TYPES = ("gemma3", "gemma4", "llama4", "mistral3", "qwen3_5")

# The two ways in which such checkpoints name the tensors of their text part.
RENAMED = {
    r"^language_model\.model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
    r"^model\.language_model\.": "model.",
}

# Set on a loaded model: transformers would save it by the names that it was read by.
_PART = "is_text_part"


def text_part(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a config says of the part that reads text; None of a model that is one as a whole.

    Args:
        raw: a checkpoint's config as the file has it.
    """
    return raw.get("text_config", {}) if raw.get("model_type") in _TYPES else None


def config_of_text(config: Any) -> Any:
    """The config of the text part.

    Args:
        config: of the whole model, which says whether embedding and unembedding are one.
    """
    config.text_config.tie_word_embeddings = config.tie_word_embeddings
    return config.text_config


def mark(model: Any) -> None:
    """Remember that a model is a text part, for when it is saved.

    Args:
        model: that was loaded as the text part.
    """
    setattr(model, _PART, True)


def is_text_part(model: Any) -> bool:
    """Whether a model is the text part of a checkpoint that also reads images.

    Args:
        model: of transformers.
    """
    return getattr(model, _PART, False)


def of_text(model: Any, unexpected: Iterable[str]) -> set[str]:
    """Those of some tensors that belong to the text part, by their names.

    Args:
        model: that was loaded as the text part.
        unexpected: names of tensors that it has no place for.
    """
    own = {_stem(name) for name in model.state_dict()}
    return {name for name in unexpected if _stem(name) in own}


def _stem(name: str) -> str:
    """Such as `model.layers` or `lm_head.weight`: images have their own."""
    return ".".join(name.split(".")[:2])
