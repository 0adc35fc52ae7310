"""How much nearer 1/m comes to later positions than other trends, in models of which it is known
what tells position."""

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.benchmark.task import task_of
from experiments.codes.counting import counting_rows
from experiments.codes.in_depth import statistics_at
from experiments.codes.task import InterventionTask
from experiments.probing.sites import Site
from experiments.results.interchange import extrapolated, nearer_than
from experiments.results.measurements import table
from nope_interp.constructions.planted import plant
from nope_interp.streams import stream
from probes.codes.statistics import CodeStatistics
from probes.codes.trends import RIVALS, Extrapolation
from tests.experiments.codes.on_text import CONTEXT

AMONG = torch.arange(4, 20)
FITTED = 10  # three fifths of them, rounded up


def found(task: InterventionTask, statistics: dict[Site, CodeStatistics]) -> pd.DataFrame:
    rows = counting_rows(task, statistics, {"positions": AMONG}, context=CONTEXT)
    assert {row["positions"] for row in rows} == {extrapolated("positions")}
    return table(rows).set_index("metric").loc[[nearer_than(rival) for rival in RIVALS]]


@pytest.fixture
def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.benchmark.task.N_FIT", 60)
    monkeypatch.setattr("experiments.benchmark.task.N_HELD_OUT", 30)


@pytest.mark.usefixtures("fewer")
def test_what_a_counter_reads_off_its_first_token_is_surely_nearer_to_1_over_m() -> None:
    """Its first attention gives 1/m and nothing else: every sequence the same."""
    task, site = task_of(plant("counting"), 0), Site(0, "attn_out")
    rows = found(task, statistics_at(task, [site]))
    m = AMONG.numpy() + 1.0
    truth, first, later = 1 / m, slice(FITTED), slice(FITTED, None)
    wanted = []
    for values in (0 * m, m, np.log(m), np.cos(np.pi * m / m[-1])):
        design = np.stack([np.ones_like(m), values], axis=1)
        curve = design @ np.linalg.lstsq(design[first], truth[first], rcond=None)[0]
        off, apart = curve[later] - truth[later], truth[later] - truth[first].mean()
        wanted.append(np.square(off).mean() / np.square(apart).mean())
    np.testing.assert_allclose(rows["value"], wanted, rtol=1e-4)
    assert (rows["ci_low"] > 0).all()


@pytest.mark.usefixtures("fewer")
def test_vectors_that_no_trend_tells_are_not_surely_nearer_to_1_over_m() -> None:
    task, site = task_of(plant("positional vectors"), 0), Site(0, "resid_pre")
    statistics = statistics_at(task, [site])
    rows = found(task, statistics)
    seen: list[torch.Tensor] = []
    stream(task.model, task.split.held_out, {site.name: seen.append})
    trend = Extrapolation(statistics[site].among(AMONG - 1))
    gains = trend.gains(torch.cat(seen)[:, AMONG])
    wanted = [float(gain.mean()) for gain in gains.values()]
    np.testing.assert_allclose(rows["value"], wanted, rtol=1e-6)
    assert not (rows["ci_low"] > 0).all()
