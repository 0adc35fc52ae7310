"""The README's Python runs as it stands, in order."""

import re
import runpy
from pathlib import Path

import pytest

import experiments.compare_config
from nope_interp.config import TransformerConfig
from nope_interp.training_config import TrainingConfig

ROOT = Path(__file__).parent.parent
EXAMPLES = re.findall(
    r"<!-- executed by .*? -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S
)


def test_the_main_job_takes_at_most_ten_lines() -> None:
    lines = [line for line in EXAMPLES[0].splitlines() if line.strip()]
    assert 3 <= len(lines) <= 10


@pytest.mark.parametrize("index", range(len(EXAMPLES)))
def test_examples_run(
    index: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = {
        "transformer": TransformerConfig(n_layers=1, d_model=16, n_heads=2, d_vocab=257, n_ctx=16),
        "training": TrainingConfig(steps=2, batch_size=2, seq_len=16),
        "seq_len": 16,
        "n_fit": 24,
        "n_held_out": 16,
    }
    # The default's size is a matter of minutes: the example's own lines stay as they are.
    real = experiments.compare_config.CompareConfig
    monkeypatch.setattr(experiments.compare_config, "CompareConfig", lambda: real(**small))
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[index])
    runpy.run_path(str(script))
    printed = capsys.readouterr().out
    if index == 0:
        assert "without a begin token" in printed
        assert (tmp_path / "report.html").stat().st_size > 1e6
    else:
        assert printed.startswith("Score(metric='mae'")
