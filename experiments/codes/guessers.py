"""What whoever does not know order can guess of answers: what every model is held against."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nope_interp.models.losses import unigram_losses


class Guess(NamedTuple):
    """What is left of the question's tokens where one token of the answer is asked.

    Attributes:
        left: `[sequence token]`, how often each stands in the question and was not answered yet.
        wanted: `[sequence 1]`, the token that is right.
        asked: `[sequence]`, whether it is scored.
    """

    left: Float[Tensor, "sequence token"]
    wanted: Int[Tensor, "sequence 1"]
    asked: Bool[Tensor, " sequence"]


def question_of(tokens: Tensor, answer: Bool[Tensor, "sequence pos"]) -> Bool[Tensor, " pos"]:
    """Where the question stands: before the answer, at positions at which examples differ.

    Args:
        tokens: `[sequence pos]`.
        answer: `[sequence pos]`, which of them are answers.

    Returns:
        `[pos]`.
    """
    first = int(answer.any(dim=0).int().argmax())
    differs = (tokens != tokens[0]).any(dim=0)
    differs[first:] = False
    return differs


def crossed_off(
    tokens: Tensor, answer: Bool[Tensor, "sequence pos"], *, anew: bool
) -> Iterator[Guess]:
    """What one knows at each answer who sees which tokens the question has, and not their order,
    and crosses off those that were answered.

    Args:
        tokens: `[sequence pos]`.
        answer: `[sequence pos]`, which of them are answers.
        anew: cross off anew behind each gap in the answer, and where nothing is left: a question
            may be answered twice.

    Yields:
        One for each position at which some sequence has an answer. Read what is left at once: it
        changes with the next answer.
    """
    question = question_of(tokens, answer)
    every = torch.zeros((len(tokens), int(tokens.max()) + 1), dtype=torch.float64)
    every.scatter_add_(1, tokens[:, question], torch.ones_like(tokens[:, question]).double())
    left, before = every.clone(), -1
    for position in answer.any(dim=0).nonzero()[:, 0].tolist():
        if anew:
            done = left.sum(dim=1, keepdim=True) == 0
            left = every.clone() if position > before + 1 else torch.where(done, every, left)
        wanted, asked, before = tokens[:, position, None], answer[:, position], position
        yield Guess(left, wanted, asked)
        left.scatter_add_(1, wanted, -asked.double()[:, None])
        left.clamp_(min=0)


def guessed_losses(
    fit: Int[Tensor, "fitted pos"],
    answers: Bool[Tensor, "fitted pos"],
    tokens: Int[Tensor, "scored pos"],
    asked: Bool[Tensor, "scored pos"],
    d_vocab: int,
) -> Float[Tensor, " scored"]:
    """What the best of six guessers who do not know order loses on each example.

    Two see which tokens the question has, and cross off those that were answered, one of them anew
    in each round. Four do not see it. One knows how often each token is an answer's, one how often
    at each position, one how often behind the token before, which every model sees; smoothing costs
    these the more the fewer examples they saw. The last thinks all tokens equally likely that stand
    in any answer.

    Args:
        fit: examples to know frequencies from.
        answers: which of their tokens are answers.
        tokens: examples that are scored.
        asked: which of their tokens are.
        d_vocab: kinds of tokens.

    Returns:
        `[scored]`, the mean over each example's answers, in nats, of the guesser with the least
        mean over examples.
    """
    pooled, at_each = torch.zeros(asked.shape), torch.zeros(asked.shape)
    pooled[asked] = _guesses(fit[answers], tokens[asked], d_vocab)
    for i, (learned, wanted) in enumerate(zip(answers.T, asked.T, strict=True)):
        # Where no example to learn from has an answer, a token is guessed as at any other position.
        seen = fit[learned, i] if learned.any() else fit[answers]
        at_each[wanted, i] = _guesses(seen, tokens[wanted, i], d_vocab)
    losses = [of.sum(dim=1) / asked.sum(dim=1) for of in (pooled, at_each)]
    losses += [_crossing_off_losses(tokens, asked, anew=anew) for anew in (False, True)]
    kinds = torch.cat([fit[answers], tokens[asked]]).unique()
    losses.append(torch.full((len(tokens),), math.log(len(kinds))))
    followers = torch.zeros(asked.shape)
    followers[asked] = _follower_losses(fit, answers, tokens, asked, d_vocab)
    losses.append(followers.sum(dim=1) / asked.sum(dim=1))
    return min(losses, key=lambda of: float(of.mean())).float()


def _crossing_off_losses(
    tokens: Tensor, asked: Bool[Tensor, "scored pos"], *, anew: bool
) -> Float[Tensor, " scored"]:
    """Infinite where an answer is none of the question's tokens that are left."""
    lost = torch.zeros(len(tokens), dtype=torch.float64)
    for guess in crossed_off(tokens, asked, anew=anew):
        share = guess.left.gather(1, guess.wanted)[:, 0] / guess.left.sum(dim=1).clamp(min=1)
        lost += torch.where(guess.asked, -share.log(), 0)
    return lost / asked.sum(dim=1)


def _follower_losses(
    fit: Int[Tensor, "fitted pos"],
    answers: Bool[Tensor, "fitted pos"],
    tokens: Int[Tensor, "scored pos"],
    asked: Bool[Tensor, "scored pos"],
    d_vocab: int,
) -> Float[Tensor, " wanted"]:
    """The loss on each answer, by what else was answered behind the token before it."""
    seen, wanted = fit[answers], tokens[asked]
    behind, before = token_before(fit)[answers], token_before(tokens)[asked]
    lost = torch.zeros(len(wanted))
    for token in before.unique():
        there, known = before == token, seen[behind == token]
        # Behind a token that was never seen before an answer, one is guessed as anywhere.
        lost[there] = _guesses(known if len(known) else seen, wanted[there], d_vocab)
    return lost


def token_before(tokens: Int[Tensor, "sequence pos"]) -> Int[Tensor, "sequence pos"]:
    """The token before each; -1 before the first.

    Args:
        tokens: `[sequence pos]`.

    Returns:
        `[sequence pos]`.
    """
    return F.pad(tokens[:, :-1], (1, 0), value=-1)


def _guesses(
    fit: Int[Tensor, " seen"], tokens: Int[Tensor, " wanted"], d_vocab: int
) -> Float[Tensor, " wanted"]:
    """The loss on each token, by the frequencies of others."""
    # As sequences of which the first token does not count.
    seen, wanted = F.pad(fit[None], (1, 0)), F.pad(tokens[:, None], (1, 0))
    return unigram_losses(seen, wanted, d_vocab)
