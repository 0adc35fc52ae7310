"""Sizes at which encodings, and formats of scratchpads, are compared in length generalisation."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from experiments.papers.answering import Sizes
from nope_interp.models.config import Positions
from nope_interp.tasks.answers import AnswerTask
from nope_interp.tasks.names import ANSWER_TASK_NAMES
from nope_interp.tasks.registry import make_answer_task
from nope_interp.tasks.scratchpad import SCRATCHPAD_PARTS, ScratchpadTask

# The paper's five, in the order in which its ranking lists ties.
ENCODINGS: dict[str, Positions] = {
    "NoPE": "none",
    "T5": "t5",
    "ALiBi": "alibi",
    "RoPE": "rotary",
    "sinusoidal": "sinusoidal",
}

# The paper's formats: the parts of a step that are written down, or the answer alone.
PLAIN, FULL = "no scratchpad", "all parts"
FORMATS: dict[str, frozenset[str] | None] = {
    PLAIN: None,
    FULL: frozenset(SCRATCHPAD_PARTS),
    "computation and output": frozenset(("computation", "output")),
    **{f"without {part}": frozenset(SCRATCHPAD_PARTS) - {part} for part in SCRATCHPAD_PARTS},
}

# The arrays of all seeds' models, by task and encoding or format; seeds along the first axis.
Runs = Mapping[tuple[str, str], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Scratchpads:
    """Sizes of a comparison of scratchpads.

    Attributes:
        tasks: names of tasks that have scratchpads.
        formats: names in `FORMATS`, with `PLAIN` and `FULL` among them.
        sizes: of models and training.
        lengths: as in `Preset`.
        n_per_length: examples that each length is scored on.
    """

    tasks: tuple[str, ...]
    formats: tuple[str, ...]
    sizes: Sizes
    lengths: tuple[int, int] | None
    n_per_length: int

    def written(self, name: str) -> dict[str, frozenset[str] | None]:
        """What each format has the task of that name write down; of formats that come to the same,
        for a task whose steps lack a part, the first."""
        task = make_answer_task(name)
        assert isinstance(task, ScratchpadTask)
        parts: dict[str, frozenset[str] | None] = {}
        for each in self.formats:
            wanted = FORMATS[each]
            own = None if wanted is None else wanted & set(task.parts)
            if own not in parts.values():
                parts[each] = own
        return parts

    def task(self, name: str, scratchpad: frozenset[str] | None = None) -> AnswerTask:
        """The task of that name with these lengths, writing down these parts of its steps."""
        return _task(name, self.lengths, scratchpad)

    def all_lengths(self, name: str) -> Int[np.ndarray, " length"]:
        """Those that the task trains on, then those that it is tested on."""
        return _all_lengths(self.task(name))


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
        scratchpads: sizes of the comparison of scratchpads.
    """

    tasks: tuple[str, ...]
    sizes: Sizes
    lengths: tuple[int, int] | None
    n_per_length: int
    n_read: int
    n_patterns: int
    scratchpads: Scratchpads

    def task(self, name: str) -> AnswerTask:
        """The task of that name with this preset's lengths."""
        return _task(name, self.lengths)

    def all_lengths(self, name: str) -> Int[np.ndarray, " length"]:
        """Those that the task trains on, then those that it is tested on."""
        return _all_lengths(self.task(name))


def _task(
    name: str, lengths: tuple[int, int] | None, scratchpad: frozenset[str] | None = None
) -> AnswerTask:
    if lengths is None:
        return make_answer_task(name, scratchpad=scratchpad)
    shortest, longest = lengths
    return make_answer_task(
        name,
        training_lengths=range(shortest, longest + 1),
        test_lengths=range(longest + 1, 2 * longest + 1),
        scratchpad=scratchpad,
    )


def _all_lengths(task: AnswerTask) -> Int[np.ndarray, " length"]:
    return np.array([*task.training_lengths, *task.test_lengths])


# Xavier's spread keeps embeddings from drowning in the sinusoids, whose amplitude is 1.
_TINY = {
    "n_layers": 2,
    "d_model": 64,
    "n_heads": 4,
    "rotary_fraction": 0.25,
    "init": "xavier_normal",
}
_SMALL = Sizes(
    model={
        "n_layers": 4,
        "d_model": 256,
        "n_heads": 8,
        "rotary_fraction": 0.25,
        "init": "xavier_normal",
    },
    training={
        "batch_size": 64,
        "learning_rate": 1e-3,
        "weight_decay": 0.05,
        "precision": "bfloat16",
    },
    steps=4000,
)
# The paper's: T5-base's decoder alone. Initialisation is T5's there; ours, and precision, are not.
_PAPER = Sizes(
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
        "precision": "bfloat16",
    },
    steps=40_000,
    warmup=2400,
)
_SCRATCHPAD_TASKS = (
    "addition",
    "polynomial",
    "sort-single",
    "sort-multi",
    "summation",
    "parity",
    "lego",
)

PRESETS = {
    "tiny": Preset(
        tasks=("copy-rsc", "copy-cmc", "reverse-mc", "sort-single", "scan"),
        sizes=Sizes(
            model=_TINY,
            training={"batch_size": 64, "learning_rate": 3e-3, "weight_decay": 0.05},
            steps=3000,
        ),
        lengths=(2, 6),
        n_per_length=200,
        n_read=64,
        n_patterns=8,
        scratchpads=Scratchpads(
            tasks=("parity", "sort-single", "lego"),
            formats=(PLAIN, FULL, "computation and output"),
            sizes=Sizes(
                model=_TINY,
                training={"batch_size": 24, "learning_rate": 3e-3, "weight_decay": 0.05},
                steps=2500,
            ),
            lengths=(2, 4),
            n_per_length=200,
        ),
    ),
    # Encodings take about an hour on one GPU and scratchpads several; not tried out.
    "small": Preset(
        tasks=("copy-rsc", "copy-cmc", "reverse-mc", "sort-single", "summation", "scan"),
        sizes=_SMALL,
        lengths=None,
        n_per_length=100,
        n_read=32,
        n_patterns=4,
        scratchpads=Scratchpads(_SCRATCHPAD_TASKS, tuple(FORMATS), _SMALL, None, n_per_length=100),
    ),
    "paper": Preset(
        tasks=ANSWER_TASK_NAMES[: ANSWER_TASK_NAMES.index("zuo-addition")],
        sizes=_PAPER,
        lengths=None,
        n_per_length=100,
        n_read=16,
        n_patterns=2,
        scratchpads=Scratchpads(_SCRATCHPAD_TASKS, tuple(FORMATS), _PAPER, None, n_per_length=100),
    ),
}
