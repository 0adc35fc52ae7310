"""All charts of a comparison's page, in its order."""

from collections.abc import Mapping
from typing import Any

from experiments.report import figures, moves, uses
from experiments.report.data import ReportData
from experiments.report.figures import Chart
from experiments.report.sequence import sequence_chart


def charts_of(data: ReportData, told: Mapping[str, Any] | None) -> list[Chart]:
    """The charts that have something to draw.

    Args:
        data: of the page.
        told: what `experiments.report.history.history_of` gives.

    Returns:
        Those by layer and position, of moves, of removal, of one sequence, of a training.
    """
    found = [chart for section in figures.sections(data) for chart in section.charts]
    found += [moves.dose_chart(data), uses.where_chart(data.uses), sequence_chart(data)]
    found += told["charts"] if told else []
    return [chart for chart in found if chart.views]
