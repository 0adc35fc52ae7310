"""Whether a model answers exactly, for all examples at once."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor

from nope_interp.models.losses import logits_at
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.answers import Examples


@torch.no_grad()
def exact_matches(
    model: HookedTransformer, examples: Examples, *, batch_size: int = 256
) -> Bool[Tensor, " example"]:
    """Whether greedy decoding from the prompt would give the whole answer and then end.

    One forward pass over the right answer tells: greedy decoding follows it for as long as the most
    likely next token is the right one, and the answer is wrong from the first one that is not. So
    no token has to be decoded.

    Args:
        model: in evaluation mode.
        examples: of any lengths; what stands after the end of one is not looked at.
        batch_size: examples in one forward pass.

    Returns:
        `[example]`.
    """
    device = model.W_E.device
    parts = zip(examples.tokens.split(batch_size), examples.answer.split(batch_size), strict=True)
    found = []
    for tokens, answer in parts:
        asked = F.pad(answer[:, 1:], (0, 1))  # the position before each token of the answer
        likeliest = logits_at(model, tokens.to(device), asked.to(device)).argmax(dim=-1).cpu()
        right = torch.ones_like(answer)
        right[answer] = likeliest == tokens[answer]
        found.append(right.all(dim=1))
    return torch.cat(found)
