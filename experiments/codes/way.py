"""How far a run goes from one run's predictions towards another's, in nats.

With p and l = log p the next-token probabilities of a run, KL divergence obeys a law of cosines:

    KL(c | b) + KL(b | m) - KL(c | m) = sum (p_c - p_b) (l_m - l_b)

which is what of a run m lies *along* the way from b, where it starts, to c, where the way ends. The
way's own length is that of c itself, KL(c | b) + KL(b | c), and what m *changes* is its own length,
KL(m | b) + KL(b | m). Mean over tokens, then over sequences, m goes

    towards    along / longest
    stays      1 - max(changed, along) / longest
    neither    the rest,                            longest = max(length, changed)

A run that ends at c goes all of it, one that stays goes none. One that changes more than the way is
long, mostly off it, is broken, and what then happens to lie along the way counts little.

What layers write has lengths and angles of its own: there the products are of differences of
activations, and all else is the same.

Where c is known with noise, it is given as two halves, each a mean over draws of its own. The
product of one half's difference and the other's has no noise of its own in it: that is the length.
What the halves disagree by is what noise is left in their mean.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from experiments.results.interchange import NEITHER, STAYS, TOWARDS

# What runs are held against one another by: log-probabilities, or what layers write.
Predictions = Float[Tensor, "sequence asked d"]
PerSequence = Float[np.ndarray, " sequence"]
# Along, changed and length of a run.
Measured = Float[np.ndarray, "sequence 3"]
# Numbers of one run that products are made of at a time.
_AT_A_TIME = 2**18
# Of means [row k] with the columns along, changed and length.
Share = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Way:
    """The way from one run to another; made by `way_between`.

    Attributes:
        start: log-probabilities of the run that it starts from, or what its layers write.
        difference: the probabilities at its end less those at its start, or what is written.
        length: for each sequence, in nats, or in the activations' units squared.
        noise: what the mean of the ends would lie from itself, drawn anew; 0 where there is one.
        dual: what makes probabilities of log-probabilities, and leaves what is written.
    """

    start: Predictions
    difference: Predictions
    length: PerSequence
    noise: PerSequence
    dual: Callable[[Tensor], Tensor]

    def of(self, which: Sequence[int]) -> "Way":
        """The ways of some of the sequences, by their numbers; one may come more than once."""
        at = list(which)
        start, difference = self.start[at], self.difference[at]
        return Way(start, difference, self.length[at], self.noise[at], self.dual)

    def measured(self, reached: Predictions) -> Measured:
        """What a run goes along the way, what it changes at all, and the way's length.

        Args:
            reached: of the run what `start` is of its own, of the same tokens.

        Returns:
            One row for each sequence.
        """
        along = _mean(_along, self.start, reached, self.difference)
        changed = _mean(partial(_product, self.dual), self.start, reached, reached)
        return np.stack([along, changed, self.length], axis=1)


def as_written(activations: Tensor) -> Tensor:
    """The dual of what layers write: itself."""
    return activations


def way_between(
    start: Predictions, *ends: Predictions, dual: Callable[[Tensor], Tensor] = torch.exp
) -> Way:
    """The way from a run to another one, or to the mean of two that differ by noise.

    Args:
        start: log-probabilities, or what layers write.
        ends: one, or two of draws of their own.
        dual: `torch.exp` of log-probabilities, `as_written` of what layers write.

    Returns:
        The way.
    """
    product, others = partial(_product, dual), reversed(ends)
    pairs = zip(ends, others, strict=True)
    length = np.mean([_mean(product, start, end, other) for end, other in pairs], axis=0)
    noise = np.zeros(len(start))
    if len(ends) == 2:
        noise = _mean(product, ends[1], ends[0], ends[0]) / 4
    difference = torch.stack([dual(end) - dual(start) for end in ends]).mean(dim=0)
    return Way(start, difference, length, noise, dual)


def mean_prediction(runs: Iterable[Predictions]) -> Predictions:
    """The normalized geometric mean of several runs' probabilities.

    Args:
        runs: one or more, which need not be in memory together.
    """
    total, n = torch.zeros(()), 0
    for run in runs:
        total, n = total + run, n + 1
    return (total / n).log_softmax(dim=-1)


def share(name: str, first: int = 0) -> Share:
    """The share that a run goes `TOWARDS`, `STAYS` or does `NEITHER`, of means of `Way.measured`.

    Args:
        name: which share.
        first: the column of means in which these begin.
    """

    def of(means: np.ndarray) -> np.ndarray:
        along, changed, length = np.moveaxis(means[..., first : first + 3], -1, 0)
        # Where there is no way and nothing changes, all stays.
        longest = np.maximum(np.maximum(length, changed), np.finfo(float).tiny)
        gone = np.maximum(changed, along)
        shares = {TOWARDS: along, STAYS: longest - gone, NEITHER: gone - along}
        return np.asarray(shares[name] / longest)

    return of


def _along(start: Tensor, reached: Tensor, difference: Tensor) -> Tensor:
    return difference * (reached - start)


def _product(dual: Callable[[Tensor], Tensor], start: Tensor, end: Tensor, other: Tensor) -> Tensor:
    return (dual(end) - dual(start)) * (other - start)


def _mean(product: Callable[..., Tensor], *runs: Predictions) -> PerSequence:
    """A product of runs, summed over the vocabulary or the width, mean over tokens.

    Of some tokens after the others: what is made of a large vocabulary then stays in a processor's
    cache.
    """
    every = [rearrange(run, "sequence asked d -> (sequence asked) d") for run in runs]
    size = max(1, _AT_A_TIME // runs[0].shape[-1])
    pieces = zip(*(of.split(size) for of in every), strict=True)
    sums = torch.cat([product(*some).sum(dim=-1, dtype=torch.float64) for some in pieces])
    by_sequence = rearrange(sums, "(sequence asked) -> sequence asked", sequence=len(runs[0]))
    return by_sequence.mean(dim=-1).cpu().numpy()
