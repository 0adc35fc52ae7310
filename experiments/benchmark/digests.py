"""What stands for a function: its source and the values that it reads, in any process alike."""

import dis
import hashlib
import inspect
import io
import pickle
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from nope_interp.errors import UserError

# The same in every version of Python that runs this.
_PROTOCOL = 5


def digest_of_method(name: str, own: FunctionType) -> str:
    """A digest of a method of one's own.

    Args:
        name: of the method.
        own: the function; of a decorated one what was decorated counts, too.

    Returns:
        16 hexadecimal digits that stand for its source, its defaults, what it closes over and the
        global values that it reads. Of functions, classes and modules that are global only their
        names count.

    Raises:
        UserError: for a value whose content cannot be compared between runs, such as a lock.
    """
    # What a decorator wraps is closed over, and read with the rest.
    read = [(key, _digest_of(name, key, value)) for key, value in _read(own).items()]
    return _digest([_source(own), *read])[:16]


def _digest_of(name: str, key: str, value: Any) -> str:
    try:
        return _digest(value)
    except Exception as error:  # whatever values raise that cannot be written out
        raise UserError(
            f"the method {name!r} reads {key!r}, a {type(value).__name__}, whose content cannot be"
            " compared between runs: make it within the method, or pass on numbers, text or arrays."
        ) from error


def _digest(value: Any) -> str:
    written = io.BytesIO()
    _Writer(written, _PROTOCOL).dump(value)
    return hashlib.sha256(written.getbuffer()).hexdigest()


class _Writer(pickle.Pickler):
    """Writes values to be hashed, never to be read back.

    What pickle writes by reference or not at all stands here for its content; what it writes in
    another way each time, in one.
    """

    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.fast = True  # what is equal is written alike, one object twice or two
        self._functions: list[Any] = []

    def persistent_id(self, value: Any) -> Any:
        """What is written in a value's place; None writes it as pickle does."""
        if isinstance(value, FunctionType):
            return self._of_function(value)
        if isinstance(value, CodeType):  # what it is called and where it stands do not count
            return value.co_code, value.co_names, value.co_consts
        if isinstance(value, type | ModuleType):
            return getattr(value, "__module__", ""), getattr(value, "__qualname__", value.__name__)
        if isinstance(value, set | frozenset):
            return type(value).__name__, sorted(map(_digest, value))
        if isinstance(value, torch.Tensor):
            flat = value.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
            content = flat.view(torch.uint8).numpy()
            return str(value.dtype), tuple(value.shape), _digest_of_bytes(content)
        if type(value) is np.ndarray and not value.dtype.hasobject:
            content = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            return value.dtype.descr, value.shape, _digest_of_bytes(content)
        return None

    def _of_function(self, function: Any) -> Any:
        if function in self._functions:  # one that calls itself
            return self._functions.index(function)
        self._functions.append(function)
        return _source(function), _read(function)


def _digest_of_bytes(content: np.ndarray) -> str:
    return hashlib.sha256(content.data).hexdigest()


def _source(function: Any) -> str | CodeType:
    code: CodeType = function.__code__
    try:
        return inspect.getsource(code)
    except OSError:  # typed where nothing keeps what is typed
        return code


def _read(function: Any) -> dict[str, Any]:
    """The values that a function reads beside what it is given, by name."""
    parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    defaults = {of.name: of.default for of in parameters if of.default is not of.empty}
    closed = inspect.getclosurevars(function).nonlocals
    return {**_globals(function), **closed, **defaults}


def _globals(function: Any) -> Mapping[str, Any]:
    there = function.__globals__
    names = sorted(_global_names(function.__code__))
    found = {name: there[name] for name in names if name in there}
    return {
        name: value
        for name, value in found.items()
        if not isinstance(value, type | ModuleType) and not inspect.isroutine(value)
    }


def _global_names(code: CodeType) -> Iterator[str]:
    """Also of functions and comprehensions within, which `inspect.getclosurevars` leaves out."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _global_names(inner)
