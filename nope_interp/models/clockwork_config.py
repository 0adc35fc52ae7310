"""One frozen, validated description of a Clockwork RNN. Importing this module loads no torch."""

from dataclasses import dataclass
from itertools import pairwise
from typing import no_type_check

from nope_interp.errors import UserError
from nope_interp.fields import Count, Seed, check_fields

POWERS_OF_TWO = tuple(2**k for k in range(8))


@no_type_check  # it checks itself, in sentences
@dataclass(frozen=True)
class ClockworkConfig:
    """The sizes and the clocks of a Clockwork RNN (Koutnik et al. 2014, arXiv 1402.3511).

    Attributes:
        d_in: numbers that come in at a time step.
        d_hidden: hidden units in all; every module has an equal share of them.
        d_out: numbers that go out at a time step.
        periods: one per module, growing, in time steps: 1, 2, 4, ..., 128 unless given.
        seed: of the weights at initialisation.

    Wrong values raise `UserError` with one sentence that names the field and the remedy.

    Example:
        >>> ClockworkConfig(d_in=1, d_hidden=64, d_out=1).n_recurrent
        2304
    """

    d_in: Count
    d_hidden: Count
    d_out: Count
    periods: tuple[Count, ...] = POWERS_OF_TWO
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self, "clockwork")
        if not self.periods:
            raise UserError("clockwork periods are none: give at least one.")
        if any(slower <= faster for faster, slower in pairwise(self.periods)):
            raise UserError(
                f"clockwork periods are {self.periods}: make each larger than the one before it."
            )
        if self.d_hidden % len(self.periods):
            raise UserError(
                f"clockwork d_hidden {self.d_hidden} does not divide into {len(self.periods)} "
                f"modules: make it a multiple of the number of periods."
            )

    @property
    def width(self) -> int:
        """Hidden units of one module."""
        return self.d_hidden // len(self.periods)

    @property
    def n_recurrent(self) -> int:
        """Recurrent weights: n²/2 + n²/(2g), the block triangle of n units in g equal modules."""
        return (self.d_hidden**2 + self.d_hidden * self.width) // 2

    @property
    def n_parameters(self) -> int:
        """All weights, with the read-out's and its bias; there are no hidden biases."""
        return self.n_recurrent + self.d_hidden * (self.d_in + self.d_out) + self.d_out
