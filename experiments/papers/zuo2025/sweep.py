"""Zuo et al. 2025: pattern and variances through training, over sizes and initialisations."""

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
from jaxtyping import Float

from experiments.papers.answering import LEARNED
from experiments.papers.config import ReproduceConfig
from experiments.papers.figures import figure
from experiments.papers.zuo2025.presets import Preset
from experiments.papers.zuo2025.scores import (
    SITES,
    above_unmasked,
    read_through_training,
    variance_trend,
)
from experiments.results.findings import Array, Findings, Panel, over_seeds, panel
from experiments.runs.cells import Cells
from nope_interp.training.train import watched_steps

# Arrays by task and by setting, which says so where the task was not learned; of one seed, along
# the first axis.
Found = Mapping[str, Mapping[str, Mapping[str, Array]]]


def sweep_findings(config: ReproduceConfig, preset: Preset, cells: Cells, device: str) -> Findings:
    """Adjacency and variance through training, one thing changed of the base at a time; one model
    of each."""
    steps = {task: config.scaled("training", n) for task, n in preset.sweep_steps.items()}
    read = cells.side_by_side(
        {
            (task, setting): partial(read_through_training, preset, task, changes, n, device)
            for task, n in steps.items()
            for setting, changes in preset.changes.items()
        },
        preset.seeds(config.seeds)[:1],
        title=lambda run: "{} with {}, through training".format(*run),
    )
    found: dict[str, dict[str, Mapping[str, Array]]] = {task: {} for task in steps}
    by_setting: dict[str, list[float]] = {}
    for (task, setting), cell in read.items():
        learned = cell["accuracy"][0, -1] >= LEARNED
        found[task][setting if learned else f"{setting}, not learned"] = cell
        if learned:
            by_setting.setdefault(setting, []).append(float(_above(cell)[-1]))
    above = {setting: float(np.mean(values)) for setting, values in by_setting.items()}
    claims, lowest = {}, "none"
    if len(above) > 1:
        claims["trained-sweep"] = over_seeds(np.array([*above.values()]))
        weakest = min(above, key=above.__getitem__)
        lowest = f"{weakest!r} with {above[weakest]:.3g}"
    length = " and ".join(f"{task} for {n} steps" for task, n in steps.items())
    return Findings(
        claims,
        (_map(found), _through(found, steps), _trend(found, steps)),
        setting=f"a model for each of {len(preset.changes)} settings of sizes and "
        f"initialisation, trained on {length}",
        notes=(
            "Sizes and initialisations after training: "
            f"{sum(map(len, by_setting.values()))} of {len(read)} "
            f"models learned their task; the setting where the pattern is weakest: {lowest}.",
        ),
    )


def _above(cell: Mapping[str, Array]) -> Float[Array, " step"]:
    """Adjacency A less that of the same weights without the causal mask, at each watched step,
    after the block where that is lowest at the end of training."""
    [above] = above_unmasked(cell)
    return above[:, above[-1].argmin()]


def _last_trend(cell: Mapping[str, Array], what: str = "variance") -> Float[Array, " step"]:
    """`variance_trend` after the last block."""
    return variance_trend(cell[what][0, :, -1])


@figure(
    "trained-map", "site", "adjacency A", claims=("trained-sweep",), ticks=SITES, heat_about=0.5
)
def _map(found: Found) -> Iterator[Panel]:
    """Where the pattern holds after training.

    Adjacency A, mean over held-out examples of the longest length, position 0 left out; 0.5 is no
    pattern where tokens do not repeat, 1 a perfect one. Each row is one model and changes one thing
    of the base. Learned: {LEARNED:g} of held-out prompts answered.
    """
    kinds = {
        "trained": ("sites", -1),
        "before training": ("sites", 0),
        "trained, without the causal mask": ("unmasked_sites", -1),
    }
    for task, of_task in found.items():
        for title, (what, step) in kinds.items():
            scores = {name: cell[what][0, step, :, 0] for name, cell in of_task.items()}
            yield panel(f"{task}, {title}", np.arange(len(SITES)), measured=scores)


@figure(
    "sweep-through-training",
    "optimiser steps, plus 1",
    "adjacency A, less that without the mask",
    claims=("trained-sweep",),
    log="x",
)
def _through(found: Found, steps: Mapping[str, int]) -> Iterator[Panel]:
    """Adjacency through training, over sizes and initialisations.

    Adjacency A less that of the same weights without the causal mask, at optimiser steps 0, 1, 2,
    4, ... and the last. Of each model one block is shown, at all steps: the one after which this
    difference is lowest at the end of training, as in the claim. Each curve is one model and
    changes one thing of the base.
    """
    for task, of_task in found.items():
        watched = np.array(watched_steps(steps[task])) + 1
        above = {name: _above(cell) for name, cell in of_task.items()}
        yield panel(task, watched, chance={"as without the mask": 0}, measured=above)


@figure(
    "sweep-variance-through-training",
    "optimiser steps, plus 1",
    "slope",
    claims=("trained-sweep",),
    log="x",
)
def _trend(found: Found, steps: Mapping[str, int]) -> Iterator[Panel]:
    """Trend of the variance through training, over sizes and initialisations.

    How the mean variance of an activation falls with position, after the last block: slope of its
    logarithm over that of the number of tokens seen. The law 1/m would be -1; the same weights
    without the causal mask show what prompts and answers give by themselves. Each curve is one
    model and changes one thing of the base.
    """
    for task, of_task in found.items():
        every = [_last_trend(cell, "unmasked_variance") for cell in of_task.values()]
        yield panel(
            task,
            np.array(watched_steps(steps[task])) + 1,
            chance={"no trend": 0},
            reference={"without the mask, mean of models": np.mean(every, axis=0)},
            measured={name: _last_trend(cell) for name, cell in of_task.items()},
        )
