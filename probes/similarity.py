"""The similarity of nearby activations: adjacency, position from cosines alone, seriation.

Zuo, Guerzhoy and Guerzhoy 2025 (arXiv 2501.00073): under causal attention without positional
encodings, nearby activations have the larger cosine similarity. For the first attention layer we
derive it from averaging independent values: cos(c_i, c_j) = sqrt(i/j) for i <= j.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from typing import Any

import numpy as np
import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float, Int
from scipy.linalg import eigh
from torch import Tensor

from probes.adjacency import adjacency
from probes.bootstrap import SequenceBootstrap
from probes.checks import check_positive
from probes.errors import ProbeError
from probes.moments import LinearMoments
from probes.scores import SHUFFLED, ProbeResult, Score
from probes.shapes import Activations, Cosines, PerSequence
from probes.streaming import StreamingProbe, require_finite, upcast

ALL = slice(None)

# The maps of longer sequences are of so many of their tokens, evenly spread.
_MAPPED = 256
# Adjacency of sequences above about 1000 tokens is over fewer rows, with so many triples in all.
_TRIPLES = 2**30
# What a block of rows has of cosines, of all sequences of a batch: 16 MiB in single precision.
_CELLS = 2**22


def cosine_similarity(
    x: Float[Tensor, "*batch pos d"], rows: slice | Int[Tensor, " row"] = ALL
) -> Float[Tensor, "*batch row pos"]:
    """Cosines between activations of a sequence, -1 to 1; 0 where one of them is all zeros.

    Args:
        x: activations.
        rows: those whose cosines with all of them are asked for; all by default.

    Returns:
        `[row pos]` of each sequence, in single precision at least.
    """
    x = upcast(x)
    norms = torch.linalg.vector_norm(x, dim=-1).clamp(min=torch.finfo(x.dtype).tiny)
    cosines: Tensor = x[..., rows, :] @ x.mT / norms[..., rows, None] / norms[..., None, :]
    return cosines


def cosine_profile(
    cosines: Float[Tensor, "*batch row pos"],
    n_quantiles: int = 9,
    rows: slice | Int[Tensor, " row"] = ALL,
) -> Float[Tensor, "*batch row quantile"]:
    """Quantiles of each row's cosines with the other rows, from the smallest to the largest.

    Sorted and without the diagonal, because a column's index or where the 1 stands would give the
    position away. A few quantiles stand for all the cosines, since a regression on every one of
    them fits the sequences it has seen instead of the positions.

    Args:
        cosines: -1 to 1, of each activation with those of its sequence.
        n_quantiles: how many, from the smallest to the largest.
        rows: which rows are given; all by default.

    Returns:
        `[row quantile]` of each sequence, on the CPU.
    """
    columns = torch.arange(cosines.shape[-1], device=cosines.device)
    diagonal = columns == columns[rows, None]
    others = cosines.masked_fill(diagonal, torch.inf).cpu().numpy()
    # NumPy's sort is several times faster than torch's, which keeps track of indices too.
    ascending = np.sort(others, axis=-1)[..., :-1]
    chosen = np.linspace(0, ascending.shape[-1] - 1, n_quantiles).round().astype(int)
    return torch.from_numpy(ascending[..., chosen])


def seriate(similarity: Cosines, generator: torch.Generator) -> Int[Tensor, "batch pos"]:
    """The rows of each matrix in an order that puts similar ones next to each other.

    Spectral ordering (Atkins, Boman and Hendrickson 1998): sorted by the Fiedler vector, the second
    eigenvector of the Laplacian of the similarity shifted to be nonnegative. For a matrix that
    falls away from its diagonal (Robinsonian) it is the true order or its reverse, which cannot be
    told apart. Rows are permuted at random first, so that ties cannot keep the order they came in.

    Args:
        similarity: the larger, the nearer; such as cosines.
        generator: of the random order that rows are given first.
    """
    batch, pos = similarity.shape[:2]
    permuted = torch.rand(batch, pos, generator=generator).argsort(dim=-1)
    weights = _permuted(similarity.cpu().double(), permuted).numpy()
    fiedler = np.stack([_fiedler_vector(matrix) for matrix in weights])
    return permuted.gather(-1, torch.from_numpy(fiedler.argsort(axis=-1)))


def _fiedler_vector(similarity: Float[np.ndarray, "pos pos"]) -> Float[np.ndarray, " pos"]:
    weights = similarity - similarity.min()
    np.fill_diagonal(weights, 0)
    laplacian = np.diag(weights.sum(axis=1)) - weights
    return np.asarray(eigh(laplacian, subset_by_index=[1, 1])[1][:, 0])


def _permuted(cosines: Cosines, order: Int[Tensor, "batch pos"]) -> Cosines:
    """Rows and columns in another order."""
    batch = torch.arange(len(order))[:, None, None]
    return cosines[batch, order[:, :, None], order[:, None, :]]


def kendall_tau(order: Int[Tensor, "batch pos"], labels: Int[Tensor, "batch pos"]) -> PerSequence:
    """|Kendall's tau| between a recovered order and the true one, which labels give, 0 to 1.

    Absolute, because a similarity matrix cannot tell a sequence from its reverse.

    Args:
        order: rows in the order that was found.
        labels: the true position of each row.
    """
    found = labels.gather(-1, order)
    pairs = torch.sign(found[:, None, :] - found[:, :, None]).triu()
    pos = order.shape[-1]
    return pairs.sum(dim=(-2, -1)).abs().double() / (pos * (pos - 1) / 2)


@cache
def chance_tau(n: int) -> float:
    """The mean |Kendall tau| of random orders of n activations.

    How many pairs stand the wrong way round is a sum of independent draws: the k-th activation
    does with any number from 0 to k - 1 of those before it, each as likely.
    """
    chances = np.ones(1)
    for k in range(2, n + 1):
        below = np.pad(chances.cumsum(), (k, k - 1))
        below[-(k - 1) :] = 1
        chances = (below[k:] - below[:-k]) / k
    wrong, pairs = np.arange(len(chances)), n * (n - 1) / 2
    return float(chances @ np.abs(1 - 2 * wrong / pairs))


@dataclass(frozen=True)
class _Kept:
    """What is kept of some sequences, whose number is the first axis.

    Attributes:
        maps: cosines of all activations, or of `_MAPPED` that are evenly spread, with each other.
        labels: where activations stand, and for the control the same permuted.
        read: of sequences longer than their maps, what was read of them when they came.
    """

    maps: Float[Tensor, "batch mapped mapped"]
    labels: Int[Tensor, "batch control pos"]
    read: dict[str, Tensor]

    @property
    def profiles(self) -> Float[Tensor, "control batch pos quantile"]:
        """Of each activation; for the control they stand in another order."""
        profiles = self.read["profiles"] if self.read else cosine_profile(self.maps)
        moved = repeat(self.order, "batch pos -> batch pos q", q=profiles.shape[-1])
        return torch.stack([profiles, profiles.gather(1, moved)])

    @property
    def adjacency(self) -> Float[Tensor, "batch control candidate"]:
        """A, B and C; for the control of permuted activations."""
        if self.read:
            return self.read["adjacency"]
        every = torch.arange(self.maps.shape[-1])
        both = self.maps, _permuted(self.maps, self.order)
        return torch.stack([adjacency([(maps, every)]) for maps in both], dim=1)

    @property
    def order(self) -> Int[Tensor, "batch pos"]:
        """In which the control has the activations."""
        return self.labels[:, 1].argsort(dim=-1)

    def joined(self, other: "_Kept", most: int) -> "_Kept":
        """The first `most` sequences of both."""

        def both(ours: Tensor, theirs: Tensor) -> Tensor:
            return torch.cat((ours, theirs))[:most]

        read = {name: both(ours, other.read[name]) for name, ours in self.read.items()}
        return _Kept(both(self.maps, other.maps), both(self.labels, other.labels), read)


def _read_long(x: Activations, order: Int[Tensor, "batch pos"] | None) -> dict[str, Tensor]:
    """What is read of long sequences, few rows of their cosines at a time.

    Args:
        x: activations.
        order: another order of them, for the control of adjacency; None reads no adjacency.
    """
    batch, pos, d = x.shape
    size = max(1, _CELLS // (batch * pos))

    def blocks(x: Activations, n_rows: int) -> Iterator[tuple[Tensor, Tensor]]:
        for numbers in _spread(pos, n_rows).split(size):
            yield cosine_similarity(x, numbers), numbers

    profiles = [cosine_profile(rows, rows=numbers) for rows, numbers in blocks(x, pos)]
    read = {"profiles": torch.cat(profiles, dim=1)}
    require_finite(read["profiles"])
    if order is not None:
        permuted = x.gather(1, repeat(order, "batch pos -> batch pos d", d=d))
        both = [adjacency(blocks(of, max(3, _TRIPLES // pos**2))) for of in (x, permuted)]
        read["adjacency"] = torch.stack(both, dim=1)
    return read


def _spread(n: int, most: int) -> Int[Tensor, " some"]:
    """At most so many of the numbers below n, evenly spread, the first and the last among them."""
    return torch.linspace(0, n - 1, min(n, most)).round().long()


class SimilarityProbe(StreamingProbe):
    """What the cosines within a sequence say about the positions of activations: "similarity".

    * cosine [pos pos]: mean cosine matrix; of 256 evenly spread tokens where there are more.
    * adjacency_a, adjacency_b, adjacency_c: chance 0.5.
    * mae, r2: position by ridge regression on its `cosine_profile`.
    * seriation_tau: `|Kendall tau|` of the order in which `seriate` puts the tokens of that matrix;
      chance is a random order's.

    A vector that all activations share, of a weight that changes with position, changes cosines,
    too: it is read by each of these, without any nearness.

    Only the first `n_sequences` sequences to fit on and as many held-out ones are looked at, and
    further batches cost nothing. Long ones are read few rows at a time, so that memory grows with
    the length and not with its square; adjacency above about 1000 tokens is over evenly spread
    rows. For the control the rows and columns of every matrix are permuted.

    Args:
        n_sequences: how many sequences to fit on, and how many held-out ones, are kept; at least 2.
        alpha: the ridge penalty on standardised quantiles, above 0.
        seed: of the permutations and of the bootstrap.
        n_resamples: of the bootstrap over held-out sequences.

    Raises:
        ProbeError: for an `n_sequences` below 2, for an `alpha` that is no number above 0, and as
            `StreamingProbe`.
    """

    def __init__(
        self, *, n_sequences: int = 32, alpha: float = 1.0, seed: int = 0, n_resamples: int = 1000
    ) -> None:
        super().__init__(seed=seed, n_resamples=n_resamples)
        self.n_sequences = n_sequences
        self.alpha = check_positive("alpha", alpha)
        if n_sequences < 2:
            raise ProbeError(f"n_sequences is {n_sequences}; an interval needs at least 2")
        self._to_fit: list[_Kept] = []
        self._held_out: list[_Kept] = []

    def _alike(self) -> tuple[Any, ...]:
        return (*super()._alike(), self.n_sequences, self.alpha)

    def _keep(self, kept: list[_Kept], activations: Tensor) -> None:
        room = self.n_sequences - sum(len(some.labels) for some in kept)
        if room <= 0:
            return
        x = upcast(activations[:room]).cpu()
        labels = rearrange(self._labels(len(x)), "control batch pos -> batch control pos")
        mapped = _spread(x.shape[1], _MAPPED)
        maps = cosine_similarity(x[:, mapped])
        require_finite(maps)
        some = _Kept(maps, labels, {})
        if x.shape[1] > _MAPPED:
            order = some.order if kept is self._held_out else None
            some = replace(some, read=_read_long(x, order))
        kept.append(some)

    def _n_permuted(self, n_sequences: int) -> int:
        return min(n_sequences, self.n_sequences)

    def _first(self, kept: list[_Kept]) -> _Kept:
        """The first `n_sequences` of what was kept."""
        return reduce(partial(_Kept.joined, most=self.n_sequences), kept)

    def _fit(self, activations: Tensor) -> None:
        self._keep(self._to_fit, activations)

    def _solve(self) -> None:
        kept = self._first(self._to_fit)
        t = self.positions.double().repeat(len(kept.labels), 1)[..., None]
        # Where activations are all alike their cosines are 1, but for rounding.
        fits = [
            LinearMoments().update(profile, t).ridge(self.alpha, coarse_is_constant=True)
            for profile in kept.profiles
        ]
        self._coefficients = np.concatenate([coefficients for coefficients, _ in fits], axis=1)
        self._intercepts = np.concatenate([intercepts for _, intercepts in fits])
        self._to_fit = []

    def _score(self, activations: Tensor) -> None:
        self._keep(self._held_out, activations)

    def _fitted(self) -> Sequence[np.ndarray]:
        return self._coefficients, self._intercepts

    def _merge_fit(self, other: "SimilarityProbe") -> None:
        self._to_fit = [self._first(self._to_fit + other._to_fit)]

    def _merge_scores(self, other: "SimilarityProbe") -> None:
        self._held_out = [self._first(self._held_out + other._held_out)]

    def _result(self) -> dict[str, ProbeResult]:
        kept = self._first(self._held_out)
        scores = (
            *self._position_scores(kept),
            *self._adjacency_scores(kept),
            *self._seriation_scores(kept),
        )
        arrays = {
            "cosine": kept.maps.mean(dim=0).numpy(),
            "positions": self.positions[_spread(len(self.positions), _MAPPED)].numpy(),
        }
        return {"similarity": ProbeResult(scores, arrays)}

    def _position_scores(self, kept: _Kept) -> tuple[Score, ...]:
        coefficients = torch.from_numpy(self._coefficients)
        profiles = kept.profiles.double()
        predicted = einsum(profiles, coefficients, "c batch pos q, q c -> c batch pos")
        predicted += torch.from_numpy(self._intercepts)[:, None, None]
        error = predicted - self.positions
        errors = self._position_errors(self.positions.double())
        errors.update(error, error)
        return errors.scores()

    def _adjacency_scores(self, kept: _Kept) -> list[Score]:
        found = rearrange(kept.adjacency, "batch control candidate -> control candidate batch")
        return [
            self._mean_score(f"adjacency_{letter}", values, 0.5, control)
            for control, candidates in zip(("", SHUFFLED), found, strict=True)
            for letter, values in zip("abc", candidates, strict=True)
        ]

    def _seriation_scores(self, kept: _Kept) -> list[Score]:
        # A generator of its own, so that a result read twice has the same bits.
        order = seriate(kept.maps, torch.Generator().manual_seed(self.seed))
        chance = chance_tau(kept.maps.shape[-1])
        labels = kept.labels[..., _spread(kept.labels.shape[-1], _MAPPED)]
        return [
            self._mean_score("seriation_tau", kendall_tau(order, labels[:, i]), chance, control)
            for i, control in enumerate(("", SHUFFLED))
        ]

    def _mean_score(self, metric: str, values: Tensor, chance: float, control: str) -> Score:
        bootstrap = SequenceBootstrap(self.n_resamples, self.seed).update(values[:, None])
        return bootstrap.score(metric, lambda means: means[..., 0], chance=chance, control=control)
