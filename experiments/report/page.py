"""The page itself: one HTML file that needs no network and asks for none."""

from collections.abc import Mapping
from typing import Any

from experiments.report import circuits, figures, history, moves, shell, uses
from experiments.report.charts import charts_of
from experiments.report.data import ReportData
from experiments.report.encode import numbers
from experiments.report.first import first_csv, first_figure, gists
from experiments.report.lookup import variants_of

# What a metric of a verdict is called in a table.
_MEASURES = {"mae": "error, positions", "r2": "R² of 1/m", "share": "share of variance"}


def render(data: ReportData) -> str:
    """The whole report as one HTML page: scripts, styles and numbers inside, no request made.

    Every string of `data` is shown as text whatever it holds, and a content security policy names
    the page's own scripts by their hashes, so that nothing else can run.

    Args:
        data: what the page shows.

    Returns:
        The page.
    """
    settings = figures.settings_of(data)
    sections = figures.sections(data)
    patterns = circuits.attention_views(data.example.get("patterns", {}))
    libraries = [shell.PLOTLY, *([shell.CIRCUITS] if patterns else [])]
    use_groups, told = uses.use_groups(data), history.history_of(data)
    charts = {chart.id: chart for chart in charts_of(data, told)}
    variants = variants_of(data)
    page_data = {
        "variants": variants,
        "setting": list(settings[0]) if settings else None,
        "first": first_csv(data.answer),
        "charts": {name: vars(chart) for name, chart in charts.items()},
        "example": _example(data, variants, patterns),
        "history": told and told["lookup"],
        "still": [uses.still_readable_csv(group) for group in use_groups],
        "table": shell.measurements_table(data.measurements),
        "scales": {"cosine": figures.COSINE_SCALE, "pattern": circuits.PATTERN_SCALE},
    }
    return shell.fill(
        "report.html",
        shell.page_script("heads_look.js", "report.js"),
        libraries,
        page_data,
        data,
        first=first_figure(data.answer),
        gists=gists(data.answer, variants),
        measures=_MEASURES,
        moved=moves.moves_of(data),
        charts=charts,
        sections={section.id: section for section in sections},
        uses=use_groups,
        history=told,
        has_patterns=bool(patterns),
        settings=settings,
        verdicts=_verdicts(data, settings),
    )


def _example(
    data: ReportData, variants: list[str], patterns: Mapping[str, Any]
) -> dict[str, Any] | None:
    tokens = [str(token) for token in data.example.get("tokens", ())]
    if not tokens:
        return None
    predictions = data.example.get("predictions", {})
    rounded = {
        v: {str(k): numbers(values, 4) for k, values in predictions[v].items()}
        for v in variants
        if v in predictions
    }
    shown = {v: patterns[v] for v in variants if v in patterns}
    return {"tokens": tokens, "predictions": rounded, "patterns": shown}


def _verdicts(data: ReportData, settings: list[tuple[str, bool]]) -> list[dict[str, Any]]:
    """The verdict rows of each setting, and where each number falls on its metric's scale."""
    order = variants_of(data)
    all_rows = [row for verdict in data.verdicts for row in verdict.rows]
    tops = {
        metric: shell.top_of([row for row in all_rows if row["metric"] == metric], shell.MARKED)
        for metric in {row["metric"] for row in all_rows}
    }
    groups = []
    for setting in settings:
        hypotheses = []
        for verdict in data.verdicts:
            rows = [r for r in verdict.rows if (r["tokens"], bool(r["begin_token"])) == setting]
            rows.sort(key=lambda r: order.index(r["variant"]) if r["variant"] in order else 99)
            marked = [
                dict(row) | {"marks": shell.marks(row, shell.MARKED, tops[row["metric"]])}
                for row in rows
            ]
            if marked:
                hypotheses.append({"hypothesis": verdict.hypothesis, "rows": marked})
        if hypotheses:
            groups.append({"setting": setting, "hypotheses": hypotheses})
    return groups
