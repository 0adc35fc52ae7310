"""What a model loses without a code: with the codes of `compare`, and with LEACE."""

from functools import partial

import numpy as np

from experiments.benchmark.task import context, sites_of, task_of, where
from experiments.codes.ablation import site_by_site, through_the_stream
from experiments.codes.conditions import Condition, Fit
from experiments.codes.in_depth import fitted_in_depth, statistics_at
from experiments.codes.task import InterventionTask
from experiments.probing.sites import Site
from experiments.results.measurements import table
from experiments.results.position_use import Word
from experiments.results.usage import uses_at
from experiments.results.worth import WORTH_NAMING
from nope_interp.constructions.planted import Planted
from nope_interp.interventions.intervene import intervene
from probes.bootstrap import SequenceBootstrap
from probes.code_names import HALVES
from probes.codes.controls import random_subspace
from probes.codes.directions import Leace, ScaledDirections, leace_of_code


def erasure(planted: Planted, place: Site | None, seed: int) -> dict[str, str]:
    """By `experiments.results.usage`: necessity and sufficiency of each code, and their controls.

    Args:
        planted: the model.
        place: a site; None for the whole stream.
        seed: of sequences and controls.

    Returns:
        A word for each code.
    """
    task, columns = task_of(planted, seed), context(planted, seed)
    if place is None:
        rows = through_the_stream(task, context=columns, codes_only=True)
    else:
        rows = site_by_site(task, statistics_at(task, [place]), context=columns)
    return {use.code: use.word for use in uses_at(table(rows), *where(place))}


def leace(planted: Planted, place: Site | None, seed: int) -> dict[str, str]:
    """What is linear in a code's functions of the position is erased (Belrose et al. 2023).

    Used where the loss surely rises by a tenth of chance - intact, and surely by more than without
    as many random directions; not used where it surely rises by less than a tenth.

    Args:
        planted: the model.
        place: a site; None for the whole stream.
        seed: of sequences and controls.

    Returns:
        A word for each code in the mean.
    """
    task = task_of(planted, seed)
    sites = sites_of(task, place)
    return {code: _without(task, sites, code) for code in HALVES}


def _without(task: InterventionTask, sites: list[Site], code: str) -> str:
    erase, control = partial(_erased, code=code), partial(_random, code=code, seed=task.seed)
    losses = [task.losses(task.model, task.split.held_out)]
    for make in (erase, control):
        condition = Condition(f"without {code}, by LEACE", "", make, linear=True)
        made = fitted_in_depth(task, condition, sites)
        with intervene(task.model, made, task.positions) as acted:
            losses.append(task.losses(task.model, task.split.held_out))
            acted.verify()
    bootstrap = SequenceBootstrap(seed=task.seed)
    bootstrap.update(np.stack([of.double().numpy() for of in losses], axis=1))
    worth = task.chance - bootstrap.mean()[0]
    lost = bootstrap.score("", lambda m: (m[:, 1] - m[:, 0]) / worth, chance=0.0)
    over = bootstrap.score("", lambda m: (m[:, 1] - m[:, 2]) / worth, chance=0.0)
    if lost.ci_low >= WORTH_NAMING and over.ci_low > 0:
        return Word.USED
    return Word.NOT_USED if lost.ci_high < WORTH_NAMING else Word.UNDECIDED


def _erased(fit: Fit, code: str) -> Leace:
    return leace_of_code(fit.linear, fit.codes, code)


def _random(fit: Fit, code: str, seed: int) -> ScaledDirections:
    return random_subspace(_erased(fit, code), fit.codes, seed)
