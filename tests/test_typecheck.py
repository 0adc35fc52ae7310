"""The checks of annotations themselves: without them nothing would say that they are gone."""

import inspect

import numpy as np
import pytest
import torch
from beartype.roar import (
    BeartypeCallHintParamViolation,
    BeartypeCallHintReturnViolation,
    BeartypeDoorHintViolation,
)
from jaxtyping import Float
from torch import Tensor

from nope_interp.errors import UserError
from nope_interp.models.losses import unigram_losses
from nope_interp.training.config import TrainingConfig
from probes.scores import Score
from tests import typecheck


@typecheck.checked
def _product(
    a: Float[Tensor, "row inner"], b: Float[Tensor, "inner column"]
) -> Float[Tensor, "row column"]:
    return a @ b if len(a) > 1 else b


def test_axes_of_one_name_have_one_length() -> None:
    assert _product(torch.ones(2, 3), torch.ones(3, 4)).shape == (2, 4)
    with pytest.raises(BeartypeCallHintParamViolation):
        _product(torch.ones(2, 3), torch.ones(4, 3))
    with pytest.raises(BeartypeCallHintReturnViolation):
        _product(torch.ones(1, 3), torch.ones(3, 4))


_to_return: list[Tensor] = []


@typecheck.checked
def _next(a: Float[Tensor, " row"]) -> Float[Tensor, " row"]:
    return _to_return.pop(0)


def test_what_passed_once_passes_again_and_nothing_else_does() -> None:
    _to_return[:] = [torch.ones(n) for n in (2, 2, 3, 3, 2, 3)]
    for _ in range(2):
        assert len(_next(torch.ones(2))) == 2
    for _ in range(2):
        with pytest.raises(BeartypeDoorHintViolation):
            _next(torch.ones(2))
    assert len(_next(torch.ones(2))) == 2
    with pytest.raises(BeartypeCallHintParamViolation):
        _next(torch.ones(2, 1))
    assert len(_next(torch.ones(3))) == 3


def test_our_packages_are_checked_as_they_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BeartypeCallHintParamViolation):
        unigram_losses(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int64), 4)
    with pytest.raises(BeartypeCallHintParamViolation):
        Score("mae", "one", 0.0, 1.0, np.nan, 2)  # type: ignore[arg-type]
    monkeypatch.setattr(typecheck, "ON", False)
    assert Score("mae", "one", 0.0, 1.0, np.nan, 2).value == "one"  # type: ignore[arg-type, comparison-overlap]


def test_functions_stand_where_their_source_does() -> None:
    assert inspect.getsource(unigram_losses).startswith("def unigram_losses(")


def test_what_checks_itself_says_so_in_a_sentence() -> None:
    with pytest.raises(UserError, match="steps is 'x': give a whole number"):
        TrainingConfig(steps="x")  # type: ignore[arg-type]
