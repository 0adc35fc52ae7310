"""What a model of ours predicts at marked positions: logits, and their loss, and no others.

Where the marked positions are is worked out on the device that the marks come on: marks on the CPU
need not wait for a GPU's earlier work.
"""

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import Marked, Tokens


def before(answer: Marked) -> Marked:
    """The positions whose next token is an answer.

    Args:
        answer: `[batch pos]`, which tokens are one.

    Returns:
        `[batch pos]`; never the last position.
    """
    return F.pad(answer[:, 1:], (0, 1))


def logits_at(
    model: HookedTransformer, tokens: Tokens, wanted: Marked
) -> Float[Tensor, "wanted d_vocab"]:
    """Logits at the positions marked as wanted, in reading order; no others are computed.

    Args:
        model: any of ours.
        tokens: `[batch pos]`, on any device.
        wanted: `[batch pos]`, at least one of them, on any device.

    Returns:
        `[wanted d_vocab]`, on the model's device.
    """
    first, sequences, places = _places(wanted)
    tokens, sequences, places = _beside(model, tokens, sequences, places)
    return _logits(model, tokens, first, sequences, places)


def answers_loss(
    model: HookedTransformer,
    tokens: Tokens,
    wanted: Marked,
    answers: Int[Tensor, " wanted"],
    *,
    cross_entropy: Callable[..., Tensor] | None = None,
) -> Float[Tensor, ""]:
    """Mean cross-entropy, in nats per token, of what answers at the positions marked as wanted.

    Args:
        model: any of ours.
        tokens: `[batch pos]`, on any device, as all others.
        wanted: `[batch pos]`, at least one of them.
        answers: the right tokens there, in reading order.
        cross_entropy: `answers_cross_entropy`, compiled; None for the function as it is.

    Returns:
        One number, with a gradient.
    """
    compute = cross_entropy or answers_cross_entropy
    first, sequences, places = _places(wanted)
    tokens, answers, sequences, places = _beside(model, tokens, answers, sequences, places)
    return compute(model, tokens, answers.long(), first, sequences, places)


def answers_cross_entropy(
    model: HookedTransformer,
    tokens: Tokens,
    answers: Int[Tensor, " wanted"],
    first: int,
    sequences: Int[Tensor, " wanted"],
    places: Int[Tensor, " wanted"],
) -> Float[Tensor, ""]:
    """What `answers_loss` gives. Nothing depends on what tensors hold: it compiles in one piece.

    Args:
        model: any of ours.
        tokens: `[batch pos]`.
        answers: the right tokens.
        first: the first position of which any is asked.
        sequences: which of the batch each is of.
        places: positions, counted from `first`.

    Returns:
        One number, with a gradient.
    """
    return F.cross_entropy(_logits(model, tokens, first, sequences, places).float(), answers)


def _beside(model: HookedTransformer, *tensors: Tensor) -> list[Tensor]:
    """The tensors on the model's device. On the way to a GPU nothing waits for the copy; on the way
    back it would be read before it is there."""
    device = model.embed.weight.device
    return [tensor.to(device, non_blocking=device.type == "cuda") for tensor in tensors]


def _places(wanted: Marked) -> tuple[int, Tensor, Tensor]:
    """The first marked position; of each marked one its sequence, and how far behind that it is."""
    first = int(wanted.any(dim=0).int().argmax())
    sequences, places = wanted[:, first:].nonzero(as_tuple=True)
    return first, sequences, places


def _logits(
    model: HookedTransformer, tokens: Tokens, first: int, sequences: Tensor, places: Tensor
) -> Float[Tensor, "wanted d_vocab"]:
    return model.unembed(model.read_from(tokens, first)[sequences, places])
