"""Do answers follow a position that is moved inside the model?

In a task whose answer is read off symbol by symbol (reversal, copying) each position that asks for
a symbol is given the code of the next one. A model that finds its place by this code answers with
the symbol that comes next; one that does not stays with its answer; one that breaks says something
else. That a model knows order at all is seen first: no verdict is given of one that does not.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from experiments.codes.task import InterventionTask
from experiments.probing.measure import Site
from experiments.results.code_ablation import EVERYWHERE, SIZE_MATCHED, STREAM
from experiments.results.interchange import (
    ACCURACY,
    GUESSER,
    NEITHER,
    NET,
    PROBE,
    SHUFFLED_QUESTION,
    STAYS,
    TOWARDS,
    of_next,
)
from nope_interp.errors import UserError
from nope_interp.interventions.intervene import intervene
from nope_interp.models.losses import logits_at
from nope_interp.models.transformer import HookedTransformer
from nope_interp.sites import hook_name
from probes.bootstrap import SequenceBootstrap
from probes.codes.controls import OtherContent, sizes_of
from probes.codes.interchange import MOVABLE, interchange
from probes.codes.statistics import CodeStatistics, Intervention
from probes.shapes import Positions

Asked = Int[Tensor, " asked"]


def order_rows(task: InterventionTask, *, context: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of the tidy table: whether the model knows the order of what it is asked of.

    Metric `accuracy`, the share of answers that are right: the model's own; with the control
    `GUESSER`, that of one who sees which tokens the question has and crosses off those that were
    answered, but not their order; with `SHUFFLED_QUESTION`, the model's own where the question's
    tokens are permuted and the answer is the old one. Metrics `above_guesser` and `lost_by_shuffle`
    are the differences. Shares from 0 to 1, with intervals over sequences.

    Args:
        task: one with answers, of a model of ours.
        context: the columns that tell this model variant from others.

    Returns:
        The rows.

    Raises:
        UserError: for a task without answers.
    """
    answer, tokens = _answers(task), task.split.held_out
    question = _question(tokens, answer)
    own = _right(task, tokens, answer)
    guessed = _guessed(tokens, answer, question)
    shuffled = _right(task, _permuted(tokens, question, task.seed), answer)
    asked = answer.double().sum(dim=1).numpy()
    bootstrap = SequenceBootstrap(seed=task.seed)
    bootstrap.update(np.stack([own, guessed, shuffled, asked], axis=1))
    shares = {
        (ACCURACY, ""): (1, 0, 0),
        (ACCURACY, GUESSER): (0, 1, 0),
        (ACCURACY, SHUFFLED_QUESTION): (0, 0, 1),
        ("above_guesser", ""): (1, -1, 0),
        ("lost_by_shuffle", ""): (1, 0, -1),
    }
    where = {"layer": EVERYWHERE, "site": STREAM, "probe": PROBE}
    return _rows(bootstrap, shares, {**context, **where})


def interchange_rows(
    task: InterventionTask, statistics: Mapping[Site, CodeStatistics], *, context: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Rows of the tidy table: what becomes of answers where the position that asks is moved.

    At each site and for each of `MOVABLE`, every position that asks for a symbol and is followed by
    one that asks, too, gets the code of that next position. Neither may stand in the task's frame,
    whose mean residual tells the frame's token: both hold different symbols in different examples.
    Questions whose next symbol is the same do not count. Metrics `TOWARDS`, `STAYS` and `NEITHER`
    share all answers out; the control `SIZE_MATCHED` mixes in as much of another sequence's
    content; `NET` is towards less the control's. Chance is 0: a model that is moved at random hits
    the next symbol as often as the control does.

    Args:
        task: one with answers, of a model of ours.
        statistics: of its fit sequences at each site, as from `statistics_at`.
        context: the columns that tell this model variant from others.

    Returns:
        The rows.

    Raises:
        UserError: for a task without answers, or without two neighbouring positions that ask.
    """
    tokens, asked = task.split.held_out, asking_positions(task)
    differ = tokens[:, asked + 2] != tokens[:, asked + 1]
    if not differ.any():
        raise UserError(
            "the next symbol of every answer is the same as the one before: give a task whose "
            "answers tell one position from the next."
        )
    found = []
    for site, codes in statistics.items():
        for code in MOVABLE:
            change = interchange(codes, code, _sources(task, asked))
            control = OtherContent(sizes_of(change, codes), codes)
            shares = [_shares(task, site, how, asked, differ) for how in (change, control)]
            bootstrap = SequenceBootstrap(seed=task.seed)
            counted = differ.double().sum(dim=1, keepdim=True).numpy()
            bootstrap.update(np.concatenate([*shares, counted], axis=1))
            where = {"layer": site.layer, "site": site.hook, "positions": of_next(code)}
            unit = np.eye(6, dtype=int)
            metrics = {
                (metric, kind): tuple(unit[3 * (kind != "") + nth].tolist())
                for kind in ("", SIZE_MATCHED)
                for nth, metric in enumerate((TOWARDS, STAYS, NEITHER))
            }
            metrics[NET, ""] = tuple((unit[0] - unit[3]).tolist())
            found += _rows(bootstrap, metrics, {**context, **where, "probe": PROBE})
    return found


def asking_positions(task: InterventionTask) -> Asked:
    """The positions that ask for a symbol and whose next one asks for another.

    Args:
        task: one with answers.

    Returns:
        `[asked]`, counted from 0; those at which examples differ, like their next ones.

    Raises:
        UserError: for a task without answers, or without such a position.
    """
    always = _answers(task).all(dim=0)
    varied = torch.zeros_like(always)
    varied[task.positions] = True
    # Position t asks for the token at t + 1.
    asks = varied[:-2] & always[1:-1] & varied[1:-1] & always[2:]
    if not asks.any():
        raise UserError(
            "no two neighbouring positions ask for symbols that examples do not share: give a task "
            "whose answers are read off symbol by symbol, such as reversal, and longer examples."
        )
    return asks.nonzero()[:, 0]


def _answers(task: InterventionTask) -> Bool[Tensor, "sequence pos"]:
    if task.answer is None or not isinstance(task.model, HookedTransformer):
        raise UserError(
            "what a model would answer elsewhere is known of tasks with answers, and of models of "
            "ours only: give a checkpoint that was trained on one."
        )
    return task.answer


def _sources(task: InterventionTask, asked: Asked) -> Positions:
    """For each position fitted on, as an index into these, the one whose code it gets."""
    numbers = task.numbers()
    moved = torch.isin(numbers, asked)
    # The next position is fitted on, too, and so comes next among them.
    return torch.arange(len(numbers)) + moved


def _shares(
    task: InterventionTask,
    site: Site,
    change: Intervention,
    asked: Asked,
    differ: Bool[Tensor, "sequence asked"],
) -> Float[np.ndarray, "sequence 3"]:
    """How many answers of each sequence go towards the next position's, stay, and do neither."""
    tokens = task.split.held_out
    wanted = torch.zeros_like(tokens, dtype=torch.bool)
    wanted[:, asked] = True
    with intervene(task.model, {hook_name(site.layer, site.hook): change}, task.positions) as done:
        said = _said(task, tokens, wanted).reshape(len(tokens), len(asked))
        done.verify()
    towards = (said == tokens[:, asked + 2]) & differ
    stays = (said == tokens[:, asked + 1]) & differ
    neither = differ & ~towards & ~stays
    return torch.stack([towards, stays, neither], dim=-1).sum(dim=1).double().numpy()


def _right(
    task: InterventionTask, tokens: Tensor, answer: Bool[Tensor, "sequence pos"]
) -> Float[np.ndarray, " sequence"]:
    """How many answers of each sequence are right."""
    asking = answer.roll(-1, dims=1)
    asking[:, -1] = False
    found = torch.zeros(asking.shape, dtype=torch.float64)
    found[asking] = (_said(task, tokens, asking) == tokens[answer]).double()
    return found.sum(dim=1).numpy()


@torch.no_grad()
def _said(
    task: InterventionTask, tokens: Tensor, wanted: Bool[Tensor, "sequence pos"]
) -> Int[Tensor, " wanted"]:
    """The likeliest next token at each of the wanted positions."""
    assert isinstance(task.model, HookedTransformer)  # as `_answers` saw to
    model = task.model
    parts = zip(tokens.split(task.batch_size), wanted.split(task.batch_size), strict=True)
    return torch.cat([logits_at(model, t, w).argmax(dim=-1).cpu() for t, w in parts])


def _question(tokens: Tensor, answer: Bool[Tensor, "sequence pos"]) -> Bool[Tensor, " pos"]:
    """Where the question stands: before the answer, at positions at which examples differ."""
    first = int(answer.any(dim=0).int().argmax())
    differs = (tokens != tokens[0]).any(dim=0)
    differs[first:] = False
    return differs


def _permuted(tokens: Tensor, question: Bool[Tensor, " pos"], seed: int) -> Tensor:
    """Every question's tokens in an order of its own."""
    generator = torch.Generator().manual_seed(seed)
    found = tokens.clone()
    order = torch.rand((len(tokens), int(question.sum())), generator=generator).argsort(dim=1)
    found[:, question] = tokens[:, question].gather(1, order)
    return found


def _guessed(
    tokens: Tensor, answer: Bool[Tensor, "sequence pos"], question: Bool[Tensor, " pos"]
) -> Float[np.ndarray, " sequence"]:
    """How many answers of each sequence one gets right, on average, who knows which tokens the
    question has, crosses off those that were answered, and guesses the commonest of the rest."""
    d_vocab = int(tokens.max()) + 1
    left = torch.zeros((len(tokens), d_vocab), dtype=torch.float64)
    left.scatter_add_(1, tokens[:, question], torch.ones_like(tokens[:, question]).double())
    found = torch.zeros(len(tokens), dtype=torch.float64)
    for position in answer.any(dim=0).nonzero()[:, 0]:
        right, asked = tokens[:, position, None], answer[:, position]
        most = left.max(dim=1, keepdim=True).values
        best = (left == most) & (most > 0)
        hit = best.gather(1, right)[:, 0] / best.sum(dim=1).clamp(min=1)
        found += hit * asked
        left.scatter_add_(1, right, -asked.double()[:, None])
        left.clamp_(min=0)
    return found.numpy()


def _rows(
    bootstrap: SequenceBootstrap,
    shares: Mapping[tuple[str, str], tuple[int, ...]],
    context: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """A row for each weighted sum of the bootstrap's columns over its last one."""
    found = []
    for (metric, control), weights in shares.items():
        share = partial(_share, weights=np.array(weights))
        # What an accuracy is held against is the guesser's.
        chance = np.nan if metric == ACCURACY else 0.0
        score = bootstrap.score(metric, share, chance=chance, control=control)
        found.append({**context, **vars(score)})
    return found


def _share(
    means: Float[np.ndarray, "row k"], weights: Int[np.ndarray, " weighed"]
) -> Float[np.ndarray, " row"]:
    return means[:, :-1] @ weights / means[:, -1]
