"""Zuo et al. 2025, their four tasks: adjacency and variance through training, and how they change
with sizes; and models without the causal mask, trained on the same tasks."""

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
from einops import rearrange
from jaxtyping import Float, Int

from experiments.papers.answering import LEARNED
from experiments.papers.config import ReproduceConfig
from experiments.papers.zuo2025.control import control_findings
from experiments.papers.zuo2025.presets import Preset
from experiments.papers.zuo2025.scores import (
    DECIDING,
    SCORES,
    SITES,
    above_unmasked,
    read_through_training,
    variance_trend,
    weakest,
)
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, panel
from experiments.runs.cells import Cells
from nope_interp.training.loop import watched_steps

# Arrays by task, seeds along the first axis and watched steps along the second; and of a sweep, by
# setting too, which says so where the task was not learned.
Found = Mapping[str, Mapping[str, Array]]
BySetting = Mapping[str, Found]
# The watched steps of each task, plus 1.
Watched = Mapping[str, Int[Array, " step"]]

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
    steps = {task: config.scaled("training", preset.steps(task)) for task in preset.lengths}
    seeds = preset.seeds(config.seeds)
    found = cells.side_by_side(
        {
            task: partial(read_through_training, preset, task, preset.own.get(task, {}), n, device)
            for task, n in steps.items()
        },
        seeds,
        title="{}, through its training".format,
    )
    learned = {task: cell["accuracy"][:, -1] >= LEARNED for task, cell in found.items()}
    by_task = {
        task: weakest(above_unmasked(cell)[learned[task], -1])
        for task, cell in found.items()
        if learned[task].sum() > 1  # for an interval
    }
    claims = {}
    if len(by_task) > 1:
        claims["trained"] = min(by_task.values(), key=lambda measured: measured.ci_low)
    lacking = [
        f"{task}: {(~of_task).sum()} of {len(of_task)} models"
        for task, of_task in learned.items()
        if not of_task.all()
    ]
    watched = {task: np.array(watched_steps(n)) + 1 for task, n in steps.items()}
    long = " and ".join(f"{n} steps" for n in sorted({*steps.values()}))
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
        f"{sizes.model['d_model']} trained on each of {len(found)} tasks for {long}",
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

    Adjacency A, and others where it is said, after each block, on held-out examples, position 0
    left out. Prompts and answers have a structure of their own: the trained weights without the
    causal mask show what that gives.
    """
    for task, cell in found.items():
        last, unmasked = cell["blocks"][:, -1], cell["unmasked_blocks"][:, -1]
        scores = {
            "trained": last[..., 0],
            "before training": cell["blocks"][:, 0, :, 0],
            "without the causal mask": unmasked[..., 0],
        }
        for i, score in enumerate(SCORES):
            if score != "A":
                scores[f"trained, score {score}"] = last[..., i]
                scores[f"without the causal mask, score {score}"] = unmasked[..., i]
        yield panel(task, np.arange(last.shape[1]), chance={"no pattern": 0.5}, measured=scores)


@figure(
    "through-training", _STEPS, "adjacency A, or share of prompts", claims=("trained",), log="x"
)
def _through(found: Found, watched: Watched) -> Iterator[Panel]:
    """Adjacency through training.

    Adjacency A after each block at optimiser steps 0, 1, 2, 4, ... Beside it is the share of
    held-out prompts of the training lengths that are answered exactly.
    """
    for task, cell in found.items():
        yield panel(
            task,
            watched[task],
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
def _trend(found: Found, watched: Watched) -> Iterator[Panel]:
    """Trend of the variance through training.

    How the mean variance of an activation falls with position, after each block: slope of its
    logarithm over that of the number of tokens seen. The law 1/m would be -1.
    """
    for task, cell in found.items():
        trends = (variance_trend(cell[what]) for what in ("variance", "unmasked_variance"))
        yield panel(task, watched[task], chance={"no trend": 0}, measured=_by_layer(*trends))


def _by_layer(
    values: Float[Array, "seed step layer"], unmasked: Float[Array, "seed step layer"]
) -> dict[str, Float[Array, "seed step"]]:
    layers = {f"layer {layer}": values[..., layer] for layer in range(values.shape[2])}
    return layers | {"without the mask, mean of layers": unmasked.mean(axis=2)}


@figure("trained-accuracy", "task", "accuracy", claims=("trained",), ticks=tuple)
def _accuracy(found: Found) -> Iterator[Panel]:
    """What the models have learned.

    Share of held-out prompts of the training lengths that are answered exactly; dotted: from where
    on a model counts as trained.
    """
    accuracy = {"trained": np.stack([cell["accuracy"][:, -1] for cell in found.values()], axis=1)}
    at = np.arange(len(found))
    yield panel("held-out prompts", at, reference={"learned": LEARNED}, measured=accuracy)


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
    above: dict[str, dict[str, Array]] = {task: {} for task in steps}
    for (task, setting), cell in read.items():
        learned = cell["accuracy"][0, -1] >= LEARNED
        found[task][setting if learned else f"{setting}, not learned"] = cell
        if learned:
            above[task][setting] = _above(cell)[-1]
    by_task = {
        task: weakest(np.array([*of_task.values()]))
        for task, of_task in above.items()
        if len(of_task) > 1  # for an interval
    }
    claims = {}
    if by_task:  # no other task may average away the one without the pattern
        claims["trained-sweep"] = min(by_task.values(), key=lambda measured: measured.value)
    every = [(of.min(), task, name) for task, each in above.items() for name, of in each.items()]
    lowest = "{1} with {2!r}, {0:.3g}".format(*min(every)) if every else "none"
    length = " and ".join(f"{task} for {n} steps" for task, n in steps.items())
    return Findings(
        claims,
        (_sweep_map(found), _sweep_through(found, steps), _sweep_trend(found, steps)),
        setting=f"a model for each of {len(preset.changes)} settings of sizes and "
        f"initialisation, trained on {length}",
        notes=(
            "Sizes and initialisations after training: "
            f"{len(every)} of {len(read)} models learned their task; "
            f"the task and setting where the pattern is weakest: {lowest}. "
            "All settings share one seed.",
        ),
    )


def _above(cell: Mapping[str, Array]) -> Float[Array, "step deciding"]:
    """Each score minus that of the same weights without the causal mask, at each watched step,
    after the block where that score's difference is lowest at the end of training."""
    [above] = above_unmasked(cell)
    lowest = above[-1].argmin(axis=0)
    return above[:, lowest, np.arange(len(DECIDING))]


def _last_trend(cell: Mapping[str, Array], what: str = "variance") -> Float[Array, " step"]:
    """`variance_trend` after the last block."""
    return variance_trend(cell[what][0, :, -1])


@figure(
    "trained-map", "site", "adjacency A", claims=("trained-sweep",), ticks=SITES, heat_about=0.5
)
def _sweep_map(found: BySetting) -> Iterator[Panel]:
    """Where the pattern holds after training.

    Adjacency A, mean over held-out examples of the longest length, position 0 left out. 0.5 is no
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
    _STEPS,
    "adjacency, minus that without the mask",
    claims=("trained-sweep",),
    log="x",
)
def _sweep_through(found: BySetting, steps: Mapping[str, int]) -> Iterator[Panel]:
    """Adjacency through training, over sizes and initialisations.

    Adjacency minus that of the same weights without the causal mask, at optimiser steps 0, 1, 2, 4
    and so on, and the last. Of each model and score one block is shown, at all steps: the one after
    which this difference is lowest at the end of training, as in the claim. Each curve is one
    model, and changes one thing of the base. All share one seed.
    """
    for task, of_task in found.items():
        watched = np.array(watched_steps(steps[task])) + 1
        above = {name: _above(cell) for name, cell in of_task.items()}
        for i, score in enumerate(DECIDING):
            scores = {name: of_model[:, i] for name, of_model in above.items()}
            title = f"{task}, {score}"
            yield panel(title, watched, chance={"as without the mask": 0}, measured=scores)


@figure(
    "sweep-variance-through-training",
    _STEPS,
    "slope",
    claims=("trained-sweep",),
    log="x",
)
def _sweep_trend(found: BySetting, steps: Mapping[str, int]) -> Iterator[Panel]:
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
