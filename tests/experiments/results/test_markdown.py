"""Tables as Markdown stay tables, whatever their cells hold."""

import pandas as pd

from experiments.results.markdown import markdown_table


def test_lines_and_bars_of_a_cell_or_a_name_end_no_cell() -> None:
    table = pd.DataFrame({"a|b": ["x\ny", "1|2"], "n": [-0.0, 1234.5]})
    assert markdown_table(table).splitlines() == [
        "| a\\|b | n |",
        "| --- | --- |",
        "| x y | 0 |",
        "| 1\\|2 | 1.23e+03 |",
    ]
