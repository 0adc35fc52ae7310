"""How many threads linear algebra takes. Needs no torch."""

import sys
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

from threadpoolctl import ThreadpoolController


def one_thread_pool() -> AbstractContextManager[Any]:
    """While it is open, NumPy's and SciPy's linear algebra runs on the calling thread.

    torch's threads stay awake between its calls, and a second pool fights them for the cores: small
    matrix products become ten times slower.
    """
    return _pools(len(sys.modules)).limit(limits=1, user_api="blas")


@lru_cache(maxsize=1)
def _pools(modules: int) -> ThreadpoolController:
    """The pools of all libraries that this process has loaded, with so many modules of Python.

    To find them takes milliseconds, as long as a small model takes for a batch.
    """
    return ThreadpoolController()
