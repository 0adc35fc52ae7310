"""Masked language models with and without positions: without a causal mask, nothing else tells them
the order of what they see."""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from experiments.results.findings import Array
from nope_interp.models.config import TransformerConfig
from nope_interp.models.losses import unigram_losses
from nope_interp.models.marked import answers_loss
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import Marked, Sequences, Tokens
from nope_interp.tasks.registry import make_task
from nope_interp.training.config import TrainingConfig
from nope_interp.training.loop import optimize, step_seed

# The share of tokens that are hidden (Devlin et al. 2019), each behind the same blank.
_HIDDEN = 0.15
_BATCH = 32
# Four times the steps of the causal models, of four times the sequences: of each sequence a masked
# model is asked for a seventh of the tokens.
_TIMES = 4


def masked_model(
    base: TransformerConfig,
    steps: int,
    unseen: Callable[[int], tuple[Sequences, Sequences]],
    device: str,
    seed: int,
) -> dict[str, Array]:
    """Trains a model to fill in blanks.

    Args:
        base: the causal model that it is like but for the mask.
        steps: of the causal model's training.
        unseen: by seed, sequences that training never sees: to count bytes in, and to hold out.
        device: a torch device.
        seed: of the model, its training and the blanks.

    Returns:
        `loss`, of held-out blanks, the mean over batches of their means, and `chance`, of who knows
        how often each byte stands in the text; both in nats per byte.
    """
    task = make_task("text")
    blank = base.d_vocab  # a token of its own
    config = replace(base, d_vocab=blank + 1, causal=False, seed=seed)
    training = TrainingConfig(
        steps=_TIMES * steps,
        warmup=min(100, steps),
        batch_size=_BATCH,
        seq_len=base.n_ctx,
        learning_rate=0.32 / base.d_model,
        seed=seed,
    )
    model = HookedTransformer(config).to(device)

    def loss_of(tokens: Tokens, generator: Generator) -> Float[Tensor, ""]:
        hidden = blanks(tokens, task.tokenizer.begin_id, generator)
        filled = tokens.masked_fill(hidden, blank)
        return answers_loss(model, filled, hidden, tokens[hidden])

    def loss_at(step: int) -> Float[Tensor, ""]:
        generator = Generator().manual_seed(step_seed(training, step))
        tokens, _ = task.batch(_BATCH, base.n_ctx, generator)
        return loss_of(tokens, generator)

    header = {"config": config.to_dict(), "hidden": _HIDDEN}
    optimize(model, training, loss_at, header=header, title="masked", show_progress=False)
    fit, held_out = unseen(seed)
    generator = Generator().manual_seed(seed)
    with torch.no_grad():
        losses = [loss_of(some, generator).double().cpu() for some in held_out.split(_BATCH)]
    return {
        "loss": torch.stack(losses).mean().numpy(),
        "chance": unigram_losses(fit, held_out, base.d_vocab).double().mean().numpy(),
    }


def blanks(tokens: Tokens, begin_id: int | None, generator: Generator) -> Marked:
    """Which tokens are hidden: each with the same chance, at least one, never a begin token.

    Args:
        tokens: `[batch pos]`.
        begin_id: None where there is no begin token.
        generator: of the draw.
    """
    drawn = torch.rand(tokens.shape, generator=generator)
    if begin_id is not None:
        drawn = drawn.masked_fill(tokens == begin_id, 1.0)
    return drawn <= torch.maximum(drawn.min(), torch.tensor(_HIDDEN))
