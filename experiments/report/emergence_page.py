"""The page of one run of `nope-interp emergence`: the order of the codes, and curves over steps."""

from collections.abc import Mapping, Sequence

from experiments.report.findings import PageData, figure_data
from experiments.report.shell import fill, measurements_table, page_script, plotly
from experiments.results.findings import Figure
from experiments.results.measured import Measured


def render_emergence(
    data: PageData, claims: Mapping[str, Measured], figures: Sequence[Figure]
) -> str:
    """The whole report as one HTML page: scripts, styles and numbers inside, no request made."""
    page_data = {
        "figures": [figure_data(figure) for figure in figures],
        "table": measurements_table(data.measurements),
    }
    return fill(
        "emergence.html",
        [plotly(), page_script("reproduce.js")],
        page_data,
        data,
        claims=claims,
        figures=figures,
    )
