"""The errors of predicted positions on held-out sequences, beside those of the shuffled control."""

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from probes.bootstrap import SequenceBootstrap
from probes.controls import chance_error, half_of
from probes.scores import SHUFFLED, Score
from probes.shapes import PerPosition, Positions

Errors = Float[Tensor, "control batch pos"]


class PositionErrors:
    """Errors of predicted positions on held-out sequences: mae, r2, and the error by position.

    `uninformed` is the position that a predictor which knows nothing answers, whose error is the
    chance level of mae: by default the best constant.

    `target` is what the predictor was fitted to and r2 is taken on ([pos]: t itself, or 1/m). mae
    is in positions. r2 is at most 1, can be
    negative, and compares with the target's variance over the held-out positions.

    Errors come with a leading control axis: the measurement, then the same on shuffled positions.
    """

    def __init__(
        self,
        positions: Positions,
        target: PerPosition,
        n_resamples: int,
        seed: int,
        uninformed: float | None = None,
    ) -> None:
        self._positions = positions
        self._chance = chance_error(positions, uninformed)
        self._variance = float(target.double().var(correction=0))
        self._bootstrap = SequenceBootstrap(n_resamples, seed)

    def update(self, error: Errors, residual: Errors) -> None:
        """Adds held-out sequences: error in positions, residual in units of the target."""
        squares = residual.double().square().mean(dim=-1, keepdim=True)
        columns = torch.cat([error.double().abs(), squares], dim=-1)
        self._bootstrap.update(rearrange(columns, "control batch c -> batch (control c)"))

    def merge(self, other: "PositionErrors") -> None:
        self._bootstrap.merge(other._bootstrap)

    def scores(self) -> tuple[Score, ...]:
        """mae and r2, then the same two of the control."""

        def mean_error(means: np.ndarray) -> np.ndarray:
            of_positions: np.ndarray = means[..., :-1].mean(axis=-1)
            return of_positions

        def r2(means: np.ndarray) -> np.ndarray:
            return 1 - means[..., -1] / self._variance

        return tuple(
            self._bootstrap.score(metric, half_of(i, function), chance=level, control=control)
            for i, control in enumerate(("", SHUFFLED))
            for metric, function, level in (("mae", mean_error, self._chance), ("r2", r2, 0.0))
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Mean absolute error by position, with its interval, and the positions."""
        pos = len(self._positions)
        low, high = self._bootstrap.interval()
        return {
            "error": self._bootstrap.mean()[:pos],
            "error_low": low[:pos],
            "error_high": high[:pos],
            "positions": self._positions.numpy(),
        }
