"""The similarity of nearby activations: adjacency, position from cosines alone, seriation.

Zuo, Guerzhoy and Guerzhoy 2025 (arXiv 2501.00073): under causal attention without positional
encodings, nearby activations have the larger cosine similarity. For the first attention layer we
derive it from averaging independent values: cos(c_i, c_j) = sqrt(i/j) for i <= j.
"""

from collections.abc import Sequence

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float, Int
from scipy.linalg import eigh
from torch import Tensor

from probes.bootstrap import SequenceBootstrap
from probes.errors import ProbeError
from probes.moments import LinearMoments
from probes.scores import SHUFFLED, ProbeResult, Score
from probes.shapes import Cosines, PerSequence
from probes.streaming import StreamingProbe, require_finite, upcast


def cosine_similarity(x: Float[Tensor, "*batch pos d"]) -> Float[Tensor, "*batch pos pos"]:
    """Cosines between all activations of a sequence, -1 to 1; 0 where one of them is all zeros."""
    x = upcast(x)
    products = x @ x.mT
    norms = products.diagonal(dim1=-2, dim2=-1).sqrt().clamp(min=torch.finfo(x.dtype).tiny)
    return products / norms[..., None] / norms[..., None, :]


def adjacency_a(cosines: Cosines) -> PerSequence:
    """P(C_ij > C_ik) over k < j < i: of two earlier ones, the nearer is the more similar.

    Zuo et al. 2025 score adjacency with a probability whose exact formula could not be checked.
    Three candidates are computed here; this is the one over all pairs of the lower triangle.
    Chance 0.5, perfect 1; ties count 0.5, the diagonal never enters.
    """
    pos = _n_positions(cosines)
    lower = _lower_triangle(cosines)
    lags = [
        _excess(lower[:, lag + 1 :, lag:], lower[:, lag + 1 :, :-lag]) for lag in range(1, pos - 1)
    ]
    return 0.5 + 0.5 * torch.stack(lags).sum(dim=0) / (pos * (pos - 1) * (pos - 2) / 6)


def adjacency_b(cosines: Cosines) -> PerSequence:
    """P(C_ij > C_i,j-1) over 2 <= j < i: as `adjacency_a`, between neighbouring cells only."""
    pos = _n_positions(cosines)
    lower = _lower_triangle(cosines)
    return 0.5 + 0.5 * _excess(lower[..., 1:], lower[..., :-1]) / ((pos - 1) * (pos - 2) / 2)


def adjacency_c(cosines: Cosines) -> PerSequence:
    """P(C_ij > C_ik) over j, k other than i with |i-j| < |i-k|: as `adjacency_a`, on both sides."""
    pos = _n_positions(cosines)
    position = torch.arange(pos, device=cosines.device)
    distance = (position - position[:, None]).abs()
    # Each row's other columns from near to far, so that no cell is missing at any lag.
    distance, columns = (cells[:, 1:] for cells in distance.sort(dim=-1, stable=True))
    outwards = cosines.gather(-1, columns.expand(len(cosines), -1, -1))
    lags = [_excess(outwards[..., :-lag], outwards[..., lag:]) for lag in range(1, pos - 1)]
    # The two columns at one distance are neighbours in that order, and no pair to compare.
    level = distance[:, 1:] == distance[:, :-1]
    excess = torch.stack(lags).sum(dim=0)
    excess = excess - _excess(outwards[..., :-1] * level, outwards[..., 1:] * level)
    return 0.5 + 0.5 * excess / (pos * (pos - 1) * (pos - 2) / 2 - level.sum())


def _n_positions(cosines: Cosines) -> int:
    pos = cosines.shape[-1]
    if pos < 3:
        raise ProbeError(f"adjacency compares activations at three positions; got {pos} positions")
    return pos


def _lower_triangle(cosines: Cosines) -> Cosines:
    """NaN on and above the diagonal."""
    return cosines.masked_fill(torch.ones_like(cosines[0], dtype=torch.bool).triu(), torch.nan)


def _excess(
    near: Float[Tensor, "batch row cell"], far: Float[Tensor, "batch row cell"]
) -> PerSequence:
    """Cells where near > far, less those where near < far; the sign of NaN is 0.

    Few sequences at a time, so that the differences stay in the processor's cache.
    """
    parts = max(1, near.numel() // 2**19)
    return torch.cat(
        [
            torch.sign(a - b).sum(dim=(-2, -1)).double()
            for a, b in zip(near.chunk(parts), far.chunk(parts), strict=True)
        ]
    )


def cosine_profile(
    cosines: Float[Tensor, "*batch pos pos"], n_quantiles: int = 9
) -> Float[Tensor, "*batch pos quantile"]:
    """Quantiles of each row's cosines with the other rows, from the smallest to the largest.

    Sorted and without the diagonal, because a column's index or where the 1 stands would give the
    position away. A few quantiles stand for all the cosines, since a regression on every one of
    them fits the sequences it has seen instead of the positions.

    Args:
        cosines: -1 to 1, of each activation with those of its sequence.
        n_quantiles: how many, from the smallest to the largest.
    """
    diagonal = torch.eye(cosines.shape[-1], dtype=torch.bool, device=cosines.device)
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


def chance_tau(n: int) -> float:
    """The mean |Kendall tau| of random orders of n activations.

    tau is nearly normal with variance 2 (2n + 5) / (9 n (n - 1)) (Kendall 1938), and the mean of
    |N(0, s^2)| is s sqrt(2/pi): within 1% from n = 8 on.
    """
    variance = 2 * (2 * n + 5) / (9 * n * (n - 1))
    return float(np.sqrt(variance * 2 / np.pi))


class SimilarityProbe(StreamingProbe):
    """What the cosines within a sequence say about the positions of activations: "similarity".

    * cosine [pos pos]: mean cosine matrix.
    * adjacency_a, adjacency_b, adjacency_c: chance 0.5.
    * mae, r2: position by ridge regression on its `cosine_profile`.
    * seriation_tau: `|Kendall tau|` of the order that `seriate` finds; chance is a random order's.

    Cosine matrices are as large as attention maps: only those of the first `n_sequences` sequences
    to fit on and as many held-out ones are kept, and further batches cost nothing. For the control
    the rows and columns of every matrix are permuted.

    Args:
        n_sequences: how many sequences to fit on, and how many held-out ones, are kept; at least 2.
        alpha: the ridge penalty on standardised quantiles, above 0.
        seed: of the permutations and of the bootstrap.
        n_resamples: of the bootstrap over held-out sequences.

    Raises:
        ProbeError: for an `n_sequences` below 2.
    """

    def __init__(
        self, *, n_sequences: int = 32, alpha: float = 1.0, seed: int = 0, n_resamples: int = 1000
    ) -> None:
        super().__init__(seed=seed, n_resamples=n_resamples)
        self.n_sequences = n_sequences
        self.alpha = alpha
        if n_sequences < 2:
            raise ProbeError(f"n_sequences is {n_sequences}; an interval needs at least 2")
        # Cosines [batch pos pos] and labels [control batch pos] of the sequences kept.
        self._to_fit: list[tuple[Tensor, Tensor]] = []
        self._held_out: list[tuple[Tensor, Tensor]] = []

    def _keep(self, kept: list[tuple[Tensor, Tensor]], activations: Tensor) -> None:
        room = self.n_sequences - sum(len(cosines) for cosines, _ in kept)
        if room > 0:
            cosines = cosine_similarity(activations[:room]).cpu()
            require_finite(cosines)
            kept.append((cosines, self._labels(len(cosines))))

    def _n_permuted(self, n_sequences: int) -> int:
        return min(n_sequences, self.n_sequences)

    def _first(self, kept: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
        """The first `n_sequences` of what two probes kept."""
        cosines = torch.cat([cosines for cosines, _ in kept])
        labels = torch.cat([labels for _, labels in kept], dim=1)
        return [(cosines[: self.n_sequences], labels[:, : self.n_sequences])]

    def _fit(self, activations: Tensor) -> None:
        self._keep(self._to_fit, activations)

    def _solve(self) -> None:
        [(cosines, labels)] = self._first(self._to_fit)
        t = self.positions.double().repeat(len(cosines), 1)[..., None]
        # The largest cosine of a profile is that with itself: 1, but for rounding.
        fits = [
            LinearMoments().update(profile, t).ridge(self.alpha, coarse_is_constant=True)
            for profile in self._profiles(cosines, labels)
        ]
        self._coefficients = np.concatenate([coefficients for coefficients, _ in fits], axis=1)
        self._intercepts = np.concatenate([intercepts for _, intercepts in fits])
        self._to_fit = []

    def _score(self, activations: Tensor) -> None:
        self._keep(self._held_out, activations)

    def _fitted(self) -> Sequence[np.ndarray]:
        return self._coefficients, self._intercepts

    def _merge_fit(self, other: "SimilarityProbe") -> None:
        self._to_fit = self._first(self._to_fit + other._to_fit)

    def _merge_scores(self, other: "SimilarityProbe") -> None:
        self._held_out = self._first(self._held_out + other._held_out)

    def _result(self) -> dict[str, ProbeResult]:
        [(cosines, labels)] = self._first(self._held_out)
        scores = (
            *self._position_scores(cosines, labels),
            *self._adjacency_scores(cosines, labels),
            *self._seriation_scores(cosines, labels),
        )
        arrays = {"cosine": cosines.mean(dim=0).numpy(), "positions": self.positions.numpy()}
        return {"similarity": ProbeResult(scores, arrays)}

    def _profiles(self, cosines: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Profiles of the matrices as they are, and for the control of the permuted ones."""
        return cosine_profile(cosines), cosine_profile(_permuted(cosines, labels[1].argsort()))

    def _position_scores(self, cosines: Tensor, labels: Tensor) -> tuple[Score, ...]:
        profiles = torch.stack(self._profiles(cosines, labels)).double()
        coefficients = torch.from_numpy(self._coefficients)
        predicted = einsum(profiles, coefficients, "c batch pos q, q c -> c batch pos")
        predicted += torch.from_numpy(self._intercepts)[:, None, None]
        error = predicted - self.positions
        errors = self._position_errors(self.positions.double())
        errors.update(error, error)
        return errors.scores()

    def _adjacency_scores(self, cosines: Tensor, labels: Tensor) -> list[Score]:
        shuffled = _permuted(cosines, labels[1].argsort(dim=-1))
        return [
            self._mean_score(metric, function(matrices), 0.5, control)
            for control, matrices in (("", cosines), (SHUFFLED, shuffled))
            for metric, function in (
                ("adjacency_a", adjacency_a),
                ("adjacency_b", adjacency_b),
                ("adjacency_c", adjacency_c),
            )
        ]

    def _seriation_scores(self, cosines: Tensor, labels: Tensor) -> list[Score]:
        # A generator of its own, so that a result read twice has the same bits.
        order = seriate(cosines, torch.Generator().manual_seed(self.seed))
        chance = chance_tau(cosines.shape[-1])
        return [
            self._mean_score("seriation_tau", kendall_tau(order, labels[i]), chance, control)
            for i, control in enumerate(("", SHUFFLED))
        ]

    def _mean_score(self, metric: str, values: Tensor, chance: float, control: str) -> Score:
        bootstrap = SequenceBootstrap(self.n_resamples, self.seed).update(values[:, None])
        return bootstrap.score(metric, lambda means: means[..., 0], chance=chance, control=control)
