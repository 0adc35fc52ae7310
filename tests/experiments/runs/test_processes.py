"""Pieces of work in processes of their own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from threadpoolctl import threadpool_info

from experiments.results import findings
from experiments.results.measurements import read_arrays
from experiments.runs.cells import Cells
from experiments.runs.processes import process_map
from nope_interp.errors import UserError


def _process_and_threads(number: int) -> tuple[int, int, int]:
    return number, os.getpid(), torch.get_num_threads()


def _process_and_all_threads() -> tuple[int, set[int]]:
    pools = {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
    assert pools
    return os.getpid(), pools | {torch.get_num_threads()}


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _refused(number: int) -> int:
    if number == 2:
        raise UserError(f"piece {number} cannot be done.")
    return number


def _noise(seed: int) -> dict[str, np.ndarray]:
    generator = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(3, 300, generator=generator).cumsum(1).numpy()}


def _counted(folder: Path, seed: int) -> dict[str, np.ndarray]:
    with (folder / f"computed {seed}").open("a") as log:
        log.write("x")
    return _noise(seed)


def test_pieces_run_in_several_processes_of_one_thread() -> None:
    found = dict(process_map([partial(_process_and_threads, n) for n in range(6)], 2))
    assert {number: result[0] for number, result in found.items()} == {n: n for n in range(6)}
    processes = {result[1] for result in found.values()}
    assert os.getpid() not in processes
    assert {result[2] for result in found.values()} == {1}


@pytest.mark.parametrize("left", [1, 2])
def test_the_last_piece_left_has_the_threads_of_all_others(
    two_threads: None, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    for pool in ("OMP", "OPENBLAS", "MKL"):
        monkeypatch.setenv(f"{pool}_NUM_THREADS", "2")
    found = dict(process_map([_process_and_all_threads] * left, 2))
    assert found.keys() == set(range(left))
    for process, threads in found.values():
        assert process != os.getpid()
        assert threads == {1}
    assert torch.get_num_threads() == 2


def test_no_work_gives_nothing() -> None:
    assert list(process_map([], 2)) == []


def test_one_at_once_runs_here_and_in_order() -> None:
    found = list(process_map([partial(_process_and_threads, n) for n in range(3)], 1))
    assert [number for number, _ in found] == [0, 1, 2]
    assert {result[1] for _, result in found} == {os.getpid()}


@pytest.mark.parametrize("at_once", [1, 2])
def test_what_a_piece_raises_is_raised_here(at_once: int) -> None:
    with pytest.raises(UserError, match="piece 2 cannot be done"):
        list(process_map([partial(_refused, n) for n in range(4)], at_once))


def _killed_after_the_first(folder: Path, seed: int) -> dict[str, np.ndarray]:
    deadline = time.monotonic() + 60
    while seed == 1 and time.monotonic() < deadline:
        if list(folder.glob("*.safetensors")):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
    return _noise(seed)


def test_a_dead_worker_is_one_sentence_and_what_was_finished_is_kept(tmp_path: Path) -> None:
    compute = partial(_killed_after_the_first, tmp_path)
    with pytest.raises(UserError, match=r"^a worker died \(.*memory.*OMP_NUM_THREADS=1.*is kept"):
        Cells(tmp_path, print, at_once=2).process_map({"t": compute}, [0, 1])
    [kept] = tmp_path.iterdir()
    np.testing.assert_array_equal(read_arrays(kept)["x"], _noise(0)["x"])


def test_what_a_worker_keeps_is_not_sent_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []

    def listen(*arguments: object) -> Iterator[tuple[int, object]]:
        for number, result in process_map(*arguments):  # type: ignore[arg-type]
            sent.append(result)
            yield number, result

    monkeypatch.setattr(findings, "side_by_side", listen)
    found = Cells(tmp_path, print).process_map({"t": _noise}, [3, 4])["t"]
    np.testing.assert_array_equal(found["x"], [_noise(3)["x"], _noise(4)["x"]])
    assert sent == [None, None]


def test_cells_side_by_side_have_the_bits_of_cells_one_by_one(tmp_path: Path) -> None:
    titles: list[str] = []
    together = Cells(tmp_path / "a", titles.append, at_once=2)
    alone = Cells(tmp_path / "b", titles.append)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    found = together.process_map({"one": _noise, "two / three": _noise}, range(3))
    assert found.keys() == {"one", "two / three"}
    for title, cell in found.items():
        np.testing.assert_array_equal(cell["x"], alone.per_seed(title, range(3), _noise)["x"])
    assert sorted(titles[:6]) == sorted(
        f"{title}, seed {seed}" for title in found for seed in range(3)
    )


def test_only_what_is_missing_or_damaged_is_computed(tmp_path: Path) -> None:
    cells = tmp_path / "cells"
    cells.mkdir()
    compute = partial(_counted, tmp_path)
    for _ in range(2):
        Cells(cells, print, at_once=2).process_map({"t": compute}, range(3))
    next(cells.glob("*seed 1*")).write_bytes(b"damaged")
    found = Cells(cells, print, at_once=2).process_map({"t": compute}, range(3))["t"]
    np.testing.assert_array_equal(found["x"][1], _noise(1)["x"])
    computed = {seed: (tmp_path / f"computed {seed}").read_text() for seed in range(3)}
    assert computed == {0: "x", 1: "xx", 2: "x"}


_WITHOUT_PROCESSES = """
import os, time, torch
from experiments.runs.processes import side_by_side

def piece():
    time.sleep(0.7)
    return os.getpid(), torch.get_num_threads()

torch.set_num_threads(2)
print([found for _, found in side_by_side([piece] * 2, 2)] == [(os.getpid(), 1)] * 2)
print(torch.get_num_threads())
"""


def test_a_run_without_processes_does_not_end_itself() -> None:
    environment = {**os.environ, "JOBLIB_MULTIPROCESSING": "0"}
    command = [sys.executable, "-c", _WITHOUT_PROCESSES]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["True", "2"]


_KILLED = """
import os, sys, time
from pathlib import Path
from experiments.runs.processes import side_by_side

def piece():
    (Path(sys.argv[1]) / str(os.getpid())).touch()
    time.sleep(100)

list(side_by_side([piece] * 2, 2))
"""


@pytest.mark.slow
def test_workers_end_with_a_killed_run(tmp_path: Path) -> None:
    run = subprocess.Popen([sys.executable, "-c", _KILLED, str(tmp_path)])
    deadline = time.monotonic() + 90
    while len(begun := list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    workers = [psutil.Process(int(path.name)) for path in begun]
    assert len(workers) == 2
    run.kill()
    run.wait()
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive
