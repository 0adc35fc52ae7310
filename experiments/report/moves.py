"""The section on what follows where positions are moved, as plain data: a row for each move."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from experiments.report.data import ReportData
from experiments.results import interchange as names
from experiments.results import text_use
from experiments.results.code_ablation import EVERYWHERE, STREAM
from experiments.results.position_use import Interval

# What the net effects are shares of, on a task and on text.
_OF_ANSWERS = "answers that follow"
_PLAINLY = {"earlier tokens": "earlier tokens, permuted"}
_OF_WAY = "the way to the predictions made elsewhere"


def moves_of(data: ReportData) -> dict[str, Any] | None:
    """What the page's table of moved positions shows.

    Args:
        data: of the page.

    Returns:
        Its rows, what their numbers are shares of, and why text further on was not followed, a
        sentence or None; None where nothing was moved.
    """
    if data.followed.empty:
        return None
    on_text = (data.measurements["probe"] == text_use.PROBE).any()
    return {
        "rows": [_row(row) for row in data.followed.to_dict("records")],
        "share_of": _OF_WAY if on_text else _OF_ANSWERS,
        "nothing": text_use.nothing_further_on(data.measurements),
    }


def _row(row: Mapping[Any, Any]) -> dict[str, Any]:
    tried = pd.notna(row["q"])
    return {
        "code": row["code"],
        "where": _where(row["layer"], row["site"]),
        "moved": _PLAINLY.get(row["moved"], row["moved"]),
        "word": row["word"],
        "why": row["why"],
        "there": _interval(row, names.NET) if tried else None,
        "breaks": _interval(row, names.BROKEN) if tried else None,
        "back": _interval(row, f"restored_{names.NET}") if tried else None,
    }


def _where(layer: int, site: str) -> str:
    if layer != EVERYWHERE:
        return f"{site}, layer {layer}"
    return "whole stream" if site == STREAM else "scores of all layers"


def _interval(row: Mapping[Any, Any], name: str) -> Interval:
    return row[name], row[f"{name}_low"], row[f"{name}_high"]
