"""When does a code rescue answers beyond the training lengths? Rules stated here. Needs no torch.

A model answers examples of its longest training length and fails on longer ones. In these, every
position is told by one code to be one of an example of the trained length; content stays. What is
lost is accuracy within less accuracy beyond: shares of the answers' symbols that are right, each
with the right ones before it. What all answers share, such as their end, is not asked: the move
gives away where it stands.

- `returned` is the share of what is lost that comes back.
- `net` is the same, less what comes back under the control: a move of the same size in directions
  drawn as the activations vary.
- The p-value is the rank of the code's move among those of control draws; q-values hold the
  false-discovery rate over all moves of a run.

| returned and net | q | word |
| --- | --- | --- |
| both surely a half or more | at most 5% | rescued |
| both surely a tenth or more | at most 5% | partly rescued |
| one surely less than a tenth | any | not rescued |
| anything else | | undecided |

What returns where trained positions are told the other way round (`REVERSED`) came back by their
range alone, not by which they are. It stands in rows of its own, which get no word.

A site whose activations carry nothing of the code has nothing to move: not rescued. Nothing is
asked of a model that does not surely lose a tenth of its answers: it does not fail. These rules
were written down before any run, but for three. The rows of `REVERSED` and the matching `REPEATED`
were added after pilot runs. That the end is not asked was set after the first tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd

from experiments.results.interchange import NET
from experiments.results.intervals import Interval
from experiments.results.position_use import FALSE_DISCOVERIES
from experiments.results.worth import WORTH_NAMING
from probes.bootstrap import benjamini_hochberg

# How positions of longer examples are matched with trained ones.
CLAMPED, REPEATED, INTERPOLATED = "clamped", "middle repeated", "interpolated"
# A control: told trained positions, too, but the other way round.
REVERSED = "reversed"
RETURNED = "returned"
_SHARES = ("within", "beyond", "moved", "size_matched", "exact_beyond", "exact_moved")
# The share of what is lost that has to come back.
RESCUED_SHARE = 0.5


class Rescued(StrEnum):
    """What is said of a code at a site."""

    YES = "rescued"
    PARTLY = "partly rescued"
    NO = "not rescued"
    UNDECIDED = "undecided"
    CONTROL = "control"


@dataclass(frozen=True)
class Rescue:
    """What came of the code of trained positions, given to those of longer examples.

    Attributes:
        returned: the share of the lost accuracy that came back: value, low, high.
        net: the same, less the control's.
        q: the rank's p-value under the false-discovery rate of a run.
    """

    returned: Interval
    net: Interval
    q: float

    @property
    def word(self) -> Rescued:
        """By the table above."""
        both = (self.returned, self.net)
        if any(high < WORTH_NAMING for _, _, high in both):
            return Rescued.NO
        if self.q <= FALSE_DISCOVERIES:
            least = min(low for _, low, _ in both)
            if least >= RESCUED_SHARE:
                return Rescued.YES
            if least >= WORTH_NAMING:
                return Rescued.PARTLY
        return Rescued.UNDECIDED


def rescues(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """What is said of each code at each place.

    Args:
        rows: code, layer (-1 for the whole stream), site, mapped, shares of answer symbols that are
            right, the intervals `RETURNED` and `NET`, and the p-value `p` of the rank.

    Returns:
        code, layer, site, how positions were mapped, word (`REVERSED` is a control); the shares of
        answer symbols that are right at the trained length (`within`), at the greater one
        (`beyond`), there with the code moved (`moved`) and under the size-matched control
        (`size_matched`); the shares of examples of which all symbols are, without and with the code
        moved; the share of what was lost that `returned`, and the same `net` of the control, with
        95% intervals over examples; and the q-value. What returned most stands first.
    """
    q_values = benjamini_hochberg(np.array([row["p"] for row in rows], dtype=float))
    found = pd.DataFrame([_told(row, float(q)) for row, q in zip(rows, q_values, strict=True)])
    return found.sort_values(RETURNED, ascending=False, kind="stable", ignore_index=True)


def _told(row: Mapping[str, Any], q: float) -> dict[str, Any]:
    place = {name: row[name] for name in ("code", "layer", "site", "mapped")}
    shares = {name: row[name] for name in _SHARES}
    judged = Rescue(row[RETURNED], row[NET], q).word
    word = str(Rescued.CONTROL if row["mapped"] == REVERSED else judged)
    intervals = {
        f"{name}{end}": value
        for name in (RETURNED, NET)
        for end, value in zip(("", "_low", "_high"), row[name], strict=True)
    }
    return {**place, "word": word, **shares, **intervals, "q": q}
