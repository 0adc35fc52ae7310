"""What would be answered at another position? On tasks whose answers are known, this is known, too.

Two sets of positions can be told to stand elsewhere, each by itself.

- The positions that ask, where an answer is read off symbol by symbol: each is told to be the next
  one, and so asks for the next symbol.
- The question: its symbols are told to stand each at the position of another, in a cycle, so that
  none is told twice. Reversal and copying then answer with the next symbol, indexing with the next
  place, and tasks that no order matters to as before.

No position of the task's frame is moved or moved to: all examples have the same token there, and
the mean residual tells that token as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from experiments.codes.guessers import question_of
from experiments.codes.order import answers_of
from experiments.codes.task import InterventionTask
from experiments.results.interchange import ASKING, QUESTION
from nope_interp.errors import UserError
from nope_interp.fields import is_whole
from nope_interp.models.marked import before

Asked = Bool[Tensor, "sequence pos"]
TokenIds = Int[Tensor, "sequence pos"]
# Numbers of positions, or indices into these.
Chosen = Int[Tensor, " moved"]

# Two positions tell of no cycle but the one that exchanges them.
_FEWEST = 3


@dataclass(frozen=True)
class Counterfactual:
    """Positions that are told to stand elsewhere, and what is answered where a model follows.

    Attributes:
        moved: which positions these are, in words.
        among: `[moved]`, the positions moved and moved to, counted from 0, in order.
        sources: `[moved]`, for each of `among` the one (as an index into them) whose code it gets.
        origins: `[moved]`, for each of `among` the one whose token stands there where order is
            destroyed.
        own: `[sequence pos]`, the token that is answered at each position.
        other: the same, where the model follows. Where it is `own` everywhere, answers are to stay,
            and what is counted is how many change.
        counted: `[sequence pos]`, the positions whose answers say whether a model follows.
        asked: `[sequence pos]`, the positions that can be right only by the order of `among`.
    """

    moved: str
    among: Chosen
    sources: Chosen
    origins: Chosen
    own: TokenIds
    other: TokenIds
    counted: Asked
    asked: Asked

    @property
    def to_stay(self) -> bool:
        """Whether answers are to stay as they are."""
        return torch.equal(self.own, self.other)

    def destroyed(self, tokens: Int[Tensor, "example pos"]) -> Int[Tensor, "example pos"]:
        """The tokens with their order destroyed."""
        found = tokens.clone()
        found[:, self.among] = tokens[:, self.among[self.origins]]
        return found


def counterfactuals(task: InterventionTask, by: int = 1) -> list[Counterfactual]:
    """What can be moved in a task's examples, and what is answered then.

    Args:
        task: one with answers, of a model of ours.
        by: how many symbols on in the answer, or how many places on, is what is answered then.

    Returns:
        One for each set of positions that can be moved.

    Raises:
        UserError: for a task whose answers elsewhere are not known, and for examples too short.
    """
    answers_of(task)  # refuses others
    if not is_whole(by, 1):
        raise UserError(f"by is {by}: give how many positions to move by, at least 1.")
    makers = {"symbol": _of_symbols, "place": _of_places, "same": _of_none}
    when_moved = None if task.source is None else task.source.when_moved
    if when_moved is None:
        name = "this task" if task.source is None else f"the task {task.source.name!r}"
        raise UserError(
            f"what {name} would answer at another position is not known: give a model of reversal, "
            "copy-cmc, reverse-mc, indexing, ordering, sort-single or parity."
        )
    found = [one for one in makers[when_moved](task, by) if one.counted.any()]
    if any(not torch.isin(one.among, task.numbers()).all() for one in found):
        raise UserError(
            "the examples that codes are fitted on are alike where those to answer differ: give "
            "more of them (--n-fit)."
        )
    if not found:
        raise UserError(
            f"no answer of these examples tells a position from the one {by} further on: give a "
            "task whose symbols differ, and longer examples."
        )
    return found


def _of_symbols(task: InterventionTask, by: int) -> Iterator[Counterfactual]:
    """The next symbol is answered where asking positions move, or where the question's do."""
    tokens, seed = task.split.held_out, task.seed
    asked = before(answers_of(task))
    own = tokens.roll(-1, dims=1)
    if len(among := asking_positions(task)) > by:
        last = len(among) - by
        sources = torch.arange(len(among))
        sources[:last] += by
        other = tokens.roll(-1 - by, dims=1)
        moved = torch.zeros_like(asked)
        moved[:, among[:last]] = True
        every = torch.zeros_like(asked)
        every[:, among] = True
        stay = torch.arange(len(among))
        yield Counterfactual(
            ASKING, among, sources, stay, own, other, moved & asked & (own != other), every & asked
        )
    among = question_of(tokens, answers_of(task)).nonzero()[:, 0]
    asking = asked.all(dim=0).nonzero()[:, 0]
    place = _read_off(tokens, among, asking)
    if place is None or len(among) <= max(by, _FEWEST - 1):
        return
    # In the order in which the first round of the answer reads the question's symbols.
    order = place[: len(among)]
    if not torch.equal(order.sort().values, torch.arange(len(among))):
        return
    # The symbol that is to be answered next is told to stand where the present one does.
    sources = torch.zeros_like(order).scatter_(0, order.roll(-by), order)
    follows = torch.zeros_like(sources).scatter_(0, sources, torch.arange(len(among)))
    other = own.clone()
    other[:, asking] = tokens[:, among[follows[place]]]
    read = torch.zeros_like(asked)
    read[:, asking] = True
    yield Counterfactual(
        QUESTION,
        among,
        sources,
        _derangement(len(among), seed),
        own,
        other,
        read & (own != other),
        read,
    )


def _of_places(task: InterventionTask, by: int) -> Iterator[Counterfactual]:
    """The next place is answered where the listed symbols move: indexing."""
    assert task.source is not None
    tokens, answer = task.split.held_out, answers_of(task)
    varied = question_of(tokens, answer).nonzero()[:, 0]
    # The symbol that is asked for stands last, behind the list.
    among, wanted = varied[:-1], varied[-1]
    n = len(among)
    if n <= max(by, _FEWEST - 1):
        return
    place = (tokens[:, among] == tokens[:, wanted, None]).int().argmax(dim=1)
    encode = task.source.tokenizer.encode
    # Of a place of several digits the first is judged.
    names = torch.tensor([encode(str(1 + number))[0] for number in range(n)])
    asking = int(answer.any(dim=0).int().argmax()) - 1
    own = tokens.roll(-1, dims=1)
    other = own.clone()
    other[:, asking] = names[(place + by) % n]
    asked = torch.zeros_like(answer)
    asked[:, asking] = True
    sources = (torch.arange(n) + by) % n
    origins = _derangement(n, task.seed)
    yield Counterfactual(
        QUESTION, among, sources, origins, own, other, asked & (own != other), asked
    )


def _of_none(task: InterventionTask, by: int) -> Iterator[Counterfactual]:
    """The same is answered, wherever the question's symbols are told to stand."""
    tokens, answer = task.split.held_out, answers_of(task)
    among = question_of(tokens, answer).nonzero()[:, 0]
    n = len(among)
    if n <= max(by, _FEWEST - 1):
        return
    own, asked = tokens.roll(-1, dims=1), before(answer)
    sources, origins = (torch.arange(n) + by) % n, _derangement(n, task.seed)
    yield Counterfactual(QUESTION, among, sources, origins, own, own, asked, asked)


def asking_positions(task: InterventionTask) -> Chosen:
    """The positions that ask for a symbol, all of them in one row and none in the frame.

    Args:
        task: one whose answer is read off symbol by symbol.

    Returns:
        Their numbers, counted from 0, in order.

    Raises:
        UserError: for a task without answers.
    """
    always = answers_of(task).all(dim=0)
    varied = torch.zeros_like(always)
    varied[task.positions] = True
    # Position t asks for the token at t + 1.
    asks = varied[:-1] & always[1:]
    among = asks.nonzero()[:, 0]
    # Of several rounds of an answer, the first.
    breaks = (among.diff() > 1).nonzero()[:, 0]
    return among[: int(breaks[0]) + 1] if len(breaks) else among


def _read_off(
    tokens: TokenIds, among: Chosen, asking: Int[Tensor, " asked"]
) -> Int[Tensor, " asked"] | None:
    """Which of the question's symbols each position asks for; None where any asks for none, or
    where examples do not tell."""
    same = (tokens[:, asking + 1, None] == tokens[:, None, among]).all(dim=0)
    return same.int().argmax(dim=1) if (same.sum(dim=1) == 1).all() else None


def _derangement(n: int, seed: int) -> Chosen:
    """A random order in which nothing stands where it stood."""
    generator = torch.Generator().manual_seed(seed)
    stay = torch.arange(n)
    while ((order := torch.randperm(n, generator=generator)) == stay).any():
        pass
    return order
