"""Position conditions by name, and what they do to rotation angles and to added vectors.

`<encoding>:<condition>`, where the condition `none` takes the encoding away.

- `learned`, `sinusoidal`: `none` adds zeros, `mean` the mean over the positions of the pass,
  `shuffled` a permutation of them, `constant` position 0's everywhere.
- `rotary`: `none` rotates nothing; `constant` rotates all by position 0's angle, which is 0, so
  that the two are one; `shuffled` permutes the angles; `keep_highest=P` leaves the share P of
  highest frequencies turning (p-RoPE, Barbero et al. 2024, arXiv 2410.06205); `drop_highest=P`
  stops these; `band=LO-HI` leaves frequencies LO..HI-1 turning, 0 the highest.
- `alibi`: `none` sets all slopes to zero.
- `t5`: `none` sets the bias to zero, `mean` to its mean over the visible cells, a constant that the
  softmax ignores, so that the two differ by rounding only. Of long sequences it is that of each
  block of queries.
- `all`: `none`, for every encoding that the model has.

`mean`, `constant` and `shuffled` go by the positions of one forward pass: run whole sequences, not
token by token with remembered keys.
"""

import math
from dataclasses import dataclass

from nope_interp.errors import UserError, unknown_name

CONDITIONS = {
    "learned": ("none", "mean", "shuffled", "constant"),
    "sinusoidal": ("none", "mean", "shuffled", "constant"),
    "rotary": ("none", "constant", "shuffled", "keep_highest", "drop_highest", "band"),
    "alibi": ("none",),
    "t5": ("none", "mean"),
    "all": ("none",),
}
_SHARES = ("keep_highest", "drop_highest")


@dataclass(frozen=True)
class Condition:
    """One encoding and what becomes of it.

    Attributes:
        encoding: a key of `CONDITIONS`.
        name: one of its conditions.
        share: of the frequencies, 0 to 1, for `keep_highest` and `drop_highest`.
        band: first frequency that turns and the one after the last, for `band`.
    """

    encoding: str
    name: str = "none"
    share: float = 0.0
    band: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        value = ""
        if self.name in _SHARES:
            value = f"={self.share:.12g}"
        if self.name == "band":
            value = f"={self.band[0]}-{self.band[1]}"
        return f"{self.encoding}:{self.name}{value}"


def parse_condition(how: str) -> Condition:
    """`"<encoding>[:<condition>[=<value>]]"` as a Condition; `none` where no condition is named.

    Args:
        how: a key of `CONDITIONS`, one of its conditions, and the value that some of them take.

    Raises:
        UserError: for unknown names, with the nearest right one, and for missing, superfluous or
            nonsensical values.

    Example:
        >>> str(parse_condition("rotary:keep_highest=0.50"))
        'rotary:keep_highest=0.5'
    """
    encoding, colon, rest = how.partition(":")
    if encoding not in CONDITIONS:
        raise unknown_name("position encoding", encoding, CONDITIONS)
    name, equals, value = rest.partition("=") if colon else ("none", "", "")
    if name not in CONDITIONS[encoding]:
        raise unknown_name(f"condition of {encoding} positions", name, CONDITIONS[encoding])
    if name in _SHARES:
        return Condition(encoding, name, share=_share(how, value))
    if name == "band":
        return Condition(encoding, name, band=_band(how, value))
    if equals:
        raise UserError(f"{how!r}: the condition {name!r} takes no value: leave {value!r} out.")
    return Condition(encoding, name)


def _share(how: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise UserError(f"{how!r}: {value!r} is no share of the frequencies: give 0 to 1.")
    return share


def _band(how: str, value: str) -> tuple[int, int]:
    low, _, high = value.partition("-")
    # Digits of other scripts are digits to Python; more than nine of them are no band.
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in (low, high)):
        raise UserError(f"{how!r}: {value!r} is no band of frequencies: give LO-HI, such as 0-8.")
    if int(low) >= int(high):
        raise UserError(f"{how!r}: the band {value} is empty: give LO-HI with LO below HI.")
    return int(low), int(high)
