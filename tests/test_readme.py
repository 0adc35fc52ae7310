"""The README's Python runs as it stands, in order."""

import re
import runpy
from functools import partial
from pathlib import Path

import pytest

from experiments.comparison import compare as hypotheses
from experiments.comparison import config as compare_config
from experiments.heads import classify as heads
from experiments.heads import config as heads_config
from nope_interp.models.config import TransformerConfig
from nope_interp.training.config import TrainingConfig
from tests.paths import ROOT

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
        "transformer": TransformerConfig(n_layers=1, d_model=16, n_heads=2, d_vocab=257, n_ctx=24),
        "training": TrainingConfig(steps=2, batch_size=2, seq_len=24),
    }
    # The default's size is a matter of minutes: the examples' own lines stay as they are.
    for module, name, sizes in (
        (compare_config, "CompareConfig", {"n_fit": 24, "n_held_out": 16}),
        (heads_config, "HeadsConfig", {"n_sequences": 16}),
    ):
        real = getattr(module, name)
        assert real in (hypotheses.CompareConfig, heads.HeadsConfig)  # they have the real ones
        short = partial(real, seq_len=24, **small, **sizes)
        monkeypatch.setattr(module, name, short)
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[index])
    runpy.run_path(str(script))
    printed = capsys.readouterr().out
    expected = (
        "without a begin token",
        "Of 2 heads:",
        "9.0000, 10.0000]",
        "Score(metric='mae'",
        "tensor([5.",
        "tensor(5.",
    )
    assert expected[index] in printed
    if index == 0:
        assert (tmp_path / "report.html").stat().st_size > 1e6
