"""The page's section on moved positions, from a table of moves made by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd

from experiments.report.data import ReportData
from experiments.report.moves import dose_chart, moves_of
from experiments.report.page import render
from experiments.report.paper.comparison import of_comparison
from experiments.results import interchange as names
from experiments.results import text_use
from experiments.results.code_ablation import EVERYWHERE, SIZE_MATCHED, STREAM
from tests.experiments.report.parsed_page import Page

FOLLOWED = pd.DataFrame(
    {
        "code": ["mean residual", "variance"],
        "layer": [-1, 0],
        "site": ["resid_post", "resid_pre"],
        "moved": ["<b>asking</b>", "question"],
        "word": ["used", "undecided"],
        "why": ["", "moved: <i>unsure</i>"],
        "towards": [0.9, np.nan],
        "net": [0.876, 0.0],
        "net_low": [0.81, 0.0],
        "net_high": [0.93, 0.0],
        "q": [0.01, np.nan],
        "broken": [-0.021, np.nan],
        "broken_low": [-0.04, np.nan],
        "broken_high": [0.03, np.nan],
        "restored_net": [0.55, 0.0],
        "restored_net_low": [0.5, 0.0],
        "restored_net_high": [0.6, 0.0],
    }
)


def test_each_move_has_a_line_and_names_stay_text(causal_report: ReportData) -> None:
    page = Page(render(replace(causal_report, followed=FOLLOWED)))
    text = " ".join(" ".join(page.words).split())
    line = "mean residual whole stream <b>asking</b> used 88% [81%, 93%] {} 55% [50%, 60%]"
    assert line.format("−2% [−4%, 3%]") in text
    nothing = " ".join(["nothing to move"] * 3)
    assert f"variance resid_pre, layer 0 question undecided {nothing} moved: <i>unsure</i>" in text
    assert "answers that follow" in text


def test_moves_of_a_code_stand_together(causal_report: ReportData) -> None:
    """Codes by their largest move, and of a code the larger move first; ties by name."""
    nets = {("trend", "a"): 0.1, ("mean", "a"): 0.3, ("even", "a"): 0.2, ("trend", "b"): 0.2}
    order = pd.concat([FOLLOWED.iloc[:1]] * len(nets)).assign(
        code=[code for code, _ in nets], moved=[moved for _, moved in nets], net=[*nets.values()]
    )
    found = moves_of(replace(causal_report, followed=order.reset_index(drop=True)))
    assert found is not None
    drawn = [(row["code"], row["moved"]) for row in found["rows"]]
    assert drawn == [("mean", "a"), ("trend", "b"), ("trend", "a"), ("even", "a")]


def test_smaller_moves_are_drawn_from_no_move_on(causal_report: ReportData) -> None:
    rows = causal_report.measurements
    shares = {names.at_dose(0.3): (0.2, 0.02), names.TOWARDS: (0.7, 0.1)}
    less = dict.fromkeys(shares, (0.0, 0.0))
    moves = [
        rows.head(1).assign(
            probe=names.PROBE,
            layer=EVERYWHERE,
            site=STREAM,
            positions=names.noising("variance", moved),
            metric=metric,
            control=control,
            value=value,
            ci_low=value - 0.01,
            ci_high=value + 0.01,
        )
        for moved, of in (("text by 32 positions", less), ("earlier tokens", shares))
        for metric, values in of.items()
        for control, value in zip(("", SIZE_MATCHED), values, strict=True)
    ]
    data = replace(causal_report, measurements=pd.concat([rows, *moves]), followed=FOLLOWED)
    chart = dose_chart(data)
    assert [*chart.views] == ["earlier tokens, permuted", "text by 32 positions"]  # most first
    assert chart.chance == "no move"
    (panel,) = chart.views["earlier tokens, permuted"]["panels"]
    drawn = {series["kind"]: series for series in panel["series"]}
    assert (panel["title"], panel["y"]) == ("variance", "share of answers")
    assert drawn["value"]["x"] == [0, 0.3, 1]
    assert drawn["value"]["y"] == [0, 0.2, 0.7]
    assert drawn["value"]["low"] == [0, 0.19, 0.69]
    assert drawn["control"]["y"] == [0, 0.02, 0.1]
    page = render(data)
    assert 'data-chart="doses"' in page
    # Neither the table nor the chart follows the choice of a setting.
    assert "All of this is on text without a begin token, whatever is chosen above." in page
    assert of_comparison(data)["doses"]


def test_without_moves_there_is_no_section(causal_report: ReportData) -> None:
    assert moves_of(causal_report) is None
    assert not dose_chart(causal_report).views
    assert 'id="follow"' not in render(causal_report)


def test_where_nothing_could_be_followed_a_sentence_says_so(causal_report: ReportData) -> None:
    rows = causal_report.measurements
    over = rows.head(1).assign(
        probe=text_use.PROBE,
        metric=text_use.OVER_NOISE,
        positions="text by 32 positions",
        ci_low=-0.1,
    )
    data = replace(causal_report, measurements=pd.concat([rows, over]), followed=FOLLOWED)
    found = moves_of(data)
    assert found is not None
    assert "the way" in found["share_of"]
    assert found["nothing"].startswith("Moving text by 32 positions changes predictions no more")
    assert text_use.nothing_further_on(rows) is None
    assert text_use.nothing_further_on(over.assign(ci_low=0.1)) is None
    short = over.assign(metric=names.OVER_TENTH, ci_high=-0.1)
    told = text_use.nothing_further_on(short)
    assert told is not None
    assert told.endswith("else the order of earlier tokens decides.")
    assert text_use.nothing_further_on(short.assign(ci_high=0.1)) is None
    none = pd.concat([short, short.assign(metric=names.OVER_THOUSANDTH)])
    told = text_use.nothing_further_on(none)
    assert told is not None
    assert "by less than a thousandth" in told
    assert told.endswith("so the order of earlier tokens alone decides.")
