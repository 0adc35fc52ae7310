"""The page of one run of `nope-interp emergence`: the order of the codes, and curves over steps."""

from typing import TYPE_CHECKING

from experiments.report._shell import fill, measurements_table, page_script, plotly
from experiments.report.findings import PageData, figure_data

if TYPE_CHECKING:
    from experiments.emergence.watch import Emergence


def render_emergence(run: "Emergence") -> str:
    """The whole report as one HTML page: scripts, styles and numbers inside, no request made."""
    figures = run.figures
    page_data = {
        "figures": [figure_data(figure) for figure in figures],
        "table": measurements_table(run.measurements),
    }
    data = PageData("When do the position codes appear?", run.headline, run.measurements, run.info)
    return fill(
        "emergence.html",
        [plotly(), page_script("reproduce.js")],
        page_data,
        data,
        claims=run.claims,
        figures=figures,
    )
