"""Runs and sweeps on a Ray cluster, against the same in this process."""

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from experiments import compare
from experiments.probing import shards as shards_module
from experiments.sweeps import registry
from experiments.sweeps.config import SweepConfig
from experiments.sweeps.run import run_sweep
from experiments.sweeps.sweep import read_sweep
from tests.experiments.cli.command import assert_one_sentence, nope_interp
from tests.experiments.runs.sharing import COMPARE, assert_same_bits, pickling, with_weights_of
from tests.experiments.sweeps.sweep_experiment import QUICK
from tests.experiments.sweeps.sweep_process import (
    below,
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
    """The head of a cluster of two workers, and its address."""

    head: psutil.Process
    address: str

    def workers(self) -> list[psutil.Process]:
        """Its processes that run a cell."""
        return below(self.head, "ray::_done")


def started(code: str) -> tuple[subprocess.Popen[str], str]:
    """The head and its address. Ray gives its own processes seconds, too few on a busy machine."""
    for _ in range(4):
        head = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert head.stdout is not None
        if address := head.stdout.readline().strip():
            return head, address
        head.communicate()
    raise AssertionError("no Ray cluster started")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The first test that uses it connects this process."""
    code = (
        "import ray, sys\n"
        "ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False,"
        " logging_level='ERROR', object_store_memory=10**8)\n"
        "print(ray.get_runtime_context().gcs_address, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("PYTHONPATH", str(ROOT))
        # Its workers give way to all others, so that beside other tests they hardly run.
        patch.setenv("RAY_worker_niceness", "0")
        # Where memory is short it would kill workers, whoever else has taken the memory.
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")
        patch.setenv("RAY_gcs_server_port_wait_time_s", "300")
        head, address = started(code)
        import ray  # which reads there, once, how it is let in

        yield Cluster(psutil.Process(head.pid), address)
        ray.shutdown()
        head.communicate()


def test_a_run_in_shards_finds_the_same_bits(
    one_thread: None, tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(COMPARE, variants=False)
    with monkeypatch.context() as patch:
        patch.setattr(shards_module, "opened", pickling)
        expected = compare(config, out=tmp_path / "here", shards=2, show_progress=False)
    out = with_weights_of(expected, tmp_path / "ray")
    found = compare(config, out=out, shards=2, ray=cluster.address, show_progress=False)
    assert_same_bits(expected, found)


def test_a_sweep_survives_its_workers_and_its_driver(
    one_thread: None, tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.EXPERIMENTS, "quick", QUICK)
    write_sweep(tmp_path, **swept(4))
    config, out = SweepConfig.from_dict(swept(4), "s"), tmp_path / "runs"
    closed = gates(out, config, (2, 4))
    driver = start(tmp_path, "--ray", cluster.address)
    until(lambda: list(out.glob("sweep-*/sweep.json")), driver)
    [folder] = out.glob("sweep-*")
    sweep = read_sweep(folder)
    until(lambda: runs(sweep, 2) and cluster.workers(), driver)
    seen = finished_files(out)
    for worker in cluster.workers():
        with suppress(psutil.NoSuchProcess):  # that of a cell without a gate may have ended
            worker.kill()
    closed[2].close()
    # Those that were killed may come after the last one, which waits at its gate.
    until(lambda: runs(sweep, 4) and len(finished_files(out)) >= 2, driver)
    assert finished_files(out).items() >= seen.items(), "a finished cell ran twice"
    seen = finished_files(out)
    driver.kill()
    driver.wait()
    closed[4].close()
    assert run_sweep(config, out=out, ray=cluster.address, show_progress=False) == sweep
    assert finished_files(out).items() >= seen.items(), "a finished cell ran twice"
    assert bits(out) == bits_of_runs_alone(config, tmp_path / "alone")
    assert set(sweep.states().values()) == {"done"}


def test_a_gpu_that_no_machine_has_is_refused(tmp_path: Path, cluster: Cluster) -> None:
    """Said at once, since Ray would wait for one for ever."""
    file = write_sweep(tmp_path, experiment="reproduce", list=[{"name": "kazemnejad2023"}])
    options = ("--ray", cluster.address, "--gpus-per-cell", "1", "--device", "cuda")
    run = nope_interp("sweep", file, *options, cwd=tmp_path)
    assert_one_sentence(run, "has room for 0 workers at once")
