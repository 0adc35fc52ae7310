"""Zuo et al. 2025: where the pattern holds after training, over sizes and initialisations."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from experiments.reproduce.answering import LEARNED, accuracies, trained_to_answer
from experiments.reproduce.config import ReproduceConfig
from experiments.reproduce.findings import (
    Array,
    Cells,
    Figure,
    Findings,
    Panel,
    line,
    over_seeds,
)
from experiments.reproduce.zuo2025_presets import Preset
from experiments.reproduce.zuo2025_scores import PLACES, read_rows
from nope_interp.checkpoints import bidirectional_twin
from nope_interp.transformer import HookedTransformer

# Arrays by task and setting, of one seed, along the first axis.
Found = Mapping[tuple[str, str], Mapping[str, Array]]

_KINDS = {
    "trained": "trained",
    "random": "before training",
    "unmasked": "trained, without the causal mask",
}


def sweep_findings(config: ReproduceConfig, preset: Preset, cells: Cells, device: str) -> Findings:
    """Adjacency in trained models, one thing changed of the base at a time; one model of each."""
    steps = {task: config.scaled("training", n) for task, n in preset.sweep_steps.items()}
    places = [(task, setting) for task in steps for setting in preset.changes]
    cells_of = cells.side_by_side(
        {
            _title(*place): partial(_swept, preset, *place, steps[place[0]], device)
            for place in places
        },
        preset.seeds(config.seeds)[:1],
    )
    found = {place: cells_of[_title(*place)] for place in places}
    learned = {place: bool(cell["accuracy"][0] >= LEARNED) for place, cell in found.items()}
    above = _above_unmasked(found, learned)
    claims, lowest = {}, "none"
    if len(above) > 1:
        claims["trained-sweep"] = over_seeds(np.array([*above.values()]))
        place = min(above, key=lambda setting: above[setting])
        lowest = f"{place!r} with {above[place]:.3g}"
    length = " and ".join(f"{task} for {n} steps" for task, n in steps.items())
    return Findings(
        claims,
        (_map(found, learned),),
        setting=f"a model for each of {len(preset.changes)} settings of sizes and "
        f"initialisation, trained on {length}",
        notes=(
            f"Sizes and initialisations after training: {sum(learned.values())} of {len(found)} "
            f"models learned their task; the setting where the pattern is weakest: {lowest}.",
        ),
    )


def _above_unmasked(found: Found, learned: Mapping[tuple[str, str], bool]) -> dict[str, float]:
    """By setting: adjacency A less that of the same weights without the causal mask, after the
    block where that is lowest; mean over the tasks that were learned."""
    by_setting: dict[str, list[float]] = {}
    for (task, setting), cell in found.items():
        if learned[task, setting]:
            above = cell["trained_blocks"][0, :, 0] - cell["unmasked_blocks"][0, :, 0]
            by_setting.setdefault(setting, []).append(float(above.min()))
    return {setting: float(np.mean(values)) for setting, values in by_setting.items()}


def _title(task: str, setting: str) -> str:
    return f"{task} with {setting}"


def _swept(
    preset: Preset, name: str, setting: str, steps: int, device: str, seed: int
) -> dict[str, Array]:
    """Accuracy of a trained model, and its scores, those before training and without the mask."""
    sizes = replace(preset.sizes, model={**preset.sizes.model, **preset.changes[setting]})
    task, tokens = preset.task(name), preset.read_on(name, seed)
    model = trained_to_answer(task, sizes, steps=steps, seed=seed, device=device)
    models = {
        "trained": model,
        "random": HookedTransformer(model.config).to(device),
        "unmasked": bidirectional_twin(model),
    }
    rows = {kind: read_rows(models[kind], tokens, first=1) for kind in _KINDS}
    accuracy = accuracies(model, task, preset.n_scored, "validation", seed).mean()
    return {"accuracy": np.array(accuracy)} | {
        f"{kind}_{what}": rows[kind][what] for kind in _KINDS for what in ("places", "blocks")
    }


def _map(found: Found, learned: Mapping[tuple[str, str], bool]) -> Figure:
    at = np.arange(len(PLACES))
    panels = []
    for name in dict.fromkeys(task for task, _ in found):
        of_task = {place: cell for place, cell in found.items() if place[0] == name}
        for kind, title in _KINDS.items():
            rows = tuple(
                line(
                    place[1] if learned[place] else f"{place[1]}, not learned",
                    "measured",
                    at,
                    cell[f"{kind}_places"][0, :, 0],
                )
                for place, cell in of_task.items()
            )
            panels.append(Panel(f"{name}, {title}", rows))
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
