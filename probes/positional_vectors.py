"""Positional vectors: the mean over sequences at each position, and their share of the variance.

Dong et al. 2024 (arXiv 2405.18009): p(t) is the mean of h(t) over sequences; what remains of a
hidden state, h(t) - p(t), is its content.
"""

from collections.abc import Sequence

import numpy as np
import torch
from einops import einsum, rearrange
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from probes.bootstrap import ArrayFunction, SequenceBootstrap
from probes.scores import SHUFFLED, ProbeResult
from probes.streaming import StreamingProbe, require_finite, upcast


class PositionalVectorProbe(StreamingProbe):
    """The share of the residual's variance that position explains: "positional_vectors".

    With p(t) the mean over the fitted sequences at position t, g their mean over all positions, and
    h(t) the activations of a held-out sequence::

        share = mean over sequences of sum_t (p(t) - g) . (h(t) - g)
              / mean over sequences of sum_t |h(t) - g|^2

    Because p(t) and h(t) come from different sequences, their noise does not multiply with itself:
    the numerator's mean is the true sum of `|E h(t) - E h|^2`, and no bias need be corrected
    (cross-validation as in the crossnobis distance, Walther et al. 2016). share is 0 by chance, at
    most 1, and can fall a little below 0. Where few sequences hold most of the variance, as those
    with massive activations do, its interval is that of so few.

    Args:
        seed: of the permutations and of the bootstrap.
        n_resamples: of the bootstrap over held-out sequences.
    """

    def __init__(self, *, seed: int = 0, n_resamples: int = 1000) -> None:
        super().__init__(seed=seed, n_resamples=n_resamples)
        self._sums = torch.zeros(2, 1, 1, dtype=torch.float64)  # [control pos d_model]

    def _shuffled_rows(self, batch: int) -> Int[Tensor, "batch pos"]:
        """For the control: which vector each position gets, by its permuted label."""
        return torch.searchsorted(self.positions, self._labels(batch)[1])

    def _fit(self, activations: Tensor) -> None:
        activations = upcast(activations)
        sums = activations.sum(dim=0)
        require_finite(sums)
        rows = self._shuffled_rows(len(activations)).to(activations.device)
        shuffled = torch.zeros_like(sums).index_add_(
            0, rows.flatten(), rearrange(activations, "batch pos d -> (batch pos) d")
        )
        self._sums = self._sums.to(sums.device) + torch.stack([sums, shuffled])

    def _solve(self) -> None:
        means = self._sums / self.n_fitted
        self._mean = means[0].mean(dim=0)
        self._vectors = means - self._mean
        self._bootstrap = SequenceBootstrap(self.n_resamples, self.seed)

    def _score(self, activations: Tensor) -> None:
        activations = upcast(activations)
        centred = activations - self._mean.to(activations)
        true, shuffled = self._vectors.to(activations)
        rows = self._shuffled_rows(len(activations)).to(activations.device)
        columns = [
            einsum(centred, true, "batch pos d, pos d -> batch"),
            (centred * functional.embedding(rows, shuffled)).sum(dim=(1, 2)),
            torch.linalg.vector_norm(centred, dim=(1, 2)).square(),
        ]
        values = torch.stack(columns, dim=-1)
        require_finite(values)
        self._bootstrap.update(values.double())

    def _fitted(self) -> Sequence[np.ndarray]:
        return [self._vectors.cpu().numpy(), self._mean.cpu().numpy()]

    def _merge_fit(self, other: "PositionalVectorProbe") -> None:
        self._sums = self._sums + other._sums.to(self._sums.device)

    def _merge_scores(self, other: "PositionalVectorProbe") -> None:
        self._bootstrap.merge(other._bootstrap)

    def _result(self) -> dict[str, ProbeResult]:
        def share(control: int) -> ArrayFunction:
            def explained(means: np.ndarray) -> np.ndarray:
                # Activations that never vary leave nothing to explain.
                total = np.where(means[..., 2] > 0, means[..., 2], np.inf)
                return means[..., control] / total

            return explained

        # A share of what few sequences hold rests on these few.
        n = self._bootstrap.n_effective(2)
        scores = tuple(
            self._bootstrap.score("share", share(i), chance=0.0, control=control, n=n)
            for i, control in enumerate(("", SHUFFLED))
        )
        return {"positional_vectors": ProbeResult(scores, {"positions": self.positions.numpy()})}
