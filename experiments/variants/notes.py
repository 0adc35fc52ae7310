"""What a reader of a pretrained model's numbers has to know of the model."""

from nope_interp.hooked_model import HookedModel
from nope_interp.models.sinks import sinks_note
from nope_interp.positions.layers import (
    LayerPositions,
    edge_notes,
    layer_positions,
    positions_in_words,
)
from nope_interp.sites import layer_ranges


def notes_on_pretrained(model: HookedModel, seq_len: int) -> tuple[str, ...]:
    """Sentences about a pretrained model that is read in sequences of `seq_len` tokens.

    Args:
        model: a bridge.
        seq_len: tokens in a sequence.
    """
    notes = [
        "A pretrained model has no bidirectional variant, because its attention mask cannot be "
        "lifted here. Of the controls only the shuffled positions should show nothing. The "
        "random-init variant shows what the architecture gives without training."
    ]
    if positions_in_words(model) == "unknown":
        notes.append(
            "Where this model keeps its positions is not known here: an encoding of its own may be "
            "at work beside the causal mask."
        )
    else:
        layers = layer_positions(model)
        notes += [_on_encoding(layers), *edge_notes(layers, seq_len)]
    if (note := sinks_note(model)) is not None:
        notes.append(note)
    return tuple(notes)


def _on_encoding(layers: tuple[LayerPositions, ...]) -> str:
    without = [layer.layer for layer in layers if layer.encoding == "none"]
    if len(without) == len(layers):
        return (
            "This model has no positional encoding: what is read here comes from the causal mask."
        )
    if without:
        return (
            f"This model has no positional encoding in {layer_ranges(without)}, and its own in the "
            "others. Where that is not taken away, it is read together with the causal mask."
        )
    return (
        "This model has a positional encoding in every layer. Where it is not taken away, it is "
        "read together with the causal mask."
    )
