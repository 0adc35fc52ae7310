"""What a GGUF file says of rotation and windows, and transformers does not read."""

from typing import Any

from nope_interp.attention_shapes import head_size
from nope_interp.errors import UserError
from nope_interp.positions.families import declared

# Of Gemma 3 the file's scaling is that of its global layers (its family's configs say so).
_GLOBAL = "full_attention"
_PART = "partial_rotary_factor"
# transformers reads these itself.
_READ = ("gpt-oss", "gpt_oss")
# Keys of a scaling that are followed below, and one that changes nothing.
_FOLLOWED = frozenset({"type", "factor", "original_context_length", "finetuned"})


def follow_rotation(reader: Any, config: Any, name: str) -> None:
    """Let a config rotate as its file says: by its base, its scaling, its own frequencies, and as
    much of each head.

    Llama 3.1 and later divide their frequencies by factors, which llama.cpp writes as a tensor.

    Args:
        reader: of the file, `gguf.GGUFReader`.
        config: as transformers reads it from the file; its `rope_parameters` are changed.
        name: of the file.

    Raises:
        UserError: for a scaling that cannot be followed.
    """
    family = reader.fields["general.architecture"].contents()
    rope = getattr(config, "rope_parameters", None)
    if not rope or family in _READ:
        return
    if (base := _said(reader, f"{family}.rope.freq_base")) is not None:
        rope.get(_GLOBAL, rope)["rope_theta"] = float(base)
    turned = _said(reader, f"{family}.rope.dimension_count")
    if turned is not None and _PART in rope:
        rope[_PART] = int(turned) / head_size(config)
    scaling = _scaling(reader, f"{family}.rope.scaling.", config)
    by_layers = "rope_theta" not in rope and not family.startswith("gemma3")
    if scaling is None or (scaling and by_layers):
        raise UserError(
            f"the file {name!r} scales its rotary positions in a way that is not read here: give "
            "the model's Hugging Face folder."
        )
    rope.get(_GLOBAL, rope).update(scaling)


def follow_window(reader: Any, config: Any) -> None:
    """Let a config that takes a window, and has none yet, have the one that its file says.

    Args:
        reader: of the file, `gguf.GGUFReader`.
        config: as transformers reads it from the file; its `sliding_window` is changed.
    """
    family = reader.fields["general.architecture"].contents()
    window = _said(reader, f"{family}.attention.sliding_window")
    if window and "sliding_window" in declared(config.__class__) and config.sliding_window is None:
        config.sliding_window = int(window)


def _said(reader: Any, key: str) -> Any:
    field = reader.fields.get(key)
    return None if field is None else field.contents()


def _scaling(reader: Any, prefix: str, config: Any) -> dict[str, Any] | None:
    """The parameters that transformers knows it by; None where it has none."""
    told = {
        key.removeprefix(prefix): field.contents()
        for key, field in reader.fields.items()
        if key.startswith(prefix)
    }
    tensors = {tensor.name: tensor for tensor in reader.tensors if tensor.name.startswith("rope_")}
    kind = told.get("type", "none")
    if not told.keys() <= _FOLLOWED or not tensors.keys() <= {"rope_freqs.weight"}:
        return None
    if tensors:
        return _own_frequencies(tensors["rope_freqs.weight"], config) if kind == "none" else None
    if kind == "none":
        return {}
    if kind == "linear" and "factor" in told:
        return {"rope_type": "linear", "factor": float(told["factor"])}
    if kind == "yarn" and {"factor", "original_context_length"} <= told.keys():
        return {
            "rope_type": "yarn",
            "factor": float(told["factor"]),
            "original_max_position_embeddings": int(told["original_context_length"]),
        }
    return None


def _own_frequencies(tensor: Any, config: Any) -> dict[str, Any]:
    """Each frequency divided by a number of its own, at every length, and attention as it is."""
    factors = tensor.data.astype(float).tolist()
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": config.max_position_embeddings,
    }
