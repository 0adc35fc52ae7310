"""One position given the code of another, its content kept: does the model then answer as there?

To take a code away may break a model, and a broken model tells nothing of what it used. Here
activations stay such as the model makes: what tells one position is exchanged for what tells
another (an interchange intervention: Geiger et al. 2021, arXiv 2106.02997).
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from probes.codes.directions import MovedVectors
from probes.codes.filter import CodeFilter
from probes.codes.statistics import CodeStatistics, Intervention
from probes.errors import ProbeError
from probes.shapes import PositionalVectors, Positions

# One smooth trend each: what the mean residual says by it is one direction, whatever the trend.
TRENDS: Mapping[str, Callable[[Tensor, int], Tensor]] = MappingProxyType(
    {
        "1/m": lambda m, last: 1 / m,
        "t": lambda m, last: m,
        "log m": lambda m, last: m.log(),
        "slow cosine": lambda m, last: (math.pi * m / last).cos(),
    }
)
MEAN_RESIDUAL = "mean residual"
MOVABLE = (MEAN_RESIDUAL, "counting", "positional vectors", "variance", *TRENDS)


def interchange(
    statistics: CodeStatistics, code: str, sources: Positions, *, dose: float = 1.0
) -> Intervention:
    """Activations of which each tells, by one code, the position of another.

    With p(t) the mean over sequences, a code in the mean adds dose (v(t') - v(t)), where v is p
    itself (`mean residual`), a part of it as `CodeStatistics.mean_codes` splits it, or its
    least-squares fit by one of `TRENDS`. `variance` scales deviations so that the law of their log
    variance is that of t'; it knows no dose.

    Args:
        statistics: those of the site.
        code: one of `MOVABLE`.
        sources: `[pos]`, for each position fitted on the one (as an index into these) whose code it
            gets; its own where nothing is to move.
        dose: the share of the way that codes in the mean are moved.

    Returns:
        The intervention, for activations at all positions fitted on.

    Raises:
        ProbeError: for an unknown code, sources that are no such indices, a dose out of (0, 1], and
            before 2 sequences.
    """
    vectors = statistics.positional_vectors()
    _check_sources(sources, len(vectors))
    if not 0 < dose <= 1:
        raise ProbeError(f"dose is {dose}: give the share of the way to move, above 0 and up to 1")
    if code == "variance":
        if dose != 1:
            raise ProbeError("variance moves the whole way: leave dose out")
        return _of_variance(statistics, sources)
    told = _told(statistics, code)
    return MovedVectors((dose * (told[sources] - told)).float())


def relative_size(intervention: MovedVectors, statistics: CodeStatistics) -> float:
    """How far vectors move activations, beside how far these lie from their position's mean.

    The root of the ratio of mean squares over the examples that the statistics keep; 0 says that
    the site carries nothing of the code to move.

    Args:
        intervention: what `interchange` made of a code in the mean.
        statistics: those of the site.

    Raises:
        ProbeError: before 2 sequences.
    """
    moved = intervention.added.abs().sum(dim=-1) > 0
    if not moved.any():
        return 0.0
    lengths = statistics.example_deviations()[:, moved].square().sum(dim=-1).mean()
    return float((intervention.added[moved].square().sum(dim=-1).mean() / lengths).sqrt())


def _told(statistics: CodeStatistics, code: str) -> PositionalVectors:
    """What the mean residual says of each position, by one code of it."""
    vectors = statistics.positional_vectors()
    if code == MEAN_RESIDUAL:
        return vectors
    if code in TRENDS:
        m = statistics.positions.to(vectors) + 1
        trend = TRENDS[code](m, int(m[-1]))
        trend = trend - trend.mean()
        along = trend @ (vectors - vectors.mean(dim=0)) / trend.square().sum()
        return trend[:, None] * along
    codes = statistics.mean_codes()
    if code not in codes:
        raise ProbeError(f"no position code {code!r} that can move: there are {', '.join(MOVABLE)}")
    return codes[code]


def _of_variance(statistics: CodeStatistics, sources: Positions) -> CodeFilter:
    means = statistics.positional_vectors().float()
    change = statistics.variance_map(sources).float()
    return CodeFilter(means, torch.zeros_like(means), whitening=None, variance_map=change)


def _check_sources(sources: Positions, n: int) -> None:
    if len(sources) != n or not ((sources >= 0) & (sources < n)).all():
        raise ProbeError(
            f"sources are {sources.tolist()}: give one for each of the {n} positions fitted on, as "
            f"an index from 0 to {n - 1}"
        )
