"""Does a model count, or does it follow some smooth trend? Over few positions these look alike.

Trends are fitted on the mean residual at the first of the positions that are moved, and predict the
later ones of held-out examples (`probes.codes.trends.Extrapolation`).
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from experiments.codes.counterfactual import Chosen
from experiments.codes.task import InterventionTask
from experiments.probing.sites import Site
from experiments.results import interchange as names
from nope_interp.shapes import PerSequence
from nope_interp.streams import read_at
from probes.bootstrap import NamedBootstrap
from probes.code_names import SMOOTH
from probes.codes.statistics import CodeStatistics
from probes.codes.trends import Extrapolation, carries


def counting_rows(
    task: InterventionTask,
    statistics: Mapping[Site, CodeStatistics],
    moved: Mapping[str, Chosen],
    *,
    context: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Rows of the tidy table: how much better 1/m predicts later positions than other trends do.

    Metric `names.nearer_than(rival)`, for each rival of one number a position: how much nearer to
    the later positions' means 1/m comes, in squares, as a share of the constant's distance; 0 is no
    nearer. The condition is `names.extrapolated`. There are no rows where a site carries no smooth
    trend, and where positions are too few.

    Args:
        task: the model, and the held-out examples.
        statistics: of its fit sequences at each site, as from `statistics_at`.
        moved: the positions that are moved, by what they are called.
        context: the columns that tell this model variant from others.

    Returns:
        The rows.

    Raises:
        UserError: for a site that the model lacks.
    """
    rows: list[dict[str, Any]] = []
    for name, among in moved.items():
        chosen = torch.searchsorted(task.numbers(), among)
        codes = {site: of.among(chosen) for site, of in statistics.items()}
        trends = {site: Extrapolation(of) for site, of in codes.items() if carries(of, SMOOTH)}
        trends = {site: trend for site, trend in trends.items() if trend.scale}
        if not trends:
            continue
        reads = {s.name: partial(_gains, trend=t, among=among) for s, t in trends.items()}
        found = read_at(task.model, task.split.held_out, reads, batch_size=task.batch_size)
        condition = {"probe": names.PROBE, "positions": names.extrapolated(name)}
        for site in trends:
            where = {"layer": site.layer, "site": site.hook}
            rows += _rows(found[site.name], task.seed, {**context, **where, **condition})
    return rows


def _gains(activations: Tensor, trend: Extrapolation, among: Chosen) -> dict[str, PerSequence]:
    return trend.gains(activations[:, among])


def _rows(
    batches: Sequence[Mapping[str, Tensor]], seed: int, context: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    gains = {
        rival: torch.cat([batch[rival] for batch in batches]).cpu().numpy() for rival in batches[0]
    }
    bootstrap = NamedBootstrap(gains, seed=seed)
    for rival in gains:
        nearer = bootstrap.mean(rival)
        yield {**context, **vars(bootstrap.score(names.nearer_than(rival), nearer, chance=0.0))}
