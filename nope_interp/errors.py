"""The one exception for what a user can put right, and how its sentences name things."""

import difflib
from collections.abc import Iterable

_MOST_LISTED = 12
_LONGEST_SHOWN = 60


class UserError(ValueError):
    """Something a user can put right: one sentence that names the culprit and the remedy."""


def shown(value: object, limit: int = _LONGEST_SHOWN) -> str:
    """How a value stands in a sentence: its `repr`, cut where that is long.

    Args:
        value: anything, also what cannot be printed.
        limit: characters after which it is cut.

    Returns:
        One line of text.

    Example:
        >>> shown(10**5000), shown([1, 2])
        ('a huge int', '[1, 2]')
    """
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        kind = type(value).__name__
        text = f"a huge {kind}" if isinstance(value, int) else f"a {kind} with a huge number"
    return text if len(text) <= limit else f"{text[:limit]}..."


def unknown_name(what: str, name: object, choices: Iterable[str]) -> UserError:
    """The error for a wrong name: says the nearest right one, or else what there is.

    Args:
        what: the kind of thing that has the name, as the sentence calls it.
        name: the wrong one.
        choices: the right ones.

    Returns:
        The error, to be raised.

    Example:
        >>> str(unknown_name("position encoding", "rotery", ["none", "rotary"]))
        "unknown position encoding 'rotery': did you mean 'rotary'?"
    """
    known = list(choices)
    given = name if isinstance(name, str) else shown(name)
    nearest = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    if nearest:
        return UserError(f"unknown {what} {given!r}: did you mean {nearest[0]!r}?")
    more = f" and {len(known) - _MOST_LISTED} more" if len(known) > _MOST_LISTED else ""
    listed = ", ".join(known[:_MOST_LISTED])
    return UserError(f"unknown {what} {given!r}: choose from {listed}{more}.")
