"""The page of a reproduction in a real browser, network off: curves, heat maps, downloads."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from selenium import webdriver

from experiments.papers.config import ReproduceConfig
from experiments.papers.kazemnejad2023 import counter
from experiments.papers.reproduce import reproduce
from experiments.papers.result import Reproduction
from experiments.results.findings import Figure, Panel, line, pack
from tests.experiments.report.browser import Browser, Tab
from tests.experiments.report.parsed_page import HOSTILE

pytestmark = pytest.mark.browser

SCALES = ("2", "4", "8")
PLACES = ("first", "second", "the last of them")
HEAT = np.array([[0.1, 0.5, -0.2], [0.9, 0.0, np.nan]])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    """The theorems, and a heat map whose columns are named by numbers."""
    config = ReproduceConfig("kazemnejad2023", n_seeds=2, length=0.25)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counter, "_SPLITS", (("fit", 32), ("held_out", 16)))
        run = reproduce(config, out=tmp_path_factory.mktemp("runs"))
    rows = zip((HOSTILE, "row 2"), HEAT, strict=True)
    series = tuple(line(name, "measured", np.arange(3), row) for name, row in rows)
    heat = Figure("heat", HOSTILE, "c", "scale", "R²", (Panel("map", series),), ticks=SCALES)
    at = np.arange(len(PLACES))
    several = tuple(line(f"curve {i}", "measured", at, at + i) for i in range(3))
    panels = tuple(Panel(f"panel {i}", several) for i in range(3))  # narrow ones
    few = np.array([128.0, 256.0, 512.0])
    short = Panel("p", (line("curve", "measured", few, few),))
    lengths = Figure("lengths", "t", "c", "tokens", "n", (short,), log="xy")
    named = Figure("named", "named places", "c", "place", "number", panels, ticks=PLACES)
    figures = [*run.figures, lengths, dataclasses.replace(heat, heat_about=0.0), named]
    words, arrays = pack(figures)
    return dataclasses.replace(run, info=run.info | {"figures": words}, arrays=arrays)


@pytest.fixture(scope="module")
def tab(
    driver: webdriver.Chrome,
    downloads: Path,
    found: Reproduction,
    tmp_path_factory: pytest.TempPathFactory,
) -> Tab:
    path = found.write_report(tmp_path_factory.mktemp("page") / "page.html")
    return Tab(driver, path.as_uri(), downloads)


@pytest.fixture
def browser(tab: Tab) -> Iterator[Browser]:
    with tab.shown() as browser:
        yield browser


def test_curves_are_the_runs_numbers(browser: Browser, found: Reproduction) -> None:
    for figure in found.figures[:-2]:
        for p, panel in enumerate(figure.panels):
            drawn = browser.traces(figure.id, p)
            assert [trace["name"] for trace in drawn] == [series.name for series in panel.series]
            for trace, series in zip(drawn, panel.series, strict=True):
                np.testing.assert_allclose(trace["y"], series.y, rtol=1e-4)


def test_columns_named_by_numbers_keep_their_names_and_order(browser: Browser) -> None:
    [trace] = browser.traces("heat")
    assert trace["type"] == "heatmap"
    assert tuple(trace["x"]) == SCALES
    np.testing.assert_allclose(np.array(trace["z"], dtype=float), HEAT)
    axis = browser.run("return document.querySelector('#heat .plot')._fullLayout.xaxis.type")
    assert axis == "category"


def test_charts_tell_their_numbers_to_who_hears_them(browser: Browser) -> None:
    said = browser.find("#lengths .plot").get_attribute("aria-label")
    assert said == "p: line chart, n against tokens. curve from 128 to 512"
    said = browser.find("#heat .plot").get_attribute("aria-label")
    assert said == "map: heat map of R² from −0.2 to 0.9"


def test_an_axis_of_less_than_a_decade_has_labels(browser: Browser) -> None:
    for axis in ("xtick", "ytick"):
        shown = browser.all(f"#lengths .plot .{axis} text")
        assert len([label for label in shown if label.text]) > 1


def test_curves_at_named_places_stand_apart_under_all_names(browser: Browser) -> None:
    drawn = browser.traces("named")
    x = np.array([trace["x"] for trace in drawn])
    assert np.unique(x).size == x.size
    np.testing.assert_array_equal(x.round(), [np.arange(3)] * 3)
    names = browser.run(
        "return [...document.querySelectorAll('#named .plot .xtick text')]"
        ".filter(t => getComputedStyle(t).visibility !== 'hidden' && t.style.display !== 'none')"
        ".map(t => t.textContent)"
    )
    assert tuple(names) == PLACES * 3
    keys = [key.text for key in browser.all("#named .legend .key")]
    assert keys == [trace["name"] for trace in drawn]  # said once for all three panels
    # Each curve has a symbol of its own, which its key has too.
    symbols = browser.run(
        "return document.querySelector('#named .plot').data.map(trace => trace.marker.symbol)"
    )
    assert len(set(symbols)) == len(PLACES)
    marks = browser.all("#named .legend .swatch")
    assert [mark.get_attribute("data-symbol") for mark in marks] == symbols
    saved = ElementTree.parse(browser.saved("#named .picture[data-kind='svg']", ".svg"))
    assert len(saved.findall("{*}polygon")) == len(symbols) - 1  # one is a circle


def test_downloads_hold_the_numbers(browser: Browser) -> None:
    header, *rows = browser.download("#heat .csv")
    assert header == ["panel", "curve", "scale", "R²", "ci_low", "ci_high"]
    assert rows[1][:4] == ["map", HOSTILE, "4", "0.5"]
    header, *rows = browser.download("#table-csv")
    assert "metric" in header
    assert len(rows) > 100


def test_the_claims_are_saved_as_a_table(browser: Browser, found: Reproduction) -> None:
    header, *rows = browser.download("#answer .csv")
    assert header[:4] == ["claim", "says", "verdict", "value"]
    assert [row[0] for row in rows] == [outcome.claim.id for outcome in found.outcomes]
    for row, outcome in zip(rows, found.outcomes, strict=True):
        value = outcome.found.value
        assert row[2:4] == [outcome.verdict, "" if np.isnan(value) else f"{value:.5g}"]


def test_the_claims_are_saved_as_a_picture(browser: Browser, found: Reproduction) -> None:
    drawn = ElementTree.parse(browser.saved("#answer .picture[data-kind='svg']", ".svg"))
    words = " ".join("".join(drawn.getroot().itertext()).split())
    for outcome in found.outcomes:
        assert str(outcome.verdict) in words
    kinds = [mark.tag.split("}")[1] for mark in drawn.getroot().iterfind("{*}svg/*")]
    measured = sum(not np.isnan(outcome.found.value) for outcome in found.outcomes)
    assert kinds.count("rect") == measured > 0


def test_every_claim_has_its_verdict_and_the_theme_switches(
    browser: Browser, found: Reproduction
) -> None:
    words = [word.text for word in browser.all("#claims .word")]
    assert words == [outcome.verdict for outcome in found.outcomes]
    before = browser.run("return getComputedStyle(document.body).backgroundColor")
    browser.click("#theme")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") != before
