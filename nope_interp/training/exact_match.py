"""Whether a model answers exactly, for all examples at once."""

import torch
from jaxtyping import Bool
from torch import Tensor

from nope_interp.models.marked import before, logits_at
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.examples import Examples
from nope_interp.training.answer_masking import AnswerMasking


@torch.no_grad()
def exact_matches(
    model: HookedTransformer,
    examples: Examples,
    *,
    masking: AnswerMasking | None = None,
    batch_size: int = 256,
) -> Bool[Tensor, " example"]:
    """Whether the model gives the whole answer of each example.

    By greedy decoding from the prompt, which then has to end. One forward pass over the right
    answer tells: greedy decoding follows it for as long as the most likely next token is the right
    one, and the answer is wrong from the first one that is not. So no token has to be decoded.

    Args:
        model: in evaluation mode.
        examples: of any lengths; what stands after the end of one is not looked at, but for models
            without a causal mask. These see as many blanks as the longest example has.
        masking: hides the answers; each token is then told at its own position, all at once.
        batch_size: examples in one forward pass.

    Returns:
        `[example]`.
    """
    parts = zip(examples.tokens.split(batch_size), examples.answer.split(batch_size), strict=True)
    found = []
    for tokens, answer in parts:
        seen, told = tokens, answer
        asked = before(answer)
        if masking is not None:
            seen = masking.hidden(tokens, answer)
            asked = told = masking.asked(tokens, answer)
        likeliest = logits_at(model, seen, asked).argmax(dim=-1).cpu()
        right = torch.ones_like(told)
        right[told] = likeliest == tokens[told]
        found.append(right.all(dim=1))
    return torch.cat(found)
