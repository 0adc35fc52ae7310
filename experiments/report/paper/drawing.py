"""A figure in a paper's style, saved as SVG, PNG or PDF; and what all such figures are made of."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as Drawn
from numpy.typing import ArrayLike

from experiments.results.findings import Series
from nope_interp.errors import unknown_name
from nope_interp.files import given_path, write_atomically

SUFFIXES = (".svg", ".png", ".pdf")

# One text column of most journals, two of them, and the height of a row of panels; inches.
COLUMN, PAGE, ROW = 3.35, 6.75, 2.1
# Okabe and Ito 2008: told apart by colour-blind readers. Then Tol's, where these do not suffice.
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#f0e442",
    "#882255", "#999933", "#88ccee", "#ddcc77",
)  # fmt: skip
# Letters of tokens beside a map, in points; and how many of them are shown.
_TOKEN, _LONGEST_TOKEN = 5, 8
# Letters of a title above one of three panels.
_LONGEST_TITLE = 34
_DECADE = 10
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
LOOKS: Mapping[str, Mapping[str, Any]] = {
    "chance": {"color": "0.45", "linestyle": "--", "linewidth": 0.9},
    "reference": {"color": "0.55", "linestyle": ":", "linewidth": 1},
    "predicted": {"color": "0.1", "linewidth": 0.8},
}


@dataclass(frozen=True, repr=False)
class Drawing:
    """A figure that can be saved.

    Attributes:
        name: what a result calls it.
        draw: draws it on an empty figure of matplotlib.
        size: width and height in inches.
    """

    name: str
    draw: Callable[[Drawn], None]
    size: tuple[float, float] = (PAGE, ROW)

    def __repr__(self) -> str:
        return f"the figure {self.name!r}; .save(path) writes it as {', '.join(SUFFIXES)}"

    def _repr_png_(self) -> bytes:
        """The figure in a notebook's cell."""
        image = BytesIO()
        self._write(image, "png")
        return image.getvalue()

    def save(self, path: Path | str) -> Path:
        """Draw the figure and write it.

        Args:
            path: the file; its ending says what kind: .svg, .png or .pdf.

        Returns:
            The file.

        Raises:
            UserError: for another ending, and where the file cannot be written.
        """
        target = given_path(path)
        kind = target.suffix.lower()
        if kind not in SUFFIXES:
            raise unknown_name("kind of picture", kind or target.name, SUFFIXES)
        return write_atomically(target, lambda part: self._write(part, kind[1:]))

    def _write(self, to: Path | BytesIO, kind: str) -> None:
        undated: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
        with matplotlib.rc_context(_STYLE):
            drawn = Drawn(figsize=self.size, layout="constrained")
            self.draw(drawn)
            drawn.savefig(to, format=kind, metadata=undated.get(kind))


def size(n_panels: int) -> tuple[float, float]:
    """Width and height of so many panels, three in a row; inches."""
    if n_panels == 1:
        return COLUMN, ROW + 0.5
    return PAGE, ROW * -(-n_panels // 3) + 0.4


def grid(drawn: Drawn, n: int, columns: int = 3) -> list[Axes]:
    """So many panels, in rows of as many as `columns`."""
    columns = min(n, columns)
    axes = drawn.subplots(-(-n // columns), columns, squeeze=False).ravel()
    for unused in axes[n:]:
        unused.set_axis_off()
    return [*axes[:n]]


def panel(
    axes: Axes, title: str, unit: str, lines: Iterable[Series], colours: dict[str, str]
) -> None:
    """Lines with their intervals.

    Args:
        axes: to draw on.
        title: above the panel.
        unit: of the y axis.
        lines: in the order in which they are drawn.
        colours: of what was measured, by name, throughout the figure; new names are added.
    """
    for line in lines:
        if line.kind in LOOKS:
            look = dict(LOOKS[line.kind])
        else:
            colour = colours.setdefault(line.name, COLOURS[len(colours) % len(COLOURS)])
            look = {"color": colour, "marker": ".", "ms": 3}
        axes.plot(line.x, line.y, label=line.name, **look)
        if line.low is not None and line.high is not None and line.kind not in LOOKS:
            axes.fill_between(line.x, line.low, line.high, color=look["color"], alpha=0.2, lw=0)
    axes.set_title(fill(title, _LONGEST_TITLE), loc="left")
    axes.set_ylabel(unit)


def legend(drawn: Drawn) -> None:
    """One for all panels: what is drawn alike in each stands there once."""
    found: dict[Any, Any] = {}
    for axes in drawn.axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    if found:
        below(drawn, [*found.values()], [*found])


def below(drawn: Drawn, handles: Sequence[Any], names: Sequence[str]) -> None:
    """A legend below the panels, in as many columns as the width holds."""
    for columns in range(4, 0, -1):
        legend = drawn.legend(handles, names, loc="outside lower center", ncols=columns)
        if columns == 1 or legend.get_window_extent().width <= drawn.bbox.width:
            return
        legend.remove()


def plain(axis: Axis) -> None:
    """Numbers as themselves on a logarithmic axis: names are never read as mathematics here."""
    low, high = axis.get_view_interval()
    axis.set_major_formatter("{x:g}")
    # Within a decade there may be no power of ten to be named.
    axis.set_minor_formatter("{x:g}" if high < _DECADE * low else "")


def attention_maps(
    drawn: Drawn,
    maps: Sequence[tuple[str, ArrayLike]],
    tokens: Sequence[str],
    top: float,
) -> None:
    """Attention weights, rows are queries and columns keys, on one scale from 0 to `top`.

    Args:
        drawn: the empty figure.
        maps: of each its title and its weights [query key].
        tokens: those of the sequence, in its order.
        top: the weight that gets the full colour.
    """
    columns = _maps_side_by_side(len(maps))
    axes = grid(drawn, len(maps), columns)
    # Three quarters of a map's width are its cells'.
    points = min(_TOKEN, 72 * 0.75 * drawn.get_figwidth() / columns / len(tokens))
    for axis, (title, weights) in zip(axes, maps, strict=True):
        image = axis.imshow(weights, cmap="Blues", vmin=0, vmax=top)
        axis.set_title(title, loc="left")
        at = range(len(tokens))
        axis.set_xticks(at, tokens, rotation=90, fontsize=points)
        axis.set_yticks(at, tokens, fontsize=points)
        axis.tick_params(length=0, pad=1)
    drawn.colorbar(image, ax=axes, label="attention weight", shrink=0.8)


def size_of_maps(n_maps: int) -> tuple[float, float]:
    """Width and height of so many square maps; inches."""
    columns = _maps_side_by_side(n_maps)
    side = (COLUMN if columns == 1 else PAGE) / columns
    return side * columns, side * -(-n_maps // columns)


def _maps_side_by_side(n_maps: int) -> int:
    return min(n_maps, 2 if n_maps <= 4 else 4)


def visible(token: str) -> str:
    """A token whose white space can be seen, cut where it is long."""
    shown = token.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥")
    # Letters that cannot be printed would be an error.
    shown = "".join(letter if letter.isprintable() else "·" for letter in shown)
    return shown if len(shown) <= _LONGEST_TOKEN else f"{shown[: _LONGEST_TOKEN - 1]}…"
