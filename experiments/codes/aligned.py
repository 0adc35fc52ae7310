"""How few dimensions of a trained model hold the position of what it is asked?

On tasks whose answer is read off symbol by symbol.

The search is that of `experiments.codes.alignment`. A position that is told to be another one asks
for the symbol that is asked for there.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import index
from typing import Any

import numpy as np
import torch
from einops import rearrange

from experiments.codes.alignment import (
    COULD,
    FOLDS,
    FUNCTIONS,
    Answered,
    Counts,
    Exam,
    Judges,
    Logits,
    Subspace,
    learned_subspace,
    share_of,
    untrained_twin,
)
from experiments.codes.counterfactual import asking_positions
from experiments.codes.task import InterventionTask
from experiments.codes.variable import variable_of
from experiments.probing.sites import Site
from nope_interp.errors import UserError
from nope_interp.models.marked import logits_at
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import Tokens
from probes.bootstrap import NamedBootstrap
from probes.scores import Score

# Farther from what linear regression reads than a planted model's subspace is.
_STEPS = 200
_CONSTANT = "constant"
_CONTROLS = ("untrained", _CONSTANT)


def exam_of(task: InterventionTask) -> Exam:
    """What a task's examples ask, symbol by symbol: told to be another position, one asks for the
    symbol that is asked for there.

    Args:
        task: one whose answer is read off its question symbol by symbol, of a model of ours.

    Raises:
        UserError: for another task.
    """
    if task.source is None or task.source.when_moved != "symbol":
        raise UserError(
            "a subspace is learned where each position asks for a symbol of the question: give a "
            "model of reversal, copy-cmc or reverse-mc."
        )
    asked = asking_positions(task)

    def logits(model: HookedTransformer, tokens: Tokens) -> Logits:
        wanted = torch.zeros_like(tokens, dtype=torch.bool)
        wanted[:, asked] = True
        found = logits_at(model, tokens, wanted).cpu()
        return rearrange(found, "(batch asked) d -> batch asked d", asked=len(asked))

    return Exam(asked, logits, lambda tokens, told: tokens[:, told + 1])


def alignment_rows(
    task: InterventionTask,
    exam: Exam,
    where: Sequence[Site],
    ranks: Sequence[int],
    *,
    shorter: Sequence[InterventionTask] = (),
) -> list[dict[str, Any]]:
    """How far answers follow where a learned subspace tells another position, by site and rank.

    Each of three subspaces is learned on two thirds of the positions. Then every position is told
    to be each of the others in turn. What is judged is the answers of positions that were kept, and
    of those that are told to be one of these. In shorter examples all are judged.

    Args:
        task: of a model of ours; its examples to fit on are learned on, the others answered.
        exam: what these ask, as from `exam_of`.
        where: the sites.
        ranks: how many dimensions.
        shorter: shorter examples, to judge on, too.

    Returns:
        One entry for each site and rank, as `experiments.codes.questions.positions_aligned`
        describes it.

    Raises:
        UserError: for too few positions, for ranks that are 0 or more than so few positions can
            tell apart, and for a model that is right nowhere.
    """
    model = task.model
    assert isinstance(model, HookedTransformer)
    _check_positions(exam)
    ranks = _whole_ranks(ranks, exam)
    own = Answered.by(model, exam, task.split.held_out)
    if not own.right.any():
        raise UserError("the model answers none of these examples right: train it longer.")
    asked = (Answered.by(model, exam_of(one), one.split.held_out) for one in shorter)
    others = [one for one in asked if one.right.any()]
    models = (model, untrained_twin(model, task.seed))
    return [_row(task, own, others, models, site, rank) for site in where for rank in ranks]


def _check_positions(exam: Exam) -> None:
    if len(exam.positions) < 2 * FOLDS:
        raise UserError(
            f"{len(exam.positions)} positions ask for a symbol, too few to learn on some and judge "
            f"on others: give examples of {2 * FOLDS + 1} symbols or more (--lengths)."
        )


def _whole_ranks(ranks: Sequence[int], exam: Exam) -> list[int]:
    # Centred, so many functions of n positions are independent as are fewer than n.
    fewest = min(int((~exam.kept(fold)).sum()) for fold in range(FOLDS))
    most = min(len(FUNCTIONS), fewest - 1)
    try:
        chosen = [index(rank) for rank in ranks]
    except TypeError:
        chosen = []
    if not chosen or not all(1 <= rank <= most for rank in chosen):
        raise UserError(
            f"ranks are {ranks}: give a list of some of 1 to {most}, which is what {fewest} "
            "positions to learn on can tell apart."
        )
    return chosen


def _row(
    task: InterventionTask,
    own: Answered,
    others: Sequence[Answered],
    models: tuple[HookedTransformer, HookedTransformer],
    site: Site,
    rank: int,
) -> dict[str, Any]:
    """What subspaces of the model, those that it began with, and its twin's came to."""
    model, twin = models
    found = {
        name: (of, _subspaces(task, own.exam, of, site, rank, steps))
        for name, of, steps in (
            ("followed", model, _STEPS),
            ("regressed", model, 0),
            ("untrained", twin, _STEPS),
        )
    }
    counts = {name: _judged(own, *of, site) for name, of in found.items()}
    counts[_CONSTANT] = own.constant([_either_of(own, fold) for fold in range(FOLDS)])
    shares = _shares(counts, task.seed)
    row = {
        "layer": site.layer,
        "site": site.hook,
        "rank": rank,
        **{name: score.value for name, score in shares.items()},
        "net_low": shares["net"].ci_low,
        "net_high": shares["net"].ci_high,
    }
    if others:
        elsewhere = {
            name: np.concatenate([_judged_everywhere(one, *found[name], site) for one in others])
            for name in ("followed", "untrained")
        }
        constants = [one.constant([_all_of(one)] * FOLDS) for one in others]
        elsewhere[_CONSTANT] = np.concatenate(constants)
        net = _shares(elsewhere, task.seed)["net"]
        row |= {"shorter": net.value, "shorter_low": net.ci_low, "shorter_high": net.ci_high}
    return row | variable_of(task, own, model, site, rank, _STEPS)


def _subspaces(
    task: InterventionTask, exam: Exam, model: HookedTransformer, site: Site, rank: int, steps: int
) -> list[Subspace]:
    """One for each fold, learned on the others."""
    found = []
    for fold in range(FOLDS):
        generator = torch.Generator().manual_seed(FOLDS * task.seed + fold)
        learned = partial(learned_subspace, exam, model, site, task.split.fit, generator)
        found.append(learned(rank=rank, steps=steps, seen=~exam.kept(fold)))
    return found


def _judged(
    own: Answered, model: HookedTransformer, subspaces: Sequence[Subspace], site: Site
) -> Counts:
    """Where either position was kept; over all folds."""
    total = np.zeros((len(own.right), 2), dtype=np.int64)
    for fold, subspace in enumerate(subspaces):
        total += own.counts(model, site, subspace, _either_of(own, fold))
    return total


def _either_of(own: Answered, fold: int) -> Judges:
    """Positions that were kept, or are told to be one that was."""
    kept = own.exam.kept(fold)
    return lambda by: kept | kept.roll(-by)


def _all_of(some: Answered) -> Judges:
    everywhere = torch.ones_like(some.exam.positions, dtype=torch.bool)
    return lambda by: everywhere


def _judged_everywhere(
    other: Answered, model: HookedTransformer, subspaces: Sequence[Subspace], site: Site
) -> Counts:
    counts = [other.counts(model, site, subspace, _all_of(other)) for subspace in subspaces]
    return np.sum(counts, axis=0)


def _shares(counts: Mapping[str, Counts], seed: int) -> dict[str, Score]:
    """The share that follows by name, and `net`, that of `followed` less the larger of controls."""
    columns = {name: of[:, 0].astype(float) for name, of in counts.items()}
    could = counts["followed"][:, 1].astype(float)
    bootstrap = NamedBootstrap(columns | {COULD: could}, seed=seed)
    shares = {name: share_of(bootstrap, name) for name in counts}
    shares["net"] = share_of(bootstrap, "followed", *_CONTROLS)
    return {name: bootstrap.score(name, of, chance=0.0) for name, of in shares.items()}
