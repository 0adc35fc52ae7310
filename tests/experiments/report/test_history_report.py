"""When the codes appear, on the page: planted numbers come back, in text and in a real browser."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from selenium.webdriver.common.keys import Keys

from experiments.report import figures
from experiments.report.data import ReportData
from experiments.report.history import history_of
from experiments.report.page import render
from experiments.report.uses import use_groups
from experiments.results.emergence import code_gains, order_sentence
from experiments.results.readability import widened
from probes.head_rules import RULES
from tests.experiments.conftest import HISTORY_STEPS, with_history
from tests.experiments.report.browser import Browser
from tests.experiments.report.parsed_page import HOSTILE, IMAGE, Page


@pytest.fixture(scope="module")
def page_text(history_report: ReportData) -> str:
    return render(history_report)


def section_of(page_text: str) -> str:
    return page_text.split('<details class="part" id="history"')[1].split("\n</details>\n")[0]


def panels(page: Page, chart: str) -> dict[str, dict[str, dict[str, Any]]]:
    """{title: {kind: series}} of a chart."""
    found = page.data["charts"][chart]["views"][""]["panels"]
    return {p["title"]: {s["kind"]: s for s in p["series"]} for p in found}


def test_a_run_without_a_history_says_nothing_of_it(small_report: ReportData) -> None:
    text = render(small_report)
    assert history_of(small_report) is None
    assert 'id="history"' not in text
    assert Page(text).data["history"] is None


def test_the_rest_of_the_page_is_not_touched_by_a_history(causal_report: ReportData) -> None:
    both = with_history(causal_report)
    assert figures.sections(both) == figures.sections(causal_report)
    # Heads are read on tokens of their own, which are no setting of the page.
    assert figures.settings_of(both) == figures.settings_of(causal_report)
    without = {
        word for group in use_groups(causal_report) for word in map(str, group["still"].values())
    }
    assert without == {
        word for group in use_groups(both) for word in map(str, group["still"].values())
    }


def test_the_page_is_closed_and_names_the_section(page_text: str, page: Page) -> None:
    page.assert_asks_nothing_of_the_network()
    page.assert_lets_only_its_own_scripts_run()
    assert '<a href="#history">' in page_text
    assert "<dt>Onset</dt>" in page_text
    charts = re.findall(r'<figure class="chart.*?</figure>', section_of(page_text), re.DOTALL)
    assert len(charts) == 3
    for text in charts:
        assert 'class="quiet csv"' in text
        assert re.search(r"<h3[^>]*>\s*\w", text)
        assert re.search(r"<figcaption>\s*\w", text)


def test_the_sentence_says_what_was_planted(history_report: ReportData, page: Page) -> None:
    told = order_sentence(history_report.measurements)
    assert told == (
        "Surely readable first in this training: similarity before any step; then variance by "
        "step 2; then counting and any linear code by step 4. Surely readable at no watched step: "
        "mean residual. The loss has come half of its way down by step 4."
    )
    words = re.sub(r"\s+", " ", " ".join(page.words))
    assert told in words
    assert "This is one training" in words
    assert "nope-interp emergence --seeds 5" in words


def test_nothing_readable_is_said_so(history_report: ReportData) -> None:
    table = history_report.measurements
    told = order_sentence(table[table["step"].isin([0, 1]) & (table["probe"] != "similarity")])
    assert told.startswith("Surely readable at no watched step: variance, ")
    assert "first" not in told


def test_codes_are_drawn_as_they_were_planted(page: Page, history_report: ReportData) -> None:
    found = panels(page, "history-codes")
    assert next(iter(found)) == "loss"
    assert len(found) == 7
    gains = code_gains(history_report.measurements)
    for code, onset in (("variance", 2), ("counting", 4), ("mean residual", 99)):
        line = found[code]["value"]
        # In doublings; step 0 is one before step 1.
        assert line["x"] == [-1, 0, 1, 2, 3, pytest.approx(np.log2(12), abs=1e-6)]
        wanted = [0.5 + n / 100 if s >= onset else 0 for n, s in enumerate(HISTORY_STEPS)]
        assert line["y"] == pytest.approx(wanted, abs=1e-5)
        of_code = gains[gains["code"] == code]
        assert line["low"] == pytest.approx(of_code["low"].tolist(), abs=1e-4)
        assert line["high"] == pytest.approx(of_code["high"].tolist(), abs=1e-4)
        assert (of_code["low"] < of_code["gain"]).all()
        assert found[code]["chance"]["y"] == [0] * 6
        assert found[code]["control"]["y"] == pytest.approx([0] * 6)
        assert set(found[code]["fit"]["y"]) == {0.1}
    assert found["variance"]["value"]["text"][2] == "step 2, layer 1 attn_out"
    assert found["loss"]["value"]["y"] == [5, 4.5, 4, 3.5, 3, 2.5]
    assert set(found["loss"]["chance"]["y"]) == {3.3}


def test_adjacency_is_that_of_its_best_site(page: Page) -> None:
    found = panels(page, "history-codes")["adjacency A"]
    wanted = [0.5 + (0.5 + nth / 100) / 2 for nth in range(6)]
    assert found["value"]["y"] == pytest.approx(wanted)
    assert set(found["control"]["y"]) == set(found["chance"]["y"]) == {0.5}
    # Picked from four places at six steps.
    low, high = widened(wanted[3], wanted[3] - 0.001, wanted[3] + 0.001, 4 * 6, 64)
    assert found["value"]["low"][3] == pytest.approx(low, abs=1e-5)
    assert found["value"]["high"][3] == pytest.approx(high, abs=1e-5)


def test_the_strongest_head_of_each_kind_stands_with_chance_and_threshold(page: Page) -> None:
    found = panels(page, "history-heads")
    assert list(found) == [rule.label for rule in RULES]
    for rule in RULES:
        kinds = found[rule.label]
        assert kinds["value"]["y"] == pytest.approx([0.11 + n / 1000 for n in range(6)])
        assert kinds["value"]["text"][1] == "step 1, L1H1"
        assert set(kinds["fit"]["y"]) == {rule.threshold}
        assert ("chance" in kinds) == (rule.metric != "uniform")
    low, _ = widened(0.11, 0.109, 0.111, 4 * 6, 16)
    assert found["local"]["value"]["low"][0] == pytest.approx(low, abs=1e-5)


def test_sequences_too_short_for_heads_leave_them_out(history_report: ReportData) -> None:
    table = history_report.measurements
    few = replace(history_report, measurements=table[~table["probe"].isin(["heads", "label"])])
    told = history_of(few)
    assert told is not None
    assert [chart.id for chart in told["charts"]] == ["history-codes"]
    assert {moment["labels"] for moment in told["steps"]} == {""}
    assert "<td>labels</td>" not in render(few)


def test_hostile_sites_and_labels_are_text(history_report: ReportData) -> None:
    table = history_report.measurements.copy()
    kept = table["step"].notna()
    table.loc[kept & (table["site"] == "attn_out"), "site"] = HOSTILE
    table.loc[kept & (table["probe"] == "label"), "metric"] = IMAGE
    table.loc[kept, "tokens"] = IMAGE
    text = render(replace(history_report, measurements=table))
    assert IMAGE not in text
    assert HOSTILE not in text
    words = "".join(Page(section_of(text)).words)
    assert f"layer 1 {HOSTILE}" in words
    assert f"4 {IMAGE}" in words
    assert f"on {IMAGE}, no begin token" in words


@pytest.fixture(scope="module")
def page_file(page_text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page_text, encoding="utf-8")
    return path


def shown(browser: Browser) -> dict[str, list[str]]:
    """The cells of the visible table, by the name of their row."""
    rows = [row for row in browser.all("#history-table tbody tr") if row.is_displayed()]
    cells = [
        browser.run("return [...arguments[0].cells].map(c => c.innerText)", row) for row in rows
    ]
    return {name: rest for name, *rest in cells}


def marked(browser: Browser) -> set[tuple[float, ...]]:
    """Where the mark stands in the panels that have been drawn."""
    return {
        tuple(found)
        for found in browser.run(
            "return [...document.querySelectorAll('#history .plot')]"
            ".map(plot => plot.layout.shapes.flatMap(s => [s.x0, s.x1]))"
        )
    }


@pytest.mark.browser
def test_the_slider_moves_the_mark_and_the_table(shared: Browser) -> None:
    last = pytest.approx((np.log2(12),) * 2, abs=1e-5)
    (at,) = marked(shared)
    assert at == last
    assert len(shared.all("#history .plot")) == 7 + 8
    table = shown(shared)
    assert len(table) == 8
    assert table["loss"][2] == "2.5"
    assert table["variance"][1:3] == ["layer 1 attn_out", "0.55"]
    assert table["variance"][-1] == "readable"
    assert table["heads"] == ["labels", "1 previous-token, 3 without a label"]

    slider = shared.find("#history-step")
    assert slider.accessible_name == "After step"
    slider.send_keys(Keys.HOME)
    assert shared.find("#history output").text == "0"
    assert slider.get_attribute("aria-valuetext") == "step 0"
    assert marked(shared) == {(-1, -1)}
    table = shown(shared)
    assert table["loss"][2] == "5"
    assert table["variance"][2] == "0"
    assert table["similarity"][-1] == "readable"
    assert table["heads"] == ["labels", "4 without a label"]
    slider.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert shared.find("#history output").text == "2"
    assert shown(shared)["variance"][2] == "0.52"
    # It stays where it is when all is drawn anew in the other colours.
    colour = "return document.querySelector('#history .plot').layout.shapes[0].line.color"
    before = shared.run(colour)
    shared.click("#theme")
    assert shared.run(colour) != before
    assert marked(shared) == {(1, 1)}


@pytest.mark.browser
def test_paper_shows_the_last_step_and_no_slider(shared: Browser) -> None:
    shared.find("#history-step").send_keys(Keys.HOME)
    shared.run("dispatchEvent(new Event('beforeprint'))")
    shared.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not shared.find("#history-step").is_displayed()
    assert shared.find("#history-table h3").text == "At step 12"
    assert shown(shared)["loss"][2] == "2.5"
    shared.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    shared.run("dispatchEvent(new Event('afterprint'))")
    assert shown(shared)["loss"][2] == "5"
    assert shared.driver.print_page()
    assert marked(shared) == {(-1, -1)}


@pytest.mark.browser
def test_all_steps_are_saved(shared: Browser, history_report: ReportData) -> None:
    header, *rows = shared.download("#history-table .csv")
    table = pd.DataFrame(rows, columns=header)
    assert len(table) == 6 * 7 + 2 * 6 - 3  # a second label from the fourth step on
    variance = table[table["what"] == "variance"]
    assert variance["step"].tolist() == [str(step) for step in HISTORY_STEPS]
    gains = code_gains(history_report.measurements).query("code == 'variance'")
    for ours, column in (("value", "gain"), ("ci_low", "low"), ("ci_high", "high")):
        # Five significant digits are kept.
        assert np.allclose(variance[ours].astype(float), gains[column], rtol=1e-4, atol=1e-9)
    labels = table[table["what"] == "heads labelled previous-token"]
    assert labels[["step", "value"]].to_numpy().tolist() == [["4", "1"], ["8", "1"], ["12", "1"]]

    header, *rows = shared.download("#history-codes .csv")
    assert header[4:7] == ["at", "optimiser_steps", "value"]
    loss = [row for row in rows if row[0] == "loss" and row[2] == "measured"]
    assert [row[5] for row in loss] == [str(step) for step in HISTORY_STEPS]
    assert [float(row[6]) for row in loss] == [5, 4.5, 4, 3.5, 3, 2.5]
    header, *rows = shared.download("#history-heads .csv")
    assert {row[2] for row in rows} == {"measured", "chance", "threshold of the label"}
