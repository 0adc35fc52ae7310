"""Which rotary frequencies a head uses: the size of its queries and keys in each.

Barbero et al. 2024 (arXiv 2410.06205) look at the norms of the 2-d chunks that one frequency turns:
by Cauchy-Schwarz, |q chunk| |k chunk| bounds what that frequency can add to a score. Rotation keeps
the norms, so it does not matter whether queries and keys come before it or after.
"""

import numpy as np
import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from probes.controls import SequenceBootstrap
from probes.errors import ProbeError
from probes.scores import Score

# The share of the frequencies, from the highest down, that counts as high.
HIGH = 0.25


class FrequencyUsage:
    """Mean norms of one layer's query and key chunks, streamed; `update` once for each batch.

    Args:
        rotated: how many of a head's first dimensions are turned; dimension i pairs with dimension
            i + rotated / 2, as in Llama and GPT-NeoX, highest frequency first.
    """

    def __init__(self, rotated: int, *, seed: int = 0, n_resamples: int = 1000) -> None:
        if rotated < 2 or rotated % 2:
            raise ProbeError(f"{rotated} rotated dimensions do not make pairs: give an even number")
        self.rotated = rotated
        self.n = 0
        self._query: Tensor | float = 0.0
        self._key: Tensor | float = 0.0
        self._high = SequenceBootstrap(n_resamples, seed)

    def update(
        self,
        queries: Float[Tensor, "batch pos head d_head"],
        keys: Float[Tensor, "batch pos group d_head"],
    ) -> None:
        """Adds sequences. Heads that share keys are repeated; raises ProbeError for odd shapes."""
        heads, groups = queries.shape[2], keys.shape[2]
        if heads % groups or min(queries.shape[-1], keys.shape[-1]) < self.rotated:
            raise ProbeError(
                f"queries {tuple(queries.shape)} and keys {tuple(keys.shape)} do not fit together "
                f"with {self.rotated} rotated dimensions"
            )
        query = self._chunk_norms(queries)
        key = repeat(
            self._chunk_norms(keys), "batch g freq -> batch (g shared) freq", shared=heads // groups
        )
        self._query = self._query + query.sum(0)
        self._key = self._key + key.sum(0)
        self.n += len(queries)
        usage = query * key
        high = usage[..., : self._n_high()].sum(-1) / usage.sum(-1)
        self._high.update(high.cpu())

    def query_norm(self) -> Float[np.ndarray, "head freq"]:
        """The mean norm of each query chunk, over tokens and sequences."""
        return self._mean(self._query)

    def key_norm(self) -> Float[np.ndarray, "head freq"]:
        """The mean norm of each key chunk."""
        return self._mean(self._key)

    def high_frequency_share(self) -> list[Score]:
        """For each head, the share of |q| |k| that lies in the highest quarter of frequencies.

        Chance is what equal use of all frequencies gives.
        """
        chance = self._n_high() / (self.rotated // 2)
        low, high = self._high.interval()
        value = self._high.mean()
        metric = "high_frequency_share"
        return [
            Score(metric, float(value[i]), float(low[i]), float(high[i]), chance, self.n)
            for i in range(len(value))
        ]

    def _n_high(self) -> int:
        return max(1, round(HIGH * (self.rotated // 2)))

    def _chunk_norms(
        self, x: Float[Tensor, "batch pos head d_head"]
    ) -> Float[Tensor, "batch head freq"]:
        chunks = rearrange(
            x[..., : self.rotated].float(), "b p h (two freq) -> b p h two freq", two=2
        )
        norms = torch.linalg.vector_norm(chunks, dim=3).mean(dim=1).double()
        if not torch.isfinite(norms).all():
            raise ProbeError("queries or keys hold NaN or infinite numbers")
        return norms

    def _mean(self, total: Tensor | float) -> np.ndarray:
        if isinstance(total, float):
            raise ProbeError("no sequence was seen: call update() first")
        return (total / self.n).cpu().numpy()
