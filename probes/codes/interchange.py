"""One position given the code of another, its content kept: does the model then answer as there?

To take a code away may break a model, and a broken model tells nothing of what it used. Here
activations stay such as the model makes: what tells one position is exchanged for what tells
another (an interchange intervention: Geiger et al. 2021, arXiv 2106.02997).
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import TypeVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Generator, Tensor

from probes.code_names import VARIANCE
from probes.codes.draws import Draws
from probes.codes.filter import require_fitted_shape
from probes.codes.statistics import CodeStatistics
from probes.codes.trends import Code, functions_of, told_by
from probes.errors import ProbeError
from probes.shapes import Activations, PerPosition, PositionalVectors, Positions
from probes.streaming import upcast

# Deviations are scaled by such a factor at most, or by its inverse.
_LARGEST_FACTOR = 10.0

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Moved:
    """Activations that tell another position: x + (scale - 1) (x - mean) + added, by position."""

    means: PositionalVectors
    scale: PerPosition
    added: PositionalVectors

    def __call__(self, x: Activations) -> Activations:
        """The activations so moved; raises ProbeError for another number of positions or width."""
        require_fitted_shape(x, self.means)
        work = upcast(x)
        if (self.scale == 1).all():
            return (work + self.added.to(work)).to(x.dtype)
        scale = rearrange(self.scale.to(work), "pos -> pos 1")
        constant = self.added.to(work) - (scale - 1) * self.means.to(work)
        moved: Tensor = torch.addcmul(constant, work, scale).to(x.dtype)
        return moved

    def at(self, chosen: Positions) -> "Moved":
        """The same for activations at some of the positions, by their indices."""
        return Moved(self.means[chosen], self.scale[chosen], self.added[chosen])


@dataclass(frozen=True, eq=False)
class Move:
    """What one code is changed by at a site, at each of some positions.

    Attributes:
        base: what the activations are before the code is changed: themselves, or without any code.
        told: what is added to them, `[pos d_model]`.
        scaled: what is added to the scale of deviations.
        lengths: the root mean square length of deviations as they come.
    """

    base: Moved
    told: PositionalVectors
    scaled: PerPosition
    lengths: PerPosition

    def __call__(self, x: Activations) -> Activations:
        """The activations with the code changed all the way; raises as `Moved`."""
        return self.by(1.0)(x)

    def by(self, dose: float) -> Moved:
        """The change by a share of the way, above 0 and up to 1; raises ProbeError for another."""
        if not isinstance(dose, Real) or not 0 < dose <= 1:
            raise ProbeError(
                f"dose is {dose!r}: give the share of the way to move, above 0 and up to 1"
            )
        scale = self.base.scale + dose * self.scaled
        return Moved(self.base.means, scale, self.base.added + dose * self.told)

    def at(self, chosen: Positions) -> "Move":
        """The same for activations at some of the positions, by their indices."""
        told, scaled, lengths = (of[chosen] for of in (self.told, self.scaled, self.lengths))
        return Move(self.base.at(chosen), told, scaled, lengths)

    def on(self, base: Moved) -> "Move":
        """The same change all the way, told from another base."""
        given, scale = self.base, self.base.scale + self.scaled
        shift = rearrange(scale - 1, "pos -> pos 1") * (base.means - given.means)
        told = given.added + self.told - base.added + shift
        return Move(base, told, scale - base.scale, self.lengths)

    def size_matched(
        self,
        variation: Float[Tensor, "example d_model"],
        generator: Generator,
        dose: float = 1.0,
        *,
        together: int = 1,
    ) -> "SizeMatched":
        """The size-matched control of `by(dose)`, with a draw of directions for each sequence.

        Args:
            variation: how activations vary at the site, as from `variation_at`.
            generator: of the draws; the same state gives the same directions for each dose.
            dose: as in `by`.
            together: how many sequences in a row share a draw.

        Returns:
            The control, to be called with the same activations as the move.
        """
        draws = Draws((self._curve.shape[1], len(variation)), generator, together)
        return SizeMatched(self.base, dose * self._curve, variation, draws)

    @cached_property
    def _curve(self) -> Float[Tensor, "pos direction"]:
        """Along as many directions as what is told; a change of scale has one for each position."""
        u, s, _ = torch.linalg.svd(self.told, full_matrices=False)
        curve = torch.cat([u * s, (self.scaled * self.lengths).diag()], dim=1)
        return curve[:, curve.abs().sum(dim=0) > 0]


def size_matched_moves(
    moves: Mapping[K, Move],
    variation: Mapping[K, Float[Tensor, "example d_model"]],
    generator: Callable[[int], Generator],
    dose: float,
    together: int,
) -> "dict[K, SizeMatched]":
    """The control of moves at several sites, each drawn by itself.

    Args:
        moves: by site.
        variation: how activations vary there, as from `variation_at`.
        generator: of the draws at a site, from its number.
        dose: as in `Move.by`.
        together: as in `Move.size_matched`.

    Returns:
        A control by site.
    """
    return {
        site: move.size_matched(variation[site], generator(number), dose, together=together)
        for number, (site, move) in enumerate(moves.items())
    }


def together(moves: Sequence[tuple[Positions, Move]], n: int) -> Move:
    """Moves of different positions as one; at the others activations stay.

    Args:
        moves: at least one, each with the indices of its positions.
        n: how many positions there are.

    Returns:
        One move of all `n` positions.
    """
    d_model = moves[0][1].told.shape[1]
    means, added, told = (torch.zeros(n, d_model) for _ in range(3))
    scale, scaled, lengths = torch.ones(n), torch.zeros(n), torch.zeros(n)
    for at, move in moves:
        means[at], added[at], scale[at] = move.base.means, move.base.added, move.base.scale
        told[at], scaled[at], lengths[at] = move.told, move.scaled, move.lengths
    return Move(Moved(means, scale, added), told, scaled, lengths)


class SizeMatched:
    """A control of a move: the same curve over positions, in directions that aim at no code.

    The directions of the move are exchanged for Gaussian ones with the covariance of the model's
    own variation at the site, drawn for each sequence, or for several. Each position moves exactly
    as far as by the move, and positions lie to one another as they did in the mean of draws. Draws
    go on from call to call.
    """

    def __init__(
        self,
        base: Moved,
        curve: Float[Tensor, "pos direction"],
        variation: Float[Tensor, "example d_model"],
        draws: Draws,
    ) -> None:
        self._base, self._curve, self._draws = base, curve, draws
        self._variation = variation
        self._sizes = torch.linalg.vector_norm(curve, dim=-1, keepdim=True)

    def __call__(self, x: Activations) -> Activations:
        """The activations so moved; raises ProbeError for another number of positions or width."""
        weights, which = self._draws.of_next(len(x))
        drawn = self._curve @ (weights.to(self._variation) @ self._variation)
        tiny = torch.finfo(drawn.dtype).tiny
        lengths: Tensor = torch.linalg.vector_norm(drawn, dim=-1, keepdim=True).clamp(min=tiny)
        moved = upcast(self._base(x))
        step = (drawn * (self._sizes / lengths)).to(moved)
        changed: Tensor = moved + (step if len(step) == 1 else step[which.to(step.device)])
        return changed.to(x.dtype)

    def at(self, chosen: Positions) -> "SizeMatched":
        """The same, draws too, for activations at some of the positions, by their indices."""
        return SizeMatched(self._base.at(chosen), self._curve[chosen], self._variation, self._draws)


# What takes activations at some of the positions, too: a move, or its control.
Change = Moved | SizeMatched


def variation_at(statistics: CodeStatistics) -> Float[Tensor, "example d_model"]:
    """Vectors that vary as deviations from the positional mean do, of all positions that the
    statistics keep: few of them, with the same sums of products as these have.

    Raises:
        ProbeError: before 2 sequences.
    """
    deviations = rearrange(statistics.example_deviations(), "example pos d -> (example pos) d")
    few: Tensor = torch.linalg.qr(deviations, mode="r").R
    return few


def interchange(
    statistics: CodeStatistics,
    code: Code,
    sources: Positions | PerPosition,
    *,
    current: CodeStatistics | None = None,
) -> Move:
    """Activations of which each tells, by one code, the position of another.

    With p(t) the mean over sequences, a code in the mean adds v(t') - v(t), where v is what
    functions of the position explain of p: any function (`mean residual`), t and 1/m
    (`smooth trend`), any that is uncorrelated with these (`irregular part`), or one of
    `TRENDS`. `variance` scales deviations so that activations have the variance of those at t', on
    average.

    Args:
        statistics: those of the intact model at the site, of the positions that are moved alone
            (`CodeStatistics.among`).
        code: one of `MOVABLE`, or functions of the position.
        sources: `[pos]`, for each position fitted on the one (as an index into these) whose code it
            gets; its own where nothing is to move. Between two of them, the code is in between.
        current: of the activations as they come, where interventions before this site have changed
            them: what these have moved of the code already is not moved again.

    Returns:
        The move, for activations at all positions fitted on.

    Raises:
        ProbeError: for an unknown code, sources that are no such indices, and before 2 sequences.
    """
    vectors = statistics.positional_vectors()
    _check_sources(sources, len(vectors))
    given = statistics if current is None else current
    means = given.positional_vectors()
    added, scaled = torch.zeros_like(vectors), torch.zeros_like(vectors[:, 0])
    stays = sources == torch.arange(len(sources))
    if isinstance(code, str) and code == VARIANCE:
        wanted = _at(_spread(vectors) + _rest(statistics), sources)
        scaled = _factor(wanted - _spread(means), _rest(given)) - 1
        scaled = scaled.masked_fill(stays, 0.0)
    else:
        told = told_by(statistics, code)
        # What was moved already counts along the directions of the code alone.
        directions = torch.linalg.svd(told - told.mean(dim=0), full_matrices=False)
        along = directions.Vh[directions.S[0] * 1e-6 < directions.S]
        added = _at(told, sources) - told - (means - vectors) @ along.mT @ along
        added = added.masked_fill(stays[:, None], 0.0)
    return Move(
        _unmoved(given), added.float(), scaled.float(), given.deviation_squares().sqrt().float()
    )


def levelled(statistics: CodeStatistics, *, current: CodeStatistics | None = None) -> Moved:
    """Activations that tell no position by the mean residual or the variance.

    At every position the mean over them all, and deviations of one root mean square length.

    Args:
        statistics: as in `interchange`.
        current: as in `interchange`.

    Returns:
        The change, to be called with activations at the positions fitted on.

    Raises:
        ProbeError: before 2 sequences.
    """
    given = statistics if current is None else current
    means, rest = given.positional_vectors(), _rest(given)
    scale = _factor(_rest(statistics).mean().expand_as(rest), rest)
    added = statistics.positional_vectors().mean(dim=0) - means
    return Moved(means.float(), scale.float(), added.float())


def put_back(
    statistics: CodeStatistics,
    code: Code,
    origins: Positions,
    base: Moved,
    *,
    current: CodeStatistics | None = None,
) -> Move:
    """Activations that tell position by one code alone: by that of the position they came from.

    What the base takes away is what a run without any code has. So what the code, put back before
    this site, has since been made into stays: another code that is computed from it.

    Args:
        statistics: as in `interchange`.
        code: one of `MOVABLE`, or functions of the position.
        origins: `[pos]`, for each position fitted on the one (as an index into these) where what
            stands there belongs.
        base: `levelled` at this site.
        current: as in `interchange`; what has come back of the code already is not put back again.

    Returns:
        The move from the base, for activations at all positions fitted on.

    Raises:
        ProbeError: as `interchange`.
    """
    _check_sources(origins, len(statistics.positions))
    given = statistics if current is None else current
    off = given.positional_vectors() - base.means
    here = rearrange(base.scale, "pos -> pos 1") * off + base.added + base.means
    level = statistics.positional_vectors().mean(dim=0)
    # What all positions share tells none of them, and stays what it is in the intact model.
    told, scaled = (level - here.mean(dim=0)).expand_as(here), torch.zeros_like(off[:, 0])
    if isinstance(code, str) and code == VARIANCE:
        wanted = (_spread(statistics.positional_vectors()) + _rest(statistics))[origins]
        scaled = _factor(wanted - _spread(here + told), _rest(given)) - base.scale
        # Deviations are scaled about their mean, which stays where it is.
        told = told - rearrange(scaled, "pos -> pos 1") * off
    else:
        # As functions of where things belong: what else lies in the code's directions stays.
        functions = functions_of(code, statistics.positions)[origins]
        come = functions @ torch.linalg.pinv(functions) @ (here - level)
        told = told + told_by(statistics, code)[origins] - come
    lengths = given.deviation_squares().sqrt().float()
    return Move(base, told.float(), scaled.float(), lengths)


def _unmoved(statistics: CodeStatistics) -> Moved:
    means = statistics.positional_vectors().float()
    return Moved(means, torch.ones_like(means[:, 0]), torch.zeros_like(means))


def _spread(vectors: PositionalVectors) -> PerPosition:
    """The variance of each vector's components."""
    return vectors.var(dim=-1, correction=0)


def _rest(statistics: CodeStatistics) -> PerPosition:
    """The mean square of deviations' components about their mean.

    A deviation's components are taken to vary about their mean as if all directions were alike.
    """
    d_model = statistics.d_model
    return statistics.deviation_squares() * (d_model - 1) / d_model**2


def _factor(wanted: PerPosition, given: PerPosition) -> PerPosition:
    """What scales the given mean squares to those wanted; 1 where there is nothing to scale."""
    ratio = (wanted / given).clamp(_LARGEST_FACTOR**-2, _LARGEST_FACTOR**2).sqrt()
    return torch.where(given > 0, ratio, 1.0)


def _at(
    values: PerPosition | PositionalVectors, sources: Positions | PerPosition
) -> PerPosition | PositionalVectors:
    """The values at these indices, linear between two of them."""
    below = sources.floor().long()
    share = (sources - below).to(values)
    if values.ndim > 1:
        share = rearrange(share, "pos -> pos 1")
    between: Tensor = torch.lerp(values[below], values[sources.ceil().long()], share)
    return between


def _check_sources(sources: Positions | PerPosition, n: int) -> None:
    if len(sources) != n or not ((sources >= 0) & (sources < n)).all():
        raise ProbeError(
            f"sources are {sources.tolist()}: give one for each of the {n} positions fitted on, as "
            f"an index from 0 to {n - 1}"
        )
