"""The section on what follows where positions are moved, as plain data: a row for each move."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from experiments.report import lookup
from experiments.report.data import ReportData
from experiments.report.figures import Chart
from experiments.results import interchange as names
from experiments.results import text_use
from experiments.results.code_ablation import EVERYWHERE, STREAM
from experiments.results.intervals import Interval
from experiments.results.readability import setting_words

# What the net effects are shares of, on a task and on text.
_OF_ANSWERS = "answers that follow"
_PLAINLY = {text_use.EARLIER: f"{text_use.EARLIER}, permuted"}
_OF_WAY = "the way to the predictions at the other positions"
_UNITS = {_OF_ANSWERS: "share of answers", _OF_WAY: "share of the way"}
_NO_MOVE = "no move"
_DOSE_COLUMNS = (names.TOWARDS, f"{names.TOWARDS}_low", f"{names.TOWARDS}_high", "size_matched")


def moves_of(data: ReportData) -> dict[str, Any] | None:
    """What the page's table of moved positions shows.

    Args:
        data: of the page.

    Returns:
        Its rows, the setting that they are of, what their numbers are shares of, and why text
        further on was not followed, a sentence or None; None where nothing was moved.
    """
    if data.followed.empty:
        return None
    return {
        "setting": _setting(data.measurements),
        "rows": [_row(row) for row in _by_code(data.followed).to_dict("records")],
        "share_of": _share_of(data),
        "nothing": text_use.nothing_further_on(data.measurements),
    }


def dose_chart(data: ReportData) -> Chart:
    """How far a code that is moved part of the way is followed, a panel for each code.

    Args:
        data: of the page.

    Returns:
        The chart; without views where no code was moved by parts through all of the stream.
    """
    moves = data.measurements[data.measurements["probe"] == names.PROBE]
    doses, unit = names.doses(moves), _UNITS[_share_of(data)]
    doses = doses[doses["layer"] == EVERYWHERE]
    # The chart opens where most is followed: other moves may lie flat.
    whole = doses[doses["dose"] == 1]
    furthest = whole.groupby("moved", sort=False)[names.TOWARDS].max()
    variant = str(next(iter(moves["variant"]), ""))
    views = {
        _plainly(str(moved)): {"panels": _panels(variant, unit, doses[doses["moved"] == moved])}
        for moved in furthest.sort_values(ascending=False, kind="stable").index
    }
    return Chart(
        id="doses",
        title="What a smaller move does",
        caption="How far a code that is moved part of the way is followed. 0 is no effect. Nothing "
        "is subtracted here; the table is net of controls.",
        reading="At 0 nothing is moved, and nothing follows. Codes are moved through the whole "
        "stream. A model that is sure of its token may hardly follow small moves, and then jump. "
        "On text parts of the way are measured on 32 sequences, and the whole way on all. Dotted: "
        "the size-matched control. Bars are 95% intervals over held-out sequences, not widened "
        "for several codes.",
        x="share of the way that the code is moved",
        controls=[lookup.menu("moved", "Positions moved", {told: told for told in views})],
        views=views,
        share_y=True,
        switched=False,
        control=lookup.SIZE_MATCHED_CONTROL,
        chance=_NO_MOVE,
    )


def _panels(variant: str, unit: str, rows: pd.DataFrame) -> list[dict[str, Any]]:
    """One for each code, of one move."""
    return [
        lookup.make_panel(str(code), None, unit, _dose_series(variant, of))
        for code, of in rows.groupby("code", sort=False)
    ]


def _dose_series(variant: str, rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Chance, the control and what follows, from where nothing is moved."""
    x = [0.0, *rows["dose"]]
    value, low, high, control = ([0.0, *rows[column]] for column in _DOSE_COLUMNS)
    return [
        lookup.make_series("chance", None, x, [0.0] * len(x), _NO_MOVE),
        lookup.make_series(
            "control", variant, x, control, f"{variant}, {lookup.SIZE_MATCHED_CONTROL}"
        ),
        lookup.make_series("value", variant, x, value, variant, low, high),
    ]


def _by_code(followed: pd.DataFrame) -> pd.DataFrame:
    """A code's moves under each other, where they are compared; the code followed most first."""
    furthest = followed.groupby("code")[names.NET].transform("max")
    # Where two codes tie the name keeps the rows of each together.
    keys = ["furthest", "code", names.NET]
    return followed.assign(furthest=furthest).sort_values(keys, ascending=False)


def _setting(measurements: pd.DataFrame) -> str:
    """What was read where positions were moved, in words; "" where no row of a move is left."""
    rows = measurements[measurements["probe"].isin([names.PROBE, text_use.PROBE])]
    pairs = rows[["tokens", "begin_token"]].itertuples(index=False)
    return next((setting_words(str(tokens), bool(begin)) for tokens, begin in pairs), "")


def _share_of(data: ReportData) -> str:
    on_text = (data.measurements["probe"] == text_use.PROBE).any()
    return _OF_WAY if on_text else _OF_ANSWERS


def _plainly(moved: str) -> str:
    return _PLAINLY.get(moved, moved)


def _row(row: Mapping[Any, Any]) -> dict[str, Any]:
    tried = pd.notna(row["q"])
    return {
        "code": row["code"],
        "where": _where(row["layer"], row["site"]),
        "moved": _plainly(row["moved"]),
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
