"""The weights of a bootstrap's resamples, drawn batch by batch. Needs no torch."""

from functools import lru_cache

import numpy as np
from jaxtyping import Float

# What a generator of numpy draws next: its state and its increment.
State = tuple[int, int]
# So many weights are 8 MB.
_MOST_KEPT = 2**20

Weights = Float[np.ndarray, "resample batch"]


def state_of(generator: np.random.PCG64) -> State:
    """What it draws next."""
    of = generator.state["state"]
    return of["state"], of["inc"]


def drawn(state: State, n_resamples: int, n: int) -> tuple[Weights, State]:
    """Weights of so many resamples and sequences, and the state after them.

    All that is measured on the same sequences with the same seed asks for the same weights, which
    take longer to draw than to use: small ones are kept.
    """
    draw = _kept if n_resamples * n <= _MOST_KEPT else _drawn
    return draw(state, n_resamples, n)


def _drawn(state: State, n_resamples: int, n: int) -> tuple[Weights, State]:
    drawing = np.random.PCG64()
    drawing.state = {**drawing.state, "state": {"state": state[0], "inc": state[1]}}
    weights = np.random.Generator(drawing).poisson(1.0, (n_resamples, n)).astype(np.float64)
    return weights, state_of(drawing)


_kept = lru_cache(maxsize=8)(_drawn)
