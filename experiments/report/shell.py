"""What every page is made of: one file, its scripts named by their hashes, nothing fetched."""

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from experiments.report import circuits
from experiments.report.encode import compressed, json_text, number, script_text
from experiments.results.measurements import COLUMNS
from experiments.results.percent import percent

# What a table calls columns whose names are made for programs.
COLUMN_TITLES: Mapping[str, str] = MappingProxyType(
    {
        "positions": "condition",
        "begin_token": "begin token",
        "ci_low": "from (95%)",
        "ci_high": "to (95%)",
        "n": "sequences",
    }
)
_TABLE_DIGITS = 6
_EXACT = 2**53  # whole numbers up to here are exact in a page
_SHOWN_APART = (
    "command",
    "notes",
    "missing",
    "layer_positions",
    "example_tokens",
    "finders_unread",
)
_MOST_CHOICES = 40  # a column with more different values is found by the text box instead


# The libraries that a page may ask for, by the names that its script calls them.
PLOTLY, CIRCUITS = "plotly", "circuitsvis"


# The scripts and styles that every page has, in the order in which they stand.
_SHARED = ("common.js", "pictures.js", "parts.js")
_STYLES = ("report.css", "media.css")


def fill(
    template: str,
    script: Markup,
    libraries: Sequence[str],
    page_data: Mapping[str, Any],
    data: Any,
    **words: Any,
) -> str:
    """The page that a template makes.

    Libraries and data stand in it compressed. The script unpacks a library when the first chart
    that needs it comes into sight; so the first screen waits for none.

    Args:
        template: its file name.
        script: the page's own; a content security policy lets it and the libraries run, no more.
        libraries: `PLOTLY`, `CIRCUITS` or both.
        page_data: what the script reads, put in as JSON.
        data: has a title, a headline, measurements and info.
        words: what else the template asks for.

    Returns:
        The page as valid Unicode.
    """
    return drawn(
        template,
        script,
        libraries,
        page_data,
        data=data,
        info=_told(data.info),
        constant=_constant_columns(data.measurements),
        style=page_style(),
        **words,
    )


def drawn(
    template: str,
    script: Markup,
    libraries: Sequence[str],
    page_data: Mapping[str, Any],
    **words: Any,
) -> str:
    """The page that a template makes of its scripts, its data and these words; as `fill` says."""
    page = (
        environment()
        .get_template(template)
        .render(
            script=script,
            libraries={name: _library(name)[0] for name in libraries},
            policy=_policy([_digest(script), *(_library(name)[1] for name in libraries)]),
            page_data=compressed(json_text(page_data)),
            **words,
        )
    )
    # A folder's name need not be valid Unicode; the page has to be.
    return page.encode("utf-8", "backslashreplace").decode("utf-8")


@cache
def environment() -> Environment:
    """Keeps the templates that it has read: a live page is saved again and again."""
    made = Environment(
        loader=PackageLoader("experiments.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    made.filters |= {
        "figure": _figure,
        "exact": _exact,
        "coded": _coded,
        "percent": _percent,
        "split": _sentences,
    }
    made.tests["missing"] = pd.isna
    return made


def _told(info: Mapping[str, Any]) -> dict[str, Any]:
    """What the page lists of a run: of a model that was given, not how one would be made."""
    told = {k: v for k, v in info.items() if k not in _SHOWN_APART}
    if told.get("config", {}).get("model") is not None:
        told["config"] = {k: v for k, v in told["config"].items() if k != "transformer"}
    return told


@cache
def _library(name: str) -> tuple[Markup, str]:
    """A library's script, compressed, and the digest that lets it run."""
    if name == PLOTLY:
        source = (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    else:
        source = circuits.source()
    return compressed(source), _digest(source)


def page_script(*names: str) -> Markup:
    """A page's own script from its files, with the helpers that all pages share before them."""
    return script_text("".join(map(_text, (*_SHARED, *names))))


def page_style(*names: str) -> Markup:
    """The style that all pages share, and a page's own from its files."""
    return script_text("".join(map(_text, (*_STYLES, *names))))


def _text(name: str) -> str:
    return (files("experiments.report") / "templates" / name).read_text("utf-8")


def _digest(source: str) -> str:
    return base64.b64encode(hashlib.sha256(source.encode("utf-8")).digest()).decode("ascii")


def _policy(digests: Sequence[str]) -> str:
    """A content security policy: these scripts by hash, styles and images in the page, no more."""
    sources = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _figure(value: Any) -> str:
    """A number for reading: three digits, at most four after the point, a dash for none."""
    rounded = number(value, 3)
    if rounded is None:
        return "–"
    text = f"{rounded:.4f}" if abs(rounded) < 0.01 else f"{rounded:.3g}"
    text = f"{rounded:.0f}" if abs(rounded) >= 100 else text
    return ("0" if float(text) == 0 else text).replace("-", "−")


def _exact(value: Any) -> str:
    """The same of a number whose bounds may be tiny: below 0.001 it keeps its three digits."""
    rounded = number(value, 3)
    if rounded is None or rounded == 0 or abs(rounded) >= 0.001:
        return _figure(value)
    return f"{rounded:.3g}".replace("-", "−")


def _sentences(text: str) -> tuple[str, str]:
    """The first sentence, and the others."""
    first, _, others = text.replace("\n", " ").partition(". ")
    return (f"{first}." if others else first), others


def _coded(text: str) -> Markup:
    """A text whose words between backticks are code."""
    parts = str(text).split("`")
    if len(parts) % 2 == 0:  # one has no partner
        return Markup.escape(text)
    shown = (Markup("<code>{}</code>") if nth % 2 else Markup("{}") for nth in range(len(parts)))
    return Markup("").join(form.format(part) for form, part in zip(shown, parts, strict=True))


def _percent(share: Any) -> str:
    """A share as whole percent; a dash for none."""
    found = number(share)
    if found is None:
        return "–"
    # As files have it, but what is nearly all is not rounded to all of it.
    return percent(float(share) if abs(found) == 1 else found)


def measurements_table(
    measurements: pd.DataFrame, titles: Mapping[str, str] = COLUMN_TITLES
) -> dict[str, Any]:
    """All measurements for the sortable table; columns that say nothing new are not shown."""
    order = [*COLUMNS, *(c for c in measurements.columns if c not in COLUMNS)]
    plain = ("value", "ci_low", "ci_high", "n", "chance")
    return sortable(
        measurements[order],
        shown=lambda name, distinct: distinct > 1 or name in ("metric", "value"),
        chosen=lambda name, distinct: 1 < distinct <= _MOST_CHOICES and name not in plain,
        titles=titles,
    )


def sortable(
    frame: pd.DataFrame,
    shown: Callable[[str, int], bool],
    chosen: Callable[[str, int], bool],
    titles: Mapping[str, str] = COLUMN_TITLES,
) -> dict[str, Any]:
    """A table column by column, text and numbers apart, as the page's sortable table reads it.

    Args:
        frame: the table.
        shown: says by a column's name and its number of different values whether it is drawn.
        chosen: says so whether it gets a menu that picks one of its values.
        titles: what columns are called.

    Returns:
        JSON-able columns.
    """
    columns = []
    for name in frame.columns:
        column = frame[name]
        numeric = pd.api.types.is_numeric_dtype(column) and column.dtype != bool
        if numeric:
            values: list[Any] = [_kept(value) for value in column.astype(float)]
        else:
            values = [None if pd.isna(v) else str(v) for v in column]
        distinct = len(set(values))
        columns.append(
            {
                "name": str(name),
                "title": titles.get(str(name), str(name).replace("_", " ")),
                "numeric": bool(numeric),
                "shown": shown(str(name), distinct),
                "choices": chosen(str(name), distinct),
                "values": values,
            }
        )
    return {"length": len(frame), "columns": columns}


def _kept(value: float) -> float | None:
    """The number as the table keeps it: a whole one, which may be a count or a seed, as it is."""
    exact = value.is_integer() and abs(value) < _EXACT
    return int(value) if exact else number(value, _TABLE_DIGITS)


def _constant_columns(measurements: pd.DataFrame) -> dict[str, Any]:
    """Columns that say the same in every row: said once above the table instead."""
    return {
        name: measurements[name].iloc[0]
        for name in COLUMNS
        if measurements[name].nunique(dropna=False) == 1
        and not pd.isna(measurements[name].iloc[0])
        and measurements[name].iloc[0] != ""
        and name not in ("metric", "value")
    }


# What a row of verdicts, or of uses, draws on its scale.
MARKED = ("value", "ci_low", "ci_high", "chance", "control_value")


def top_of(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> float:
    """The largest of these numbers in the rows: the far end of the scale they are drawn on."""
    found = (number(row[name]) for row in rows for name in names)
    return max((value for value in found if value is not None), default=0.0)


def marks(row: Mapping[str, Any], names: Sequence[str], top: float) -> dict[str, float]:
    """Percent of the scale from 0 to `top` at which each of these numbers of a row is drawn."""
    found = {name: number(row[name]) for name in names}
    scale = 96 / top if top > 0 else 0.0
    return {
        name: float(np.clip(2 + value * scale, 0, 100))
        for name, value in found.items()
        if value is not None
    }
