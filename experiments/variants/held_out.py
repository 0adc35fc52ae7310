"""How well a trained model predicts what it was not trained on."""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.variants.config import ExperimentConfig
from experiments.variants.train import task_of
from nope_interp.models.checkpoints import load_model
from nope_interp.models.losses import answer_losses, sequence_losses
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.answers import AnswerTask, dataset
from nope_interp.tasks.registry import Task
from nope_interp.tasks.text import TextTask

_SEQUENCES = 64


def held_out_loss(config: ExperimentConfig, model: Path) -> float | None:
    """Mean loss in nats per token of the model at that path, on its own task.

    It is taken over text that is never trained on, or over answers to held-out prompts of the
    training lengths. None where the text is too short to hold out a sequence. Raises UserError
    where the model or the task cannot be had.
    """
    losses = _losses(config, task_of(config), load_model(model)[0])
    return None if losses is None else float(losses.mean())


def _losses(
    config: ExperimentConfig, task: Task, model: HookedTransformer
) -> Float[Tensor, " sequence"] | None:
    training = config.training
    if isinstance(task, AnswerTask):
        lengths = task.fitting_lengths(training.seq_len)
        drawn = dataset(task, _SEQUENCES, split="validation", seed=training.seed, lengths=lengths)
        return torch.cat(
            [answer_losses(model, some.tokens, some.answer) for some in drawn.values()]
        )
    assert isinstance(task, TextTask)
    source = task.source()
    n = min(_SEQUENCES, source.available(training.seq_len, "held_out"))
    if n == 0:
        return None
    tokens = source.sequences(
        n, training.seq_len, begin_token=False, split="held_out", seed=training.seed
    )
    return sequence_losses(model, tokens)
