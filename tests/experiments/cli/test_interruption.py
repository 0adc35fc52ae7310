"""What the command line says of an interruption is true, at whatever step it comes."""

import json
from pathlib import Path

import pytest
import torch

from experiments.cli.main import main
from nope_interp.models.checkpoints import load_model
from tests.trainings import dies_after

TINY = {
    "transformer": {"n_layers": 1, "d_model": 16, "n_heads": 2, "n_ctx": 16},
    "training": {"steps": 9, "batch_size": 2, "seq_len": 16, "warmup": 1},
    "seq_len": 16,
}


def run(monkeypatch: pytest.MonkeyPatch, config: Path, out: Path) -> int | str | None:
    arguments = ["train", "--config", str(config), "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["nope-interp", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize("steps", [1, 5])
def test_an_interrupted_training_goes_on_from_its_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    steps: int,
) -> None:
    """Long before the first of the states that are kept every 200 steps."""
    config = tmp_path / "tiny.json"
    config.write_text(json.dumps(TINY))
    with dies_after(steps):
        assert run(monkeypatch, config, tmp_path / "runs") == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("nope-interp: interrupted: what was finished is kept")
    assert not caplog.messages
    assert run(monkeypatch, config, tmp_path / "runs") == 0
    assert caplog.messages == [f"going on from step {steps} of 9."]
    assert run(monkeypatch, config, tmp_path / "whole") == 0
    models = [load_model(path)[0] for path in tmp_path.rglob("model.safetensors")]
    weights, expected = (model.state_dict() for model in models)
    assert all(torch.equal(weight, expected[name]) for name, weight in weights.items())
