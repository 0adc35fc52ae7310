"""Independent pieces of work in several processes at once, one thread each.

Small models keep no second thread busy: two trainings beside each other take the time of one.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cache
from typing import TypeVar

import torch
from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import BrokenProcessPool

from nope_interp.errors import UserError
from nope_interp.streams import one_thread_pool

Result = TypeVar("Result")


def process_map(work: Sequence[Callable[[], Result]], at_once: int) -> Iterator[tuple[int, Result]]:
    """The results and the numbers of the pieces they belong to, as they come.

    With one at once they run here, in order. What a piece raises is raised here, and no further
    piece is begun. Raises UserError where a process dies.
    """
    if at_once < 2:
        yield from ((number, piece()) for number, piece in enumerate(work))
        return
    # A number of threads can change last digits: one for the last piece left as for all others. Of
    # two workers one is idle then; with a single one joblib would run the piece in this process.
    workers = max(2, min(at_once, len(work)))
    parallel = Parallel(workers, backend="loky", return_as="generator_unordered")
    jobs = (delayed(_run)(number, piece, os.getpid()) for number, piece in enumerate(work))
    try:
        with closing(parallel(jobs)) as results:
            yield from results
    except BrokenProcessPool as error:
        why = next(iter(str(error).splitlines()), "without a word").rstrip(".")
        raise UserError(
            f"a worker died ({why}): give it more memory, or run one at a time with "
            "OMP_NUM_THREADS=1; what was finished is kept."
        ) from error


def _run(number: int, piece: Callable[[], Result], parent: int) -> tuple[int, Result]:
    end_with(parent)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with one_thread_pool():
            return number, piece()
    finally:
        # Where joblib may start no processes, they are the parent's own.
        torch.set_num_threads(threads)


@cache
def end_with(parent: int) -> None:
    """From now on this process ends with its parent: a killed run leaves no workers behind.

    joblib's own would go on for minutes, with their memory and their device.
    """
    # Where joblib may start no processes, the parent runs its jobs itself.
    if parent == os.getpid():
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
