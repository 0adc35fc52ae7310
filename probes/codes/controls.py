"""What an intervention does besides: matched controls of the same size, and side effects.

An intervention that hurts a model may do so because it took a position code away, or because it
moved the activations at all. Each control here moves them as far in a way that aims at no code.
"""

import torch
from einops import einsum, rearrange
from torch import Generator, Tensor

from probes.codes.directions import Leace, ScaledDirections
from probes.codes.draws import Draws
from probes.codes.filter import CodeFilter, require_fitted_shape, with_deviation_scaled
from probes.codes.interchange import Move, Moved, SizeMatched, variation_at
from probes.codes.statistics import CodeStatistics, Intervention
from probes.controls import shuffled_positions
from probes.shapes import Activations, PerPosition, PerSequence, PositionalVectors
from probes.streaming import upcast


def sizes_of(intervention: Intervention, statistics: CodeStatistics) -> PerPosition:
    """How far an intervention moves activations, as a share of their deviations' lengths: the mean
    at each position over the examples that the statistics keep.

    Args:
        intervention: takes activations of the site and gives them back changed.
        statistics: those of the site.

    Returns:
        `[pos]`, at most 2.

    Raises:
        ProbeError: before 2 sequences, and what the intervention raises.
    """
    deviations = statistics.example_deviations()
    rows = statistics.examples()
    moved: Tensor = torch.linalg.vector_norm(intervention(rows) - rows, dim=-1)
    tiny = torch.finfo(rows.dtype).tiny
    lengths: Tensor = torch.linalg.vector_norm(deviations, dim=-1).clamp(min=tiny)
    # An activation without a deviation cannot be turned, however far it moves.
    return (moved / lengths).clamp(max=2.0).mean(dim=0)


def removal_sizes(removal: Intervention, statistics: CodeStatistics) -> PerPosition:
    """How far a removal moves activations, as `size_matched_removal` takes it.

    Args:
        removal: a code filter that takes one code away.
        statistics: those of the site that it was fitted on.

    Returns:
        `[pos]`, means over the examples that the statistics keep: lengths, where vectors are
        subtracted, and else shares, as `sizes_of` gives them.

    Raises:
        ProbeError: as `sizes_of`.
    """
    if not _subtracts(removal):
        return sizes_of(removal, statistics)
    rows = statistics.examples()
    lengths: Tensor = torch.linalg.vector_norm(removal(rows) - rows, dim=-1)
    return lengths.mean(dim=0)


def _subtracts(removal: Intervention) -> bool:
    return isinstance(removal, CodeFilter) and bool(removal.removed.any())


class OtherContent:
    """Activations turned towards another sequence's, by as much as some intervention moves them.

    Of an activation's deviation r, cos(a) is kept and sin(a) |r| of another sequence's deviation at
    the same position is mixed in, its direction taken at a right angle to r, with the angle a such
    that the activation moves by size |r|, and by |r| sqrt(2) at most, where nothing of its own is
    left. That disturbs what the activation is about, as much as the intervention does, and none of
    the four codes: the mean at every position stays, so does the length of the deviation, and
    deviations that are mixed alike have the correlation between positions that they had.

    Sizes are those of `sizes_of`, one for each position. The others are the first sequences that
    the statistics were fitted on, in turn, from the second on: called on these themselves, it gives
    none its own deviation. Every other round takes their deviations with the opposite sign, so that
    few of them have no mean of their own to add. With a generator each is a mixture of them all,
    with Gaussian weights, so that there is no end of others; several sequences in a row may share
    one. Turns go on from call to call.
    """

    def __init__(
        self,
        sizes: PerPosition,
        statistics: CodeStatistics,
        generator: Generator | None = None,
        together: int = 1,
    ) -> None:
        # The chord of an angle a on a circle of radius 1 is 2 sin(a / 2).
        self._angle = 2 * (sizes / 2).clamp(max=0.5**0.5).asin()[:, None]
        self._means = statistics.positional_vectors().float()
        self._others = statistics.example_deviations()
        self._next = 1
        each = (len(self._others),)
        self._draws = None if generator is None else Draws(each, generator, together)

    def __call__(self, x: Activations) -> Activations:
        """The activations so turned; raises ProbeError for another number of positions or width."""
        require_fitted_shape(x, self._means)
        work = upcast(x)
        deviation = work - self._means.to(work)
        tiny = torch.finfo(work.dtype).tiny
        length = torch.linalg.vector_norm(deviation, dim=-1, keepdim=True)
        own = deviation / length.clamp(min=tiny)
        other = self._next_others(len(x)).to(work)
        other = other - (other * own).sum(dim=-1, keepdim=True) * own
        other = other / torch.linalg.vector_norm(other, dim=-1, keepdim=True).clamp(min=tiny)
        angle = self._angle.to(work)
        turned: Tensor = work + (angle.cos() - 1) * deviation + angle.sin() * length * other
        return turned.to(x.dtype)

    def _next_others(self, n: int) -> Activations:
        if self._draws is not None:
            weights, which = self._draws.of_next(n)
            mixed = einsum(
                weights.to(self._others), self._others, "draw other, other pos d -> draw pos d"
            )
            return mixed[which]
        turns = torch.arange(self._next, self._next + n)
        self._next += n
        rounds, which = turns // len(self._others), turns % len(self._others)
        sign = rearrange(1 - 2 * (rounds % 2), "batch -> batch 1 1")
        return sign.to(self._others) * self._others[which]


def moved_elsewhere(
    vectors: PositionalVectors, statistics: CodeStatistics, seed: int = 0
) -> SizeMatched:
    """Activations moved as far as by the vectors that an intervention subtracts at each position,
    in directions that aim at no code: `Move.size_matched` of that subtraction.

    Deviations stay as they are, and activations vary by the variance of the vectors more.

    Args:
        vectors: [pos d_model], what the intervention subtracts.
        statistics: those of the site, as whose deviations the directions are drawn.
        seed: of the directions, which are drawn for each sequence.
    """
    means, still = statistics.positional_vectors(), torch.zeros(len(vectors)).to(vectors)
    base = Moved(means, torch.ones_like(still), torch.zeros_like(means))
    generator = torch.Generator().manual_seed(seed)
    return Move(base, -vectors, still, still).size_matched(variation_at(statistics), generator)


def size_matched_removal(
    removal: CodeFilter, sizes: PerPosition, statistics: CodeStatistics, seed: int = 0
) -> SizeMatched | OtherContent:
    """Activations moved as far as by taking a code away, with none of the four taken away.

    Codes in the mean are taken away by subtracting vectors: the control is `moved_elsewhere` by
    vectors of the lengths that activations move in all, deviations that then grow to keep the
    variance included. The others are taken away by changing deviations: the control is
    `OtherContent` of these sizes.

    Args:
        removal: the intervention that is matched.
        sizes: [pos], how far it moves activations, as `removal_sizes` says.
        statistics: those of the site.
        seed: of the control's randomness.

    Returns:
        The control, to be called with activations of the site.
    """
    if _subtracts(removal):
        directions = torch.nn.functional.normalize(removal.removed, dim=-1)
        vectors = rearrange(sizes.to(directions), "pos -> pos 1") * directions
        return moved_elsewhere(vectors, statistics, seed)
    return OtherContent(sizes, statistics)


def random_subspace(
    projection: ScaledDirections | Leace, statistics: CodeStatistics, seed: int = 0
) -> ScaledDirections:
    """As many random orthonormal directions scaled alike, or projected out, about the same centre.

    The subspace is spanned by Gaussian draws with the covariance of the activations' own variation:
    where they vary much, it lies more often. It has the same rank, and not the same size, which
    `OtherContent` matches.

    Args:
        projection: the intervention that is matched.
        statistics: those of the site.
        seed: of the directions.

    Returns:
        The control, of the same rank, centre and factor; LEACE is matched by a factor of 0.
    """
    variation = variation_at(statistics)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn((projection.rank, len(variation)), generator=generator)
    basis = torch.linalg.qr((weights.to(variation) @ variation).mT).Q.mT
    factor = projection.factor if isinstance(projection, ScaledDirections) else 0.0
    return ScaledDirections(basis.to(projection.centre), projection.centre, factor)


class PermutedRescaling:
    """Activations with nothing taken away but their deviations rescaled as an intervention on codes
    rescales them, with the factors permuted over activations.

    Every sequence gets the factors of the one before it in the batch, in a random order:
    deviations are scaled as much as by the intervention, but not as their position asks. A
    batch of one has only its own factors, and then an earlier activation may get the factor of
    a later one. Draws go on from call to call: the same bits come from a new control with the
    same seed, called on the same batches.
    """

    def __init__(self, kept: CodeFilter, seed: int = 0) -> None:
        self.kept = kept
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, x: Activations) -> Activations:
        """The activations so scaled; raises what the intervention raises."""
        _, _, factor = self.kept.parts(x)
        batch, pos = factor.shape
        order = shuffled_positions(batch, torch.arange(pos), self._generator).to(factor.device)
        permuted = factor.roll(1, dims=0).gather(1, order)
        work = upcast(x)
        return with_deviation_scaled(work, work - self.kept.means.to(work), permuted).to(x.dtype)


# What an intervention may move besides what it aims at.
SIDE_EFFECTS = ("norm", "cosine")


def side_effects(x: Activations, changed: Activations) -> dict[str, PerSequence]:
    """How much an intervention changes besides what it aims at, per sequence.

    * norm: mean over activations of |x'| / |x| - 1, in size.
    * cosine: mean over pairs of different activations of |cos(x'_i, x'_j) - cos(x_i, x_j)|, 0 to 2.

    Args:
        x: [batch pos d_model], before.
        changed: the same after.

    Returns:
        `[batch]` by name: norm and cosine.
    """
    x, changed = upcast(x), upcast(changed)
    before, after = (torch.linalg.vector_norm(rows, dim=-1) for rows in (x, changed))
    tiny = torch.finfo(x.dtype).tiny
    pos = x.shape[1]
    own, other = (
        rows / lengths.clamp(min=tiny)[..., None]
        for rows, lengths in ((x, before), (changed, after))
    )
    # The diagonal adds nothing: an activation's cosine with itself stays 1.
    moved = torch.baddbmm(other @ other.mT, own, own.mT, alpha=-1).abs().sum(dim=(1, 2))
    return {
        "norm": (after / before.clamp(min=tiny) - 1).abs().mean(dim=-1),
        "cosine": moved / (pos * (pos - 1)),
    }
