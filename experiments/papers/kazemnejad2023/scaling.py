"""Does sharper attention let NoPE go further (Wang et al. 2024, arXiv 2404.12224)?"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float

from experiments.papers.answering import by_task, enough
from experiments.papers.kazemnejad2023.presets import Preset, by_length
from experiments.results.findings import Array, Figure, Findings, over_seeds, panel

SCALINGS = {
    "none": "as trained",
    "uniform": "one factor",
    "heads": "a factor for each head",
    "control": "for each head, from training lengths",
}
# What was measured of NoPE, for each task; seeds along the first axis.
Nope = Mapping[str, Mapping[str, Array]]


def scaling_findings(preset: Preset, nope: Nope, learned: Bool[Array, "seed task"]) -> Findings:
    """What factors on NoPE's attention scores bring; `learned` says which models count."""
    figures = (_accuracy(preset, nope), _entropy(preset, nope))
    setting = f"factors on NoPE's scores chosen on {preset.n_read} examples of each length"
    if not enough(learned):
        return Findings({}, figures, setting)

    def of_learned(values: Mapping[str, Float[Array, " seed"]]) -> Float[Array, " task"]:
        return by_task(np.stack([values[task] for task in preset.tasks], axis=1), learned)

    def gain(scaling: str, part: str) -> Float[Array, " task"]:
        """Of accuracy, over the lengths up to the longest tuned on ("tuned"), longer, or all."""
        gains = {}
        for task, cell in nope.items():
            lengths = np.array(preset.task(task).test_lengths)
            longer = lengths > cell["tuned_length"][0]
            chosen = {"tuned": ~longer, "longer": longer, "all": longer | ~longer}[part]
            more = cell[f"{scaling}/beyond"] - cell["none/beyond"]
            gains[task] = more[:, chosen].mean(axis=1)
        return of_learned(gains)

    def dispersion() -> Float[Array, " task"]:
        """Of entropy over that of uniform attention: last test length less last training length."""
        rises = {}
        for task, cell in nope.items():
            shares = _shares(cell, "none")
            last = len(preset.task(task).training_lengths) - 1
            rises[task] = shares[:, -1] - shares[:, last]
        return of_learned(rises)

    told = [
        f"{SCALINGS[scaling]} {gain(scaling, 'tuned').mean():+.3f} and "
        f"{gain(scaling, 'longer').mean():+.3f}"
        for scaling in ("uniform", "heads", "control")
    ]
    return Findings(
        {
            "dispersed": over_seeds(dispersion()),
            "uniform-scale": over_seeds(gain("uniform", "all")),
            "head-scale": over_seeds(gain("heads", "all")),
        },
        figures,
        setting,
        (
            "Factors on attention scores are chosen on examples of the shorter half of the test "
            "lengths, none of which is a test example. Mean change of accuracy at these lengths "
            f"and at longer ones: {'; '.join(told)}. {learned.sum()} NoPE models that learned, "
            "tasks weighted alike.",
        ),
    )


def _shares(cell: Mapping[str, Array], scaling: str) -> Float[Array, "seed length"]:
    """Mean entropy over layers and heads, over that of uniform attention."""
    return cell[f"{scaling}/entropy"].mean(axis=(2, 3)) / cell["most"]


def _accuracy(preset: Preset, nope: Nope) -> Figure:
    panels = [
        panel(
            f"{task}, tuned up to {cell['tuned_length'][0]}",
            preset.all_lengths(task),
            measured={name: by_length(cell, f"{key}/") for key, name in SCALINGS.items()},
        )
        for task, cell in nope.items()
    ]
    return Figure(
        "scaling",
        "NoPE with its attention scores multiplied",
        "Share of held-out examples answered exactly. One factor is chosen by exact answers, one "
        "for each head by gradient descent, weights frozen, on other examples of the shorter half "
        "of the lengths beyond; the control's on as many examples of the longest training lengths. "
        "Models that did not learn are among them.",
        "length",
        "accuracy",
        tuple(panels),
        claims=("uniform-scale", "head-scale"),
        shaded=preset.lengths,
    )


def _entropy(preset: Preset, nope: Nope) -> Figure:
    panels = [
        panel(
            task,
            preset.all_lengths(task),
            chance={"uniform attention": 1},
            measured={name: _shares(cell, key) for key, name in SCALINGS.items()},
        )
        for task, cell in nope.items()
    ]
    return Figure(
        "entropy",
        "How dispersed NoPE's attention is",
        "Mean entropy of attention over rows, layers and heads, over that of attention that is "
        "equal on all tokens seen. Row 0 is left out. Models that did not learn are among them.",
        "length",
        "entropy over the most possible",
        tuple(panels),
        claims=("dispersed",),
        shaded=preset.lengths,
    )
