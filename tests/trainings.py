"""Trainings that die at a step, and whether two ended in the same bits."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from nope_interp.training import train as training_module


@contextmanager
def dies_after(n: int, death: type[BaseException] = KeyboardInterrupt) -> Iterator[list[int]]:
    """A context in which the first loss of our trainings after `n` of them raises `death`.

    Yields the number of each that was asked for, from 1.
    """
    real, asked = training_module.masked_loss, list[int]()

    def dying(*args: Any) -> Any:
        asked.append(len(asked) + 1)
        if asked[-1] == n + 1:
            raise death
        return real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_module, "masked_loss", dying)
        yield asked


def assert_same_bits(a: nn.Module, b: nn.Module) -> None:
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(x, y), name
