"""A planted model as what interventions work on, and the sequences that every method is given."""

from typing import Any

import torch

from experiments.codes.in_depth import stream_sites
from experiments.codes.task import InterventionTask
from experiments.probing.sites import Site
from experiments.probing.split import Split
from experiments.results.code_ablation import EVERYWHERE, STREAM
from nope_interp.constructions.planted import Planted, PlantedLanguage
from nope_interp.sites import hook_name

# As few as tell codes from noise in these models: of seeds there are the more.
N_FIT, N_HELD_OUT = 200, 80
_BATCH = 128


def task_of(planted: Planted, seed: int) -> InterventionTask:
    """What a method is given beside the model: sequences to fit on, and others to judge by."""
    split = Split(planted.sequences(N_FIT, 2 * seed), planted.sequences(N_HELD_OUT, 2 * seed + 1))
    return InterventionTask(
        planted.model,
        split,
        lambda _, tokens: planted.losses(planted.model, tokens),
        torch.full((N_HELD_OUT,), planted.chance),
        seed,
        _BATCH,
        planted.begin_token is not None,
    )


def sites_of(task: InterventionTask, place: Site | None) -> list[Site]:
    """The place itself, or every site of the stream."""
    return stream_sites(task) if place is None else [place]


def site_of(name: str) -> Site:
    """The site of a hook name of the stream."""
    _, layer, hook = name.split(".")
    site = Site(int(layer), hook.removeprefix("hook_"))
    assert hook_name(site.layer, site.hook) == name
    return site


def where(place: Site | None) -> tuple[int, str]:
    """The layer and site of a place, as the tidy table has them."""
    return (EVERYWHERE, STREAM) if place is None else (place.layer, place.hook)


def context(planted: Planted | PlantedLanguage, seed: int) -> dict[str, Any]:
    """The columns of the tidy table that a planted model decides."""
    return {
        "experiment": "benchmark",
        "model": planted.kind,
        "variant": "planted",
        "tokens": "text" if isinstance(planted, PlantedLanguage) else "random",
        "begin_token": planted.begin_token is not None,
        "seed": seed,
    }
