"""The one exception for what a user can put right, and the nearest right name for a wrong one."""

import difflib
from collections.abc import Iterable

_MOST_LISTED = 12


class UserError(ValueError):
    """Something a user can put right: one sentence that names the culprit and the remedy."""


def unknown_name(what: str, name: object, choices: Iterable[str]) -> UserError:
    """The error for a wrong name: says the nearest right one, or else what there is.

    Example:
        >>> str(unknown_name("position encoding", "rotery", ["none", "rotary"]))
        "unknown position encoding 'rotery': did you mean 'rotary'?"
    """
    known = list(choices)
    nearest = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    if nearest:
        return UserError(f"unknown {what} {str(name)!r}: did you mean {nearest[0]!r}?")
    more = f" and {len(known) - _MOST_LISTED} more" if len(known) > _MOST_LISTED else ""
    listed = ", ".join(known[:_MOST_LISTED])
    return UserError(f"unknown {what} {str(name)!r}: choose from {listed}{more}.")
