"""The documentation builds without a warning, and its tutorials run."""

import importlib
import io
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from sphinx.application import Sphinx

from experiments.report.words import words_markdown
from tests.experiments.report.browser import start_chromium
from tests.experiments.report.parsed_page import Page
from tests.paths import ROOT
from tests.task_table import PAGE as TASKS
from tests.task_table import page as tasks_page

DOCS = ROOT / "docs"
TUTORIALS = sorted(path for path in (DOCS / "tutorials").glob("*.md") if path.stem != "index")
# What a page would load by itself; links that a reader follows are none.
ASKED_FOR = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\bsrc=.?(?:https?:)?//|"
    r"<link(?![^>]*rel=.?(?:canonical|search|index|next|prev))[^>]*\bhref=.?(?:https?:)?//|"
    r"url\(.?(?:https?:)?//|@import .?(?:https?:)?//"
)


def cells_of(page: Path) -> str:
    """A tutorial's code; what follows `# short:` stands in place of a size."""
    fenced = r"```\{code-cell\} python\n(?::tags:[^\n]*\n)?(.*?)```"
    code = "\n".join(re.findall(fenced, page.read_text(encoding="utf-8"), re.S))
    return re.sub(r"= [^\n]*?  # short: ([^\n]*)", r"= \1", code)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorials_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = cells_of(page)
    assert code.count("\n") > 5
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "tutorial.py"
    script.write_text(code)
    runpy.run_path(str(script), run_name="__main__")


def test_the_table_of_tasks_is_current() -> None:
    said = "the tasks have changed: run python -m tests.task_table"
    assert TASKS.read_text(encoding="utf-8") == tasks_page(), said


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site, its cells not run."""
    built, warned = tmp_path_factory.mktemp("site"), io.StringIO()
    confoverrides = {"nb_execution_mode": "off"}
    app = Sphinx(DOCS, DOCS, built / "html", built / "trees", "html", confoverrides, None, warned)
    app.build()
    assert warned.getvalue() == ""
    return built / "html"


def test_every_page_is_built(site: Path) -> None:
    for page in (*DOCS.glob("*.md"), *TUTORIALS):
        assert (site / page.relative_to(DOCS).with_suffix(".html")).is_file()
    options = (site / "generated" / "options.html").read_text(encoding="utf-8")
    assert "--transformer.n-layers" in options
    names = (site / "generated" / "api.html").read_text(encoding="utf-8")
    assert "SequenceBootstrap" in names
    assert "heads_find_by" in names  # LoadedModel has it from another class of ours


def test_no_page_asks_for_a_network(site: Path) -> None:
    assert ASKED_FOR.search('<script src="https://example.org/x.js">')
    for path in (*site.rglob("*.html"), *site.rglob("*.css")):
        found = ASKED_FOR.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path.relative_to(site)}: {found and found.group()}"


@pytest.mark.browser
def test_in_a_browser_too_no_page_asks_for_a_network(site: Path, tmp_path: Path) -> None:
    asking = tmp_path / "asking.html"
    asking.write_text('<img src="https://example.org/x.png">')
    driver = start_chromium(tmp_path / "profile")
    try:
        driver.get(asking.as_uri())
        assert "https://example.org/x.png" in driver.get_log("browser")[0]["message"]
        for path in sorted(site.rglob("*.html")):
            driver.get(path.as_uri())
            said = [entry["message"] for entry in driver.get_log("browser")]
            # A short build has none of the pages that the gallery frames.
            assert [message for message in said if "/page-" not in message] == [], path
    finally:
        driver.quit()


@pytest.fixture
def gallery(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    return importlib.import_module("gallery")


def test_the_gallery_frames_each_page_that_is_made_for_it(site: Path, gallery: Any) -> None:
    shown = (site / "gallery.html").read_text(encoding="utf-8")
    frames = re.findall(r'<iframe class="page" src="page-(\w+)\.html"[^>]*>', shown)
    assert frames == list(gallery.RUNS)
    # A framed page runs its own scripts, and reaches nothing of the site's.
    assert shown.count('sandbox="allow-scripts allow-downloads"') == len(frames)
    for name in frames:
        assert f'<a href="page-{name}.html">' in shown


def test_a_hostile_prompt_stays_text_in_the_gallery(gallery: Any, tmp_path: Path) -> None:
    found = gallery.RUNS["heads"](tmp_path)
    page = Page(found.html())
    page.assert_lets_only_its_own_scripts_run()
    page.assert_asks_nothing_of_the_network()
    assert "".join(found.info["prompts"][0]).removeprefix("<begin>") == gallery.HOSTILE
    assert "img" not in {tag for tag, _ in page.elements}


def test_the_words_of_the_pages_are_written_from_their_template() -> None:
    """`python -m experiments.report.words > docs/words.md` writes them again."""
    page = (DOCS / "words.md").read_text(encoding="utf-8")
    assert page == words_markdown()
    # An empty line ends a block of HTML, and Markdown would read on.
    assert "\n\n" not in page[page.index("<dl") :]


def test_the_words_have_every_entry_of_the_pages(site: Path) -> None:
    shown = (site / "words.html").read_text(encoding="utf-8")
    template = ROOT / "experiments" / "report" / "templates" / "glossary.html"
    names = re.findall(r'call entry\("([\w-]+)"', template.read_text(encoding="utf-8"))
    assert len(names) > 40
    for name in names:
        assert f'id="term-{name}"' in shown
