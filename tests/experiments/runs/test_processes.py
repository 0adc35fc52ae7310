"""Pieces of work in processes of their own, and cells that are computed there."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from threadpoolctl import threadpool_info

from experiments.results.measurements import COLUMNS, read_arrays, table
from experiments.runs.cells import Cell, Cells
from experiments.runs.lock import LOCK, alone_in
from experiments.runs.workers import HERE, Pool, WorkerDied, one_thread_each, pool_of
from nope_interp.errors import UserError


def _call(piece: Callable[[], Any]) -> Any:
    return piece()


def in_processes(pieces: Sequence[Callable[[], Any]], pool: Pool | None = None) -> list[Any]:
    return [*(pool or two()).run(_call, pieces)]


def two() -> Pool:
    return pool_of(2, remedy="run one at a time")


def _process_and_threads(number: int) -> tuple[int, int, int]:
    return number, os.getpid(), torch.get_num_threads()


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


@pytest.fixture(autouse=True, scope="module")
def two_threads_in_new_processes() -> Iterator[None]:
    """Unless workers see to it. Of one environment, all tests share their workers."""
    with pytest.MonkeyPatch.context() as patch:
        for pool in ("OMP", "OPENBLAS", "MKL"):
            patch.setenv(f"{pool}_NUM_THREADS", "2")
        yield


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_pieces_run_in_several_processes_of_one_thread_and_in_order() -> None:
    found = in_processes([partial(_process_and_threads, n) for n in range(6)])
    assert [number for number, *_ in found] == list(range(6))
    assert os.getpid() not in {process for _, process, _ in found}
    assert {threads for *_, threads in found} == {1}


def test_one_thread_keeps_the_work_here(two_threads: None) -> None:
    assert one_thread_each().at_once == 2
    torch.set_num_threads(1)
    assert one_thread_each() == HERE


@pytest.mark.parametrize("pool", [HERE, two()])
def test_no_work_gives_nothing(pool: Pool) -> None:
    assert in_processes([], pool) == []


def test_a_pool_here_runs_in_this_process() -> None:
    found = in_processes([partial(_process_and_threads, n) for n in range(3)], HERE)
    assert [number for number, *_ in found] == [0, 1, 2]
    assert {process for _, process, _ in found} == {os.getpid()}


def test_what_a_piece_raises_is_raised_here() -> None:
    """So it is where workers run it, as below, where each mistake costs a start of new ones."""
    with pytest.raises(UserError, match="piece 2 cannot be done"):
        in_processes([partial(_refused, n) for n in range(4)], HERE)


def test_the_death_of_a_worker_goes_from_one_process_to_another() -> None:
    died = pickle.loads(pickle.dumps(WorkerDied("it was killed", "have fewer")))
    assert str(died) == (
        "a worker died (it was killed): give it more memory, or have fewer; what was finished is "
        "kept."
    )


def test_what_a_worker_keeps_is_not_sent_back(tmp_path: Path) -> None:
    sent: list[object] = []

    class Listening(Pool):
        def run(self, *arguments: Any, **options: Any) -> Iterator[Any]:
            for found in super().run(*arguments, **options):
                sent.append(found)
                yield found

    found = Cells(tmp_path, pool=Listening()).side_by_side({"t": _noise}, [3, 4])["t"]
    np.testing.assert_array_equal(found["x"], [_noise(3)["x"], _noise(4)["x"]])
    assert sent == [None, None]


def _rows_of(seed: int) -> Cell:
    rows = [
        {
            **dict.fromkeys(COLUMNS, "x"),
            **dict.fromkeys(("value", "ci_low", "ci_high", "chance"), float(seed)),
            **dict.fromkeys(("seed", "step", "layer", "head", "n"), seed),
            "begin_token": False,
        }
    ]
    return Cell(table(rows), {f"array {seed}": np.arange(seed)})


@pytest.mark.parametrize("pool", [HERE, two()])
def test_cells_are_gathered_in_the_order_in_which_they_are_asked_for(
    tmp_path: Path, pool: Pool
) -> None:
    order = [2, 0, 1, 3]
    computes = {f"cell {n}": partial(_rows_of, n) for n in order}
    earlier = Cells(tmp_path)
    earlier.get("cell 3", computes["cell 3"])  # made first, by a run that was killed
    cells = Cells(tmp_path, pool=pool)
    for n, title in enumerate(cells.each(computes), start=1):
        assert title == f"cell {order[n - 1]}"
        assert cells.gathered().rows["seed"].tolist() == order[:n]
    assert list(cells.all(computes)) == list(computes)
    gathered = cells.gathered()
    assert gathered.rows["seed"].tolist() == order
    pd.testing.assert_frame_equal(
        gathered.rows, pd.concat([_rows_of(n).rows for n in order], ignore_index=True)
    )
    assert list(gathered.arrays) == [f"array {n}" for n in order]
    assert len(Cells(tmp_path).gathered().rows) == 0


def test_cells_whose_files_would_be_one_are_refused(tmp_path: Path) -> None:
    computes = {"a/b": partial(_rows_of, 1), "a-b": partial(_rows_of, 2)}
    with pytest.raises(UserError, match="two names differ only in '/' and '-': rename one"):
        Cells(tmp_path).all(computes)


def test_a_folder_that_is_removed_while_its_lock_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, removals = Path.mkdir, [1]

    def mkdir(self: Path, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        if removals:  # as by a process that is refused
            removals.pop()
            self.rmdir()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with alone_in(tmp_path / "run"):
        assert (tmp_path / "run" / LOCK).is_file()
    assert not removals


def test_cells_side_by_side_have_the_bits_of_cells_one_by_one(tmp_path: Path) -> None:
    titles: list[str] = []

    def advance(title: str, kept: bool) -> None:
        titles.append(title)

    together = Cells(tmp_path / "a", advance, two())
    alone = Cells(tmp_path / "b", advance)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    found = together.side_by_side({"one": _noise, "two / three": _noise}, range(3))
    assert found.keys() == {"one", "two / three"}
    for title, cell in found.items():
        np.testing.assert_array_equal(cell["x"], alone.per_seed(title, range(3), _noise)["x"])
    # Seed by seed: what a stopped run has done has every title.
    assert titles[:6] == [f"{title}, seed {seed}" for seed in range(3) for title in found]


def test_only_what_is_missing_or_damaged_is_computed(tmp_path: Path) -> None:
    cells = tmp_path / "cells"
    cells.mkdir()
    compute = partial(_counted, tmp_path)
    for _ in range(2):
        Cells(cells, print, two()).side_by_side({"t": compute}, range(3))
    next(cells.glob("*seed 1*")).write_bytes(b"damaged")
    found = Cells(cells, print, two()).side_by_side({"t": compute}, range(3))["t"]
    np.testing.assert_array_equal(found["x"][1], _noise(1)["x"])
    computed = {seed: (tmp_path / f"computed {seed}").read_text() for seed in range(3)}
    assert computed == {0: "x", 1: "xx", 2: "x"}


def test_a_cell_with_a_flipped_bit_is_computed_again(tmp_path: Path) -> None:
    cells, compute = tmp_path / "cells", partial(_counted, tmp_path, 0)
    Cells(cells).arrays("t", compute)
    (path,) = cells.glob("*.safetensors")
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    np.testing.assert_array_equal(Cells(cells).arrays("t", compute)["x"], _noise(0)["x"])
    assert (tmp_path / "computed 0").read_text() == "xx"


def _process_and_all_threads() -> tuple[int, set[int]]:
    pools = {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
    assert pools
    return os.getpid(), pools | {torch.get_num_threads()}


@pytest.mark.parametrize("left", [1, 2])
@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_every_piece_has_the_threads_of_all_others(
    two_threads: None, wanted: int, left: int
) -> None:
    """However many there are, and however many run at once."""
    found = in_processes([_process_and_all_threads] * left, pool_of(wanted, remedy=""))
    assert len(found) == left
    for process, threads in found:
        assert process != os.getpid()
        assert threads == {1}
    assert torch.get_num_threads() == 2


_WITHOUT_PROCESSES = """
import os, threading, torch
from experiments.runs.workers import pool_of

def piece(_):
    others = {thread for thread in threading.enumerate() if thread.daemon}
    for thread in others - {threading.current_thread()}:
        thread.join()  # such as one that ends this process because it has no parent of its own
    return os.getpid(), torch.get_num_threads()

torch.set_num_threads(2)
print(list(pool_of(2, remedy="").run(piece, range(2))) == [(os.getpid(), 1)] * 2)
print(torch.get_num_threads())
"""


def test_a_run_without_processes_does_not_end_itself() -> None:
    environment = {**os.environ, "JOBLIB_MULTIPROCESSING": "0"}
    command = [sys.executable, "-c", _WITHOUT_PROCESSES]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["True", "2"]


# ---------------------------------------------------------------- workers of their own

# The tests above share two workers, which take seconds to start: those here end them.


def test_a_function_that_no_worker_can_import_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    here = ModuleType("only_here")
    exec("def mine():\n    return 1\n", vars(here))
    monkeypatch.setitem(sys.modules, "only_here", here)
    with pytest.raises(UserError, match=r"No module named 'only_here'.*can be imported") as refused:
        in_processes([here.mine])
    assert not isinstance(refused.value, WorkerDied)


def _third_is_refused(seed: int) -> dict[str, np.ndarray]:
    return _noise(_refused(seed))


@pytest.mark.parametrize("pool", [HERE, two()])
def test_a_cell_is_told_of_when_it_is_kept(tmp_path: Path, pool: Pool) -> None:
    """Progress counts what is done, and nothing is told of the cell that fails."""
    told: list[str] = []

    def advance(title: str, kept: bool) -> None:
        assert not kept
        assert (tmp_path / f"{title}.safetensors").is_file()
        told.append(title)

    with pytest.raises(UserError, match="piece 2 cannot be done"):
        Cells(tmp_path, advance, pool).side_by_side({"t": _third_is_refused}, range(3))
    assert "t, seed 2" not in told
    assert pool != HERE or told == ["t, seed 0", "t, seed 1"]


def _killed_in_the_second(seed: int) -> dict[str, np.ndarray]:
    if seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return _noise(seed)


def test_a_dead_worker_is_one_sentence_and_what_was_finished_is_kept(tmp_path: Path) -> None:
    one_by_one = pool_of(1, remedy="run one at a time")
    with pytest.raises(UserError, match=r"^a worker died \(.*memory.*run one at a time.*is kept"):
        Cells(tmp_path, print, one_by_one).side_by_side({"t": _killed_in_the_second}, [0, 1])
    [kept] = tmp_path.glob("*.safetensors")
    np.testing.assert_array_equal(read_arrays(kept)["x"], _noise(0)["x"])
