"""Sorting a list (Kazemnejad et al. 2023, arXiv 2305.19466)."""

import string
from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from nope_interp.tasks.answers import Problem, WhenMoved
from nope_interp.tasks.scratchpad import ScratchpadTask, Step
from nope_interp.tasks.token_grid import Words, number

# Their rank is their position here.
_SYMBOLS = (*string.digits, *string.ascii_letters)[:50]


class SortTask(ScratchpadTask):
    """ "Sort the following list [ k , 7 , d ] ." and "The sorted list is [ 7 , d , k ] .".

    `sort-single` sorts fifty symbols of one token each by a rank that is to be learnt; `sort-multi`
    integers from 10 to 9999, in digits. `length` is the number of items, which may be equal.
    """

    variants = ("sort-single", "sort-multi")
    symbols = _SYMBOLS
    frame = "Sort the following list [ , ] . The sorted list is [ , ] ."
    parts = ("input", "computation", "output", "remaining")
    step_words = "The minimum of the unsorted portion"

    @property
    def when_moved(self) -> WhenMoved | None:
        # Digits are tokens: to move these is not to move numbers.
        return "same" if self.name == "sort-single" and self.scratchpad is None else None

    def problem(self, n: int, length: int, generator: Generator) -> Problem:
        low, high = (0, len(_SYMBOLS)) if self.name == "sort-single" else (10, 10_000)
        items = torch.randint(low, high, (n, length), generator=generator)
        prompt = self.row("Sort the following list [", self._listed(items), "] .")
        answer = self.row("The sorted list is [", self._listed(items.sort(1).values), "] .")
        return prompt, self.with_steps(self._steps(items), answer)

    def _steps(self, items: Int[Tensor, "example item"]) -> Iterator[Step]:
        """Selection sort: the smallest item that is left is swapped with the first one."""
        items = items.clone()
        for index in range(items.shape[1]):
            first = items[:, [index]]
            smallest, where = items[:, index:].min(1, keepdim=True)
            items.scatter_(1, where + index, first)
            items[:, [index]] = smallest
            rest = self._listed(items[:, index + 1 :])
            yield Step(
                input=self._listed(first),
                # The same words for all: a row of none of their own says how many there are.
                computation=self.row("The minimum of the unsorted portion", rest[:, :0]),
                output=self._listed(smallest),
                remaining=self.row("[", rest, "]"),
            )

    def _listed(self, items: Int[Tensor, "example item"]) -> Words:
        """The items with a comma between each two."""
        return self.listed(items if self.name == "sort-single" else number(items, 4), ",")


TASKS = (SortTask,)
