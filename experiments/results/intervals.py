"""Numbers with their intervals, as people read them. Needs nothing."""

from experiments.results.percent import percent

# A number and the bounds of its interval.
Interval = tuple[float, float, float]


def with_interval(value: float, low: float, high: float, form: str = ".3g") -> str:
    """A number and its interval, in words.

    Args:
        value: the number.
        low: the interval's lower bound.
        high: its upper bound.
        form: Python's format of all three.

    Returns:
        Such as "0.5 [0.4, 0.6]".
    """
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def percents(share: Interval) -> str:
    """A share and its interval, in words.

    Args:
        share: the share and the interval's bounds, 1 is all of it.

    Returns:
        Such as "50% [40%, 60%]".
    """
    value, low, high = map(percent, share)
    return f"{value} [{low}, {high}]"
