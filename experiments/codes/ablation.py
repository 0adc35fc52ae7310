"""Which position codes does a model use? Each is taken away, by itself and with all the others.

A condition (`experiments.codes.conditions`) runs the model with interventions at chosen sites. It
is fitted on some sequences and scored, by what the model then loses, on others.

- At one site, a layer and hook, the intervention is fitted on the model as it is.
- Through the whole stream they are fitted in order of depth (`experiments.codes.in_depth`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from experiments.codes.conditions import Fit, every_condition, of_codes
from experiments.codes.first_token import first_token_conditions
from experiments.codes.in_depth import (
    fitted_in_depth,
    reading_last,
    size_matched_in_depth,
    stream_sites,
)
from experiments.codes.task import InterventionTask
from experiments.probing.measure import code_probes, reading_of
from experiments.probing.sites import Site
from experiments.results import code_ablation as names
from experiments.results.code_ablation import INTACT_CONDITION, SIZE_MATCHED, STREAM, only, without
from experiments.results.measurements import LOSS
from nope_interp.interventions.intervene import intervene
from nope_interp.models.transformer import HookedTransformer
from nope_interp.progress import progress
from probes.bootstrap import ArrayFunction, NamedBootstrap, ratio
from probes.code_names import CODES
from probes.codes.controls import SIDE_EFFECTS, removal_sizes, side_effects, size_matched_removal
from probes.codes.filter import CodeFilter
from probes.codes.statistics import CodeStatistics, Intervention
from probes.scores import SHUFFLED, Score
from probes.streaming import StreamingProbe


@dataclass(frozen=True)
class Outcome:
    """What became of held-out sequences in one condition.

    Attributes:
        losses: mean over the tokens of each, in nats.
        side_effects: how far its activations' norms and cosines moved, mean over sites, as
            `probes.codes.controls.side_effects` measures it; None where none were changed.
    """

    losses: Float[np.ndarray, " sequence"]
    side_effects: Mapping[str, Float[np.ndarray, " sequence"]] | None = None


# Beside the conditions: who knows no order.
_GUESSER = ("guesser", "")
# By the name of a condition and its control.
ByCondition = dict[tuple[str, str], Outcome]


def through_the_stream(
    task: InterventionTask,
    *,
    context: Mapping[str, Any],
    description: str | None = None,
    codes_only: bool = False,
) -> list[dict[str, Any]]:
    """Rows of the tidy table: what the model loses in every condition, and what can still be read.

    The condition stands in the column `positions`, what it is held against in `control`. The probe
    "loss" has, in nats and paired by sequence, `nats`, `increase` over the intact model, and
    `over_size_matched` and `over_rescaled`, what that is above the increase under the size-matched
    control, and with deviations from the positional mean rescaled as much at random; and `lead`,
    what a guesser without order loses more than the intact model. Two metrics are shares of it:
    `necessity`, the increase without a code, and `sufficiency`, what that code alone gives back
    over none of the four, and what it gives back with positions shuffled. A broken model may lose
    more than the guesser, and so shares lie beyond 1.
    The probe "side effect" has how far `norm` and `cosine` of activations moved, mean over sites.
    Their rows are of layer -1; other probes read the last block's output under the conditions.
    `coverage`, of the intact model, is the share of scored tokens that are predicted where codes
    are taken away.

    Args:
        task: the model, its sequences and its losses.
        context: fills the columns that a model and its tokens decide.
        description: label of the progress bar; None draws no bar.
        codes_only: leave out what no verdict needs: other interventions, and what can be read.

    Returns:
        The rows.

    Raises:
        UserError: where the activations at a site cannot be fitted.
    """
    found = {INTACT_CONDITION: _scored(task, {})}
    rows = []
    sites = stream_sites(task)
    conditions = list((of_codes if codes_only else every_condition)(task.seed))
    for condition in progress(conditions, description, "condition"):
        # What can still be read is read on the way: no pass is run for it alone.
        probes = [] if condition.control or codes_only else code_probes(task.last, task.seed)
        made = fitted_in_depth(task, condition, sites, probes)
        found[condition.name, condition.control] = _scored(task, made, probes)
        if condition.takes_code:
            found[condition.name, SIZE_MATCHED] = _scored(task, size_matched_in_depth(task, made))
        read = {task.last: probes} if probes else {}
        rows += reading_of(read, {**context, "positions": condition.name}).rows
    for name, control, losses in () if codes_only else first_token_conditions(task):
        found[name, control] = Outcome(losses.double().numpy())
    return [*_rows(task, found, {**context, "layer": names.EVERYWHERE, "site": STREAM}), *rows]


def site_by_site(
    task: InterventionTask,
    statistics: Mapping[Site, CodeStatistics],
    *,
    context: Mapping[str, Any],
    description: str | None = None,
) -> list[dict[str, Any]]:
    """As `through_the_stream`, with the codes taken away at one site at a time, and no probes.

    Args:
        task: the model, its sequences and its losses.
        statistics: of the fit sequences at each site, as from `statistics_at`.
        context: fills the columns that a model and its tokens decide.
        description: label of the progress bar; None draws no bar.

    Returns:
        The rows, with the layer and site of each.

    Raises:
        UserError: where the activations at a site cannot be fitted, and for a site that the model
            lacks.
    """
    intact = _scored(task, {})
    rows: list[dict[str, Any]] = []
    for site, codes in progress(statistics.items(), description, "site"):
        found = {INTACT_CONDITION: intact}
        with _acting_at(task, site) as name:
            for condition in of_codes(task.seed):
                change = condition.make(Fit(codes))
                found[condition.name, condition.control] = _scored(task, {name: change})
                if condition.takes_code:
                    assert isinstance(change, CodeFilter)
                    control = size_matched_removal(
                        change, removal_sizes(change, codes), codes, task.seed
                    )
                    found[condition.name, SIZE_MATCHED] = _scored(task, {name: control})
        rows += _rows(task, found, {**context, "layer": site.layer, "site": site.hook})
    return rows


@contextmanager
def _acting_at(task: InterventionTask, site: Site) -> Iterator[str]:
    """The hook at which a site's activations are changed; while it is open, a model of ours runs
    what lies below once for each batch."""
    model = task.model
    if not isinstance(model, HookedTransformer):
        yield site.name
        return
    # What a block gives is what the next is given: there is less to run from there.
    followed = site.hook == STREAM and site.layer + 1 < model.cfg.n_layers
    acting = Site(site.layer + 1, "resid_pre") if followed else site
    with model.remembered_below(acting.layer):
        yield acting.name


class _Watched:
    """An intervention, and how far it moves what comes to it besides what it aims at."""

    def __init__(self, change: Intervention) -> None:
        self._change = change
        self._found: list[dict[str, Tensor]] = []

    def __call__(self, activations: Float[Tensor, "batch pos d_model"]) -> Tensor:
        changed = self._change(activations)
        self._found.append(side_effects(activations, changed))
        return changed

    def of_sequences(self, metric: str) -> Float[np.ndarray, " sequence"]:
        return torch.cat([found[metric] for found in self._found]).double().cpu().numpy()


def _scored(
    task: InterventionTask,
    made: Mapping[str, Intervention],
    probes: Sequence[StreamingProbe] = (),
) -> Outcome:
    """What the model loses on the held-out sequences, on which `probes` are scored on the way."""
    watched = {name: _Watched(change) for name, change in made.items()}
    with intervene(task.model, watched, task.positions) as intervention:
        with reading_last(task, probes, "evaluate"):
            losses = task.losses(task.model, task.split.held_out).double().numpy()
        intervention.verify()
    if not watched:
        return Outcome(losses)
    moved = {
        metric: np.mean([at.of_sequences(metric) for at in watched.values()], axis=0)
        for metric in SIDE_EFFECTS
    }
    return Outcome(losses, moved)


def _rows(
    task: InterventionTask, found: ByCondition, context: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    columns = {condition: outcome.losses for condition, outcome in found.items()}
    columns[_GUESSER] = task.guessed.double().numpy()
    losses = NamedBootstrap(columns, seed=task.seed)

    def row(condition: tuple[str, str], score: Score, probe: str = LOSS) -> dict[str, Any]:
        name, control = condition
        own = {"positions": name, "control": control, "probe": probe}
        return {**context, **vars(score), **own}

    def lost(condition: tuple[str, str], metric: str, of: ArrayFunction) -> dict[str, Any]:
        return row(condition, losses.score(metric, of, chance=0.0))

    covered = task.coverage
    n = len(found[INTACT_CONDITION].losses)
    yield row(INTACT_CONDITION, Score("coverage", covered, covered, covered, math.nan, n))
    for condition in found:
        yield row(condition, losses.score("nats", losses.mean(condition), chance=task.chance))
        if condition == INTACT_CONDITION:
            continue
        yield lost(condition, "increase", losses.difference(condition, INTACT_CONDITION))
        name, control = condition
        for other, metric in names.OVER_CONTROL.items():
            if not control and (name, other) in losses:
                yield lost(condition, metric, losses.difference(condition, (name, other)))
        if (moved_by := found[condition].side_effects) is not None:
            moved = NamedBootstrap(moved_by, seed=task.seed)
            for metric in moved_by:
                score = moved.score(metric, moved.mean(metric), chance=0.0)
                yield row(condition, score, names.SIDE_EFFECT)
    lead = losses.difference(_GUESSER, INTACT_CONDITION)
    yield lost(INTACT_CONDITION, "lead", lead)
    nothing_kept = (names.NONE_KEPT, "")
    total_effect = losses.difference(nothing_kept, INTACT_CONDITION)
    if min(losses.interval_of(of)[0] for of in (total_effect, lead)) <= 0:
        return  # a share of what may be nothing
    for code in CODES:
        taken, alone, elsewhere = (without(code), ""), (only(code), ""), (only(code), SHUFFLED)
        yield lost(taken, "necessity", ratio(losses.difference(taken, INTACT_CONDITION), lead))
        for kept in (alone, elsewhere) if elsewhere in losses else (alone,):
            regained = losses.difference(nothing_kept, kept)
            yield lost(kept, "sufficiency", ratio(regained, lead))
