"""Settings of probes that are no numbers of their kind, and a probe merged with itself, refused in
a sentence."""

import math
from numbers import Integral, Real

from probes.errors import ProbeError

# That torch takes; numpy takes any.
_LARGEST_SEED = 2**64 - 1


def check_whole(name: str, given: object, least: int) -> int:
    """A whole number of at least so much, Python's or NumPy's.

    Args:
        name: of the setting.
        given: its value.
        least: that it may have.

    Returns:
        The number, as Python's: torch seeds generators with no other.

    Raises:
        ProbeError: for any other value.
    """
    if isinstance(given, bool) or not isinstance(given, Integral) or given < least:
        raise ProbeError(f"{name} is {given!r}: give a whole number, at least {least}")
    return int(given)


def check_positive(name: str, given: object) -> float:
    """A finite number above 0.

    Args:
        name: of the setting.
        given: its value.

    Returns:
        The number, as Python's.

    Raises:
        ProbeError: for any other value.
    """
    if isinstance(given, bool) or not isinstance(given, Real) or not 0 < float(given) < math.inf:
        raise ProbeError(f"{name} is {given!r}: give a number above 0")
    return float(given)


def check_seed(seed: object) -> int:
    """A seed for torch and numpy.

    Args:
        seed: of draws.

    Returns:
        The seed, as a whole number of Python's.

    Raises:
        ProbeError: for what is no whole number from 0 to the largest of 64 bits.
    """
    number = check_whole("seed", seed, 0)
    if number > _LARGEST_SEED:
        raise ProbeError(f"seed is {number}: give at most {_LARGEST_SEED}")
    return number


def check_another(probe: object, other: object) -> None:
    """Refuse to merge a probe with itself.

    Args:
        probe: that others are merged into.
        other: one of them.

    Raises:
        ProbeError: where the two are one.
    """
    if other is probe:
        raise ProbeError(
            "cannot merge a probe with itself: its sequences would count twice; give one that saw "
            "others"
        )
