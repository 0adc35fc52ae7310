"""Finished runs of any experiment, read back from their folders."""

from pathlib import Path

from experiments.benchmark.result import Benchmark
from experiments.comparison.result import Comparison
from experiments.drop.result import Drop
from experiments.emergence.result import Emergence
from experiments.heads.atlas import HeadAtlas
from experiments.heads.result import HeadClassification
from experiments.papers.result import Reproduction
from experiments.runs.finished import FinishedRun
from experiments.runs.folder import RunFolder
from nope_interp.errors import unknown_name

_KINDS: dict[str, type[FinishedRun]] = {
    kind.experiment: kind
    for kind in (
        Benchmark,
        Comparison,
        Drop,
        Emergence,
        HeadAtlas,
        HeadClassification,
        Reproduction,
    )
}


def load_run(folder: Path | str) -> FinishedRun:
    """The finished run of any experiment, read back; needs no torch.

    Args:
        folder: its run folder.

    Returns:
        The run, of its experiment's own kind.

    Raises:
        UserError: the run is unfinished, damaged or of an unknown experiment.
    """
    run = RunFolder.at(folder)
    # Says so itself where there is none.
    experiment = run.read_info()["experiment"] if run.finished else Comparison.experiment
    if not isinstance(experiment, str) or experiment not in _KINDS:
        raise unknown_name("experiment", str(experiment), _KINDS)
    return _KINDS[experiment].load(folder)
