"""The figures of a heads page, in a paper's style: of all heads, and of one of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from einops import rearrange
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawn
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from experiments.report.finders import finder_groups
from experiments.report.heads_page import (
    CHANCE,
    MOST_TOKENS,
    HeadsReportData,
    highest_first,
    labels_of,
)
from experiments.report.paper.drawing import (
    COLOURS,
    COLUMN,
    PAGE,
    ROW,
    Drawing,
    attention_maps,
    below,
    grid,
    legend,
    size_of_maps,
    visible,
)
from experiments.report.paper.findings import of_figure
from experiments.results.findings import Figure, Panel, Series
from experiments.results.found_by import SHARES
from nope_interp.errors import unknown_name
from probes.head_rules import NONE

# The labels of a layer's heads, by layer.
Grid = Mapping[int, Sequence[str | None]]

_ENDS = ("from", "to")
# More edges than this hide one another.
_MOST_EDGES = 60
# Inches of a head's bar.
_BAR = 0.17
_FREQUENCY = "rank of the frequency, highest first"


def of_heads(data: HeadsReportData, head: str | None = None) -> dict[str, Drawing]:
    """The page's figures by name, those of one head included.

    Args:
        data: of the page.
        head: the head that some figures are of, such as L5H0; None takes that of the surest label,
            which the page opens.

    Returns:
        Those that the run has numbers for.

    Raises:
        UserError: the model has no such head.
    """
    shown = _found(data.heads, head)
    found = [of_labels(_grids(data), labels_of(data))]
    if data.settling:
        found.append(of_settling(data.settling))
    if any(len(patterns) for patterns in data.patterns.values()):
        found.append(_attention(data, shown))
    if data.offset_profiles:
        found.append(_profile(data, shown))
    if data.frequencies is not None:
        ordered = highest_first(data.frequencies)
        layers = sorted(data.heads["layer"].unique().tolist())
        found += [_usage(ordered, shown), _frequencies(ordered, layers)]
    if data.edges:
        found.append(_circuit(data))
    if len(data.finders):
        found.append(_finders(data))
    return {drawing.name: drawing for drawing in found}


@dataclass(frozen=True)
class _Shown:
    """The head that some figures are of.

    Attributes:
        name: such as L5H0.
        at: where arrays by layer and head have it: they have a row for each layer with heads.
    """

    name: str
    at: tuple[int, int]


def _found(heads: pd.DataFrame, name: str | None) -> _Shown:
    """The head of that name, or of the surest label."""
    row = heads["layer"].rank(method="dense").astype(int) - 1
    places = list(zip(row, heads["head"].astype(int), strict=True))
    names = [f"L{layer}H{nth}" for layer, nth in zip(heads["layer"], heads["head"], strict=True)]
    if name is None:
        sure = heads["confidence"].where(heads["label"].notna() & (heads["label"] != NONE), -1.0)
        name = names[int(np.argmax(sure.fillna(0.0)))]
    if name not in names:
        raise unknown_name("head", name, names)
    return _Shown(name, places[names.index(name)])


def _grids(data: HeadsReportData) -> dict[str, Grid]:
    """The labels of heads by layer, under each condition."""
    columns = dict(zip(data.conditions, ("label", "ablated_label"), strict=False))
    layers = sorted(map(int, data.heads["layer"].unique()))
    by_layer = {layer: data.heads[data.heads["layer"] == layer] for layer in layers}
    return {
        condition: {
            layer: [None if pd.isna(label) else str(label) for label in rows[column]]
            for layer, rows in by_layer.items()
        }
        for condition, column in columns.items()
    }


def of_labels(grids: Mapping[str, Grid], labels: Sequence[str]) -> Drawing:
    """The labels of all heads by layer, under each condition."""
    layers = max((1 + max(grid, default=0) for grid in grids.values()), default=1)
    inches = (PAGE if len(grids) > 1 else COLUMN, max(ROW, 1.1 + 0.16 * layers))
    return Drawing("labels", lambda drawn: _labels(drawn, grids, labels), inches)


def _colours(labels: Sequence[str]) -> dict[str, str]:
    return dict(zip(labels, cycle(COLOURS), strict=False)) | {NONE: "0.88"}


def _labels(drawn: Drawn, grids: Mapping[str, Grid], labels: Sequence[str]) -> None:
    colours = _colours(labels)
    axes = drawn.subplots(1, len(grids), squeeze=False).ravel()
    for axis, (condition, rows) in zip(axes, grids.items(), strict=True):
        for layer, row in rows.items():
            for head, label in enumerate(row):
                colour = colours[label or NONE]
                axis.add_patch(Rectangle((head - 0.46, layer - 0.46), 0.92, 0.92, color=colour))
        axis.set_xlim(-0.6, max(map(len, rows.values()), default=1) - 0.4)
        axis.set_ylim(max(rows, default=0) + 0.6, -0.6)
        axis.set_title(condition, loc="left")
        axis.set_xlabel("head")
        axis.set_ylabel("layer")
        _whole_numbers(axis)
    seen = {label for rows in grids.values() for row in rows.values() for label in row if label}
    keys = [Rectangle((0, 0), 1, 1, color=colours[label]) for label in labels if label in seen]
    names = [label for label in labels if label in seen]
    below(drawn, keys, names)


def _whole_numbers(axes: Axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def of_settling(lines: Sequence[Mapping[str, Any]]) -> Drawing:
    """How the labels of heads settle, as `experiments.results.heads.settling` gives it."""
    y = "heads with their final label"
    panels = tuple(_settling(line, alone=len(lines) == 1) for line in lines)
    return of_figure(Figure("settling", "", "", "sequences of text", y, panels, log="x"))


def _settling(line: Mapping[str, Any], alone: bool) -> Panel:
    """One condition, with its own chance: labels that are dealt otherwise meet otherwise."""
    n, share, chance = (np.array(line[name], dtype=float) for name in ("n", "share", "chance"))
    condition = str(line["condition"])
    measured = Series(condition if alone else "measured", "measured", n, share)
    return Panel("" if alone else condition, (measured, Series("chance", "chance", n, chance)))


def _attention(data: HeadsReportData, shown: _Shown) -> Drawing:
    """Where one head looks in the first prompt, under each condition."""
    tokens = [visible(str(token)) for token in data.prompts[0][:MOST_TOKENS]]
    n = len(tokens)
    maps = [
        (
            f"{condition}, {shown.name}",
            np.asarray(data.patterns[condition][0][*shown.at, :n, :n]),
        )
        for condition in data.conditions
        if condition in data.patterns
    ]
    top = max(float(weights.max()) for _, weights in maps)
    return Drawing(
        "attention",
        lambda drawn: attention_maps(drawn, maps, tokens, top),
        size_of_maps(len(maps)),
    )


def _profile(data: HeadsReportData, shown: _Shown) -> Drawing:
    """Its mean attention weight by distance."""
    lines = [
        _line(condition, profile if condition == CHANCE else profile[shown.at])
        for condition, profile in data.offset_profiles.items()
    ]
    x, y = "tokens back from the query", "mean attention weight"
    return of_figure(Figure("profile", "", "", x, y, (Panel(shown.name, tuple(lines)),)))


def _usage(frequencies: Mapping[str, np.ndarray], shown: _Shown) -> Drawing:
    """What it puts on each rotary frequency."""
    lines = [
        _line(f"{role} norm", frequencies[f"{role}_norm"][shown.at]) for role in ("query", "key")
    ]
    panel = Panel(shown.name, tuple(lines))
    return of_figure(Figure("usage", "", "", _FREQUENCY, "norm", (panel,)))


def _line(name: str, values: np.ndarray) -> Series:
    kind = "chance" if name == CHANCE else "measured"
    y = np.asarray(values, dtype=np.float64)
    return Series(name, kind, np.arange(len(y), dtype=np.float64), y)  # type: ignore[arg-type]


def _frequencies(frequencies: Mapping[str, np.ndarray], layers: Sequence[int]) -> Drawing:
    """What all heads put on each frequency, a row for each head."""
    norms = [(f"{role} norm", frequencies[f"{role}_norm"]) for role in ("query", "key")]
    n_layers, n_heads = norms[0][1].shape[:2]
    names = [f"L{layer}H0" for layer in layers]

    def draw(drawn: Drawn) -> None:
        for axis, (title, norm) in zip(grid(drawn, 2), norms, strict=True):
            rows = rearrange(norm, "layer head freq -> (layer head) freq")
            drawn.colorbar(axis.imshow(rows, cmap="cividis", aspect="auto"), ax=axis)
            axis.set_title(title, loc="left")
            axis.set_xlabel(_FREQUENCY)
            axis.set_yticks(n_heads * np.arange(n_layers), names)

    return Drawing("frequencies", draw, (PAGE, max(ROW, 0.8 + 0.15 * n_layers)))


def _circuit(data: HeadsReportData) -> Drawing:
    """Edges from previous-token heads to induction heads, as broad as their scores."""
    top = max(max(edge["score"] for edge in data.edges), 1e-9)
    joined = {(edge[f"{end}_layer"], edge[f"{end}_head"]) for edge in data.edges for end in _ENDS}
    places = zip(data.heads["layer"].astype(int), data.heads["head"].astype(int), strict=True)
    labels = dict(zip(places, data.heads["label"].fillna(NONE).astype(str), strict=True))
    colours = _colours(labels_of(data))
    strongest = sorted(data.edges, key=lambda edge: float(edge["score"]))[-_MOST_EDGES:]

    def draw(drawn: Drawn) -> None:
        axes = drawn.subplots()
        for edge in strongest:
            (x1, y1), (x2, y2) = ((edge[f"{end}_layer"], edge[f"{end}_head"]) for end in _ENDS)
            part, weak = max(0.0, edge["score"]) / top, edge["score"] <= edge["chance"]
            look = {"lw": 0.3 + 1.5 * part, "alpha": 0.2 + 0.6 * part, "ls": "--" if weak else "-"}
            axes.plot([x1, x2], [y1, y2], color="0.2", zorder=1, **look)
        for place, label in labels.items():
            size = 30 if place in joined else 5
            axes.scatter(*place, s=size, color=colours[label], zorder=2)
        for label in dict.fromkeys(labels.values()):
            axes.scatter([], [], s=30, color=colours[label], label=label)
        axes.set_xlabel("layer")
        axes.set_ylabel("head")
        axes.invert_yaxis()
        _whole_numbers(axes)
        legend(drawn)

    return Drawing("circuit", draw, (PAGE, ROW + 0.5))


def _finders(data: HeadsReportData) -> Drawing:
    """What leads heads to their token: a bar for each head, with the word beside its name."""
    groups = finder_groups(data.finders, data.finding)
    colours = dict(zip(SHARES, COLOURS, strict=False))
    most = max(len(group["rows"]) for group in groups)

    def draw(drawn: Drawn) -> None:
        for axis, group in zip(grid(drawn, len(groups)), groups, strict=True):
            for nth, row in enumerate(group["rows"]):
                axis.barh(nth, 100, color="0.92")
                for bar in row["bars"]:
                    axis.barh(nth, bar["width"], left=bar["x"], color=colours[bar["name"]])
            names = [f"{row['name']}, {row['word']}" for row in group["rows"]]
            axis.set_yticks(range(len(names)), names)
            axis.set_ylim(most - 0.5, -0.5)
            axis.set_xlim(0, 100)
            more = f", the {len(names)} strongest" if group["n_more"] else ""
            axis.set_title(f"{group['title']}{more}", loc="left")
            axis.set_xlabel("% of the attention there")
        keys = [Rectangle((0, 0), 1, 1, color=colour) for colour in colours.values()]
        below(drawn, keys, [*SHARES.values()])

    return Drawing("finders", draw, (PAGE if len(groups) > 1 else COLUMN, 1.2 + _BAR * most))
