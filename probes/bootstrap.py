"""Bootstrap intervals over sequences, from a stream; many tests at once. Needs no torch."""

from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri, stdtrit

from probes._draws import drawn, state_of
from probes.checks import check_whole
from probes.errors import ProbeError
from probes.scores import Score

# Small enough for a function to be linear over it, large enough for float64 to resolve it.
_STEP = 1e-4

Array = np.ndarray
ArrayFunction = Callable[[Array], Array]


class SequenceBootstrap:
    """Bootstrap intervals for means over sequences, from a stream, in memory that does not grow.

    The tokens of one sequence depend on each other, so whole sequences are resampled. How often a
    multinomial resample holds a sequence is nearly a Poisson(1) variable, independent of the rest:
    each sequence is therefore added to every resample with a fresh Poisson(1) weight and forgotten
    (Poisson bootstrap: Hanley and MacGibbon 2006; Chamandy et al. 2012).

    Shards of one data set need different seeds, or their resamples would not be independent.

    Args:
        n_resamples: how many resamples; at least 2.
        seed: of the weights.

    Raises:
        ProbeError: for an `n_resamples` below 2, and what is no seed.
    """

    def __init__(self, n_resamples: int = 1000, seed: int = 0) -> None:
        self.n_resamples = check_whole("n_resamples", n_resamples, 2)
        seed = check_whole("seed", seed, 0)
        self.n = 0
        self._seeds = frozenset({seed})
        self._drawing = state_of(np.random.PCG64(seed))
        self._total = np.zeros(0)  # [k]
        self._squares = np.zeros(0)  # [k], of the deviations from the mean
        self._resampled = np.zeros((n_resamples, 0))  # [resample k], weighted sums
        self._weights = np.zeros(n_resamples)

    def update(self, values: Any) -> "SequenceBootstrap":
        """Adds sequences.

        Args:
            values: k numbers for each sequence, a tensor or an array [batch k].

        Returns:
            This bootstrap.

        Raises:
            ProbeError: for other axes, for NaN or infinity, and where k changes.
        """
        if hasattr(values, "detach"):
            values = values.detach().cpu().double().numpy()
        rows = np.asarray(values, dtype=np.float64)
        if rows.ndim != 2:
            raise ProbeError(
                f"values have shape {rows.shape}; expected (batch, k), with k numbers for each "
                "sequence"
            )
        if not np.isfinite(rows).all():
            raise ProbeError("values hold NaN or infinite numbers: their mean would mean nothing")
        weights, self._drawing = drawn(self._drawing, self.n_resamples, len(rows))
        resampled = _product(weights, rows)
        squares = np.square(rows - rows.sum(axis=0) / max(len(rows), 1)).sum(axis=0)
        self._add(len(rows), rows.sum(axis=0), squares, resampled, weights.sum(axis=1))
        return self

    def merge(self, other: "SequenceBootstrap") -> "SequenceBootstrap":
        """Adds the sequences that another saw.

        Args:
            other: with another seed and as many resamples.

        Returns:
            This bootstrap.

        Raises:
            ProbeError: where the two share a seed, or have other numbers of resamples or k.
        """
        if not other.n:
            return self
        if other.n_resamples != self.n_resamples:
            raise ProbeError(
                f"cannot merge {other.n_resamples} resamples into {self.n_resamples}: "
                "give both the same n_resamples"
            )
        shared = self._seeds & other._seeds
        if self.n and shared:
            raise ProbeError(
                f"cannot merge two bootstraps that share the seed {min(shared)}: their resamples "
                "are not independent; give each shard a seed of its own"
            )
        self._seeds |= other._seeds
        self._add(other.n, other._total, other._squares, other._resampled, other._weights)
        return self

    def _add(self, n: int, total: Array, squares: Array, resampled: Array, weights: Array) -> None:
        if not self.n:
            self._total, self._squares = np.zeros_like(total), np.zeros_like(squares)
            self._resampled = np.zeros_like(resampled)
        if total.shape != self._total.shape:
            raise ProbeError(
                f"each sequence must bring {len(self._total)} numbers as before; got {len(total)}"
            )
        if self.n and n:
            # Chan, Golub and LeVeque 1979: two sums of squares about their own means are one about
            # the common mean after adding what lies between the means.
            between = total / n - self._total / self.n
            self._squares += between**2 * self.n * n / (self.n + n)
        self.n += n
        self._total += total
        self._squares += squares
        self._resampled += resampled
        self._weights += weights

    def mean(self) -> Float[Array, " k"]:
        """The means over all sequences seen; weights play no part in them.

        Returns:
            [k].

        Raises:
            ProbeError: before 2 sequences.
        """
        if self.n < 2:
            raise ProbeError(f"an interval needs at least 2 held-out sequences; got {self.n}")
        return self._total / self.n

    def stderr(self) -> Float[Array, " k"]:
        """The standard errors of the k means, from the variance between sequences.

        Returns:
            [k], in the units of the values.

        Raises:
            ProbeError: before 2 sequences.
        """
        if self.n < 2:
            raise ProbeError(f"a standard error needs at least 2 held-out sequences; got {self.n}")
        return np.sqrt(self._squares / (self.n - 1) / self.n)

    def replicates(self) -> Float[Array, "resample k"]:
        """The k means of every resample; NaN for one that drew no sequence, as happens with few.

        Two bootstraps with one seed, fed sequence after sequence in batches of the same sizes, draw
        the same sequences: their replicates are paired.

        Returns:
            [resample k].
        """
        drawn = self._weights[:, None] > 0
        return np.divide(
            self._resampled,
            self._weights[:, None],
            out=np.full_like(self._resampled, np.nan),
            where=drawn,
        )

    def value_of(self, function: ArrayFunction) -> Array:
        """The function of the k means over all sequences.

        Args:
            function: maps rows of means [row k] to [row] or [row j].

        Returns:
            A number, or [j].

        Raises:
            ProbeError: before 2 sequences.
        """
        return np.asarray(function(self.mean()[None])[0])

    def interval(self, level: float = 0.95) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        """The interval of each of the k means.

        Args:
            level: the probability that it holds the true mean, 0 to 1.

        Returns:
            The lower and the upper bounds, [k] each.

        Raises:
            ProbeError: before 2 sequences.
        """
        return self.interval_of(lambda means: means, level)

    def n_effective(self, column: int) -> float:
        """How many sequences the mean of a column rests on (Kish 1965): fewer where few outweigh
        the others, as those with massive activations do.

        Args:
            column: of values that are not negative.

        Returns:
            At least 2, and n where all values are the same.
        """
        of_mean = self.mean()[column] ** 2
        spread = self._squares[column] / self.n
        return max(2.0, self.n * of_mean / (of_mean + spread)) if of_mean > 0 else self.n

    def interval_of(
        self, function: ArrayFunction, level: float = 0.95, n: float | None = None
    ) -> tuple[Array, Array]:
        """The bounds of a smooth function of the k means, such as R2 = 1 - sse/sst.

        The bounds are the quantiles over the resamples of its linear part at the means (the delta
        method, with the resamples in place of a normal law). For a mean that is the percentile
        interval. For the R2 of a noisy mean curve it keeps what the percentile interval loses: a
        resampled curve has the sampling noise twice, which lowers its R2 in every resample alike.

        Resamples of few sequences spread too little, and the quantiles take their spread as known.
        The bounds are therefore drawn out by sqrt(n / (n - 1)), as a variance is, and by Student's
        t over the normal law's quantile: 2.7-fold for 3 sequences, 3% for 60. For 2 they are
        Student's: their resamples spread no further than one standard error. Values that are all
        the same have an interval of no width, however few.

        Args:
            function: maps rows of means [row k] to [row] or [row j].
            level: the probability that the interval holds the true value, 0 to 1.
            n: how many sequences the function rests on, at least 2; None for all seen.

        Returns:
            The lower and the upper bound, numbers or [j] each.

        Raises:
            ProbeError: before 2 sequences.
        """
        mean = self.mean()
        # With few sequences a resample may draw none at all: it says nothing and is left out.
        resampled = self.replicates()[self._weights > 0]
        value = self.value_of(function)
        replicas = function(mean + _STEP * (resampled - mean))
        tail = (1 - level) / 2
        low, high = np.quantile((replicas - value) / _STEP, [tail, 1 - tail], axis=0)
        few = few_sequences(tail, self.n if n is None else n)
        return np.asarray(value + few * low), np.asarray(value + few * high)

    def score(
        self,
        metric: str,
        function: ArrayFunction,
        *,
        chance: float,
        control: str = "",
        n: float | None = None,
    ) -> Score:
        """The Score of a function of the k means, with its 95% interval.

        Args:
            metric: what the number is called.
            function: maps rows of means [row k] to [row]; smooth.
            chance: what knowing nothing gives; NaN where there is none.
            control: "" for the measurement itself, or the control's name.
            n: as for `interval_of`.

        Returns:
            The Score over all sequences seen.

        Raises:
            ProbeError: before 2 sequences.
        """
        low, high = self.interval_of(function, n=n)
        value = float(self.value_of(function))
        return Score(metric, value, float(low), float(high), chance, self.n, control)


@lru_cache
def few_sequences(tail: float, n: float) -> float:
    """By how much a bootstrap interval over n sequences is drawn out, since they are few.

    Args:
        tail: the probability beyond either bound, 0 to 0.5.
        n: at least 2.

    Returns:
        The factor: more than 1 up to a tail of a quarter.
    """
    # Where the bound lies, in standard errors; of two sequences it is one of the two.
    bound = -1.0 if n == 2 else ndtri(tail) * np.sqrt((n - 1) / n)
    return float(stdtrit(n - 1, tail) / bound)


class NamedBootstrap:
    """A bootstrap over sequences of columns that have names.

    Args:
        columns: one number for each sequence, [sequence], by name.
        seed: of the resamples.

    Example:
        >>> losses = {"intact": np.array([1.0, 2.0]), "ablated": np.array([2.0, 5.0])}
        >>> bootstrap = NamedBootstrap(losses)
        >>> increase = bootstrap.difference("ablated", "intact")
        >>> bootstrap.score("increase", increase, chance=0.0).value
        2.0
    """

    def __init__(self, columns: Mapping[Any, Float[Array, " sequence"]], *, seed: int = 0) -> None:
        self._number = {name: number for number, name in enumerate(columns)}
        self._bootstrap = SequenceBootstrap(seed=seed)
        self._bootstrap.update(np.stack([*columns.values()], axis=1))

    def __contains__(self, name: object) -> bool:
        return name in self._number

    def mean(self, name: Hashable) -> ArrayFunction:
        """The mean of a column, for `score`; raises KeyError for one that is not there."""
        number = self._number[name]
        return lambda means: means[..., number]

    def difference(self, name: Hashable, other: Hashable) -> ArrayFunction:
        """By how much the mean of a column is above that of another.

        Args:
            name: of the column.
            other: of the column that is subtracted.

        Returns:
            A function of means, for `score`.

        Raises:
            KeyError: for a column that is not there.
        """
        number, less = self._number[name], self._number[other]
        return lambda means: means[..., number] - means[..., less]

    def interval_of(self, function: ArrayFunction) -> tuple[Array, Array]:
        """The 95% interval of such a function."""
        return self._bootstrap.interval_of(function)

    def score(self, metric: str, function: ArrayFunction, *, chance: float) -> Score:
        """The Score of such a function, with its 95% interval.

        Args:
            metric: its name.
            function: of means, as `mean`, `difference` and `ratio` make it.
            chance: what knowing nothing gives, in the function's unit.

        Returns:
            The value on all sequences, with the interval.
        """
        return self._bootstrap.score(metric, function, chance=chance)


def ratio(part: ArrayFunction, whole: ArrayFunction) -> ArrayFunction:
    """One function of means over another.

    Args:
        part: the numerator.
        whole: the denominator.

    Returns:
        A function of means, for `NamedBootstrap.score`.
    """
    return lambda means: part(means) / whole(means)


def _product(
    weights: Float[Array, "resample batch"], rows: Float[Array, "batch k"]
) -> Float[Array, "resample k"]:
    """By torch, whose threads are awake: NumPy's own would contend with them for the cores."""
    try:
        import torch
    except ImportError:  # a machine that draws pages only
        return np.asarray(weights @ rows)
    product: Array = (torch.from_numpy(weights) @ torch.tensor(rows)).numpy()
    return product


def benjamini_hochberg(p_values: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The q-value of every test: the smallest false discovery rate at which it is a discovery.

    Benjamini and Hochberg 1995. All the numbers given are one family, whatever their shape; NaN
    stands for a test that was not made and stays NaN. Raises ProbeError outside 0 to 1.
    """
    made = ~np.isnan(p_values)
    if ((p_values[made] < 0) | (p_values[made] > 1)).any():
        raise ProbeError("p-values must lie between 0 and 1: give probabilities, not statistics")
    q_values = np.full_like(p_values, np.nan)
    if made.any():
        from scipy.stats import false_discovery_control  # half a second, which few processes need

        q_values[made] = false_discovery_control(p_values[made], method="bh")
    return q_values
