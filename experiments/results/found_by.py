"""What leads a head to the token so far back? Rules stated here. Needs no torch.

Queries of an earlier place and of other texts stand in for a head's own, in one layer at a time. A
weight counts by how much it is above that on a third token, of the same queries: what any token
gets. It stands as far before the earlier place's as that before the head's own. Of the weight that
own queries put on their token three shares are told:

- `any_query`: what stays on a place's own token under a query of the earlier place, in its own text
  and in another: the smaller. Position acts in the scores (rotary, ALiBi, T5), or the keys tell it.
- `place`: what goes to the earlier place's token under its query of another text, beyond what own
  queries put there. The query tells a place, whatever the text.
- `text`: what goes there under its query of the same text, beyond that of another. It takes a query
  of its own text: one that tells what stands around it, or a place in a frame that each text has
  of its own. What place and text find only together counts here, too.

| surely a half or more | word |
| --- | --- |
| `any_query` | any query |
| `place` | the place |
| `text` | its text |
| none of them | none alone |

The rule was written after the heads of one model had been seen (docs/findings.md says which).
Afterwards the third token was brought in, and *any query* had to hold for both texts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from experiments.results.position_use import Interval

# The share that makes a word.
DECIDES = 0.5


class FoundBy(StrEnum):
    """What is said of a head."""

    ANY_QUERY = "any query"
    PLACE = "the place"
    TEXT = "its text"
    NONE = "none alone"


@dataclass(frozen=True)
class Finding:
    """What leads a head to its token.

    Attributes:
        any_query: the share that any query of any text finds: value, low, high.
        place: the share that a query's place finds in any text.
        text: the share that takes a query of its own text.
    """

    any_query: Interval
    place: Interval
    text: Interval

    @property
    def word(self) -> FoundBy:
        """By the table above."""
        for share, word in (
            (self.any_query, FoundBy.ANY_QUERY),
            (self.place, FoundBy.PLACE),
            (self.text, FoundBy.TEXT),
        ):
            if share[1] >= DECIDES:
                return word
        return FoundBy.NONE

    def columns(self) -> Mapping[str, float | str]:
        """A row of the table: the word, and each share with its interval."""
        row: dict[str, float | str] = {"word": str(self.word)}
        for name in ("any_query", "place", "text"):
            value, low, high = getattr(self, name)
            row |= {name: value, f"{name}_low": low, f"{name}_high": high}
        return row
