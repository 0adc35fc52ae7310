"""What a move needs is fitted by steps, and then kept: held against what moving fits itself."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from torch import Tensor

from experiments.explore.answers import FitAnswer, Progress
from experiments.explore.fitting import fit
from experiments.explore.moving import move
from experiments.explore.playground import Playground
from experiments.explore.text import fitted_on
from nope_interp.errors import UserError
from tests.experiments.explore.states import state

pytestmark = pytest.mark.usefixtures("one_thread")
MOVE = {"code": "mean residual", "layer": 0, "site": "resid_post", "moves": {"12": 20}}


class Turns:
    """Counts how often the model was free in between."""

    def __init__(self) -> None:
        self.taken = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.taken += 1
        yield


@pytest.fixture
def sequences(llama: Playground, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many sequences each pass reads, of a model of which nothing is fitted yet."""
    monkeypatch.setattr(llama, "made", {})
    found: list[int] = []

    def count(module: object, args: tuple[Tensor, ...]) -> None:
        found.append(len(args[0]))

    handle = llama.model.blocks[0].register_forward_pre_hook(count)
    yield found
    handle.remove()


def test_a_move_needs_what_was_fitted_and_no_more(llama: Playground, sequences: list[int]) -> None:
    turns, asked = Turns(), state(move=MOVE)
    *steps, last = fit(llama, asked, turns)
    assert last == FitAnswer(fitted=True)
    n, held_out = (fitted_on(llama, 39, split)["n"] for split in ("fit", "held_out"))  # type: ignore[arg-type]
    assert sum(sequences) == n + held_out + n  # probes, and the code
    assert turns.taken == len(steps) + 1
    told = [(step.done, step.total) for step in steps if isinstance(step, Progress)]
    assert told[0] == (0, n + held_out)
    assert told[-1][1] == n
    assert len(told) == len(steps) == len(sequences)
    sequences.clear()
    assert [*fit(llama, asked, turns)] == [last]
    assert sequences == []
    stepwise = move(llama, asked)
    assert max(sequences) < 8  # copies of the prompt
    sequences.clear()
    llama.made.clear()
    assert move(llama, asked) == stepwise
    assert sum(sequences) > n


def test_without_a_move_the_probes_are_fitted_for_the_next_one(
    llama: Playground, sequences: list[int]
) -> None:
    turns = Turns()
    *steps, _ = fit(llama, state(), turns)
    sequences.clear()
    *code, _ = fit(llama, state(move=MOVE), turns)
    assert 0 < len(code) < len(steps)
    assert sum(sequences) == fitted_on(llama, 39)["n"]


@pytest.mark.parametrize(
    ("part", "told"),
    [({"layer": 4}, "the model has no layer 4"), ({"site": "resid"}, "unknown site 'resid'")],
)
def test_what_cannot_be_fitted_is_one_sentence(
    embedded: Playground, part: dict[str, object], told: str
) -> None:
    with pytest.raises(UserError, match=told):
        list(fit(embedded, state(move=MOVE | part), Turns()))
