"""Does a position that is moved inside the model move with it? (After Dong et al. 2024.)

At one place every positional vector p(t) is replaced by p(t + 8). Where later layers compute with
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

from experiments.codes.ablation import STREAM
from experiments.codes.task import Contest
from experiments.probing.measure import ALL_BUT_FIRST, Place
from nope_interp.interventions.intervene import intervene
from nope_interp.models.transformer import HookedTransformer
from nope_interp.sites import hook_name
from nope_interp.streams import stream
from probes.codes.controls import OtherContent, sizes_of
from probes.codes.directions import swap_vectors
from probes.codes.statistics import CodeStatistics, Intervention
from probes.controls import SequenceBootstrap
from probes.regression import LinearProbe

OFFSET = 8
# The reading's slope along the sequence, 1 where it is exact, below which nothing can follow.
_LEAST = 0.1
ARM = f"positional vectors of {OFFSET} positions on"
PROBE = "shift"
MIXED = "mixed"
# Where something may stand that later layers read and leave standing.
_SITES = ("resid_pre", "resid_mid", STREAM)

# Takes a place and what the layers behind it wrote, [batch pos d_model].
Listener = Callable[[Place, Tensor], None]


def shift_rows(
    contest: Contest, statistics: Mapping[Place, CodeStatistics], *, context: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Rows of the tidy table: the share of the shift that the position read behind it follows.

    `statistics` are of the fit sequences at each place, as from `statistics_at`; places that are
    not in the stream, and the last block's output, are left out.

    Metric `followed`, 1 where it moves by as much as the intact model's own reading moves over as
    many positions, 0 by chance; the control mixes in as much of another sequence's content. The
    last `OFFSET` positions have no vectors to take and do not count. No rows for sequences shorter
    than three times the offset, where codes are not taken away at all positions, for a model whose
    stream is no sum of what its layers write, nor where the reading itself hardly moves.
    """
    if contest.split.fit.shape[1] < 3 * OFFSET or not contest.whole:
        return []
    if not _sums(contest.model):
        return []
    last = _last(contest)
    readers = {
        place: LinearProbe() for place in statistics if place.site in _SITES and place != last
    }

    def fit(place: Place, rows: Tensor) -> None:
        readers[place].update(rows, contest.numbers())

    _written_behind(contest, contest.split.fit, readers, fit)
    intact = _read(contest, readers, {})
    found = []
    for place, reader in readers.items():
        own = intact[place][:, OFFSET:] - intact[place][:, :-OFFSET]
        if own.mean() < _LEAST * OFFSET:
            continue
        codes = statistics[place]
        swap = swap_vectors(codes, OFFSET)
        mixing = OtherContent(sizes_of(swap, codes), codes)
        interventions: dict[str, Intervention] = {"": swap, MIXED: mixing}
        for control, change in interventions.items():
            changes = {hook_name(place.layer, place.site): change}
            moved = _read(contest, {place: reader}, changes)[place] - intact[place]
            pair = np.stack([moved[:, :-OFFSET].mean(axis=1), own.mean(axis=1)], axis=1)
            bootstrap = SequenceBootstrap(seed=contest.seed).update(pair)
            score = bootstrap.score("followed", lambda m: m[..., 0] / m[..., 1], chance=0.0)
            where = {"layer": place.layer, "site": place.site, "positions": ARM, "probe": PROBE}
            found.append({**context, **where, **vars(score), "control": control})
    return found


def _read(
    contest: Contest, readers: Mapping[Place, LinearProbe], changes: Mapping[str, Intervention]
) -> dict[Place, Float[np.ndarray, "sequence pos"]]:
    """The position that is read, for each place, from what is written behind it."""
    found: dict[Place, list[np.ndarray]] = {place: [] for place in readers}

    def read(place: Place, rows: Tensor) -> None:
        if not readers[place].n_held_out:  # the first look solves the fit
            readers[place].evaluate(rows, contest.numbers())
        found[place].append(readers[place].predict(rows))

    with intervene(contest.model, changes, ALL_BUT_FIRST):
        _written_behind(contest, contest.split.held_out, readers, read)
    return {place: np.concatenate(parts) for place, parts in found.items()}


def _written_behind(
    contest: Contest,
    tokens: Int[Tensor, "sequence pos"],
    places: Iterable[Place],
    listener: Listener,
) -> None:
    """Lets the listener see, for each place, the last block's output less the stream there."""
    at_place: dict[Place, Tensor] = {}

    def keep(activations: Tensor, place: Place) -> None:
        at_place[place] = activations[:, ALL_BUT_FIRST].clone()

    def subtract(activations: Tensor) -> None:
        for place, before in at_place.items():
            listener(place, activations[:, ALL_BUT_FIRST] - before)

    last = _last(contest)
    listeners: dict[str, Callable[[Tensor], None]] = {
        hook_name(p.layer, p.site): partial(keep, place=p) for p in places
    }
    listeners[hook_name(last.layer, last.site)] = subtract
    stream(contest.model, tokens, listeners, batch_size=contest.batch_size)


def _sums(model: Any) -> bool:
    """Whether the stream is the sum of what layers write, as bridges' is taken to be."""
    if isinstance(model, HookedTransformer):
        return model.config.norm_placement == "pre" and model.config.residual
    return True


def _last(contest: Contest) -> Place:
    return Place(contest.model.cfg.n_layers - 1, STREAM)
