"""The model that ships with the package is the one that its command trains."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.comparison.config import CompareConfig
from experiments.variants import train as train_module
from experiments.variants.config import ProbingConfig, default_transformer
from experiments.variants.embedded import EMBEDDED_MODEL, embedded_note, made
from experiments.variants.held_out import held_out
from experiments.variants.train import (
    train,
    trained_model,
    training_folder,
    trains_embedded,
)
from experiments.variants.variants import variant_of
from nope_interp.models.checkpoints import load_model, save_model
from nope_interp.tasks.text import python_documentation
from nope_interp.training.config import TrainingConfig


def test_the_digest_beside_the_model_is_its_own() -> None:
    assert hashlib.sha256(EMBEDDED_MODEL.read_bytes()).hexdigest() == made()["sha256"]
    assert EMBEDDED_MODEL.stat().st_size < 4e6


def test_it_is_the_default_model_trained_on_the_text_of_the_package() -> None:
    model, trained_on = load_model(EMBEDDED_MODEL)
    assert model.config == default_transformer()
    assert trained_on.task == ProbingConfig().task
    # Another text would be predicted less well than the loss that the training ended in.
    found = held_out(ProbingConfig(), EMBEDDED_MODEL)
    assert found is not None
    assert found.loss == pytest.approx(made()["held_out_loss"], abs=1e-3)
    text = hashlib.sha256(python_documentation().encode()).hexdigest()
    assert text == "71f2ff5d99bdc1f9c48c5c2353ad138201c5ca1c377e0226857ef8fa89b8bcee"


def test_it_is_read_and_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_module, "train_model", None)  # nothing may call it
    config = CompareConfig()
    model = trained_model(config, tmp_path, "cpu", False)
    kept = training_folder(tmp_path, config).model
    assert kept.read_bytes() == EMBEDDED_MODEL.read_bytes()
    shipped, _ = load_model(EMBEDDED_MODEL)
    for name, weights in shipped.state_dict().items():
        assert torch.equal(weights, model.state_dict()[name])


def test_a_report_says_that_it_ships_where_it_is_what_is_read(tmp_path: Path) -> None:
    config = ProbingConfig()
    assert variant_of(config, tmp_path, "cpu", False, needed={}).notes == (embedded_note(),)
    # As a machine trains it that rounds otherwise.
    file = training_folder(tmp_path, config).model
    model, trained_on = load_model(file)
    with torch.no_grad():
        next(model.parameters()).add_(1e-6)
    save_model(model, file, task=trained_on.task)
    assert variant_of(config, tmp_path, "cpu", False, needed={}).notes == ()


@pytest.mark.parametrize(
    "other",
    [
        CompareConfig(training=TrainingConfig(learning_rate=1e-3)),
        CompareConfig(transformer=replace(default_transformer(), positions="rotary")),
        CompareConfig(task="reversal"),
        CompareConfig(model="gpt2"),
    ],
)
def test_what_is_trained_otherwise_is_another_model(other: CompareConfig) -> None:
    assert not trains_embedded(other)
    # How much is read of it is no part of its training.
    assert trains_embedded(CompareConfig(n_fit=64, n_held_out=32, seed=3))


def test_its_command_trains_it_to_the_same_bits_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the same training, cut short; the whole takes minutes."""
    real: Any = train_module.train_model
    asked: list[tuple[Any, Any]] = []

    def cut_short(config: Any, training: Any, *rest: Any, **options: Any) -> Any:
        asked.append((config, training))
        return real(config, replace(training, steps=2), *rest, **options)

    monkeypatch.setattr(train_module, "train_model", cut_short)
    first, second = (train(out=tmp_path / name, show_progress=False) for name in ("one", "two"))
    assert asked == [(default_transformer(), TrainingConfig())] * 2
    assert first.read_bytes() == second.read_bytes() != EMBEDDED_MODEL.read_bytes()
