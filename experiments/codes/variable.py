"""Is what a learned subspace holds of position t, 1/m or log m?

A subspace is learned on the first two thirds of the positions. There each function is fitted to the
mean activation, and says what later positions would have. Then positions are told to be one of
these later ones: what lies in the subspace is set to what the function says. The function that is
the model's own makes answers follow; another one does not, since it says something else there.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from experiments.codes.alignment import (
    FOLDS,
    FUNCTIONS,
    Answered,
    Asked,
    Values,
    learned_subspace,
    read_positions,
)
from experiments.codes.task import InterventionTask
from experiments.probing.measure import Site
from experiments.results.worth import WORTH_NAMING
from nope_interp.models.transformer import HookedTransformer
from probes.bootstrap import NamedBootstrap
from probes.codes.trends import TRENDS, trend_line

_LEARNED_SHARE = 2 / 3
UNDECIDED, NONE = "undecided", "none"


def variable_of(
    task: InterventionTask,
    own: Answered,
    model: HookedTransformer,
    site: Site,
    rank: int,
    steps: int,
) -> dict[str, Any]:
    """How far answers follow where a function of the position says what a subspace holds.

    Args:
        task: its examples to fit on are learned on.
        own: the held-out ones.
        model: who answers.
        site: where the subspace is.
        rank: how many dimensions it has.
        steps: of gradient descent.

    Returns:
        Shares of the right answers of positions that are told to be later than all that were
        learned on: `later`, with what another example has there, and `told t`, `told 1/m` and so
        on, with what the function says. `variable` is the function by which surely more follow
        than by each other one, and surely a tenth; "none" where surely less than a tenth follow by
        any; else "undecided".
    """
    exam = own.exam
    early = torch.arange(len(exam.positions)) < math.ceil(_LEARNED_SHARE * len(exam.positions))
    generator = torch.Generator().manual_seed(FOLDS * task.seed)
    fit = task.split.fit
    subspace = learned_subspace(
        exam, model, site, fit, generator, rank=rank, steps=steps, seen=early
    )
    means = read_positions(model, site, fit, exam.positions).mean(dim=0)
    counts = {
        name: own.counts(model, site, subspace, lambda by: ~early.roll(-by), values)
        for name, values in {"later": None, **lines(means, exam.positions, early)}.items()
    }
    # The same could follow, whatever is told.
    follows = {name: of[:, 0] / max(of[:, 1].mean(), 1) for name, of in counts.items()}
    shares = {name: float(of.mean()) for name, of in follows.items()}
    told = {f"told {name}": shares[name] for name in FUNCTIONS}
    return {"later": shares["later"], **told, "variable": _named(follows, task.seed)}


def lines(means: Values, positions: Asked, fitted: Bool[Tensor, " asked"]) -> dict[str, Values]:
    """What each function, fitted at some positions, says of all.

    Args:
        means: the mean activation at each position that is asked.
        positions: their numbers, counted from 0.
        fitted: where functions are fitted.
    """
    m = positions.double() + 1
    return {name: trend_line(means, TRENDS[name](m, int(m[-1])), fitted) for name in FUNCTIONS}


def _named(follows: Mapping[str, Float[np.ndarray, " sequence"]], seed: int) -> str:
    bootstrap = NamedBootstrap(follows, seed=seed)
    best = max(FUNCTIONS, key=lambda name: float(follows[name].mean()))
    low, high = bootstrap.interval_of(bootstrap.mean(best))
    if high < WORTH_NAMING:
        return NONE
    leads = (bootstrap.difference(best, name) for name in FUNCTIONS if name != best)
    surely = all(bootstrap.interval_of(lead)[0] > 0 for lead in leads)
    return best if surely and low >= WORTH_NAMING else UNDECIDED
