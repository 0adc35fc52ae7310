"""What a model of ours predicts at marked positions: logits, and their loss, and no others.

Where the marked positions are is worked out on the device that the marks come on: marks on the CPU
need not wait for a GPU's earlier work.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import Marked, Tokens


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
    device = model.embed.weight.device
    return _logits(
        model, tokens.to(device, non_blocking=_unwaited(device)), *_places(wanted, device)
    )


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
    device = model.embed.weight.device
    first, sequences, places = _places(wanted, device)
    told = answers.to(device, torch.long, non_blocking=_unwaited(device))
    given = tokens.to(device, non_blocking=_unwaited(device))
    return compute(model, given, told, first, sequences, places)


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


def _unwaited(device: torch.device) -> bool:
    """Whether what is copied there need not be waited for: on the way back it would be read before
    it is there."""
    return device.type == "cuda"


def _places(wanted: Marked, device: torch.device) -> tuple[int, Tensor, Tensor]:
    """The first marked position; of each marked one its sequence, and how far behind that it is."""
    first = int(wanted.any(dim=0).int().argmax())
    sequences, places = wanted[:, first:].nonzero(as_tuple=True)
    moved = [at.to(device, non_blocking=_unwaited(device)) for at in (sequences, places)]
    return first, moved[0], moved[1]


def _logits(
    model: HookedTransformer, tokens: Tokens, first: int, sequences: Tensor, places: Tensor
) -> Float[Tensor, "wanted d_vocab"]:
    return model.unembed(model.read_from(tokens, first)[sequences, places])
