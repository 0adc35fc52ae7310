"""Runs the cells of a sweep through joblib, in processes here or on a Ray cluster.

A worker that dies takes its pool with it: joblib gives up all of its cells. They are then given to
a new pool, and how often each was running when a worker died is counted: after the second time a
cell runs alone, so that the third is its own doing and it is failed.
"""

import fcntl
import os
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from joblib import Parallel, cpu_count, delayed, parallel_config
from joblib.externals.loky.process_executor import BrokenProcessPool

from experiments.registry import Experiment
from experiments.subject_config import SubjectConfig
from experiments.sweep import Cell, Sweep
from experiments.sweep_config import SweepConfig
from nope_interp.devices import check_device
from nope_interp.errors import UserError
from nope_interp.files import write_atomically
from nope_interp.tasks.registry import make_task
from nope_interp.training import check_trainable
from probes.errors import ProbeError

MOST_DEATHS = 3


class WorkerDied(Exception):
    """A worker is gone, and joblib has given up what the others were doing."""


@dataclass(frozen=True)
class Pool:
    """Where cells run.

    Attributes:
        at_once: how many cells.
        threads: of each.
        backend: the context in which joblib finds its workers.
        deaths: what it raises where one is gone.
        parent: the process that workers end with; None where something else sees to it.
    """

    at_once: int
    threads: int
    backend: Callable[[], AbstractContextManager[Any]]
    deaths: tuple[type[Exception], ...] = ()
    parent: int | None = None

    def run(self, jobs: Sequence["Job"], at_once: int) -> dict[int, str]:
        """Run all jobs; why some failed, by the number of their cell.

        Raises WorkerDied where a process ended without a word.
        """
        # Two workers, of which one is idle, where cells run one by one: with a single one joblib
        # would run them in this process, and what kills a cell would kill the sweep.
        workers = max(2, self.at_once)
        with self.backend():
            parallel = Parallel(n_jobs=workers, pre_dispatch=at_once, batch_size=1)
            try:
                said = parallel(delayed(run_cell)(job) for job in jobs)
            except self.deaths as error:
                raise WorkerDied(str(error)) from error
        found = zip(jobs, said, strict=True)
        return {job.cell.number: why for job, why in found if why is not None}


@dataclass(frozen=True)
class Job:
    """A cell with everything that a process on another machine needs to run it."""

    experiment: Experiment
    cell: Cell
    marker: Path
    log: Path
    device: str
    threads: int
    working_folder: Path
    parent: int | None


def run_all(sweep: Sweep, cells: Sequence[Cell], pool: Pool, device: str) -> None:
    """Run the cells until each is done or has a log.

    Raises UserError where a log cannot be written, and where workers die before they run anything.
    """
    left = [_job(sweep, cell, pool, device) for cell in cells]
    deaths: Counter[int] = Counter()
    in_vain = 0
    while left:
        together = [job for job in left if deaths[job.cell.number] < MOST_DEATHS - 1]
        batch, at_once = (together, pool.at_once) if together else (left[:1], 1)
        try:
            failures = pool.run(batch, at_once)
        except WorkerDied as error:
            running = [job for job in batch if _abandoned(job)]
            for job in running:
                deaths[job.cell.number] += 1
                if deaths[job.cell.number] >= MOST_DEATHS:
                    _write_log(
                        job, f"its worker died {MOST_DEATHS} times while running it; {error}"
                    )
            before = len(left)
            left = [job for job in left if sweep.state(job.cell) not in ("done", "failed")]
            in_vain = 0 if running or len(left) < before else in_vain + 1
            if in_vain == MOST_DEATHS:
                raise UserError(
                    f"the workers die before they run anything ({error}): give them more memory, "
                    "or fewer --jobs."
                ) from error
        else:
            ran = {job.cell.number for job in batch}
            left = [job for job in left if job.cell.number not in ran]
            for job in batch:
                if job.cell.number in failures and not job.log.is_file():
                    _write_log(job, failures[job.cell.number])


def run_cell(job: Job) -> str | None:
    """Run a cell in this process; why it failed, which its log says too, or None."""
    if job.parent is not None:
        _end_with(job.parent)
    try:
        os.chdir(job.working_folder)  # where relative names of models and texts hold
        torch.set_num_threads(job.threads)
        with _marked(job.marker):
            config = job.experiment.read(job.cell.config)
            job.experiment.run(config, job.cell.folder.parent, job.device)
        if not job.experiment.finished(job.cell.folder):
            raise UserError(
                f"{job.cell.folder.name} is not there: the model or the text has changed since the "
                "sweep began, so begin it again."
            )
    except (UserError, ProbeError) as error:
        return _kept(job, str(error))
    # A library that leaves the process would take the other cells with it.
    except (Exception, SystemExit):
        return _kept(job, traceback.format_exc())
    return None


def check_cells(config: SweepConfig, device: str, *, here: bool) -> None:
    """Raise UserError for a cell whose model cannot be trained, or for a device not `here`."""
    if here and device != "auto":
        check_device(device)
    for cell in config.cells:
        asked = cell.config
        if not isinstance(asked, SubjectConfig) or asked.model is not None:
            continue
        try:
            check_trainable(asked.transformer, asked.training, _task(asked.task, asked.text))
        except UserError as error:
            raise UserError(f"{cell.label}: {error}") from error


def pool_of(
    n_cells: int, jobs: int | None, ray: str | None, gpus_per_cell: float, device: str
) -> Pool:
    """The pool that these options ask for; no larger than all cells of the sweep need.

    Raises UserError for numbers that make no sense and a cluster that cannot be used.
    """
    if jobs is not None and jobs < 1:
        raise UserError(f"jobs is {jobs}: give at least 1.")
    if not gpus_per_cell >= 0:
        raise UserError(f"GPUs per cell are {gpus_per_cell:g}: give 0 or more.")
    if ray is not None:
        from experiments.sweep_ray import backend_of, deaths, room

        if gpus_per_cell and not device.startswith("cuda"):
            raise UserError(f"GPUs are kept for cells on the device {device!r}: add --device cuda.")
        at_once = min(jobs or n_cells, n_cells, room(ray, gpus_per_cell))
        return Pool(at_once, 1, partial(backend_of, gpus_per_cell), deaths())
    if gpus_per_cell:
        raise UserError("GPUs per cell are for Ray: add --ray HOST:PORT, or leave them out.")
    at_once = min(jobs or cpu_count(), n_cells)
    # A number of threads can change last digits: the same for what is left as for the whole.
    threads = max(1, cpu_count() // at_once)
    backend = partial(parallel_config, "loky", inner_max_num_threads=threads)
    return Pool(at_once, threads, backend, (BrokenProcessPool,), os.getpid())


def _job(sweep: Sweep, cell: Cell, pool: Pool, device: str) -> Job:
    here = Path.cwd()
    placed = Cell(cell.number, cell.values, cell.config, here / cell.folder)
    marker, log = here / sweep.marker(cell), here / sweep.log(cell)
    return Job(sweep.experiment, placed, marker, log, device, pool.threads, here, pool.parent)


@cache
def _end_with(parent: int) -> None:
    """From now on this process ends with its parent: a killed sweep leaves no workers behind.

    joblib's own would go on for minutes, with their memory and their device.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _marked(path: Path) -> Iterator[None]:
    """While it is open, a locked file says that this process runs a cell.

    The lock dies with the process: a file without one is what a killed worker leaves.
    """
    with path.open("w") as marker:
        fcntl.flock(marker, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _abandoned(job: Job) -> bool:
    """Whether a worker died while it ran the job; forgets it."""
    try:
        job.marker.unlink()
    except FileNotFoundError:
        return False
    return True


def _kept(job: Job, why: str) -> str:
    # On a full disk the log has no room either: whoever asked for the cell says so.
    with suppress(UserError):
        _write_log(job, why)
    return why


def _write_log(job: Job, why: str) -> None:
    text = f"{job.cell.label}:\n{why.rstrip()}\n"
    write_atomically(job.log, lambda part: part.write_text(text, encoding="utf-8"))


@cache
def _task(name: str, text: str | None) -> Any:
    return make_task(name, text)
