"""Training through torch.compile: the same losses to rounding, or a sentence that it cannot be.

What is really compiled runs in a process of its own: the checks of shapes that tests add to every
function cannot be compiled.
"""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nope_interp.errors import UserError
from nope_interp.models.checkpoints import load_tensors
from nope_interp.models.config import TransformerConfig
from nope_interp.tasks.registry import make_task
from nope_interp.training import train as training_module
from nope_interp.training.config import TrainingConfig
from nope_interp.training.train import train
from tests.experiments.cli.command import assert_one_sentence, nope_interp
from tests.paths import ROOT

CONFIG = TransformerConfig(n_layers=1, d_model=32, n_heads=2, d_vocab=257, n_ctx=32)
TRAINING = TrainingConfig(
    steps=4, batch_size=4, seq_len=32, warmup=3, learning_rate=1e-2, checkpoint_every=4
)

# Prints the losses of every step, not compiled and compiled, and whether hooks fire.
LOSSES = """
import dataclasses, json, torch
from torch._dynamo.utils import counters
from nope_interp.training import loop
from nope_interp.training.train import train
from nope_interp.models.config import TransformerConfig
from nope_interp.tasks.registry import make_task
from nope_interp.training.config import TrainingConfig

real, curves = loop._step, []

def recorded(*args):
    curves[-1].append(real(*args))
    return curves[-1][-1]

loop._step = recorded
config = TransformerConfig(n_layers=1, d_model=32, n_heads=2, d_vocab=257, n_ctx=32)
asked = TrainingConfig(steps=12, batch_size=4, seq_len=32, warmup=3, learning_rate=1e-2)
for compile in (False, True):
    curves.append([])
    how = dataclasses.replace(asked, compile=compile)
    model = train(config, how, make_task("text"), show_progress=False)
_, cache = model.run_with_cache(torch.zeros(1, 3, dtype=torch.long))
hooks, cut = "blocks.0.attn.hook_pattern" in cache, dict(counters["graph_break"])
print(json.dumps({"curves": curves, "hooks": hooks, "cut": cut}))
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_compiled_losses_are_equal_to_rounding(tmp_path: Path) -> None:
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    # In this process, and what the compiler knows of this processor is not tried out first.
    cache |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "1"}
    run = subprocess.run(
        [sys.executable, "-c", LOSSES],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **cache},
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    plain, compiled = found["curves"]
    assert len(plain) == 12
    assert plain[0] - plain[-1] > 0.5  # it learns
    assert compiled == pytest.approx(plain, abs=1e-4)
    assert found["hooks"]
    assert found["cut"] == {}  # the loss is one piece
    assert [*(tmp_path / "cache").rglob("*.cpp")]  # compiled it was


def test_without_a_compiler_it_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("PATH", ""), ("CXX", ""), ("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # this process, and no others beside
    (tmp_path / "c.toml").write_text("[training]\ncompile = true\nsteps = 2\n")
    run = nope_interp("train", "--config", "c.toml", cwd=tmp_path)
    said = "install a C++ compiler, or leave compile out"
    assert_one_sentence(run, "cannot be compiled here", said)
    assert not [*tmp_path.rglob("*.safetensors")]


@pytest.fixture
def given_to_compile(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is given to torch.compile, which gives it back as it is."""
    given: list[Any] = []

    def compile(function: Any) -> Any:
        given.append(function)
        return function

    monkeypatch.setattr(torch, "compile", compile)
    return given


def test_the_loss_is_compiled_where_that_is_asked_for(given_to_compile: list[Any]) -> None:
    task = make_task("text")
    plain = train(CONFIG, TRAINING, task, show_progress=False)
    assert given_to_compile == []
    compiled = train(CONFIG, dataclasses.replace(TRAINING, compile=True), task, show_progress=False)
    assert training_module.answers_cross_entropy in given_to_compile
    for name, weight in plain.state_dict().items():
        assert torch.equal(compiled.state_dict()[name], weight), name


def test_what_torch_cannot_compile_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile(function: Any) -> Any:
        raise RuntimeError("no compiler\nSet TORCH_LOGS for more")

    monkeypatch.setattr(torch, "compile", compile)
    with pytest.raises(UserError, match=r"compiled here \(no compiler\): install"):
        train(CONFIG, dataclasses.replace(TRAINING, compile=True), make_task("text"))


def test_the_training_state_tells_the_two_apart(
    tmp_path: Path, given_to_compile: list[Any]
) -> None:
    task, state = make_task("text"), tmp_path / "state.safetensors"
    train(CONFIG, TRAINING, task, state_path=state, show_progress=False)
    assert "compile" not in load_tensors(state)[1]["training"]  # as before there was such a thing
    compiled = dataclasses.replace(TRAINING, compile=True)
    with pytest.raises(UserError, match="another training"):
        train(CONFIG, compiled, task, state_path=state, show_progress=False)


def test_compile_is_yes_or_no() -> None:
    assert TrainingConfig(**TrainingConfig(compile=True).to_dict()).compile
    with pytest.raises(UserError, match="training compile is 1: give True or False"):
        TrainingConfig(compile=1)  # type: ignore[arg-type]
