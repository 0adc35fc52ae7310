"""Finished runs of any experiment, read back from their folders."""

from pathlib import Path

from experiments.emergence import Emergence
from experiments.finished_run import FinishedRun
from experiments.heads import HeadClassification
from experiments.hypotheses import Comparison
from experiments.reproduce.run import Reproduction
from experiments.run_folder import RunFolder
from nope_interp.errors import unknown_name

_KINDS: dict[str, type[FinishedRun]] = {
    kind.experiment: kind for kind in (Comparison, Emergence, HeadClassification, Reproduction)
}


def load_run(folder: Path | str) -> FinishedRun:
    """The finished run in `folder`; raises UserError where it is unfinished or damaged."""
    run = RunFolder(Path(folder))
    # Says so itself where there is none.
    experiment = run.read_info()["experiment"] if run.finished else Comparison.experiment
    if experiment not in _KINDS:
        raise unknown_name("experiment", experiment, _KINDS)
    return _KINDS[experiment].load(folder)
