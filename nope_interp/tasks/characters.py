"""Tasks of single characters: addition, indexing, ordering and reversal (Zuo et al. 2025).

The paper (arXiv 2501.00073) names these tasks, but its formats could not be checked: those here are
a reading of its sources, one example a line, `question=answer`.
"""

import string

import torch
from einops import rearrange
from jaxtyping import Int
from torch import Generator, Tensor

from nope_interp.tasks.answers import AnswerTask, Problem
from nope_interp.tasks.arithmetic import column_addition, random_digits
from nope_interp.tasks.token_grid import number, stripped

_N_LETTERS = len(string.ascii_lowercase)


class ReversalTask(AnswerTask):
    """`abc=cba`: read letters, then say them backwards. `length` is the number of letters.

    Every answer is as long as its question, so it needs no end token, and examples of one length
    need no padding.
    """

    name = "reversal"
    symbols = (*string.ascii_lowercase, "=")
    joiner = ""
    marks = ("<begin>",)
    training_lengths = range(2, 64)
    test_lengths = range(64, 127)
    moved = "symbol"

    def problem(self, n: int, length: int, generator: Generator) -> Problem:
        letters = torch.randint(_N_LETTERS, (n, length), generator=generator)
        return self.row(letters, "="), letters.flip(1)


class CharacterAdditionTask(AnswerTask):
    """`517+308=825`: two numbers of `length` digits each, all such numbers equally likely.

    The default is the three digits of Lee et al. 2023 (arXiv 2307.03381), whose code the paper
    builds on.
    """

    name = "zuo-addition"
    symbols = tuple("0123456789+=")
    joiner = ""
    training_lengths = range(3, 4)
    test_lengths = range(4, 7)

    def problem(self, n: int, length: int, generator: Generator) -> Problem:
        counts = torch.full((n,), length)
        a, b = (random_digits(counts, length, generator) for _ in range(2))
        total, _ = column_addition(a, b)
        return self.row(a, "+", b, "="), stripped(total)


class IndexingTask(AnswerTask):
    """`hdkw,k=3`: distinct letters, one of them again, and its position among them, from 1."""

    name = "indexing"
    symbols = (*string.digits, *string.ascii_lowercase, ",", "=")
    joiner = ""
    training_lengths = range(2, 14)
    test_lengths = range(14, 27)
    possible_lengths = range(1, _N_LETTERS + 1)
    moved = "place"

    def problem(self, n: int, length: int, generator: Generator) -> Problem:
        # The ids of the letters follow those of the ten digits.
        letters = 10 + distinct_letters(n, length, generator)
        position = torch.randint(length, (n, 1), generator=generator)
        prompt = self.row(letters, ",", letters.gather(1, position), "=")
        return prompt, number(rearrange(position, "example 1 -> example") + 1, 2)


class OrderingTask(AnswerTask):
    """`hdkw=dhkw`: distinct letters, then the same ones in the order of the alphabet."""

    name = "ordering"
    symbols = (*string.ascii_lowercase, "=")
    joiner = ""
    training_lengths = range(2, 14)
    test_lengths = range(14, 27)
    possible_lengths = range(1, _N_LETTERS + 1)
    moved = "same"

    def problem(self, n: int, length: int, generator: Generator) -> Problem:
        letters = distinct_letters(n, length, generator)
        return self.row(letters, "="), letters.sort(1).values


def distinct_letters(n: int, length: int, generator: Generator) -> Int[Tensor, "example letter"]:
    """Random letters, a as 0, none of them twice in an example; 26 at most."""
    return torch.rand((n, _N_LETTERS), generator=generator).argsort(1)[:, :length]


TASKS = (CharacterAdditionTask, ReversalTask, IndexingTask, OrderingTask)
