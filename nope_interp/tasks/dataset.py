"""Examples of a task with answers, equally many of each length."""

from collections.abc import Sequence
from typing import get_args

from torch import Generator

from nope_interp.tasks.answers import AnswerTask, TaskSplit
from nope_interp.tasks.examples import Examples


def dataset(
    task: AnswerTask,
    n_per_length: int,
    *,
    split: TaskSplit,
    seed: int,
    lengths: Sequence[int] | None = None,
) -> dict[int, Examples]:
    """Equally many examples of each length: the task's training lengths, or its test lengths.

    The examples of a length depend on the task, the split and the seed, not on which other lengths
    are asked for.

    Args:
        task: any with answers.
        n_per_length: examples of each length.
        split: `train`, `validation` or `test`.
        seed: of the draws.
        lengths: None takes the split's own.

    Returns:
        Examples by length.

    Raises:
        UserError: for a length that the split has no examples of.
    """
    if lengths is None:
        lengths = task.test_lengths if split == "test" else task.training_lengths
    drawn = {}
    for length in lengths:
        task.check_split(length, split)
        stream = get_args(TaskSplit).index(split)
        generator = Generator().manual_seed((seed * 100_003 + length) * 3 + stream)
        drawn[length] = task.examples(n_per_length, length, generator, split=split)
    return drawn
