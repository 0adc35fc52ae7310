"""What the mean residual tells of position, by functions of it: any, smooth trends, what is left.

With p(t) the mean over sequences at each position, a code in the mean is what some functions of the
position explain of p, by least squares: any function (`mean residual`), t and 1/m (`smooth trend`),
any that is uncorrelated with these (`irregular part`), or one of `TRENDS`.

Trends are much alike: over a few positions 1/m, log m and a slow cosine explain the same. Which one
a model counts by shows outside the range that they were fitted on: `Extrapolation`.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

import torch
from jaxtyping import Bool, Float
from scipy.special import chdtri
from torch import Generator, Tensor

from probes.code_names import IRREGULAR, JUDGED, MEAN_RESIDUAL, SMOOTH, VARIANCE
from probes.codes.statistics import CodeStatistics
from probes.errors import ProbeError
from probes.shapes import Activations, PerPosition, PerSequence, PositionalVectors, Positions
from probes.streaming import upcast

# What tells sites apart.
Key = TypeVar("Key")
# Orthonormal functions of the position, none of them constant.
Functions = Float[Tensor, "pos k"]
# A code by its name, or one in the mean by its functions.
Code = str | Functions

COUNTING = "1/m"
# One smooth trend each: what the mean residual says by it is one direction, whatever the trend.
TRENDS: Mapping[str, Callable[[Tensor, int], Tensor]] = MappingProxyType(
    {
        COUNTING: lambda m, last: 1 / m,
        "t": lambda m, last: m,
        "log m": lambda m, last: m.log(),
        "slow cosine": lambda m, last: (math.pi * m / last).cos(),
    }
)
CONSTANT = "constant"
# What 1/m has to do better than, at one number for each position.
RIVALS = (CONSTANT, *(trend for trend in TRENDS if trend != COUNTING))
# Between a few positions single trends are too much alike to be judged each by itself.
MOVABLE = (*JUDGED, *TRENDS)
# Where nothing knows its position, a code is found to be carried once in so many times.
_BY_CHANCE = 0.01
# Trends are fitted on so large a share of the positions, the first ones, and predict the others.
_FITTED_SHARE = 0.6
_FEWEST_FITTED, _FEWEST_PREDICTED = 3, 2


def carries(statistics: CodeStatistics, code: str) -> bool:
    """Whether activations tell position by a code at all, more than means of so many would.

    The test is of squares between positions, against a chi-square law at the level of 1%: of the
    mean along the code's functions, or of mean log variances. The squared deviations give the law
    its mean and its degrees of freedom (`noise_along`, `freedom_along` and `variance_between`).

    Args:
        statistics: as in `interchange`.
        code: one of `MOVABLE`.

    Returns:
        True where the test rejects chance.

    Raises:
        ProbeError: for an unknown code, and before 2 sequences.
    """
    if code == VARIANCE:
        found, chance, freedom = statistics.variance_between()
    else:
        basis = functions_of(code, statistics.positions)
        found = float((basis.mT @ statistics.positional_vectors()).square().sum())
        chance, freedom = statistics.noise_along(basis), statistics.freedom_along(basis)
    return found > chance * _largest_by_chance(freedom)


def sites_to_move(statistics: Mapping[Key, CodeStatistics], code: str) -> list[Key]:
    """The sites at which a code is moved: those that carry it; where none is found to, all.

    What no test finds may still be there: few sequences hide a faint code. But what is estimated
    where nothing is found is mostly noise, and to move it beside the code itself spoils other codes
    in models that tell position by small differences.

    Args:
        statistics: of each site, at the same positions.
        code: one of `MOVABLE`.

    Returns:
        In their order; none where positions are too few for the code.

    Raises:
        ProbeError: as `carries`.
    """
    carried = [site for site, found in statistics.items() if carries(found, code)]
    return carried or [site for site, of in statistics.items() if _can_differ(code, of.positions)]


def _can_differ(code: str, positions: Positions) -> bool:
    """Whether so many positions can differ by a code at all."""
    if len(positions) < 2:
        return False
    return code == VARIANCE or functions_of(code, positions).shape[1] > 0


def _largest_by_chance(freedom: float) -> float:
    """What a mean of so many squares stays below, but for `_BY_CHANCE`, where 1 is expected."""
    return float(chdtri(freedom, _BY_CHANCE)) / freedom if freedom else 1.0


def told_by(statistics: CodeStatistics, code: Code) -> PositionalVectors:
    """What the mean residual says of each position by a code: its least-squares fit.

    Args:
        statistics: as in `interchange`.
        code: one of `MOVABLE` but `variance`, or functions of the position.

    Returns:
        `[pos d_model]`, of mean 0 over positions.

    Raises:
        ProbeError: for an unknown code, and before 2 sequences.
    """
    vectors = statistics.positional_vectors()
    basis = functions_of(code, statistics.positions).to(vectors)
    return basis @ (basis.mT @ vectors)


def functions_of(code: Code, positions: Positions) -> Functions:
    """Orthonormal functions of the position that a code in the mean is made of; none is constant.

    Args:
        code: one of `MOVABLE` but `variance`; functions are given back as they are.
        positions: `[pos]`, counted from 0.

    Returns:
        `[pos k]`; with few positions there are fewer, and of an irregular part perhaps none.

    Raises:
        ProbeError: for an unknown code.
    """
    if isinstance(code, Tensor):
        return code
    m = positions.double() + 1
    n, last = len(m), int(m[-1])
    ones, each = torch.ones(n, 1).to(m), torch.eye(n).to(m)
    every: Tensor = torch.linalg.qr(torch.cat([ones, each], dim=1)).Q[:, 1:]
    if code == MEAN_RESIDUAL:
        return every
    if code in TRENDS:
        return _orthonormal([TRENDS[code](m, last)])
    smooth = _orthonormal([m, 1 / m][: n - 1])
    if code == SMOOTH:
        return smooth
    if code == IRREGULAR:
        rest = every - smooth @ (smooth.mT @ every)
        left: Tensor = torch.linalg.svd(rest, full_matrices=False).U[:, : max(n - 3, 0)]
        return left
    raise ProbeError(f"no position code {code!r} that can move: there are {', '.join(MOVABLE)}")


def random_functions(
    n: int, k: int, generator: Generator
) -> tuple[Functions, Float[Tensor, "pos rest"]]:
    """Random functions of the position, and those that they leave of all.

    A few positions are told apart by any few functions, if not as well as by the code that a model
    uses. So what a smooth trend does is held against as many of these.

    Args:
        n: how many positions there are.
        k: how many functions, fewer than n.
        generator: of the draw; the directions are uniform.

    Returns:
        k functions, and the n - 1 - k others; orthonormal together.
    """
    drawn = torch.randn(n, n - 1, generator=generator, dtype=torch.float64)
    every: Tensor = torch.linalg.qr(drawn - drawn.mean(dim=0)).Q
    return every[:, :k], every[:, k:]


def _orthonormal(functions: list[PerPosition]) -> Float[Tensor, "pos k"]:
    centred = [function - function.mean() for function in functions]
    basis: Tensor = torch.linalg.qr(torch.stack(centred, dim=1)).Q
    return basis


def trend_line(
    vectors: PositionalVectors, values: PerPosition, fitted: Bool[Tensor, " pos"]
) -> PositionalVectors:
    """What a trend that is fitted at some positions says of all: a line in the activations' space.

    Args:
        vectors: the mean at each position.
        values: the trend's values.
        fitted: where it is fitted, by least squares; two positions or more.

    Returns:
        `[pos d_model]`.
    """
    mean, centred = vectors[fitted].mean(dim=0), values - values[fitted].mean()
    along = centred[fitted] @ (vectors[fitted] - mean) / centred[fitted].square().sum()
    return mean + centred[:, None] * along


class Extrapolation:
    """Smooth trends fitted on the first positions, and how well they predict the later ones.

    Each trend is a line in the space of activations, fitted by least squares on the mean residual
    at the first three fifths of the positions. `CONSTANT` is the mean there. What all positions of
    a sequence share tells none of them: its later activations are told less its first ones' mean.

    Args:
        statistics: those of the site, of the positions in question alone.

    Attributes:
        predicted: the later positions, as indices into those fitted on; none where there are
            too few to fit on, or to predict.
        scale: the squared distance of the later means from the constant, mean over positions, less
            what it would be by chance; 0 where it is no more.
    """

    def __init__(self, statistics: CodeStatistics) -> None:
        vectors, m = statistics.positional_vectors(), statistics.positions.double() + 1
        n = len(m)
        fitted = math.ceil(_FITTED_SHARE * n)
        enough = fitted >= _FEWEST_FITTED and n - fitted >= _FEWEST_PREDICTED
        self.predicted = torch.arange(fitted, n) if enough else torch.arange(0)
        self._curves: dict[str, PositionalVectors] = {}
        if not enough:
            self.scale = 0.0
            return
        vectors = vectors - vectors[:fitted].mean(dim=0)
        self._curves[CONSTANT] = torch.zeros_like(vectors[fitted:])
        for trend, function in TRENDS.items():
            line = trend_line(vectors, function(m, int(m[-1])), torch.arange(n) < fitted)
            self._curves[trend] = line[fitted:]
        apart = vectors[fitted:].square().sum(dim=-1).mean()
        differences = torch.eye(n).to(vectors)[:, fitted:]
        differences[:fitted] = -1 / fitted
        by_chance = statistics.noise_along(differences) / (n - fitted)
        self.scale = max(float(apart) - by_chance, 0.0)

    def gains(self, activations: Activations) -> dict[str, PerSequence]:
        """How much nearer than each rival 1/m comes to held-out activations at later positions.

        The squared distance to the rival's prediction less that to the prediction by 1/m, as a
        share of `scale`, mean over later positions: 1 at best, beside the constant. Its expectation
        knows nothing of how activations vary about their mean.

        Args:
            activations: [batch pos d_model], at all positions fitted on.

        Returns:
            By rival, a number for each sequence; nothing where there is nothing to predict.

        Raises:
            ProbeError: for another number of positions or width.
        """
        if not len(self.predicted) or not self.scale:
            return {}
        every, fitted = upcast(activations).double(), int(self.predicted[0])
        x = every[:, fitted:] - every[:, :fitted].mean(dim=1, keepdim=True)
        own = self._curves[COUNTING].to(x)
        found = {}
        for rival in RIVALS:
            curve = self._curves[rival].to(x)
            nearer = (2 * x - own - curve) * (own - curve)
            found[rival] = nearer.sum(dim=-1).mean(dim=-1) / self.scale
        return found
