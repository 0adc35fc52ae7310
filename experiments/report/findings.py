"""Figures of findings as plain data, and what the pages that draw them are filled with."""

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from experiments.report.encode import number, numbers
from experiments.results.findings import Figure, Series


@dataclass(frozen=True)
class PageData:
    """What `fill` reads of every page."""

    title: str
    headline: str
    measurements: pd.DataFrame = field(repr=False)
    info: dict[str, Any] = field(repr=False)


def figure_data(figure: Figure) -> dict[str, Any]:
    """A figure as reproduce.js draws it."""
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
