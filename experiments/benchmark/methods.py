"""The methods that are judged, by name. Imports nothing heavy.

A method is one function: of a planted model, a place and a seed. It says of each code that it
speaks of whether the model uses it: "used", "redundant", "not used" or "undecided"; "contributes"
counts as used, and "has not learned order" is no answer. The place is a `Site`, or None for the
whole stream; a method that says nothing of such places gives no words. Where it speaks of language
models, too, another function does, of a planted one and a seed.

Example:
    >>> from experiments.benchmark.judge import judge_methods
    >>> from experiments.benchmark.methods import METHODS
    >>> def always(planted, place, seed):
    ...     return {"smooth trend": "used"}
    >>> METHODS["always"] = always
    >>> judge_methods(seeds=2, methods=["always"])  # doctest: +SKIP
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from nope_interp.errors import UserError, shown

_LONGEST_SHOWN = 200

# Planted model, place, seed; to words by code.
Method = Callable[[Any, Any, int], Mapping[str, str]]
# Planted language model, seed; to words by code.
MethodOnText = Callable[[Any, int], Mapping[str, str]]

# A function, or the module that it is imported from when it is first needed, and its name there.
METHODS: dict[str, Method | tuple[str, str]] = {
    "probing": ("experiments.benchmark.probing", "probing"),
    "erasure": ("experiments.benchmark.erasure", "erasure"),
    "LEACE": ("experiments.benchmark.erasure", "leace"),
    "DAS": ("experiments.benchmark.das", "das"),
    "interchange": ("experiments.benchmark.interchange", "interchange"),
}

# What judges language models, by the names of methods.
ON_TEXT: dict[str, MethodOnText | tuple[str, str]] = {
    "interchange": ("experiments.benchmark.on_text", "interchange_on_text"),
}

# What the functions of each are given.
_GIVEN: tuple[tuple[Mapping[str, Any], tuple[str, ...]], ...] = (
    (METHODS, ("a planted model", "a place", "a seed")),
    (ON_TEXT, ("a planted language model", "a seed")),
)


def method(name: str) -> Method:
    """The function of a name in `METHODS`; one's own raises UserError where it fails."""
    loaded: Method = _loaded(name, METHODS[name])
    return loaded


def method_on_text(name: str) -> MethodOnText | None:
    """The function of a name in `ON_TEXT`; None where a method says nothing of such models."""
    loaded: MethodOnText | None = _loaded(name, ON_TEXT[name]) if name in ON_TEXT else None
    return loaded


def _loaded(name: str, found: Any) -> Any:
    if callable(found):
        return partial(_said_by, name, found)
    module, function = found
    return getattr(import_module(module), function)


def _said_by(name: str, own: Callable[..., Any], planted: Any, *given: Any) -> Any:
    """What a method of one's own says; where it fails, the error tells on what."""
    try:
        return own(planted, *given)
    except Exception as error:
        *places, seed = given
        place = places[0] if places else None
        at = "in the whole stream" if place is None else f"at layer {place.layer}, {place.hook}"
        raise UserError(
            f"the method {name!r} fails on {planted.kind!r}, seed {seed}, {at} "
            f"({shown(error, _LONGEST_SHOWN)}): mend it."
        ) from error


def of_yours(names: Iterable[str]) -> dict[str, str]:
    """What methods of one's own are told by, so that one that was mended is judged anew.

    Args:
        names: in `METHODS`.

    Returns:
        For each that did not come with the package, 16 hexadecimal digits that stand for its
        source, its defaults, what it closes over and the global values that it reads; of one that
        also judges language models as many more. What the functions and classes do that it calls
        is not among that.

    Raises:
        UserError: for what is no plain function, for one that takes something else, and for one
            that reads what cannot be compared between runs.
    """
    told = {
        name: "".join(
            _digest(name, registry[name], given)
            for registry, given in _GIVEN
            if callable(registry.get(name))
        )
        for name in names
    }
    return {name: digits for name, digits in told.items() if digits}


def _digest(name: str, own: Any, given: Sequence[str]) -> str:
    remedy = f"give one of {', '.join(given[:-1])} and {given[-1]}."
    if not inspect.isfunction(own):
        raise UserError(f"the method {name!r} is no plain function: {remedy}")
    try:
        inspect.signature(own).bind(*given)
    except TypeError as error:
        raise UserError(f"the method {name!r} cannot be called ({error}): {remedy}") from error
    from experiments.benchmark.digests import digest_of_method  # heavy, and --help needs none of it

    return digest_of_method(name, own)
