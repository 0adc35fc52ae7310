"""Shares as people read them. Needs nothing."""

import math

# Single precision leaves so little of a whole that is none.
_ROUNDING = 1e-6


def percent(share: float) -> str:
    """A share as whole percent.

    Args:
        share: 1 is all of it; a number.

    Returns:
        Words; what is nearly all is ">99%", and no number a dash.
    """
    if not math.isfinite(share):
        return "–"
    if 0.995 <= share < 1 - _ROUNDING:
        return ">99%"
    # Adding zero makes a zero of what rounds to minus zero.
    return f"{round(100 * share) + 0}%".replace("-", "−")
