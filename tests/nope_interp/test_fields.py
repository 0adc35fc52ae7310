"""Fields take what their annotations say; everything else is one sentence that can be printed."""

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, no_type_check

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nope_interp.errors import UserError, shown, unknown_name
from nope_interp.fields import (
    LARGEST_SEED,
    Count,
    Positive,
    Range,
    Seed,
    check_fields,
    from_mapping,
    is_whole,
)
from nope_interp.models.checkpoints import TrainedOn
from nope_interp.models.clockwork import ClockworkConfig
from nope_interp.models.config import TransformerConfig
from nope_interp.training.config import TrainingConfig

HUGE = 10**5000


@no_type_check
@dataclass(frozen=True)
class Everything:
    count: Count = 1
    seed: Seed = 0
    whole: int = 0
    number: float = 0.0
    share: Annotated[float, Range(least=0, below=1)] = 0.0
    factor: Positive | None = None
    switch: bool = False
    name: str = ""
    choice: Literal["one", "two"] = "one"
    pair: tuple[Count, Count] | None = None
    many: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self, "the test's")


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("count", 0, "is 0: give a whole number from 1 up."),
        ("count", True, "is True: give a whole number from 1 up."),
        ("count", 1.0, "is 1.0: give a whole number from 1 up."),
        ("count", HUGE, "is a huge int: give whole numbers of at most 18 digits."),
        ("seed", -1, f"is -1: give a whole number from 0 to {LARGEST_SEED}."),
        ("seed", HUGE, f"is a huge int: give a whole number from 0 to {LARGEST_SEED}."),
        ("seed", LARGEST_SEED + 1, f"give a whole number from 0 to {LARGEST_SEED}."),
        ("whole", -HUGE, "is a huge int: give whole numbers of at most 18 digits."),
        ("whole", 10**18, "give whole numbers of at most 18 digits."),
        ("whole", "1", "is '1': give a whole number."),
        ("number", HUGE, "is a huge int: give a number."),
        ("number", float("inf"), "is inf: give a number."),
        ("share", 1, "is 1: give a number from 0 to just below 1."),
        ("share", "0", "is '0': give a number from 0 to just below 1."),
        ("factor", 0.0, "is 0.0: give a number above 0."),
        ("switch", 1, "is 1: give True or False."),
        ("name", None, "is None: give text."),
        ("choice", 1, "is 1: choose from one, two."),
        ("pair", 1, "is 1: give a list of whole numbers from 1 up."),
        ("pair", (1, 0), "is (1, 0): give a list of whole numbers from 1 up."),
        (
            "pair",
            (HUGE, 1),
            "is a tuple with a huge number: give whole numbers of at most 18 digits.",
        ),
        ("many", "text", "is 'text': give a list of texts."),
        ("many", ["a", 1], "is ['a', 1]: give a list of texts."),
    ],
    ids=shown,
)
def test_what_does_not_fit_is_named_with_its_remedy(field: str, value: Any, remedy: str) -> None:
    with pytest.raises(UserError) as caught:
        Everything(**{field: value})
    assert str(caught.value).startswith(f"the test's {field} is ")
    assert str(caught.value).endswith(remedy)


def test_names_are_corrected() -> None:
    with pytest.raises(UserError, match=r"unknown the test's choice 'on': did you mean 'one'\?"):
        Everything(choice="on")


def test_what_comes_from_files_and_numpy_is_converted() -> None:
    found = Everything(count=np.int64(3), number=2, share=np.float32(0.5), pair=[1, 2], many=["a"])
    assert found == Everything(count=3, number=2.0, share=0.5, pair=(1, 2), many=("a",))
    for pair in (np.array([1, 2]), pd.Series([1, 2]), range(1, 3), torch.tensor([1, 2])):
        assert Everything(pair=pair).pair == (1, 2)
    assert type(found.count) is int
    assert type(found.number) is type(found.share) is float


def test_paths_are_text() -> None:
    assert Everything(many=[Path("folder") / "text.txt"]).many == (
        os.path.join("folder", "text.txt"),
    )
    with pytest.raises(UserError, match="count"):
        Everything(count=Path("3"))


@given(st.floats(allow_nan=False), st.floats(0, 1), st.floats(1, 2))
def test_ranges_hold_what_they_say(number: float, low: float, high: float) -> None:
    assert (number in Range(least=low, most=high)) == (low <= number <= high)
    assert (number in Range(above=low, below=high)) == (low < number < high)
    for end in (low, high):
        assert end in Range(least=low, most=high)
        assert end not in Range(above=low, below=high)


def test_ranges_in_words() -> None:
    assert str(Range(least=0, most=1)) == "from 0 to 1"
    assert str(Range(above=0, most=1)) == "above 0 and up to 1"
    assert str(Range(least=1)) == "from 1 up"


CONFIGS = {
    TransformerConfig: {"n_layers": 1, "d_model": 8, "n_heads": 2, "d_vocab": 9, "n_ctx": 8},
    TrainingConfig: {},
    ClockworkConfig: {"d_in": 1, "d_hidden": 8, "d_out": 1},
    TrainedOn: {"task": "text"},
}
FIELDS = [(kind, field.name) for kind in CONFIGS for field in dataclasses.fields(kind)]


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=lambda x: getattr(x, "__name__", x))
@pytest.mark.parametrize("value", [HUGE, -HUGE, [HUGE], (HUGE, HUGE), {HUGE: HUGE}], ids=range(5))
def test_numbers_too_long_to_print_are_refused(kind: type, field: str, value: Any) -> None:
    with pytest.raises(UserError) as caught:
        from_mapping(kind, {**CONFIGS[kind], field: value}, "the config")
    assert field in str(caught.value)
    assert "huge" in str(caught.value)


def test_a_name_too_long_to_print_is_refused() -> None:
    with pytest.raises(UserError, match="unknown field of the config 'a huge int'"):
        from_mapping(TrainingConfig, {HUGE: 1}, "the config")
    assert "'a huge int'" in str(unknown_name("task", HUGE, ["text"]))


def test_names_that_hold_commas_are_quoted() -> None:
    said = "unknown kind 'x': choose from 'variance', 'variance, pre-norm'."
    assert str(unknown_name("kind", "x", ["variance", "variance, pre-norm"])) == said
    assert str(unknown_name("kind", "x", ["one", "two"])).endswith("choose from one, two.")


def test_what_takes_several_lines_is_shown_as_its_kind() -> None:
    assert shown(np.eye(3)) == "a ndarray"


def test_what_others_call_otherwise_is_no_misspelling() -> None:
    choices = ["none", "rotary", "learned", "sinusoidal"]
    assert str(unknown_name("encoding", "RoPE", choices)).endswith("did you mean 'rotary'?")
    assert str(unknown_name("encoding", "absolute", choices)).endswith("did you mean 'learned'?")
    assert "choose from none," in str(unknown_name("encoding", None, choices))


@given(st.recursive(st.integers() | st.text(), lambda x: st.lists(x) | st.tuples(x, x)))
def test_what_is_shown_is_short_and_true(value: Any) -> None:
    text = shown(value)
    assert len(text) <= 63
    assert text == repr(value) or repr(value).startswith(text.removesuffix("..."))


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_numpys_whole_numbers_are_whole_too(value: Any) -> None:
    assert is_whole(value)
    assert is_whole(value, 3)
    assert is_whole(value, 0, 3)
    assert not is_whole(value, 4)
    assert not is_whole(value, 0, 2)


@pytest.mark.parametrize("value", [True, np.bool_(True), 3.0, np.float64(3), "3", None, [3]])
def test_what_only_looks_like_a_whole_number_is_none(value: Any) -> None:
    assert not is_whole(value)
