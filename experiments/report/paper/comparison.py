"""The figures of a comparison's page, in a paper's style."""

from experiments.report import history, lookup, uses
from experiments.report.charts import charts_of
from experiments.report.data import ReportData
from experiments.report.figures import settings_of
from experiments.report.paper.charts import of_chart
from experiments.report.paper.drawing import Drawing
from experiments.report.paper.example import of_attention, of_strip
from experiments.report.paper.still import of_still_readable
from experiments.report.paper.verdict import of_verdict


def of_comparison(data: ReportData) -> dict[str, Drawing]:
    """The page's figures by name, each as it opens there."""
    settings = settings_of(data)
    opened = lookup.view_key(*settings[0]) if settings else ""
    found = [of_verdict(data.answer)] if data.answer.codes else []
    found += [of_chart(chart, opened) for chart in charts_of(data, history.history_of(data))]
    found += [
        of_still_readable(group)
        for group in uses.use_groups(data)
        if group["setting"] == settings[0] and group["still"]["columns"]
    ]
    found += [draw for draw in (of_strip(data), of_attention(data)) if draw]
    return {drawing.name: drawing for drawing in found}
