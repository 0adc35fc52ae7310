"""Warnings name the line that asked, however deep in the project they arise."""

from collections.abc import Callable
from inspect import unwrap

import pytest

from nope_interp import errors

# Without the check of types that the tests put around it: that is a line of theirs.
warn = unwrap(errors.warn)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_warning_names_the_line_that_asked(depth: int) -> None:
    """Functions of the project's modules call each other before the warning is given."""
    ask: Callable[[str], None] = warn
    for nth in range(depth):
        ask = _calling(ask, f"experiments.made_up_{nth}")
    with pytest.warns(UserWarning, match="something odd") as said:
        ask("something odd")
    assert said[0].filename == __file__


def test_a_module_that_begins_alike_is_a_users_own() -> None:
    with pytest.warns(UserWarning, match="something odd") as said:
        _calling(warn, "experiments_of_mine")("something odd")
    assert said[0].filename == "<made up>"


def _calling(asked: Callable[[str], None], module: str) -> Callable[[str], None]:
    """A function of that module, which calls what it is given."""
    names = {"__name__": module, "asked": asked}
    exec(compile("def ask(told): asked(told)", "<made up>", "exec"), names)
    ask: Callable[[str], None] = names["ask"]  # type: ignore[assignment]
    return ask
