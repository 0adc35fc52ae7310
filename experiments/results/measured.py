"""A number with its interval."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """A number with its 95% interval over `n` seeds; NaN where it could not be taken."""

    value: float
    ci_low: float
    ci_high: float
    n: int
