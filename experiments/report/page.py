"""The page itself: one HTML file that needs no network and asks for none."""

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from experiments.measurements import COLUMNS
from experiments.report import circuits, figures
from experiments.report._encode import json_text, number, script_text
from experiments.report._lookup import variants_of
from experiments.report.data import ReportData

_TABLE_DIGITS = 6
_MOST_CHOICES = 40  # a column with more different values is found by the text box instead


def render(data: ReportData) -> str:
    """The whole report as one HTML page: scripts, styles and numbers inside, no request made.

    Every string of `data` is shown as text whatever it holds, and a content security policy names
    the page's own scripts by their hashes, so that nothing else can run.
    """
    conditions = figures.conditions_of(data)
    sections = figures.sections(data)
    sequence = figures.sequence_chart(data)
    patterns = circuits.attention_views(data.example.get("patterns", {}))
    scripts = [_plotly(), _template_text("report.js")]
    if patterns:
        scripts.insert(1, circuits.bundle())
    charts = [chart for section in sections for chart in section.charts]
    if sequence.views:
        charts.append(sequence)
    variants = variants_of(data)
    page_data = {
        "variants": variants,
        "condition": list(conditions[0]) if conditions else None,
        "charts": {chart.id: vars(chart) for chart in charts},
        "example": _example(data, variants, patterns),
        "table": _table(data.measurements),
        "scales": {"cosine": figures.COSINE_SCALE, "pattern": circuits.PATTERN_SCALE},
    }
    environment = Environment(
        loader=PackageLoader("experiments.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["figure"] = _figure
    page = environment.get_template("report.html").render(
        data=data,
        info={k: v for k, v in data.info.items() if k not in ("command", "notes")},
        sections=sections,
        sequence=sequence,
        has_patterns=bool(patterns),
        conditions=conditions,
        verdicts=_verdicts(data, conditions),
        probes=set(data.measurements["probe"]),
        constant=_constant_columns(data.measurements),
        scripts=scripts,
        policy=_policy(scripts),
        style=_template_text("report.css"),
        page_data=json_text(page_data),
    )
    # A folder's name need not be valid Unicode; the page has to be.
    return page.encode("utf-8", "backslashreplace").decode("utf-8")


def _plotly() -> Markup:
    source = files("plotly") / "package_data" / "plotly.min.js"
    return script_text(source.read_text(encoding="utf-8"))


def _template_text(name: str) -> Markup:
    return script_text((files("experiments.report") / "templates" / name).read_text("utf-8"))


def _policy(scripts: list[Markup]) -> str:
    """A content security policy: these scripts by hash, styles and images in the page, no more."""
    digests = (hashlib.sha256(script.encode("utf-8")).digest() for script in scripts)
    sources = " ".join(f"'sha256-{base64.b64encode(d).decode('ascii')}'" for d in digests)
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


def _example(
    data: ReportData, variants: list[str], patterns: Mapping[str, Any]
) -> dict[str, Any] | None:
    tokens = [str(token) for token in data.example.get("tokens", ())]
    if not tokens:
        return None
    predictions = data.example.get("predictions", {})
    return {
        "tokens": tokens,
        "predictions": {
            v: {str(k): [number(p, 4) for p in values] for k, values in predictions[v].items()}
            for v in variants
            if v in predictions
        },
        "patterns": {v: patterns[v] for v in variants if v in patterns},
    }


def _table(measurements: pd.DataFrame) -> dict[str, Any]:
    """The table column by column, text and numbers apart, and which columns to choose from."""
    columns = []
    for name in [*COLUMNS, *(c for c in measurements.columns if c not in COLUMNS)]:
        column = measurements[name]
        numeric = pd.api.types.is_numeric_dtype(column) and column.dtype != bool
        if numeric:
            values: list[Any] = [number(v, _TABLE_DIGITS) for v in column.astype(float)]
        else:
            values = [None if pd.isna(v) else str(v) for v in column]
        distinct = set(values)
        choices = len(distinct) <= _MOST_CHOICES and name not in ("value", "ci_low", "ci_high", "n")
        columns.append(
            {
                "name": str(name),
                "numeric": bool(numeric),
                "shown": len(distinct) > 1 or name in ("metric", "value"),
                "choices": choices and len(distinct) > 1 and name != "chance",
                "values": values,
            }
        )
    return {"length": len(measurements), "columns": columns}


def _constant_columns(measurements: pd.DataFrame) -> dict[str, Any]:
    """Columns that say the same in every row: said once above the table instead."""
    return {
        name: measurements[name].iloc[0]
        for name in COLUMNS
        if measurements[name].nunique(dropna=False) == 1
        and not pd.isna(measurements[name].iloc[0])
        and name not in ("metric", "value")
    }


def _verdicts(data: ReportData, conditions: list[tuple[str, bool]]) -> list[dict[str, Any]]:
    """The verdict rows of each condition, and where each number falls on its metric's scale."""
    order = variants_of(data)
    tops: dict[str, float] = {}
    for verdict in data.verdicts:
        for row in verdict.rows:
            marks = [number(row[k]) for k in ("value", "ci_high", "chance", "control_value")]
            top = max((mark for mark in marks if mark is not None), default=0.0)
            tops[row["metric"]] = max(tops.get(row["metric"], 0.0), top)
    groups = []
    for condition in conditions:
        hypotheses = []
        for verdict in data.verdicts:
            rows = [r for r in verdict.rows if (r["tokens"], bool(r["begin_token"])) == condition]
            rows.sort(key=lambda r: order.index(r["variant"]) if r["variant"] in order else 99)
            marked = [dict(row) | {"marks": _marks(row, tops[row["metric"]])} for row in rows]
            if marked:
                hypotheses.append({"hypothesis": verdict.hypothesis, "rows": marked})
        if hypotheses:
            groups.append({"condition": condition, "hypotheses": hypotheses})
    return groups


def _marks(row: Mapping[str, Any], top: float) -> dict[str, float]:
    """Percent of the scale from 0 to `top` at which each number of a verdict row is drawn."""
    names = ("value", "ci_low", "ci_high", "chance", "control_value")
    found = {name: number(row[name]) for name in names}
    scale = 96 / top if top > 0 else 0.0
    return {
        name: float(np.clip(2 + value * scale, 0, 100))
        for name, value in found.items()
        if value is not None
    }
