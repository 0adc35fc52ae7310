"""Train a config on a task. A killed run, started again, ends in the same bits."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nope_interp.errors import UserError
from nope_interp.models.config import TransformerConfig
from nope_interp.models.marked import answers_cross_entropy, answers_loss
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import Marked, Tokens
from nope_interp.tasks.registry import Task
from nope_interp.tasks.scratchpad import ScratchpadTask
from nope_interp.tasks.text import TextTask
from nope_interp.training.answer_masking import AnswerMasking
from nope_interp.training.config import TrainingConfig
from nope_interp.training.loop import optimize, step_seed

# Given the model, in evaluation mode, after as many optimiser steps.
Watch = Callable[[int, HookedTransformer], None]
# Of a model on tokens, of which those marked are the answers, with `masked_loss`'s `cross_entropy`.
Loss = Callable[..., Tensor]


def masked_loss(
    model: HookedTransformer,
    tokens: Tokens,
    predicted: Marked,
    *,
    cross_entropy: Callable[..., Tensor] | None = None,
) -> Float[Tensor, ""]:
    """Mean cross-entropy, in nats per token, of the tokens marked as predicted.

    Only for these are logits computed. The first token of a sequence cannot be predicted.

    Args:
        model: any of ours.
        tokens: `[batch pos]`, on any device.
        predicted: `[batch pos]`, which of them the loss is of; on the tokens' device.
        cross_entropy: as `answers_loss` takes it.

    Returns:
        One number, with a gradient.
    """
    wanted = predicted[:, 1:]
    answers = tokens[:, 1:][wanted]
    return answers_loss(model, tokens[:, :-1], wanted, answers, cross_entropy=cross_entropy)


def train(
    config: TransformerConfig,
    training: TrainingConfig,
    task: Task,
    *,
    state_path: Path | None = None,
    watch: Watch | None = None,
    masking: AnswerMasking | None = None,
    device: str = "cpu",
    show_progress: bool = True,
) -> HookedTransformer:
    """A trained model, in evaluation mode.

    Args:
        config: the model to train, from its own seed.
        training: length, speed and seed of the training.
        task: where batches come from.
        state_path: file that keeps the training state, now and then and on Ctrl-C, so that a
            stopped run goes on from there; None keeps nothing.
        watch: called with the model at each of `watched_steps`, before the state of that step is
            kept; a training that goes on from a state calls it for that step and later ones. It
            changes no bit of the training as long as it leaves the weights alone.
        masking: hides the answers, which the model then fills in all at once; None predicts one
            token after the other.
        device: a torch device.
        show_progress: draw a bar with the loss on standard error.

    Returns:
        The model, on `device`.

    Raises:
        UserError: where the sizes of config, training and task do not fit, where the saved state
            is damaged or of another training, where it should be compiled and cannot be, and where
            the loss stops being finite.
    """
    check_trainable(config, training, task, masking)
    if training.compile:
        _check_compiler(device)
    model = HookedTransformer(config).to(device)
    header = {"config": config.to_dict(), "task": task.name, "of_task": _told_of(task)}
    if masking is not None:
        header["masking"] = asdict(masking)
    loss_of: Loss = masked_loss if masking is None else masking.loss
    if training.compile:
        loss_of = partial(loss_of, cross_entropy=torch.compile(answers_cross_entropy))

    def loss_at(step: int) -> Float[Tensor, ""]:
        generator = torch.Generator().manual_seed(step_seed(training, step))
        tokens, predicted = task.batch(training.batch_size, training.seq_len, generator)
        return loss_of(model, tokens, predicted)

    optimize(
        model,
        training,
        loss_at,
        header=header,
        title=f"training on {task.name}",
        state_path=state_path,
        watch=None if watch is None else lambda step: watch(step, model),
        show_progress=show_progress,
    )
    return model


def _told_of(task: Task) -> Any:
    """What tells a task from others of its name."""
    if isinstance(task, TextTask):
        return task.digest
    parts = task.scratchpad if isinstance(task, ScratchpadTask) else None
    return [list(task.training_lengths), None if parts is None else sorted(parts)]


def check_trainable(
    config: TransformerConfig,
    training: TrainingConfig,
    task: Task,
    masking: AnswerMasking | None = None,
) -> None:
    """Raise UserError where the sizes of config, training and task do not fit.

    Args:
        config: the model to train.
        training: how.
        task: on what.
        masking: hides the answers; None where each token is predicted.
    """
    if training.seq_len > config.n_ctx:
        raise UserError(
            f"training sequences of {training.seq_len} tokens are longer than the context of "
            f"{config.n_ctx}: raise n_ctx or shorten them."
        )
    if config.d_vocab < task.d_vocab:
        raise UserError(
            f"the task {task.name!r} has {task.d_vocab} tokens but d_vocab is {config.d_vocab}: "
            "raise d_vocab."
        )
    # A task that cannot fill a batch says so now, before a progress bar is drawn.
    task.batch(1, training.seq_len, torch.Generator().manual_seed(0))
    if not config.causal and masking is None:
        raise UserError(
            "a bidirectional model sees the token it should predict: train causal ones."
        )


def _check_compiler(device: str) -> None:
    """Raise UserError where torch.compile does not work."""
    # What other trainings of this process had compiled counts towards a limit, beyond which
    # nothing more is compiled.
    torch.compiler.reset()
    try:
        torch.compile(torch.sin)(torch.zeros(1, device=device))
    except RuntimeError as error:
        why = str(error).splitlines()[0].rstrip(".")
        raise UserError(
            f"the training cannot be compiled here ({why}): install a C++ compiler, or leave "
            "compile out."
        ) from error
