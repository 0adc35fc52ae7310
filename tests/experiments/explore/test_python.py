"""The lines of Python print the numbers that the page shows: they are run."""

import contextlib
import io
import re
from typing import Any

import pytest
import torch

from experiments.explore.moving import move
from experiments.explore.patching import patch
from experiments.explore.playground import Playground
from experiments.explore.python import code
from experiments.explore.reading import read
from nope_interp.errors import UserError
from tests.experiments.explore.states import OTHER, changing, head_change, state

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
    check_reading(printed(llama, state()), read(llama, state()).before)


def printed(playground: Playground, asked: Any) -> list[torch.Tensor]:
    """What the lines print, as tensors."""
    lines = code(playground, asked).code
    said = io.StringIO()
    # Whole numbers and whole tensors, whatever was set before.
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        torch.set_printoptions(precision=8, threshold=10_000, sci_mode=False)
        try:
            exec(compile(lines, "<shown>", "exec"), {})
        finally:
            torch.set_printoptions(profile="default")
    text = said.getvalue().replace("\n", " ")
    found = re.findall(r"tensor\((\[.*?\])\)", text)
    return [torch.tensor(eval(numbers)) for numbers in found]


def check_reading(numbers: list[torch.Tensor], shown: Any) -> None:
    surprisal, probabilities, ids = numbers
    assert shown.surprisal[1:] == pytest.approx(surprisal.tolist(), abs=1e-4)
    assert [one.id for one in shown.predictions] == ids.tolist()
    told = [one.probability for one in shown.predictions]
    assert told == pytest.approx(probabilities.tolist(), abs=1e-5)


@pytest.mark.parametrize("positions", [None, "rotary:keep_highest=0.5"])
def test_before_and_after_a_change(llama: Playground, positions: str | None) -> None:
    asked = changing(*HEADS, positions=positions, layers=[1] if positions else None)
    found, numbers = read(llama, asked), printed(llama, asked)
    assert len(numbers) == 6
    check_reading(numbers[:3], found.before)
    check_reading(numbers[3:], found.after)


def test_the_embedded_model_is_loaded_by_no_name(embedded: Playground) -> None:
    asked = changing(*HEADS)
    assert "ni.load()" in code(embedded, asked).code
    found, numbers = read(embedded, asked), printed(embedded, asked)
    check_reading(numbers[3:], found.after)


def test_a_moved_position(llama: Playground) -> None:
    moves = {"12": 20, "30": 5}
    asked = state(move={"code": "t", "layer": 0, "site": "resid_mid", "moves": moves})
    numbers, shown = printed(llama, asked), move(llama, asked)
    _, probabilities, ids = numbers[3:]
    told = {one.id: one.after for one in shown.predictions}
    for id, probability in zip(ids.tolist(), probabilities.tolist(), strict=True):
        assert told[id] == pytest.approx(probability, abs=1e-5)


@pytest.mark.parametrize("at", ["resid_pre", "head_out", "pattern"])
def test_what_patching_recovers(llama: Playground, at: str) -> None:
    asked = state(other_prompt=OTHER, patch={"at": at})
    *_, shown = patch(llama, asked, contextlib.nullcontext)
    recovered = torch.tensor(shown.recovered)  # type: ignore[union-attr]
    torch.testing.assert_close(printed(llama, asked)[3], recovered, rtol=1e-3, atol=2e-4)


def test_hostile_prompts_stay_text(embedded: Playground) -> None:
    hostile = "'); __import__('os').abort() #\n\"\"\"\\"
    asked = state(hostile)
    check_reading(printed(embedded, asked), read(embedded, asked).before)


def test_what_is_not_shown_has_no_lines(embedded: Playground) -> None:
    plain = code(embedded, state()).code
    assert "ablate" not in plain
    assert "patching" not in plain
    with pytest.raises(UserError, match="has 201 tokens"):
        code(embedded, state("x" * 200))
