"""What holds of every page, in a real browser: first screen, width, contrast, keyboard, words."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from experiments.papers.registry import paper
from experiments.report.data import ReportData
from experiments.report.findings import PageData, render_figures, render_reproduction
from experiments.report.heads_page import render_heads
from experiments.report.page import render
from experiments.results.claims import NOT_MEASURED, Outcome
from experiments.results.findings import Figure, panel
from experiments.results.measured import Measured
from tests.experiments.report.browser import (
    CONTRASTS,
    CUT_OFF,
    DESKTOP,
    NOT_READ,
    PHONE,
    TABLET,
    Browser,
    box,
    keep,
    window,
)
from tests.experiments.report.parsed_page import HOSTILE, Page
from tests.experiments.report.synthetic_heads import synthetic_heads

pytestmark = pytest.mark.browser

# Within a grid the arrow keys lead on: only one of its cells takes the tabulator.
CONTROLS = """
return [...document.querySelectorAll("a[href], button, select, input, summary, [tabindex='0']")]
  .filter((e) => e.checkVisibility() && !e.disabled && e.tabIndex >= 0)
  .filter((e) => !(e.type === "radio" && !e.checked))
"""
FITS = "return document.documentElement.scrollWidth <= innerWidth && innerWidth === arguments[0]"
ABOVE = """
return [...document.querySelectorAll("p")].filter((p) => p.checkVisibility() &&
  p.getBoundingClientRect().top < arguments[0]).map((p) => p.className)
"""
WORDS = """
return [...document.querySelectorAll("a.term")].map((link) =>
  [link.textContent, document.querySelector(`#glossary ${link.hash} dd`)?.textContent ?? ""])
"""
TABLE = pd.DataFrame({"model": [HOSTILE, "b"], "share": [0.25, np.nan], "heads": [1, 20]})
NAMES = ("intact", "dropped and recalibrated", HOSTILE)


def _figures(first: str, n_panels: int = 1) -> list[Figure]:
    x = np.arange(1, 6)
    drawn = {name: np.stack([x + i, 2.0 * x]) for i, name in enumerate(NAMES)}
    panels = tuple(panel(f"held-out text {i}", x, measured=drawn) for i in range(n_panels))
    said = "Loss of each variant. Bars are 95% intervals over seeds."
    ids = {first: panels, "second": panels[:1]}
    return [Figure(id, f"Loss, {id}", said, "steps", "nats", own) for id, own in ids.items()]


def _data(measurements: pd.DataFrame, headline: str) -> PageData:
    info = {"setting": "three models", "notes": ["A note."], "command": "nope-interp x " * 20}
    more = {"ablations": ["rotary:none"], "reports": {}, "positions of each": {}}
    return PageData("A title", headline, measurements, {**info, **more})


def _of_figures(template: str, data: PageData, n_panels: int = 1, **words: object) -> str:
    return render_figures(template, data, _figures("gains", n_panels), ["One sentence."], **words)


def _reproduction(data: PageData) -> str:
    shown = paper("kazemnejad2023")  # has the most claims
    found = [Measured(0.5, 0.4, 0.6, 3), Measured(-1.5, -1.75, 2.0, 3), NOT_MEASURED]
    outcomes = [Outcome(claim, found[i % 3]) for i, claim in enumerate(shown.claims)]
    return render_reproduction(
        data, shown, outcomes, _figures("gains"), ["One sentence."], "A kept run."
    )


@pytest.fixture(scope="module")
def pages(causal_report: ReportData) -> dict[str, Callable[[], str]]:
    """Each kind of page, of invented numbers."""
    told = "Without its positions the model loses; recalibration brings some of it back."
    data = _data(causal_report.measurements, told)
    claims = {"gain": Measured(0.5, 0.4, 0.6, 3)}
    return {
        "compare": lambda: render(causal_report),
        "heads": lambda: render_heads(synthetic_heads(18, 4, n_tokens=24, n_prompts=2)),
        "reproduce": lambda: _reproduction(data),
        "emergence": lambda: _of_figures("emergence.html", data, 5, claims=claims),
        "drop": lambda: _of_figures("drop.html", data, variants=TABLE),
        "benchmark": lambda: _of_figures("benchmark.html", data, methods=TABLE, confusion=TABLE),
        "atlas": lambda: _of_figures("atlas.html", data, counts=TABLE),
    }


@pytest.mark.parametrize(
    "kind", ["compare", "heads", "reproduce", "emergence", "drop", "benchmark", "atlas"]
)
def test_a_page_is_read_at_a_glance_on_every_screen(
    kind: str,
    pages: dict[str, Callable[[], str]],
    driver: webdriver.Chrome,
    downloads: Path,
    tmp_path: Path,
) -> None:
    path = tmp_path / f"{kind}.html"
    path.write_text(pages[kind](), encoding="utf-8")
    page = Browser(driver, path.as_uri(), downloads).wait_until_ready()
    window(page, DESKTOP)
    _opens_with_a_sentence_and_a_figure(page)
    _keyboard_reaches_everything(page)
    for word, meaning in page.run(WORDS):
        assert len(meaning) > 20, word
    page.open_everything()
    for scheme in ("dark", "light"):
        window(page, DESKTOP, scheme)
        if scheme == "dark":
            keep(page, f"{kind}-{scheme}")
        assert [one for one in page.run(CONTRASTS, NOT_READ) if one[0] < 4.5] == []
    # Tables that scroll sideways on a phone need not do so here.
    assert page.run(CUT_OFF) == []
    for size in (DESKTOP, TABLET, PHONE):
        window(page, size)
        page.wait(lambda: page.run(FITS, size[0]))  # noqa: B023 - waits within the loop
        page.run("scrollTo(0, 0)")
        keep(page, f"{kind}-{size[0]}")
    assert box(page, "header figure")["bottom"] < box(page, ".measured")["bottom"] <= PHONE[1]
    assert driver.get_log("browser") == []


def _opens_with_a_sentence_and_a_figure(page: Browser) -> None:
    assert len(page.find(".headline").text.split()) <= 25
    figure = box(page, "header figure")
    assert page.run(ABOVE, figure["top"]) == ["eyebrow", "headline"]
    assert figure["bottom"] < box(page, ".measured")["bottom"] <= DESKTOP[1]


def _keyboard_reaches_everything(page: Browser) -> None:
    n = page.run(f"controls = (() => {{ {CONTROLS} }})(); return controls.length")
    assert n > 10
    page.run("reached = new Set(); addEventListener('focusin', (e) => reached.add(e.target))")
    page.driver.switch_to.active_element.send_keys(Keys.TAB * (n + 5))
    told = "controls.filter((e) => !reached.has(e)).map((e) => e.outerHTML.slice(0, 120))"
    assert page.run(f"return {told}") == []


def test_tiny_numbers_of_claims_keep_their_digits_and_marks_say_them(
    causal_report: ReportData,
) -> None:
    shown = paper("kazemnejad2023")
    outcomes = [Outcome(shown.claims[0], Measured(-2.134e-4, -0.0125, 4.5e-6, 3))]
    data = _data(causal_report.measurements, "A headline.")
    page = Page(render_reproduction(data, shown, outcomes, _figures("gains"), [], ""))
    words = " ".join(" ".join(page.words).split())
    assert "−0.000213 [−0.0125, 4.5e−06]" in words
    assert "−0.0125 to 4.5e−06" in words
    (label,) = {a["aria-label"] for tag, a in page.elements if tag == "svg" and a.get("role")}
    assert label == f"−0.000213 [−0.0125, 4.5e−06]; {shown.claims[0].test}"
