"""Frozen dataclasses that check themselves: a field's annotation says what may stand in it.

    seed: Seed = 0
    dropout: Annotated[float, Range(least=0, below=1)] = 0.0
    positions: Literal["none", "rotary"] = "none"

`check_fields`, called in `__post_init__`, refuses everything else with one sentence. Imports
nothing heavy.
"""

import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import PurePath
from typing import Annotated, Any, Literal, NamedTuple, TypeGuard, TypeVar, Union

from nope_interp.errors import FieldError, UserError, shown, unknown_name

Config = TypeVar("Config")

# Seeds are multiplied by a step's number; torch's generators take 64 bits.
LARGEST_SEED = 2**40
# Python can print so many, and torch's 64 bits can hold them.
_MOST_DIGITS = 18


@dataclasses.dataclass(frozen=True)
class Range:
    """Which numbers a field takes; ends that are None are open.

    Attributes:
        least: the smallest number.
        most: the largest one.
        above: every number is larger than this one.
        below: every number is smaller than this one.

    Example:
        >>> str(Range(least=0, below=1)), str(Range(above=0)), 0 in Range(above=0)
        ('from 0 to just below 1', 'above 0', False)
    """

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def __contains__(self, number: float) -> bool:
        return (
            (self.least is None or number >= self.least)
            and (self.most is None or number <= self.most)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        low = f"above {self.above}" if self.least is None else f"from {self.least}"
        if self.below is not None:
            return f"{low} to just below {self.below}"
        if self.most is None:
            return low if self.least is None else f"{low} up"
        return f"{low} {'and up ' if self.least is None else ''}to {self.most}"


Seed = Annotated[int, Range(least=0, most=LARGEST_SEED)]
Count = Annotated[int, Range(least=1)]
Positive = Annotated[float, Range(above=0)]


def check_seeds(seeds: range) -> None:
    """Raise FieldError for seeds that follow a config's `seed` and end beyond the largest.

    The one after the last is in use, too, where the first stood for pilot runs.

    Args:
        seeds: those in use.
    """
    if seeds.stop > LARGEST_SEED:
        most = LARGEST_SEED - len(seeds)
        raise FieldError("seed", f"is {seeds.start}: for {len(seeds)} seeds give at most {most}.")


def checked_seed(seed: Any, name: str = "seed") -> int:
    """A seed that stands in no config, as a config would have it.

    Args:
        seed: what was given.
        name: how sentences call it.

    Returns:
        The seed, Python's own: torch's generators take no other number.

    Raises:
        FieldError: for what is no seed.

    Example:
        >>> import numpy as np
        >>> checked_seed(np.int64(3))
        3
    """
    kind = _kind(Seed)
    try:
        return int(_fitted_one(seed, kind))
    except _DoesNotFit:
        raise FieldError(name, f"is {shown(seed)}: give {_words(kind)}.") from None


def check_fields(config: Any, what: str = "") -> None:
    """Raise UserError where a field's value is not what the field's annotation says.

    Whole numbers pass for floats, sequences and arrays for tuples, NumPy's numbers for Python's,
    and paths for text: they are converted in place. Booleans do not pass for numbers, and floats
    must be finite. How many items a tuple has is for the config to check.

    Args:
        config: a dataclass instance, frozen or not.
        what: whose field it is, set before the field's name in the sentence.
    """
    hints = field_types(type(config))
    for field in dataclasses.fields(config):
        name, value, kind = field.name, getattr(config, field.name), _kind(hints[field.name])
        try:
            object.__setattr__(config, name, _fitted(value, kind))
        except _DoesNotFit as error:
            choices = () if kind.many else kind.choices
            if isinstance(value, str) and choices:
                raise unknown_name(f"{what} {name}".strip(), value, choices) from None
            given = f"choose from {', '.join(choices)}" if choices else f"give {_words(kind)}"
            said = f"is {shown(value)}: {str(error) or given}."
            raise FieldError(name, said, what) from None


def check_lengths(lengths: tuple[int, ...] | None) -> None:
    """Raise FieldError for what is not the shortest and the longest length of examples."""
    if lengths is not None and (len(lengths) != 2 or not 1 <= lengths[0] <= lengths[1]):
        raise FieldError(
            "lengths",
            f"are {list(lengths)}: give the shortest and the longest, from 1, such as 2-8.",
        )


def from_mapping(cls: type[Config], values: Any, what: str) -> Config:
    """`cls(**values)`, for what was read from a file.

    Args:
        cls: a dataclass.
        values: of its fields, by name.
        what: how sentences call the whole.

    Returns:
        The instance.

    Raises:
        UserError: where `values` is no mapping, for unknown names and for missing ones.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{what} is {type(values).__name__}: give named values.")
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    names = [field.name for field in fields]
    for key in values:
        if key not in names:
            raise unknown_name(f"field of {what}", key, names)
    required = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
    missing = [name for name in required if name not in values]
    if missing:
        raise UserError(f"{what} lacks {', '.join(missing)}: these have no default, so give them.")
    return cls(**values)


def field_types(cls: type) -> dict[str, Any]:
    """The types of all fields, also of a class that is marked `no_type_check`."""
    of_bases = (inspect.get_annotations(base, eval_str=True) for base in reversed(cls.__mro__))
    return {name: hint for hints in of_bases for name, hint in hints.items()}


class _Kind(NamedTuple):
    """What a field's annotation lets stand in it."""

    plain: Any
    numbers: Range | None = None
    choices: tuple[str, ...] = ()
    many: bool = False
    optional: bool = False


def _kind(hint: Any) -> _Kind:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _kind(inner[0])._replace(numbers=inner[1])
    if origin in (Union, types.UnionType):
        (inside,) = (option for option in inner if option is not types.NoneType)
        return _kind(inside)._replace(optional=True)
    if origin is tuple:
        return _kind(inner[0])._replace(many=True)
    return _Kind(str, choices=inner) if origin is Literal else _Kind(hint)


class _DoesNotFit(Exception):
    """Says what to do about it where the field's type does not."""


def _fitted(value: Any, kind: _Kind) -> Any:
    """`value` as the field has it; raises `_DoesNotFit` where it cannot be had."""
    if value is None and kind.optional:
        return None
    if not kind.many:
        return _fitted_one(value, kind)
    value = value.tolist() if hasattr(value, "tolist") else value  # NumPy's, pandas', torch's
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        raise _DoesNotFit
    return tuple(_fitted_one(item, kind) for item in value)


def _fitted_one(value: Any, kind: _Kind) -> Any:
    if kind.plain is int:
        value = _whole(value, kind.numbers)
    elif kind.plain is float:
        value = _finite(value)
    elif kind.plain is str and isinstance(value, PurePath):
        value = str(value)
    if not isinstance(value, kind.plain) or (kind.choices and value not in kind.choices):
        raise _DoesNotFit
    if kind.numbers is not None and value not in kind.numbers:
        raise _DoesNotFit
    return value


def is_whole(value: Any, least: int | None = None, most: int | None = None) -> TypeGuard[int]:
    """Whether a value is a whole number in a range, Python's or NumPy's, and not True or False.

    Args:
        value: anything.
        least: the smallest number that will do; None for any.
        most: the largest one.

    Returns:
        Whether it is.
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        return False
    number = int(value)
    return (least is None or number >= least) and (most is None or number <= most)


def _whole(value: Any, numbers: Range | None) -> int:
    if not is_whole(value):
        raise _DoesNotFit
    if abs(int(value)) >= 10**_MOST_DIGITS:
        # A range that ends says more than a limit that is everybody's.
        ends = numbers is not None and numbers.most is not None
        raise _DoesNotFit("" if ends else f"give whole numbers of at most {_MOST_DIGITS} digits")
    return int(value)


def _finite(value: Any) -> float:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise _DoesNotFit
    try:
        number = float(value)
    except OverflowError as error:  # an integer that no float can hold
        raise _DoesNotFit from error
    if not math.isfinite(number):
        raise _DoesNotFit
    return number


_ONE = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}
_MANY = {int: "whole numbers", float: "numbers", str: "texts"}


def _words(kind: _Kind) -> str:
    """What fits, for a sentence."""
    words = (_MANY if kind.many else _ONE).get(kind.plain, f"a {kind.plain.__name__}")
    if kind.choices:
        words = f"names from {', '.join(kind.choices)}"
    if kind.numbers is not None:
        words = f"{words} {kind.numbers}"
    return f"a list of {words}" if kind.many else words
