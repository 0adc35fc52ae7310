"""Is what a learned subspace holds of position t, 1/m or log m?

A subspace is learned on the first two thirds of the positions. There each function is fitted to the
mean activation, and says what later positions would have. Then positions are told to be one of
these later ones: what lies in the subspace is set to what the function says. The model's own
function makes answers follow; another one says something else there. Few functions are tried: the
one that is named is the nearest of them.
"""

import math
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from experiments.codes.alignment import (
    COULD,
    FOLDS,
    FUNCTIONS,
    Answered,
    Exam,
    Values,
    learned_subspace,
    read_positions,
    share_of,
)
from experiments.codes.task import InterventionTask
from experiments.probing.sites import Site
from experiments.results.worth import WORTH_NAMING
from nope_interp.models.transformer import HookedTransformer
from probes.bootstrap import NamedBootstrap
from probes.codes.trends import trend_line

_LEARNED_SHARE = 2 / 3
UNDECIDED, NONE = "undecided", "none"
_LATER, _CONSTANT = "later", "constant"


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
        learned on: `later`, with what another example has there; `later constant`, of who gives the
        answer of one position everywhere, the best one; and `told t`, `told 1/m` and so on, with
        what the function says. `variable` is the nearest of these four functions; "none" where
        another example's activation is surely followed and they surely are not; or "undecided".
    """
    exam, fit = own.exam, task.split.fit
    early = torch.arange(len(exam.positions)) < math.ceil(_LEARNED_SHARE * len(exam.positions))
    generator = torch.Generator().manual_seed(FOLDS * task.seed)
    subspace = learned_subspace(
        exam, model, site, fit, generator, rank=rank, steps=steps, seen=early
    )

    def told_late(by: int) -> Bool[Tensor, " asked"]:
        return ~early.roll(-by)

    means = read_positions(model, site, fit, exam.positions).mean(dim=0)
    values = {_LATER: None} | lines(means, exam, early)
    counts = {name: own.counts(model, site, subspace, told_late, of) for name, of in values.items()}
    counts[_CONSTANT] = own.constant([told_late])
    columns = {name: of[:, 0].astype(float) for name, of in counts.items()}
    could = counts[_LATER][:, 1].astype(float)
    bootstrap = NamedBootstrap(columns | {COULD: could}, seed=task.seed)
    shares = {name: float(of.sum() / could.sum()) for name, of in columns.items()}
    told = {f"told {name}": shares[name] for name in FUNCTIONS}
    every = {_LATER: shares[_LATER], f"{_LATER} {_CONSTANT}": shares[_CONSTANT], **told}
    return every | {"variable": _named(bootstrap, max(FUNCTIONS, key=lambda name: shares[name]))}


def lines(means: Values, exam: Exam, fitted: Bool[Tensor, " asked"]) -> dict[str, Values]:
    """What each function, fitted at some positions, says of all that are asked.

    Args:
        means: the mean activation at each.
        exam: says which they are.
        fitted: where functions are fitted.
    """
    return {name: trend_line(means, of, fitted) for name, of in exam.functions().items()}


def _named(bootstrap: NamedBootstrap, best: str) -> str:
    """The word for the function that most answers follow.

    It is named where surely more follow it than any other function, surely a tenth more than a
    constant answer has, and not surely fewer than follow another example's activation. It is "none"
    where that activation is surely followed, a tenth beyond a constant, and the function surely is
    not. Otherwise it is "undecided".
    """

    def interval(name: str, *less: str) -> tuple[float, float]:
        low, high = bootstrap.interval_of(share_of(bootstrap, name, *less))
        return float(low), float(high)

    low, high = interval(best, _CONSTANT)
    leads = min(interval(best, name)[0] for name in FUNCTIONS if name != best)
    if low >= WORTH_NAMING and leads > 0 and interval(best, _LATER)[1] >= 0:
        return best
    held = interval(_LATER, _CONSTANT)[0] >= WORTH_NAMING
    return NONE if held and high < WORTH_NAMING else UNDECIDED
