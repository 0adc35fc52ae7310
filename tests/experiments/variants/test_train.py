"""A model that a config trains is trained once, whichever command asks for it first."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.comparison.compare import compare
from experiments.comparison.config import CompareConfig
from experiments.heads.classify import classify_heads
from experiments.heads.config import HeadsConfig
from experiments.variants import train as train_module
from experiments.variants.config import ProbingConfig
from experiments.variants.train import train, training_folder
from experiments.variants.variants import variant_of
from nope_interp.errors import UserError
from nope_interp.files import read_json
from nope_interp.models.checkpoints import load_model
from nope_interp.models.config import TransformerConfig
from nope_interp.training.config import TrainingConfig

SAME: dict[str, Any] = {
    "transformer": TransformerConfig(n_layers=1, d_model=32, n_heads=2, d_vocab=257, n_ctx=24),
    "training": TrainingConfig(steps=2, batch_size=2, seq_len=24, warmup=1),
    "seq_len": 24,
}
PROBE = CompareConfig(**SAME, variants=False, n_fit=16, n_held_out=8, sites=("resid_post",))
HEADS = HeadsConfig(**SAME, n_sequences=16)
QUIET: dict[str, Any] = {"show_progress": False}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[TransformerConfig]:
    """What is trained from now on."""
    real, every = train_module.train_model, []

    def counted(config: TransformerConfig, *rest: Any, **options: Any) -> Any:
        every.append(config)
        return real(config, *rest, **options)

    monkeypatch.setattr(train_module, "train_model", counted)
    return every


def test_commands_share_what_they_train(tmp_path: Path, trained: list[TransformerConfig]) -> None:
    probed = compare(PROBE, out=tmp_path, **QUIET)
    classified = classify_heads(HEADS, out=tmp_path, **QUIET)
    path = train(PROBE, out=tmp_path, **QUIET)
    assert len(trained) == 1
    assert path == training_folder(tmp_path, HEADS).model
    for found in (probed, classified):
        assert tmp_path / found.info["trained_model"] == path
        assert not (found.folder / path.name).exists()
    # A history is of the same weights, kept beside them.
    before, _ = load_model(path)
    compare(dataclasses.replace(PROBE, history=True), out=tmp_path, **QUIET)
    assert len(trained) == 2
    after, _ = load_model(path)
    for name, weights in before.state_dict().items():
        assert torch.equal(weights, after.state_dict()[name])
    classify_heads(dataclasses.replace(HEADS, n_sequences=20), out=tmp_path, **QUIET)
    assert len(trained) == 2


def test_it_is_said_when_a_model_is_trained_that_nobody_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.txt").write_text("A text of the user's own. " * 2000)
    asked = dataclasses.replace(HEADS, text=str(tmp_path / "own.txt"))
    for told in (1, 0):  # what was trained before is read
        variant_of(asked, tmp_path, "cpu", show_progress=True, needed={})
        said = capsys.readouterr().err
        assert said.count("So one is trained, 2 steps: name a model to read an existing") == told
        assert said.count("the shipped one differs in text, transformer.n_layers, ") == told
        if told:
            (line,) = (one for one in said.splitlines() if "is named" in one)
            assert "transformer.d_model and 6 more. " in line
            assert all(len(sentence.split()) <= 25 for sentence in line.split(". "))
    of_task = dataclasses.replace(HEADS, task="copy-rsc", lengths=(2, 4))
    variant_of(of_task, tmp_path, "cpu", show_progress=True, needed={})
    assert "the shipped one differs in task, lengths, " in capsys.readouterr().err
    # A history is followed in a training alone.
    variant_of(asked, tmp_path, "cpu", show_progress=True, needed={}, keep_history=True)
    said = capsys.readouterr().err
    assert "differs in text, " in said
    assert "So one is trained, 2 steps.\n" in said
    # Nor is anything said of the shipped one, which its history has trained again.
    train_module._tell_unasked(CompareConfig(history=True), keep_history=True)
    assert capsys.readouterr().err == ""
    # Quiet runs, and those that ask for a training, are told nothing.
    variant_of(PROBE, tmp_path, "cpu", show_progress=False, needed={})
    train(dataclasses.replace(asked, task="text"), out=tmp_path / "other")
    variant_of(HeadsConfig(), tmp_path, "cpu", show_progress=True, needed={})
    assert "one is trained" not in capsys.readouterr().err


def test_a_trainings_folder_says_how_to_train_it_again_whoever_had_it_trained(
    tmp_path: Path, trained: list[TransformerConfig]
) -> None:
    rotary = dataclasses.replace(SAME["transformer"], positions="rotary")
    asked = dataclasses.replace(HEADS, transformer=rotary, ablate="rotary")
    variant_of(asked, tmp_path, "cpu", show_progress=False, needed={})
    told = read_json(training_folder(tmp_path, asked).config)
    assert train(ProbingConfig.from_dict(told["config"]), out=tmp_path, **QUIET).is_file()
    assert trained == [rotary]


def test_another_seed_is_another_training(tmp_path: Path, trained: list[TransformerConfig]) -> None:
    other = dataclasses.replace(SAME["transformer"], seed=1)
    paths = {
        train(config, out=tmp_path, **QUIET)
        for config in (PROBE, dataclasses.replace(PROBE, transformer=other))
    }
    assert len(paths) == len(trained) == 2


def test_a_refused_training_leaves_nothing_and_a_cut_one_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "runs"
    with pytest.raises(UserError, match="longer than the context"):
        train(dataclasses.replace(PROBE, training=TrainingConfig(seq_len=25)), out=out, **QUIET)
    assert not out.exists()
    with pytest.raises(UserError, match="'some/model' is trained already: leave it out"):
        train(model="some/model", steps=1, out=out, **QUIET)

    def cut(*_: Any, state_path: Path, **__: Any) -> None:
        state_path.write_bytes(b"the state")
        raise UserError("the loss is nan at step 7: lower the learning rate.")

    monkeypatch.setattr(train_module, "train_model", cut)
    with pytest.raises(UserError, match="the loss is nan"):
        train(PROBE, out=out, **QUIET)
    assert training_folder(out, PROBE).training_state.is_file()
