"""Sizes at which models are trained on the four tasks of Zuo et al. 2025."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.papers.answering import Sizes
from nope_interp.shapes import Sequences
from nope_interp.tasks.answers import AnswerTask
from nope_interp.tasks.dataset import dataset
from nope_interp.tasks.registry import make_answer_task


@dataclass(frozen=True)
class Preset:
    """Sizes of the trained part.

    Attributes:
        lengths: of each task, those that it is trained on.
        sizes: of models and training.
        longer: optimiser steps of the tasks that take more than others.
        own: what the model of a task alone has otherwise.
        changes: of the sweep: by name, what one setting changes in the model.
        sweep_steps: of the tasks that the sweep trains on, which are learned fast.
        control_steps: of models that fill in their answers.
        most_seeds: how many of a run's seeds are trained with at the most.
        n_scored: held-out examples of each length that accuracy is taken over.
        n_filled: those of models that fill in their answers, of which chance is a large part.
        n_read: held-out sequences of the longest length whose activations are compared.
    """

    lengths: Mapping[str, range]
    sizes: Sizes
    longer: Mapping[str, int]
    own: Mapping[str, Mapping[str, Any]]
    changes: Mapping[str, Mapping[str, Any]]
    sweep_steps: Mapping[str, int]
    control_steps: int
    most_seeds: int
    n_scored: int = 200
    n_filled: int = 2000
    n_read: int = 64

    def seeds(self, of_run: Sequence[int]) -> list[int]:
        """Those of the trainings; sizes were chosen by pilot runs with seed 0."""
        return [seed + 1 for seed in of_run[: self.most_seeds]]

    def steps(self, name: str) -> int:
        """Optimiser steps of the task of that name."""
        return self.longer.get(name, self.sizes.steps)

    def task(self, name: str) -> AnswerTask:
        """The task of that name with this preset's lengths."""
        return make_answer_task(name, training_lengths=self.lengths[name], test_lengths=())

    def read_on(self, name: str, seed: int) -> Sequences:
        """Held-out examples of a task's longest length, cut where the first of them ends."""
        longest = max(self.lengths[name])
        [examples] = dataset(
            self.task(name), self.n_read, split="validation", seed=seed, lengths=[longest]
        ).values()
        return examples.tokens[:, : int(examples.length.min())]


PRESETS = {
    "tiny": Preset(
        # Two digits, or words of up to six letters: three digits were not learned at this size.
        lengths={
            "zuo-addition": range(2, 3),
            "reversal": range(2, 7),
            "indexing": range(2, 7),
            "ordering": range(2, 7),
        },
        sizes=Sizes(
            model={"n_layers": 4, "d_model": 64, "n_heads": 4},
            training={"batch_size": 64, "learning_rate": 2e-3, "weight_decay": 0.05},
            steps=3000,
        ),
        # One answer an example: it was not learned in 3,000 steps, and of three models that began
        # with GPT-2's small weights by none in 12,000.
        longer={"indexing": 12_000},
        own={"indexing": {"init": "xavier_normal"}},
        changes={
            "base": {},
            "2 layers": {"n_layers": 2},
            "6 layers": {"n_layers": 6},
            "width 32": {"d_model": 32},
            "width 128": {"d_model": 128},
            "2 heads": {"n_heads": 2},
            "8 heads": {"n_heads": 8},
            "uniform": {"init": "uniform"},
            "Xavier normal": {"init": "xavier_normal"},
            "Kaiming normal": {"init": "kaiming_normal"},
        },
        sweep_steps={"ordering": 600, "reversal": 2000},
        control_steps=2000,
        most_seeds=3,
    )
}
