"""The table of tasks in `docs/tasks.md`, made of examples that the tasks draw.

python -m tests.task_table     writes it there
"""

from collections.abc import Iterator, Sequence

from torch import Generator

from nope_interp.tasks.answers import AnswerTask, WhenMoved
from nope_interp.tasks.names import ANSWER_TASK_NAMES
from nope_interp.tasks.registry import make_answer_task
from tests.doc_tables import in_markdown, page_with
from tests.paths import ROOT

PAGE = ROOT / "docs" / "tasks.md"

_HEADER = ["task", "a prompt", "its answer", "trained on", "tested on", "if symbols moved"]
_MOVED: dict[WhenMoved | None, str] = {
    "symbol": "another symbol",
    "place": "another place",
    "same": "the same answer",
    None: "–",
}
# What would end a cell, or the code in it.
_ENDS = ("|", "`")
# Shown is the longest example of at most this length that is no wider, in characters.
_SHOWN, _WIDEST = 4, 60


def page() -> str:
    """The page with its table: one row for each task."""
    return page_with(PAGE, "tasks", "tests.task_table", in_markdown(_HEADER, _rows()))


def _rows() -> Iterator[Sequence[str]]:
    for name in ANSWER_TASK_NAMES:
        task = make_answer_task(name)
        lengths = (_ends(task.training_lengths), _ends(task.test_lengths))
        yield f"`{name}`", *_example(task), *lengths, _MOVED[task.when_moved]


def _ends(lengths: Sequence[int]) -> str:
    shortest, longest = min(lengths), max(lengths)
    return f"{shortest}" if shortest == longest else f"{shortest} to {longest}"


def _example(task: AnswerTask) -> Sequence[str]:
    lengths = sorted((n for n in task.training_lengths if n <= _SHOWN), reverse=True)
    fitting = (pair for n in lengths for pair in _drawn(task, n) if _fits(*pair))
    return [f"`{part}`" for part in next(fitting)]


def _drawn(task: AnswerTask, length: int) -> list[tuple[str, str]]:
    return task.text(task.examples(16, length, Generator().manual_seed(0), split="train"))


def _fits(*parts: str) -> bool:
    return all(len(part) <= _WIDEST and not any(end in part for end in _ENDS) for part in parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
