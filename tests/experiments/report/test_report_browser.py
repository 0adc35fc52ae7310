"""The page in a real browser, network off: it draws, switches, sorts, saves, and stays safe."""

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

from experiments.report.data import ReportData
from experiments.report.page import render
from tests.experiments.report.browser import Browser, Tab, framed, ground

pytestmark = pytest.mark.browser

HOSTILE = "</script><script>document.title='x'</script>"


@pytest.fixture(scope="module")
def page_file(small_report: ReportData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(small_report), encoding="utf-8")
    return path


@pytest.fixture
def browser(driver: webdriver.Chrome, downloads: Path, page_file: Path) -> Browser:
    return Browser(driver, page_file.as_uri(), downloads).open_everything()


def test_the_page_draws_everything_complains_of_nothing_and_lets_nothing_in(
    browser: Browser,
) -> None:
    browser.choose("#probe-error select[name='site']", "resid")
    browser.choose("#error-by-position select[name='site']", "resid")
    plots = browser.all(".plot")
    assert len(plots) == 6 + 3 + 3 + 4 + 2 + 3
    browser.wait(lambda: all(plot.find_elements(By.CSS_SELECTOR, ".main-svg") for plot in plots))
    assert browser.all("#probe-error .scatterlayer .js-line")
    assert browser.all("#cosine .heatmaplayer image")
    browser.wait(lambda: browser.all("#attention canvas"))
    assert browser.driver.get_log("browser") == []
    asked = browser.run("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in asked if not name.startswith("data:")] == []
    # The policy stops scripts and requests that slip in.
    browser.run(
        "const s = document.createElement('script'); s.textContent = 'document.title = \"x\"';"
        "document.body.append(s);"
        "const i = new Image(); i.src = 'http://example.org/x.png'; document.body.append(i);"
    )
    assert browser.driver.title != "x"
    messages = " ".join(entry["message"] for entry in browser.driver.get_log("browser"))
    assert messages.count("Content Security Policy") == 2


def test_the_console_would_have_told(driver: webdriver.Chrome, tmp_path: Path) -> None:
    # The positive control of the test above: a request and an error do show in the log.
    path = tmp_path / "bad.html"
    path.write_text("<img src='http://example.org/x.png'><script>throw Error('seen')</script>")
    driver.get_log("browser")
    driver.get(path.as_uri())
    messages = " ".join(entry["message"] for entry in driver.get_log("browser"))
    assert "ERR_NAME_NOT_RESOLVED" in messages
    assert "seen" in messages


def test_a_hostile_token_shows_as_text(shared: Browser, small_report: ReportData) -> None:
    assert shared.driver.title == small_report.title
    assert shared.find("#strip li b").text == HOSTILE
    assert len(shared.all("script")) == 6  # two libraries, each once packed and once unpacked
    # Plotly reads its labels as HTML of a kind: there the token must come escaped.
    hovers = shared.run(
        "return [...document.querySelectorAll('#sequence-positions .plot')]"
        ".flatMap(plot => plot.data).flatMap(trace => trace.text ?? [])"
    )
    assert "&lt;/script&gt;&lt;script&gt;document.title='x'&lt;/script&gt; at 0" in hovers
    assert not any("<" in hover for hover in hovers)


def test_what_nobody_would_see_of_a_token_is_named(shared: Browser) -> None:
    for token, shown in (
        ("a b\u00a0", "a␣bU+00A0"),
        ("\u2028", "U+2028"),
        ("\u200d\u200d", "U+200D U+200D"),
        ("\u3000\u3000", "U+3000 U+3000"),
    ):
        assert shared.run("return common.visible(arguments[0])", token) == shown


def test_the_heat_map_follows_layer_and_site(shared: Browser, small_report: ReportData) -> None:
    def drawn() -> np.ndarray:
        (trace,) = shared.traces("cosine")
        return np.array(trace["z"], dtype=float)

    def stored(layer: int, site: str) -> np.ndarray:
        key = f"trained/text/nobegin/{layer}/{site}/similarity/cosine"
        array = small_report.arrays[key].copy()
        np.fill_diagonal(array, np.nan)
        return array

    # Four digits after the point are kept.
    assert np.allclose(drawn(), stored(1, "resid_post"), atol=6e-5, equal_nan=True)
    before = shared.find("#cosine .heatmaplayer image").get_attribute("href")
    shared.choose("#cosine select[name='layer']", "0")
    assert np.allclose(drawn(), stored(0, "resid_post"), atol=6e-5, equal_nan=True)
    shared.wait(lambda: shared.find("#cosine .heatmaplayer image").get_attribute("href") != before)
    shared.choose("#cosine select[name='layer']", "-1")
    assert np.allclose(drawn(), stored(0, "resid_pre"), atol=6e-5, equal_nan=True)
    shared.choose("#cosine select[name='site']", "attn_out")
    layers = [o.get_attribute("value") for o in shared.all("#cosine select[name='layer'] option")]
    assert layers == ["0", "1"]  # the input has no attention output, so it is not offered
    assert np.allclose(drawn(), stored(1, "attn_out"), atol=6e-5, equal_nan=True)
    shared.choose("#cosine select[name='site']", "resid")
    assert np.allclose(drawn(), stored(1, "resid_post"), atol=6e-5, equal_nan=True)


def test_the_condition_switches_every_chart_and_the_verdict(
    shared: Browser, small_report: ReportData
) -> None:
    def wanted(tokens: str, begin: bool) -> list[float]:
        table = small_report.measurements
        rows = table[
            (table["variant"] == "trained")
            & (table["tokens"] == tokens)
            & (table["begin_token"] == begin)
            & (table["probe"] == "linear")
            & (table["metric"] == "mae")
            & (table["control"] == "")
            & table["site"].isin(["resid_pre", "resid_post"])
        ]
        return rows["value"].tolist()

    shared.choose("#probe-error select[name='site']", "resid")
    # Five significant digits are kept.
    assert np.allclose(shared.line("probe-error", "trained"), wanted("text", False), rtol=1e-4)
    names = ["probe-error", "variance-by-position", "adjacency", "error-by-position", "cosine"]
    before = {name: shared.traces(name) for name in names}
    shared.click("input[name='tokens'][value='random'] + span")
    shared.click("input[name='begin'][value='begin'] + span")
    shared.choose("#probe-error select[name='site']", "resid")
    assert np.allclose(shared.line("probe-error", "trained"), wanted("random", True), rtol=1e-4)
    for name in names:
        assert shared.traces(name) != before[name], name
    shown = [body for body in shared.all("#verdicts tbody") if body.is_displayed()]
    assert [body.get_attribute("data-setting") for body in shown] == ["random|begin"]
    assert "random tokens with a begin token" in shared.find("#verdicts caption").text
    shared.click("input[name='tokens'][value='text'] + span")
    shared.click("input[name='begin'][value='nobegin'] + span")
    shared.choose("#probe-error select[name='site']", "resid")
    assert {name: shared.traces(name) for name in names} == before


def test_the_legend_has_the_symbol_of_each_variant(shared: Browser) -> None:
    marks = shared.all("#probe-error .legend button .swatch")
    drawn = shared.run(
        "return Object.fromEntries(document.querySelector('#probe-error .plot').data"
        ".filter(trace => trace.marker?.symbol).map(trace => [trace.name, trace.marker.symbol]))"
    )
    assert len(set(drawn.values())) == len(marks) == 3
    for mark in marks:
        assert drawn[mark.get_attribute("data-variant")] == mark.get_attribute("data-symbol")


def test_a_variant_can_be_hidden(shared: Browser) -> None:
    assert shared.line("probe-error", "random-init")
    shared.click("#probe-error .legend button:nth-child(2)")
    assert shared.find("#probe-error .legend button:nth-child(2)").text == "random-init"
    names = [trace["name"] for trace in shared.traces("probe-error")]
    assert "random-init" not in names
    assert "trained" in names
    assert "chance" in names
    shared.click("#probe-error .legend button:nth-child(2)")
    assert shared.line("probe-error", "random-init")


def test_the_axes_become_logarithmic(shared: Browser) -> None:
    kind = "return document.querySelector('#variance-by-position .plot').layout.xaxis.type"
    assert shared.run(kind) == "linear"
    shared.click("#variance-by-position .log")
    assert shared.run(kind) == "log"
    assert "its own mean" in shared.find("#variance-by-position .legend").text
    for plot in shared.all("#variance-by-position .plot"):
        assert len(plot.find_elements(By.CSS_SELECTOR, ".xtick text")) > 1
        assert len(plot.find_elements(By.CSS_SELECTOR, ".ytick text")) > 1


def test_the_table_sorts_both_ways_by_number_and_by_word(shared: Browser) -> None:
    shared.sort_by("value")
    rising = [float(text) for text in shared.column("value")]
    assert rising == sorted(rising)
    assert shared.find("#table th[aria-sort]").get_attribute("aria-sort") == "ascending"
    shared.sort_by("value")
    falling = [float(text) for text in shared.column("value")]
    assert falling == sorted(falling, reverse=True)
    assert falling[0] > rising[0]
    shared.sort_by("probe")
    assert shared.column("probe")[0] == "counting"
    shared.sort_by("probe")
    assert shared.column("probe")[0] == "variance"


def test_missing_numbers_sort_last_both_ways(shared: Browser) -> None:
    # law_r2 has no chance level.
    for _ in range(2):
        shared.sort_by("chance")
        assert "–" not in shared.column("chance")


def test_the_table_filters_and_pages(shared: Browser, small_report: ReportData) -> None:
    table = small_report.measurements
    assert shared.find("#count").text == f"rows 1 to 25 of {len(table)}"
    shared.click("#next")
    assert shared.find("#count").text.startswith("rows 26 to 50")
    Select(shared.find("#table select[aria-label='only this variant']")).select_by_visible_text(
        "bidirectional"
    )
    shared.find("#search").send_keys("seriation")
    chosen = (table["variant"] == "bidirectional") & (table["metric"] == "seriation_tau")
    assert shared.find("#count").text.endswith(f"of {chosen.sum()}")
    assert set(shared.column("variant")) == {"bidirectional"}
    assert set(shared.column("metric")) == {"seriation_tau"}
    shared.find("#search").send_keys(" nothing-like-this")
    assert shared.find("#count").text == "no row matches"
    shared.click("#clear")
    assert shared.find("#count").text.endswith(f"of {len(table)}")


def test_a_number_is_found_as_it_is_shown(shared: Browser, small_report: ReportData) -> None:
    values = [value for value in small_report.measurements["value"] if 1 < value < 9]
    # Kept are six digits: rounded to four they say something else.
    shown = next(f"{v:.4g}" for v in values if f"{v:.4g}" not in f"{v:.6g}" and len(f"{v:.4g}") > 4)
    shared.find("#search").send_keys(shown)
    assert shown in shared.column("value")
    shared.click("#clear")


def test_the_table_is_saved_as_filtered(shared: Browser, small_report: ReportData) -> None:
    Select(shared.find("#table select[aria-label='only this probe']")).select_by_visible_text(
        "positional_vectors"
    )
    header, *rows = shared.download("#table-csv")
    table = small_report.measurements
    table = table[table["probe"] == "positional_vectors"]
    assert header == list(table.columns)
    values = [float(row[header.index("value")]) for row in rows]
    # Six significant digits are kept.
    assert np.allclose(values, table["value"], rtol=1e-5)
    assert {row[header.index("model")] for row in rows} == {"nope-4x128"}
    shared.click("#clear")


def test_a_chart_saves_the_numbers_behind_it(shared: Browser) -> None:
    header, *rows = shared.download("#probe-error .csv")
    mine = [
        float(row[header.index("value")])
        for row in rows
        if row[header.index("panel")] == "Linear probe on position"
        and row[header.index("series")] == "trained"
    ]
    assert mine == shared.line("probe-error", "trained")
    # The input is named as on the axis, and no column is empty.
    assert rows[0][header.index("after_layer")] == "input"
    assert "token" not in header
    assert {row[header.index("role")] for row in rows} == {
        "measured",
        "shuffled positions",
        "chance",
    }


def test_the_sequence_and_the_heat_map_are_saved(shared: Browser, small_report: ReportData) -> None:
    header, *rows = shared.download("#strip .csv")
    tokens = small_report.example["tokens"]
    assert [row[header.index("token")] for row in rows[: len(tokens)]] == tokens
    header, *rows = shared.download("#cosine .csv")
    array = small_report.arrays["trained/text/nobegin/1/resid_post/similarity/cosine"]
    assert rows[0][:3] == ["trained", "1", "2"]
    assert float(rows[0][3]) == pytest.approx(array[0, 1], abs=6e-5)
    drawn = ElementTree.parse(shared.saved("#strip .picture[data-kind='svg']", ".svg"))
    below = [item.text for item in shared.all("#strip li small")]
    words = [text.text for text in drawn.iterfind("{*}text")]
    assert [word for word in words if word in below] == below
    assert len(drawn.findall("{*}rect")) == 1 + len(tokens)  # the ground, and a box for each token


def test_dark_and_light(shared: Browser) -> None:
    def lines() -> str:
        return shared.run("return document.querySelector('#probe-error .plot').data[0].line.color")

    def prefer(scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        shared.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    prefer("light")
    light, light_lines = ground(shared), lines()
    prefer("dark")
    shared.wait(lambda: lines() != light_lines)  # the charts are drawn again
    assert ground(shared) < light
    shared.click("#theme")  # against the system's wish
    assert ground(shared) == light
    assert lines() == light_lines
    prefer("")


def test_the_sequence_follows_model_and_layer(shared: Browser, small_report: ReportData) -> None:
    def shown() -> list[str]:
        return [item.text for item in shared.all("#strip li small")]

    predictions = small_report.example["predictions"]
    for variant, layer in (("trained", "block 1"), ("random-init", "block 0")):
        shared.choose("#strip select[name='variant']", variant)
        shared.choose("#strip select[name='layer']", layer)
        wanted = [float(p) for p in predictions[variant][layer][1:]]
        assert shown()[0] == "–"
        # Shown as whole positions.
        assert np.allclose([float(text) for text in shown()[1:]], wanted, atol=0.51)


def test_the_attention_view_follows_model_and_layer(shared: Browser) -> None:
    first = shared.wait(lambda: shared.find(".circuits > div").get_attribute("id"))
    header, *rows = shared.download("#attention .csv")
    assert header == ["head", "query", "key", "weight"]
    weights = {(int(h), int(q), int(k)): float(w) for h, q, k, w in rows}
    assert all(weight == 0 for (_, q, k), weight in weights.items() if k > q)
    shared.choose("#attention select[name='variant']", "bidirectional")
    shared.wait(lambda: shared.find(".circuits > div").get_attribute("id") != first)
    shared.wait(lambda: len(shared.all(".circuits canvas")) == 5)  # four heads and one enlarged
    _, *rows = shared.download("#attention .csv")
    assert any(float(weight) > 0 for _, q, k, weight in rows if int(k) > int(q))
    drawn = ElementTree.parse(shared.saved("#attention .picture[data-kind='svg']", ".svg"))
    names = [text.text for text in drawn.iterfind("{*}text")]
    assert [name for name in names if name in ("H0", "H1", "H2", "H3")] == ["H0", "H1", "H2", "H3"]
    assert len(drawn.findall("{*}image")) == 4
    picture = shared.saved("#attention .picture[data-kind='png']", ".png").read_bytes()
    assert picture.startswith(b"\x89PNG")


def test_the_page_works_inside_a_frame(
    driver: webdriver.Chrome, downloads: Path, page_file: Path, tmp_path: Path
) -> None:
    browser = framed(driver, page_file, tmp_path / "frame.html", downloads)
    assert len(browser.all(".plot .main-svg")) > 20
    browser.choose("#cosine select[name='layer']", "0")
    assert browser.driver.get_log("browser") == []
    driver.switch_to.default_content()


def test_printing_redraws_on_white_and_goes_back(shared: Browser) -> None:
    shared.click("#theme")
    theme = shared.run("return document.documentElement.dataset.theme")
    assert shared.driver.print_page()
    assert shared.run("return document.documentElement.dataset.theme") == theme


@pytest.fixture(scope="module")
def causal_tab(driver: webdriver.Chrome, downloads: Path, causal_file: Path) -> Tab:
    return Tab(driver, causal_file.as_uri(), downloads)


@pytest.fixture
def causal(causal_tab: Tab) -> Iterator[Browser]:
    with causal_tab.shown() as browser:
        yield browser


def test_the_tables_of_uses_follow_the_setting(causal: Browser) -> None:
    def shown(selector: str) -> list[str]:
        return [part.text for part in causal.all(f"#use {selector}") if part.is_displayed()]

    assert len(shown("table.uses")) == len(shown(".still table")) == len(shown(".others")) == 1

    def words() -> dict[str, str]:
        """What each code is, the word beside its name."""
        codes = shown(".uses tbody tr > th")
        return dict(zip(codes, shown(".uses tbody tr > th + td .word"), strict=True))

    assert words()["variance"] == "used"
    assert words()["similarity"] == "not used"
    assert shown(".absent") == []
    causal.click("input[name='tokens'][value='random'] + span")
    assert shown("table") == []
    assert shown(".absent") == ["No code was taken away in this setting."]
    for button in causal.all("#removal .save button"):
        assert not button.is_displayed()  # there is nothing to save
    causal.click("input[name='begin'][value='begin'] + span")
    assert shown(".absent") == []
    assert set(words().values()) == {"undecided"}
    causal.click("input[name='tokens'][value='text'] + span")
    causal.click("input[name='begin'][value='nobegin'] + span")
    assert causal.find("#removal .csv").is_displayed()
    assert causal.driver.get_log("browser") == []


def test_the_chart_of_places_follows_measure_and_site(
    causal: Browser, causal_report: ReportData
) -> None:
    def stored(measure: str, site: str) -> list[float]:
        uses = causal_report.uses[0].uses
        at = [u for u in uses if u.code == "variance" and u.layer >= 0]
        kept = [u for u in at if (u.site == "attn_out") == (site == "attn_out")]
        return [np.nan if not getattr(u, measure) else getattr(u, measure)[0] for u in kept]

    def drawn() -> np.ndarray:
        return np.array(causal.line("removal", "trained"), dtype=float)

    # Five significant digits are kept.
    assert np.allclose(drawn(), stored("necessity", "resid"), rtol=1e-4, equal_nan=True)
    hover = causal.run(
        "return document.querySelector('#removal .plot').data.find(t => t.name === 'trained')"
    )
    assert "used" in hover["text"]
    assert hover["hovertemplate"].startswith("%{text}: ")
    assert "other content" not in causal.find("#removal .legend").text
    causal.choose("#removal select[name='measure']", "increase")
    assert np.allclose(drawn(), stored("increase", "resid"), rtol=1e-4)
    assert "size-matched control" in causal.find("#removal .legend").text
    header, *rows = causal.download("#removal .csv")
    assert header[:6] == ["panel", "variant", "role", "series", "word", "after_layer"]
    assert {row[2] for row in rows} == {"measured", "no increase", "size-matched control"}
    assert "no increase" in causal.find("#removal .legend").text
    mine = [float(row[6]) for row in rows if row[0] == "variance" and row[2] == "measured"]
    assert np.allclose(mine, stored("increase", "resid"), rtol=1e-4)
    causal.choose("#removal select[name='site']", "attn_out")
    assert np.allclose(drawn(), stored("increase", "attn_out"), rtol=1e-4)


def test_what_is_still_readable_is_saved_as_it_is_shown(causal: Browser) -> None:
    header, *rows = causal.download("#still-0 .csv")
    assert header == ["condition", "of", "value", "ci_low", "ci_high", "of_control"]
    rows = [row for row in rows if "moved" not in row[1]]
    shown = [cell.text for cell in causal.all("#still-0 tbody td strong")]
    saved = [round(100 * float(row[2])) for row in rows]
    assert [int(text.strip("%").replace("−", "-")) for text in shown] == saved
    # The more is read, the stronger the colour.
    shades = causal.run(
        "return [...document.querySelectorAll('#still-0 .shade')]"
        ".map(cell => getComputedStyle(cell).backgroundColor)"
    )
    assert shades[saved.index(max(saved))] != shades[saved.index(min(saved))]
    drawn = ElementTree.parse(causal.saved("#still-0 .picture[data-kind='svg']", ".svg"))
    words = [text.text for text in drawn.iterfind("{*}text")]
    assert "What is still readable" in words
    assert [word for word in words if word in shown] == shown
    boxes = drawn.findall("{*}rect")[1:]  # behind them all is the ground
    assert len(boxes) == len(shades)
    fills = [box.get("fill") for box in boxes]
    assert fills[saved.index(max(saved))] != fills[saved.index(min(saved))]
