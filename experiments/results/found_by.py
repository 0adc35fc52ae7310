"""What leads a head to the token so far back, its target? Rules stated here. Needs no torch.

Queries from some tokens earlier, of the same text or of another, stand in for a head's own. A
weight counts by how much it is above that on a reference token, of the same queries: what any token
gets. It stands as far before the earlier target as that before the head's own. Of the weight that
own queries put on their target three shares are told:

- `any_query`: what stays on the target under both other queries: the smaller. Position acts in the
  scores (rotary, ALiBi, T5), or keys favour recent tokens.
- `place`: what moves to the earlier target under a query of another text, beyond what own queries
  put there. The query tells a position, whatever the text.
- `text`: what moves there under a query of the same text, beyond that of another. The query carries
  what stands around it, or a position that each text encodes in its own way. What position and text
  find only together counts here, too.

The first row that holds gives the word:

| surely a half or more | word |
| --- | --- |
| `any_query` | any query |
| `place` | the place |
| `text` | its text |
| none of them | no single cause |

The rule was written after the heads of one model had been seen
(docs/findings/previous-token.md says which). Afterwards the reference token was brought in, and
*any query* had to hold for both texts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import Any

import pandas as pd

from experiments.results.intervals import Interval
from experiments.results.measurements import Row

# The share that makes a word.
DECIDES = 0.5
# How much earlier other queries are taken from, unless it is said.
SHIFT = 8
# The tokens that a classification asks about, and how far back they stand.
TOKENS = {"previous": 1, "own": 0}


class FoundBy(StrEnum):
    """What is said of a head."""

    ANY_QUERY = "any query"
    PLACE = "the place"
    TEXT = "its text"
    NONE = "no single cause"


# The shares, and the word that each makes.
SHARES = {"any_query": FoundBy.ANY_QUERY, "place": FoundBy.PLACE, "text": FoundBy.TEXT}

# What the rows of the tidy table are kept under, by token, and the columns of each metric.
_PROBES = {"previous": "finds the previous token", "own": "finds its own token"}
_ATTENTION = "attention"
_NUMBERS = ["value", "ci_low", "ci_high"]
_METRICS = {
    _ATTENTION: tuple(_NUMBERS),
    **{name: (name, f"{name}_low", f"{name}_high") for name in SHARES},
}
_LOOK_AT = {
    "previous": ("favour the token before", "favours the token before"),
    "own": ("favour their own token", "favours its own token"),
}
_FOUND = {
    FoundBy.ANY_QUERY: "By any query",
    FoundBy.PLACE: "By the place",
    FoundBy.TEXT: "By its text",
    FoundBy.NONE: "By no single cause",
}
NOBODY = "No head surely favours the token before, or its own, by 0.1 over one 16 further back."


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
        for name, word in SHARES.items():
            _, low, _ = getattr(self, name)
            if low >= DECIDES:
                return word
        return FoundBy.NONE

    def columns(self) -> Row:
        """A row of the table: the word, and each share with its interval."""
        row: Row = {"word": str(self.word)}
        for name in SHARES:
            value, low, high = getattr(self, name)
            row |= {name: value, f"{name}_low": low, f"{name}_high": high}
        return row


def rows_of_finders(found: Mapping[str, pd.DataFrame], n: int, context: Row) -> Iterator[Row]:
    """The numbers as rows of the tidy table; `finders_table` reads them back.

    Args:
        found: by token of `TOKENS`, a table with one row for each head that looks there.
        n: how many texts were read.
        context: fills the columns that are the same in all rows.

    Returns:
        Its attention, and each share, of every head.
    """
    for token, heads in found.items():
        for head in heads.to_dict("records"):
            where = {"layer": head["layer"], "head": head["head"], "site": "queries"}
            here = {**context, **where, "probe": _PROBES[token], "chance": float("nan"), "n": n}
            for metric, names in _METRICS.items():
                value, low, high = (head[name] for name in names)
                yield {**here, "metric": metric, "value": value, "ci_low": low, "ci_high": high}


def finders_table(measurements: pd.DataFrame) -> pd.DataFrame:
    """What leads heads to the tokens that they look at, from the tidy table alone.

    Args:
        measurements: the tidy table.

    Returns:
        One row for each head and token, "previous" or "own": token, layer, head, the attention
        there (value) with its interval, the word, and the shares with theirs. The strongest of a
        token come first.
    """
    found = []
    for token, probe in _PROBES.items():
        rows = measurements[measurements["probe"] == probe]
        numbers = rows.pivot(index=["layer", "head"], columns="metric", values=_NUMBERS)
        heads = []
        of_heads = zip(numbers.index.tolist(), numbers.to_dict("records"), strict=True)
        for (layer, head), of in of_heads:
            value, low, high = _interval(of, _ATTENTION)
            where = {"token": token, "layer": layer, "head": head}
            shares = Finding(**{name: _interval(of, name) for name in SHARES}).columns()
            heads.append({**where, "value": value, "ci_low": low, "ci_high": high, **shares})
        found += sorted(heads, key=itemgetter("value"), reverse=True)
    nothing = Finding(*[(0.0, 0.0, 0.0)] * len(SHARES)).columns()
    columns = ["token", "layer", "head", *_METRICS[_ATTENTION], *nothing]
    return pd.DataFrame(found, columns=columns)


def _interval(numbers: Mapping[Any, float], metric: str) -> Interval:
    value, low, high = (float(numbers[name, metric]) for name in _NUMBERS)
    return value, low, high


def told(finders: pd.DataFrame, n_heads: int) -> list[str]:
    """How many heads find the token before, and how many their own, by what.

    Args:
        finders: what `finders_table` gives.
        n_heads: that the model has.

    Returns:
        A sentence for each token that any head looks at, or one that none does.
    """
    by_token = finders.groupby("token")["word"]
    there = [token for token in TOKENS if token in by_token.groups]
    if not there:
        return [NOBODY]
    return [_sentence(token, by_token.get_group(token), n_heads) for token in there]


def _sentence(token: str, words: "pd.Series[str]", n_heads: int) -> str:
    many, one = _LOOK_AT[token]
    counts = [(_FOUND[word], int((words == word).sum())) for word in FoundBy]
    found = " ".join(f"{how}: {n}." for how, n in counts if n)
    return f"{len(words)} of {n_heads} heads {one if len(words) == 1 else many} by 0.1. {found}"
