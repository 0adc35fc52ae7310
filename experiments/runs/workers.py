"""Pools of worker processes, here or on a Ray cluster, in which joblib runs jobs."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from joblib import Parallel, cpu_count, delayed, parallel_config
from joblib.externals.loky.process_executor import BrokenProcessPool

from experiments.runs.processes import end_with

Run = Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]


class WorkerDied(Exception):
    """A worker is gone, and joblib has given up what the others were doing."""


@dataclass(frozen=True)
class Pool:
    """Where jobs run.

    Attributes:
        at_once: how many jobs.
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

    @contextmanager
    def opened(self, at_once: int) -> Iterator[Run]:
        """A function that runs one function on many jobs and gives the results in their order.

        The same workers serve all its calls. It raises WorkerDied where a process ended without a
        word.
        """
        # Two workers, of which one is idle, where jobs run one by one: with a single one joblib
        # would run them in this process, and what kills a job would kill it too.
        workers = max(2, self.at_once)
        with (
            self.backend(),
            Parallel(n_jobs=workers, pre_dispatch=at_once, batch_size=1) as parallel,
        ):

            def run(function: Callable[[Any], Any], jobs: Iterable[Any]) -> list[Any]:
                try:
                    return parallel(delayed(function)(job) for job in jobs)
                except self.deaths as error:
                    raise WorkerDied(str(error)) from error

            yield run

    def run(self, function: Callable[[Any], Any], jobs: Iterable[Any], at_once: int) -> list[Any]:
        """The results of one function on many jobs; raises as `opened` does."""
        with self.opened(at_once) as run:
            return run(function, jobs)


def pool_of(wanted: int, ray: str | None, gpus: float = 0) -> Pool:
    """A pool for `wanted` jobs at once, or for as many as the Ray cluster at `ray` holds.

    On Ray each job is kept a CPU and `gpus` GPUs. Raises UserError for a cluster that cannot be
    used.
    """
    if ray is not None:
        from experiments.runs.ray_cluster import backend_of, deaths, room

        return Pool(min(wanted, room(ray, gpus)), 1, partial(backend_of, gpus), deaths())
    threads = max(1, cpu_count() // wanted)
    backend = partial(parallel_config, "loky", inner_max_num_threads=threads)
    return Pool(wanted, threads, backend, (BrokenProcessPool,), os.getpid())


def settle(threads: int, working_folder: Path, parent: int | None) -> None:
    """Make this process a worker of `parent`, where names of files mean what they mean to it."""
    if parent is not None:
        end_with(parent)
    os.chdir(working_folder)
    torch.set_num_threads(threads)
