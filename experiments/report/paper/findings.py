"""Figures of claims, trainings and methods, in a paper's style."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawn

from experiments.report.findings import marks_of
from experiments.report.paper.drawing import (
    COLOURS,
    COLUMN,
    LOOKS,
    PAGE,
    ROW,
    Drawing,
    grid,
    legend,
    panel,
    plain,
    size,
)
from experiments.results.claims import Outcome
from experiments.results.findings import Figure
from experiments.results.intervals import with_interval


def of_figure(figure: Figure) -> Drawing:
    """A figure of claims, trainings or methods."""
    panels = figure.panels
    if figure.heat_about is not None:
        width = PAGE if len(panels) > 1 else COLUMN
        rows = max((len(shown.series) for shown in panels), default=1)
        inches = (width, max(ROW, 0.8 + 0.2 * rows))
        return Drawing(figure.id, lambda drawn: _heat_maps(drawn, figure), inches)
    return Drawing(figure.id, lambda drawn: _curves(drawn, figure), size(len(panels)))


def of_claims(outcomes: Sequence[Outcome]) -> Drawing:
    """Each claim's number and interval on a scale of its own, in the bounds of its test."""
    inches = (PAGE, 0.7 + 0.26 * len(outcomes))
    return Drawing("claims", lambda drawn: _claims(drawn, outcomes), inches)


def _curves(drawn: Drawn, figure: Figure) -> None:
    colours: dict[str, str] = {}
    for axes, shown in zip(grid(drawn, len(figure.panels)), figure.panels, strict=True):
        panel(axes, shown.title, figure.y, shown.series, colours)
        axes.set_xlabel(figure.x)
        if figure.ticks:
            axes.set_xticks(range(len(figure.ticks)), figure.ticks, rotation=45, ha="right")
        if "x" in figure.log:
            axes.set_xscale("log")
            plain(axes.xaxis)
        if "y" in figure.log:
            axes.set_yscale("log")
            plain(axes.yaxis)
        if figure.shaded:
            axes.axvspan(*figure.shaded, color="0.9", zorder=0)
    legend(drawn)


def _heat_maps(drawn: Drawn, figure: Figure) -> None:
    every = np.concatenate([line.y for shown in figure.panels for line in shown.series])
    spread = max(float(np.nanmax(np.abs(every - (figure.heat_about or 0.0)))), 1e-9)
    middle = figure.heat_about or 0.0
    axes = grid(drawn, len(figure.panels))
    for axis, shown in zip(axes, figure.panels, strict=True):
        cells = np.stack([line.y for line in shown.series])
        image = axis.imshow(
            cells, cmap="PuOr_r", vmin=middle - spread, vmax=middle + spread, aspect="auto"
        )
        axis.set_title(shown.title, loc="left")
        axis.set_xticks(range(len(figure.ticks)), figure.ticks, rotation=45, ha="right")
        axis.set_yticks(range(len(cells)), [line.name for line in shown.series])
    drawn.colorbar(image, ax=axes, label=figure.y)


def _claims(drawn: Drawn, outcomes: Sequence[Outcome]) -> None:
    axes = drawn.subplots()
    rows = range(len(outcomes))
    for at, outcome in enumerate(outcomes):
        if outcome.found.n:
            _claim(axes, marks_of(outcome), at)
    axes.set_yticks(rows, [outcome.claim.id for outcome in outcomes])
    told = axes.secondary_yaxis("right")
    told.set_yticks(rows, [_told(outcome) for outcome in outcomes])
    told.tick_params(length=0)
    axes.set_xlim(0, 100)
    axes.set_ylim(len(outcomes) - 0.4, -0.6)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    told.spines["right"].set_visible(False)
    legend(drawn)


def _claim(axes: Axes, marks: Mapping[str, float], at: int) -> None:
    low, high = marks.get("low", 0), marks.get("high", 100)
    axes.barh(at, high - low, 0.8, low, color="0.9", zorder=0, label="the bounds of the test")
    if "expected" in marks:
        axes.vlines(marks["expected"], at - 0.4, at + 0.4, **LOOKS["chance"], label="expected")
    ends = marks["ci_low"], marks["ci_high"]
    axes.hlines(at, *ends, color=COLOURS[0], linewidth=3, alpha=0.35, label="95% interval")
    axes.plot([marks["value"]], [at], "o", color=COLOURS[0], ms=4, label="measured")


def _told(outcome: Outcome) -> str:
    found = outcome.found
    if not found.n:
        return outcome.verdict
    if found.ci_low == found.ci_high:
        return f"{found.value:.3g}, {outcome.verdict}"
    return f"{with_interval(found.value, found.ci_low, found.ci_high)}, {outcome.verdict}"
