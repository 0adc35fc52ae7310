"""The map in CONTRIBUTING answers at least twenty questions with files that exist."""

import re
from pathlib import Path

import pytest

from tests.paths import ROOT

QUESTIONS = re.findall(
    r"^\| (.+\?) \| (.+) \|$", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.M
)


def test_the_map_answers_twenty_questions() -> None:
    assert len(dict(QUESTIONS)) >= 20


@pytest.mark.parametrize(("question", "answer"), QUESTIONS)
def test_every_answer_names_files_that_exist(question: str, answer: str) -> None:
    """A path is whole, or stands in the folder of the first; `<paper>` stands for any name."""
    names = [name.replace("<paper>", "*") for name in re.findall(r"`([^`]+)`", answer)]
    assert names, question
    first = names[0]
    folder = Path(first) if first.endswith("/") else Path(first).parent
    for name in names:
        found = any(ROOT.glob(name)) or any((ROOT / folder).glob(name))
        assert found, f"{question} {name} is not there"
