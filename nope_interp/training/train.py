"""Train a config on a task. A killed run, started again, ends in the same bits.

Every step draws its batch, and its dropout, from a generator seeded by (seed, step), so the only
state to keep is the weights and the optimiser's moments.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from nope_interp.errors import UserError
from nope_interp.models.config import TransformerConfig
from nope_interp.models.losses import logits_at
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import Marked, Tokens
from nope_interp.tasks.registry import Task
from nope_interp.training.answer_masking import AnswerMasking
from nope_interp.training.config import TrainingConfig
from nope_interp.training.interrupts import interrupts_deferred
from nope_interp.training.state import TrainingState

_LOG = logging.getLogger(__name__)

# Given the model, in evaluation mode, after as many optimiser steps.
Watch = Callable[[int, HookedTransformer], None]
# Of a model on tokens, of which those marked are the answers.
Loss = Callable[[HookedTransformer, Tensor, Tensor], Tensor]


def watched_steps(steps: int) -> list[int]:
    """The optimiser steps after which a training of `steps` is watched: 0, 1, 2, 4, 8, ... and the
    last.

    Args:
        steps: of the training, at least 1.

    Returns:
        Step numbers, growing.
    """
    return [0, *(2**power for power in range((steps - 1).bit_length())), steps]


def learning_rate(step: int, config: TrainingConfig) -> float:
    """Linear warm-up; then a cosine from the peak to a tenth of it, or a line from it to zero.

    Args:
        step: of the optimiser, from 0.
        config: has the peak, the schedule and the warm-up.

    Returns:
        The rate of this step.
    """
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    progress = (step - config.warmup) / max(1, config.steps - config.warmup)
    if config.schedule == "linear":
        return config.learning_rate * (1 - progress)
    return config.learning_rate * (0.55 + 0.45 * math.cos(math.pi * progress))


def masked_loss(model: HookedTransformer, tokens: Tokens, predicted: Marked) -> Float[Tensor, ""]:
    """Mean cross-entropy, in nats per token, of the tokens marked as predicted.

    Only for these are logits computed. The first token of a sequence cannot be predicted.

    Args:
        model: any of ours.
        tokens: `[batch pos]`.
        predicted: `[batch pos]`, which of them the loss is of.

    Returns:
        One number, with a gradient.
    """
    logits = logits_at(model, tokens[:, :-1], predicted[:, 1:])
    return F.cross_entropy(logits.float(), tokens[:, 1:][predicted[:, 1:]].long())


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
    optimizer = _optimizer(model, training)
    header = {"config": config.to_dict(), "training": training.to_dict(), "task": task.name}
    if masking is not None:
        header["masking"] = asdict(masking)
    state = None if state_path is None else TrainingState(state_path, header, model, optimizer)
    start = 0 if state is None else state.restore()
    if start:
        _LOG.warning("going on from step %d of %d.", start, training.steps)
    watched = watched_steps(training.steps)
    if watch is not None and start in watched:
        watch(start, model.eval())
    model.train()
    loss_of: Loss = masked_loss if masking is None else masking.loss
    if training.compile:
        loss_of = torch.compile(loss_of)
    bar = tqdm(
        range(start, training.steps),
        initial=start,
        total=training.steps,
        desc=f"training on {task.name}",
        unit="step",
        disable=not show_progress,
    )
    try:
        for step in bar:
            loss = _step(model, optimizer, training, task, loss_of, step)
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            done = step + 1
            if watch is not None and done in watched:
                watch(done, model.eval())
                model.train()
            if state is not None and done % training.checkpoint_every == 0:
                state.save()
    except KeyboardInterrupt:
        if state is not None:
            state.save()
        raise
    return model.eval()


def _step(
    model: HookedTransformer,
    optimizer: torch.optim.Optimizer,
    training: TrainingConfig,
    task: Task,
    loss_of: Loss,
    step: int,
) -> float:
    """One step of the optimiser; the loss before it, in nats per token."""
    device, in_bfloat16 = model.W_E.device, training.precision == "bfloat16"
    generator = torch.Generator().manual_seed(training.seed * 1_000_003 + step)
    tokens, predicted = task.batch(training.batch_size, training.seq_len, generator)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step, training)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed * 1_000_003 + step)  # dropout's
        with torch.autocast(device.type, torch.bfloat16, enabled=in_bfloat16):
            loss = loss_of(model, tokens.to(device), predicted.to(device))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip)
    value = loss.item()
    if not math.isfinite(value):  # before it spoils weights that Ctrl-C would keep
        raise UserError(
            f"the loss is {value} at step {step}: lower the learning rate or the init scale."
        )
    with interrupts_deferred():  # half an update could not be gone on from
        optimizer.step()
    return value


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


def _optimizer(model: HookedTransformer, training: TrainingConfig) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": training.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=training.learning_rate, betas=(0.9, 0.99), fused=True)
