"""Does a model know the order of what it is asked of? Nothing is said of its codes before.

Whoever sees which symbols a question has, and crosses off those that were answered, is right
without any order. A model has to do better, and has to do worse where the question is shuffled.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from experiments.codes.guessers import crossed_off, question_of, token_before
from experiments.codes.task import InterventionTask
from experiments.results.code_ablation import EVERYWHERE, STREAM
from experiments.results.interchange import (
    ABOVE_GUESSER,
    ACCURACY,
    GUESSER,
    LOST_BY_SHUFFLE,
    PROBE,
    SHUFFLED_QUESTION,
)
from nope_interp.errors import UserError
from nope_interp.models.marked import before, logits_at
from nope_interp.models.transformer import HookedTransformer
from probes.bootstrap import SequenceBootstrap


def order_rows(task: InterventionTask, *, context: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of the tidy table: whether the model knows the order of what it is asked of.

    Metric `accuracy`, the share of answers that are right: the model's own; with the control
    `GUESSER`, that of the best of four who do not know order: one sees which tokens the question
    has and crosses off those that were answered, one does so anew wherever the answer starts over,
    one gives the commonest answer at each position, and one the commonest behind the token before;
    with `SHUFFLED_QUESTION`, the model's own where the question's tokens are permuted, but for what
    stands right before the first answer, and the answer is the old one. On a task that no order
    matters to nothing is permuted. Metrics `ABOVE_GUESSER` and
    `LOST_BY_SHUFFLE` are the differences. Shares from 0 to 1, with intervals over sequences.

    Args:
        task: one with answers, of a model of ours.
        context: the columns that tell this model variant from others.

    Returns:
        The rows.

    Raises:
        UserError: for a task without answers.
    """
    answer, tokens = answers_of(task), task.split.held_out
    question = question_of(tokens, answer)
    own = _right(task, tokens, answer)
    guessers = [_guessed(tokens, answer, anew=anew) for anew in (False, True)]
    guessed = max([*guessers, _commonest(tokens, answer), _followers(task, answer)], key=np.sum)
    # A model that knows one token and no order would miss the sign that an answer begins behind.
    question[int(answer.any(dim=0).int().argmax()) - 1] = False
    shuffled = _right(task, _permuted(tokens, question, task.seed), answer)
    asked = answer.double().sum(dim=1).numpy()
    bootstrap = SequenceBootstrap(seed=task.seed)
    bootstrap.update(np.stack([own, guessed, shuffled, asked], axis=1))
    shares = {
        (ACCURACY, ""): (1, 0, 0),
        (ACCURACY, GUESSER): (0, 1, 0),
        (ABOVE_GUESSER, ""): (1, -1, 0),
    }
    if task.source is None or task.source.when_moved != "same":
        shares[ACCURACY, SHUFFLED_QUESTION] = (0, 0, 1)
        shares[LOST_BY_SHUFFLE, ""] = (1, 0, -1)
    where = {"layer": EVERYWHERE, "site": STREAM, "probe": PROBE}
    return share_rows(bootstrap, shares, {**context, **where})


def answers_of(task: InterventionTask) -> Bool[Tensor, "sequence pos"]:
    """Which held-out tokens are answers.

    Args:
        task: one with answers, of a model of ours.

    Returns:
        `[sequence pos]`.

    Raises:
        UserError: for another task or model.
    """
    if task.answer is None or not isinstance(task.model, HookedTransformer):
        raise UserError(
            "answers at other positions are known only of models of ours that learned a task: give "
            "such a checkpoint."
        )
    return task.answer


@torch.no_grad()
def _right(
    task: InterventionTask, tokens: Tensor, answer: Bool[Tensor, "sequence pos"]
) -> Float[np.ndarray, " sequence"]:
    """How many answers of each sequence are right: the likeliest token at their positions."""
    assert isinstance(task.model, HookedTransformer)  # as `answers_of` saw to
    model, asking = task.model, before(answer)
    parts = zip(tokens.split(task.batch_size), asking.split(task.batch_size), strict=True)
    said = [logits_at(model, some, at).argmax(dim=-1).cpu() for some, at in parts]
    found = torch.zeros(asking.shape, dtype=torch.float64)
    found[asking] = (torch.cat(said) == tokens[answer]).double()
    return found.sum(dim=1).numpy()


def _permuted(tokens: Tensor, question: Bool[Tensor, " pos"], seed: int) -> Tensor:
    """Every question's tokens in an order of its own."""
    generator = torch.Generator().manual_seed(seed)
    found = tokens.clone()
    order = torch.rand((len(tokens), int(question.sum())), generator=generator).argsort(dim=1)
    found[:, question] = tokens[:, question].gather(1, order)
    return found


def _guessed(
    tokens: Tensor, answer: Bool[Tensor, "sequence pos"], *, anew: bool
) -> Float[np.ndarray, " sequence"]:
    """How many answers of each sequence one gets right, on average, who guesses the commonest of
    the question's tokens that are not crossed off."""
    found = torch.zeros(len(tokens), dtype=torch.float64)
    for guess in crossed_off(tokens, answer, anew=anew):
        most = guess.left.max(dim=1, keepdim=True).values
        best = (guess.left == most) & (most > 0)
        hit = best.gather(1, guess.wanted)[:, 0] / best.sum(dim=1).clamp(min=1)
        found += hit * guess.asked
    return found.numpy()


def _commonest(
    tokens: Tensor, answer: Bool[Tensor, "sequence pos"]
) -> Float[np.ndarray, " sequence"]:
    """How many answers of each sequence one gets right who always gives the commonest answer at
    that position, of those that are scored: of a few prompts that training never saw, most may have
    one answer."""
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    guesses = _commonest_by(places[answer], tokens[answer], tokens.shape[1], int(tokens.max()) + 1)
    return ((guesses[places] == tokens) & answer).double().sum(dim=1).numpy()


def _followers(
    task: InterventionTask, answer: Bool[Tensor, "sequence pos"]
) -> Float[np.ndarray, " sequence"]:
    """How many answers of each sequence one gets right who always gives what most often was
    answered behind the token before, in the fit sequences."""
    fit, learned, tokens = task.split.fit, task.fit_answer, task.split.held_out
    if learned is None or not learned.any():
        return np.zeros(len(tokens))
    kinds = int(torch.maximum(fit.max(), tokens.max())) + 1
    # Before the first token stands none, as of another kind.
    behind, before = token_before(fit) % (kinds + 1), token_before(tokens) % (kinds + 1)
    guesses = _commonest_by(behind[learned], fit[learned], kinds + 1, kinds)
    return ((guesses[before] == tokens) & answer).double().sum(dim=1).numpy()


def _commonest_by(
    keys: Int[Tensor, " answer"], answers: Int[Tensor, " answer"], n_keys: int, kinds: int
) -> Int[Tensor, " key"]:
    """The commonest answer for each key; for a key without any the commonest of all."""
    counts = torch.bincount(keys * kinds + answers, minlength=n_keys * kinds)
    table = rearrange(counts, "(key kind) -> key kind", key=n_keys)
    return torch.where(table.any(dim=1), table.argmax(dim=1), table.sum(dim=0).argmax())


def share_rows(
    bootstrap: SequenceBootstrap,
    shares: Mapping[tuple[str, str], tuple[int, ...]],
    context: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """A row of the tidy table for each weighted sum of a bootstrap's columns over its last one.

    Args:
        bootstrap: fed with the columns.
        shares: the weights of all columns but the last, by metric and control.
        context: the row's other columns.

    Returns:
        The rows. Differences have chance 0; what other shares are held against are their controls.
    """
    found = []
    for (metric, control), weights in shares.items():
        share = partial(_share, weights=np.array(weights))
        chance = 0.0 if min(weights) < 0 else np.nan
        score = bootstrap.score(metric, share, chance=chance, control=control)
        found.append({**context, **vars(score)})
    return found


def _share(
    means: Float[np.ndarray, "row k"], weights: Int[np.ndarray, " weighed"]
) -> Float[np.ndarray, " row"]:
    return means[:, :-1] @ weights / means[:, -1]
