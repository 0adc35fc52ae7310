"""What one kind of tokens tells about the heads of a layer, summed up over its sequences."""

from collections.abc import Mapping

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from probes.bootstrap import SequenceBootstrap
from probes.errors import ProbeError
from probes.heads._settling import Settling


class HeadFeed:
    """A bootstrap over sequences for some metrics of all heads, with their chance levels."""

    def __init__(self, metrics: tuple[str, ...], n_resamples: int, seed: int) -> None:
        self.metrics = metrics
        self.layout: tuple[int, ...] = ()  # what must be alike in all batches
        self.chance: Float[np.ndarray, " metric"] = np.full(len(metrics), np.nan)
        self._bootstrap = SequenceBootstrap(n_resamples, seed)
        self._settling = Settling()

    @property
    def n(self) -> int:
        return self._bootstrap.n

    def adopt(self, layout: tuple[int, ...]) -> None:
        """Raises ProbeError where sequences of another layout came before."""
        if self.layout and layout != self.layout:
            raise ProbeError(
                f"sequences read for {' and '.join(self.metrics)} changed their layout (length, "
                f"period, start) from {self.layout} to {layout}: cut all of a kind alike"
            )
        self.layout = layout

    def add(
        self,
        found: Mapping[str, Float[Tensor, "_ head"]],
        chance: Mapping[str, float],
        layout: tuple[int, ...],
    ) -> None:
        """Adds sequences; values and chance levels go by the metrics' names.

        The chance levels follow from the layout; a metric that has none has NaN.
        """
        self.adopt(layout)
        self.chance = np.array([chance[metric] for metric in self.metrics], dtype=np.float64)
        values = torch.stack([found[metric] for metric in self.metrics], dim=-1)
        rows = rearrange(values.double(), "batch head metric -> batch (head metric)").cpu().numpy()
        self._bootstrap.update(rows)
        self._settling.add(rows)

    def merge(self, other: "HeadFeed") -> None:
        """Adds the other's sequences."""
        if other.n:
            self.adopt(other.layout)
            self.chance = other.chance
            self._bootstrap.merge(other._bootstrap)
            self._settling.merge(other._settling)

    def numbers(self, n_heads: int) -> dict[str, np.ndarray]:
        """The columns of HeadScores for these metrics, NaN where no sequence was given."""
        shape = (n_heads, len(self.metrics))
        columns = dict.fromkeys(("value", "ci_low", "ci_high", "stderr"), np.full(shape, np.nan))
        replicates = np.full((self._bootstrap.n_resamples, *shape), np.nan)
        if self.n:
            means, errors = self._bootstrap.mean(), self._bootstrap.stderr()
            found = zip(columns, (means, *self._bootstrap.interval(), errors), strict=True)
            columns = {name: numbers.reshape(shape) for name, numbers in found}
            replicates = self._bootstrap.replicates().reshape(-1, *shape)
        columns["early"] = self._early(n_heads)
        chance, n = np.tile(self.chance, (n_heads, 1)), np.full(shape, self.n)
        return {**columns, "chance": chance, "n": n, "replicates": replicates}

    def _early(self, n_heads: int) -> Float[np.ndarray, "stage three head metric"]:
        """The means, their standard errors and how many sequences, of ever fewer sequences."""
        shape = (n_heads, len(self.metrics))
        stages = [
            np.stack([means.reshape(shape), errors.reshape(shape), np.full(shape, float(n))])
            for n, means, errors in self._settling.stages()
        ]
        return np.stack(stages) if stages else np.full((0, 3, *shape), np.nan)
