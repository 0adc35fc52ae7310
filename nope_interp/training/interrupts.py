"""Ctrl-C that waits until what is being done is whole."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """While it is open, Ctrl-C waits; it is felt when it closes.

    Only the main thread is ever interrupted: in another one nothing is to be done.
    """
    in_main = threading.current_thread() is threading.main_thread()
    # A handler that is not Python's own cannot be put back.
    if not in_main or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    waiting: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: waiting.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting:
            signal.raise_signal(signal.SIGINT)
