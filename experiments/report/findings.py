"""Pages of figures: those of every experiment but `compare` and `heads`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from experiments.report.encode import number, numbers
from experiments.report.shell import COLUMN_TITLES, PLOTLY, fill, measurements_table, page_script
from experiments.results.claims import TOO_LITTLE, Claim, Outcome, Paper
from experiments.results.findings import Figure, Series


@dataclass(frozen=True)
class PageData:
    """What `fill` reads of every page; `titles` of columns are those that mean something else."""

    title: str
    headline: str
    measurements: pd.DataFrame = field(repr=False)
    info: dict[str, Any] = field(repr=False)
    titles: Mapping[str, str] = field(default_factory=dict)


def render_figures(
    template: str,
    data: PageData,
    figures: Sequence[Figure],
    sentences: Sequence[str] = (),
    first: Mapping[str, Any] | None = None,
    **words: Any,
) -> str:
    """The page that a template makes of figures and sentences.

    Args:
        template: its file name.
        data: what every page tells.
        figures: in the order of the page.
        sentences: what the run found, a list of sentences.
        first: the numbers that are saved of a first figure that is none of these; None without one.
        words: what else the template asks for.

    Returns:
        The page as valid Unicode.
    """
    words |= {"sentences": sentences}
    page_data = {
        "figures": [_figure(figure) for figure in figures],
        "first": first,
        "table": measurements_table(data.measurements, {**COLUMN_TITLES, **data.titles}),
    }
    script = page_script("findings.js")
    return fill(template, script, [PLOTLY], page_data, data, figures=figures, **words)


def _figure(figure: Figure) -> dict[str, Any]:
    """A figure as findings.js draws it."""
    return {
        **{name: getattr(figure, name) for name in ("id", "x", "y", "log", "ticks")},
        "heat_about": number(figure.heat_about),
        "shaded": figure.shaded,
        "panels": [
            {"title": panel.title, "series": [_series(series) for series in panel.series]}
            for panel in figure.panels
        ],
    }


def _series(series: Series) -> dict[str, Any]:
    curves = {name: getattr(series, name) for name in ("x", "y", "low", "high")}
    return {"name": series.name, "kind": series.kind} | {
        name: None if values is None else numbers(values) for name, values in curves.items()
    }


_MEASURED = ("value", "ci_low", "ci_high")
_HEADER = ["claim", "says", "verdict", *_MEASURED, "expected", "test"]
_MARGIN = 6.0  # percent of a scale that is left free at either end


def render_reproduction(
    data: PageData,
    paper: Paper,
    outcomes: Sequence[Outcome],
    figures: Sequence[Figure],
    sentences: Sequence[str],
    kept: str,
) -> str:
    """The whole report as one HTML page: scripts, styles and numbers inside, no request made.

    Every string is shown as text whatever it holds, and a content security policy names the page's
    own scripts by their hashes, so that nothing else can run.

    Args:
        data: what every page shows.
        paper: what was reproduced.
        outcomes: one for each of its claims.
        figures: the curves behind them.
        sentences: what is said beside the headline.
        kept: what another run measured, a sentence or "".

    Returns:
        The page.
    """
    drawn = [_outcome(outcome, figures) for outcome in outcomes]
    words = {"paper": paper, "outcomes": drawn, "kept": kept}
    first = {"header": _HEADER, "rows": [_saved(row) for row in drawn]}
    return render_figures("reproduce.html", data, figures, sentences, first, **words)


def _saved(row: Mapping[str, Any]) -> list[Any]:
    claim: Claim = row["claim"]
    numbers = [row[name] for name in (*_MEASURED, "expected")]
    return [claim.id, claim.says, row["verdict"], *numbers, claim.test]


def _outcome(outcome: Outcome, figures: Sequence[Figure]) -> dict[str, Any]:
    claim = outcome.claim
    return {
        "claim": claim,
        "verdict": outcome.verdict,
        **{name: number(getattr(outcome.found, name)) for name in _MEASURED},
        "expected": number(claim.expected),
        "difference": number(outcome.difference),
        "sees": number(outcome.visible),
        "matters": number(claim.effect),
        "too_small": TOO_LITTLE if outcome.too_small else "",
        "size_needed": outcome.size_needed,
        "by_bounds": outcome.by_bounds,
        "marks": marks_of(outcome),
        "figures": [figure for figure in figures if claim.id in figure.claims],
    }


def marks_of(outcome: Outcome) -> dict[str, float]:
    """Percent of a row's own scale: the number, its interval, what is expected, and the bounds;
    of these those that are finite."""
    claim = outcome.claim
    at = {name: getattr(outcome.found, name) for name in _MEASURED}
    at |= {"expected": claim.expected, "low": claim.low, "high": claim.high}
    found = {name: value for name, value in at.items() if np.isfinite(value)}
    least, most = min(found.values()), max(found.values())
    scale = (100 - 2 * _MARGIN) / (most - least) if most > least else 0.0
    return {name: round(_MARGIN + (value - least) * scale, 2) for name, value in found.items()}
