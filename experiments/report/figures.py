"""The charts of the page, as plain data: Python picks and orders numbers, the page only draws them.

A chart has controls (site, layer ...) and views, one per combination that the run measured. A view
has panels drawn side by side, a panel has series. What a series means is its kind: "value",
"control" and "fit" (what the chart names so), "chance", "depth" (one layer of one sequence).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from experiments.report import lookup
from experiments.report.data import ReportData
from experiments.report.encode import every, number, packed
from experiments.results.adjacency import ADJACENCY
from experiments.results.measurements import finished
from probes.scores import SHUFFLED

PROBES = {
    "linear": "Linear probe on position",
    "counting": "Counting: linear probe on 1/m",
    "two_layer": "Two-layer probe",
    "variance": "From the variance alone",
    "similarity": "From the cosines alone",
}
COSINE_SCALE = 10_000  # four digits after the point
COSINE_CELLS = 2_000_000  # about five megabytes on the page
MOST_POSITIONS = 256  # points of one curve

_MEASURES = {"mae": "mean absolute error", "r2": "R²"}


@dataclass
class Chart:
    """One figure of the page; `views` is keyed "tokens|begin|choice ..." in control order.

    `caption` is one line, `reading` what a reader may unfold. `best` holds by setting the choices
    of the menus at which the signal is read best: there the figure opens.

    `control`, `fit` and `chance` name series of these kinds, `text` what their points' own texts
    are. With `named_x` only as many of `ticks` are labelled as there is room for their names.
    """

    id: str
    title: str
    caption: str
    x: str
    kind: str = "lines"
    controls: list[dict[str, Any]] = field(default_factory=list)
    views: dict[str, Any] = field(default_factory=dict)
    interval: str = "bars"
    share_y: bool = False
    ticks: dict[str, str] | None = None
    from_zero: bool = True
    log_toggle: bool = False
    switched: bool = True
    control: str = SHUFFLED
    chance: str = "chance"
    fit: str = "perfect"
    text: str = "token"
    named_x: bool = False
    reading: str = ""
    best: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """Charts under one heading, with the sentence that says how to read them."""

    id: str
    title: str
    text: str
    charts: tuple[Chart, ...]


def sections(data: ReportData) -> list[Section]:
    """Every section that the run has numbers for, in reading order."""
    points = lookup.Points(data)
    arrays = lookup.SiteArrays(data)
    best = lookup.best_sites(data)
    found = [
        Section(
            "by-layer",
            "Position by layer",
            "How far off is the position that a probe recovers from one signal alone?",
            (_probe_chart(points, best),),
        ),
        Section(
            "variance",
            "Variance by position",
            "Attention averages over the m tokens it sees, so its variance should fall as 1/m.",
            (_at_best(_variance_chart(arrays), best, "variance"),),
        ),
        Section(
            "similarity",
            "Similarity",
            "Do activations at nearby positions point the same way?",
            (
                _at_best(_cosine_chart(arrays), best, "similarity"),
                _adjacency_chart(points, best),
            ),
        ),
        Section(
            "by-position",
            "Error by position",
            "Where in the sequence does a probe go wrong? A code such as 1/m blurs late positions.",
            (_at_best(_error_chart(arrays, points), best, "any linear code"),),
        ),
    ]
    kept = (replace(s, charts=tuple(chart for chart in s.charts if chart.views)) for s in found)
    return [section for section in kept if section.charts]


_Best = Mapping[str, Mapping[str, tuple[str, int]]]


def _at_best(chart: Chart, best: _Best, hypothesis: str) -> Chart:
    """The chart, opened in each setting at the site where the hypothesis was read best."""
    found = {}
    for setting, (stream, depth) in best.get(hypothesis, {}).items():
        choices = [stream, str(depth)][: len(chart.controls)]
        if "|".join([setting, *choices]) in chart.views:
            found[setting] = choices
    return replace(chart, best=found)


def settings_of(data: ReportData) -> list[tuple[str, bool]]:
    """The (tokens, begin token) pairs that were measured, in the order they are offered.

    First those of the use verdicts, then text; without a begin token before with one. Each is a
    setting that the page can be switched to.
    """
    table = finished(data.measurements)[["tokens", "begin_token"]].drop_duplicates()
    pairs = {(str(tokens), bool(begin)) for tokens, begin in table.itertuples(index=False)}
    used = {(use.tokens, use.begin_token) for use in data.uses}
    return sorted(pairs, key=lambda pair: (pair not in used, pair[0] != "text", *pair))


Panels = list[dict[str, Any]]


def _shown(found: Mapping[str, Panels]) -> dict[str, Any]:
    """The views that have something to draw."""
    return {key: {"panels": panels} for key, panels in found.items() if panels}


# The hypothesis that each panel of a probe is about.
_ABOUT = {
    "linear": "any linear code",
    "two_layer": "two-layer code in the stream",
    "positional_vectors": "mean residual",
}


def _marked(panel: dict[str, Any], best: _Best, probe: str, setting: str, stream: str) -> Any:
    """The panel with the depth at which its hypothesis was read best, or with words for that site
    where it shows another one."""
    at = best.get(_ABOUT.get(probe, probe), {}).get(setting)
    if at is None:
        return panel
    return panel | ({"marked": at[1]} if at[0] == stream else {"elsewhere": lookup.words_at(*at)})


# Each signal at the site where it is read best.
_EACH = "best"


def _probe_chart(points: lookup.Points, best: _Best) -> Chart:
    share = ("positional_vectors", "share", "Mean residual", "share of the variance explained")
    views: dict[str, Panels] = {}
    for tokens, begin in dict.fromkeys(group[:2] for group in points.groups):
        setting = lookup.view_key(tokens, begin)
        streams = [group[2] for group in points.groups if group[:2] == (tokens, begin)]
        for metric, words in _MEASURES.items():
            unit = f"{words}, positions" if metric == "mae" else words
            signals = [*((probe, metric, title, unit) for probe, title in PROBES.items()), share]
            for shown in (*streams, _EACH) if len(streams) > 1 and best else streams:
                views[lookup.view_key(tokens, begin, metric, shown)] = [
                    panel
                    for signal in signals
                    for panel in _signal(points, best, setting, shown, (tokens, begin), signal)
                ]
    sites = points.site_control()
    if any(key.endswith(f"|{_EACH}") for key in views):
        sites = lookup.menu("site", "Site", {_EACH: "each at its best", **dict(sites["options"])})
    return Chart(
        id="probe-error",
        title="What each signal gives away, layer by layer",
        caption="Dashed: chance. Bars are 95% intervals. The upright line marks where the "
        f"signal is read best in the {next(iter(points.variants), '')} model, by the measure of "
        "its verdict.",
        reading="Each panel is one signal. Position can be read where errors lie below chance, and "
        "where the mean residual's share lies above it. Every point is a probe that was fitted on "
        "some sequences and scored on others. Dotted lines are the same procedure on shuffled "
        "positions: they should lie on chance.",
        x="after layer",
        controls=[lookup.menu("metric", "Measure", _MEASURES), sites],
        views=_shown(views),
        share_y=True,
        ticks=points.ticks(),
    )


def _signal(
    points: lookup.Points,
    best: _Best,
    setting: str,
    shown: str,
    where: tuple[str, bool],
    signal: tuple[str, ...],
) -> Panels:
    """The panel of one signal, of the stream that is shown or that where it is read best."""
    probe, metric, title, unit = signal
    stream = shown
    if shown == _EACH:
        at = best.get(_ABOUT.get(probe, probe), {}).get(setting)
        if at is None:
            return []
        stream, title = at[0], f"{title}, {lookup.stream_name(at[0])}"
    found = points.panels((*where, stream), (probe, metric, title, unit))
    own = {"own_axis": True} if metric == "share" else {}
    return [_marked(panel | own, best, probe, setting, stream) for panel in found]


def _adjacency_chart(points: lookup.Points, best: _Best) -> Chart:
    metrics = (
        *(("similarity", metric, name, "probability") for metric, name in ADJACENCY.items()),
        ("similarity", "seriation_tau", "Order recovered (seriation)", "|Kendall τ|"),
    )
    where = points.groups
    views = {lookup.view_key(*at): points.panels(at, *metrics) for at in where}
    chart = Chart(
        id="adjacency",
        title="Adjacency scores and recovered order",
        caption="A, B, C: how often the nearer of two positions has the larger cosine. There "
        "chance is one half.",
        reading="Three variants of the score: all pairs, neighbours only, both sides. Seriation "
        "orders the tokens from the matrix alone; its chance is the mean |τ| of random orders.",
        x="after layer",
        controls=[points.site_control()],
        views=_shown(views),
        ticks=points.ticks(),
        from_zero=False,
    )
    return _at_best(chart, best, "similarity")


def _views(
    found: lookup.Arrays, needed: str, draw: Callable[[str, lookup.ByName], dict[str, Any]]
) -> dict[str, Any]:
    """A panel for each variant that kept the array `needed`, view by view."""
    return _shown(
        {
            key: [draw(variant, arrays) for variant, arrays in variants.items() if needed in arrays]
            for key, variants in found.items()
        }
    )


def _positions(arrays: lookup.ByName, name: str) -> np.ndarray:
    """The positions that an array by position is of."""
    return arrays.get("positions", np.arange(len(arrays[name])))


def _thinned(arrays: lookup.ByName, name: str) -> tuple[np.ndarray, list[np.ndarray | None]]:
    """Some of the positions; there the array of that name, and its interval where it has one."""
    positions, bounded = _positions(arrays, name), (name, f"{name}_low", f"{name}_high")
    step = every(len(positions), MOST_POSITIONS)
    return positions[::step], [arrays[n][::step] if n in arrays else None for n in bounded]


def _variance_chart(found: lookup.SiteArrays) -> Chart:
    return Chart(
        id="variance-by-position",
        title="Variance of the components at each position",
        caption="A flat curve, the dashed line, carries no position. The thin line is a + b/m, "
        "fitted to other sequences: compare its shape, not its level.",
        reading="The curve is the mean over held-out sequences with its 95% band. The thin line is "
        "fitted to the mean curve of other sequences, whose level may differ. The dashed line is "
        "the curve's own mean: no trace of position would look like it. Each variant has its own "
        "scale.",
        x="tokens visible, m",
        controls=found.controls(),
        views=_views(found.arrays("variance"), "curve", _variance_panel),
        interval="band",
        log_toggle=True,
        fit="a + b/m",
        chance="its own mean",
    )


def _variance_panel(variant: str, arrays: lookup.ByName) -> dict[str, Any]:
    positions, (curve, *bounds) = _thinned(arrays, "curve")
    m, level = positions + 1, np.full(len(positions), np.nanmean(arrays["curve"]))
    series = [lookup.make_series("chance", variant, m, level, "its own mean")]
    if "law" in arrays:
        a, b = arrays["law"]
        series.append(lookup.make_series("fit", variant, m, a + b / m, f"{a:.3g} + {b:.3g}/m"))
    series.append(lookup.make_series("value", variant, m, curve, variant, *bounds))
    return lookup.make_panel(variant, variant, "variance of the components", series)


def _cosine_chart(found: lookup.SiteArrays) -> Chart:
    kept = found.arrays("similarity")
    sizes = [a["cosine"].size for v in kept.values() for a in v.values() if "cosine" in a]
    cells = sum(size // 2 for size in sizes)
    step = int(np.ceil(np.sqrt(max(1.0, cells / COSINE_CELLS))))
    thinned = "" if step == 1 else f" Every {step}th position is shown."
    return Chart(
        id="cosine",
        title="Mean cosine between the activations at two positions",
        caption="The brighter beside the diagonal, the more alike neighbours are." + thinned,
        reading="Means over held-out sequences, on one colour scale for all variants. The "
        "diagonal, always 1, is left out so that the rest can be seen.",
        x="position",
        kind="heat",
        controls=found.controls(),
        views=_views(kept, "cosine", partial(_cosine_panel, step=step)),
    )


def _cosine_panel(variant: str, arrays: lookup.ByName, step: int) -> dict[str, Any]:
    cosine = np.asarray(arrays["cosine"], dtype=np.float64)[::step, ::step]
    below = cosine[np.tril_indices(len(cosine), k=-1)]
    matrix = {
        "positions": [int(p) for p in _positions(arrays, "cosine")[::step]],
        "cells": packed(below, COSINE_SCALE),
        "low": number(np.min(below, initial=np.inf)),
        "high": number(np.max(below, initial=-np.inf)),
    }
    return lookup.make_panel(variant, variant, "", []) | {"matrix": matrix}


def _error_chart(found: lookup.SiteArrays, points: lookup.Points) -> Chart:
    views: dict[str, Panels] = defaultdict(list)
    for probe in ("linear", "two_layer"):
        for key, variants in found.arrays(probe).items():
            series: list[dict[str, Any]] = []
            for variant, arrays in variants.items():
                if "error" not in arrays:
                    continue
                at, (error, *bounds) = _thinned(arrays, "error")
                chance = points.chance.get((key, probe, variant))
                if chance is not None and all(s["kind"] != "chance" for s in series):
                    level = [chance] * len(at)
                    series.append(lookup.make_series("chance", None, at, level, "chance (mean)"))
                series.append(lookup.make_series("value", variant, at, error, variant, *bounds))
            if series:
                panel = lookup.make_panel(
                    PROBES[probe], None, "mean absolute error, positions", series
                )
                views[key].append(panel)
    return Chart(
        id="error-by-position",
        title="Error at each position",
        caption="The dashed line is the chance level of the error averaged over positions.",
        reading="The curve is the mean over held-out sequences with its 95% band. A constant "
        "guess, too, lies below the dashed line in the middle of the sequence.",
        x="position",
        controls=found.controls(),
        views=_shown(views),
        interval="band",
        share_y=True,
    )
