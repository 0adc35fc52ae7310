"""A figure is made of the function that draws it and of that function's docstring."""

from collections.abc import Iterator

import numpy as np
import pytest

from experiments.results.figures import figure
from experiments.results.findings import Array, Panel, panel

SHARED = 0.25


@figure(
    "curves", "x", "y", claims=("one",), log="x", ticks=lambda x, *, title="a": tuple(map(str, x))
)
def curves(x: Array, *, title: str = "a") -> Iterator[Panel]:
    """Curves of {title}.

    {x.size} points, a share of {SHARED:.0%}
    of all.

    Nothing else.
    """
    yield panel("first", np.arange(len(x)), measured={"one": x})
    yield panel("second", np.arange(len(x)), chance={"none": 0})


def test_the_docstring_is_the_title_and_the_caption() -> None:
    found = curves(np.array([1.0, 2.0]), title="b")
    assert (found.id, found.x, found.y) == ("curves", "x", "y")
    assert found.title == "Curves of b"
    assert found.caption == "2 points, a share of 25% of all. Nothing else."
    assert [panel.title for panel in found.panels] == ["first", "second"]
    assert (found.claims, found.log, found.ticks) == (("one",), "x", ("1.0", "2.0"))


def test_arguments_left_out_are_named_too() -> None:
    assert curves(np.array([1.0])).title == "Curves of a"


def test_a_name_that_is_nowhere_is_an_error() -> None:
    @figure("one", "x", "y")
    def drawn() -> Iterator[Panel]:
        """What is {nowhere}."""
        yield from ()

    with pytest.raises(KeyError, match="nowhere"):
        drawn()
