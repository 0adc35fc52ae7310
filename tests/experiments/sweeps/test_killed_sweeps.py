"""Sweeps whose workers and drivers are killed."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from experiments.runs.workers import HERE
from experiments.sweeps import registry
from experiments.sweeps import workers as sweep_workers
from experiments.sweeps.config import SweepConfig
from experiments.sweeps.run import begin_sweep, run_sweep
from tests.experiments.sweeps.sweep_experiment import QUICK
from tests.experiments.sweeps.sweep_process import (
    bits,
    bits_of_runs_alone,
    finished_files,
    gates,
    runs,
    start,
    swept,
    until,
    workers,
    write_sweep,
)

PATIENCE = 600  # seconds, for what would otherwise hang: far more than any machine takes


@pytest.mark.slow
def test_a_worker_that_had_nothing_to_do_ends_with_its_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where cells run one by one there are two workers; by itself an idle one stays for minutes."""
    monkeypatch.setitem(registry.EXPERIMENTS, "quick", QUICK)
    write_sweep(tmp_path, **swept(3))
    config, out = SweepConfig.from_dict(swept(3), "s"), tmp_path / "runs"
    sweep = begin_sweep(config, out)
    closed = gates(out, config, (1,))
    driver = start(tmp_path, "--jobs", "1")
    until(lambda: runs(sweep, 1) and len(workers(driver)) == 2, driver)
    alive = workers(driver)
    driver.kill()
    driver.wait()
    assert not psutil.wait_procs(alive, timeout=100)[1]
    closed[1].close()


def test_killed_sweeps_lose_nothing_and_end_in_the_same_bits(
    tmp_path: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of cells a worker is killed, then the driver, then by Ctrl-C everything."""
    monkeypatch.setitem(registry.EXPERIMENTS, "quick", QUICK)
    write_sweep(tmp_path, **swept(8))
    config, out = SweepConfig.from_dict(swept(8), "s"), tmp_path / "runs"
    # All that a driver leaves which is killed at its start.
    sweep = begin_sweep(config, out)
    closed = gates(out, config, (3, 5, 7))

    driver = start(tmp_path, "--jobs", "2")
    until(lambda: runs(sweep, 3), driver)
    seen, earlier = finished_files(out), workers(driver)
    assert len(seen) >= 1
    earlier[0].kill()
    until(lambda: not {*earlier} & {*workers(driver)} and runs(sweep, 3), driver)
    closed[3].close()
    until(lambda: runs(sweep, 5) and sweep.state(sweep.cells[2]) == "done", driver)
    assert finished_files(out).items() >= seen.items(), "a finished cell ran twice"
    seen = finished_files(out)
    alive = workers(driver)
    driver.kill()
    driver.wait()
    assert alive
    assert not psutil.wait_procs(alive, timeout=PATIENCE)[1], "workers outlive their sweep"
    assert set(sweep.states().values()) == {"done", "queued"}
    closed[5].close()

    driver = start(tmp_path, "--jobs", "2")
    until(lambda: runs(sweep, 7), driver)
    assert finished_files(out).items() >= seen.items(), "a finished cell ran twice"
    seen = finished_files(out)
    os.killpg(driver.pid, signal.SIGINT)
    assert driver.wait(PATIENCE) == 2
    assert (tmp_path / "stderr").read_text().splitlines()[-1].startswith("nope-interp: interrupted")
    assert set(sweep.states().values()) == {"done", "queued"}
    closed[7].close()

    monkeypatch.setattr(sweep_workers, "sweep_pool", lambda *_: HERE)
    assert run_sweep(config, out=out, show_progress=False) == sweep
    assert finished_files(out).items() >= seen.items(), "a finished cell ran twice"
    assert bits(out) == bits_of_runs_alone(config, tmp_path / "alone")
    assert set(sweep.states().values()) == {"done"}
    assert {path.name for path in sweep.folder.iterdir()} == {"sweep.json", ".lock"}
    # A progress bar's lock between processes: Python warns of it after our own last sentence.
    assert "leaked semaphore" not in (tmp_path / "stderr").read_text()
