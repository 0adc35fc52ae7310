"""The part of the heads page on what leads heads to the token that they look at, as plain data."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.report.encode import number
from experiments.results.found_by import SHARES, TOKENS

_TITLES = {"previous": "The token before", "own": "Their own token"}
# The page draws so many heads for each token; its download has all.
_MOST = 20


def finder_groups(finders: pd.DataFrame, finding: Sequence[str]) -> list[dict[str, Any]]:
    """What the page shows for each token that heads look at.

    Args:
        finders: what `experiments.results.found_by.finders_table` gives.
        finding: a sentence for each token that heads look at.

    Returns:
        Of each token its title, a sentence, its strongest heads, and how many more there are.
    """
    groups = [(token, finders[finders["token"] == token]) for token in TOKENS]
    there = [(token, rows) for token, rows in groups if len(rows)]
    if not there:
        return []
    return [
        {
            "title": _TITLES[token],
            "told": sentence,
            "rows": [_row(row) for row in rows.head(_MOST).to_dict("records")],
            "n_more": max(0, len(rows) - _MOST),
        }
        for (token, rows), sentence in zip(there, finding, strict=True)
    ]


def finder_columns(finders: pd.DataFrame) -> dict[str, Any]:
    """All of the table, for the download.

    Args:
        finders: as `finder_groups` takes it.

    Returns:
        Names of columns, and rows.
    """
    rows = [
        [number(value) if isinstance(value, float) else value for value in row]
        for row in finders.itertuples(index=False)
    ]
    return {"columns": list(finders.columns), "rows": rows}


def _row(row: dict[Any, Any]) -> dict[str, Any]:
    bars, x = [], 0.0
    for name in SHARES:
        # Shares below nothing draw nothing, and no bar ends beyond the scale.
        width = float(np.clip(row[name], 0, 1 - x))
        bars.append({"name": name, "x": 100 * x, "width": 100 * width})
        x += width
    return {
        "name": f"L{row['layer']}H{row['head']}",
        "attention": (row["value"], row["ci_low"], row["ci_high"]),
        "word": row["word"],
        "shares": [(row[n], row[f"{n}_low"], row[f"{n}_high"]) for n in SHARES],
        "bars": bars,
    }
