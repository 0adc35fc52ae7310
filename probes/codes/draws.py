"""Gaussian draws for controls, one for each sequence or for several in a row."""

import torch
from jaxtyping import Int
from torch import Generator, Tensor


class Draws:
    """Draws of one shape, in the order of the sequences that they are for.

    The same generator state gives the same draws to the same batches.

    Args:
        shape: of a draw.
        generator: of the draws.
        together: how many sequences in a row share one.
    """

    def __init__(self, shape: tuple[int, ...], generator: Generator, together: int = 1) -> None:
        self._shape, self._generator, self._together = shape, generator, together
        self._seen = self._made = 0
        self._last = torch.zeros(0, *shape)

    def of_next(self, n: int) -> tuple[Tensor, Int[Tensor, " sequence"]]:
        """Those of the next sequences, each draw once.

        Args:
            n: how many sequences.

        Returns:
            `[draw, *shape]`, and the number of each sequence's draw among these.
        """
        which = (self._seen + torch.arange(n)) // self._together
        more = int(which[-1]) + 1 - self._made
        fresh = torch.randn((more, *self._shape), generator=self._generator)
        self._last = torch.cat([self._last[-1:], fresh])
        self._seen, self._made = self._seen + n, self._made + more
        among = which - (self._made - len(self._last))
        first = int(among[0])  # the last batch's draw, where no sequence of this one has it
        return self._last[first:], among - first
