"""What a model makes of a prompt: the surprisal of each token, and what may come next; and which
part of its run brings that back in the run of another prompt."""

from dataclasses import dataclass, field

import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Int
from torch import Tensor

from experiments.variants.variants import ModelVariant
from nope_interp.errors import UserError, shown
from nope_interp.interventions.patching import patch_in_steps
from nope_interp.models.losses import next_log_probabilities
from nope_interp.streams import check_tokens
from nope_interp.tasks.sources import with_begin_token

# How many of the likeliest next tokens are told.
SHOWN = 10


@dataclass(frozen=True)
class PromptReading:
    """What a model makes of one prompt.

    Attributes:
        ids: the prompt's tokens, behind the begin token where there is one.
        surprisal: one row for each token but the first: the token and its surprisal in nats.
        next_tokens: the likeliest next tokens and their probabilities, the likeliest first.
    """

    ids: Int[Tensor, "1 pos"] = field(repr=False)
    surprisal: pd.DataFrame
    next_tokens: pd.DataFrame

    def __repr__(self) -> str:
        return f"{self.surprisal.to_string()}\n\n{self.next_tokens.to_string()}"


@dataclass(frozen=True)
class PatchReading:
    """What of a clean prompt, put into the run of a corrupted one, brings its prediction back.

    Attributes:
        recovered: share of the logit difference that comes back: a row for each layer, a column for
            each position, or head. 0 is the corrupted run, 1 the clean one.
        clean: the clean run's logit difference: of `answer` less `other`, behind the last token.
        corrupted: that of the corrupted run.
        answer: the clean prompt's likeliest next token.
        other: the corrupted prompt's likeliest one that is not the answer.
    """

    recovered: pd.DataFrame = field(repr=False)
    clean: float
    corrupted: float
    answer: str
    other: str

    def __repr__(self) -> str:
        difference = f"logit difference of {self.answer!r} less {self.other!r}"
        ends = f"{self.clean:z.2f} clean, {self.corrupted:z.2f} corrupted"
        # Adding zero makes a zero of what rounds to minus zero.
        return f"{self.recovered.round(2) + 0}\n\nShare recovered of the {difference}: {ends}"


def prompt_tokens(variant: ModelVariant, prompt: str, most: int) -> Int[Tensor, "1 pos"]:
    """A prompt's tokens, behind the begin token where there is one.

    Args:
        variant: the model with its tokenizer.
        prompt: any text; of a task's model, in the words of the task.
        most: tokens that it may have.

    Returns:
        One sequence.

    Raises:
        UserError: for what is no text, less than two tokens, more than `most`, tokens that the
            model does not have, and text that the tokenizer does not know or that is not valid
            Unicode.
    """
    if not isinstance(prompt, str):
        raise UserError(f"the prompt is {shown(prompt)}: give text.")
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError("the prompt is not valid Unicode: type it again.") from error
    ids = torch.tensor([variant.encode(prompt)], dtype=torch.long)
    if (begin_id := variant.sources[0].begin_id) is not None:
        ids = with_begin_token(ids, begin_id)
    if not 2 <= ids.shape[1] <= most:
        raise UserError(f"the prompt has {ids.shape[1]} tokens: give one of 2 to {most}.")
    check_tokens(variant.model, ids, batch_size=1)
    return ids


def read_prompt(variant: ModelVariant, prompt: str) -> PromptReading:
    """Read a prompt, by the model as it is at present.

    Args:
        variant: the model with its tokenizer.
        prompt: as `prompt_tokens` takes it.

    Returns:
        The reading.

    Raises:
        UserError: as `prompt_tokens`, and for an architecture whose logits are not its unembedding
            of the last layer's output.
    """
    model = variant.model
    ids = prompt_tokens(variant, prompt, model.cfg.n_ctx)
    found = next_log_probabilities(model, ids.to(next(model.parameters()).device), 0)[0].cpu()
    written = rearrange(ids[0, 1:], "pos -> pos 1")
    surprisal = -found[:-1].gather(1, written)[:, 0]
    likeliest = found[-1].exp().topk(min(SHOWN, len(found[-1])))
    return PromptReading(
        ids,
        pd.DataFrame({"token": variant.token_strings(ids[0, 1:]), "surprisal": surprisal}),
        pd.DataFrame(
            {
                "token": variant.token_strings(likeliest.indices),
                "id": likeliest.indices,
                "probability": likeliest.values,
            }
        ),
    )


def patch_prompts(
    variant: ModelVariant, prompt: str, other_prompt: str, at: str = "resid_pre"
) -> PatchReading:
    """Put activations of a prompt into the run of another one, cell by cell.

    Args:
        variant: the model with its tokenizer.
        prompt: the clean one, as `prompt_tokens` takes it.
        other_prompt: the corrupted one, of as many tokens.
        at: "resid_pre", by position, or "head_out" or "pattern", by head.

    Returns:
        The share of the logit difference that comes back.

    Raises:
        UserError: as `prompt_tokens` and `patch_in_steps`.
    """
    most = variant.model.cfg.n_ctx
    clean, corrupted = (prompt_tokens(variant, one, most) for one in (prompt, other_prompt))
    *_, found = patch_in_steps(variant.model, clean, corrupted, at)
    recovered = pd.DataFrame(found.recovered.numpy())
    columns = "position" if at == "resid_pre" else "head"
    recovered = recovered.rename_axis(index="layer", columns=columns)
    answer, other = variant.token_string(found.answer), variant.token_string(found.other)
    return PatchReading(recovered, found.clean, found.corrupted, answer, other)
