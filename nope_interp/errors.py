"""The one exception for what a user can put right, and how its sentences name things."""

import difflib
import sys
import warnings
from collections.abc import Iterable
from itertools import islice
from types import FrameType

_MOST_LISTED = 12
# What others call what has another name here.
_SYNONYMS = {"rope": "rotary", "absolute": "learned", "nope": "none"}
_LONGEST_SHOWN = 60
# Where a warning is not the user's: in this project, and in what calls it back for itself.
_NOT_THE_USERS = ("nope_interp", "probes", "experiments", "contextlib", "torch")


class UserError(ValueError):
    """Something a user can put right: one sentence that names the culprit and the remedy."""


def shown(value: object, limit: int = _LONGEST_SHOWN) -> str:
    """How a value stands in a sentence: its `repr`, cut where that is long, or its kind where that
    takes several lines.

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
    if "\n" in text:  # a model's, say
        return f"a {type(value).__name__}"
    return text if len(text) <= limit else f"{text[:limit]}..."


class FieldError(UserError):
    """A wrong value of a config's field.

    Whoever asked may know the field by another word, such as an option of the command line:
    `renamed` gives the same sentence with that word in it.

    Args:
        field: the field's name; within another config's, a dotted one.
        says: the rest of the sentence, which follows the name.
        owner: what the field belongs to, where its name alone does not say.

    Example:
        >>> error = FieldError("n_layers", "is 0: give at least 1.")
        >>> str(error)
        'n_layers is 0: give at least 1.'
        >>> str(error.renamed("--transformer.n-layers"))
        '--transformer.n-layers is 0: give at least 1.'
    """

    def __init__(self, field: str, says: str, owner: str = "") -> None:
        super().__init__(field, says, owner)  # what a worker's error is made of again
        self.field = field
        self.says = says
        self.owner = owner

    def __str__(self) -> str:
        return f"{self.owner} {self.field} {self.says}".strip()

    def renamed(self, name: str) -> "FieldError":
        """The same of a field that is called `name`."""
        return FieldError(name, self.says)


def warn(told: str) -> None:
    """Warn of something at the line that asked for it, however deep in this project it was seen.

    A line of a user's own function that this project calls counts as one that asked.

    Args:
        told: a sentence or more.
    """
    level = 1
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in _NOT_THE_USERS:
        level, frame = level + 1, frame.f_back
    warnings.warn(told, stacklevel=level)


def nearest_name(name: object, choices: Iterable[str], closeness: float = 0.5) -> str | None:
    """The choice that a wrong name most likely stands for, in capitals or not; of a dotted one its
    end is enough.

    Args:
        name: the wrong one.
        choices: the right ones.
        closeness: how large a share of its letters, from 0 to 1, the choice has to have.

    Returns:
        One of the choices; None where none is so close.

    Example:
        >>> nearest_name("n_layer", ["layers", "transformer.n_layers"])
        'transformer.n_layers'
    """
    if not isinstance(name, str):
        return None
    known = list(choices)
    spelled = {choice.rpartition(".")[2]: choice for choice in reversed(known)}
    end = name.rpartition(".")[2]
    if end in spelled:
        return spelled[end]
    small = {written.lower(): choice for written, choice in spelled.items()}
    small |= {choice.lower(): choice for choice in known}
    meant = _SYNONYMS.get(name.lower(), "")
    meant = meant if meant in small else name.lower()
    found = difflib.get_close_matches(meant, small, n=1, cutoff=closeness)
    return small[found[0]] if found else None


def unknown_name(
    what: str, name: object, choices: Iterable[str], closeness: float = 0.5
) -> UserError:
    """The error for a wrong name: says the nearest right one, or else what there is, quoted where
    a name holds a comma.

    Args:
        what: the kind of thing that has the name, as the sentence calls it.
        name: the wrong one.
        choices: the right ones.
        closeness: how large a share of its letters, from 0 to 1, a suggestion has to have.

    Returns:
        The error, to be raised.

    Example:
        >>> str(unknown_name("position encoding", "rotery", ["none", "rotary"]))
        "unknown position encoding 'rotery': did you mean 'rotary'?"
    """
    known = list(choices)
    given = name if isinstance(name, str) else shown(name)
    nearest = nearest_name(name, known, closeness)
    if nearest is not None:
        return UserError(f"unknown {what} {given!r}: did you mean {nearest!r}?")
    more = f" and {len(known) - _MOST_LISTED} more" if len(known) > _MOST_LISTED else ""
    quoted = map(repr, known) if any("," in name for name in known) else known
    listed = ", ".join(islice(quoted, _MOST_LISTED))
    return UserError(f"unknown {what} {given!r}: choose from {listed}{more}.")
