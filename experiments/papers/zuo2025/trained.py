"""Zuo et al. 2025, their four tasks: adjacency and variance through training, and how they change
with sizes; and models without the causal mask, trained on the same tasks."""

from collections.abc import Mapping
from functools import partial

import numpy as np
from jaxtyping import Float, Int

from experiments.papers.answering import LEARNED
from experiments.papers.config import ReproduceConfig
from experiments.papers.zuo2025.control import control_findings
from experiments.papers.zuo2025.presets import Preset
from experiments.papers.zuo2025.scores import (
    SCORES,
    above_unmasked,
    read_through_training,
    variance_trend,
)
from experiments.papers.zuo2025.sweep import sweep_findings
from experiments.results.findings import (
    Array,
    Figure,
    Findings,
    Panel,
    Series,
    curve,
    line,
    over_seeds,
)
from experiments.runs.cells import Cells
from nope_interp.training.train import watched_steps

# Arrays of one task, seeds along the first axis and watched steps along the second.
Found = Mapping[str, Mapping[str, Array]]


def trained_findings(
    config: ReproduceConfig, preset: Preset, cells: Cells, device: str
) -> Findings:
    """The four tasks through training, the sweep, and the control without the causal mask."""
    through = _through_training(config, preset, cells, device)
    return through.and_of(sweep_findings(config, preset, cells, device)).and_of(
        control_findings(config, preset, cells, device)
    )


def _through_training(
    config: ReproduceConfig, preset: Preset, cells: Cells, device: str
) -> Findings:
    sizes = preset.sizes
    steps = config.scaled("training", sizes.steps)
    seeds = preset.seeds(config.seeds)
    titles = {task: f"{task}, through training" for task in preset.lengths}
    cells_of = cells.side_by_side(
        {
            title: partial(read_through_training, preset, task, {}, steps, device)
            for task, title in titles.items()
        },
        seeds,
    )
    found = {task: cells_of[title] for task, title in titles.items()}
    learned = {task: cell["accuracy"][:, -1] >= LEARNED for task, cell in found.items()}
    by_task = {
        task: over_seeds(above_unmasked(cell)[learned[task], -1], lambda means: means.min(axis=-1))
        for task, cell in found.items()
        if learned[task].sum() > 1  # for an interval
    }
    claims = {}
    if len(by_task) > 1:
        claims["trained"] = min(by_task.values(), key=lambda measured: measured.value)
    lacking = [
        f"{task}: {(~of_task).sum()} of {len(of_task)} models"
        for task, of_task in learned.items()
        if not of_task.all()
    ]
    watched = np.array(watched_steps(steps))
    return Findings(
        claims,
        (
            _adjacency(found),
            _through(found, watched),
            _variance(found),
            _trend(found, watched),
            _accuracy(found),
        ),
        setting=f"{len(seeds)} models of {sizes.model['n_layers']} layers and width "
        f"{sizes.model['d_model']} trained on each of {len(found)} tasks for {steps} steps",
        notes=(
            f"Trained models that answer fewer than {LEARNED:g} of held-out prompts exactly are "
            f"left out of the claim: {'; '.join(lacking) or 'none'}. The claim is on the task "
            "where the number is lowest, of those that two models or more have learned: "
            f"{', '.join(by_task) or 'none'}.",
            "Task formats are our reading of the tasks' names, which are recalled.",
        ),
    )


def _adjacency(found: Found) -> Figure:
    panels = []
    for task, cell in found.items():
        blocks = cell["blocks"]
        layers = np.arange(blocks.shape[2])
        series = [
            line("no pattern", "chance", layers, 0.5),
            curve("trained", "measured", layers, blocks[:, -1, :, 0]),
            curve("before training", "measured", layers, blocks[:, 0, :, 0]),
            curve(
                "without the causal mask", "measured", layers, cell["unmasked_blocks"][:, -1, :, 0]
            ),
        ]
        series += [
            curve(f"trained, score {score}", "measured", layers, blocks[:, -1, :, i])
            for i, score in enumerate(SCORES)
            if i
        ]
        panels.append(Panel(task, tuple(series)))
    return Figure(
        "trained",
        "Adjacency in trained models",
        "Adjacency A, and B and C where it is said, after each block, on held-out examples, "
        "position 0 left out. Prompts and answers have a structure of their own: the trained "
        "weights without the causal mask show what that gives.",
        "layer",
        "adjacency",
        tuple(panels),
        claims=("trained",),
    )


def _through(found: Found, steps: Int[Array, " step"]) -> Figure:
    panels = []
    for task, cell in found.items():
        blocks, unmasked = cell["blocks"][..., 0], cell["unmasked_blocks"][..., 0]
        series = [
            line("no pattern", "chance", steps + 1, 0.5),
            curve("share of prompts answered", "reference", steps + 1, cell["accuracy"]),
            *_by_layer(steps, blocks),
            curve("without the mask, mean of layers", "measured", steps + 1, unmasked.mean(axis=2)),
        ]
        panels.append(Panel(task, tuple(series)))
    return Figure(
        "through-training",
        "Adjacency through training",
        "Adjacency A after each block at optimiser steps 0, 1, 2, 4, ..., and beside it the share "
        "of held-out prompts of the training lengths that are answered exactly.",
        "optimiser steps, plus 1",
        "adjacency A, or share of prompts",
        tuple(panels),
        claims=("trained",),
        log="x",
    )


def _variance(found: Found) -> Figure:
    panels = []
    for task, cell in found.items():
        variance = cell["variance"][:, -1]
        position = np.arange(1, variance.shape[2] + 1)
        series = [
            curve(f"layer {layer}", "measured", position, variance[:, layer])
            for layer in range(variance.shape[1])
        ]
        panels.append(Panel(task, tuple(series)))
    return Figure(
        "trained-variance",
        "Variance in trained models",
        "Variance of the components of a row, by position and layer: the other account.",
        "position",
        "variance of a row",
        tuple(panels),
        claims=("trained",),
        log="xy",
    )


def _trend(found: Found, steps: Int[Array, " step"]) -> Figure:
    panels = []
    for task, cell in found.items():
        unmasked = variance_trend(cell["unmasked_variance"]).mean(axis=2)
        series = (
            line("no trend", "chance", steps + 1, 0.0),
            *_by_layer(steps, variance_trend(cell["variance"])),
            curve("without the mask, mean of layers", "measured", steps + 1, unmasked),
        )
        panels.append(Panel(task, series))
    return Figure(
        "variance-through-training",
        "Trend of the variance through training",
        "How the mean variance of a row falls with position, after each block: slope of its "
        "logarithm over that of the number of tokens seen. The law 1/m would be -1.",
        "optimiser steps, plus 1",
        "slope",
        tuple(panels),
        claims=("trained",),
        log="x",
    )


def _by_layer(steps: Int[Array, " step"], values: Float[Array, "seed step layer"]) -> list[Series]:
    return [
        curve(f"layer {layer}", "measured", steps + 1, values[:, :, layer])
        for layer in range(values.shape[2])
    ]


def _accuracy(found: Found) -> Figure:
    at = np.arange(len(found))
    accuracy: Float[Array, "seed task"] = np.stack(
        [cell["accuracy"][:, -1] for cell in found.values()], axis=1
    )
    return Figure(
        "trained-accuracy",
        "What the models have learned",
        "Share of held-out prompts of the training lengths that are answered exactly; dashed: from "
        "where on a model counts as trained.",
        "task",
        "accuracy",
        (
            Panel(
                "held-out prompts",
                (
                    line("learned", "reference", at, LEARNED),
                    curve("trained", "measured", at, accuracy),
                ),
            ),
        ),
        claims=("trained",),
        ticks=tuple(found),
    )
