"""Sizes at which encodings are compared in length generalisation."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from experiments.reproduce.answering import Sizes
from nope_interp.config import Positions
from nope_interp.tasks.answers import AnswerTask
from nope_interp.tasks.names import ANSWER_TASK_NAMES
from nope_interp.tasks.registry import make_answer_task

# The paper's five, in the order in which its ranking lists ties.
ENCODINGS: dict[str, Positions] = {
    "NoPE": "none",
    "T5": "t5",
    "ALiBi": "alibi",
    "RoPE": "rotary",
    "sinusoidal": "sinusoidal",
}

# The arrays of all seeds' models, by task and encoding; seeds along the first axis.
Runs = Mapping[tuple[str, str], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Preset:
    """Sizes of a comparison.

    Attributes:
        tasks: names of tasks.
        sizes: of models and training.
        lengths: the shortest and the longest trained on, tested up to twice the longest; None
            takes each task's own lengths.
        n_per_length: examples that each length is scored on.
        n_read: examples of each length that probes and entropies read.
        n_patterns: examples of each of four lengths whose attention patterns are kept.
    """

    tasks: tuple[str, ...]
    sizes: Sizes
    lengths: tuple[int, int] | None
    n_per_length: int
    n_read: int
    n_patterns: int

    def task(self, name: str) -> AnswerTask:
        """The task of that name with this preset's lengths."""
        if self.lengths is None:
            return make_answer_task(name)
        shortest, longest = self.lengths
        return make_answer_task(
            name,
            training_lengths=range(shortest, longest + 1),
            test_lengths=range(longest + 1, 2 * longest + 1),
        )

    def all_lengths(self, name: str) -> Int[np.ndarray, " length"]:
        """Those that the task trains on, then those that it is tested on."""
        task = self.task(name)
        return np.array([*task.training_lengths, *task.test_lengths])


PRESETS = {
    "tiny": Preset(
        tasks=("copy-rsc", "copy-cmc", "reverse-mc", "sort-single", "scan"),
        # Xavier's spread keeps embeddings from drowning in the sinusoids, whose amplitude is 1.
        sizes=Sizes(
            model={
                "n_layers": 2,
                "d_model": 64,
                "n_heads": 4,
                "rotary_fraction": 0.25,
                "init": "xavier_normal",
            },
            training={"batch_size": 64, "learning_rate": 3e-3, "weight_decay": 0.05},
            steps=3000,
        ),
        lengths=(2, 6),
        n_per_length=200,
        n_read=64,
        n_patterns=8,
    ),
    # Chosen for about an hour on one GPU, and not tried out.
    "small": Preset(
        tasks=("copy-rsc", "copy-cmc", "reverse-mc", "sort-single", "summation", "scan"),
        sizes=Sizes(
            model={
                "n_layers": 4,
                "d_model": 256,
                "n_heads": 8,
                "rotary_fraction": 0.25,
                "init": "xavier_normal",
            },
            training={"batch_size": 64, "learning_rate": 1e-3, "weight_decay": 0.05},
            steps=4000,
        ),
        lengths=None,
        n_per_length=100,
        n_read=32,
        n_patterns=4,
    ),
    # The paper's: T5-base's decoder alone. Its initialisation is T5's, ours is not.
    "paper": Preset(
        tasks=ANSWER_TASK_NAMES[: ANSWER_TASK_NAMES.index("zuo-addition")],
        sizes=Sizes(
            model={
                "n_layers": 12,
                "d_model": 768,
                "n_heads": 12,
                "d_mlp": 3072,
                "rotary_fraction": 0.25,
                "normalization": "rms",
                "activation": "relu",
                "attn_scale": 1.0,
                "tied_embeddings": True,
            },
            training={
                "batch_size": 64,
                "learning_rate": 3e-5,
                "schedule": "linear",
                "weight_decay": 0.05,
            },
            steps=40_000,
            warmup=2400,
        ),
        lengths=None,
        n_per_length=100,
        n_read=16,
        n_patterns=2,
    ),
}
