"""When does a code rescue answers beyond the training lengths? Rules stated here. Needs no torch.

A model answers examples of its longest training length and fails on longer ones. In these, every
position is told by one code to be one of an example of the trained length; content stays. What is
lost is accuracy within less accuracy beyond: shares of answer tokens that are right, each with the
right ones before it.

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

A site whose activations carry nothing of the code has nothing to move: not rescued. Nothing is
asked of a model that does not surely lose a tenth of its answers: it does not fail. These rules
were written down before any run.
"""

from dataclasses import dataclass
from enum import StrEnum

from experiments.results.position_use import FALSE_DISCOVERIES, WORTH_NAMING, Interval

# The share of what is lost that has to come back.
RESCUED_SHARE = 0.5


class Rescued(StrEnum):
    """What is said of a code at a site."""

    YES = "rescued"
    PARTLY = "partly rescued"
    NO = "not rescued"
    UNDECIDED = "undecided"


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
