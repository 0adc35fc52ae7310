"""Sweeps in processes of their own, to be killed at moments that the tests choose."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil

from experiments.runs.folder import RunFolder
from experiments.sweeps.config import SweepConfig
from experiments.sweeps.sweep import Sweep
from tests.paths import ROOT

COMMAND = (
    # Tests that run in the background of a shell would hand on a SIGINT that is ignored.
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from tests.experiments.sweeps.sweep_experiment import command_line; command_line()"
)


def swept(n_cells: int) -> dict[str, Any]:
    """A sweep of runs of milliseconds."""
    return {
        "experiment": "quick",
        "base": {"name": "kazemnejad2023"},
        "grid": {"seed": list(range(n_cells))},
    }


def write_sweep(folder: Path, **values: Any) -> str:
    (folder / "s.yaml").write_text(json.dumps(values))
    return "s.yaml"


def start(folder: Path, *options: str, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", COMMAND, "sweep", "s.yaml", *options]
    with (folder / "stderr").open("ab") as stderr:
        return subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            start_new_session=True,
        )


def until(condition: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    """However long it takes, unless the process ends before."""
    while not condition():
        with suppress(subprocess.TimeoutExpired):
            raise AssertionError(f"it ended with {process.wait(timeout=0.05)} before its time")


def gates(folder: Path, config: SweepConfig, numbers: Iterable[int]) -> dict[int, ExitStack]:
    """Cells of these numbers, which cannot be run until theirs is closed: no kill comes too late.

    A run folder is worked in by one process at a time, and until then that is this one.
    """
    found = {}
    for number in numbers:
        cell = config.cells[number - 1].config
        found[number] = ExitStack()
        found[number].enter_context(RunFolder.of(folder, cell).begin(cell).locked())
    return found


def runs(sweep: Sweep, number: int) -> bool:
    """Whether a process runs the cell, or waits at its gate."""
    return sweep.state(sweep.cells[number - 1]) == "running"


def workers(driver: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return below(psutil.Process(driver.pid), "popen_loky")


def below(process: psutil.Process, name: str) -> list[psutil.Process]:
    """The processes that it started, and those they started, whose command holds the name."""
    found = []
    for child in process.children(recursive=True):
        with suppress(psutil.Error):  # one that ends, or has ended
            found += [child] if name in " ".join(child.cmdline()) else []
    return found


def file_of(folder: Path) -> tuple[int, int]:
    """Changes when a run is finished again."""
    stat = (folder / "info.json").stat()
    return stat.st_ino, stat.st_mtime_ns


def finished_files(out: Path) -> dict[str, tuple[int, int]]:
    return {path.parent.name: file_of(path.parent) for path in out.glob("reproduce-*/info.json")}


def bits(out: Path) -> dict[str, Any]:
    """What the finished runs hold: tables byte by byte, and what is said of them."""
    found = {}
    for folder in sorted(out.glob("reproduce-*")):
        run = RunFolder(folder)
        found[folder.name] = (run.measurements.read_bytes(), json.loads(run.info.read_text()))
    return found


def bits_of_runs_alone(config: SweepConfig, out: Path) -> dict[str, Any]:
    """What each cell's run leaves that is made by itself, in this process, by one thread."""
    out.mkdir()
    for cell in config.cells:
        config.experiment.run(cell.config, out, "cpu")
    return bits(out)
