"""Shuffled positions, the control of every probe."""

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from probes.bootstrap import ArrayFunction
from probes.shapes import Positions

# Sequences, so that however many there are, memory does not grow.
_SKIPPED_AT_ONCE = 1024


def chance_error(positions: Positions, answer: float | None = None) -> float:
    """The mean absolute error, in positions, of one answer to everything.

    By default that of the best answer, the median: L/4 for L contiguous positions ("always the
    middle").

    Args:
        positions: [pos], those that are asked for.
        answer: the one answer, a position.
    """
    exact = positions.double()
    constant = exact.quantile(0.5) if answer is None else answer
    return float((exact - constant).abs().mean())


def shuffled_positions(
    batch: int, positions: Positions, generator: torch.Generator
) -> Int[Tensor, "batch pos"]:
    """Position labels permuted independently in each sequence, for a control to learn.

    Every sequence keeps the same set of labels, so only their link to the activations is gone.

    Args:
        batch: how many sequences.
        positions: [pos], those of every sequence.
        generator: what the orders are drawn from.

    Returns:
        `[batch pos]`, each sequence in an order of its own.
    """
    orders = torch.rand(batch, len(positions), generator=generator).argsort(dim=-1)
    return positions[orders]


def skip_shuffled(n_sequences: int, positions: Positions, generator: torch.Generator) -> None:
    """Leaves `generator` as `shuffled_positions` would after as many sequences."""
    for start in range(0, n_sequences, _SKIPPED_AT_ONCE):
        n = min(_SKIPPED_AT_ONCE, n_sequences - start)
        torch.rand(n, len(positions), generator=generator)


def half_of(control: int, function: ArrayFunction) -> ArrayFunction:
    """The function, on the half of the columns that is the measurement (0) or its control (1)."""

    def on_half(means: np.ndarray) -> np.ndarray:
        return function(np.split(means, 2, axis=-1)[control])

    return on_half
