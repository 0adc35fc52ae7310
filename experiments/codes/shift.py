"""Does a position that is moved inside the model move with it? (After Dong et al. 2024.)

At one site every mean residual p(t) is replaced by p(t + 8). Where later layers compute with
these vectors, the position that can be read from what they write moves along: by all of 8, or by a
part of it where other codes, or the causal mask anew, hold it back. The moved vectors themselves
stay in the stream up to its end, whoever uses them: they are subtracted before anything is read.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from experiments.codes.task import InterventionTask
from experiments.probing.sites import ALL_BUT_FIRST, Site
from experiments.results.code_ablation import MIXED, OFFSET, PROBE, SHIFTED, STREAM
from nope_interp.interventions.intervene import intervene
from nope_interp.models.composition import adds_up
from nope_interp.streams import stream
from probes.bootstrap import SequenceBootstrap
from probes.codes.controls import OtherContent, sizes_of
from probes.codes.directions import swap_vectors
from probes.codes.statistics import CodeStatistics, Intervention
from probes.regression import LinearProbe

# The reading's slope along the sequence, 1 where it is exact, below which nothing can follow.
_LEAST = 0.1
# Where something may stand that later layers read and leave standing.
_SITES = ("resid_pre", "resid_mid", STREAM)

# Takes a site and what the layers behind it wrote, [batch pos d_model].
SiteListener = Callable[[Site, Tensor], None]


def shift_rows(
    task: InterventionTask, statistics: Mapping[Site, CodeStatistics], *, context: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Rows of the tidy table: the share of the shift that the position read behind it follows.

    Metric `followed`, 1 where it moves by as much as the intact model's own reading moves over as
    many positions, 0 by chance; the control mixes in as much of another sequence's content. The
    last `OFFSET` positions have no vectors to take and do not count. No rows for sequences shorter
    than three times the offset, where codes are not taken away at all positions, for a model whose
    stream is no sum of what its layers write, nor where the reading itself hardly moves.

    Args:
        task: the model, and sequences to fit readers on and to score them on.
        statistics: of the fit sequences at each site, as from `statistics_at`; sites that are not
            in the stream, and the last block's output, are left out.
        context: fills the columns that a model and its tokens decide.

    Returns:
        One row for each site and control.
    """
    if task.split.fit.shape[1] < 3 * OFFSET or not task.whole or not adds_up(task.model):
        return []
    read = [site for site in statistics if site.hook in _SITES and site != task.last]
    readers = {site: LinearProbe() for site in read}

    def fit(site: Site, activations: Tensor) -> None:
        readers[site].update(activations, task.numbers())

    _written_behind(task, task.split.fit, readers, fit)
    intact = _read(task, readers, {})
    found = []
    for site, reader in readers.items():
        own = intact[site][:, OFFSET:] - intact[site][:, :-OFFSET]
        if own.mean() < _LEAST * OFFSET:
            continue
        codes = statistics[site]
        swap = swap_vectors(codes, OFFSET)
        mixing = OtherContent(sizes_of(swap, codes), codes)
        interventions: dict[str, Intervention] = {"": swap, MIXED: mixing}
        for control, change in interventions.items():
            changes = {site.name: change}
            moved = _read(task, {site: reader}, changes)[site] - intact[site]
            pair = np.stack([moved[:, :-OFFSET].mean(axis=1), own.mean(axis=1)], axis=1)
            bootstrap = SequenceBootstrap(seed=task.seed).update(pair)
            score = bootstrap.score("followed", lambda m: m[..., 0] / m[..., 1], chance=0.0)
            where = {"layer": site.layer, "site": site.hook, "positions": SHIFTED, "probe": PROBE}
            found.append({**context, **where, **vars(score), "control": control})
    return found


def _read(
    task: InterventionTask, readers: Mapping[Site, LinearProbe], changes: Mapping[str, Intervention]
) -> dict[Site, Float[np.ndarray, "sequence pos"]]:
    """The position that is read, for each site, from what is written behind it."""
    found: dict[Site, list[np.ndarray]] = {site: [] for site in readers}

    def read(site: Site, activations: Tensor) -> None:
        if not readers[site].n_held_out:  # the first look solves the fit
            readers[site].evaluate(activations, task.numbers())
        found[site].append(readers[site].predict(activations))

    with intervene(task.model, changes, ALL_BUT_FIRST):
        _written_behind(task, task.split.held_out, readers, read)
    return {site: np.concatenate(parts) for site, parts in found.items()}


def _written_behind(
    task: InterventionTask,
    tokens: Int[Tensor, "sequence pos"],
    sites: Iterable[Site],
    listener: SiteListener,
) -> None:
    """Lets the listener see, for each site, the last block's output less the stream there."""
    at_site: dict[Site, Tensor] = {}

    def keep(activations: Tensor, site: Site) -> None:
        at_site[site] = activations[:, ALL_BUT_FIRST].clone()

    def subtract(activations: Tensor) -> None:
        for site, before in at_site.items():
            listener(site, activations[:, ALL_BUT_FIRST] - before)

    listeners: dict[str, Callable[[Tensor], None]] = {
        site.name: partial(keep, site=site) for site in sites
    }
    listeners[task.last.name] = subtract
    stream(task.model, tokens, listeners, batch_size=task.batch_size)
