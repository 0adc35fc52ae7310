"""Every probe at every layer and site of one model, on one kind of tokens, in one stream."""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from experiments.probing.shards import ONE_SHARD, Condition, Shards, cut, shard_seed
from experiments.probing.sites import ALL_BUT_FIRST, Site
from experiments.probing.split import FEWEST_SCORED, Split
from experiments.results.measurements import rows_of
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.interventions.intervene import Where
from nope_interp.pretrained.spec import ModelSpec
from nope_interp.shapes import Activations, Sequences
from nope_interp.streams import Listener, stream
from nope_interp.threads import one_thread_pool
from probes.nonlinear import TwoLayerProbe
from probes.positional_vectors import PositionalVectorProbe
from probes.regression import LinearProbe
from probes.similarity import SimilarityProbe
from probes.streaming import StreamingProbe
from probes.variance import VarianceProbe

Stage = Literal["update", "evaluate"]
# What is fitted or scored, by site: probes, and after them what else is fitted.
Learners = dict[Site, list[Any]]
# The probes of a site, from a seed.
MakeProbes = Callable[[Site, int], list[StreamingProbe]]
# Sequences, and what they are given to.
_Share = tuple[Tensor, Learners]


@runtime_checkable
class Learner(Protocol):
    """What is fitted batch by batch: any probe, or what interventions are made from."""

    def update(self, activations: Activations, positions: Int[Tensor, " pos"]) -> object:
        """Adds sequences to what has been fitted on."""


@dataclass(frozen=True)
class Reading:
    """What `measure` found.

    Attributes:
        rows: of the tidy table.
        arrays: keyed `layer/site/probe/name`.
        probes: of each site, fitted and scored.
    """

    rows: list[dict[str, Any]] = field(repr=False)
    arrays: dict[str, np.ndarray] = field(repr=False)
    probes: dict[Site, list[StreamingProbe]] = field(repr=False)


def code_probes(site: Site, seed: int) -> list[StreamingProbe]:
    """A probe for each of the position codes that can be taken away; no gradient descent fits them.

    Args:
        site: where they read; they are the same at any.
        seed: of controls and resamples.

    Returns:
        The probes.
    """
    return [
        LinearProbe(seed=seed),
        VarianceProbe(seed=seed),
        SimilarityProbe(seed=seed),
        PositionalVectorProbe(seed=seed),
    ]


def two_layer_probes(site: Site, seed: int) -> list[StreamingProbe]:
    """The two-layer probe, the costly one: it reads the stream only.

    Args:
        site: where it reads.
        seed: of its training, its control and resamples.

    Returns:
        The probe; none where the site is not in the stream.
    """
    return [TwoLayerProbe(seed=seed)] if site.hook.startswith("resid") else []


def make_probes(site: Site, seed: int) -> list[StreamingProbe]:
    """All probes for one site.

    Args:
        site: where they read.
        seed: of controls, resamples and gradient descent.

    Returns:
        The probes, which have seen nothing yet.
    """
    return [*code_probes(site, seed), *two_layer_probes(site, seed)]


def measure(
    model: HookedModel,
    split: Split,
    where: Sequence[Site],
    *,
    context: dict[str, Any],
    seed: int = 0,
    batch_size: int = 32,
    probes: MakeProbes = make_probes,
    description: str | None = None,
    condition: Condition = nullcontext,
    shards: Shards = ONE_SHARD,
    spec: ModelSpec | None = None,
) -> Reading:
    """Fit all probes at all sites, score them, and keep their numbers.

    One forward pass over the `fit` sequences fits everything, and one over the `held_out` sequences
    scores it. In shards, sums are taken of shares and added up; gradient descent leaves no sums,
    so that each worker trains the two-layer probes of some of the sites on all sequences.

    Args:
        model: a HookedTransformer or a bridge, in evaluation mode.
        split: sequences to fit on, and others to score on.
        where: the sites that are read.
        context: fills the columns that a model and its tokens decide.
        seed: of controls and resamples.
        batch_size: sequences in a forward pass.
        probes: makes those of a site; all of them by default.
        description: label of the progress bars; None draws none.
        condition: what the model is under while it is read.
        shards: who reads the sequences.
        spec: how workers make the model; see `Shards.map`.

    Returns:
        Rows, arrays and probes of all sites.

    Raises:
        UserError: where a site does not exist in the model or its activations are not finite, and
            where a worker dies.
    """
    if shards.n > 1 and len(split.held_out) < FEWEST_SCORED * shards.n:
        raise UserError(
            f"{len(split.held_out)} different held-out sequences are too few for {shards.n} "
            "shards: ask for fewer --shards."
        )
    learners: Learners = {site: probes(site, seed) for site in where}
    run = partial(shards.map, model=model, spec=spec, condition=condition)
    alone, shares = _to_fit(split.fit, learners, shards.n, seed)
    label = description and f"{description}, update"
    # What takes longest goes first.
    update = partial(_fed, stage="update", batch_size=batch_size)
    found = run(update, shares=[*alone, *shares], description=label)
    fitted = _merged(found[len(alone) :])
    for trained in found[: len(alone)]:
        for site, of_site in trained.items():
            fitted[site] += of_site
    held_out = [
        (tokens, _handed_out(fitted, shards.n, shard_seed(seed, shard), start))
        for shard, (start, tokens) in enumerate(cut(split.held_out, shards.n))
    ]
    label = description and f"{description}, evaluate"
    evaluate = partial(_fed, stage="evaluate", batch_size=batch_size)
    return reading_of(_merged(run(evaluate, shares=held_out, description=label)), context)


def feed(
    model: HookedModel,
    tokens: Sequences,
    probes: Mapping[Site, Sequence[Learner]],
    stage: Stage,
    *,
    batch_size: int,
    positions: Where = ALL_BUT_FIRST,
    description: str | None = None,
) -> None:
    """Give the probes of each site, to fit or to score them, what a model makes of tokens.

    Where there is one site, no pass goes beyond it.

    Args:
        model: a HookedTransformer or a bridge, in evaluation mode.
        tokens: sequences of equal length.
        probes: by site.
        stage: "update" fits, "evaluate" scores.
        batch_size: sequences in a forward pass.
        positions: those that are read.
        description: label of the progress bar; None draws none.

    Raises UserError as `stream` does.
    """
    if not any(probes.values()):
        return
    listeners: dict[str, Listener] = {}
    for site, of_site in probes.items():
        methods = [getattr(probe, stage) for probe in of_site]
        listeners[site.name] = partial(_feed, methods, positions)
    until = next(iter(listeners)) if len(listeners) == 1 else None
    how: dict[str, Any] = {"batch_size": batch_size, "description": description}
    stream(model, tokens, listeners, until=until, **how)


def reading_of(probes: dict[Site, list[StreamingProbe]], context: dict[str, Any]) -> Reading:
    """What probes that have been fitted and scored found.

    Args:
        probes: by site.
        context: fills the columns that a model and its tokens decide.

    Returns:
        Rows, arrays and the same probes.
    """
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


def _feed(methods: list[Any], positions: Where, activations: Tensor) -> None:
    read, numbers = activations[:, positions], torch.arange(activations.shape[1])[positions]
    for method in methods:
        method(read, numbers)


def _to_fit(
    tokens: Sequences, learners: Learners, n: int, seed: int
) -> tuple[list[_Share], list[_Share]]:
    """Shares of all sequences for what is trained on them all, and shares for what adds up."""
    trained: Learners = {}
    if n > 1:  # a single share is all sequences: what is trained is fitted in its stream
        trained = {
            site: [probe for probe in of_site if isinstance(probe, TwoLayerProbe)]
            for site, of_site in learners.items()
        }
        trained = {site: of_site for site, of_site in trained.items() if of_site}
    summed = {
        site: [one for one in of_site if n == 1 or not isinstance(one, TwoLayerProbe)]
        for site, of_site in learners.items()
    }
    alone = [
        (tokens, dict(list(trained.items())[shard::n])) for shard in range(min(n, len(trained)))
    ]
    return alone, [(part, _handed_out(summed, n, seed, start)) for start, part in cut(tokens, n)]


def _fed(
    model: HookedModel, share: _Share, description: str | None, *, stage: Stage, batch_size: int
) -> Learners:
    tokens, learners = share
    feed(model, tokens, learners, stage, batch_size=batch_size, description=description)
    return learners


def _handed_out(probes: Mapping[Site, Sequence[Any]], n: int, seed: int, start: int) -> Learners:
    """What one of n shares is given to: copies, or for the only one the probes themselves."""
    if n == 1:
        return {site: list(of_site) for site, of_site in probes.items()}
    return {
        site: [
            # What only adds up draws nothing: any copy will do.
            probe.for_shard(seed, start) if hasattr(probe, "for_shard") else copy.deepcopy(probe)
            for probe in of_site
        ]
        for site, of_site in probes.items()
    }


def _merged(parts: Sequence[Learners]) -> Learners:
    whole, *rest = parts
    for part in rest:
        for site, of_site in whole.items():
            for probe, other in zip(of_site, part[site], strict=True):
                probe.merge(other)
    return whole
