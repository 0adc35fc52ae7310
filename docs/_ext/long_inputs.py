"""The chart of time and memory against length, drawn of what `benchmarks.long` measured."""

import tomllib
from collections.abc import Iterator, Sequence
from html import escape
from math import log2
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

# Of the picture and, in each of its panels, of what the curves are drawn in.
_WIDTH, _HEIGHT = 760, 300
_PANEL, _TOP, _BOTTOM, _LEFT = 300, 30, 250, 60
_COLOURS = {"blocks": "#2563eb", "whole": "#9ca3af"}
_SAID = {"blocks": "few queries at a time", "whole": "whole maps"}
_BESIDE = {"blocks": 64, "whole": -8}  # the name of a curve stands below or above its end
_PANELS = {"seconds": "processor time, seconds", "megabytes": "extra memory, MB"}


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("builder-inited", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _write(app: Sphinx) -> None:
    source = Path(app.srcdir)
    scans = tomllib.loads((source / "long.toml").read_text(encoding="utf-8"))["scan"]
    folder = source / "generated"
    folder.mkdir(exist_ok=True)
    (folder / "long.svg").write_text(picture(scans), encoding="utf-8")


def picture(scans: Sequence[dict[str, Any]]) -> str:
    """Two panels with logarithmic axes, as SVG.

    Args:
        scans: what each scan took: its way, tokens, seconds and megabytes.
    """
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#111827">'
    )
    body = [f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>']
    for nth, (name, title) in enumerate(_PANELS.items()):
        body += _panel(scans, name, title, _LEFT + nth * (_PANEL + 80))
    return "\n".join([head, *body, "</svg>"]) + "\n"


def _panel(scans: Sequence[dict[str, Any]], name: str, title: str, left: float) -> Iterator[str]:
    tokens = sorted({scan["tokens"] for scan in scans})
    top = max(scan[name] for scan in scans)
    ticks = [tick for tick in (1, 10, 100, 1000) if tick < 2 * top]
    low, high = log2(ticks[0]), log2(max(top, ticks[-1]))

    def x(value: float) -> float:
        return left + _PANEL * log2(value / tokens[0]) / log2(tokens[-1] / tokens[0])

    def y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (log2(value) - low) / (high - low)

    yield f'<text x="{left}" y="{_TOP - 12}" font-weight="bold">{escape(title)}</text>'
    for value in tokens:
        yield f'<text x="{x(value):.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{value:,}</text>'
    for value in ticks:
        yield (
            f'<line x1="{left}" x2="{left + _PANEL}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
            'stroke="#e5e7eb"/>'
        )
        yield f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value}</text>'
    for way, colour in _COLOURS.items():
        own = [(x(scan["tokens"]), y(scan[name])) for scan in scans if scan["way"] == way]
        points = " ".join(f"{across:.1f},{down:.1f}" for across, down in own)
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for across, down in own:
            yield f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3.5" fill="{colour}"/>'
        across, down = own[-1]
        yield (
            f'<text x="{across - 8:.1f}" y="{down + _BESIDE[way]:.1f}" text-anchor="end" '
            f'stroke="#ffffff" stroke-width="3" paint-order="stroke">{_SAID[way]}</text>'
        )
    middle = left + _PANEL / 2
    yield f'<text x="{middle}" y="{_BOTTOM + 38}" text-anchor="middle">tokens in a text</text>'
