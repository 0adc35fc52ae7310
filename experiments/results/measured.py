"""A number with its interval."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Measured:
    """A number with its 95% interval over `n` seeds; NaN where it could not be taken."""

    value: float
    ci_low: float
    ci_high: float
    n: int

    @property
    def as_share(self) -> "Measured":
        """The same number, a share: its interval ends at 0 and 1, however few seeds there are."""
        return replace(self, ci_low=max(self.ci_low, 0.0), ci_high=min(self.ci_high, 1.0))
