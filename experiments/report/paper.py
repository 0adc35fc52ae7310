"""Figures for a paper: the page's charts drawn by matplotlib, saved as SVG, PNG or PDF."""

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as Drawn
from matplotlib.patches import Rectangle

from experiments.report import figures, lookup, moves, uses
from experiments.report.data import ReportData
from experiments.report.figures import COSINE_SCALE, Chart
from experiments.report.findings import marks_of
from experiments.results.answer import Answer, Reading
from experiments.results.claims import Outcome
from experiments.results.findings import Figure, Kind, Panel, Series
from experiments.results.position_use import Interval
from experiments.results.readability import WORTH_NAMING
from nope_interp.errors import unknown_name
from nope_interp.files import write_atomically

SUFFIXES = (".svg", ".png", ".pdf")

# One text column of most journals, two of them, and the height of a row of panels; inches.
_COLUMN, _PAGE, _ROW = 3.35, 6.75, 2.1
# Okabe and Ito 2008: told apart by colour-blind readers.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_STYLE: Any = {
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 8,
    "font.family": "sans-serif",
    "font.size": 8,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "pdf.fonttype": 42,  # letters stay letters
    "savefig.dpi": 300,
    "svg.fonttype": "none",
    "svg.hashsalt": "nope-interp",  # the same figure is the same file
    "text.parse_math": False,  # a name with dollars is a name
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
}
_LOOKS: Mapping[str, Mapping[str, Any]] = {
    "chance": {"color": "0.45", "linestyle": "--", "linewidth": 0.9},
    "reference": {"color": "0.55", "linestyle": ":", "linewidth": 1},
    "predicted": {"color": "0.1", "linewidth": 0.8},
}
# What the page calls the kinds of its lines.
_KINDS: Mapping[str, Kind] = {
    "value": "measured",
    "control": "reference",
    "chance": "chance",
    "fit": "predicted",
}


@dataclass(frozen=True)
class Drawing:
    """A figure that can be saved.

    Attributes:
        name: what a result calls it.
        draw: draws it on an empty figure of matplotlib.
        size: width and height in inches.
    """

    name: str
    draw: Callable[[Drawn], None]
    size: tuple[float, float] = (_PAGE, _ROW)

    def save(self, path: Path | str) -> Path:
        """Draw the figure and write it.

        Args:
            path: the file; its ending says what kind: .svg, .png or .pdf.

        Returns:
            The file.

        Raises:
            UserError: for another ending, and where the file cannot be written.
        """
        target = Path(path)
        kind = target.suffix.lower()
        if kind not in SUFFIXES:
            raise unknown_name("kind of picture", kind or target.name, SUFFIXES)
        dated: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        with matplotlib.rc_context(_STYLE):
            drawn = Drawn(figsize=self.size, layout="constrained")
            self.draw(drawn)

            def write(part: Path) -> None:
                drawn.savefig(part, format=kind[1:], metadata=dated.get(kind))

            return write_atomically(target, write)


def of_figure(figure: Figure) -> Drawing:
    """A figure of claims, trainings or methods."""
    panels = figure.panels
    if figure.heat_about is not None:
        width = _PAGE if len(panels) > 1 else _COLUMN
        rows = max((len(panel.series) for panel in panels), default=1)
        size = (width, max(_ROW, 0.8 + 0.2 * rows))
        return Drawing(figure.id, lambda drawn: _heat_maps(drawn, figure), size)
    return Drawing(figure.id, lambda drawn: _curves(drawn, figure), _size(len(panels)))


def of_comparison(data: ReportData) -> dict[str, Drawing]:
    """What a comparison can be drawn as, by name: the verdict, and each chart at its best site."""
    found: dict[str, Drawing] = {}
    if data.answer.codes:
        height = 0.9 + 0.32 * len(data.answer.codes)
        found["verdict"] = Drawing(
            "verdict", lambda drawn: _verdict(drawn, data.answer), (_PAGE, height)
        )
    settings = figures.settings_of(data)
    charts = [chart for section in figures.sections(data) for chart in section.charts]
    charts += [moves.dose_chart(data), uses.where_chart(data.uses)]
    return found | {chart.id: _of_chart(chart, settings) for chart in charts if chart.views}


def of_claims(outcomes: Sequence[Outcome]) -> Drawing:
    """Each claim's number and interval on a scale of its own, in the bounds of its test."""
    size = (_PAGE, 0.7 + 0.26 * len(outcomes))
    return Drawing("claims", lambda drawn: _claims(drawn, outcomes), size)


def of_labels(
    grids: Mapping[str, Sequence[Sequence[str | None]]], labels: Sequence[str]
) -> Drawing:
    """The labels of all heads, [layer][head] under each condition."""
    layers = max((len(grid) for grid in grids.values()), default=1)
    size = (_PAGE if len(grids) > 1 else _COLUMN, max(_ROW, 1.1 + 0.16 * layers))
    return Drawing("labels", lambda drawn: _labels(drawn, grids, labels), size)


def _size(n_panels: int) -> tuple[float, float]:
    if n_panels == 1:
        return _COLUMN, _ROW + 0.5
    return _PAGE, _ROW * -(-n_panels // 3) + 0.4


def _grid(drawn: Drawn, n: int) -> list[Axes]:
    columns = min(n, 3)
    axes = drawn.subplots(-(-n // columns), columns, squeeze=False).ravel()
    for unused in axes[n:]:
        unused.set_axis_off()
    return [*axes[:n]]


def _curves(drawn: Drawn, figure: Figure) -> None:
    for axes, panel in zip(_grid(drawn, len(figure.panels)), figure.panels, strict=True):
        _panel(axes, panel.title, figure.y, panel.series)
        axes.set_xlabel(figure.x)
        if figure.ticks:
            axes.set_xticks(range(len(figure.ticks)), figure.ticks, rotation=45, ha="right")
        if "x" in figure.log:
            axes.set_xscale("log")
            _plain(axes.xaxis)
        if "y" in figure.log:
            axes.set_yscale("log")
            _plain(axes.yaxis)
        if figure.shaded:
            axes.axvspan(*figure.shaded, color="0.9", zorder=0)
    _legend(drawn)


def _panel(axes: Axes, title: str, unit: str, lines: Iterable[Series]) -> None:
    colours = iter(_COLOURS * 3)
    for line in lines:
        look = dict(_LOOKS.get(line.kind) or {"color": next(colours), "marker": ".", "ms": 3})
        axes.plot(line.x, line.y, label=line.name, **look)
        if line.low is not None and line.high is not None and line.kind not in _LOOKS:
            axes.fill_between(line.x, line.low, line.high, color=look["color"], alpha=0.2, lw=0)
    axes.set_title(title, loc="left")
    axes.set_ylabel(unit)


def _legend(drawn: Drawn) -> None:
    """One for all panels: what is drawn alike in each stands there once."""
    found: dict[Any, Any] = {}
    for axes in drawn.axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    if found:
        _below(drawn, [*found.values()], [*found])


def _below(drawn: Drawn, handles: Sequence[Any], names: Sequence[str]) -> None:
    """A legend below the panels, in as many columns as the width holds."""
    for columns in range(4, 0, -1):
        legend = drawn.legend(handles, names, loc="outside lower center", ncols=columns)
        if columns == 1 or legend.get_window_extent().width <= drawn.bbox.width:
            return
        legend.remove()


def _plain(axis: Axis) -> None:
    """Numbers as themselves on a logarithmic axis: names are never read as mathematics here."""
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")


def _heat_maps(drawn: Drawn, figure: Figure) -> None:
    every = np.concatenate([line.y for panel in figure.panels for line in panel.series])
    spread = max(float(np.nanmax(np.abs(every - (figure.heat_about or 0.0)))), 1e-9)
    middle = figure.heat_about or 0.0
    axes = _grid(drawn, len(figure.panels))
    for axis, panel in zip(axes, figure.panels, strict=True):
        cells = np.stack([line.y for line in panel.series])
        image = axis.imshow(
            cells, cmap="PuOr_r", vmin=middle - spread, vmax=middle + spread, aspect="auto"
        )
        axis.set_title(panel.title, loc="left")
        axis.set_xticks(range(len(figure.ticks)), figure.ticks, rotation=45, ha="right")
        axis.set_yticks(range(len(cells)), [line.name for line in panel.series])
    drawn.colorbar(image, ax=axes, label=figure.y)


def _of_chart(chart: Chart, settings: Sequence[tuple[str, bool]]) -> Drawing:
    """A chart of the page as it opens there."""
    setting = lookup.view_key(*settings[0]) if settings else ""
    choices = chart.best.get(setting) or [control["value"] for control in chart.controls]
    key = "|".join([setting, *choices])
    view = chart.views[key if key in chart.views else next(iter(chart.views))]
    panels = view["panels"]
    if chart.kind == "heat":
        size = _size(len(panels))
        return Drawing(chart.id, lambda drawn: _matrices(drawn, chart, panels), size)

    def draw(drawn: Drawn) -> None:
        grid = _grid(drawn, len(panels))
        for axes, panel in zip(grid, panels, strict=True):
            _panel(axes, panel["title"], panel["y"], map(_line, panel["series"]))
            axes.set_xlabel(chart.x)
            if chart.ticks:
                axes.set_xticks([int(at) for at in chart.ticks], list(chart.ticks.values()))
        if chart.share_y:
            _one_scale([a for a, p in zip(grid, panels, strict=True) if not p.get("own_axis")])
        _legend(drawn)

    return Drawing(chart.id, draw, _size(len(panels)))


def _one_scale(grid: Sequence[Axes]) -> None:
    """What is in one unit has one scale, so that heights can be compared."""
    ends = [axes.get_ylim() for axes in grid]
    for axes in grid:
        axes.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))


def _line(series: Mapping[str, Any]) -> Series:
    numbers = {
        name: np.array(series[name], dtype=float) if series.get(name) is not None else None
        for name in ("x", "y", "low", "high")
    }
    return Series(series["name"], _KINDS[series["kind"]], **numbers)  # type: ignore[arg-type]


def _matrices(drawn: Drawn, chart: Chart, panels: Sequence[Mapping[str, Any]]) -> None:
    low = min(panel["matrix"]["low"] for panel in panels)
    high = max(panel["matrix"]["high"] for panel in panels)
    axes = _grid(drawn, len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        positions = panel["matrix"]["positions"]
        cells = np.full((len(positions),) * 2, np.nan)
        packed = np.frombuffer(base64.b64decode(panel["matrix"]["cells"]), "<i2")
        values = np.where(packed == -32768, np.nan, packed / COSINE_SCALE)
        rows, columns = np.tril_indices(len(positions), k=-1)
        cells[rows, columns] = cells[columns, rows] = values
        ends = (positions[0] - 0.5, positions[-1] + 0.5)
        image = axis.imshow(
            cells, cmap="cividis", vmin=low, vmax=high, extent=(*ends, *reversed(ends))
        )
        axis.set_title(panel["title"], loc="left")
        axis.set_xlabel(chart.x)
    drawn.colorbar(image, ax=axes, label="cosine")


def _verdict(drawn: Drawn, answer: Answer) -> None:
    judged = bool(answer.share_of)
    axes = drawn.subplots(1, 2 if judged else 1, sharey=True, squeeze=False).ravel()
    names = [f"{code.code}\n{code.word}" if code.word else code.code for code in answer.codes]
    read = axes[0]
    for at, code in enumerate(answer.codes):
        _mark(read, code.before, at - 0.15, _COLOURS[1], "untrained")
        _mark(read, code.after, at + 0.15, _COLOURS[0], "this model")
        if judged:
            _bar(axes[1], code.share, at - 0.18, _COLOURS[0], answer.share_of)
            _bar(axes[1], code.restored, at + 0.18, _COLOURS[2], answer.restored_of)
            if code.control is not None:
                axes[1].vlines(100 * code.control, at - 0.36, at, color=_COLOURS[3])
    read.set_yticks(range(len(names)), names)
    read.invert_yaxis()
    read.set_xlabel("position read, % (0 is chance, 100 exact)")
    if judged:
        axes[1].set_xlabel("use, %")
    for axis in axes:
        axis.set_xlim(-3, 103)
        least = 100 * WORTH_NAMING
        axis.axvline(least, label=f"{least:.0f}%, the least that counts", **_LOOKS["reference"])
    _legend(drawn)


def _mark(axes: Axes, reading: Reading | None, at: float, colour: str, name: str) -> None:
    if reading is not None:
        value, low, high = (100 * number for number in reading.gain)
        axes.hlines(at, low, high, color=colour, linewidth=3, alpha=0.35)
        axes.plot([value], [at], "o", color=colour, ms=4, label=name)


def _bar(axes: Axes, share: Interval | None, at: float, colour: str, name: str) -> None:
    if share is not None:
        value, low, high = (100 * number for number in share)
        axes.barh(at, value, height=0.34, color=colour, alpha=0.75, label=name)
        axes.hlines(at, low, high, color="black", linewidth=1)


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
    _legend(drawn)


def _claim(axes: Axes, marks: Mapping[str, float], at: int) -> None:
    low, high = marks.get("low", 0), marks.get("high", 100)
    axes.barh(at, high - low, 0.8, low, color="0.9", zorder=0, label="the bounds of the test")
    if "expected" in marks:
        axes.vlines(marks["expected"], at - 0.4, at + 0.4, **_LOOKS["chance"], label="expected")
    ends = marks["ci_low"], marks["ci_high"]
    axes.hlines(at, *ends, color=_COLOURS[0], linewidth=3, alpha=0.35, label="95% interval")
    axes.plot([marks["value"]], [at], "o", color=_COLOURS[0], ms=4, label="measured")


def _told(outcome: Outcome) -> str:
    found = outcome.found
    if not found.n:
        return outcome.verdict
    exact = found.ci_low == found.ci_high
    interval = "" if exact else f" [{found.ci_low:.3g}, {found.ci_high:.3g}]"
    return f"{found.value:.3g}{interval}, {outcome.verdict}"


def _labels(
    drawn: Drawn, grids: Mapping[str, Sequence[Sequence[str | None]]], labels: Sequence[str]
) -> None:
    colours = dict(zip(labels, _COLOURS * 3, strict=False)) | {"none": "0.88"}
    axes = drawn.subplots(1, len(grids), squeeze=False).ravel()
    for axis, (condition, grid) in zip(axes, grids.items(), strict=True):
        for layer, row in enumerate(grid):
            for head, label in enumerate(row):
                colour = colours.get(label or "none", "0.88")
                axis.add_patch(Rectangle((head - 0.46, layer - 0.46), 0.92, 0.92, color=colour))
        axis.set_xlim(-0.6, max(map(len, grid), default=1) - 0.4)
        axis.set_ylim(len(grid) - 0.4, -0.6)
        axis.set_title(condition, loc="left")
        axis.set_xlabel("head")
        axis.set_ylabel("layer")
    seen = {label for grid in grids.values() for row in grid for label in row if label}
    keys = [Rectangle((0, 0), 1, 1, color=colours[label]) for label in labels if label in seen]
    names = [label for label in labels if label in seen]
    _below(drawn, keys, names)


def of_settling(lines: Sequence[Mapping[str, Any]]) -> Drawing:
    """How the labels of heads settle, as `experiments.results.heads.settling` gives it."""
    n, share, chance = (
        [np.array(line[name], dtype=float) for line in lines] for name in ("n", "share", "chance")
    )
    names = [str(line["condition"]) for line in lines]
    curves = [Series(names[i], "measured", n[i], share[i]) for i in range(len(lines))]
    curves += [Series("chance", "chance", *first) for first in zip(n[:1], chance[:1], strict=True)]
    panels = (Panel("", tuple(curves)),)
    y = "heads with their last label"
    return of_figure(Figure("settling", "", "", "sequences of text", y, panels))
