"""The methods that are judged, by name. Imports nothing heavy.

A method is one function: of a planted model, a place and a seed. It says of each code that it
speaks of whether the model uses it: "used", "redundant", "not used" or "undecided". The place is a
`Site`, or None for the whole stream; a method that says nothing of such places gives no words.

Example:
    >>> from experiments.benchmark.judge import judge_methods
    >>> from experiments.benchmark.methods import METHODS
    >>> def always(planted, place, seed):
    ...     return {"smooth trend": "used"}
    >>> METHODS["always"] = always
    >>> judge_methods(seeds=2, methods=["always"])  # doctest: +SKIP
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

# Planted model, place, seed; to words by code.
Method = Callable[[Any, Any, int], Mapping[str, str]]

# A function, or the module that it is imported from when it is first needed, and its name there.
METHODS: dict[str, Method | tuple[str, str]] = {
    "probing": ("experiments.benchmark.probing", "probing"),
    "erasure": ("experiments.benchmark.erasure", "erasure"),
    "LEACE": ("experiments.benchmark.erasure", "leace"),
    "DAS": ("experiments.benchmark.das", "das"),
    "interchange": ("experiments.benchmark.interchange", "interchange"),
}


def method(name: str) -> Method:
    """The function of a name in `METHODS`."""
    found = METHODS[name]
    if callable(found):
        return found
    module, function = found
    loaded: Method = getattr(import_module(module), function)
    return loaded
