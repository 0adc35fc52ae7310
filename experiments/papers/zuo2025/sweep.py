"""Zuo et al. 2025: pattern and variances through training, over sizes and initialisations."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from jaxtyping import Float

from experiments.papers.answering import LEARNED
from experiments.papers.config import ReproduceConfig
from experiments.papers.zuo2025.presets import Preset
from experiments.papers.zuo2025.scores import (
    PLACES,
    above_unmasked,
    read_through_training,
    variance_trend,
)
from experiments.results.findings import Array, Figure, Findings, Panel, Series, line, over_seeds
from experiments.runs.cells import Cells
from nope_interp.training.train import watched_steps

# Arrays by task and setting, of one seed, along the first axis.
Found = Mapping[tuple[str, str], Mapping[str, Array]]
Learned = Mapping[tuple[str, str], bool]

# Which array, at which of the watched steps.
_KINDS = {
    "trained": ("places", -1),
    "before training": ("places", 0),
    "trained, without the causal mask": ("unmasked_places", -1),
}


def sweep_findings(config: ReproduceConfig, preset: Preset, cells: Cells, device: str) -> Findings:
    """Adjacency and variance through training, one thing changed of the base at a time; one model
    of each."""
    steps = {task: config.scaled("training", n) for task, n in preset.sweep_steps.items()}
    places = [(task, setting) for task in steps for setting in preset.changes]
    cells_of = cells.side_by_side(
        {
            _title(task, setting): partial(
                read_through_training,
                preset,
                task,
                preset.changes[setting],
                steps[task],
                device,
            )
            for task, setting in places
        },
        preset.seeds(config.seeds)[:1],
    )
    found = {place: cells_of[_title(*place)] for place in places}
    learned = {place: bool(cell["accuracy"][0, -1] >= LEARNED) for place, cell in found.items()}
    above = _by_setting(found, learned)
    claims, lowest = {}, "none"
    if len(above) > 1:
        claims["trained-sweep"] = over_seeds(np.array([*above.values()]))
        place = min(above, key=lambda setting: above[setting])
        lowest = f"{place!r} with {above[place]:.3g}"
    length = " and ".join(f"{task} for {n} steps" for task, n in steps.items())
    return Findings(
        claims,
        (
            _map(found, learned),
            _through(found, learned, steps),
            _trend(found, learned, steps),
        ),
        setting=f"a model for each of {len(preset.changes)} settings of sizes and "
        f"initialisation, trained on {length}",
        notes=(
            f"Sizes and initialisations after training: {sum(learned.values())} of {len(found)} "
            f"models learned their task; the setting where the pattern is weakest: {lowest}.",
        ),
    )


def _by_setting(found: Found, learned: Learned) -> dict[str, float]:
    """`_above` at the end of training; mean over the tasks that were learned."""
    by_setting: dict[str, list[float]] = {}
    for (task, setting), cell in found.items():
        if learned[task, setting]:
            by_setting.setdefault(setting, []).append(float(_above(cell)[-1]))
    return {setting: float(np.mean(values)) for setting, values in by_setting.items()}


def _title(task: str, setting: str) -> str:
    return f"{task} with {setting}, through training"


def _above(cell: Mapping[str, Array]) -> Float[Array, " step"]:
    """Adjacency A less that of the same weights without the causal mask, at each watched step,
    after the block where that is lowest at the end of training."""
    [above] = above_unmasked(cell)
    return above[:, above[-1].argmin()]


def _adjacency(cell: Mapping[str, Array], what: str, step: int) -> Float[Array, " place"]:
    return cell[what][0, step, :, 0]


def _last_trend(cell: Mapping[str, Array], what: str = "variance") -> Float[Array, " step"]:
    """`variance_trend` after the last block."""
    return variance_trend(cell[what][0, :, -1])


def _rows(
    found: Found,
    learned: Learned,
    task: str,
    x: Array,
    read: Callable[[Mapping[str, Array]], Array],
) -> tuple[Series, ...]:
    """What is read of the model of each setting; those that did not learn the task are named."""
    return tuple(
        line(
            setting if learned[of_task, setting] else f"{setting}, not learned",
            "measured",
            x,
            read(cell),
        )
        for (of_task, setting), cell in found.items()
        if of_task == task
    )


def _map(found: Found, learned: Learned) -> Figure:
    at = np.arange(len(PLACES))
    panels = []
    for task in dict.fromkeys(task for task, _ in found):
        for title, (what, step) in _KINDS.items():
            read = partial(_adjacency, what=what, step=step)
            panels.append(Panel(f"{task}, {title}", _rows(found, learned, task, at, read)))
    return Figure(
        "trained-map",
        "Where the pattern holds after training",
        "Adjacency A, mean over held-out examples of the longest length, position 0 left out; 0.5 "
        "is no pattern where tokens do not repeat, 1 a perfect one. Each row is one model and "
        f"changes one thing of the base. Learned: {LEARNED:g} of held-out prompts answered.",
        "place",
        "adjacency A",
        tuple(panels),
        claims=("trained-sweep",),
        ticks=PLACES,
        heat_about=0.5,
    )


def _through(found: Found, learned: Learned, steps: Mapping[str, int]) -> Figure:
    panels = []
    for task, n in steps.items():
        x = np.array(watched_steps(n)) + 1
        null = line("as without the mask", "chance", x, 0.0)
        panels.append(Panel(task, (null, *_rows(found, learned, task, x, _above))))
    return Figure(
        "sweep-through-training",
        "Adjacency through training, over sizes and initialisations",
        "Adjacency A less that of the same weights without the causal mask, at optimiser steps 0, "
        "1, 2, 4, ... and the last. Of each model one block is shown, at all steps: the one after "
        "which this difference is lowest at the end of training, as in the claim. Each curve is "
        "one model and changes one thing of the base.",
        "optimiser steps, plus 1",
        "adjacency A, less that without the mask",
        tuple(panels),
        claims=("trained-sweep",),
        log="x",
    )


def _trend(found: Found, learned: Learned, steps: Mapping[str, int]) -> Figure:
    panels = []
    for task, n in steps.items():
        x = np.array(watched_steps(n)) + 1
        unmasked = [
            _last_trend(cell, "unmasked_variance")
            for (of_task, _), cell in found.items()
            if of_task == task
        ]
        series = (
            line("no trend", "chance", x, 0.0),
            line("without the mask, mean of models", "reference", x, np.mean(unmasked, axis=0)),
            *_rows(found, learned, task, x, _last_trend),
        )
        panels.append(Panel(task, series))
    return Figure(
        "sweep-variance-through-training",
        "Trend of the variance through training, over sizes and initialisations",
        "How the mean variance of a row falls with position, after the last block: slope of its "
        "logarithm over that of the number of tokens seen. The law 1/m would be -1; the same "
        "weights without the causal mask show what prompts and answers give by themselves. Each "
        "curve is one model and changes one thing of the base.",
        "optimiser steps, plus 1",
        "slope",
        tuple(panels),
        claims=("trained-sweep",),
        log="x",
    )
