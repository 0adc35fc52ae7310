"""Pages of figures: those of `nope-interp emergence` and `nope-interp reproduce`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from experiments.report.encode import number, numbers
from experiments.report.shell import fill, measurements_table, page_script, plotly
from experiments.results.findings import Figure, Series
from experiments.results.measured import Measured


@dataclass(frozen=True)
class PageData:
    """What `fill` reads of every page."""

    title: str
    headline: str
    measurements: pd.DataFrame = field(repr=False)
    info: dict[str, Any] = field(repr=False)


def render_emergence(
    data: PageData, claims: Mapping[str, Measured], figures: Sequence[Figure]
) -> str:
    """The order of the codes, and curves over steps, as one HTML page.

    Args:
        data: what every page shows.
        claims: differences and changes, by what they are of.
        figures: what was measured, step by step.

    Returns:
        The page: scripts, styles and numbers inside, no request made.
    """
    return render_figures("emergence.html", data, figures, claims=claims)


def render_figures(template: str, data: PageData, figures: Sequence[Figure], **words: Any) -> str:
    """The page that `template` makes of figures and the `words` that it asks for."""
    page_data = {
        "figures": [_figure(figure) for figure in figures],
        "table": measurements_table(data.measurements),
    }
    scripts = [plotly(), page_script("findings.js")]
    return fill(template, scripts, page_data, data, figures=figures, **words)


def _figure(figure: Figure) -> dict[str, Any]:
    """A figure as findings.js draws it."""
    return {
        "id": figure.id,
        "x": figure.x,
        "y": figure.y,
        "log": figure.log,
        "ticks": list(figure.ticks),
        "heat_about": number(figure.heat_about),
        "shaded": figure.shaded,
        "panels": [
            {"title": panel.title, "series": [_series(series) for series in panel.series]}
            for panel in figure.panels
        ],
    }


def _series(series: Series) -> dict[str, Any]:
    return {
        "name": series.name,
        "kind": series.kind,
        "x": numbers(series.x),
        "y": numbers(series.y),
        "low": None if series.low is None else numbers(series.low),
        "high": None if series.high is None else numbers(series.high),
    }
