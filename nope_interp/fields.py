"""Frozen dataclasses from the dictionaries that people write: unknown keys and wrong types fail."""

import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar, Union

from nope_interp.errors import FieldError, UserError, unknown_name

Config = TypeVar("Config")


# Seeds are multiplied by a step's number; torch's generators take 64 bits.
LARGEST_SEED = 2**40


def check_seed(seed: int, what: str) -> None:
    """Raise UserError where a seed is out of range; `what` names its config."""
    if not 0 <= seed <= LARGEST_SEED:
        raise FieldError("seed", f"is {seed}: give a whole number from 0 to {LARGEST_SEED}.", what)


def check_types(config: Any, what: str) -> None:
    """Raise UserError where a field's value is not of the field's type; `what` names the config.

    Whole numbers pass for floats; booleans do not pass for numbers; floats must be finite.
    """
    hints = field_types(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if not _fits(value, hints[field.name]):
            expected = str(getattr(hints[field.name], "__name__", hints[field.name]))
            raise FieldError(field.name, f"is {value!r}: expected {expected}.", what)


def from_mapping(cls: type[Config], values: Any, what: str) -> Config:
    """`cls(**values)`, refusing what is no mapping, unknown keys and missing ones."""
    if not isinstance(values, Mapping):
        raise UserError(f"{what} is {type(values).__name__}: expected named values.")
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    names = [field.name for field in fields]
    for key in values:
        if key not in names:
            raise unknown_name(f"field of {what}", key, names)
    missing = [field.name for field in fields if _required(field) and field.name not in values]
    if missing:
        raise UserError(f"{what} lacks {', '.join(missing)}: these have no default.")
    return cls(**values)


def field_types(cls: type) -> dict[str, Any]:
    """The types of all fields, also of a class that is marked `no_type_check`."""
    of_bases = (inspect.get_annotations(base, eval_str=True) for base in reversed(cls.__mro__))
    return {name: hint for hints in of_bases for name, hint in hints.items()}


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _fits(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if origin is tuple:
        return isinstance(value, tuple) and all(
            _fits(item, typing.get_args(hint)[0]) for item in value
        )
    if hint is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        try:
            return math.isfinite(value)
        except OverflowError:  # an integer that no float can hold
            return False
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)
