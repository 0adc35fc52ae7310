"""The live page and its saved form as documents: what may run in them, and what they hold."""

from experiments.report.explore_page import explore_page, live_policy, saved_page
from tests.experiments.report.parsed_page import HOSTILE, Page

ANSWERS = {"model": {"name": HOSTILE, "labels": ["none"]}, "read": {"tokens": [HOSTILE]}}


def test_a_name_is_text_in_both() -> None:
    for text in (explore_page({"name": HOSTILE}, "n"), saved_page({"prompt": HOSTILE}, ANSWERS)):
        page = Page(text)
        assert any(HOSTILE in words for words in page.words)
        assert len([tag for tag, _ in page.elements if tag == "script"]) == 4


def test_only_the_live_page_s_own_script_may_run() -> None:
    page = Page(explore_page({"name": "m"}, "abc123"))
    scripts = [attributes for tag, attributes in page.elements if tag == "script"]
    assert [a for a in scripts if a.get("type") is None] == [{"nonce": "abc123"}]
    allowed = dict(part.strip().split(" ", 1) for part in live_policy("abc123").split(";"))
    assert allowed["default-src"] == "'none'"
    assert allowed["script-src"] == "'nonce-abc123'"
    assert allowed["connect-src"] == "'self'"
    named = {name for _, attributes in page.elements for name in attributes}
    assert [name for name in named if name.startswith("on")] == []
    page.assert_asks_nothing_of_the_network()


def test_a_saved_page_asks_for_nothing_and_changes_nothing() -> None:
    page = Page(saved_page({"prompt": "a"}, ANSWERS))
    page.assert_lets_only_its_own_scripts_run()
    page.assert_asks_nothing_of_the_network()
    assert page.data == {"live": False, "state": {"prompt": "a"}, "answers": ANSWERS}
    assert not {"ask", "take-away"} & {attributes.get("id") for _, attributes in page.elements}
