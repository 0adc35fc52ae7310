"""Steps of AdamW on a loss. A killed training, started again, ends in the same bits.

What a step draws, it draws from a seed of its own, so the only state to keep is the weights and the
optimiser's moments.
"""

import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm import tqdm

from nope_interp.errors import UserError
from nope_interp.training.config import TrainingConfig
from nope_interp.training.interrupts import interrupts_deferred
from nope_interp.training.state import TrainingState

_LOG = logging.getLogger(__name__)
# A file or a pipe gets a line for each of so many parts of a training.
_PARTS = 10

# Given after how many optimiser steps the model is as it is.
AtStep = Callable[[int], None]


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


def step_seed(training: TrainingConfig, step: int) -> int:
    """What seeds everything that a step draws.

    Args:
        training: has the seed of the whole training.
        step: of the optimiser, from 0.

    Returns:
        A number that no other step of a training has.
    """
    return training.seed * 1_000_003 + step


def optimize(
    model: nn.Module,
    training: TrainingConfig,
    loss_at: Callable[[int], Float[Tensor, ""]],
    *,
    header: dict[str, Any],
    title: str,
    state_path: Path | None = None,
    watch: AtStep | None = None,
    show_progress: bool = True,
) -> None:
    """Train those of a model's parameters that require a gradient; it ends in evaluation mode.

    Args:
        model: on its device.
        training: length, speed and seed of the training.
        loss_at: the loss, in nats per token, of the batch of a step.
        header: tells this training from others, beside `training`.
        title: what the progress bar is called.
        state_path: file that keeps the training state, now and then and on Ctrl-C, so that a
            stopped training goes on from there; None keeps nothing.
        watch: called at each of `watched_steps`, the model in evaluation mode, before the state of
            that step is kept; a training that goes on from a state calls it for that step, too.
        show_progress: draw a bar with the loss on standard error; in a file or a pipe, a line for
            each tenth of the steps.

    Raises:
        UserError: where the saved state is damaged or of another training, and where the loss or
            the weights stop being finite; such weights are not kept.
    """
    optimizer = _optimizer(model, training)
    if training.precision == "bfloat16" and _slow_in_bfloat16(next(model.parameters()).device):
        _LOG.warning(
            "this processor computes bfloat16 up to a hundred times slower than float32: stop here "
            "and leave --training.precision out."
        )
    if training.warmup > training.steps:
        _LOG.warning(
            "the warm-up of %d steps is longer than the training of %d: the learning rate reaches "
            "%.0f%% of its peak. Shorten the warm-up, or train longer.",
            training.warmup,
            training.steps,
            100 * training.steps / training.warmup,
        )
    state = None
    if state_path is not None:
        weights = {name: w.detach() for name, w in model.named_parameters() if w.requires_grad}
        told = {**header, "training": training.to_dict()}
        state = TrainingState(state_path, told, weights, optimizer)
    start = 0 if state is None else state.restore()
    if start:
        _LOG.warning("going on from step %d of %d.", start, training.steps)
    watched = watched_steps(training.steps)
    if watch is not None and start in watched:
        model.eval()
        watch(start)
    model.train()
    bar = tqdm(
        range(start, training.steps),
        initial=start,
        total=training.steps,
        desc=title,
        unit="step",
        disable=None if show_progress else True,  # none in a file or a pipe
    )
    tenths = range(training.steps, 0, -math.ceil(training.steps / _PARTS))
    in_lines = show_progress and not sys.stderr.isatty()
    try:
        for step in bar:
            loss = _step(model, optimizer, training, loss_at, step)
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            done = step + 1
            if in_lines and done in tenths:
                print(f"{title}: step {done} of {training.steps}, loss {loss:.3f}", file=sys.stderr)
            watching = watch is not None and done in watched
            saving = state is not None and done % training.checkpoint_every == 0
            if watching or saving or done == training.steps:
                _check_finite(model, done)
            if watch is not None and watching:
                model.eval()
                watch(done)
                model.train()
            if state is not None and saving:
                state.save()
    except KeyboardInterrupt:
        if state is not None and _finite(model):
            state.save()
        raise
    model.eval()


def _step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    training: TrainingConfig,
    loss_at: Callable[[int], Float[Tensor, ""]],
    step: int,
) -> float:
    """One step of the optimiser; the loss before it, in nats per token."""
    device = next(model.parameters()).device
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step, training)
    with torch.random.fork_rng(devices=[]):
        _seed_dropout(device, step_seed(training, step))
        in_bfloat16 = training.precision == "bfloat16"
        with torch.autocast(device.type, torch.bfloat16, enabled=in_bfloat16):
            loss = loss_at(step)
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


def _check_finite(model: nn.Module, step: int) -> None:
    """Raise UserError where an update, which no loss has seen yet, spoiled the weights."""
    if not _finite(model):
        raise UserError(
            f"weights are no longer finite after step {step}: lower the learning rate or the init "
            "scale."
        )


def _finite(model: nn.Module) -> bool:
    return all(bool(torch.isfinite(weight).all()) for weight in model.parameters())


def _slow_in_bfloat16(device: torch.device) -> bool:
    """Whether torch has no fast products in bfloat16 there: processors without AVX-512, on x86."""
    return device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _seed_dropout(device: torch.device, seed: int) -> None:
    """Seed what draws on the device.

    `torch.manual_seed` also notes the stack of each call for every kind of device that is not in
    use yet: in small models a fifth of a step, and memory that grows with every step.
    """
    seeded = torch.default_generator if device.type == "cpu" else torch
    seeded.manual_seed(seed)


def _optimizer(model: nn.Module, training: TrainingConfig) -> torch.optim.AdamW:
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": training.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=training.learning_rate, betas=(0.9, 0.99), fused=True)
