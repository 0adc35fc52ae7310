"""Tasks by name."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from nope_interp.errors import UserError, unknown_name
from nope_interp.files import read_text
from nope_interp.tasks import arithmetic, characters, copying, lego, pcfg, scan, sorting
from nope_interp.tasks.answers import AnswerTask
from nope_interp.tasks.names import ANSWER_TASK_NAMES, TASK_NAMES
from nope_interp.tasks.scratchpad import ScratchpadTask
from nope_interp.tasks.text import TextTask

_MODULES = (copying, scan, pcfg, characters, arithmetic, sorting, lego)
_CLASSES: list[type[AnswerTask]] = [kind for module in _MODULES for kind in module.TASKS]
_CLASS_OF = {name: kind for kind in _CLASSES for name in kind.variants or (kind.name,)}


# What a model is trained on: batches to learn from, and a source for probes to read.
Task = AnswerTask | TextTask


def make_task(
    name: str,
    text: str | None = None,
    *,
    lengths: tuple[int, int] | None = None,
    scratchpad: Sequence[str] | None = None,
) -> Task:
    """The task of that name, as configs ask for it.

    Args:
        name: one of `TASK_NAMES`.
        text: a file that replaces the default text.
        lengths: the shortest and the longest to train on, in place of the paper's; tests are up to
            twice as long.
        scratchpad: the parts of a step that are written down, as in `make_answer_task`.

    Returns:
        The task.

    Raises:
        UserError: for an unknown name, and for a text, lengths or a scratchpad that the task does
            not have.
    """
    if name not in TASK_NAMES:
        raise unknown_name("task", name, TASK_NAMES)
    if name == "text":
        for what, given in (("lengths", lengths), ("scratchpad", scratchpad)):
            if given is not None:
                raise UserError(f"the task 'text' has no {what}: leave the {what} out.")
        return TextTask(None if text is None else read_text(text))
    if text is not None:
        raise UserError(f"the task {name!r} reads no text: leave the text out.")
    parts = None if scratchpad is None else frozenset(scratchpad)
    if lengths is None:
        return make_answer_task(name, scratchpad=parts)
    # Refuses ends that the task has no examples of; what it lacks between them is left out.
    ends = make_answer_task(name, training_lengths=lengths, test_lengths=())
    shortest, longest = lengths
    return make_answer_task(
        name,
        training_lengths=[n for n in ends.possible_lengths if shortest <= n <= longest],
        test_lengths=[n for n in ends.possible_lengths if longest < n <= 2 * longest],
        scratchpad=parts,
    )


def make_answer_task(
    name: str,
    *,
    training_lengths: Sequence[int] | None = None,
    test_lengths: Sequence[int] | None = None,
    scratchpad: AbstractSet[str] | None = None,
) -> AnswerTask:
    """The task of that name with other lengths than its paper's, or with a scratchpad.

    Args:
        name: one of `ANSWER_TASK_NAMES`.
        training_lengths: None takes the paper's.
        test_lengths: None takes the paper's.
        scratchpad: the parts of a step that are written down, see `tasks/scratchpad.py`; None for
            the answer alone.

    Returns:
        The task.

    Raises:
        UserError: for an unknown name, for lengths that cannot be, and for a scratchpad, or a part
            of one, that the task does not have.
    """
    if name not in _CLASS_OF:
        raise unknown_name("task with answers", name, ANSWER_TASK_NAMES)
    kind = _CLASS_OF[name]
    lengths = {"training_lengths": training_lengths, "test_lengths": test_lengths}
    if scratchpad is None:
        return kind(name, **lengths)
    if not issubclass(kind, ScratchpadTask):
        raise UserError(f"the task {name!r} has no scratchpad: leave the scratchpad out.")
    return kind(name, scratchpad=scratchpad, **lengths)
