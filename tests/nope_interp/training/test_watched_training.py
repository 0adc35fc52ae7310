"""A training that is watched ends in the same bits, and shows the weights of every watched step."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nope_interp.models.checkpoints import load_tensors
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.text import TextTask
from nope_interp.training.config import TrainingConfig
from nope_interp.training.loop import watched_steps
from nope_interp.training.train import train
from tests.trainings import dies_after

CONFIG = TransformerConfig(n_layers=2, d_model=32, n_heads=2, d_vocab=257, n_ctx=32, dropout=0.1)
TRAINING = TrainingConfig(
    steps=12, batch_size=4, seq_len=32, warmup=3, checkpoint_every=4, learning_rate=1e-2
)
WATCHED = [0, 1, 2, 4, 8, 12]

Weights = dict[str, Tensor]


class Watcher:
    """Keeps the weights, and draws random numbers as a reading might."""

    def __init__(self) -> None:
        self.seen: dict[int, Weights] = {}

    def __call__(self, step: int, model: HookedTransformer) -> None:
        assert not any(module.training for module in model.modules())
        assert step not in self.seen
        torch.rand(7)
        with torch.no_grad():
            model(torch.zeros(1, 32, dtype=torch.long))
        self.seen[step] = {name: w.clone() for name, w in model.state_dict().items()}


def run(**arguments: Any) -> Weights:
    model = train(CONFIG, TRAINING, TextTask(), show_progress=False, **arguments)
    assert not model.training
    return model.state_dict()


def assert_same_bits(a: Weights, b: Weights) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@given(st.integers(1, 5000))
def test_watched_steps_are_none_the_powers_of_two_and_the_last(steps: int) -> None:
    expected = {0, steps} | {step for step in range(1, steps) if bin(step).count("1") == 1}
    assert watched_steps(steps) == sorted(expected)


def test_watching_changes_no_bit(tmp_path: Path) -> None:
    watcher, state = Watcher(), tmp_path / "state.safetensors"
    watched = run(watch=watcher, state_path=state)
    assert_same_bits(watched, run())
    assert list(watcher.seen) == WATCHED
    assert_same_bits(watcher.seen[0], HookedTransformer(CONFIG).state_dict())
    assert_same_bits(watcher.seen[12], watched)
    kept, header = load_tensors(state)
    of_model = {k.removeprefix("model/"): v for k, v in kept.items() if k.startswith("model/")}
    assert_same_bits(watcher.seen[header["step"]], of_model)


@pytest.mark.parametrize("killed_after", [3, 4, 6, 11])
def test_a_stopped_training_goes_on_with_the_step_it_stands_at(
    tmp_path: Path, killed_after: int
) -> None:
    undisturbed, before, after = Watcher(), Watcher(), Watcher()
    run(watch=undisturbed)
    state = tmp_path / "state.safetensors"
    with dies_after(killed_after), pytest.raises(KeyboardInterrupt):
        run(watch=before, state_path=state)
    run(watch=after, state_path=state)
    assert list(before.seen) == [step for step in WATCHED if step <= killed_after]
    assert list(after.seen) == [step for step in WATCHED if step >= killed_after]
    # What was kept before and what came after are one history.
    for step, weights in {**before.seen, **after.seen}.items():
        assert_same_bits(weights, undisturbed.seen[step])
