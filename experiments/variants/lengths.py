"""How long the sequences may be that a model reads."""

from functools import partial
from typing import Any

from nope_interp.errors import UserError, shown, warn
from nope_interp.fields import is_whole
from nope_interp.hooked_model import HookedModel
from nope_interp.memory import check_room, forward_bytes
from nope_interp.positions.families import TABLED, family_encoding

# Families that look their angles, or biases, up in a table, which ends.
_TABLES = (*TABLED, "mpt")
_SHORTEST = 8


def beyond_context(model: HookedModel, seq_len: int) -> tuple[str, ...]:
    """A sentence where sequences are longer than what a pretrained model was made for.

    Args:
        model: a bridge.
        seq_len: tokens in a sequence.

    Raises:
        UserError: where it has no positions for them.
    """
    config = model.original_model.config
    limit = context_of(config)
    if limit is None or seq_len <= limit:
        return ()
    check_has_positions(config, seq_len)
    return (
        f"Sequences of {seq_len} tokens are longer than the context of {limit} tokens that the "
        "model was made for.",
    )


def check_length(model: HookedModel, kind: str, seq_len: int, n_sequences: int) -> None:
    """Refuse sequences that a loaded model cannot read; warn of those beyond its context.

    Args:
        model: ours, or a bridge.
        kind: of the model variant; one that is not "pretrained" ends where its context does.
        seq_len: tokens in a sequence.
        n_sequences: how many are read at a time.

    Raises:
        UserError: for too short or too long ones, and for those that memory cannot hold.
    """
    limit = model.cfg.n_ctx
    if not is_whole(seq_len, _SHORTEST):
        raise UserError(f"seq_len is {shown(seq_len)}: give a whole number from {_SHORTEST} on.")
    if kind != "pretrained":
        if seq_len > limit:
            raise UserError(
                f"seq_len is {seq_len}: give {_SHORTEST} to {limit}, the model's context."
            )
        return
    for told in beyond_context(model, seq_len):
        warn(told)
    check_room("seq_len", seq_len, partial(forward_bytes, model, n_sequences), model)


def context_of(config: Any) -> int | None:
    """The tokens that a pretrained model was made for.

    Args:
        config: of transformers.

    Returns:
        None where it does not say.
    """
    name = "max_seq_len" if config.model_type == "mpt" else "max_position_embeddings"
    return getattr(config, name, None)


def most_tokens(config: Any) -> int | None:
    """The most tokens that a pretrained model has positions for.

    Args:
        config: of transformers.

    Returns:
        None where there is no end.
    """
    ends = family_encoding(config) == "learned" or config.model_type in _TABLES
    return context_of(config) if ends else None


def check_has_positions(config: Any, seq_len: int) -> None:
    """Refuse sequences that a pretrained model has no positions for.

    Args:
        config: of transformers.
        seq_len: tokens in a sequence.

    Raises:
        UserError: where there are more than `most_tokens`.
    """
    most = most_tokens(config)
    if most is not None and seq_len > most:
        raise UserError(
            f"sequences of {seq_len} tokens are longer than the model's context of {most}, and it "
            "has no positions beyond: shorten them."
        )
