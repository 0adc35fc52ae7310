"""Pages of small runs, made when the site is built, for the gallery to frame."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from experiments.benchmark.judge import judge_methods
from experiments.comparison.compare import compare
from experiments.heads.classify import classify_heads
from experiments.papers.reproduce import reproduce
from experiments.runs.finished import FinishedRun

# A prompt is somebody's text: on the page it is shown, and nothing of it runs.
HOSTILE = "</script><img src=x onerror=alert(1)> is a text, as <b>bold</b> is, and no page of ours"
Run = Callable[[Path], FinishedRun]
RUNS: Mapping[str, Run] = {
    "compare": lambda out: compare(
        out=out, show_progress=False, n_fit=32, n_held_out=16, uses="no"
    ),
    "heads": lambda out: classify_heads(
        out=out, show_progress=False, n_sequences=16, prompts=(HOSTILE,)
    ),
    "reproduce": lambda out: reproduce(
        "kazemnejad2023", out=out, show_progress=False, n_seeds=2, length=0.25
    ),
    "benchmark": lambda out: judge_methods(
        out=out, show_progress=False, n_seeds=1, methods=["probing"], kinds=["variance", "counting"]
    ),
}


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("builder-inited", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _write(app: Sphinx) -> None:
    # A short build runs nothing: its frames stay empty.
    if app.config.nb_execution_mode != "off":
        write_pages(Path(app.srcdir) / "generated" / "gallery", Path(app.doctreedir) / "runs")


def write_pages(folder: Path, runs: Path) -> None:
    """Make the runs that are not there yet, and draw their pages.

    Args:
        folder: of the pages.
        runs: the folder of the run folders.
    """
    for name, run in RUNS.items():
        run(runs).write_report(folder / f"page-{name}.html")
