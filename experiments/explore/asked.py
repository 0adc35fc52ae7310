"""What the page may ask, and the limits of it. Each request is one of these, checked in words.

The page posts JSON to `/api/<name>`, with the token of its address in the header `X-Token` and a
name of its own in `X-Page`. `read`, `head`, `feeds`, `fit`, `move`, `patch`, `code` and `save` take
a `State`; `model` takes nothing. A newer `read` of a page ends all that still runs for that page;
any other request ends only an older one of its own name. What is ended is answered with status 409.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from nope_interp.errors import UserError, shown

MOST_BYTES = 2**16
"""Of the body of a request."""
MOST_CHARACTERS = 4096
"""Of a prompt."""
MOST_TOKENS = 256
"""Of a prompt; fewer where the model's context is shorter."""
MOST_MOVES = 64
"""Positions that are moved at once."""

Index = Annotated[int, Field(ge=0, lt=4096)]
Name = Annotated[str, Field(min_length=1, max_length=100)]
Text = Annotated[str, Field(max_length=MOST_CHARACTERS)]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class HeadChange(_Asked):
    """What is done to the attention of one head.

    `ablated` sets its output to zero; the others replace its pattern: by equal weights on all that
    a query sees, by all weight on the previous token, or by its own pattern on the other prompt,
    which has to have as many tokens.
    """

    layer: Index
    head: Index
    to: Literal["ablated", "uniform", "previous_token", "other_prompt"]


class Change(_Asked):
    """What is taken away from the model.

    `positions` names an encoding and a condition as `ablate_positions` does, such as
    `rotary:keep_highest=0.25`; `layers` and `heads` ([layer, head]) say where, None everywhere.
    """

    positions: Name | None = None
    layers: Annotated[list[Index], Field(min_length=1, max_length=512)] | None = None
    heads: (
        Annotated[
            list[Annotated[list[Index], Field(min_length=2, max_length=2)]],
            Field(min_length=1, max_length=4096),
        ]
        | None
    ) = None
    head_changes: Annotated[list[HeadChange], Field(max_length=4096)] = []

    @property
    def nothing(self) -> bool:
        """Whether the model stays as it is."""
        return self.positions is None and not self.head_changes


class Move(_Asked):
    """Positions that are given the code of others: `moves` has for each one that whose it gets.

    JSON's keys are text: {"40": 41}.
    """

    code: Name
    layer: Index
    site: Name
    moves: Annotated[dict[Name, Index], Field(min_length=1, max_length=MOST_MOVES)]

    @property
    def positions(self) -> dict[int, int]:
        """The moves by number; raises UserError for keys that are none."""
        for key in self.moves:
            # Written in one way only: "7" and "07" would be one position twice.
            if not re.fullmatch("0|[1-9][0-9]{0,4}", key):
                raise UserError(f"a position is {shown(key)}: give a whole number from 0, as 7.")
        return {int(key): to for key, to in self.moves.items()}


class Patch(_Asked):
    """Where activations of the prompt are put into the run of the other prompt."""

    at: Literal["resid_pre", "head_out", "pattern"]


class State(_Asked):
    """What a page shows; it stands in the page's address.

    `layer` and `head` are the head that is looked at.
    """

    prompt: Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS)]
    layer: Index | None = None
    head: Index | None = None
    change: Change | None = None
    other_prompt: Text | None = None
    move: Move | None = None
    patch: Patch | None = None

    @property
    def changes(self) -> Change | None:
        """The change, None where it changes nothing."""
        return None if self.change is None or self.change.nothing else self.change


def said(errors: Sequence[Any]) -> str:
    """The first of pydantic's errors as a sentence.

    Args:
        errors: as pydantic gives them, at least one.

    Returns:
        What stands where, and what is wrong with it.
    """
    first = errors[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")[:100].replace("_", " ")
    if first["type"] == "string_too_short":
        return f"the {where} is empty: give some text."
    message = str(first["msg"])[:200]
    if not message[1:2].isupper():  # JSON stays JSON
        message = message[:1].lower() + message[1:]
    return f"{where or 'the request'}: {message}."
