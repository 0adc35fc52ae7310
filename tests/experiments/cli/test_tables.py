"""What stands in a terminal, whatever its width: whole numbers and words, in at most 15 lines."""

from dataclasses import replace
from io import StringIO

import pandas as pd
import pytest
from rich.console import Console

from experiments.cli.tables import of_answer, of_atlas
from experiments.results.answer import Answer, CodeAnswer, Reading
from experiments.results.position_use import Word
from probes.code_names import JUDGED, SIMILARITY

MOST_LINES = 15


def answer() -> Answer:
    """The longest words and numbers that there are."""
    after = Reading("trained", "unreadable", (-0.12, -0.2, 0.1), "the output of layer 1")
    before = Reading("random-init", "unreadable", (1.0, 1.0, 1.0), "the output of layer 0")
    share = (-0.11, -0.22, -0.05)
    return Answer(
        tuple(
            CodeAnswer(code, Word.UNDECIDED, share, before, after, restored=share)
            for code in (*JUDGED, SIMILARITY)
        ),
        "text",
        share_of="moved: predictions follow",
        restored_of="put back: predictions return",
    )


def printed(width: int, shown: Answer) -> list[str]:
    out = StringIO()
    Console(width=width, file=out).print(of_answer(shown, width))
    return out.getvalue().rstrip("\n").split("\n")


@pytest.mark.parametrize("width", [60, 70, 80, 85, 86, 100, 160])
def test_the_answer_fits_into_a_terminal_of_any_width(width: int) -> None:
    lines = printed(width, answer())
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    for code in answer().codes:
        (line,) = [line for line in lines if code.code in line]
        assert "undecided" in line
        shares = line.count("−11% [−22, −5]")
        assert shares == (2 if width >= 86 else 1), line
        assert line.count("unreadable") == (2 if width >= 86 else 1)
    told = any("More columns on the page" in line for line in lines)
    assert told == (width < 86)


@pytest.mark.parametrize("width", range(68, 130, 3))
def test_headers_of_columns_without_numbers_stay_words(width: int) -> None:
    """As of a model that has not learned order: no code has a share."""
    blank = [
        replace(code, word=Word.NO_ORDER, share=None, restored=None) for code in answer().codes
    ]
    lines = printed(width, replace(answer(), codes=tuple(blank)))
    assert max(map(len, lines)) <= width
    assert len(lines) <= MOST_LINES
    words = " ".join(lines).split()
    assert {"moved:", "predictions", "follow", "used?"} <= {*words}
    assert not any("…" in line for line in lines)


def test_models_that_do_not_fit_are_counted() -> None:
    models = pd.DataFrame({"model": [f"model-{n}" for n in range(15)], "heads": 16})
    out = StringIO()
    Console(width=80, file=out).print(of_atlas(models))
    lines = [line.strip() for line in out.getvalue().split("\n") if line.strip()]
    shown = sum(line.startswith("model-") for line in lines)
    assert lines[-1] == f"and {15 - shown} more"
    assert len(lines) <= MOST_LINES


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_long_name_takes_no_numbers_place(width: int) -> None:
    name = "a-model-whose-name-goes-on-and-on." * 4
    often = "30 first-token, 20 local"
    models = pd.DataFrame({"model": [name], "heads": 1234, "labelled": 567, "most often": often})
    out = StringIO()
    Console(width=width, file=out).print(of_atlas(models))
    text = out.getvalue()
    assert "…" not in text
    assert {"1234", "567", "first-token,"} <= {*text.split()}
    assert max(map(len, text.split("\n"))) <= width
