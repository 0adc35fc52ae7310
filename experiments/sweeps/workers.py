"""Runs the cells of a sweep in a pool, in processes here or on a Ray cluster.

A worker that dies takes its pool with it: joblib gives up all of its cells. They are then given to
a new pool, and how often each was running when a worker died is counted: after the second time a
cell runs alone, so that the third is its own doing and it is failed.
"""

import fcntl
import os
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from joblib import cpu_count

from experiments.runs.workers import Pool, WorkerDied, pool_of
from experiments.sweeps.sweep import Sweep, SweepCell
from nope_interp.errors import UserError
from nope_interp.files import write_text
from probes.errors import ProbeError

MOST_DEATHS = 3
_REMEDY = "ask for fewer --jobs"


def run_all(sweep: Sweep, cells: Sequence[SweepCell], pool: Pool, device: str) -> None:
    """Run the cells until each is done or has a log.

    Args:
        sweep: where logs and markers are.
        cells: what is left of it.
        pool: where they run.
        device: a torch device for each.

    Raises UserError where a log cannot be written, and where workers die before they run anything.
    """
    # What a worker is sent: the sweep without its cells, which may be thousands, and one of them.
    run = partial(run_cell, replace(sweep, cells=()), device)
    left, in_vain = list(cells), 0
    deaths: Counter[int] = Counter()
    while left:
        together = [cell for cell in left if deaths[cell.number] < MOST_DEATHS - 1]
        batch, at_once = (together, pool.at_once) if together else (left[:1], 1)
        try:
            said = [*pool.run(run, batch, at_once)]
        except WorkerDied as error:
            running = [cell for cell in batch if _abandoned(sweep.marker(cell))]
            for cell in running:
                deaths[cell.number] += 1
                if deaths[cell.number] >= MOST_DEATHS:
                    why = f"its worker died {MOST_DEATHS} times while running it; {error.why}"
                    _write_log(sweep, cell, why)
            before = len(left)
            left = [cell for cell in left if sweep.state(cell) not in ("done", "failed")]
            in_vain = 0 if running or len(left) < before else in_vain + 1
            if in_vain == MOST_DEATHS:
                raise UserError(
                    f"the workers die before they run anything ({error.why}): give them more "
                    f"memory, or {_REMEDY}."
                ) from error
        else:
            ran = {cell.number for cell in batch}
            left = [cell for cell in left if cell.number not in ran]
            for cell, why in zip(batch, said, strict=True):
                if why is not None and not sweep.log(cell).is_file():
                    _write_log(sweep, cell, why)


def run_cell(sweep: Sweep, device: str, cell: SweepCell) -> str | None:
    """Run a cell in this process; why it failed, which its log says too, or None."""
    try:
        with _marked(sweep.marker(cell)):
            config = sweep.experiment.read(cell.config)
            sweep.experiment.run(config, cell.folder.parent, device)
        if not sweep.experiment.finished(cell.folder):
            raise UserError(
                f"{cell.folder.name} is not there: the model or the text has changed since the "
                "sweep began, so begin it again."
            )
        return None
    except (UserError, ProbeError) as error:
        why = str(error)
    # A library that leaves the process would take the other cells with it.
    except (Exception, SystemExit):
        why = traceback.format_exc()
    # On a full disk the log has no room either: whoever asked for the cell says so.
    with suppress(UserError):
        _write_log(sweep, cell, why)
    return why


def sweep_pool(n_cells: int, jobs: int | None, ray: str | None, gpus_per_cell: float) -> Pool:
    """The pool that these options ask for; no larger than all cells of the sweep need.

    Args:
        n_cells: how many cells the whole sweep has.
        jobs: cells at once; None for one on each core, or as many as the cluster holds.
        ray: HOST:PORT of a Ray cluster; None runs here.
        gpus_per_cell: GPUs that Ray keeps for each cell.

    Raises UserError for a cluster that cannot be used.
    """
    if ray is not None:
        return pool_of(min(jobs or n_cells, n_cells), ray, gpus_per_cell, remedy=_REMEDY)
    return pool_of(min(jobs or cpu_count(), n_cells), remedy=_REMEDY)


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
            # A worker that outlives its sweep leaves the file of whoever runs the cell next; on a
            # shared disk its own may be gone altogether.
            with suppress(OSError):
                if os.path.samestat(path.stat(), os.fstat(marker.fileno())):
                    path.unlink()


def _abandoned(marker: Path) -> bool:
    """Whether a worker died while it ran a cell; forgets it."""
    try:
        marker.unlink()
    except FileNotFoundError:
        return False
    return True


def _write_log(sweep: Sweep, cell: SweepCell, why: str) -> None:
    text = f"{cell.label}:\n{why.rstrip()}\n"
    write_text(sweep.log(cell), text)
