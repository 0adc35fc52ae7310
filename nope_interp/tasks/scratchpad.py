"""Scratchpads: the steps to an answer, written down before it (Kazemnejad et al. 2023).

A step has up to five parts, each of which can be left out: what it takes from the prompt, the
computation, its output, the variables that go on to the next step, and what remains of the prompt.
The template is the minimal one of the paper's public configuration: the parts are marked `in`,
`comp`, `out`, `[ ]` and `re`, steps are parted by `#`. The wording around the steps and inside
them is only partly known from the paper; here every word, digit and sign is a token of its own.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import ClassVar

from einops import rearrange
from jaxtyping import Bool
from torch import Tensor

from nope_interp.errors import UserError, unknown_name
from nope_interp.tasks.answers import AnswerTask, WhenMoved
from nope_interp.tasks.token_grid import GAP, Words

_OPENING = "Thinking step by step:"
_CLOSING = ". Thus,"
# What stands before and behind each part.
_MARKS = {
    "input": ("in", ""),
    "computation": ("comp", ""),
    "output": ("out", ""),
    "variables": ("[", "]"),
    "remaining": ("re", ""),
}
SCRATCHPAD_PARTS = tuple(_MARKS)
_WORDS = f"{_OPENING} {_CLOSING} # in comp out [ ] re"


@dataclass(frozen=True)
class Step:
    """One step of all examples, each part as a row of words with gaps.

    Attributes:
        variables: None for a task without them.
        taken: which examples take this step; None where all do.
    """

    input: Words
    computation: Words
    output: Words
    remaining: Words
    variables: Words | None = None
    taken: Bool[Tensor, " example"] | None = None


class ScratchpadTask(AnswerTask):
    """A task whose answer can be led up to by steps.

    Args:
        scratchpad: the parts of a step to write down; None for the answer alone.

    The other arguments are `AnswerTask`'s.

    Raises UserError for no part at all, for an unknown one, and for one that the task lacks.

    Attributes:
        parts: the parts that this task's steps have.
        step_words: the words that only steps have, separated by spaces.
    """

    training_lengths: Sequence[int] = range(2, 9)
    test_lengths: Sequence[int] = range(9, 17)
    parts: ClassVar[tuple[str, ...]] = SCRATCHPAD_PARTS
    step_words: ClassVar[str] = ""

    def __init__(
        self,
        name: str | None = None,
        *,
        scratchpad: AbstractSet[str] | None = None,
        **lengths: Sequence[int] | None,
    ) -> None:
        self.scratchpad = None if scratchpad is None else frozenset(scratchpad)
        super().__init__(name, **lengths)
        if self.scratchpad is not None:
            self._check_scratchpad(self.scratchpad)

    @property
    def when_moved(self) -> WhenMoved | None:
        # Steps take the symbols in their order.
        return self.moved if self.scratchpad is None else None

    def vocabulary(self) -> tuple[str, ...]:
        """The task's words and, with a scratchpad, those of its steps."""
        if self.scratchpad is None:
            return super().vocabulary()
        words = (*super().vocabulary(), *_WORDS.split(), *self.step_words.split())
        return tuple(dict.fromkeys(words))

    def with_steps(self, steps: Iterable[Step], answer: Words) -> Words:
        """The steps, of which every example takes the first, and then the answer.

        Args:
            steps: in their order; not asked for where there is no scratchpad.
            answer: `[example pos]`, with gaps.

        Returns:
            `[example pos]`, with gaps.
        """
        if self.scratchpad is None:
            return answer
        rows = []
        for index, step in enumerate(steps):
            row = self.row("#" if index else "", *self._written(step))
            if step.taken is not None:
                row = row.masked_fill(~rearrange(step.taken, "example -> example 1"), GAP)
            rows.append(row)
        return self.row(_OPENING, *rows, _CLOSING, answer)

    def _written(self, step: Step) -> list[str | Tensor]:
        written: list[str | Tensor] = []
        for part in self.parts:
            if self.scratchpad is not None and part in self.scratchpad:
                before, behind = _MARKS[part]
                written += [before, getattr(step, part), behind]
        return written

    def _check_scratchpad(self, scratchpad: AbstractSet[str]) -> None:
        if not scratchpad:
            raise UserError(
                f"a scratchpad without parts is empty: choose from {', '.join(self.parts)}."
            )
        for part in sorted(scratchpad - set(self.parts)):
            if part in SCRATCHPAD_PARTS:
                raise UserError(f"the steps of {self.name} have no {part}: leave this part out.")
            raise unknown_name("part of a scratchpad", part, self.parts)


def without_steps(answer: str) -> str:
    """The answer that follows the scratchpad in a text, which is the whole text where none is."""
    return answer.rpartition(_CLOSING)[2].strip()
