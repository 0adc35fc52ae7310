"""Examples of the longest trained length beside longer ones, and which positions match.

A position is matched with one of its own kind: a symbol of the question with one of the question's,
a symbol of the answer with one of the answer's, and a token of the frame with the same token. The
n-th of a kind is matched with the n-th of the trained ones, and those behind the last one with the
last (`CLAMPED`); or the first and the last ones with one another, those between with the middle one
(`REPEATED`); or the places of all are drawn together until they fit (`INTERPOLATED`). A control
does the latter the other way round (`REVERSED`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from experiments.codes.ranks import FEWEST_SEQUENCES
from experiments.codes.task import FEWEST_EXAMPLES
from experiments.results.rescue import CLAMPED, INTERPOLATED, REPEATED, REVERSED
from experiments.variants.config import ProbingConfig
from nope_interp.errors import UserError, shown
from nope_interp.fields import is_whole
from nope_interp.tasks.answers import AnswerTask
from nope_interp.tasks.dataset import dataset
from nope_interp.tasks.examples import Examples

Positions = Int[Tensor, " chosen"]
Places = Float[Tensor, " chosen"]

# From the place among n of a longer example, the place among k of the trained one.
PLACES: dict[str, Callable[[Places, int, int], Places]] = {
    CLAMPED: lambda place, n, k: place.clamp(max=k - 1),
    # Of those before the middle the first, of those after it the last.
    REPEATED: lambda place, n, k: torch.where(
        place < (k + 1) // 2, place, (place - (n - k)).clamp(min=k // 2)
    ),
    # Multiplied first: the last place is then exactly k - 1, in single precision too.
    INTERPOLATED: lambda place, n, k: place * (k - 1) / max(n - 1, 1),
    REVERSED: lambda place, n, k: (k - 1) - place * (k - 1) / max(n - 1, 1),
}


@dataclass(frozen=True)
class Kind:
    """The positions that stand for the same in trained and in longer examples."""

    trained: Int[Tensor, " trained"]
    longer: Int[Tensor, " longer"]

    def sources(self, how: str) -> Float[Tensor, " both"]:
        """For all of them, trained ones first, the one (as an index into them) whose code each
        gets."""
        k, n = len(self.trained), len(self.longer)
        places = PLACES[how](torch.arange(n).float(), n, k)
        return torch.cat([torch.arange(k).float(), places])


@dataclass(frozen=True)
class BothLengths:
    """Those of the longest trained length beside longer ones.

    Attributes:
        fit: what codes are fitted on, as many of each: trained ones first, padded at their end.
        scored: held-out ones of the trained length, and longer ones.
        lengths: how many tokens the trained ones have, and the longer ones.
    """

    fit: Int[Tensor, "both pos"]
    scored: tuple[Examples, Examples]
    lengths: tuple[int, int]

    @property
    def kinds(self) -> list[Kind]:
        """But for those whose positions are the same: what precedes them is the same, too."""
        prompts = (int(some.prompt_length[0]) for some in self.scored)
        halves = zip(self.fit.chunk(2), self.lengths, prompts, strict=True)
        trained, longer = (_by_kind(tokens[:, :n], prompt) for tokens, n, prompt in halves)
        if unknown := longer.keys() - trained.keys():
            raise UserError(
                f"{len(unknown)} tokens stand in all of the longer examples and in none of the "
                "trained length: give a length whose examples have the same frame."
            )
        found = [Kind(trained[kind], at) for kind, at in longer.items()]
        return [one for one in found if not torch.equal(one.trained, one.longer)]

    @property
    def numbers(self) -> Positions:
        """Which position each is, of trained examples and then of longer ones."""
        return torch.cat([torch.arange(n) for n in self.lengths])


def both_lengths(task: AnswerTask, length: int, config: ProbingConfig, context: int) -> BothLengths:
    """Examples of the longest trained length, and of a greater one.

    Args:
        task: with the lengths that it was trained on.
        length: the greater one.
        config: how many examples to draw, and the seed; where a task has few, fewer are different.
        context: tokens that the model has room for.

    Returns:
        The examples; none is both fitted on and scored.

    Raises:
        UserError: for a length that was trained on or does not fit, too few examples, and such as
            differ in their number of tokens.
    """
    trained, seed = max(task.training_lengths), config.seed
    if not is_whole(length):
        raise UserError(f"length is {shown(length)}: give a whole number above {trained}.")
    if length <= trained:
        raise UserError(
            f"length {length} is not beyond the training lengths of {task.name}: give one above "
            f"{trained}."
        )
    if (needed := task.n_tokens(length)) > context:
        raise UserError(
            f"examples of {task.name} with length {length} have up to {needed} tokens, and the "
            f"model's context has {context}: give a shorter one, or train with "
            f"--seq-len {needed}."
        )
    asked = config.n_fit + config.n_held_out
    # Where a task has few examples, none is fitted on and scored.
    every = dataset(task, asked, split="test", seed=seed, lengths=[length])[length].different
    n_fit = max(1, len(every) * config.n_fit // asked)
    longer = every[n_fit:]
    _check_enough(task, longer, length, FEWEST_SEQUENCES)
    seen = dataset(task, n_fit, split="train", seed=seed, lengths=[trained])[trained].different
    n_fit = min(n_fit, len(seen))
    held_out = dataset(task, len(longer), split="validation", seed=seed, lengths=[trained])[trained]
    held_out = held_out.different
    _check_enough(task, held_out, trained, FEWEST_EXAMPLES)
    for some, of in ((seen, trained), (held_out, trained), (every, length)):
        if len(some.length.unique()) > 1 or len(some.prompt_length.unique()) > 1:
            raise UserError(
                f"examples of {task.name} with length {of} differ in their number of tokens, so "
                "their positions cannot be matched: give a model of another task."
            )
    padding = every.tokens.new_zeros(n_fit, int(every.length[0] - seen.length[0]))
    fit = torch.cat([torch.cat([seen.tokens, padding], dim=1), every.tokens[:n_fit]])
    return BothLengths(fit, (held_out, longer), (int(seen.length[0]), int(every.length[0])))


def _check_enough(task: AnswerTask, some: Examples, length: int, least: int) -> None:
    if len(some) < least:
        raise UserError(
            f"{len(some)} different examples of {task.name} with length {length} are too few to "
            f"score: give {least} at least, better some hundreds."
        )


def _by_kind(
    tokens: Int[Tensor, "example pos"], prompt_length: int
) -> dict[tuple[bool, int], Positions]:
    """Positions of the prompt and of the answer, by the token that all have there, or -1."""
    same = (tokens == tokens[0]).all(dim=0)
    kinds = torch.where(same, tokens[0], -1).tolist()
    found: dict[tuple[bool, int], list[int]] = {}
    for position, kind in enumerate(kinds):
        found.setdefault((position < prompt_length, kind), []).append(position)
    return {kind: torch.tensor(at) for kind, at in found.items()}
