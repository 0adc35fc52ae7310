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

from probes.bootstrap import SequenceBootstrap
from probes.errors import ProbeError
from probes.scores import Score

Queries = Float[Tensor, "batch pos head d_head"]
Keys = Float[Tensor, "batch pos group d_head"]
Norms = Float[Tensor, "batch head freq"]

# The share of the frequencies, from the highest down, that counts as high.
HIGH = 0.25


class FrequencyUsage:
    """Mean norms of one layer's query and key chunks, streamed; `update` once for each batch.

    Args:
        rotated: how many of a head's first dimensions are turned; dimension i pairs with dimension
            i + rotated / 2, as in Llama and GPT-NeoX, highest frequency first.
        seed: of the bootstrap; give every shard another.
    """

    def __init__(self, rotated: int, *, seed: int = 0) -> None:
        if rotated < 2 or rotated % 2:
            raise ProbeError(f"{rotated} rotated dimensions do not make pairs: give an even number")
        self.rotated = rotated
        self._query: Tensor | float = 0.0
        self._key: Tensor | float = 0.0
        self._high = SequenceBootstrap(seed=seed)

    @property
    def n(self) -> int:
        """Sequences seen."""
        return self._high.n

    def update(self, queries: Queries, keys: Keys) -> None:
        """Adds sequences. Heads that share keys are repeated.

        Args:
            queries: `[batch pos head d_head]`, before rotation or after it.
            keys: the same of the keys, of as many heads or fewer.

        Raises:
            ProbeError: for shapes that do not fit together, and numbers that are not finite.
        """
        query, key = _norms(queries, keys, self.rotated)
        self._query = self._query + query.sum(0)
        self._key = self._key + key.sum(0)
        high = _shares(query, key)[..., : n_high(self.rotated // 2)].sum(-1)
        self._high.update(high.cpu())

    def merge(self, other: "FrequencyUsage") -> None:
        """Adds what `other` saw: the same layer, other sequences.

        Raises ProbeError where the two rotate different dimensions, or share a seed.
        """
        if other.rotated != self.rotated:
            raise ProbeError(
                f"cannot merge {other.rotated} rotated dimensions into {self.rotated}: use one "
                "FrequencyUsage for each layer"
            )
        self._high.merge(other._high)
        self._query = self._query + other._query
        self._key = self._key + other._key

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
        n_frequencies = self.rotated // 2
        chance = n_high(n_frequencies) / n_frequencies
        columns = zip(self._high.mean(), *self._high.interval(), strict=True)
        return [
            Score("high_frequency_share", float(value), float(low), float(high), chance, self.n)
            for value, low, high in columns
        ]

    def _mean(self, total: Tensor | float) -> np.ndarray:
        if isinstance(total, float):
            raise ProbeError("no sequence was seen: call update() first")
        return (total / self.n).cpu().numpy()


def n_high(n_frequencies: int) -> int:
    """How many of the frequencies count as high: a quarter, at least one."""
    return max(1, round(HIGH * n_frequencies))


def frequency_shares(queries: Queries, keys: Keys, rotated: int) -> Norms:
    """Each frequency's share of |q| |k| in each sequence, highest frequency first.

    |q| and |k| are mean norms over the sequence's tokens; shares sum to 1. Those of a head whose
    queries or keys are all zero are equal.

    Args:
        queries: before rotation or after it, which leaves norms alone.
        keys: the same.
        rotated: how many of a head's dimensions rotate, its first ones.

    Returns:
        `[batch head frequency]`.

    Raises:
        ProbeError: for shapes that do not fit together, and numbers that are not finite.
    """
    return _shares(*_norms(queries, keys, rotated))


def _shares(query: Norms, key: Norms) -> Norms:
    usage = query * key
    total = usage.sum(-1, keepdim=True)
    return torch.where(total == 0, 1 / usage.shape[-1], usage / total)


def _norms(queries: Queries, keys: Keys, rotated: int) -> tuple[Norms, Norms]:
    """Mean chunk norms of queries and keys, the keys' repeated for the heads that share them."""
    heads, groups = queries.shape[2], keys.shape[2]
    if heads % groups or min(queries.shape[-1], keys.shape[-1]) < rotated:
        raise ProbeError(
            f"queries {tuple(queries.shape)} and keys {tuple(keys.shape)} do not fit together "
            f"with {rotated} rotated dimensions"
        )
    key = repeat(
        _chunk_norms(keys, rotated), "batch g freq -> batch (g shared) freq", shared=heads // groups
    )
    return _chunk_norms(queries, rotated), key


def _chunk_norms(x: Queries, rotated: int) -> Norms:
    # A norm over an axis of two takes many times as long.
    first, second = rearrange(x[..., :rotated].float(), "b p h (two freq) -> two b p h freq", two=2)
    norms: Tensor = torch.hypot(first, second).mean(dim=1).double()
    if not torch.isfinite(norms).all():
        raise ProbeError("queries or keys hold NaN or infinite numbers")
    return norms
