"""What a reader meets first, in a real browser: the sentence, the figure, and a page that fits."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from experiments.report.data import ReportData
from experiments.report.page import render
from tests.experiments.report.browser import (
    DESKTOP,
    PHONE,
    Browser,
    box,
    keep,
    window,
)

pytestmark = pytest.mark.browser


@pytest.fixture
def page(driver: webdriver.Chrome, downloads: Path, causal_file: Path) -> Browser:
    return Browser(driver, causal_file.as_uri(), downloads).wait_until_ready()


@pytest.fixture(scope="module")
def page_file(causal_file: Path) -> Path:
    return causal_file


def test_the_first_screen_answers_the_question(page: Browser, causal_report: ReportData) -> None:
    window(page, DESKTOP)
    assert page.find("h1").text == causal_report.title
    said = page.find(".headline").text
    assert said == causal_report.answer.sentence
    assert len(said.split()) <= 25
    # The figure and the line on model, tokens and loss end before the screen does.
    assert box(page, "#answer")["bottom"] < box(page, ".measured")["bottom"] <= DESKTOP[1]
    measured = page.find(".measured").text
    assert "on text without a begin token" in measured
    assert "nats per token; a bigram guesser's is" in measured
    above = "return [...document.querySelectorAll('p')].filter(p => p.checkVisibility() && "
    above += "p.getBoundingClientRect().top < arguments[0]).map(p => p.className)"
    assert page.run(above, box(page, "#answer")["top"]) == ["eyebrow", "headline"]
    keep(page, "compare-desktop")
    # A phone shows the same in one column.
    window(page, PHONE)
    assert box(page, ".headline")["bottom"] < PHONE[1] / 3
    assert box(page, ".measured")["bottom"] <= PHONE[1]
    keep(page, "compare-phone")
    # There the line is one line, which nothing cuts off, and opens to the whole.
    brief, score = page.find(".measured"), causal_report.answer.score
    assert score is not None
    assert brief.text == f"Text: {score.brief}"
    own = f"loss {score.value[0]:#.3g} nats"
    assert score.brief == f"{own}, bigram guesser {score.chance:#.3g}."
    cut = "const s = document.querySelector('.measured > summary');"
    assert page.run(f"{cut} return s.scrollWidth <= s.clientWidth && s.clientHeight < 25")
    page.find(".measured > summary").click()
    assert brief.text == measured


def test_each_test_in_the_legend_tells_what_it_does(page: Browser) -> None:
    window(page, DESKTOP)
    for shown, entry in (("removed", "removed"), ("kept alone", "sufficiency")):
        (link,) = (one for one in page.all("#answer .key a") if one.text.startswith(shown))
        assert str(link.get_attribute("href")).endswith(f"#term-{entry}")
        page.run("arguments[0].focus()", link)
        meaning = page.find(f"#term-{entry} dd").get_attribute("textContent") or ""
        assert page.find("#tip").text.split("\n", 1)[1] == meaning.split(". ")[0] + "."


def _told(page: Browser, link: WebElement) -> str:
    """What the tip says of a word, below its title."""
    page.run("arguments[0].focus()", link)
    return page.find("#tip").text.split("\n", 1)[1]


def test_each_verdict_tells_its_own_meaning(page: Browser) -> None:
    page.open_everything()
    window(page, DESKTOP)
    used, unused = "Used: necessity is", "Not used: necessity and sufficiency are surely below"
    # On the first screen and, told anew, in the table of removals.
    for place, word, said in (
        ("#answer .verdict a", "used", used),
        ("#answer .verdict a", "not used", unused),
        ("#use .uses a", "not used", unused),
    ):
        link = next(one for one in page.all(place) if one.text == word)
        assert _told(page, link).startswith(said)
    (faint,) = (one for one in page.all("#sure a.term") if one.text == "faint")
    assert _told(page, faint).startswith("Faint: it surely gains something")
    # Elsewhere these words mean something else.
    assert not page.all("#one-sequence a[href='#term-readable']")
    assert not page.all("#sure a[href='#term-first-token']")
    # A name ends no sentence.
    variance, said = (
        page.find("#answer a[href='#term-variance']"),
        "After Chi et al. 2023 it is so.",
    )
    page.run("document.querySelector('#term-variance dd').textContent = arguments[0]", said)
    assert _told(page, variance) == said


def test_a_reading_is_undecided_by_the_rule_of_readings(
    driver: webdriver.Chrome, downloads: Path, small_report: ReportData, tmp_path: Path
) -> None:
    unsure = [
        replace(verdict, rows=[row | {"verdict": "undecided"} for row in verdict.rows])
        for verdict in small_report.verdicts
    ]
    path = tmp_path / "unsure.html"
    path.write_text(render(replace(small_report, verdicts=unsure)), encoding="utf-8")
    page = Browser(driver, path.as_uri(), downloads).open_everything()
    (word,) = page.all("#verdicts a.term[href='#term-readable']")
    assert word.text == "undecided"
    assert _told(page, word).startswith("Undecided: the interval of the gain reaches")


def test_the_figure_draws_each_code(page: Browser, causal_report: ReportData) -> None:
    window(page, DESKTOP)
    rows = page.all("#answer tbody tr")
    codes = causal_report.answer.codes
    assert [row.text.split("\n")[0].split(" 0%")[0] for row in rows]
    for row, code in zip(rows, codes, strict=True):
        assert code.code in row.text
        assert str(code.word or "–") in row.text
        read = "–" if code.after is None else f"{100 * code.after.gain[0]:.0f}%"
        assert read in row.text
    # By removal the halves of the mean residual are judged; the whole is what is read.
    assert [code.code for code in codes if code.after is None] == ["irregular part"]
    assert [code.code for code in codes if code.word is None] == ["mean residual"]
    # On one scale: the more can be read, the further to the right.
    at = page.run(
        "return [...document.querySelectorAll('#answer circle.full[cy]')]"
        ".filter(c => c.closest('td')).map(c => parseFloat(c.getAttribute('cx')))"
    )
    gains = [code.after.gain[0] for code in codes if code.after]
    assert at == pytest.approx([3 + 94 * min(max(gain, 0), 1) for gain in gains], abs=0.01)
    # Both tests of use, one below the other.
    ends = page.run(
        "return [...document.querySelectorAll('#answer td .bar')]"
        ".map(bar => parseFloat(bar.getAttribute('x2')))"
    )
    both = [share[0] for code in codes for share in (code.share, code.restored) if share]
    assert len(both) == 2 * (len(codes) - 1)
    assert ends == pytest.approx([3 + 94 * min(max(share, 0), 1) for share in both], abs=0.01)


def test_a_bar_never_hides_the_title_that_a_link_leads_to(page: Browser) -> None:
    shown = "const title = document.querySelector('#compared h2').getBoundingClientRect();"
    shown += "const top = document.elementFromPoint(title.left + 5, title.top + 5);"
    shown += "return top && top.closest('#compared') !== null"
    for size in (DESKTOP, PHONE):
        window(page, size)
        page.click("nav a[href='#compared']")
        page.wait(lambda: page.run(shown))
        assert page.find("#compared").get_attribute("open")


def test_a_word_tells_its_meaning_on_hover_focus_and_click(page: Browser) -> None:
    word = page.find("#answer a.term[href='#term-variance']")
    tip = page.find("#tip")
    page.find("#theme").send_keys(Keys.TAB)
    while page.driver.switch_to.active_element != word:
        page.driver.switch_to.active_element.send_keys(Keys.TAB)
    page.wait(tip.is_displayed)
    assert "spread of one activation vector" in tip.text
    word.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()
    word.send_keys(Keys.ENTER)
    page.wait(lambda: page.find("#term-variance").is_displayed())
    assert page.find("#glossary").get_attribute("open")


def test_charts_wait_until_they_are_seen(page: Browser) -> None:
    assert page.all(".plot") == []
    waiting = len(page.all("[data-waiting]"))
    page.run("document.querySelector('#where').open = true")
    page.wait(lambda: page.all("#probe-error .main-svg"))
    assert 0 < len(page.all("[data-waiting]")) < waiting
    assert page.all("#cosine .plot") == []


def test_a_chart_opens_where_the_verdict_was_read(
    shared: Browser, causal_report: ReportData
) -> None:
    (verdict,) = [v for v in causal_report.verdicts if v.hypothesis == "variance"]
    row = next(r for r in verdict.rows if r["variant"] == "trained" and r["tokens"] == "text")
    chosen = [s.get_attribute("value") for s in shared.all("#variance-by-position select")]
    assert chosen == ["attn_out" if row["site"] == "attn_out" else "resid", str(row["layer"])]
    here = shared.find("#variance-by-position .here")
    assert here.text == "In the trained model this signal is read best here."
    shared.choose("#variance-by-position select[name='layer']", "0")
    assert here.text.startswith("In the trained model this signal is read best at another site.")
    shared.click("#variance-by-position .here button")
    assert here.text == "In the trained model this signal is read best here."


def test_figures_are_saved_as_pictures(shared: Browser) -> None:
    drawn = shared.saved("#adjacency .picture[data-kind='svg']", ".svg")
    words = "".join(ElementTree.parse(drawn).getroot().itertext())
    assert "Adjacency scores" in words
    assert "Order recovered" in words
    assert "random-init" in words
    assert "</script>" not in drawn.read_text()
    picture = shared.saved("#adjacency .picture[data-kind='png']", ".png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    first = shared.saved("#answer .picture[data-kind='svg']", ".svg")
    words = "".join(ElementTree.parse(first).getroot().itertext())
    assert all(
        part in words
        for part in ("Position code", "variance", "used", "95% interval", "be read from it?")
    )
    header, *rows = shared.download("#answer .csv")
    assert header[:4] == ["code", "verdict", "shown", "value"]
    assert {row[2] for row in rows} >= {"untrained model", "this model"}
    assert json.dumps(rows).count("irregular part") >= 3


def test_a_phone_keeps_captions_and_code_names_in_sight(page: Browser) -> None:
    page.open_everything()
    window(page, PHONE)
    cut = page.run(
        "return [...document.querySelectorAll('.scroll caption:not(.hidden)')]"
        ".filter(c => c.checkVisibility() && c.getBoundingClientRect().right > innerWidth)"
        ".map(c => c.textContent)"
    )
    assert cut == []
    for table in ("#verdicts", "table.uses"):
        name, caption = f"{table} tbody:not([hidden]) tr.first > th", f"{table} caption"
        before = [box(page, where)["left"] for where in (name, caption)]
        page.run("document.querySelector(arguments[0]).closest('.scroll').scrollLeft = 150", table)
        assert [box(page, where)["left"] for where in (name, caption)] == before


def test_what_was_drawn_for_print_is_drawn_once(page: Browser) -> None:
    page.wait(lambda: page.run("return window.Plotly !== undefined"))
    hidden = "getComputedStyle(document.querySelector('#attention')).display === 'none'"
    page.run("dispatchEvent(new Event('beforeprint'))")
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert page.run(f"return {hidden}")  # it is not drawn for print
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    page.run("dispatchEvent(new Event('afterprint'))")
    page.open_everything()
    assert not page.run(f"return {hidden}")
    assert page.driver.get_log("browser") == []
