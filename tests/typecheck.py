"""How the suite checks annotations while it runs: with whole numbers where floats are expected."""

from collections.abc import Callable
from types import CodeType
from typing import Any

from beartype import BeartypeConf, beartype

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_nested: set[CodeType] = set()


def checked(thing: Any) -> Callable[..., Any]:
    """The function or class, which checks what it is given and what it returns.

    Of a function inside another one only the first is checked. Each call of the outer one makes it
    anew, and to write its checks takes longer than all that they check.
    """
    code = getattr(thing, "__code__", None)
    if code is not None and "<locals>" in thing.__qualname__:
        if code in _nested:
            return thing
        _nested.add(code)
    return _check(thing)
