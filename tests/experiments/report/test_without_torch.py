"""A page is a function of a run folder: it is drawn on a machine that has no torch."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.comparison.compare import compare
from experiments.comparison.config import CompareConfig
from experiments.emergence.config import EmergenceConfig
from experiments.emergence.watch import watch_emergence
from experiments.heads.classify import classify_heads
from experiments.heads.config import HeadsConfig
from experiments.papers.config import ReproduceConfig
from experiments.papers.kazemnejad2023 import counter
from experiments.papers.reproduce import reproduce
from experiments.runs.finished import FinishedRun
from nope_interp.models.config import TransformerConfig
from nope_interp.training.config import TrainingConfig
from tests.paths import ROOT

# Draws each run folder that is named into the folder named first.
DRAW = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "transformers", "transformer_lens", "sklearn", "ray"}:
            raise ImportError(f"{name} is not installed on this machine")

sys.meta_path.insert(0, Absent())
from pathlib import Path
from experiments.sweeps.runs import load_run

to, *folders = map(Path, sys.argv[1:])
for folder in folders:
    load_run(folder).write_report(to / f"{folder.name}.html")
"""


def small(n_ctx: int, **changes: Any) -> dict[str, Any]:
    sizes = TransformerConfig(1, 16, 2, d_vocab=257, n_ctx=n_ctx, **changes)
    training = TrainingConfig(steps=2, batch_size=4, seq_len=n_ctx, warmup=1)
    return {"transformer": sizes, "training": training, "seq_len": n_ctx}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[FinishedRun]:
    """One of each kind."""
    out = tmp_path_factory.mktemp("runs")
    few: dict[str, Any] = {"n_fit": 16, "n_held_out": 8}
    comparing = CompareConfig(**small(24), **few, history=True)
    heads = HeadsConfig(**small(32, positions="rotary"), n_sequences=16, ablate="rotary")
    watched = EmergenceConfig(**small(24), n_seeds=2)
    claims = ReproduceConfig("kazemnejad2023", n_seeds=2, length=0.125)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counter, "_SPLITS", (("fit", 16), ("held_out", 8)))
        reproduced = reproduce(claims, out=out)
    return [
        compare(comparing, out=out, show_progress=False),
        classify_heads(heads, out=out, show_progress=False),
        watch_emergence(watched, out=out, show_progress=False),
        reproduced,
    ]


def test_every_page_is_the_same_without_torch(runs: list[FinishedRun], tmp_path: Path) -> None:
    folders = [str(run.folder) for run in runs]
    command = [sys.executable, "-c", DRAW, str(tmp_path), *folders]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for run in runs:
        drawn = (tmp_path / f"{run.folder.name}.html").read_text(encoding="utf-8")
        assert drawn == run.html(), run.experiment


def test_a_run_introduces_itself_in_ten_lines(runs: list[FinishedRun]) -> None:
    for run in runs:
        lines = repr(run).splitlines()
        assert len(lines) <= 10
        assert len(repr(run)) < 1500
        assert lines[0].startswith(f"{type(run).__name__} of ")
        assert str(run.folder) in lines[1]
        assert f"{len(run.measurements)} rows" in lines[2]
        assert lines[3].split() == run.headline.split()[: len(lines[3].split())]
        assert ".measurements" in lines[-1]
        assert ".write_report()" in lines[-1]
        # The page in a notebook is another matter.
        assert run._repr_html_().startswith("<iframe")
