"""What every probe returns."""

from dataclasses import dataclass, field

import numpy as np

from probes.errors import ProbeError

SHUFFLED = "shuffled positions"


@dataclass(frozen=True)
class Score:
    """One number with its interval, the level that knowing nothing gives, and what it was taken on.

    Attributes:
        metric: what was measured, such as "mae" (in positions) or "r2".
        value: the number, in the metric's units.
        ci_low: lower bound of the 95% bootstrap interval over held-out sequences.
        ci_high: its upper bound.
        chance: what knowing nothing gives; NaN where no chance level exists.
        n: held-out sequences.
        control: "" for the measurement itself, "shuffled positions" for the same procedure run on
            permuted position labels.
    """

    metric: str
    value: float
    ci_low: float
    ci_high: float
    chance: float
    n: int
    control: str = ""


@dataclass(frozen=True)
class ProbeResult:
    """The scores of one probe at one site of a model, and the arrays that figures draw."""

    scores: tuple[Score, ...]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def score(self, metric: str, control: str = "") -> Score:
        """The score of a metric.

        Args:
            metric: its name.
            control: the name of its control; empty for the measurement itself.

        Returns:
            The first score of that name.

        Raises:
            ProbeError: where there is none; the known names are in it.
        """
        for score in self.scores:
            if score.metric == metric and score.control == control:
                return score
        known = ", ".join(repr((score.metric, score.control)) for score in self.scores)
        raise ProbeError(f"no score {(metric, control)!r} (metric, control): there are {known}")
