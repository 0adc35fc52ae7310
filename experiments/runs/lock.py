"""One process at a time works in a run folder."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

LOCK = ".lock"
_LOG = logging.getLogger(__name__)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """While it is open, no other process that asks for this works in a folder; waits for one.

    The lock dies with its process, so a killed run leaves none behind.

    Args:
        folder: made where it is not there.
    """
    path = folder / LOCK
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = path.open("w")
        except FileNotFoundError:  # whoever was refused has just removed the folder
            continue
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _LOG.warning("another process makes %s: waiting for it.", folder)
                fcntl.flock(lock, fcntl.LOCK_EX)
            # Whoever was waited for may have removed the folder, and the lock's file with it.
            if _stands_at(path, lock):
                yield
                return


def _stands_at(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
