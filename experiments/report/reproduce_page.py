"""The page of one run of `nope-interp reproduce`: claims, measurements and their difference."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.report.encode import number
from experiments.report.findings import PageData, render_figures
from experiments.results.claims import Outcome, Paper
from experiments.results.findings import Figure

_MARGIN = 6.0  # percent of a scale that is left free at either end


def render_reproduction(
    data: PageData, paper: Paper, outcomes: Sequence[Outcome], figures: Sequence[Figure]
) -> str:
    """The whole report as one HTML page: scripts, styles and numbers inside, no request made.

    Every string is shown as text whatever it holds, and a content security policy names the page's
    own scripts by their hashes, so that nothing else can run.

    Args:
        data: what every page shows.
        paper: what was reproduced.
        outcomes: one for each of its claims.
        figures: the curves behind them.

    Returns:
        The page.
    """
    drawn = [_outcome(outcome, figures) for outcome in outcomes]
    return render_figures("reproduce.html", data, figures, paper=paper, outcomes=drawn)


def _outcome(outcome: Outcome, figures: Sequence[Figure]) -> dict[str, Any]:
    claim = outcome.claim
    return {
        "claim": claim,
        "verdict": outcome.verdict,
        "value": number(outcome.found.value),
        "ci_low": number(outcome.found.ci_low),
        "ci_high": number(outcome.found.ci_high),
        "expected": number(claim.expected),
        "difference": number(outcome.difference),
        "marks": _marks(outcome),
        "figures": [figure for figure in figures if claim.id in figure.claims],
    }


def _marks(outcome: Outcome) -> dict[str, float]:
    """Percent of a row's own scale: the number, its interval, what is expected, and the bounds."""
    claim = outcome.claim
    at = {
        "value": outcome.found.value,
        "ci_low": outcome.found.ci_low,
        "ci_high": outcome.found.ci_high,
        "expected": claim.expected,
        "low": claim.low,
        "high": claim.high,
    }
    found = {name: value for name, value in at.items() if np.isfinite(value)}
    least, most = min(found.values()), max(found.values())
    scale = (100 - 2 * _MARGIN) / (most - least) if most > least else 0.0
    return {name: round(_MARGIN + (value - least) * scale, 2) for name, value in found.items()}
