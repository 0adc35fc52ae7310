"""Kazemnejad et al. 2023, figure 1: trained on short examples, which encoding answers longer ones?

A run is a task, an encoding and a seed: a model is trained on the task's short lengths, and its
exact answers are counted on held-out examples of these lengths and on longer ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float
from scipy.stats import rankdata

from experiments.reproduce.answering import LEARNED, Sizes, accuracies, trained_to_answer
from experiments.reproduce.config import ReproduceConfig
from experiments.reproduce.findings import (
    Array,
    Cells,
    Figure,
    Findings,
    Panel,
    curve,
    line,
    over_seeds,
)
from nope_interp.config import Positions
from nope_interp.tasks.registry import make_answer_task

# The paper's five, in the order in which its ranking lists ties.
ENCODINGS: dict[str, Positions] = {
    "NoPE": "none",
    "T5": "t5",
    "ALiBi": "alibi",
    "RoPE": "rotary",
    "sinusoidal": "sinusoidal",
}
# A ranking needs so many pairs of a task and a seed that every encoding learned, of two tasks.
_FEWEST_UNITS = 4


@dataclass(frozen=True)
class Preset:
    """Sizes of a comparison.

    Attributes:
        tasks: names of tasks.
        sizes: of models and training.
        shortest, longest: the lengths trained on, whatever the task's own.
        n_per_length: examples that each length is scored on.
    """

    tasks: tuple[str, ...]
    sizes: Sizes
    shortest: int
    longest: int
    n_per_length: int

    @property
    def training_lengths(self) -> range:
        return range(self.shortest, self.longest + 1)

    @property
    def test_lengths(self) -> range:
        """Up to twice as long, as in the paper."""
        return range(self.longest + 1, 2 * self.longest + 1)


PRESETS = {
    "tiny": Preset(
        tasks=("copy-rsc", "copy-cmc", "reverse-mc", "sort-single"),
        # Xavier's spread keeps embeddings from drowning in the sinusoids, whose amplitude is 1.
        sizes=Sizes(
            model={
                "n_layers": 2,
                "d_model": 64,
                "n_heads": 4,
                "rotary_fraction": 0.25,
                "init": "xavier_normal",
            },
            training={"batch_size": 64, "learning_rate": 2e-3, "weight_decay": 0.05},
            steps=2500,
        ),
        shortest=2,
        longest=8,
        n_per_length=200,
    ),
}


def length_findings(config: ReproduceConfig, preset: Preset, cells: Cells) -> Findings:
    """Trains and scores every run of the preset, and ranks the encodings."""
    steps = config.scaled("training", preset.sizes.steps)
    seeds = [seed + 1 for seed in config.seeds]  # sizes were chosen by pilot runs with seed 0
    runs = {
        (task, name): cells.per_seed(
            f"{task}, {name}", seeds, partial(_scored, preset, task, positions, steps)
        )
        for task in preset.tasks
        for name, positions in ENCODINGS.items()
    }
    within, beyond = (_units(preset, runs, part) for part in ("within", "beyond"))
    learned = within >= LEARNED
    unlearned = [
        f"{task} with {name}: {(~learned[:, t, e]).sum()} of {len(seeds)} runs"
        for t, task in enumerate(preset.tasks)
        for e, name in enumerate(ENCODINGS)
        if not learned[:, t, e].all()
    ]
    claims, figures = {}, [_curves(preset, runs)]
    ranked = learned.all(axis=2)
    if ranked.sum() >= _FEWEST_UNITS and ranked.any(axis=0).sum() > 1:
        accuracy = beyond[ranked]
        claims["length-generalisation"] = over_seeds(reciprocal_ranks(accuracy), _lead)
        figures.append(_ranking(accuracy))
    return Findings(
        claims,
        tuple(figures),
        setting=f"{len(seeds)} models for each of {len(preset.tasks)} tasks and {len(ENCODINGS)} "
        f"encodings, {steps} steps on lengths {preset.shortest} to {preset.longest}, tested up to "
        f"{2 * preset.longest}",
        notes=(
            f"A run has learned its task where its mean accuracy on held-out examples of the "
            f"training lengths is at least {LEARNED:g}. Not learned: "
            f"{'; '.join(unlearned) or 'none'}. A task and a seed are ranked where every encoding "
            f"learned: {ranked.sum()} of {ranked.size}. With fewer than {_FEWEST_UNITS}, or of one "
            "task alone, there is no ranking.",
            "Ties share what their ranks bring. The paper's own rule gives them ranks in the order "
            "of its table; both are drawn.",
        ),
    )


def _scored(
    preset: Preset, task_name: str, positions: Positions, steps: int, seed: int
) -> dict[str, Array]:
    """Exact answers of one trained model, by length."""
    task = make_answer_task(
        task_name, training_lengths=preset.training_lengths, test_lengths=preset.test_lengths
    )
    model = trained_to_answer(task, preset.sizes, steps=steps, seed=seed, positions=positions)
    return {
        "within": accuracies(model, task, preset.n_per_length, "validation", seed),
        "beyond": accuracies(model, task, preset.n_per_length, "test", seed),
    }


def _units(
    preset: Preset, runs: Mapping[tuple[str, str], Mapping[str, Array]], part: str
) -> Float[Array, "seed task encoding"]:
    """Mean accuracy over lengths."""
    return np.stack(
        [
            np.stack([runs[task, name][part].mean(axis=1) for name in ENCODINGS], axis=-1)
            for task in preset.tasks
        ],
        axis=1,
    )


def reciprocal_ranks(
    accuracy: Float[Array, "unit encoding"], *, ties_share: bool = True
) -> Float[Array, "unit encoding"]:
    """1 / rank of each encoding, the most accurate first.

    Kazemnejad et al. 2023 average these over tasks and seeds. Tied encodings share the mean of what
    their places bring, so that a unit's numbers always add up to the same; or else, as in the
    paper's notebook, they are ranked in the order of `ENCODINGS`.
    """
    places = 1 / rankdata(-accuracy, method="ordinal", axis=-1)
    if not ties_share:
        return places
    tied = accuracy[:, :, None] == accuracy[:, None, :]
    return (tied * places[:, None, :]).sum(axis=-1) / tied.sum(axis=-1)


def _lead(means: Float[Array, "row encoding"]) -> Float[Array, " row"]:
    """Mean reciprocal rank of the first encoding less the largest of the others'."""
    return means[..., 0] - means[..., 1:].max(axis=-1)


def _curves(preset: Preset, runs: Mapping[tuple[str, str], Mapping[str, Array]]) -> Figure:
    lengths = np.array([*preset.training_lengths, *preset.test_lengths])
    panels = []
    for task in preset.tasks:
        curves = [
            curve(
                name,
                "measured",
                lengths,
                np.concatenate([runs[task, name]["within"], runs[task, name]["beyond"]], axis=1),
            )
            for name in ENCODINGS
        ]
        panels.append(Panel(task, tuple(curves)))
    return Figure(
        "lengths",
        "Accuracy by length",
        f"Share of held-out examples answered exactly, {preset.n_per_length} of each length; "
        "shaded: the lengths trained on. A guess is right less than once in a hundred.",
        "length",
        "accuracy",
        tuple(panels),
        claims=("length-generalisation",),
        shaded=(preset.shortest, preset.longest),
    )


def _ranking(accuracy: Float[Array, "unit encoding"]) -> Figure:
    at = np.arange(len(ENCODINGS))
    panels = [
        Panel(
            title,
            (
                line("random order", "chance", at, float((1 / (at + 1)).mean())),
                curve("measured", "measured", at, reciprocal_ranks(accuracy, ties_share=share)),
            ),
        )
        for title, share in (("ties share their ranks", True), ("ties in the paper's order", False))
    ]
    return Figure(
        "ranking",
        "Mean reciprocal rank beyond the training lengths",
        f"1 for an encoding that is always best; mean over {len(accuracy)} pairs of a task and a "
        "seed that every encoding learned; bars are 95% intervals over them.",
        "encoding",
        "mean reciprocal rank",
        tuple(panels),
        claims=("length-generalisation",),
        ticks=tuple(ENCODINGS),
    )
