"""Interventions at many sites at once, each fitted on what those below it leave.

Through the whole stream means at the input, after every attention and after every block but the
last. Interventions are fitted in order of depth: each on what the layers below make of the fit
sequences once those before it are in place. Otherwise a code that is gone below would be taken away
a second time, and so put in reversed. The last block's output is left alone: only the unembedding
reads it, and what depends on position there is an answer. Where attention and MLP stand side by
side, or there is no MLP, nothing reads the stream between them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from experiments.codes.conditions import Condition, Fit, Maker
from experiments.codes.task import InterventionTask
from experiments.probing.measure import Stage, feed
from experiments.probing.sites import Site
from experiments.results.code_ablation import STREAM
from nope_interp.interventions.intervene import intervene
from nope_interp.query_blocks import block_size, queries_in_blocks
from nope_interp.streams import firing_hooks, run_trunk, run_until
from nope_interp.threads import one_thread_pool
from probes.codes.controls import removal_sizes, size_matched_removal
from probes.codes.filter import CodeFilter
from probes.codes.interchange import Move, Moved
from probes.codes.statistics import CodeStatistics, Intervention
from probes.streaming import StreamingProbe

_SITES = ("resid_mid", STREAM)
_SITE_SEEDS = 1_000

Change = TypeVar("Change", Move, Moved)
Made = TypeVar("Made", bound=Intervention)


@dataclass(frozen=True)
class Place:
    """Where codes are moved: at one site, or at several at once.

    Attributes:
        layer, hook: as the tidy table has them.
        sites: in order of depth.
    """

    layer: int
    hook: str
    sites: tuple[Site, ...]


def stream_sites(task: InterventionTask) -> list[Site]:
    """The input and the stream after every attention and every block, but the last block's."""
    sites = [(layer, site) for layer in range(task.model.cfg.n_layers) for site in _SITES]
    every = [Site(0, "resid_pre"), *(Site(*where) for where in sites[:-1])]
    hooks = [site.name for site in every]
    firing = firing_hooks(task.model, hooks, task.split.fit[:1])
    return [site for site, hook in zip(every, hooks, strict=True) if hook in firing]


class FittedOnTheWay:
    """An intervention made from the first activations that come to it: those of all fit sequences,
    at positions of these numbers.

    Attributes:
        made: the intervention; None before they came.
        sizes: how far it moved these, by position, where that is asked for; None before they came.
    """

    def __init__(
        self,
        make: Maker,
        numbers: Int[Tensor, " pos"],
        *,
        sized: bool = False,
        linear: bool = False,
    ) -> None:
        self.made: Intervention | None = None
        self.sizes: Float[Tensor, " pos"] | None = None
        self._make, self._numbers, self._sized, self._linear = make, numbers, sized, linear

    def __call__(self, activations: Float[Tensor, "batch pos d_model"]) -> Tensor:
        if self.made is None:
            fit = Fit(CodeStatistics())
            for part in (fit.codes, fit.linear) if self._linear else (fit.codes,):
                part.update(activations, self._numbers)
            self.made = self._make(fit)
            if self._sized:
                self.sizes = removal_sizes(self.made, fit.codes)
        return self.made(activations)


def fitted_in_depth(
    task: InterventionTask,
    condition: Condition,
    sites: Sequence[Site],
    probes: Sequence[StreamingProbe] = (),
) -> dict[str, FittedOnTheWay]:
    """The condition's interventions at all of these sites at once, by hook name.

    One forward pass over all fit sequences at once makes them: memory grows with these, but holds
    one layer at a time.

    Args:
        task: the model, and what they are fitted on.
        condition: makes an intervention from the activations at a site.
        sites: in order of depth.
        probes: are fitted in the same pass to what they make of the last block's output.

    Returns:
        The interventions, each fitted on what those before it leave.

    Raises:
        UserError: as `made_in_depth` does.
    """
    how = {"sized": condition.takes_code, "linear": condition.linear}
    made = partial(FittedOnTheWay, condition.make, task.numbers(), **how)
    return made_in_depth(task, {site.name: made() for site in sites}, probes)


def size_matched_in_depth(
    task: InterventionTask, removal: Mapping[str, FittedOnTheWay]
) -> dict[str, FittedOnTheWay]:
    """Activations moved at every site as far as a removal moved them there, with all codes left.

    What is moved, and how far, is that of the removal's own pass, in which codes gone below had
    little left to move above.
    """

    def control(site: int, removed: FittedOnTheWay) -> Maker:
        made, sizes = removed.made, removed.sizes
        assert isinstance(made, CodeFilter)
        assert sizes is not None
        seed = task.seed * _SITE_SEEDS + site  # directions of its own at every site
        return lambda fit: size_matched_removal(made, sizes, fit.codes, seed)

    numbers = task.numbers()
    made = {
        name: FittedOnTheWay(control(site, removed), numbers)
        for site, (name, removed) in enumerate(removal.items())
    }
    return made_in_depth(task, made)


def made_in_depth(
    task: InterventionTask,
    made: dict[str, Made],
    probes: Sequence[StreamingProbe] = (),
) -> dict[str, Made]:
    """Interventions at all of these sites, by hook name, made in one pass over the fit sequences.

    Args:
        task: the model, and what they are fitted on.
        made: what makes them, in order of depth.
        probes: are fitted to what they make of the last block's output.

    Returns:
        The same, each fitted on what those before it leave.

    Raises:
        UserError: where a site is never reached, and what `intervene` raises.
    """
    model = task.model
    tokens = task.split.fit.to(next(model.parameters()).device)
    with (
        torch.no_grad(),
        intervene(model, made, task.positions) as acted,
        queries_in_blocks(model, block_size(model, *tokens.shape)),
    ):
        with reading_last(task, probes, "update"):
            if probes:
                run_trunk(model, tokens)
            else:
                run_until(model, tokens, [*made][-1])
        acted.verify()
    return made


def moves_in_depth(
    task: InterventionTask,
    sites: Sequence[Site],
    make: Callable[[Site, CodeStatistics | None], Change],
) -> dict[Site, Change]:
    """What is made at each site of what comes there, with those before it in place.

    Args:
        task: the model, and what changes are fitted on.
        sites: in order of depth.
        make: a change at a site, from the statistics of the activations as they come; from None,
            those of the intact model, where there is one site only.

    Returns:
        As many changes.
    """
    if len(sites) == 1:
        return {site: make(site, None) for site in sites}
    kept: dict[Site, Change] = {}

    def fitted(fit: Fit, site: Site) -> Change:
        kept[site] = make(site, fit.codes)
        return kept[site]

    numbers = task.numbers()
    made = {site.name: FittedOnTheWay(partial(fitted, site=site), numbers) for site in sites}
    made_in_depth(task, made)
    return kept


@contextmanager
def reading_last(
    task: InterventionTask, probes: Sequence[StreamingProbe], stage: Stage
) -> Iterator[None]:
    """While it is open, probes read the last block's output, whatever the model is run for."""

    def read(activations: Tensor, hook: object) -> None:
        for probe in probes:
            getattr(probe, stage)(activations[:, task.positions], task.numbers())

    with one_thread_pool(), task.model.hooks(fwd_hooks=[(task.last.name, read)] if probes else []):
        yield


def statistics_at(task: InterventionTask, sites: Sequence[Site]) -> dict[Site, CodeStatistics]:
    """What interventions at single sites are made from, in one stream of the intact model.

    Args:
        task: the model, and the sequences to fit on.
        sites: which are read.

    Returns:
        The statistics of each site, at the task's positions.

    Raises:
        UserError: as `feed` does.
    """
    found = {site: CodeStatistics() for site in sites}
    each = {site: [statistics] for site, statistics in found.items()}
    read = partial(feed, batch_size=task.batch_size, positions=task.positions)
    read(task.model, task.split.fit, each, "update")
    return found
