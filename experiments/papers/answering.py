"""Small models trained to answer: what the comparisons of trained models share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from experiments.results.findings import Array
from nope_interp.models.config import Positions, TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.answers import AnswerTask, TaskSplit
from nope_interp.tasks.dataset import dataset
from nope_interp.training.answer_masking import AnswerMasking
from nope_interp.training.config import TrainingConfig
from nope_interp.training.exact_match import exact_matches
from nope_interp.training.train import Watch, train

# Mean share of exact answers on held-out prompts of the training lengths from which a model counts
# as trained.
LEARNED = 0.9
# A mean over models that learned needs so many of them.
FEWEST = 4


@dataclass(frozen=True)
class Sizes:
    """Of a model, but for its vocabulary, context and positions; of its training, but for its
    steps, the first `warmup` of which warm up, seed and the length of sequences."""

    model: Mapping[str, Any]
    training: Mapping[str, Any]
    steps: int
    warmup: int = 100


def trained_to_answer(
    task: AnswerTask,
    sizes: Sizes,
    *,
    steps: int,
    seed: int,
    positions: Positions = "none",
    watch: Watch | None = None,
    masking: AnswerMasking | None = None,
    device: str = "cpu",
) -> HookedTransformer:
    """A model trained on the task's training lengths, with room for its test lengths.

    Args:
        task: what it is trained on.
        sizes: of the model and its training.
        steps: of the optimiser.
        seed: of the model and its training.
        positions: its encoding; "none" by default.
        watch: called with the model now and then, as `nope_interp.training.train.train` says.
        masking: hides the answers; None predicts one token after the other.
        device: a torch device.

    Returns:
        The model, in evaluation mode.

    Raises:
        UserError: as `nope_interp.training.train.train` does.
    """

    def room(lengths: Sequence[int]) -> int:
        return max((task.n_tokens(length) for length in lengths), default=0)

    seq_len = room(task.training_lengths)
    own = {
        "d_vocab": task.d_vocab,
        "n_ctx": max(seq_len, room(task.test_lengths)),
        "positions": positions,
        "seed": seed,
    }
    schedule = {"steps": steps, "warmup": min(sizes.warmup, steps), "seq_len": seq_len}
    return train(
        TransformerConfig.from_dict({**sizes.model, **own}),
        TrainingConfig(**{**sizes.training, **schedule, "seed": seed}),
        task,
        watch=watch,
        masking=masking,
        device=device,
        show_progress=False,
    )


def accuracies(
    model: HookedTransformer, task: AnswerTask, n_per_length: int, split: TaskSplit, seed: int
) -> Float[Array, " length"]:
    """The share of exact answers, for each length of a split.

    Args:
        model: one of ours, trained on the task.
        task: what is asked.
        n_per_length: examples of each length.
        split: `train`, `validation` or `test`.
        seed: of the examples.

    Returns:
        `[length]`, from 0 to 1.
    """
    every = dataset(task, n_per_length, split=split, seed=seed).values()
    return np.array([float(exact_matches(model, some).double().mean()) for some in every])


def by_unit(
    tasks: Iterable[str], names: Iterable[str], read: Callable[[str, str], Float[Array, " seed"]]
) -> Float[Array, "seed task name"]:
    """What is read of the models of each task and of each of several names.

    Args:
        tasks: the names of tasks.
        names: what else tells models apart, such as encodings.
        read: gives `[seed]` for a task and a name.

    Returns:
        `[seed task name]`.
    """
    return np.stack(
        [np.stack([read(task, name) for name in names], axis=-1) for task in tasks], axis=1
    )


def enough(counted: Bool[Array, "seed task"]) -> bool:
    """Whether a mean over tasks can be taken: of so many models, of two tasks or more."""
    return bool(counted.sum() >= FEWEST and counted.any(axis=0).sum() > 1)


def by_task(
    values: Float[Array, "seed task *k"], counted: Bool[Array, "seed task"]
) -> Float[Array, "learned_task *k"]:
    """The mean over the seeds that count, of each task that has any.

    Models of one task are alike: intervals are taken over tasks, not over models.

    Args:
        values: of each model.
        counted: which models count.

    Returns:
        `[learned_task *k]`, without the tasks of which no model counts.
    """
    tasks = np.flatnonzero(counted.any(axis=0))
    return np.stack([values[counted[:, task], task].mean(axis=0) for task in tasks])
