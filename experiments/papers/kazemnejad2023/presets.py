"""Sizes at which encodings, and formats of scratchpads, are compared in length generalisation."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from experiments.papers.answering import Sizes
from experiments.results.findings import Array
from nope_interp.models.config import Positions
from nope_interp.tasks.answers import AnswerTask
from nope_interp.tasks.names import KAZEMNEJAD_TASKS
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
Runs = Mapping[tuple[str, str], Mapping[str, Array]]
# Those of NoPE alone, by task.
Nope = Mapping[str, Mapping[str, Array]]
# A number for each model of the encodings, and which of them have learned their task.
Accuracy = Float[Array, "seed task encoding"]
Learned = Bool[Array, "seed task encoding"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Sizes of a comparison.

    Attributes:
        tasks: names of tasks.
        sizes: of models and training.
        lengths: the shortest and the longest trained on, tested up to twice the longest; None
            takes each task's own lengths.
        n_per_length: examples that each length is scored on.
    """

    tasks: tuple[str, ...]
    sizes: Sizes
    lengths: tuple[int, int] | None
    n_per_length: int

    def task(self, name: str, scratchpad: frozenset[str] | None = None) -> AnswerTask:
        """The task of that name with these lengths, writing down these parts of its steps."""
        if self.lengths is None:
            return make_answer_task(name, scratchpad=scratchpad)
        shortest, longest = self.lengths
        return make_answer_task(
            name,
            training_lengths=range(shortest, longest + 1),
            test_lengths=range(longest + 1, 2 * longest + 1),
            scratchpad=scratchpad,
        )

    def all_lengths(self, name: str) -> Int[Array, " length"]:
        """Those that the task trains on, then those that it is tested on."""
        task = self.task(name)
        return np.array([*task.training_lengths, *task.test_lengths])

    @property
    def lengths_said(self) -> str:
        """The lengths in words."""
        if self.lengths is None:
            return "each task's own lengths"
        shortest, longest = self.lengths
        return f"lengths {shortest} to {longest}, tested up to {2 * longest}"


@dataclass(frozen=True, kw_only=True)
class Scratchpads(Comparison):
    """Sizes of a comparison of scratchpads, on tasks that have them.

    Attributes:
        formats: names in `FORMATS`, with `PLAIN` and `FULL` among them.
    """

    formats: tuple[str, ...]

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


@dataclass(frozen=True, kw_only=True)
class Preset(Comparison):
    """Sizes of a comparison of encodings, and of one of scratchpads.

    Attributes:
        n_read: examples of each length that probes and entropies read.
        n_patterns: examples of each of four lengths whose attention patterns are kept.
        scratchpads: sizes of the comparison of scratchpads; None compares none.
        beside: tasks that are trained and shown, too, but no claim is of.
        encodings: names in `ENCODINGS`: all, or NoPE alone for the claims that are of it alone.
    """

    n_read: int
    n_patterns: int
    scratchpads: Scratchpads | None
    beside: tuple[str, ...] = ()
    encodings: tuple[str, ...] = tuple(ENCODINGS)

    @property
    def trained(self) -> tuple[str, ...]:
        """All tasks, those beside the others last."""
        return (*self.tasks, *self.beside)


def by_length(cell: Mapping[str, Array], what: str = "") -> Float[Array, "seed length"]:
    """Within the training lengths, then beyond."""
    return np.concatenate([cell[f"{what}within"], cell[f"{what}beyond"]], axis=1)


def unlearned(runs: Runs, threshold: float) -> str:
    """How many models of each run answer too few examples of the training lengths, in words; or no
    more than who always gives the commonest answer, where that is known."""
    told = []
    for (task, name), cell in runs.items():
        right = cell["within"].mean(axis=1)
        failed = (right < threshold).sum()
        if "guess/within" in cell:
            failed = ((right < threshold) | (right <= cell["guess/within"].mean(axis=1))).sum()
        if failed:
            told.append(f"{task} with {name}: {failed} of {len(cell['within'])} runs")
    return "; ".join(told) or "none"


# Xavier's spread keeps embeddings from drowning in the sinusoids, whose amplitude is 1.
_TINY = {
    "n_layers": 2,
    "d_model": 64,
    "n_heads": 4,
    "rotary_fraction": 0.25,
    "init": "xavier_normal",
}
_FAST = {"batch_size": 64, "learning_rate": 3e-3, "weight_decay": 0.05}
_HALVES = {"weight_decay": 0.05, "precision": "bfloat16"}
_SMALL = Sizes(
    model=_TINY | {"n_layers": 4, "d_model": 256, "n_heads": 8},
    training=_HALVES | {"batch_size": 64, "learning_rate": 1e-3},
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
    training=_HALVES | {"batch_size": 64, "learning_rate": 3e-5, "schedule": "linear"},
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


def _large(sizes: Sizes, tasks: tuple[str, ...], n_read: int, n_patterns: int) -> Preset:
    """With each task's own lengths, and every format of scratchpads."""
    own: dict[str, Any] = {"sizes": sizes, "lengths": None, "n_per_length": 100}
    scratchpads = Scratchpads(tasks=_SCRATCHPAD_TASKS, formats=tuple(FORMATS), **own)
    return Preset(tasks=tasks, n_read=n_read, n_patterns=n_patterns, scratchpads=scratchpads, **own)


_FIVE = Preset(
    tasks=("copy-rsc", "copy-cmc", "reverse-mc", "sort-single", "scan"),
    sizes=Sizes(model=_TINY, training=_FAST, steps=3000),
    lengths=(2, 6),
    n_per_length=200,
    n_read=64,
    n_patterns=8,
    scratchpads=Scratchpads(
        tasks=("parity", "sort-single", "lego"),
        formats=(PLAIN, FULL, "computation and output"),
        sizes=Sizes(model=_TINY, training=_FAST | {"batch_size": 24}, steps=2500),
        lengths=(2, 4),
        n_per_length=200,
    ),
)
PRESETS = {
    "tiny": _FIVE,
    "tiny-all": replace(_FIVE, tasks=KAZEMNEJAD_TASKS, beside=("addition-natural", "scan-natural")),
    "tiny-nope": replace(_FIVE, tasks=KAZEMNEJAD_TASKS, scratchpads=None, encodings=("NoPE",)),
    # Encodings take about an hour on one GPU and scratchpads several; not tried out.
    "small": _large(
        _SMALL,
        ("copy-rsc", "copy-cmc", "reverse-mc", "sort-single", "summation", "scan"),
        n_read=32,
        n_patterns=4,
    ),
    "paper": _large(
        _PAPER,
        KAZEMNEJAD_TASKS,
        n_read=16,
        n_patterns=2,
    ),
}
