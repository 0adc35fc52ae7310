"""One position given the code of another: does the model then answer as there?

The share is that of the way that the loss on the other position's answers comes from the intact
run's to that on the right answers, less that under a control of the same size, which mixes in
another sequence's content.
"""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Int
from torch import Tensor

from experiments.benchmark.task import elsewhere, sites_of, task_of
from experiments.codes.ablation import statistics_at
from experiments.codes.task import InterventionTask
from experiments.probing.measure import ALL_BUT_FIRST, Site
from experiments.results.readability import WORTH_NAMING, widened
from nope_interp.constructions.planted import Planted
from nope_interp.interventions.intervene import intervene
from probes.bootstrap import SequenceBootstrap
from probes.codes.controls import OtherContent, sizes_of
from probes.codes.interchange import interchange as interchanged
from probes.codes.statistics import CodeStatistics, Intervention
from probes.scores import Score

_CODES = ("variance", "counting", "positional vectors")

Told = Int[Tensor, " asked"]


def interchange(planted: Planted, place: Site | None, seed: int) -> dict[str, str]:
    """Every position is given the code of another one, each once.

    Used where the net share is surely a tenth or more, at one of the sites of the place at least;
    not used where it is surely less at all of them. Intervals are widened for their number.

    Args:
        planted: the model.
        place: a site; None for the whole stream, site by site.
        seed: of sequences and positions.

    Returns:
        A word for each code that can be moved.
    """
    task, told = task_of(planted, seed), elsewhere(seed)
    statistics = statistics_at(task, sites_of(task, place))
    found: dict[str, str] = {}
    for code in _CODES:
        nets = [
            _net(planted, task, site, of_site, interchanged(of_site, code, told - 1), told)
            for site, of_site in statistics.items()
        ]
        ends = [widened(net.value, net.ci_low, net.ci_high, len(nets), net.n) for net in nets]
        if any(low >= WORTH_NAMING for low, _ in ends):
            found[code] = "used"
        else:
            clear = all(high < WORTH_NAMING for _, high in ends)
            found[code] = "not used" if clear else "undecided"
    return found


def _net(
    planted: Planted,
    task: InterventionTask,
    site: Site,
    statistics: CodeStatistics,
    change: Intervention,
    told: Told,
) -> Score:
    control = OtherContent(sizes_of(change, statistics), statistics)
    changes: list[dict[str, Intervention]] = [{}, {site.name: change}, {site.name: control}]
    losses = []
    for made in changes:
        with intervene(planted.model, made, ALL_BUT_FIRST), torch.no_grad():
            logits = planted.logits(planted.model, task.split.held_out)
        by_class = rearrange(logits, "batch pos answer -> batch answer pos")
        answers = planted.answers(task.split.held_out, told)
        losses.append(F.cross_entropy(by_class, answers, reduction="none").mean(dim=1))
    losses.append(task.losses(planted.model, task.split.held_out))
    bootstrap = SequenceBootstrap(seed=task.seed)
    bootstrap.update(torch.stack(losses, dim=1))
    # Columns: intact, moved and control, by the other answers; intact, by the right ones.
    return bootstrap.score("net", lambda m: (m[:, 2] - m[:, 1]) / (m[:, 0] - m[:, 3]), chance=0.0)
