"""Which models have heads that can be labelled, and how many heads are there?"""

from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel, attention_layers
from nope_interp.models.sinks import attention_sinks
from nope_interp.positions.layers import layer_positions
from nope_interp.sites import layer_ranges


def check_attention(model: HookedModel, name: str = "the model") -> None:
    """Refuse a model without any heads.

    Args:
        model: a HookedTransformer or a bridge.
        name: what a message calls it.

    Raises:
        UserError: with its name.
    """
    if not attention_layers(model):
        raise UserError(
            f"{name} shows no attention in any layer, and so no heads to label: choose another "
            "model, or `probe`."
        )


def check_chance_levels(model: HookedModel, seq_len: int, name: str) -> None:
    """Refuse a model whose heads have no chance levels on such sequences.

    Args:
        model: a HookedTransformer or a bridge.
        seq_len: tokens in a sequence.
        name: what a message calls it.

    Raises:
        UserError: for no heads, with attention sinks, or with shorter chunks.
    """
    check_attention(model, name)
    if sinks := attention_sinks(model):
        raise UserError(
            f"heads of {name} have attention sinks in {layer_ranges(sinks)}, and weights that sum "
            "to less than one have no labels here: choose another model, or `compare`."
        )
    for at in layer_positions(model):
        if at.chunk is not None and at.chunk < seq_len:
            raise UserError(
                f"layer {at.layer} of {name} attends in chunks of {at.chunk} tokens, for which "
                f"heads have no chance levels here: give sequences of at most {at.chunk} tokens."
            )


def n_heads(model: HookedModel) -> int:
    """How many heads a model has in all its layers."""
    return len(attention_layers(model)) * int(model.cfg.n_heads)
