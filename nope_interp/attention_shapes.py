"""What a Hugging Face config says of attention: how wide heads are, whose keys a layer reads."""

from typing import Any


def head_size(config: Any) -> int:
    """How many dimensions a head of a Hugging Face model has, or its widest where layers differ.

    Args:
        config: of a rotary model; one that does not say divides its width among its heads.
    """
    if config.is_heterogeneous:
        each = (config.per_layer_config[layer] for layer in range(config.num_hidden_layers))
        return max(of.head_dim for of in each)
    own = getattr(config, "head_dim", None)
    return int(own or config.hidden_size // config.num_attention_heads)


def keys_of(config: Any, layer: int) -> int | None:
    """The earlier layer whose keys and values a layer reads; None where it makes its own.

    Args:
        config: of a loaded model.
        layer: from 0.

    Returns:
        The last one of its kind that makes its own.
    """
    if config.model_type != "gemma4_text":
        return None
    made = config.num_hidden_layers - config.num_kv_shared_layers
    if layer < made:
        return None
    kind = config.layer_types[layer]
    return max(earlier for earlier in range(made) if config.layer_types[earlier] == kind)
