"""How few dimensions of a trained model hold the position of what it is asked?

On tasks whose answer is read off symbol by symbol.

The search is that of `experiments.codes.alignment`. A position that is told to be another one asks
for the symbol that is asked for there.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Int

from experiments.codes.alignment import (
    FOLDS,
    FUNCTIONS,
    Exam,
    Followed,
    Logits,
    followed,
    learned_subspace,
    untrained_twin,
)
from experiments.codes.counterfactual import asking_positions
from experiments.codes.order import share_rows
from experiments.codes.task import InterventionTask
from experiments.probing.measure import Site
from nope_interp.errors import UserError
from nope_interp.models.marked import logits_at
from nope_interp.models.transformer import HookedTransformer
from nope_interp.progress import progress
from nope_interp.shapes import Tokens
from probes.bootstrap import SequenceBootstrap

# One number for each sequence.
Counts = Int[np.ndarray, " sequence"]
# Farther from what linear regression reads than a planted model's subspace is.
_STEPS = 200


def exam_of(task: InterventionTask) -> Exam:
    """What a task's examples ask, symbol by symbol: told to be another position, one asks for the
    symbol that is asked for there.

    Args:
        task: one whose answer is read off its question symbol by symbol, of a model of ours.

    Raises:
        UserError: for another task, and for fewer than 6 positions that ask.
    """
    asked = asking_positions(task)
    if task.source is None or task.source.when_moved != "symbol":
        raise UserError(
            "a subspace is learned where each position asks for a symbol of the question: give a "
            "model of reversal, copy-cmc or reverse-mc."
        )
    if len(asked) < 2 * FOLDS:
        raise UserError(
            f"{len(asked)} positions ask for a symbol, too few to learn on some and judge on "
            f"others: give examples of {2 * FOLDS + 1} symbols or more (--lengths)."
        )

    def logits(model: HookedTransformer, tokens: Tokens) -> Logits:
        device = next(model.parameters()).device
        wanted = torch.zeros_like(tokens, dtype=torch.bool)
        wanted[:, asked] = True
        found = logits_at(model, tokens.to(device), wanted.to(device)).cpu()
        return rearrange(found, "(batch asked) d -> batch asked d", asked=len(asked))

    return Exam(asked, logits, lambda tokens, told: tokens[:, told + 1])


def alignment_rows(
    task: InterventionTask,
    exam: Exam,
    where: Sequence[Site],
    ranks: Sequence[int],
    *,
    description: str | None = None,
) -> list[dict[str, Any]]:
    """How far answers follow where a learned subspace tells another position, by site and rank.

    Each of three subspaces is learned on two thirds of the positions. Then every position is told
    to be each of the others in turn. What is judged is the answers of positions that were kept, and
    of those that are told to be one of these.

    Args:
        task: of a model of ours; its examples to fit on are learned on, the others answered.
        exam: what these ask, as from `exam_of`.
        where: the sites.
        ranks: how many dimensions.
        description: label of the progress bar; None draws no bar.

    Returns:
        One entry for each site and rank, as `LoadedModel.align_positions` describes it.

    Raises:
        UserError: for ranks that are 0 or more than so few positions can tell apart, and for a
            model that is right nowhere.
    """
    model = task.model
    assert isinstance(model, HookedTransformer)
    _check_ranks(exam, ranks)
    models = (model, untrained_twin(model, task.seed))
    with torch.no_grad():
        said = exam.logits(model, task.split.held_out).argmax(dim=-1)
    right = (said == exam.answers(task.split.held_out, exam.positions)).numpy()
    if not right.any():
        raise UserError("the model answers none of these examples right: train it longer.")
    pairs = [(site, rank) for site in where for rank in ranks]
    bar = progress(pairs, description, "subspace")
    return [_row(task, exam, models, right, site, rank) for site, rank in bar]


def _check_ranks(exam: Exam, ranks: Sequence[int]) -> None:
    # Centred, so many functions of n positions are independent as are fewer than n.
    fewest = min(int((~exam.kept(fold)).sum()) for fold in range(FOLDS))
    most = min(len(FUNCTIONS), fewest - 1)
    several = isinstance(ranks, Iterable)
    if not several or not ranks or not all(rank in range(1, most + 1) for rank in ranks):
        raise UserError(
            f"ranks are {ranks}: give a list of some of 1 to {most}, which is what {fewest} "
            "positions to learn on can tell apart."
        )


def _row(
    task: InterventionTask,
    exam: Exam,
    models: tuple[HookedTransformer, HookedTransformer],
    right: Followed,
    site: Site,
    rank: int,
) -> dict[str, Any]:
    """What subspaces of the model, those that it began with, and its twin's came to."""
    model, twin = models
    judge = partial(_judged, task, exam, right=right, site=site, rank=rank)
    own, counted = judge(model, steps=_STEPS)
    (start, _), (untrained, _) = judge(model, steps=0), judge(twin, steps=_STEPS)
    bootstrap = SequenceBootstrap(seed=task.seed)
    bootstrap.update(np.stack([own, start, untrained, counted], axis=1).astype(float))
    shares = {
        ("followed", ""): (1, 0, 0),
        ("regressed", ""): (0, 1, 0),
        ("untrained", ""): (0, 0, 1),
        ("net", ""): (1, 0, -1),
    }
    found = {row["metric"]: row for row in share_rows(bootstrap, shares, {})}
    return {
        "layer": site.layer,
        "site": site.hook,
        "rank": rank,
        **{name: found[name]["value"] for name, _ in shares},
        "net_low": found["net"]["ci_low"],
        "net_high": found["net"]["ci_high"],
    }


def _judged(
    task: InterventionTask,
    exam: Exam,
    model: HookedTransformer,
    *,
    right: Followed,
    site: Site,
    rank: int,
    steps: int,
) -> tuple[Counts, Counts]:
    """Of each sequence how many right answers follow, and how many could, over all folds."""
    sums = np.zeros((2, len(right)), dtype=np.int64)
    fit, held_out = task.split.fit, task.split.held_out
    for fold in range(FOLDS):
        generator = torch.Generator().manual_seed(FOLDS * task.seed + fold)
        how = {"rank": rank, "steps": steps, "fold": fold}
        subspace = learned_subspace(exam, model, site, fit, generator, **how)
        kept = exam.kept(fold)
        # Of so few positions a single order of them would be a small sample of the pairs.
        for by in range(1, len(kept)):
            told = exam.positions.roll(-by)
            judged = kept | kept.roll(-by)
            follows, could = followed(exam, model, site, subspace, held_out, told)
            counted = could & right & judged.numpy()
            sums += np.stack([(follows & counted).sum(axis=1), counted.sum(axis=1)])
    return sums[0], sums[1]
