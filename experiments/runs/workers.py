"""Where work runs: in this process, in others beside it, or on a Ray cluster.

All that runs in several processes at once, the cells of a run, the shares of its sequences and the
runs of a sweep, is a function and jobs that are handed to a `Pool`.
"""

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from joblib import Parallel, cpu_count, delayed, parallel_config
from joblib.externals.loky.process_executor import BrokenProcessPool
from tqdm import tqdm

from experiments.runs.ray_cluster import Run, deaths, on_ray, room
from nope_interp.errors import UserError
from nope_interp.threads import one_thread_pool

# How joblib begins where a worker cannot load what it is sent.
_UNREAD = "failed to un-serialize"


class WorkerDied(UserError):
    """A worker is gone, and not all jobs are done.

    Args:
        why: what is known of it.
        remedy: how fewer workers are asked for.
    """

    def __init__(self, why: str, remedy: str) -> None:
        # As these come from one process to another.
        super().__init__(why, remedy)
        self.why, self.remedy = why, remedy

    def __str__(self) -> str:
        return (
            f"a worker died ({self.why}): give it more memory, or {self.remedy}; what was finished "
            "is kept."
        )


@dataclass(frozen=True)
class Pool:
    """Where jobs run.

    Attributes:
        at_once: how many jobs.
        threads: of each; None leaves this process as it is.
        workers: the context in which so many workers run jobs; None runs them in this process.
        deaths: what is raised there where one is gone.
        remedy: how fewer workers are asked for, as a message says it.
    """

    at_once: int = 1
    threads: int | None = None
    workers: Callable[[int], AbstractContextManager[Run]] | None = None
    deaths: tuple[type[Exception], ...] = ()
    remedy: str = "have fewer at once"

    @contextmanager
    def opened(self, at_once: int | None = None) -> Iterator[Run]:
        """A function that runs one function on many jobs and gives the results in their order,
        each as soon as it and those before it are there.

        The same workers serve all its calls.

        Args:
            at_once: how many jobs, where fewer than the pool's are wanted.

        The function raises WorkerDied where a process ended without a word, UserError where one
        cannot load what it is to run, and what a job raises.
        """
        if self.workers is None:
            yield map
            return
        with self.workers(min(self.at_once, at_once or self.at_once)) as spread:

            def run(function: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[Any]:
                settled = partial(_settled, function, self.threads, Path.cwd())
                try:
                    yield from spread(settled, jobs)
                except self.deaths as error:
                    why = next(iter(str(error).splitlines()), "without a word").rstrip(".")
                    if _UNREAD in why:
                        raise _not_loaded(error) from error
                    raise WorkerDied(why, self.remedy) from error

            yield run

    def run(
        self, function: Callable[[Any], Any], jobs: Iterable[Any], at_once: int | None = None
    ) -> Iterator[Any]:
        """The results of one function on many jobs, in their order; nothing runs until they are
        asked for.

        Args:
            function: what is done with each.
            jobs: what there is to do; each is taken when it is its turn.
            at_once: how many, where fewer than the pool's are wanted.

        Yields:
            Each result as soon as it and those before it are there.

        Raises:
            WorkerDied: where a process ended without a word.
            UserError: where a process cannot load what it is to run, and whatever a job raises.
        """
        with self.opened(at_once) as run:
            yield from run(function, jobs)


HERE = Pool()


@contextmanager
def _processes(at_once: int) -> Iterator[Run]:
    """Processes beside this one. Where one dies, joblib gives up what all others were doing."""
    # Two of them, of which one is idle, where jobs run one by one: with a single one joblib would
    # run them in this process, and what kills a job would kill it too.
    how: dict[str, Any] = {"pre_dispatch": at_once, "batch_size": 1, "return_as": "generator"}
    with (
        warnings.catch_warnings(),
        parallel_config("loky", initializer=end_with, initargs=(os.getpid(),)),
        Parallel(max(2, at_once), **how) as parallel,
    ):
        # A worker whose memory has grown is replaced by a new one, and nothing is lost.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given")
        yield lambda function, jobs: parallel(delayed(function)(job) for job in jobs)


def _not_loaded(error: Exception) -> UserError:
    """As where a function of the user's stands in a file that was run and cannot be imported."""
    told = [line.strip() for line in str(error.__cause__).splitlines() if "Error: " in line]
    why = told[-1] if told else "it does not say why"
    return UserError(
        f"a worker cannot load what it is to run ({why}): keep functions of yours in a module that "
        "can be imported."
    )


def pool_of(
    wanted: int, ray: str | None = None, gpus: float = 0, *, threads: int = 1, remedy: str
) -> Pool:
    """A pool of processes, one thread each unless more are asked for.

    A number of threads can change last digits: it depends neither on how many jobs there are nor on
    how many run at once.

    Args:
        wanted: jobs at once; on Ray as many of these as the cluster holds.
        ray: HOST:PORT of a Ray cluster; None has the processes here.
        gpus: that Ray keeps for each job, beside a CPU.
        threads: of each process here.
        remedy: how fewer workers are asked for, should one die.

    Returns:
        The pool; no process is begun yet.

    Raises:
        UserError: for a cluster that cannot be used.
    """
    if ray is not None:
        at_once = min(wanted, room(ray, gpus))
        return Pool(at_once, 1, partial(on_ray, gpus), deaths(), remedy=remedy)
    return Pool(wanted, threads, _processes, (BrokenProcessPool,), remedy)


def one_thread_each() -> Pool:
    """A process of one thread for each thread that torch would use here, where it is more than one.

    Small models keep no second thread busy: two trainings beside each other take the time of one.
    """
    at_once = torch.get_num_threads()
    return HERE if at_once < 2 else pool_of(at_once, remedy="set OMP_NUM_THREADS=1")


def threads_beside(others: int) -> int:
    """How many threads each of so many processes has where they share all cores."""
    return max(1, cpu_count() // others)


def _settled(
    function: Callable[[Any], Any],
    threads: int | None,
    working_folder: Path,
    job: Any,
) -> Any:
    """Does a job as a worker, where names of files mean what they mean to whoever sent it."""
    try:
        os.chdir(working_folder)
    except OSError as error:
        raise UserError(
            f"a worker has no folder {str(working_folder)!r} ({error.strerror}): start where all "
            "machines share the folder."
        ) from error
    with torch_threads(threads) if threads else nullcontext():
        return function(job)


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """While it is open, torch has so many threads, and NumPy's linear algebra one."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        with one_thread_pool():
            yield
    finally:
        # Where joblib may start no processes, they are the parent's own.
        torch.set_num_threads(before)


@cache
def end_with(parent: int) -> None:
    """From now on this process ends with its parent: a killed run leaves no workers behind.

    joblib's own would go on for minutes, with their memory and their device.
    """
    # Where joblib may start no processes, the parent runs its jobs itself.
    if parent == os.getpid():
        return
    # The lock of progress bars would be a semaphore between processes, which Python calls leaked,
    # after our last sentence, where a worker ends this way.
    tqdm.set_lock(threading.RLock())

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
