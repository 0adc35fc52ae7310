"""Settings of probes that are no numbers of their kind, refused in a sentence."""

from numbers import Integral

from probes.errors import ProbeError

# That torch takes; numpy takes any.
_LARGEST_SEED = 2**64 - 1


def check_whole(name: str, given: object, least: int) -> None:
    """Refuse what is no whole number of at least so much.

    Args:
        name: of the setting.
        given: its value.
        least: that it may have.

    Raises:
        ProbeError: for any other value.
    """
    if isinstance(given, bool) or not isinstance(given, Integral) or given < least:
        raise ProbeError(f"{name} is {given!r}: give a whole number, at least {least}")


def check_seed(seed: object) -> None:
    """Refuse what is no seed.

    Args:
        seed: of draws.

    Raises:
        ProbeError: for what is no whole number from 0 to the largest of 64 bits.
    """
    check_whole("seed", seed, 0)
    if int(seed) > _LARGEST_SEED:  # type: ignore[call-overload]
        raise ProbeError(f"seed is {seed}: give at most {_LARGEST_SEED}")
