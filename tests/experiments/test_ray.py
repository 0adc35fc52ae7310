"""Runs and sweeps on a Ray cluster, against the same in this process."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from experiments import Comparison, compare
from experiments.probing import shards as shards_module
from experiments.runs.folder import RunFolder
from experiments.sweeps.config import SweepConfig
from experiments.sweeps.sweep import read_sweep
from tests.experiments.cli.command import in_a_process
from tests.experiments.runs.sharing import COMPARE, assert_same_bits, pickling, with_weights_of
from tests.experiments.sweeps.sweep_process import (
    bits,
    bits_of_runs_alone,
    finished_files,
    gates,
    runs,
    start,
    swept,
    until,
    write_sweep,
)
from tests.paths import ROOT

pytestmark = pytest.mark.slow


class Cluster(NamedTuple):
    """The head of a cluster of two workers, its address, and the environment that lets one in."""

    head: psutil.Process
    address: str
    environment: dict[str, str]

    def workers(self) -> list[psutil.Process]:
        """Its processes that run a cell."""
        processes = self.head.children(recursive=True)
        return [p for p in processes if "ray::PoolActor.run_batch" in " ".join(p.cmdline())]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    environment = {"HOME": str(tmp_path_factory.mktemp("home")), "RAY_AUTH_MODE": "token"}
    code = (
        "import ray, sys\n"
        "ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level='ERROR',"
        " object_store_memory=10**8)\n"
        "print(ray.get_runtime_context().gcs_address, flush=True)\n"
        "sys.stdin.read()\n"
    )
    head = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    assert head.stdout is not None
    yield Cluster(psutil.Process(head.pid), head.stdout.readline().strip(), environment)
    head.communicate()


def test_a_run_in_shards_finds_the_same_bits(
    one_thread: None, tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(COMPARE, variants=False)
    monkeypatch.setattr(shards_module, "opened", pickling)
    expected = compare(config, out=tmp_path / "here", shards=2, show_progress=False)
    run = RunFolder.of(with_weights_of(expected, tmp_path / "ray"), config)
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    options = ["--config", "config.json", "--shards", "2", "--ray", cluster.address]
    # In a process of its own: it stays with that cluster.
    done = in_a_process("compare", *options, "--out", "ray", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert_same_bits(expected, Comparison.load(run.path))


def test_a_sweep_survives_its_workers_and_its_driver(
    one_thread: None, tmp_path: Path, cluster: Cluster
) -> None:
    write_sweep(tmp_path, **swept(4))
    config, out = SweepConfig.from_dict(swept(4)), tmp_path / "runs"
    closed = gates(out, config, (2, 4))
    driver = start(tmp_path, "--ray", cluster.address, **cluster.environment)
    until(lambda: list(out.glob("sweep-*/sweep.json")), driver)
    [folder] = out.glob("sweep-*")
    sweep = read_sweep(folder)
    until(lambda: runs(sweep, 2) and cluster.workers(), driver)
    seen = finished_files(out)
    cluster.workers()[0].kill()
    closed[2].close()
    until(lambda: runs(sweep, 4), driver)
    assert finished_files(out).items() >= seen.items(), "a finished cell ran twice"
    seen = finished_files(out)
    assert len(seen) >= 2
    driver.kill()
    driver.wait()
    driver = start(tmp_path, "--ray", cluster.address, **cluster.environment)
    closed[4].close()
    assert driver.wait() == 0, (tmp_path / "stderr").read_text()
    assert finished_files(out).items() >= seen.items(), "a finished cell ran twice"
    assert bits(out) == bits_of_runs_alone(config, tmp_path / "alone")
    assert set(sweep.states().values()) == {"done"}


def test_a_gpu_that_no_machine_has_is_refused(tmp_path: Path, cluster: Cluster) -> None:
    """Said at once, since Ray would wait for one for ever."""
    write_sweep(tmp_path, **swept(1))
    options = ("--ray", cluster.address, "--gpus-per-cell", "1", "--device", "cuda")
    assert start(tmp_path, *options, **cluster.environment).wait() == 2
    said = (tmp_path / "stderr").read_text().splitlines()[-1]
    assert "has room for 0 workers at once" in said
