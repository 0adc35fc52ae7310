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

Result = TypeVar("Result")


def side_by_side(
    work: Sequence[Callable[[], Result]], at_once: int
) -> Iterator[tuple[int, Result]]:
    """The results and the numbers of the pieces they belong to, as they come.

    With one at once they run here, in order. What a piece raises is raised here, and no further
    piece is begun.
    """
    if at_once < 2 or len(work) < 2:
        yield from ((number, piece()) for number, piece in enumerate(work))
        return
    parallel = Parallel(min(at_once, len(work)), backend="loky", return_as="generator_unordered")
    jobs = (delayed(_run)(number, piece, os.getpid()) for number, piece in enumerate(work))
    with closing(parallel(jobs)) as results:
        yield from results


def _run(number: int, piece: Callable[[], Result], parent: int) -> tuple[int, Result]:
    end_with(parent)
    torch.set_num_threads(1)
    return number, piece()


@cache
def end_with(parent: int) -> None:
    """From now on this process ends with its parent: a killed run leaves no workers behind.

    joblib's own would go on for minutes, with their memory and their device.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
