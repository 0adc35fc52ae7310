"""How well a trained model does on its own task, beside what its loss is to be held against."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from experiments.variants.config import ExperimentConfig
from experiments.variants.train import task_of
from nope_interp.models.checkpoints import load_model
from nope_interp.models.losses import answer_losses, bigram_losses, sequence_losses
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.answers import AnswerTask
from nope_interp.tasks.dataset import dataset
from nope_interp.tasks.text import TextTask
from nope_interp.training.exact_match import exact_matches

# Of text in all, of a task of each length.
_SEQUENCES = 64


@dataclass(frozen=True)
class HeldOut:
    """A model on text that is never trained on, or on answers to held-out prompts.

    Attributes:
        loss: in nats per token.
        bigram: on text, the loss of whoever knows which token follows which; None on a task.
        right: on a task, the share of answers that are right; None on text.
    """

    loss: float
    bigram: float | None = None
    right: float | None = None

    def words(self) -> str:
        """The loss and what it is held against."""
        if self.right is not None:
            return f"{self.loss:.4f} nats per token of answers, {self.right:.1%} of them right"
        return f"{self.loss:.4f} nats per token, a bigram's {self.bigram:.4f}"


def held_out(config: ExperimentConfig, model: Path) -> HeldOut | None:
    """What the model at that path does on its own task, of the lengths that it was trained on.

    Args:
        config: which training the model ended.
        model: its weights, a safetensors file.

    Returns:
        The loss and its comparison; None where the text is too short to hold out a sequence.

    Raises:
        UserError: where the model or the task cannot be had.
    """
    trained, task, training = load_model(model)[0], task_of(config), config.training
    if isinstance(task, AnswerTask):
        return _on_answers(trained, task, training.seq_len, training.seed)
    return _on_text(trained, task, training.seq_len, training.seed)


def _on_answers(model: HookedTransformer, task: AnswerTask, seq_len: int, seed: int) -> HeldOut:
    lengths = task.fitting_lengths(seq_len)
    drawn = dataset(task, _SEQUENCES, split="validation", seed=seed, lengths=lengths).values()
    losses = torch.cat([answer_losses(model, some.tokens, some.answer) for some in drawn])
    right = torch.cat([exact_matches(model, some) for some in drawn])
    return HeldOut(float(losses.mean()), right=float(right.float().mean()))


def _on_text(model: HookedTransformer, task: TextTask, seq_len: int, seed: int) -> HeldOut | None:
    source = task.source()
    n = min(_SEQUENCES, source.available(seq_len, "held_out"))
    if n == 0:
        return None
    draw = partial(source.sequences, n, seq_len, seed=seed)
    tokens = draw(begin_token=False, split="held_out")
    bigram = bigram_losses(source.known, tokens, model.cfg.d_vocab).mean()
    return HeldOut(float(sequence_losses(model, tokens).mean()), bigram=float(bigram))
