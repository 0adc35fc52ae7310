"""Frozen dataclasses from the dictionaries that people write: unknown keys and wrong types fail."""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar, Union

from nope_interp.errors import UserError, unknown_name

Config = TypeVar("Config")


def check_types(config: Any, what: str) -> None:
    """Raise UserError where a field's value is not of the field's type; `what` names the config.

    Whole numbers pass for floats; booleans do not pass for numbers; floats must be finite.
    """
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if not _fits(value, hints[field.name]):
            expected = str(getattr(hints[field.name], "__name__", hints[field.name]))
            raise UserError(f"{what} {field.name} is {value!r}: expected {expected}.")


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
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)
