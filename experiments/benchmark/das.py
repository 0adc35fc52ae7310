"""Distributed alignment search of rank 1: is there one direction that holds the position?

By `experiments.codes.alignment`: the direction is learned on some positions and judged on others,
beside a random-init model of the same config.
"""

import numpy as np
import torch
from jaxtyping import Float

from experiments.benchmark.task import N_FIT, N_HELD_OUT
from experiments.codes.alignment import (
    Exam,
    followed,
    learned_subspace,
    told_others,
    untrained_twin,
)
from experiments.probing.sites import Site
from experiments.results.position_use import Word
from experiments.results.worth import WORTH_NAMING
from nope_interp.constructions.planted import N_CTX, Planted
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import Sequences
from probes.bootstrap import SequenceBootstrap
from probes.code_names import SMOOTH


def das(planted: Planted, place: Site | None, seed: int) -> dict[str, str]:
    """One direction that holds the position is a count; of other codes this says nothing.

    The share is that of answers at held-out positions that are as at the other one, less that of
    the random-init model, in shares of the intact model's right answers there. Used where it is
    surely a tenth or more, not used where it is surely less.

    Args:
        planted: the model.
        place: a site; of the whole stream this says nothing.
        seed: of directions and sequences.

    Returns:
        A word for the smooth trend, which a count is.
    """
    if place is None:
        return {}
    intact = _right(planted, seed)
    models = (planted.model, untrained_twin(planted.model, seed))
    shares = [_followed(planted, model, place, seed) for model in models]
    bootstrap = SequenceBootstrap(seed=seed)
    bootstrap.update(np.stack([of / intact for of in shares], axis=1))
    net = bootstrap.score("", lambda means: means[:, 0] - means[:, 1], chance=0.0)
    if net.ci_low >= WORTH_NAMING:
        return {SMOOTH: Word.USED}
    return {SMOOTH: Word.NOT_USED if net.ci_high < WORTH_NAMING else Word.UNDECIDED}


@torch.no_grad()
def _right(planted: Planted, seed: int) -> float:
    """The share of the intact model's answers that are right, at held-out positions."""
    exam, tokens = _exam(planted), _judged_on(planted, seed)
    right = exam.logits(planted.model, tokens).argmax(dim=-1) == exam.answers(
        tokens, exam.positions
    )
    return float(right[:, exam.kept()].double().mean())


def _exam(planted: Planted) -> Exam:
    return Exam(torch.arange(1, N_CTX), planted.logits, planted.answers)


def _judged_on(planted: Planted, seed: int) -> Sequences:
    return planted.sequences(N_HELD_OUT, 2 * seed + 1)


def _followed(
    planted: Planted, model: HookedTransformer, site: Site, seed: int
) -> Float[np.ndarray, " sequence"]:
    """The share of answers of each sequence that follow, at held-out positions."""
    exam = _exam(planted)
    generator = torch.Generator().manual_seed(seed)
    learned_on = planted.sequences(N_FIT, int(torch.randint(2**31, (), generator=generator)))
    subspace = learned_subspace(exam, model, site, learned_on, generator)
    told = told_others(exam.positions, exam.kept(), generator)
    follows, _ = followed(exam, model, site, subspace, _judged_on(planted, seed), told)
    return follows[:, exam.kept().numpy()].mean(axis=1)
