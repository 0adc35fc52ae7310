"""Zuo et al. 2025, their four tasks: adjacency and variance through training, and how they change
with sizes; and models without the causal mask, trained on the same tasks."""

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
from einops import rearrange
from jaxtyping import Float, Int

from experiments.papers.answering import LEARNED
from experiments.papers.config import ReproduceConfig
from experiments.papers.figures import figure
from experiments.papers.zuo2025.control import control_findings
from experiments.papers.zuo2025.presets import Preset
from experiments.papers.zuo2025.scores import above_unmasked, read_through_training, variance_trend
from experiments.papers.zuo2025.sweep import sweep_findings
from experiments.results.findings import Array, Findings, Panel, over_seeds, panel
from experiments.runs.cells import Cells
from nope_interp.training.train import watched_steps

# Arrays of one task, seeds along the first axis and watched steps along the second.
Found = Mapping[str, Mapping[str, Array]]

_STEPS = "optimiser steps, plus 1"


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
    found = cells.side_by_side(
        {
            task: partial(read_through_training, preset, task, {}, steps, device)
            for task in preset.lengths
        },
        seeds,
        title="{}, through training".format,
    )
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
    watched = np.array(watched_steps(steps)) + 1
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


@figure("trained", "layer", "adjacency", claims=("trained",))
def _adjacency(found: Found) -> Iterator[Panel]:
    """Adjacency in trained models.

    Adjacency A, and B and C where it is said, after each block, on held-out examples, position 0
    left out. Prompts and answers have a structure of their own: the trained weights without the
    causal mask show what that gives.
    """
    for task, cell in found.items():
        last = cell["blocks"][:, -1]
        scores = {
            "trained": last[..., 0],
            "before training": cell["blocks"][:, 0, :, 0],
            "without the causal mask": cell["unmasked_blocks"][:, -1, :, 0],
            "trained, score B": last[..., 1],
            "trained, score C": last[..., 2],
        }
        yield panel(task, np.arange(last.shape[1]), chance={"no pattern": 0.5}, measured=scores)


@figure(
    "through-training", _STEPS, "adjacency A, or share of prompts", claims=("trained",), log="x"
)
def _through(found: Found, watched: Int[Array, " step"]) -> Iterator[Panel]:
    """Adjacency through training.

    Adjacency A after each block at optimiser steps 0, 1, 2, 4, ..., and beside it the share of
    held-out prompts of the training lengths that are answered exactly.
    """
    for task, cell in found.items():
        yield panel(
            task,
            watched,
            chance={"no pattern": 0.5},
            reference={"share of prompts answered": cell["accuracy"]},
            measured=_by_layer(cell["blocks"][..., 0], cell["unmasked_blocks"][..., 0]),
        )


@figure("trained-variance", "position", "variance of an activation", claims=("trained",), log="xy")
def _variance(found: Found) -> Iterator[Panel]:
    """Variance in trained models.

    Variance of an activation's components, by position and layer: the other account.
    """
    for task, cell in found.items():
        by_layer = rearrange(cell["variance"][:, -1], "seed layer pos -> layer seed pos")
        layers = {f"layer {layer}": variance for layer, variance in enumerate(by_layer)}
        yield panel(task, np.arange(1, by_layer.shape[-1] + 1), measured=layers)


@figure("variance-through-training", _STEPS, "slope", claims=("trained",), log="x")
def _trend(found: Found, watched: Int[Array, " step"]) -> Iterator[Panel]:
    """Trend of the variance through training.

    How the mean variance of an activation falls with position, after each block: slope of its
    logarithm over that of the number of tokens seen. The law 1/m would be -1.
    """
    for task, cell in found.items():
        trends = (variance_trend(cell[what]) for what in ("variance", "unmasked_variance"))
        yield panel(task, watched, chance={"no trend": 0}, measured=_by_layer(*trends))


def _by_layer(
    values: Float[Array, "seed step layer"], unmasked: Float[Array, "seed step layer"]
) -> dict[str, Float[Array, "seed step"]]:
    layers = {f"layer {layer}": values[..., layer] for layer in range(values.shape[2])}
    return layers | {"without the mask, mean of layers": unmasked.mean(axis=2)}


@figure("trained-accuracy", "task", "accuracy", claims=("trained",), ticks=tuple)
def _accuracy(found: Found) -> Iterator[Panel]:
    """What the models have learned.

    Share of held-out prompts of the training lengths that are answered exactly; dashed: from where
    on a model counts as trained.
    """
    accuracy = {"trained": np.stack([cell["accuracy"][:, -1] for cell in found.values()], axis=1)}
    at = np.arange(len(found))
    yield panel("held-out prompts", at, reference={"learned": LEARNED}, measured=accuracy)
