"""Tables as Markdown."""

from typing import Any

import pandas as pd


def markdown_table(table: pd.DataFrame) -> str:
    """A Markdown table with numbers to three digits."""
    lines = [[_cell(name) for name in table.columns], ["---"] * len(table.columns)]
    lines += [[_cell(value) for value in row] for row in table.itertuples(index=False)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _cell(value: Any) -> str:
    if pd.isna(value):
        return "–"
    if isinstance(value, float):
        return f"{value + 0:.3g}"  # zero has no sign
    return " ".join(str(value).splitlines()).replace("|", "\\|")
