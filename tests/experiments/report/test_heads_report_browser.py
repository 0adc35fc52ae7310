"""The heads page in a real browser, network off: it selects, filters, toggles and saves."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from experiments.report.heads_page import HeadsReportData, render_heads
from tests.experiments.report.browser import (
    DESKTOP,
    Browser,
    box,
    framed,
    ground,
    keep,
    window,
)
from tests.experiments.report.parsed_page import HOSTILE
from tests.experiments.report.synthetic_heads import METRICS, hybrid_heads, synthetic_heads

pytestmark = pytest.mark.browser

ABLATED = "rotary:none"


@pytest.fixture(scope="module")
def report() -> HeadsReportData:
    return synthetic_heads(n_layers=4, n_heads=4, n_tokens=24, n_prompts=2)


@pytest.fixture(scope="module")
def page_file(report: HeadsReportData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "heads.html"
    path.write_text(render_heads(report), encoding="utf-8")
    return path


@pytest.fixture
def browser(driver: webdriver.Chrome, downloads: Path, page_file: Path) -> Iterator[Browser]:
    driver.get("about:blank")  # an address that differs in its hash alone would load nothing
    browser = Browser(driver, page_file.as_uri(), downloads).open_everything()
    yield browser
    assert driver.get_log("browser") == []


def head_of(report: HeadsReportData, label: str) -> tuple[int, int]:
    """The first head with that label."""
    row = report.heads[report.heads["label"] == label].iloc[0]
    return int(row["layer"]), int(row["head"])


def title(browser: Browser) -> str:
    return browser.find("#head-title").text


def cell(layer: int, head: int, condition: int = 0, heads: int = 4) -> str:
    return f".map:nth-child({condition + 1}) [data-head='{layer * heads + head}']"


def shown_weights(browser: Browser) -> dict[str, np.ndarray]:
    """The patterns of the head that is open, as its CSV holds them."""
    header, *rows = browser.download("#attention .csv")
    assert header == ["positions", "query", "key", "weight"]
    n = 1 + max(int(row[1]) for row in rows)
    patterns = {condition: np.zeros((n, n)) for condition in {row[0] for row in rows}}
    for condition, query, key, weight in rows:
        patterns[condition][int(query), int(key)] = float(weight)
    return patterns


def canvases(browser: Browser) -> list[Any]:
    found = browser.all("#attention .circuits canvas")
    return [canvas for canvas in found if canvas.is_displayed()]


# ---------------------------------------------------------------- opening


def test_the_page_opens_at_the_surest_head_draws_everything_and_asks_for_nothing(
    browser: Browser, report: HeadsReportData
) -> None:
    surest = report.heads.loc[report.heads.query("label != 'none'")["confidence"].idxmax()]
    assert title(browser) == f"L{surest['layer']}H{surest['head']} {surest['label']}"
    browser.wait(lambda: len(canvases(browser)) == 2)
    assert len(browser.all(".map")) == 2
    assert len(browser.all("[role=gridcell]")) == 2 * 16
    for plot in ("#profile .plot", "#frequencies .plot"):
        assert browser.all(f"{plot} .main-svg"), plot
    assert browser.all("#frequencies .heatmaplayer image")
    assert browser.all(".graph path.edge")
    asked = browser.run("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in asked if not name.startswith("data:")] == []


def test_hostile_tokens_show_as_text(shared: Browser, report: HeadsReportData) -> None:
    assert shared.driver.title == report.title
    assert shared.find(".prompt span").text == HOSTILE
    option = shared.find("select[name=prompt] option")
    assert option.text.startswith("1: </script><script>")
    assert len(shared.all("script")) == 6  # two libraries, each once packed and once unpacked
    assert shared.all("script script, .prompt script, option script") == []


# ---------------------------------------------------------------- selecting a head


def test_a_click_on_the_map_opens_the_head(shared: Browser, report: HeadsReportData) -> None:
    layer, head = head_of(report, "diagonal")
    shared.run("scrollTo(0, 0)")
    shared.click(cell(layer, head))
    assert title(shared) == f"L{layer}H{head} diagonal"
    assert shared.driver.current_url.endswith(f"#L{layer}H{head}")
    marked = shared.all("[role=gridcell][data-selected]")
    assert {item.get_attribute("data-head") for item in marked} == {str(layer * 4 + head)}
    assert len(marked) == 2  # in both maps
    # The page scrolled to it.
    shared.wait(lambda: shared.run("return scrollY") > 0)


def test_a_click_on_the_ablated_map_opens_the_same_head(shared: Browser) -> None:
    shared.click(cell(2, 3, condition=1))
    assert title(shared).startswith("L2H3 ")


def test_a_link_opens_its_head(driver: webdriver.Chrome, page_file: Path, downloads: Path) -> None:
    driver.get("about:blank")
    browser = Browser(driver, f"{page_file.as_uri()}#L2H1", downloads).wait_until_ready()
    assert title(browser).startswith("L2H1 ")
    browser.run("location.hash = 'L1H3'")
    browser.wait(lambda: title(browser).startswith("L1H3 "))
    browser.run("location.hash = 'map'")  # a section, no head
    assert title(browser).startswith("L1H3 ")
    driver.back()
    driver.back()
    browser.wait(lambda: title(browser).startswith("L2H1 "))
    assert driver.get_log("browser") == []


def test_the_keyboard_walks_the_map(shared: Browser) -> None:
    first = shared.find(".map [data-head='0']")
    first.send_keys(Keys.ARROW_DOWN)
    shared.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    here = shared.driver.switch_to.active_element
    assert here.get_attribute("data-head") == "5"
    assert "L1H1" in str(here.get_attribute("aria-label"))
    here.send_keys(Keys.ENTER)
    assert title(shared).startswith("L1H1 ")
    # The grid is one stop of the tab key.
    assert len(shared.all(".map:first-child [role=gridcell][tabindex='0']")) == 1


def test_pointing_at_a_head_shows_its_numbers(shared: Browser, report: HeadsReportData) -> None:
    layer, head = head_of(report, "previous-token")
    row = report.heads.query(f"layer == {layer} and head == {head}").iloc[0]
    here = shared.find(cell(layer, head))
    shared.run("arguments[0].scrollIntoView({block: 'center'})", here)
    # From a corner: where the pointer is already, it would not move at all.
    from_corner = ActionChains(shared.driver).move_to_element_with_offset(here, -3, -3)
    from_corner.move_to_element(here).perform()
    # The head that the keyboard reached last may still be told of.
    shared.wait(lambda: f"L{layer}H{head}: previous-token" in shared.find("#tip").text)
    tip = shared.find("#tip").text
    assert f"confidence {row['confidence']:.3g}" in tip
    assert "ablated: uniform" in tip
    ActionChains(shared.driver).move_to_element(shared.find("h1")).perform()
    shared.wait(lambda: not shared.find("#tip").is_displayed())


def test_the_map_is_coloured_by_label_or_by_a_metric(
    shared: Browser, report: HeadsReportData
) -> None:
    layer, head = head_of(report, "diagonal")
    row = report.heads.query(f"layer == {layer} and head == {head}").iloc[0]
    assert shared.find(cell(layer, head)).text == "D"
    assert shared.find(cell(layer, head, condition=1)).text == "U"
    counts = report.heads["label"].value_counts()
    after = report.heads["ablated_label"].value_counts()
    legend = " ".join(shared.find("#map .legend").text.split())
    assert f"diagonal {counts['diagonal']} → {after.get('diagonal', 0)}" in legend
    colours = shared.find(cell(layer, head)).value_of_css_property("background-color")
    by_label = shared.find("select[name=shade]").get_attribute("value")
    shared.choose("select[name=shade]", "diagonal")
    shown = [float("0" + shared.find(cell(layer, head, c)).text) for c in (0, 1)]
    assert shown == pytest.approx([row["diagonal"], row["diagonal_ablated"]], abs=0.0051)
    assert shared.find(cell(layer, head)).value_of_css_property("background-color") != colours
    shared.choose("select[name=shade]", str(by_label))
    assert shared.find(cell(layer, head)).value_of_css_property("background-color") == colours


# ---------------------------------------------------------------- the head's panel


def test_attention_of_the_chosen_head_and_prompt(shared: Browser, report: HeadsReportData) -> None:
    for layer, head, prompt in ((0, 0, 0), (3, 2, 0), (3, 2, 1)):
        shared.choose("select[name=head]", f"L{layer}H{head}")
        shared.choose("select[name=prompt]", str(prompt))
        weights = shown_weights(shared)
        for condition in report.conditions:
            wanted = report.patterns[condition][prompt][layer, head]
            # Steps of 1/255, then three digits.
            assert np.allclose(weights[condition], wanted, atol=0.5 / 255 + 5.1e-4)
    words = [item.text for item in shared.all(".pair > div:first-child .prompt span")]
    assert words[0] == HOSTILE
    assert words[1] == " quick"


def told(browser: Browser, condition: int = 0) -> str:
    return browser.all("#attention .told")[condition].text


def test_a_token_shows_where_it_looks(shared: Browser, report: HeadsReportData) -> None:
    layer, head = head_of(report, "previous-token")
    shared.choose("select[name=prompt]", "0")
    shared.choose("select[name=head]", f"L{layer}H{head}")
    token = ".pair > div:first-child [data-token='{}']"
    words = shared.find(token.format(12))
    shared.run("arguments[0].scrollIntoView({block: 'center'})", words)
    ActionChains(shared.driver).move_to_element(words).perform()
    weights = report.patterns["intact"][0][layer, head]
    shared.wait(lambda: "(12) looks at" in told(shared))
    assert f"(11) {100 * weights[12, 11]:.0f}%" in told(shared)
    lines = shared.all(".pair > div:first-child .lines path")
    keys = {int(str(line.get_attribute("data-key"))) for line in lines}
    # The page keeps weights to 1/255.
    clear = np.abs(weights[12] - 0.04) > 1 / 255
    drawn = {key for key in range(13) if weights[12, key] >= 0.04}
    assert {key for key in keys if clear[key]} == {key for key in drawn if clear[key]}
    # The same token under the other condition, and by the keyboard alone.
    assert "(12) looks at" in told(shared, 1)
    words.click()
    shared.driver.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    assert f"(10) {100 * weights[11, 10]:.0f}%" in told(shared)
    shared.driver.switch_to.active_element.send_keys(Keys.END)
    assert "(23) looks at" in told(shared)
    assert len(shared.all(".pair > div:first-child [data-token][tabindex='0']")) == 1


def test_small_pictures_show_all_heads_of_the_layer(
    shared: Browser, report: HeadsReportData
) -> None:
    shared.choose("select[name=prompt]", "0")
    shared.choose("select[name=head]", "L1H2")
    thumbs = shared.wait(lambda: [t for t in shared.all(".thumbs button") if "L1" in t.text])
    assert [thumb.text.split("\n")[0] for thumb in thumbs] == [f"L1H{head}" for head in range(4)]
    # Darker where more is attended to: each pixel is one weight.
    pixels = shared.run(
        "const canvas = document.querySelectorAll('.thumbs button')[3].querySelector('canvas');"
        "const n = canvas.width, image = canvas.getContext('2d').getImageData(0, 0, n, n).data;"
        "return Array.from({length: n * n}, (_, i) => image[4 * i])"
    )
    n = len(report.prompts[0])
    red = np.array(pixels).reshape(n, n)[np.tril_indices(n)]
    weights = report.patterns["intact"][0][1, 3][np.tril_indices(n)]
    assert red[np.argmin(weights)] > red[np.argmax(weights)]
    assert np.corrcoef(np.sqrt(np.minimum(weights, 0.3)), red)[0, 1] < -0.8
    thumbs[3].click()
    assert title(shared).startswith("L1H3 ")


def test_intact_and_ablated_stand_side_by_side_or_alone(shared: Browser) -> None:
    shared.wait(lambda: len(canvases(shared)) == 2)
    for name in (ABLATED, "intact"):
        (chip,) = [chip for chip in shared.all(".chips button") if chip.text == name]
        chip.click()
        shared.wait(lambda: len(canvases(shared)) == 1)
        headings = [item.text for item in shared.all(".pair h4") if item.is_displayed()]
        assert headings == [name]
        assert chip.get_attribute("aria-pressed") == "true"
    shared.all(".chips button")[0].click()
    shared.wait(lambda: len(canvases(shared)) == 2)


def test_a_view_that_is_replaced_is_taken_down(shared: Browser) -> None:
    # React's root stays on the box; a root that was left behind would keep its chart in memory.
    shared.wait(lambda: len(canvases(shared)) == 2)
    assert shared.run(
        "return [...document.querySelectorAll('.circuits')].every(b => 'unmount' in b.circuits)"
    )
    old = shared.find("#attention .circuits canvas")
    shared.run(
        "window.old = arguments[0]; window.host = arguments[0].closest('.circuits > *')", old
    )
    shared.click(cell(1, 1))
    shared.wait(lambda: shared.run("return !window.old.isConnected"))
    # Unmounting empties its host.
    assert shared.run("return window.host.childElementCount") == 0


def test_the_profile_shows_both_conditions_and_chance(
    shared: Browser, report: HeadsReportData
) -> None:
    layer, head = head_of(report, "induction")
    shared.choose("select[name=head]", f"L{layer}H{head}")
    for condition in report.conditions:
        line = shared.line("profile", condition)
        wanted = report.offset_profiles[condition][layer, head]
        assert np.allclose(line, wanted, rtol=1e-3, atol=1e-9)
    assert np.allclose(
        shared.line("profile", "chance"), report.offset_profiles["chance"], rtol=1e-3
    )
    header, *rows = shared.download("#profile .csv")
    assert header == ["positions", "tokens_back", "weight"]
    assert [float(row[2]) for row in rows if row[0] == ABLATED] == shared.line("profile", ABLATED)


def test_frequencies_of_a_head_that_rotates_and_of_one_that_does_not(
    shared: Browser, report: HeadsReportData
) -> None:
    assert report.frequencies is not None
    shared.choose("select[name=head]", "L1H2")
    for part in ("query", "key"):
        wanted = report.frequencies[f"{part}_norm"][1, 2]
        assert np.allclose(shared.line("usage", f"{part} norm"), wanted, rtol=1e-3)
    ticks = [item.get_attribute("textContent") for item in shared.all("#usage .xtick text")]
    assert ticks[:2] == ["1", "0.32"]  # radians per token, the highest frequency at the left
    shared.choose("select[name=head]", "L3H0")
    assert not shared.find("#usage .plot").is_displayed()
    assert shared.find("#usage .empty").text == "This layer does not rotate its queries and keys."
    assert not shared.find("#usage .picture").is_displayed()


def test_all_scores_stand_with_interval_and_chance(
    shared: Browser, report: HeadsReportData
) -> None:
    layer, head = head_of(report, "local")
    row = report.heads.query(f"layer == {layer} and head == {head}").iloc[0]
    shared.choose("select[name=head]", f"L{layer}H{head}")
    assert len(shared.all("#scores tbody tr")) == len(METRICS)
    facts = " ".join(shared.find("#head .facts").text.split())
    assert "Sequences until its final label 2048" in facts
    assert set(shared.column("sequences")) == {"32", "16385"}
    header, *rows = shared.download("#scores .csv")
    found = {line[0]: dict(zip(header, line, strict=True)) for line in rows}
    for metric in METRICS:
        names = (metric, f"{metric}_low", f"{metric}_high", f"{metric}_ablated")
        ours = [float(found[metric][k]) for k in ("value", "ci_low", "ci_high", "ablated")]
        assert np.allclose(ours, [row[name] for name in names], rtol=1e-5)
    assert found["entropy"]["chance"] == ""
    assert float(found["local"]["chance"]) == row["local_chance"]


# ---------------------------------------------------------------- the table of heads


def test_the_table_filters_by_label_dependence_and_text(
    shared: Browser, report: HeadsReportData
) -> None:
    def names() -> list[str]:
        return shared.column("name", "heads-table")

    def wanted(rows: Any) -> list[str]:
        return [f"L{row.layer}H{row.head}" for row in rows.itertuples()]

    select = "#heads-table select[name='{}']"
    labels = sorted(report.heads["label"].unique())
    shared.choose(select.format("label"), f"={labels.index('uniform')}")
    assert names() == wanted(report.heads.query("label == 'uniform'"))
    shared.click("#heads-clear")
    assert len(names()) == 16
    kinds = sorted(report.heads["dependence"].unique())
    shared.choose(select.format("dependence"), f"={kinds.index('positional')}")
    assert names() == wanted(report.heads.query("dependence == 'positional'"))
    shared.click("#heads-clear")
    shared.find("#heads-search").send_keys("induction l2")
    found = report.heads.query("layer == 2 and (label == 'induction' or runner_up == 'induction')")
    assert names() == wanted(found)
    shared.click("#heads-clear")
    assert len(names()) == 16


def test_the_table_is_saved_as_csv_json_and_markdown(
    shared: Browser, report: HeadsReportData
) -> None:
    labels = sorted(report.heads["label"].unique())
    shared.choose("#heads-table select[name='label']", f"={labels.index('content')}")
    kept = report.heads.query("label == 'content'")

    header, *rows = shared.download("#heads-csv")
    assert set(report.heads.columns) < set(header)
    low = [float(row[header.index("retention_low")]) for row in rows]
    assert np.allclose(low, kept["retention_low"], rtol=1e-5)

    records = json.loads(shared.saved("#heads-json", ".json").read_text("utf-8"))
    assert [record["head"] for record in records] == kept["head"].tolist()
    assert [record["induction_ablated"] for record in records] == pytest.approx(
        kept["induction_ablated"].tolist(), rel=1e-5
    )
    assert records[0]["entropy_chance"] is None

    lines = shared.saved("#heads-markdown", ".md").read_text("utf-8").splitlines()
    assert len(lines) == 2 + len(kept)
    assert {line.count(" | ") for line in lines} == {len(shared.all("#heads-table thead th")) - 1}
    assert "content" in lines[2]
    shared.click("#heads-clear")


def test_the_table_sorts_and_a_row_opens_its_head(shared: Browser, report: HeadsReportData) -> None:
    shared.sort_by("induction", "heads-table")
    shared.sort_by("induction", "heads-table")
    order = report.heads.sort_values("induction", ascending=False)
    wanted = [f"L{row.layer}H{row.head}" for row in order.itertuples()]
    assert shared.column("name", "heads-table") == wanted
    shared.click("#heads-table tbody tr:nth-child(2) td:nth-child(3)")
    assert title(shared).startswith(wanted[1])
    assert shared.find("#heads-table tr[data-selected] a").text == wanted[1]
    shared.click("#heads-table tbody tr:nth-child(5) a")
    assert title(shared).startswith(wanted[4])


# ---------------------------------------------------------------- frequencies, circuit, the rest


def test_the_heat_map_of_all_heads_follows_its_menu(
    shared: Browser, report: HeadsReportData
) -> None:
    assert report.frequencies is not None
    for name in ("query_norm", "key_norm"):
        shared.choose("select[name=norm]", name)
        (trace,) = shared.traces("frequencies")
        wanted = report.frequencies[name].reshape(16, -1)
        drawn = np.array(trace["z"], dtype=float)
        assert np.allclose(drawn, wanted, rtol=1e-3, equal_nan=True)


def test_the_circuit_shows_scores_and_opens_heads(shared: Browser, report: HeadsReportData) -> None:
    strongest = max(report.edges, key=lambda edge: edge["score"])
    ends = [f"L{strongest[f'{e}_layer']}H{strongest[f'{e}_head']}" for e in ("from", "to")]
    assert len(shared.all(".graph path.edge")) == len(report.edges)
    target = shared.find(".edge-target:last-of-type")
    shared.run("arguments[0].scrollIntoView({block: 'center'})", target)
    shared.run(
        "const box = arguments[0].getBoundingClientRect();"
        "arguments[0].dispatchEvent(new PointerEvent('pointermove',"
        "{bubbles: true, clientX: box.left, clientY: box.top}))",
        shared.find(f"[data-edge='{len(report.edges) - 1}']"),
    )
    tip = shared.find("#tip").text
    assert tip.startswith(" → ".join(ends))
    assert f"K-composition {strongest['score']:.3g}; 90% of other pairs have at most 0.05" in tip
    shared.click(f".node[aria-label^='{ends[1]},'] circle")
    assert title(shared).startswith(ends[1])
    marked = shared.all(".graph path.edge[data-selected]")
    assert marked
    assert all(ends[1] in str(edge.get_attribute("data-ends")) for edge in marked)
    header, *rows = shared.download("#circuit .csv")
    assert header == ["from", "to", "k_composition", "chance"]
    assert rows[0][:2] == ends
    assert float(rows[0][2]) == pytest.approx(strongest["score"], rel=1e-4)


def test_what_leads_heads_is_saved_and_its_links_open_them(
    shared: Browser, report: HeadsReportData
) -> None:
    shared.click("#finders tbody tr:nth-child(2) .to-head")
    assert title(shared).startswith("L3H1")
    header, *rows = shared.download("#finders .csv")
    assert header == list(report.finders.columns)
    assert [row[header.index("word")] for row in rows] == report.finders["word"].tolist()
    place = [float(row[header.index("place")]) for row in rows]
    np.testing.assert_allclose(place, report.finders["place"])


def test_labels_settle_with_the_number_of_sequences(
    shared: Browser, report: HeadsReportData
) -> None:
    for line in report.settling:
        assert shared.line("settling", line["condition"]) == line["share"]
        # Where most heads lose their label, chance is another.
        assert shared.line("settling", f"chance, {line['condition']}") == line["chance"]


def test_dark_and_light(shared: Browser) -> None:
    def line() -> str:
        return shared.run("return document.querySelector('#profile .plot').data[0].line.color")

    light, drawn = ground(shared), line()
    shared.click("#theme")
    assert ground(shared) != light
    assert line() != drawn
    shared.click("#theme")
    assert (ground(shared), line()) == (light, drawn)
    assert shared.driver.print_page()
    # Paper measures the charts anew, and the screen once more.
    assert shared.find("#frequencies .plot").size["height"] >= 220


def test_the_page_works_inside_a_frame(
    driver: webdriver.Chrome, downloads: Path, page_file: Path, tmp_path: Path
) -> None:
    outer = tmp_path / "frame.html"
    browser = framed(driver, page_file, outer, downloads)
    browser.wait(lambda: len(canvases(browser)) == 2)
    browser.click(cell(1, 2))
    assert title(browser).startswith("L1H2 ")
    browser.click("#heads-table tbody tr:nth-child(1) a")
    assert title(browser).startswith("L0H0 ")
    assert driver.get_log("browser") == []
    driver.switch_to.default_content()
    assert driver.current_url == outer.as_uri()


@pytest.mark.parametrize(
    ("lacking", "views"),
    [({"offset_profiles": {}}, 1), ({"prompts": [], "patterns": {}, "losses": []}, 0)],
)
def test_a_run_with_positions_intact_alone(
    driver: webdriver.Chrome, downloads: Path, tmp_path: Path, lacking: dict[str, Any], views: int
) -> None:
    once = [{"condition": "intact", "n": [8], "share": [1.0], "chance": [0.2]}]
    data = synthetic_heads(
        n_layers=2, ablation=None, frequencies=None, edges=[], settling=once, **lacking
    )
    data.heads.loc[0, "local"] = -0.001
    data.heads.loc[1, ["confidence", "q_value"]] = 0.996, 1e-38
    path = tmp_path / "heads.html"
    path.write_text(render_heads(data), encoding="utf-8")
    browser = Browser(driver, path.as_uri(), downloads).open_everything()
    browser.wait(lambda: len(canvases(browser)) == views)
    assert len(browser.all(".map")) == 1
    assert browser.all(".chips button") == []
    opened = title(browser)
    browser.click(cell(0, 2))
    assert title(browser).startswith("L0H2 ")
    driver.back()  # to the page's own head
    browser.wait(lambda: title(browser) == opened)
    browser.choose("select[name=head]", "L0H1")
    facts = " ".join(browser.find("#head .facts").text.split())
    assert "Confidence >99%" in facts
    # No q is 0, in the head's own panel and in the table of all.
    assert "q over all heads < 0.0001" in facts
    assert browser.column("q value", "heads-table")[1] == "< 0.0001"
    browser.choose("select[name=shade]", "local")
    assert browser.find(cell(0, 0)).text == ".00"
    # A line of one point would not be seen.
    drawn = browser.run("return document.querySelector('#settling .plot').data.map(t => t.mode)")
    assert drawn == ["markers", "markers"]
    assert browser.all("#circuit, #frequencies, #usage") == []
    assert driver.get_log("browser") == []


def test_heads_of_a_hybrid_have_their_own_numbers(
    driver: webdriver.Chrome, downloads: Path, tmp_path: Path
) -> None:
    for file in downloads.iterdir():  # a name that is taken already is not seen to be saved
        file.unlink()
    data = hybrid_heads()
    path = tmp_path / "heads.html"
    path.write_text(render_heads(data), encoding="utf-8")
    browser = Browser(driver, f"{path.as_uri()}#L3H2", downloads).open_everything()
    assert title(browser).startswith("L3H2 ")
    assert [item.text for item in browser.all(".map:first-child [role=rowheader]")] == ["L1", "L3"]
    assert np.allclose(
        shown_weights(browser)["intact"], data.patterns["intact"][0][1, 2], atol=0.5 / 255 + 5.1e-4
    )
    wanted = data.offset_profiles["intact"][1, 2]
    assert np.allclose(browser.line("profile", "intact"), wanted, rtol=1e-3, atol=1e-9)
    assert data.frequencies is not None
    _, *rows = browser.download("#frequencies .csv")
    assert {row[0] for row in rows} == {"1", "3"}
    norms = [float(row[4]) for row in rows if row[:2] == ["1", "2"]]
    assert np.allclose(norms, data.frequencies["query_norm"][0, 2], rtol=1e-3)
    assert driver.get_log("browser") == []


# Counts the patterns that are unpacked, from before the page's own scripts run.
COUNT = (
    "window.unpacked = 0; const own = atob;"
    # Not the data and the libraries, which are unpacked once.
    "window.atob = (t) => { unpacked += t.length < 1e5; return own(t); };"
)


@pytest.mark.slow
def test_the_largest_run_draws_only_what_is_looked_at(
    driver: webdriver.Chrome, downloads: Path, tmp_path: Path
) -> None:
    """Of 26 layers of 8 heads on 4 prompts under two conditions: one layer, one prompt.

    That is what makes such a page quick, and it does not depend on the machine.
    """
    path = tmp_path / "large.html"
    data = synthetic_heads(n_layers=26, n_heads=8, n_tokens=128, n_prompts=4)
    path.write_text(render_heads(data), encoding="utf-8")
    added = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": COUNT})
    try:
        browser = Browser(driver, path.as_uri(), downloads).open_everything()
    finally:
        driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    drawn = "return [...document.querySelectorAll('.circuits canvas')].filter(c => c.style.width)"
    browser.wait(lambda: len(browser.run(drawn)) == 2)
    # The head itself, and the small pictures of its layer's heads, under both conditions.
    each = 2 * (1 + 8)
    browser.wait(lambda: browser.run("return unpacked") == each)
    browser.click(cell(20, 3, heads=8))
    assert title(browser).startswith("L20H3 ")
    browser.wait(lambda: browser.run("return unpacked") == 2 * each)
    assert len(browser.all("#heads tbody tr")) == 25
    assert driver.find_element(By.ID, "count").text.startswith("rows 1 to 25 of")


# ---------------------------------------------------------------- the first screen


def test_the_first_screen_is_one_sentence_and_the_grids(
    shared: Browser, report: HeadsReportData
) -> None:
    window(shared, DESKTOP)
    shared.run("scrollTo(0, 0)")
    assert shared.find(".headline").text == report.headline
    assert 0 < box(shared, ".maps")["top"] < box(shared, ".measured")["bottom"] <= DESKTOP[1]
    above = "return [...document.querySelectorAll('p')].filter(p => p.checkVisibility() && "
    above += "p.getBoundingClientRect().top < arguments[0]).map(p => p.className)"
    assert shared.run(above, box(shared, ".maps")["top"]) == ["eyebrow", "headline"]
    keep(shared, "heads-desktop")


def test_every_figure_is_saved_as_a_picture(browser: Browser) -> None:
    browser.choose("select[name=head]", "L1H2")  # in a layer that rotates
    for figure, word in (
        ("map", "Positions intact"),
        ("attention", "rows are queries"),
        ("profile", "Attention by distance"),
        ("usage", "Use of rotary frequencies"),
        ("frequencies", "All heads"),
        ("circuit", "L0"),
        ("settling", "their final label"),
    ):
        drawn = browser.saved(f"#{figure} .picture[data-kind='svg']", ".svg")
        assert word in "".join(ElementTree.parse(drawn).getroot().itertext()), figure
    picture = browser.saved("#attention .picture[data-kind='png']", ".png").read_bytes()
    assert picture.startswith(b"\x89PNG")
