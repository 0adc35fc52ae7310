"""Tables as Markdown."""

from typing import Any

import pandas as pd


def markdown_table(table: pd.DataFrame) -> str:
    """A Markdown table with numbers to three digits."""
    lines = [list(table.columns), ["---"] * len(table.columns)]
    lines += [[_cell(value) for value in row] for row in table.itertuples(index=False)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _cell(value: Any) -> str:
    if pd.isna(value):
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value).replace("|", "\\|")
