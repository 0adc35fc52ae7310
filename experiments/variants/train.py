"""Train a model, and keep it in a run folder of its own."""

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments.runs.folder import RunFolder, identity, short_hash
from experiments.variants.config import ExperimentConfig, ProbingConfig
from experiments.variants.embedded import copy_embedded
from experiments.variants.words import asked, flat, is_within
from nope_interp.devices import check_device
from nope_interp.errors import UserError
from nope_interp.files import given_path
from nope_interp.models.checkpoints import load_model, save_model
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.answers import AnswerTask
from nope_interp.tasks.registry import Task, make_task
from nope_interp.tasks.text import TextTask
from nope_interp.training.loop import watched_steps
from nope_interp.training.state import saved_step
from nope_interp.training.train import check_trainable
from nope_interp.training.train import train as train_model

_LOG = logging.getLogger(__name__)
# What a config says of the training, which decides the weights that it ends in.
_DECIDING = ("task", "text", "lengths", "scratchpad", "transformer", "training")
# A sentence names at most so many words.
_MOST_NAMED = 3


def train(
    config: ExperimentConfig | None = None,
    *,
    out: Path | str = "runs",
    device: str = "cpu",
    show_progress: bool = True,
    **words: Any,
) -> Path:
    """Train a small model; a finished training is not run again, a killed one goes on.

    The embedded model, which experiments read ready-made, is trained here as any other.

    Args:
        config: only what it says of its task, `transformer` and `training` matters here; by default
            the embedded small model on text.
        out: the folder that the folders of trainings are made in.
        device: a torch device.
        show_progress: draw a bar with the loss on standard error.
        words: values laid over `config`, by the words of the command line: `steps=100`,
            `positions="rotary"`, `**{"transformer.n_layers": 2}`.

    Returns:
        The file with the trained weights.

    Raises:
        UserError: for a config that cannot be trained or names a model, an unknown device, and an
            unwritable `out`.
    """
    kind = type(config) if isinstance(config, ExperimentConfig) else ProbingConfig
    config = asked(kind, config, words)
    if config.model is not None:
        raise UserError(
            f"a new model is trained, but {config.model!r} is trained already: leave it out."
        )
    check_device(device)
    trained_model(config, given_path(out), device, show_progress, from_package=False)
    return training_folder(given_path(out), config).model


def training_folder(parent: Path, config: ExperimentConfig) -> RunFolder:
    """Where the model that a config trains is kept; nothing else names it.

    Args:
        parent: the folder that the folders of trainings are made in.
        config: which training.

    Returns:
        The folder, which need not be there.

    Raises:
        UserError: as `identity` does.
    """
    name = f"train-{config.transformer.positions}-{config.task}"
    return RunFolder(parent / f"{name}-{short_hash(_told(config))}")


def trains_embedded(config: ExperimentConfig) -> bool:
    """Whether what a config trains is the model that ships with the package."""
    return config.model is None and _told(config) == _told(ProbingConfig())


def _told(config: ExperimentConfig) -> dict[str, Any]:
    """All that decides which weights a training ends in."""
    every = identity(config)
    return {name: every[name] for name in (*_DECIDING, "fingerprints") if name in every}


def trained_model(
    config: ExperimentConfig,
    out: Path,
    device: str,
    show_progress: bool,
    *,
    keep_history: bool = False,
    from_package: bool = True,
) -> HookedTransformer:
    """The model that a config trains, kept once under `out`; trained first if it is not there yet.

    Args:
        config: which training.
        out: the folder that the folders of trainings are made in.
        device: a torch device.
        show_progress: draw a bar with the loss on standard error.
        keep_history: whether it is also kept as it was after each of `watched_steps`; where one of
            these is missing, it is trained again.
        from_package: whether the model that ships with the package is taken where this is it.

    Returns the model on the device, in evaluation mode.

    Raises UserError for a config that cannot be trained, which leaves no folder behind, and for a
    damaged model.
    """
    run, steps = training_folder(out, config), watched_steps(config.training.steps)
    # What else whoever asks for it does with the model is no part of its training.
    with run.begun(ProbingConfig.like(config)), run.dropped_if_refused():
        wanted = from_package and not keep_history and not run.model.is_file()
        if wanted and trains_embedded(config):
            copy_embedded(run.model)
        if run.model.is_file() and not (keep_history and _missing(run, steps)):
            model, _ = load_model(run.model)
            return model.to(device)
        if keep_history:
            _drop_unwatched(run, steps)
        config, asked_for = as_trained(config), config
        if config is not asked_for:
            assert config.lengths is not None
            _LOG.warning(
                "of the lengths of %s those from %d to %d fit training sequences of %d tokens: the "
                "others are left out.",
                config.task,
                *config.lengths,
                config.training.seq_len,
            )
        task = task_of(config)
        check_training(config, task)
        if show_progress and from_package:
            _tell_unasked(asked_for, keep_history)
        model = train_model(
            config.transformer,
            config.training,
            task,
            state_path=run.training_state,
            watch=partial(_keep, config, task, run) if keep_history else None,
            device=device,
            show_progress=show_progress,
        )
        _save(config, task, run.model, model)
        run.training_state.unlink(missing_ok=True)
    return model


def _tell_unasked(config: ExperimentConfig, keep_history: bool) -> None:
    """Say which options have a model trained, for whoever meant to read one; nothing of the shipped
    one, which is trained only where its history was asked for."""
    shipped = flat("the config", ProbingConfig().to_dict())
    own = flat("the config", ProbingConfig.like(config).to_dict())
    differing = [word for word, value in own.items() if value != shipped.get(word)]
    words = [word for word in differing if is_within(word, frozenset(_DECIDING))]
    if not words:
        return
    more = f" and {len(words) - _MOST_NAMED} more" if len(words) > _MOST_NAMED else ""
    # An existing model has no history to read.
    instead = "" if keep_history else ": name a model to read an existing one"
    print(
        f"{config.command_name}: no model is named and the shipped one differs in "
        f"{', '.join(words[:_MOST_NAMED])}{more}. So one is trained, {config.training.steps} "
        f"steps{instead}.",
        file=sys.stderr,
    )


def _drop_unwatched(run: RunFolder, steps: Sequence[int]) -> None:
    """Remove the state of a training that was begun without keeping its history: to go on from it
    would leave gaps."""
    if run.training_state.is_file():
        done = saved_step(run.training_state)
        # The step it stands at is kept again.
        if _missing(run, [step for step in steps if step < done]):
            run.training_state.unlink()


def _missing(run: RunFolder, steps: Sequence[int]) -> bool:
    return not all(run.history(step).is_file() for step in steps)


def _keep(
    config: ExperimentConfig, task: Task, run: RunFolder, step: int, model: HookedTransformer
) -> None:
    _save(config, task, run.history(step), model)


def _save(config: ExperimentConfig, task: Task, path: Path, model: HookedTransformer) -> None:
    save_model(
        model,
        path,
        task=config.task,
        lengths=config.lengths,
        scratchpad=config.scratchpad,
        text=task.digest if config.text is not None and isinstance(task, TextTask) else None,
    )


def as_trained(config: ExperimentConfig, make: Callable[..., Task] = make_task) -> ExperimentConfig:
    """The config with the lengths that its training draws: of a task's own those that fit.

    Args:
        config: which training, or which model.
        make: makes a task, or remembers that it did.

    Returns:
        The same config where it names lengths or a model, and where all lengths fit, or none.
    """
    if config.lengths is not None or config.model is not None or config.task == "text":
        return config
    task = make(config.task, config.text, scratchpad=config.scratchpad)
    if not isinstance(task, AnswerTask):
        return config
    fitting = task.fitting_lengths(config.training.seq_len)
    if len(fitting) in (0, len(task.training_lengths)):
        return config
    return replace(config, lengths=(min(fitting), max(fitting)))


def task_of(config: ExperimentConfig, make: Callable[..., Task] = make_task) -> Task:
    """The task that a config names, with the lengths that are trained on.

    Args:
        config: names the task, its text, lengths and scratchpad.
        make: makes a task, or remembers that it did.

    Returns:
        The task.

    Raises:
        UserError: where there is none such.
    """
    lengths = as_trained(config, make).lengths
    return make(config.task, config.text, lengths=lengths, scratchpad=config.scratchpad)


def check_training(config: ExperimentConfig, task: Task) -> None:
    """Refuse a config that cannot be trained on its task as it asks.

    Args:
        config: which training.
        task: the one that it names, as from `task_of`.

    Raises:
        UserError: where model, training and task do not fit, or the asked lengths need longer
            sequences.
    """
    if config.lengths is not None and isinstance(task, AnswerTask):
        # First, since it takes long to look at all lengths up to one that is far too long.
        longest = config.lengths[1]
        needed, room = task.n_tokens(longest), config.training.seq_len
        if needed > room:
            raise UserError(
                f"examples of {task.name} of length {longest} may have {needed} tokens, but "
                f"training sequences have {room}: make the sequences longer, or the lengths "
                "shorter."
            )
    check_trainable(config.transformer, config.training, task)
