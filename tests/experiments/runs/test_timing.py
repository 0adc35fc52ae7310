"""Short measurements of a model, by a clock that the model moves."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from experiments.runs import timing
from experiments.runs.timing import seconds_a_sequence


class Clocked(nn.Module):
    """A model whose passes take so many seconds for each sequence."""

    def __init__(self, seconds: Iterator[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.seconds, self.now = seconds, 0.0

    def forward(self, tokens: Tensor) -> None:
        self.now += next(self.seconds) * len(tokens)


def measured(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> float:
    model = Clocked(iter(seconds))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: model.now)
    found = seconds_a_sequence(model, torch.zeros(9, 3, dtype=torch.long))
    assert not list(model.seconds), "fewer passes than that"
    return found


def test_what_holds_up_a_short_pass_is_not_the_models_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch, 9e-3, 0.05, 1e-3, 3e-3, 0.1, 2e-3) == pytest.approx(1e-3)


def test_a_long_pass_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch, 0.9, 0.2) == pytest.approx(0.2)
    assert measured(monkeypatch, 6.0) == pytest.approx(6.0)
