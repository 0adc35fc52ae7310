"""The page's charts in a paper's style: lines, and heat maps of cosines."""

import base64
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawn

from experiments.report.figures import COSINE_SCALE, Chart
from experiments.report.paper.drawing import (
    COLOURS,
    Drawing,
    grid,
    legend,
    panel,
    size,
)
from experiments.results.findings import Kind, Series

# What the page calls the kinds of its lines.
_KINDS: Mapping[str, Kind] = {
    "value": "measured",
    "control": "reference",
    "chance": "chance",
    "fit": "predicted",
}
# One layer of one sequence: drawn from faint to full.
_DEPTH = "depth"
# Letters that stand below one of three panels.
_LONGEST_LABEL = 32


def of_chart(chart: Chart, setting: str) -> Drawing:
    """A chart of the page as it opens there.

    Args:
        chart: with at least one view.
        setting: the key of the setting that the page opens in.

    Returns:
        Its panels at the best site of that setting.
    """
    choices = chart.best.get(setting) or [control["value"] for control in chart.controls]
    key = "|".join([setting, *choices])
    panels = chart.views[key if key in chart.views else next(iter(chart.views))]["panels"]
    draw = _matrices if chart.kind == "heat" else _lines
    return Drawing(chart.id, lambda drawn: draw(drawn, chart, panels), size(len(panels)))


def _lines(drawn: Drawn, chart: Chart, panels: Sequence[Mapping[str, Any]]) -> None:
    axes = grid(drawn, len(panels))
    colours: dict[str, str] = {}
    for nth, (axis, shown) in enumerate(zip(axes, panels, strict=True)):
        depths = [series for series in shown["series"] if series["kind"] == _DEPTH]
        others = [_told(series, chart) for series in shown["series"] if series["kind"] != _DEPTH]
        for series in depths:
            alpha = 0.25 + 0.75 * series["shade"]
            y = np.array(series["y"], dtype=float)
            axis.plot(series["x"], y, color=COLOURS[nth % len(COLOURS)], alpha=alpha, lw=0.9)
        panel(axis, shown["title"], shown["y"], others, colours)
        axis.set_xlabel(fill(chart.x, _LONGEST_LABEL))
        if chart.ticks:
            axis.set_xticks([float(at) for at in chart.ticks], list(chart.ticks.values()))
    if chart.share_y:
        _one_scale([a for a, p in zip(axes, panels, strict=True) if not p.get("own_axis")])
    legend(drawn)


def _one_scale(every: Sequence[Axes]) -> None:
    """What is in one unit has one scale, so that heights can be compared."""
    ends = [axes.get_ylim() for axes in every]
    for axes in every:
        axes.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))


def _told(series: Mapping[str, Any], chart: Chart) -> Series:
    """A line with its interval; controls and fits of all variants have one name."""
    numbers = {
        name: np.array(series[name], dtype=float) if series.get(name) is not None else None
        for name in ("x", "y", "low", "high")
    }
    name = {"control": chart.control, "fit": chart.fit}.get(series["kind"]) or series["name"]
    return Series(name, _KINDS[series["kind"]], **numbers)  # type: ignore[arg-type]


def _matrices(drawn: Drawn, chart: Chart, panels: Sequence[Mapping[str, Any]]) -> None:
    low = min(shown["matrix"]["low"] for shown in panels)
    high = max(shown["matrix"]["high"] for shown in panels)
    axes = grid(drawn, len(panels))
    for axis, shown in zip(axes, panels, strict=True):
        positions = shown["matrix"]["positions"]
        cells = np.full((len(positions),) * 2, np.nan)
        packed = np.frombuffer(base64.b64decode(shown["matrix"]["cells"]), "<i2")
        values = np.where(packed == -32768, np.nan, packed / COSINE_SCALE)
        rows, columns = np.tril_indices(len(positions), k=-1)
        cells[rows, columns] = cells[columns, rows] = values
        ends = (positions[0] - 0.5, positions[-1] + 0.5)
        image = axis.imshow(
            cells, cmap="cividis", vmin=low, vmax=high, extent=(*ends, *reversed(ends))
        )
        axis.set_title(shown["title"], loc="left")
        axis.set_xlabel(chart.x)
    drawn.colorbar(image, ax=axes, label="cosine")
