"""How few dimensions of a trained model hold the position of what it is asked?

On tasks whose answer is read off symbol by symbol.

The search is that of `experiments.codes.alignment`. A position that is told to be another one asks
for the symbol that is asked for there.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Int
from tqdm import tqdm

from experiments.codes.alignment import (
    FUNCTIONS,
    KEPT,
    Exam,
    Followed,
    Logits,
    Subspace,
    explained_by,
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
    if len(asked) < 2 * KEPT:
        raise UserError(
            f"{len(asked)} positions ask for a symbol, too few to learn on some and judge on "
            f"others: give examples of {2 * KEPT} symbols or more (--lengths)."
        )

    def logits(model: HookedTransformer, tokens: Tokens) -> Logits:
        wanted = torch.zeros_like(tokens, dtype=torch.bool)
        wanted[:, asked] = True
        return rearrange(
            logits_at(model, tokens, wanted), "(batch asked) d -> batch asked d", asked=len(asked)
        )

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

    Args:
        task: of a model of ours; its examples to fit on are learned on, the others answered.
        exam: what these ask, as from `exam_of`.
        where: the sites.
        ranks: how many dimensions, each at most as many as `FUNCTIONS`.
        description: label of the progress bar; None draws no bar.

    Returns:
        One entry for each site and rank, as `LoadedModel.align_positions` describes it.

    Raises:
        UserError: for other ranks.
    """
    if not ranks or not all(1 <= rank <= len(FUNCTIONS) for rank in ranks):
        raise UserError(f"ranks are {list(ranks)}: give some of 1 to {len(FUNCTIONS)}.")
    model = task.model
    assert isinstance(model, HookedTransformer)
    models = (model, untrained_twin(model, task.seed))
    with torch.no_grad():
        said = exam.logits(model, task.split.held_out).argmax(dim=-1)
    answers = exam.answers(task.split.held_out, exam.positions)
    right = (said == answers)[:, exam.kept].cpu().numpy()
    pairs = [(site, rank) for site in where for rank in ranks]
    bar = tqdm(pairs, desc=description, unit="subspace", disable=description is None)
    return [_row(task, exam, models, right, site, rank) for site, rank in bar]


def _row(
    task: InterventionTask,
    exam: Exam,
    models: tuple[HookedTransformer, HookedTransformer],
    right: Followed,
    site: Site,
    rank: int,
) -> dict[str, Any]:
    """What one subspace of the model and one of its untrained twin came to."""
    (subspace, follows), (_, untrained) = (
        _learned_and_judged(task, exam, of, right, site, rank) for of in models
    )
    bootstrap = SequenceBootstrap(seed=task.seed)
    # Told alike, both could follow the same answers.
    bootstrap.update(np.stack([follows[0], untrained[0], follows[1]], axis=1).astype(float))
    shares = {("followed", ""): (1, 0), ("untrained", ""): (0, 1), ("net", ""): (1, -1)}
    found = {row["metric"]: row for row in share_rows(bootstrap, shares, {})}
    return {
        "layer": site.layer,
        "site": site.hook,
        "rank": rank,
        "followed": found["followed"]["value"],
        "untrained": found["untrained"]["value"],
        "net": found["net"]["value"],
        "net_low": found["net"]["ci_low"],
        "net_high": found["net"]["ci_high"],
        **explained_by(exam, models[0], site, subspace, task.split.fit),
    }


def _learned_and_judged(
    task: InterventionTask,
    exam: Exam,
    model: HookedTransformer,
    right: Followed,
    site: Site,
    rank: int,
) -> tuple[Subspace, tuple[Counts, Counts]]:
    """A subspace, and of each sequence how many right answers follow it, and how many could."""
    generator = torch.Generator().manual_seed(task.seed)
    fit, held_out = task.split.fit, task.split.held_out
    subspace = learned_subspace(exam, model, site, fit, generator, rank=rank, steps=_STEPS)
    follows, could = followed(exam, model, site, subspace, held_out, generator)
    counted = could & right
    return subspace, ((follows & counted).sum(axis=1), counted.sum(axis=1))
