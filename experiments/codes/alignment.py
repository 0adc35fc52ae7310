"""Distributed alignment search: is there a subspace of few dimensions that holds the position?

After Geiger et al. 2023 (arXiv 2303.02536), written small: of a rotation only the rows that span
the subspace matter, so that pyvene would be one dependency more for a few lines. What lies in the
subspace is exchanged for that of another sequence at another position, and it is learned by how
surely the model then answers as there. It begins at what linear regression reads of the position.

Whoever learns a subspace may find one in any model. So it is learned on some positions and judged
on others, in other sequences, beside a random-init model of the same config and a constant answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from experiments.probing.sites import Site
from nope_interp.interventions.intervene import intervene
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import Activations, Tokens
from nope_interp.streams import read_at
from probes.bootstrap import Array, ArrayFunction, NamedBootstrap, ratio
from probes.codes.trends import TRENDS
from probes.shapes import PerPosition

_BATCH = 16
_LEARNING_RATE = 2e-3
# Directions that vary by a smaller share of the largest hold the rounding of float32.
_ROUNDING = 1e-5
# Of so many positions one is kept for judging.
FOLDS = 3
# What linear regression reads for each dimension.
FUNCTIONS = ("t", "1/m", "log m", "slow cosine")

Logits = Float[Tensor, "batch asked answer"]
Answers = Int[Tensor, "batch asked"]
# The positions that are asked, in order; and for each the one that it is told to be.
Asked = Int[Tensor, " asked"]
Told = Int[Tensor, " asked"]
# Of each sequence, at each position that is asked.
Followed = Bool[np.ndarray, "sequence asked"]
# Its columns span it; they need not be orthogonal.
Subspace = Float[Tensor, "d_model rank"]
# The name of the column of answers that could follow.
COULD = "could"
# What is told at each position that is asked.
Values = Float[Tensor, "asked d_model"]
# Of each sequence, how many answers follow, and how many could.
Counts = Int[np.ndarray, "sequence 2"]
# Which positions count, where each is told to be the one so many places on.
Judges = Callable[[int], Bool[Tensor, " asked"]]


@dataclass(frozen=True)
class Exam:
    """What is asked at some positions of a model's sequences, wherever each is told to stand.

    Attributes:
        positions: `[asked]`, in order.
        logits: what a model says there, on the CPU.
        answers: the right answers where each position is told to be another one, as indices into
            the logits.
    """

    positions: Asked
    logits: Callable[[HookedTransformer, Tokens], Logits]
    answers: Callable[[Tokens, Told], Answers]

    def kept(self, fold: int = 0) -> Bool[Tensor, " asked"]:
        """The positions that are not learned on: every third one, from the third, second or first
        on as fold is 0, 1 or 2."""
        return (torch.arange(1, len(self.positions) + 1) + fold) % FOLDS == 0

    def functions(self) -> dict[str, PerPosition]:
        """What each of `FUNCTIONS` is at the positions that are asked."""
        m = self.positions.double() + 1
        return {name: TRENDS[name](m, int(m[-1])) for name in FUNCTIONS}


def untrained_twin(model: HookedTransformer, seed: int) -> HookedTransformer:
    """A random-init model of the same config.

    Args:
        model: any.
        seed: of its weights.

    Returns:
        The new model, on the same device.
    """
    twin = HookedTransformer(replace(model.config, seed=seed, init_scale=None))
    return twin.to(next(model.parameters()).device)


def learned_subspace(
    exam: Exam,
    model: HookedTransformer,
    site: Site,
    tokens: Tokens,
    generator: Generator,
    *,
    rank: int = 1,
    steps: int = 50,
    seen: Bool[Tensor, " asked"] | None = None,
) -> Subspace:
    """The subspace whose exchange makes answers follow best, by gradient descent.

    Args:
        exam: what is asked.
        model: who answers.
        site: where the subspace is.
        tokens: `[sequence pos]`, to learn on.
        generator: of batches, and of what positions are told to be.
        rank: how many dimensions, at most as many as `FUNCTIONS`.
        steps: of gradient descent.
        seen: the positions to learn on; None leaves out those that `Exam.kept` keeps first.

    Returns:
        `[d_model rank]`.
    """
    seen = ~exam.kept() if seen is None else seen
    subspace = _regressed(exam, seen, model, site, tokens, rank).requires_grad_()
    optimizer = torch.optim.Adam([subspace], lr=_LEARNING_RATE)
    for _ in range(steps):
        batch = tokens[torch.randint(len(tokens), (_BATCH,), generator=generator)]
        told = told_others(exam.positions, seen, generator)
        logits = exchanged(exam, model, site, batch, told, subspace)[:, seen]
        answers = exam.answers(batch, told)[:, seen]
        loss = F.cross_entropy(rearrange(logits, "batch pos answer -> batch answer pos"), answers)
        (subspace.grad,) = torch.autograd.grad(loss, [subspace])
        optimizer.step()
    return subspace.detach()


@torch.no_grad()
def followed(
    exam: Exam,
    model: HookedTransformer,
    site: Site,
    subspace: Subspace,
    tokens: Tokens,
    told: Told,
    values: Values | None = None,
) -> tuple[Followed, Followed]:
    """Which answers follow, and which could.

    Args:
        exam: what is asked.
        model: who answers.
        site: where the subspace is.
        subspace: what is exchanged.
        tokens: `[sequence pos]`, others than it was learned on.
        told: what each position is told to be.
        values: as `exchanged` takes them.

    Returns:
        Whether each answer is that of the other position, and whether that is another answer.
    """
    said = exchanged(exam, model, site, tokens, told, subspace, values).argmax(dim=-1)
    there, here = exam.answers(tokens, told), exam.answers(tokens, exam.positions)
    return (said == there).numpy(), (there != here).numpy()


def exchanged(
    exam: Exam,
    model: HookedTransformer,
    site: Site,
    tokens: Tokens,
    told: Told,
    subspace: Subspace,
    values: Values | None = None,
) -> Logits:
    """The logits where positions have, in a subspace, what the sequence before has at others.

    Args:
        exam: what is asked.
        model: who answers.
        site: where the subspace is.
        tokens: `[batch pos]`.
        told: for each position the one whose part it gets; its own where nothing is to change.
        subspace: what is exchanged.
        values: `[asked d_model]`, what to have in the subspace at each position that is asked, in
            place of what the sequence before has there.
    """
    source = torch.searchsorted(exam.positions, told)
    changed = (told != exam.positions)[:, None]

    def exchange(x: Activations) -> Activations:
        basis = torch.linalg.qr(subspace).Q.to(x)
        others = x.roll(1, dims=0) if values is None else values.to(x)[None]
        wanted = others[:, source] @ basis
        return x + changed.to(x) * (wanted - x @ basis) @ basis.mT

    with intervene(model, {site.name: exchange}, exam.positions):
        return exam.logits(model, tokens)


@dataclass(frozen=True)
class Answered:
    """Held-out examples of one length.

    Attributes:
        exam: what they ask.
        tokens: `[sequence pos]`.
        right: `[sequence asked]`, which answers of the intact model are right.
    """

    exam: Exam
    tokens: Tokens
    right: Followed

    @classmethod
    @torch.no_grad()
    def by(cls, model: HookedTransformer, exam: Exam, tokens: Tokens) -> "Answered":
        """Those that the intact model answers."""
        said = exam.logits(model, tokens).argmax(dim=-1)
        return cls(exam, tokens, (said == exam.answers(tokens, exam.positions)).numpy())

    def counts(
        self,
        model: HookedTransformer,
        site: Site,
        subspace: Subspace,
        judges: Judges,
        values: Values | None = None,
    ) -> Counts:
        """How many right answers follow, every position told to be each of the others in turn.

        Of so few positions a single order of them would be a small sample of the pairs.

        Args:
            model: who answers.
            site: where the subspace is.
            subspace: what is exchanged.
            judges: which positions count, where all are told to be the one so many places on.
            values: as `experiments.codes.alignment.exchanged` takes them.
        """

        def follows(told: Told) -> tuple[Followed, Followed]:
            return followed(self.exam, model, site, subspace, self.tokens, told, values)

        return self._counted(follows, judges)

    def constant(self, judges: Sequence[Judges]) -> Counts:
        """The same of who gives the answer of one position everywhere: of the best such one.

        An exchange that drives a model to the last position has as much, whatever was told.

        Args:
            judges: as for `counts`, of each fold; what is counted is added up.
        """
        exam, tokens = self.exam, self.tokens
        here = exam.answers(tokens, exam.positions)

        def follows(told: Told, one: Tensor) -> tuple[Followed, Followed]:
            there = exam.answers(tokens, told)
            said = exam.answers(tokens, one.expand(len(exam.positions)))
            return (said == there).numpy(), (there != here).numpy()

        def over_folds(one: Tensor) -> Counts:
            counts = [self._counted(partial(follows, one=one), each) for each in judges]
            return np.sum(counts, axis=0)

        return max(map(over_folds, exam.positions), key=lambda counts: int(counts[:, 0].sum()))

    def _counted(
        self, follows: Callable[[Told], tuple[Followed, Followed]], judges: Judges
    ) -> Counts:
        found = np.zeros((len(self.right), 2), dtype=np.int64)
        for by in range(1, len(self.exam.positions)):
            follow, could = follows(self.exam.positions.roll(-by))
            counted = could & self.right & judges(by).numpy()
            found += np.stack([(follow & counted).sum(axis=1), counted.sum(axis=1)], axis=1)
        return found


def share_of(bootstrap: NamedBootstrap, name: str, *less: str) -> ArrayFunction:
    """The share of answers that follow, of those that could (`COULD`), for `NamedBootstrap.score`.

    Args:
        bootstrap: with a column for each name, and for `COULD`.
        name: whose answers.
        less: others, of whom the larger share is subtracted.
    """

    def follow(means: Array) -> Array:
        taken = [bootstrap.mean(other)(means) for other in less]
        return bootstrap.mean(name)(means) - (np.max(taken, axis=0) if taken else 0.0)

    return ratio(follow, bootstrap.mean(COULD))


def told_others(positions: Asked, among: Bool[Tensor, " asked"], generator: Generator) -> Told:
    """For each of some positions another one of them, each once; others keep their own.

    Args:
        positions: all that are asked.
        among: which of them are to be told so.
        generator: of the order.

    Returns:
        `[asked]`, the position that each is told to be.
    """
    told = positions.clone()
    chosen = positions[among]
    order = torch.randperm(len(chosen), generator=generator)
    told[among.nonzero()[:, 0][order]] = chosen[order].roll(1)
    return told


def _regressed(
    exam: Exam,
    seen: Bool[Tensor, " asked"],
    model: HookedTransformer,
    site: Site,
    tokens: Tokens,
    rank: int,
) -> Subspace:
    """The directions of least squares on functions of the positions that are learned on.

    From random ones, gradient descent is lost in content: far from the right direction, and so from
    the right answer, the loss hardly changes.
    """
    x = read_positions(model, site, tokens, exam.positions[seen])
    every = exam.functions()
    read = torch.stack([every[name][seen] for name in FUNCTIONS[:rank]], dim=1)
    wanted = read.expand(len(x), -1, -1).flatten(0, 1)
    x = x.flatten(0, 1)
    centred = x - x.mean(dim=0)
    found = torch.linalg.lstsq(
        centred, wanted - wanted.mean(dim=0), rcond=_ROUNDING, driver="gelsd"
    ).solution
    # Over few positions the functions are much alike: so are their directions, but no basis.
    return torch.linalg.qr(found).Q.float()


def read_positions(
    model: HookedTransformer, site: Site, tokens: Tokens, positions: Asked
) -> Float[Tensor, "batch asked d_model"]:
    """The site's activations at some positions, in double precision.

    Args:
        model: any.
        site: where.
        tokens: `[batch pos]`.
        positions: which.
    """
    found = read_at(model, tokens, {site.name: lambda x: x[:, positions].double().cpu()})
    return torch.cat(found[site.name])
