"""Every probe at every layer and site of one model, on one kind of tokens, in one stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from experiments.results.measurements import FIRST_POSITION, rows_of
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.interventions.intervene import Where
from nope_interp.sites import hook_name
from nope_interp.streams import Listener, one_thread_pool, stream
from probes.nonlinear import TwoLayerProbe
from probes.positional_vectors import PositionalVectorProbe
from probes.regression import LinearProbe
from probes.similarity import SimilarityProbe
from probes.streaming import StreamingProbe
from probes.variance import VarianceProbe

ALL_BUT_FIRST = slice(FIRST_POSITION, None)

Stage = Literal["update", "evaluate"]


@runtime_checkable
class Learner(Protocol):
    """What is fitted on rows batch by batch: any probe, or what interventions are made from."""

    def update(
        self, activations: Float[Tensor, "batch pos d_model"], positions: Int[Tensor, " pos"]
    ) -> object:
        """Adds sequences to what has been fitted on."""


@dataclass(frozen=True)
class Site:
    """A layer and a hook of the residual stream; layer 0's `resid_pre` is the embedding."""

    layer: int
    hook: str


@dataclass(frozen=True)
class Split:
    """What one cell of an experiment is measured on."""

    fit: Int[Tensor, "fitted pos"]
    held_out: Int[Tensor, "scored pos"]


@dataclass(frozen=True)
class Reading:
    """What `measure` found: rows of the tidy table, arrays keyed `layer/site/probe/name`, and the
    fitted probes of each place."""

    rows: list[dict[str, Any]] = field(repr=False)
    arrays: dict[str, np.ndarray] = field(repr=False)
    probes: dict[Site, list[StreamingProbe]] = field(repr=False)


def sites(n_layers: int, sites: Sequence[str], layers: Sequence[int] | None = None) -> list[Site]:
    """The embedding and then every site of the layers, all of them by default, in order of depth.

    Raises UserError for a layer that the model lacks.
    """
    for layer in layers or ():
        if not 0 <= layer < n_layers:
            raise UserError(
                f"the model has no layer {layer}: choose from layers 0 to {n_layers - 1}."
            )
    chosen = range(n_layers) if layers is None else sorted(layers)
    every = [Site(layer, site) for layer in chosen for site in sites]
    embedding = Site(0, "resid_pre")
    return [embedding, *(site for site in every if site != embedding)]


def code_probes(seed: int) -> list[StreamingProbe]:
    """A probe for each of the position codes that can be taken away."""
    return [
        LinearProbe(seed=seed),
        VarianceProbe(seed=seed),
        SimilarityProbe(seed=seed),
        PositionalVectorProbe(seed=seed),
    ]


def make_probes(site: Site, seed: int) -> list[StreamingProbe]:
    """All probes for one place. The two-layer probe, the costly one, reads the stream only."""
    probes = code_probes(seed)
    if site.hook.startswith("resid"):
        probes.append(TwoLayerProbe(seed=seed))
    return probes


def measure(
    model: HookedModel,
    split: Split,
    where: list[Site],
    *,
    context: dict[str, Any],
    seed: int = 0,
    batch_size: int = 32,
    description: str | None = None,
    also_fitted: Mapping[Site, Learner] | None = None,
) -> Reading:
    """Fit all probes at all places, score them, and keep their numbers.

    One forward pass over the `fit` sequences fits everything, `also_fitted` with it, and one over
    the `held_out` sequences scores it. `context` fills the columns that a model and its tokens
    decide.

    Raises UserError where a place does not exist in the model or its activations are not finite.
    """
    probes = {site: make_probes(site, seed) for site in where}
    others = also_fitted or {}
    fitted = {
        site: [*of_place, *([others[site]] if site in others else [])]
        for site, of_place in probes.items()
    }
    feed(model, split.fit, fitted, "update", batch_size=batch_size, description=description)
    feed(model, split.held_out, probes, "evaluate", batch_size=batch_size, description=description)
    return reading_of(probes, context)


def feed(
    model: HookedModel,
    tokens: Int[Tensor, "sequence pos"],
    probes: Mapping[Site, Sequence[Learner]],
    stage: Stage,
    *,
    batch_size: int,
    positions: Where = ALL_BUT_FIRST,
    description: str | None = None,
) -> None:
    """Give the probes of each place, to fit or to score them, what `model` makes of `tokens` at
    these positions."""
    stream(
        model,
        tokens,
        {hook_name(p.layer, p.hook): _listener(probes[p], stage, positions) for p in probes},
        batch_size=batch_size,
        description=description and f"{description}, {stage}",
    )


def reading_of(probes: dict[Site, list[StreamingProbe]], context: dict[str, Any]) -> Reading:
    """What probes that have been fitted and scored found."""
    reading = Reading([], {}, probes)
    with one_thread_pool():
        results = [(site, probe.result()) for site in probes for probe in probes[site]]
    for site, named in results:
        for name, result in named.items():
            here = {"layer": site.layer, "site": site.hook, "probe": name}
            reading.rows.extend(rows_of(result, {**context, **here}))
            for key, array in result.arrays.items():
                reading.arrays[f"{site.layer}/{site.hook}/{name}/{key}"] = array
    return reading


def _listener(probes: Sequence[Learner], stage: Stage, positions: Where) -> Listener:
    return partial(_feed, [getattr(probe, stage) for probe in probes], positions)


def _feed(methods: list[Any], positions: Where, activations: Tensor) -> None:
    rows, numbers = activations[:, positions], torch.arange(activations.shape[1])[positions]
    for method in methods:
        method(rows, numbers)
