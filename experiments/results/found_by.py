"""What leads a head to the token so far back? Rules stated here. Needs no torch.

Queries of earlier places and of other texts stand in for a head's own, in one layer at a time. Its
own queries put more weight on their token than on the one so much earlier. Of this difference
three shares are told:

- `any_query`: what stays on a place's own token, though the query is of an earlier place in another
  text. Position acts in the scores (rotary, ALiBi, T5), or the keys tell it.
- `place`: what goes to the token of the place that the query was taken from, in another text. The
  query tells a place, whatever the text.
- `text`: what goes there in the same text, less `place`. The query tells what stands around it.

| surely a half or more | word |
| --- | --- |
| `any_query` | any query |
| `place` | the place |
| `text` | the text |
| none of them | none alone |

The rule was written after the heads of one model had been seen: docs/findings.md says which.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from experiments.results.position_use import Interval

# The share of a head's weight that makes a word.
DECIDES = 0.5


class FoundBy(StrEnum):
    """What is said of a head."""

    ANY_QUERY = "any query"
    PLACE = "the place"
    TEXT = "the text"
    NONE = "none alone"


@dataclass(frozen=True)
class Finding:
    """What leads a head to its token.

    Attributes:
        any_query: the share that any query of any text finds: value, low, high.
        place: the share that a query's place finds in any text.
        text: the share that a query finds in its own text only.
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
