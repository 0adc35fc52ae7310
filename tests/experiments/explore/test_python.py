"""The lines of Python print the numbers that the page shows: they are run."""

import contextlib
import io
from typing import Any

import pytest
import torch

from experiments.explore.moving import move
from experiments.explore.patching import patch
from experiments.explore.playground import Playground
from experiments.explore.python import code
from experiments.explore.reading import read
from experiments.prompt import PromptReading
from nope_interp.errors import UserError
from tests.experiments.explore.states import OTHER, changing, head_change, state

MOST_LINES = 10
pytestmark = pytest.mark.usefixtures("one_thread")
HEADS = [
    head_change(0, 1, "uniform"),
    head_change(0, 2, "previous_token"),
    head_change(1, 0, "ablated"),
    head_change(1, 3, "other_prompt"),
]


@pytest.fixture(autouse=True)
def _loaded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny Llama is loaded for real once: that takes longer than all the rest."""
    if "whole" not in request.node.name and "llama" in request.fixturenames:
        loaded = request.getfixturevalue("llama").loaded
        monkeypatch.setattr("experiments.loaded.load", lambda name: loaded)


def test_whole_lines_load_the_model_by_its_path(llama: Playground) -> None:
    (read_again,) = printed(llama, state())
    check_reading(read_again, read(llama, state()).before)


def printed(playground: Playground, asked: Any) -> list[Any]:
    """What the lines print."""
    lines, shown = code(playground, asked).code, list[Any]()
    assert len([line for line in lines.splitlines() if line]) <= MOST_LINES
    with contextlib.redirect_stderr(io.StringIO()):
        exec(compile(lines, "<shown>", "exec"), {"print": shown.append})
    return shown


def check_reading(found: PromptReading, shown: Any) -> None:
    assert shown.surprisal[1:] == pytest.approx(found.surprisal["surprisal"].tolist(), abs=1e-4)
    told, likeliest = found.next_tokens.to_dict("list"), shown.predictions
    assert [one.id for one in likeliest] == told["id"]
    assert [one.token for one in likeliest] == told["token"]
    assert [one.probability for one in likeliest] == pytest.approx(told["probability"], abs=1e-5)


@pytest.mark.parametrize("positions", [None, "rotary:keep_highest=0.5"])
def test_before_and_after_a_change(llama: Playground, positions: str | None) -> None:
    asked = changing(*HEADS, positions=positions, layers=[1] if positions else None)
    found, (before, after) = read(llama, asked), printed(llama, asked)
    check_reading(before, found.before)
    check_reading(after, found.after)


def test_the_embedded_model_is_loaded_by_no_name(embedded: Playground) -> None:
    asked = changing(*HEADS)
    assert "ni.load()" in code(embedded, asked).code
    found, (_, after) = read(embedded, asked), printed(embedded, asked)
    check_reading(after, found.after)


def test_a_moved_position(llama: Playground) -> None:
    moves = {"12": 20, "30": 5}
    asked = state(move={"code": "t", "layer": 0, "site": "resid_mid", "moves": moves})
    (_, after), shown = printed(llama, asked), move(llama, asked)
    told = {one.id: one.after for one in shown.predictions}
    for one in after.next_tokens.itertuples():
        assert told[one.id] == pytest.approx(one.probability, abs=1e-5)


@pytest.mark.parametrize("at", ["resid_pre", "head_out", "pattern"])
def test_what_patching_recovers(llama: Playground, at: str) -> None:
    asked = state(other_prompt=OTHER, patch={"at": at})
    *_, shown = patch(llama, asked, contextlib.nullcontext)
    recovered = torch.tensor(shown.recovered)  # type: ignore[union-attr]
    found = printed(llama, asked)[1]
    found_again = torch.tensor(found.recovered.to_numpy())
    torch.testing.assert_close(found_again, recovered, rtol=1e-3, atol=2e-4)
    assert (found.answer, found.other) == (shown.answer, shown.other)  # type: ignore[union-attr]


def test_all_at_once_are_still_ten_lines(llama: Playground) -> None:
    """A change that lends another prompt's pattern, a move and a patch."""
    moving = {"code": "t", "layer": 0, "site": "resid_mid", "moves": {"12": 20}}
    asked = changing(*HEADS, positions="rotary:none", layers=[1]).model_copy(
        update={"move": state(move=moving).move, "patch": state(patch={"at": "head_out"}).patch}
    )
    read_again, after, moved, recovered = printed(llama, asked)
    found = read(llama, asked)
    check_reading(read_again, found.before)
    check_reading(after, found.after)
    assert not moved.next_tokens.equals(read_again.next_tokens)
    assert recovered.recovered.shape == (2, 4)


def test_hostile_prompts_stay_text(embedded: Playground) -> None:
    hostile = "'); __import__('os').abort() #\n\"\"\"\\"
    asked = state(hostile)
    check_reading(printed(embedded, asked)[0], read(embedded, asked).before)


def test_what_is_not_shown_has_no_lines(embedded: Playground) -> None:
    plain = code(embedded, state()).code
    assert "ablate" not in plain
    assert "patch" not in plain
    with pytest.raises(UserError, match="has 201 tokens"):
        code(embedded, state("x" * 200))
