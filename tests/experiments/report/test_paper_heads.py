"""Figures of a heads page for a paper: all that the page can save, with the page's numbers."""

import re

import numpy as np
import pytest
from matplotlib.figure import Figure as Drawn

from experiments.report.heads_page import HeadsReportData, render_heads
from experiments.report.paper.drawing import Drawing
from experiments.report.paper.heads import of_heads, of_labels
from nope_interp.errors import UserError
from probes.head_rules import LABELS
from tests.experiments.report.synthetic_heads import hybrid_heads, synthetic_heads

# What the page calls the figure of all labels.
_CALLED = {"map": "labels"}


@pytest.fixture(scope="module")
def report() -> HeadsReportData:
    return synthetic_heads()


def drawn(drawing: Drawing) -> Drawn:
    figure = Drawn(figsize=drawing.size)
    drawing.draw(figure)
    return figure


def test_every_figure_that_the_page_saves_has_a_name(report: HeadsReportData) -> None:
    page = render_heads(report)
    # The nearest id before the buttons that save a picture: the figure's own, or its part's.
    marks = re.findall(r'<(?:figure|section|details)[^>]* id="([\w-]+)"|data-kind="(svg)"', page)
    ids, last = set(), ""
    for name, button in marks:
        ids |= {last} if button else set()
        last = name or last
    # Bars of what leads heads stand in the cells of a table there.
    assert {_CALLED.get(name, name) for name in ids} | {"finders"} == set(of_heads(report))


def test_bars_have_the_shares_and_heads_their_word(report: HeadsReportData) -> None:
    axes = drawn(of_heads(report)["finders"]).axes
    for axis, token in zip(axes, ("previous", "own"), strict=True):
        rows = report.finders[report.finders["token"] == token]
        names = [label.get_text() for label in axis.get_yticklabels()]
        assert [name.split(", ") for name in names] == [
            [f"L{row.layer}H{row.head}", row.word] for row in rows.itertuples()
        ]
        widths = [patch.get_width() for patch in axis.patches]
        for nth, row in enumerate(rows.itertuples()):
            whole, *shares = widths[4 * nth : 4 * nth + 4]
            assert whole == 100
            # What would end beyond the scale is cut there.
            assert shares[0] == pytest.approx(100 * min(max(row.any_query, 0), 1))
            assert sum(shares) <= 100 + 1e-9


def test_figures_of_one_head_have_its_numbers(report: HeadsReportData) -> None:
    found = of_heads(report, "L2H1")
    maps = [axes for axes in drawn(found["attention"]).axes if axes.images]
    for axes, condition in zip(maps, report.conditions, strict=True):
        assert axes.get_title(loc="left") == f"{condition}, L2H1"
        np.testing.assert_array_equal(
            axes.images[0].get_array(), report.patterns[condition][0][2, 1]
        )
    (profile,) = drawn(found["profile"]).axes
    for line in profile.lines:
        kept = report.offset_profiles[str(line.get_label())]
        np.testing.assert_array_equal(line.get_ydata(), kept if kept.ndim == 1 else kept[2, 1])
    assert report.frequencies is not None
    highest_first = np.argsort(-report.frequencies["radians_per_token"][2], kind="stable")
    query, key = drawn(found["usage"]).axes[0].lines
    for line, name in ((query, "query_norm"), (key, "key_norm")):
        expected = report.frequencies[name][2, 1][highest_first]
        np.testing.assert_array_equal(line.get_ydata(), expected)


def test_figures_of_a_hybrid_are_of_the_layers_with_heads() -> None:
    report = hybrid_heads()
    found = of_heads(report, "L3H2")
    (profile,) = drawn(found["profile"]).axes
    lines = {str(line.get_label()): line.get_ydata() for line in profile.lines}
    np.testing.assert_array_equal(lines["intact"], report.offset_profiles["intact"][1, 2])
    weights = next(axes.images[0] for axes in drawn(found["attention"]).axes if axes.images)
    np.testing.assert_array_equal(weights.get_array(), report.patterns["intact"][0][1, 2])
    named = [label.get_text() for label in drawn(found["frequencies"]).axes[0].get_yticklabels()]
    assert named == ["L1H0", "L3H0"]
    rows = {round(patch.get_y() + 0.46) for patch in drawn(found["labels"]).axes[0].patches}
    assert rows == {1, 3}
    with pytest.raises(UserError, match="unknown head 'L0H2'"):
        of_heads(report, "L0H2")


def test_the_surest_head_is_drawn_where_none_is_named(report: HeadsReportData) -> None:
    """It is the head that the page opens."""
    labelled = report.heads[report.heads["label"] != "none"]
    surest = labelled.loc[labelled["confidence"].idxmax()]
    (axes,) = drawn(of_heads(report)["profile"]).axes
    assert axes.get_title(loc="left") == f"L{surest['layer']}H{surest['head']}"
    with pytest.raises(UserError, match="unknown head 'L2H9'"):
        of_heads(report, "L2H9")


def test_edges_join_the_heads_that_they_are_of(report: HeadsReportData) -> None:
    (axes,) = drawn(of_heads(report)["circuit"]).axes
    ends = [
        [*zip(*(map(float, data) for data in line.get_data()), strict=True)] for line in axes.lines
    ]
    ranked = sorted(report.edges, key=lambda edge: edge["score"])  # the strongest in front
    assert ends == [
        [(e["from_layer"], e["from_head"]), (e["to_layer"], e["to_head"])] for e in ranked
    ]
    dashed = [line.get_linestyle() == "--" for line in axes.lines]
    assert dashed == [edge["score"] <= edge["chance"] for edge in ranked]
    alone = synthetic_heads(edges=[{**ranked[0], "chance": np.nan}])
    (axes,) = drawn(of_heads(alone)["circuit"]).axes
    assert [line.get_linestyle() for line in axes.lines] == ["-"]


def test_no_two_labels_have_one_colour() -> None:
    figure = drawn(of_labels({"intact": {0: list(LABELS)}}, LABELS))
    colours = [patch.get_facecolor() for patch in figure.axes[0].patches]
    assert len(colours) == len({*colours}) == len(LABELS)
