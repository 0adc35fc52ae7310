"""Does a position that is moved inside the model move with it? (After Dong et al. 2024.)

At one place every positional vector p(t) is replaced by p(t + 8). Where later layers use these
vectors, the position that can be read from the last block's output moves along: by all of 8, or by
a part of it where other codes, or the causal mask anew, hold it back.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from experiments.arms import MIXED
from experiments.contest import Contest
from experiments.measure import FIRST_POSITION, Place, feed
from experiments.tournament import STREAM
from nope_interp.interventions import intervene
from nope_interp.sites import hook_name
from nope_interp.streams import stream
from probes.controls import SequenceBootstrap
from probes.erasure import CodeStatistics, Intervention
from probes.erasure_controls import OtherContent, sizes_of
from probes.erasure_directions import swap_vectors
from probes.regression import LinearProbe

OFFSET = 8
# The reading's slope along the sequence, 1 where it is exact, below which nothing can follow.
_LEAST = 0.1
ARM = f"positional vectors of {OFFSET} positions on"
PROBE = "shift"


def shift_rows(
    contest: Contest, statistics: Mapping[Place, CodeStatistics], *, context: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Rows of the tidy table: the share of the shift that the position read at the end follows.

    `statistics` are of the fit sequences at each place, as from `statistics_at`.

    Metric `followed`, 1 where it moves by as much as the intact model's own reading moves over as
    many positions, 0 by chance; the control mixes in as much of another sequence's content instead.
    The last `OFFSET` positions have no vectors to take and do not count. No rows for sequences
    shorter than three times the offset, nor where the reading itself hardly moves.
    """
    if contest.split.fit.shape[1] < 3 * OFFSET:
        return []
    last = Place(contest.model.cfg.n_layers - 1, STREAM)
    reader = LinearProbe()
    feed(
        contest.model,
        contest.split.fit,
        {last: [reader]},
        "update",
        batch_size=contest.batch_size,
    )
    intact = _read(contest, reader, {})
    own = intact[:, OFFSET:] - intact[:, :-OFFSET]
    if own.mean() < _LEAST * OFFSET:
        return []
    rows = []
    for place, codes in statistics.items():
        swap = swap_vectors(codes, OFFSET)
        mixing = OtherContent(sizes_of(swap, codes), codes)
        interventions: dict[str, Intervention] = {"": swap, MIXED: mixing}
        for control, change in interventions.items():
            moved = _read(contest, reader, {hook_name(place.layer, place.site): change}) - intact
            pair = np.stack([moved[:, :-OFFSET].mean(axis=1), own.mean(axis=1)], axis=1)
            bootstrap = SequenceBootstrap(seed=contest.seed).update(pair)
            score = bootstrap.score("followed", lambda m: m[..., 0] / m[..., 1], chance=0.0)
            where = {"layer": place.layer, "site": place.site, "positions": ARM, "probe": PROBE}
            rows.append({**context, **where, **vars(score), "control": control})
    return rows


def _read(
    contest: Contest, reader: LinearProbe, changes: Mapping[str, Intervention]
) -> Float[np.ndarray, "sequence pos"]:
    """The position that is read from the last block's output."""
    found: list[np.ndarray] = []
    last = hook_name(contest.model.cfg.n_layers - 1, STREAM)

    def listen(activations: Tensor) -> None:
        rows = activations[:, FIRST_POSITION:]
        if not reader.n_held_out:  # the first look solves the fit
            reader.evaluate(rows, torch.arange(FIRST_POSITION, activations.shape[1]))
        found.append(reader.predict(rows))

    with intervene(contest.model, changes, FIRST_POSITION):
        stream(contest.model, contest.split.held_out, {last: listen}, batch_size=contest.batch_size)
    return np.concatenate(found)
