"""Sweeps whose workers and drivers are killed."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from experiments.sweeps.config import SweepConfig
from experiments.sweeps.sweep import read_sweep
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
def test_killed_sweeps_lose_nothing_and_end_in_the_same_bits(
    tmp_path: Path, one_thread: None
) -> None:
    """Its driver at the start, then in the middle of cells a worker, the driver, and by Ctrl-C
    everything."""
    write_sweep(tmp_path, **swept(8))
    config, out = SweepConfig.from_dict(swept(8)), tmp_path / "runs"
    driver = start(tmp_path, "--jobs", "2")
    until(lambda: list(out.glob("sweep-*/sweep.json")), driver)
    driver.kill()
    driver.wait()
    [folder] = out.glob("sweep-*")
    sweep, seen = read_sweep(folder), {}
    closed = gates(out, config, (3, 5, 7))

    driver = start(tmp_path, "--jobs", "2")
    until(lambda: runs(sweep, 3), driver)
    seen = finished_files(out)
    workers(driver)[0].kill()
    closed[3].close()
    until(lambda: runs(sweep, 5), driver)
    assert finished_files(out).items() >= seen.items(), "a finished cell ran twice"
    seen = finished_files(out)
    assert len(seen) >= 2
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

    assert start(tmp_path, "--jobs", "2").wait(PATIENCE) == 0, (tmp_path / "stderr").read_text()
    assert finished_files(out).items() >= seen.items(), "a finished cell ran twice"
    assert bits(out) == bits_of_runs_alone(config, tmp_path / "alone")
    assert set(sweep.states().values()) == {"done"}
    assert {path.name for path in folder.iterdir()} == {"sweep.json", ".lock"}
