"""The one exception for what a user can put right, and the nearest right name for a wrong one."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something a user can put right: one sentence that names the culprit and the remedy."""


def unknown_name(what: str, name: object, choices: Iterable[str]) -> UserError:
    """The error for a wrong name: says the nearest right one, then all of them.

    Example:
        >>> str(unknown_name("position encoding", "rotery", ["none", "rotary"]))
        "unknown position encoding 'rotery': did you mean 'rotary'? Choose from none, rotary."
    """
    known = sorted(choices)
    nearest = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return UserError(f"unknown {what} {str(name)!r}: {hint}Choose from {', '.join(known)}.")
