"""The live page in a real browser, by mouse and by keyboard: what it shows is the library's."""

import contextlib
import io
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from experiments.explore.answers import Finished
from experiments.explore.playground import Playground
from experiments.explore.serving import explore
from experiments.loaded import LoadedModel
from nope_interp.positions.ablation import ablate_positions
from tests.experiments.explore.page import LivePage, in_a_tab, numbers, serving
from tests.experiments.explore.test_families import playground_of
from tests.experiments.report.browser import (
    CONTRASTS,
    DESKTOP,
    NOT_READ,
    PHONE,
    Browser,
    keep,
    window,
)

pytestmark = pytest.mark.browser

PROMPT = "one two, one tw"
OTHER = "one two, one on"
ABSENT = {"positions": None, "layers": None, "heads": None}
TEXTS = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
HOSTILE = "<img src=x onerror=\"document.title='x'\"></script> {{7*7}} \u202e${alert(1)}"


@pytest.fixture(scope="module")
def lm(embedded: Playground) -> LoadedModel:
    """The model that ships with the package."""
    return embedded.loaded


@pytest.fixture(scope="module")
def address(lm: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where its page is served."""
    with serving(lm, tmp_path_factory.mktemp("no-runs")) as url:
        yield url


@pytest.fixture(scope="module")
def opened(driver: webdriver.Chrome, downloads: Path, address: str) -> LivePage:
    return LivePage(driver, address, downloads)


@pytest.fixture
def page(opened: LivePage) -> Iterator[LivePage]:
    """The page that all tests share, at the same prompt and head, which has nothing to say."""
    window(opened, DESKTOP)
    opened.go({"prompt": PROMPT, "layer": 1, "head": 0})
    yield opened
    assert opened.driver.get_log("browser") == []


@pytest.fixture(scope="module")
def read(lm: LoadedModel) -> dict[str, Any]:
    """The library's own: log-probabilities and patterns of the prompt."""
    tokens = encoded(lm, PROMPT)
    with torch.no_grad():
        logits, cache = lm.model.run_with_cache(tokens)
    return {
        "tokens": tokens,
        "words": lm.variant.token_strings(tokens[0]),
        "log_p": logits.log_softmax(-1)[0],
        "cache": cache,
    }


def encoded(lm: LoadedModel, prompt: str) -> torch.Tensor:
    """A prompt behind the begin token."""
    return torch.tensor([[lm.variant.sources[0].begin_id, *lm.variant.encode(prompt)]])


def surprisal(read: dict[str, Any]) -> np.ndarray:
    tokens = read["tokens"][0]
    return -read["log_p"][:-1].gather(1, tokens[1:, None])[:, 0].numpy()


def shares(page: LivePage, table: str, column: int) -> list[float]:
    """A column of percents, as shares."""
    found = [numbers(row[column])[0] / 100 for row in page.rows(table)]
    assert found
    return found


def test_a_hybrid_shows_the_heads_that_it_has(
    driver: webdriver.Chrome, downloads: Path, tmp_path: Path
) -> None:
    lm = playground_of("jamba", attn_layer_period=2, attn_layer_offset=1).loaded
    with serving(lm, tmp_path) as url, in_a_tab(driver):
        absent = {"prompt": "one two", "layer": 0, "head": 0}
        page = LivePage(driver, f"{url}#{quote(json.dumps(absent))}", downloads)
        assert page.run(TEXTS, "#map [role=rowheader]") == ["L1", "L3"]
        assert len(page.all("#map [role=gridcell] canvas")) == 2 * lm.model.cfg.n_heads
        assert re.match(r"L[13]H\d", page.find("#head-title").text)
        page.go({"prompt": "one two", "layer": 3, "head": 2})
        assert page.find("#head-title").text.startswith("L3H2")
        assert page.run(TEXTS, "#layers [data-layer]") == ["L1", "L3"]
        assert driver.get_log("browser") == []


# ---------------------------------------------------------------- type, and see


def test_a_typed_prompt_is_read(page: LivePage, lm: LoadedModel, read: dict[str, Any]) -> None:
    page.go({"prompt": "Something else.", "layer": 0, "head": 0})
    page.find("#prompt").clear()
    page.find("#prompt").send_keys(PROMPT)
    # While a word is composed, as in Japanese, Enter ends the word and no more.
    assert page.run(
        "return document.querySelector('#prompt').dispatchEvent(new KeyboardEvent('keydown',"
        "{key: 'Enter', isComposing: true, cancelable: true, bubbles: true}))"
    )
    page.find("#prompt").send_keys(Keys.ENTER)
    page.wait(lambda: page.state["prompt"] == PROMPT)
    page.settle()
    told = page.tokens
    assert len(told) == len(read["words"])
    shown = [numbers(words.split("surprisal")[1])[0] for words in told[1:]]
    assert shown == pytest.approx(surprisal(read).tolist(), rel=6e-3, abs=6e-5)
    best = read["log_p"][-1].exp().topk(7)
    assert shares(page, "#next", 1) == pytest.approx(best.values.tolist(), abs=6e-3)
    likeliest = lm.variant.tokenizer.decode([int(best.indices[0])])
    assert page.rows("#next")[0][0] == likeliest.replace(" ", "␣").replace("\n", "↵")
    assert f"{surprisal(read).mean():.3g}" in page.find("#said").text


def test_pointing_at_a_token_shows_its_number(page: LivePage, read: dict[str, Any]) -> None:
    third = page.find("#tokens span:nth-child(4)")
    ActionChains(page.driver).move_to_element(third).perform()
    page.wait(lambda: "surprisal" in page.find("#tip").text)  # another tip may be there still
    tip = page.find("#tip").text
    assert numbers(tip.split("surprisal")[1])[0] == pytest.approx(surprisal(read)[2], rel=6e-3)
    # A tip's first letter is a capital one, and a token's is its own.
    assert page.run("return document.querySelector('#tip').innerText").startswith("Token 3 · “e”")


def test_a_click_on_a_head_shows_its_attention(page: LivePage, read: dict[str, Any]) -> None:
    page.click("#map [data-layer='2'][data-head='1']")
    page.wait(lambda: page.find("#head-title").text.startswith("L2H1"))
    page.settle()
    header, *rows = page.download("#attention .csv")
    assert header == ["positions", "query", "key", "weight"]
    pattern = read["cache"]["blocks.2.attn.hook_pattern"][0, 1]
    for condition, query, key, weight in rows:
        assert condition == "before"
        assert float(weight) == pytest.approx(float(pattern[int(query), int(key)]), abs=1e-6)
    assert len(rows) == len(pattern) * (len(pattern) + 1) // 2
    page.click("#attention .prompt span:last-child")
    assert page.all("#attention .lines path")
    assert page.find("#feeds").text
    page.wait(lambda: page.all("#attention .circuits canvas:not(.bare)"))  # behind the bare map


def test_a_head_that_is_still_to_be_drawn_has_the_tokens_of_the_one_before(page: LivePage) -> None:
    """Whatever happens to the page in between: here its width changes."""
    page.run(
        "window.held = []; window.given = window.setTimeout;"
        "window.setTimeout = (f, ms) => ms === undefined ? held.push(f) : given(f, ms)"
    )
    told = page.find("#attention .told").text
    page.go({"prompt": "on", "layer": 1, "head": 0})
    page.driver.execute_async_script(
        "document.querySelector('#attention .pair').style.width = '50%';"
        "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
    )
    assert page.find("#attention .told").text == told
    page.run(
        "window.setTimeout = given; document.querySelector('#attention .pair').style.width = '';"
        "for (const draw of held) draw()"
    )
    assert page.find("#attention .told").text != told


# What the page is answered where both likeliest tokens are parts of characters.
ALIKE = """
const of = (id, probability) => ({ predictions: [{ id, token: "\\ufffd", probability }],
  surprisal: [null], labels: [["none"]], loss: 1 });
const both = { id: 8, token: "x", before: 0.996, after: 0.004 };
exploreReading({ state: { get: () => ({}) }, sides: { offer() {}, shown: () => "before" } }).show({
  tokens: ["x"], before: of(8, 0.9), after: of(9, 0.9), notes: [],
  difference: { surprisal: [null], loss: 0, predictions: [both] },
  of: { change: { head_changes: [{ layer: 0, head: 1, to: "ablated" }] } },
});
"""


def test_tokens_are_told_apart_and_a_change_is_the_one_that_is_shown(page: LivePage) -> None:
    page.run(ALIKE)
    assert page.find("#said").text.endswith(
        "The model expects “�” (token id 9) next, no longer “�” (token id 8)."
    )
    assert page.find("#notes").text == "Changed: L0H1 outputs zero."  # not what is asked next
    assert page.rows("#next")[0][1:3] == [">99%", "0.4%"]
    page.go({"prompt": OTHER, "layer": 1, "head": 0})  # as others find it


def test_figures_say_no_more_than_they_know(page: LivePage) -> None:
    assert page.run("return [1e-5, -1e-5, 0.5, -0.5, null].map(signed)") == [
        *("0", "0", "+0.5", "−0.5", "–")
    ]
    shares = [0, 0.001, 0.5, 0.994, 0.9951, 1]
    told = page.run("return arguments[0].map(common.wholePercent)", shares)
    assert told == ["0%", "<1%", "50%", "99%", ">99%", "100%"]
    # Half of a character of two parts would be no text.
    cut = page.run("return common.shortened(arguments[0])", 12 * "a" + "\U0001f642bbb")
    assert cut == 12 * "a" + "\U0001f642…"


# ---------------------------------------------------------------- take away


def test_a_head_is_taken_away_and_put_back(page: LivePage, read: dict[str, Any], lm: Any) -> None:
    page.choose("#head-change", "ablated")
    page.wait(lambda: page.state.get("change"))
    page.settle()

    def without(z: torch.Tensor, hook: Any) -> torch.Tensor:
        z[:, :, 0] = 0
        return z

    hooks = [("blocks.1.attn.hook_z", without)]
    with torch.no_grad():
        after = lm.model.run_with_hooks(read["tokens"], fwd_hooks=hooks).log_softmax(-1)[0]
    written = read["tokens"][0, 1:, None]
    lost = (-after[:-1].gather(1, written) + read["log_p"][:-1].gather(1, written))[:, 0]
    told = [numbers(words.split("difference")[1])[0] for words in page.tokens[1:]]
    assert told == pytest.approx(lost.tolist(), rel=6e-3, abs=6e-5)
    before, now = numbers(page.find("#said").text)[:2]
    assert now - before == pytest.approx(float(lost.mean()), abs=0.02)
    assert page.find("#attention .pair [data-condition='after']").is_displayed()
    keep(page, "explore-take-away")
    page.click("#put-back")
    page.wait(lambda: "change" not in page.state)
    page.settle()
    assert not page.find("#sides").is_displayed()
    assert [words for words in page.tokens if "difference" in words] == []


def test_a_head_looks_as_in_the_other_prompt(page: LivePage, read: dict[str, Any]) -> None:
    change = {"head_changes": [{"layer": 1, "head": 0, "to": "uniform"}]}
    page.go({"prompt": PROMPT, "layer": 1, "head": 0, "change": change})
    rows = [row for row in page.download("#attention .csv")[1:] if row[0] == "after"]
    assert {round(float(w) * (int(q) + 1), 4) for _, q, _, w in rows} == {1.0}
    page.choose("#head-change", "other_prompt")
    page.wait(lambda: page.find("#sorry").is_displayed())  # there is none yet
    page.driver.get_log("browser")  # which reports each 4xx
    page.find("#take-away textarea.other").send_keys(OTHER, Keys.TAB)
    page.wait(lambda: page.state.get("other_prompt") == OTHER)
    page.settle()
    assert not page.find("#sorry").is_displayed()
    # Both prompts are the same up to the last word but one.
    rows = page.download("#attention .csv")[1:]
    pattern = read["cache"]["blocks.1.attn.hook_pattern"][0, 0]
    same = [row for row in rows if row[0] == "after" and int(row[1]) < 8]
    assert [float(row[3]) for row in same] == pytest.approx(
        [float(pattern[int(q), int(k)]) for _, q, k, _ in same], abs=1e-5
    )


def test_a_finished_label_is_not_held_against_a_live_one(
    driver: webdriver.Chrome, downloads: Path, lm: LoadedModel, tmp_path: Path
) -> None:
    served = explore(lm, out=tmp_path)
    labels = [["content"] * 4] * 4  # which no live label is
    served.playground.made["finished"] = Finished(folder="heads-of-it", labels=labels)
    try:
        with in_a_tab(driver):
            page = LivePage(driver, served.url, downloads)
            page.go({"prompt": PROMPT, "layer": 1, "head": 0})
            assert page.find("#head-title").text == "L1H0 content"
            assert "heads-of-it" in page.find("#label-source").text
            page.choose("#head-change", "ablated")
            page.wait(lambda: "→" in page.find("#head-title").text)
            page.settle()
            assert "content" not in page.find("#head-title").text
            assert driver.get_log("browser") == []
    finally:
        served.close()


def test_an_encoding_is_taken_away_in_layers_and_heads(
    driver: webdriver.Chrome, downloads: Path, llama: Playground, tmp_path: Path
) -> None:
    model = llama.model  # the package's own has no encoding to take away
    with serving(llama.loaded, tmp_path) as address, in_a_tab(driver):
        page = LivePage(driver, address, downloads)
        page.go({"prompt": "one two one two", "layer": 1, "head": 2})
        tokens = encoded(llama.loaded, "one two one two")
        written = tokens[0, 1:, None]

        def losses() -> torch.Tensor:
            with torch.no_grad():
                return -model(tokens)[0, :-1].log_softmax(-1).gather(1, written)[:, 0]

        def told() -> list[float]:
            page.settle()
            return [numbers(words.split("after")[1])[0] for words in page.tokens[1:]]

        page.choose("#encoding", "rotary")
        page.wait(lambda: page.state.get("change", {}).get("positions") == "rotary:none")
        shown = told()
        with ablate_positions(model, "rotary:none"):
            assert shown == pytest.approx(losses().tolist(), rel=6e-3)
        page.choose("#condition", "keep_highest")
        page.wait(lambda: "keep_highest" in page.state["change"]["positions"])
        page.settle()  # a reading that a newer one ends may be reported
        page.find("#share").send_keys(Keys.CONTROL, "a", Keys.NULL, "0.5", Keys.TAB)
        page.wait(lambda: page.state["change"]["positions"] == "rotary:keep_highest=0.5")
        page.settle()
        page.click("#layers [data-layer='1']")
        page.wait(lambda: page.state["change"]["layers"] == [1])
        shown = told()
        with ablate_positions(model, "rotary:keep_highest=0.5", layers=[1]):
            assert shown == pytest.approx(losses().tolist(), rel=6e-3)
        # This model's heads share their keys in pairs, which is said, and chosen as pairs.
        assert page.find("#shared-keys").is_displayed()
        page.click("#only-heads button")
        page.wait(lambda: page.state["change"].get("heads") == [[1, 2], [1, 3]])
        page.settle()
        assert [one.text for one in page.all("#only-heads button")] == ["L1H2 to H3 ×"]
        shown = told()
        assert not page.find("#sorry").is_displayed()
        with ablate_positions(model, "rotary:keep_highest=0.5", layers=[1], heads=[2, 3]):
            assert shown == pytest.approx(losses().tolist(), rel=6e-3)
        assert page.find("#usage").is_displayed()
        page.click("#only-heads button")
        page.wait(lambda: "heads" not in page.state["change"] or not page.state["change"]["heads"])
        page.settle()
        assert driver.get_log("browser") == []


# ---------------------------------------------------------------- move


def test_a_dragged_token_gets_another_code(page: LivePage, lm: LoadedModel) -> None:
    page.run("document.querySelector('#move').open = true")
    page.wait(lambda: page.all("#tokens.drags"))
    tokens = page.all("#tokens span")
    ActionChains(page.driver).drag_and_drop(tokens[12], tokens[5]).perform()
    page.wait(lambda: page.state.get("move"))
    page.settle()
    assert page.state["move"]["moves"] == {"12": 5}
    assert page.all("#arrows path[data-move='12 5']")
    page.wait(lambda: page.all("#followed .main-svg"))
    keep(page, "explore-move")
    header, *rows = page.download("#followed .csv")
    assert header == ["layer", "head", "distance", "control"]
    moved = np.array([[float(value) for value in row] for row in rows])
    assert len(moved) == lm.model.cfg.n_layers * lm.model.cfg.n_heads
    layer = page.state["move"]["layer"]
    # What is before the site does not move, and what is behind it does.
    assert moved[moved[:, 0] < layer, 2] == pytest.approx(0, abs=1e-6)
    assert moved[moved[:, 0] > layer, 2].max() > 1e-4
    text = page.find("#moved .said").text
    moved_by, _, by_control, low, high, _ = numbers(text)
    assert 0 <= low <= by_control <= high
    assert ("does not show that the prediction follows" in text) == (moved_by <= high)
    for row in page.download("#probed .csv")[1:]:
        assert row[1:3] == ["12", "5"]


# Answers of these names wait until `answered` is called.
HOLD = """
const given = window.fetch, held = [];
window.fetch = async (url, how) => {
  const found = await given(url, how);
  if (/(move|feeds)$/.test(url)) await new Promise((go) => held.push(go));
  return found;
};
window.waits = () => held.length;
window.answered = () => { window.fetch = given; for (const go of held) go(); };
"""


def test_what_comes_too_late_is_not_shown(page: LivePage) -> None:
    assert page.all("#feeds li")
    page.run(HOLD)
    page.run(
        "document.querySelector('#from').value = 9; document.querySelector('#to').value = 4;"
        "document.querySelector('#add-move').click()"
    )
    page.wait(lambda: page.run("return waits()") == 1)
    page.run("document.querySelector('#no-move').click()")
    page.click("#map [data-layer='2'][data-head='1']")
    page.wait(lambda: page.find("#head-title").text.startswith("L2H1"))
    assert page.all("#feeds li") == []  # which were the former head's
    page.wait(lambda: page.run("return waits()") == 2)
    page.run("answered()")
    page.settle()
    assert page.all("#feeds li")
    assert not page.find("#moved").is_displayed()


def test_a_position_is_a_number_however_it_is_typed(page: LivePage) -> None:
    page.run("document.querySelector('#move').open = true")
    page.find("#from").send_keys(Keys.CONTROL, "a", Keys.NULL, "09.0")
    page.find("#to").send_keys(Keys.CONTROL, "a", Keys.NULL, "4", Keys.ENTER)
    assert page.state["move"]["moves"] == {"9": 4}
    page.find("#moves input").send_keys(Keys.ARROW_UP)
    page.keys(Keys.ARROW_UP)  # the field keeps the focus
    assert page.state["move"]["moves"] == {"9": 6}
    page.click("#no-move")
    page.settle()


def test_a_move_that_cannot_be_is_said_until_it_is_undone(page: LivePage) -> None:
    page.run("document.querySelector('#move').open = true")
    page.run("document.querySelector('#code-layer').value = 1.5")
    page.find("#from").send_keys(Keys.CONTROL, "a", Keys.NULL, "0")  # which has no code
    page.find("#to").send_keys(Keys.CONTROL, "a", Keys.NULL, "5", Keys.ENTER)
    assert "move" not in page.state  # the browser says what a layer may be
    page.run("document.querySelector('#code-layer').value = 1")
    page.click("#add-move")
    page.wait(lambda: page.find("#sorry").is_displayed())
    assert page.find("#sorry").text.startswith("Position 0 has no code of its own")
    page.driver.get_log("browser")  # which reports each 4xx
    page.click("#no-move")
    assert not page.find("#sorry").is_displayed()


# ---------------------------------------------------------------- patch


def test_a_map_of_patches(page: LivePage, lm: LoadedModel, read: dict[str, Any]) -> None:
    close_parts(page)  # charts are drawn where they are seen
    page.run("document.querySelector('#patch').open = true")
    page.find("#patch textarea.other").clear()
    page.find("#patch textarea.other").send_keys(OTHER)
    page.click("#patch-start")
    page.wait(lambda: page.find("#patched").is_displayed())
    page.settle()
    page.wait(lambda: page.all("#recovered .main-svg"))
    keep(page, "explore-patch")
    z = np.array(page.traces("recovered")[0]["z"], dtype=float)
    assert z.shape == (lm.model.cfg.n_layers, len(read["words"]))
    other = encoded(lm, OTHER)
    with torch.no_grad():
        corrupted = lm.model(other)[0, -1]
    clean = read["log_p"][-1]
    answer, wrong = int(clean.argmax()), int(corrupted.argmax())

    def difference(logits: torch.Tensor) -> float:
        return float(logits[answer] - logits[wrong])

    def patched(layer: int, position: int) -> float:
        name = f"blocks.{layer}.hook_resid_pre"

        def put(activations: torch.Tensor, hook: Any) -> torch.Tensor:
            activations[:, position] = read["cache"][name][:, position]
            return activations

        with torch.no_grad():
            logits = lm.model.run_with_hooks(other, fwd_hooks=[(name, put)])[0, -1]
        worst = difference(corrupted)
        return (difference(logits) - worst) / (difference(clean) - worst)

    for layer, position in ((0, z.shape[1] - 2), (2, z.shape[1] - 1), (1, 3)):
        assert z[layer, position] == pytest.approx(patched(layer, position), abs=2e-3)


def test_a_patch_that_is_stopped_does_not_start_again_by_itself(page: LivePage) -> None:
    page.run("document.querySelector('#patch').open = true")
    page.find("#patch textarea.other").clear()
    page.find("#patch textarea.other").send_keys(OTHER)
    page.run(
        "document.querySelector('#patch-start').click();"
        "document.querySelector('#patch-stop').click()"
    )
    page.settle()
    assert "patch" not in page.state
    ablated = {"head_changes": [{"layer": 0, "head": 0, "to": "ablated"}]}
    page.go({**page.state, "change": {**ABSENT, **ablated}})
    assert "patch" not in page.state
    assert not page.find("#patched").is_displayed()


def test_each_patch_is_a_step_and_follows_its_prompts(page: LivePage) -> None:
    def columns() -> int:
        page.settle()
        page.wait(lambda: page.find("#patched").is_displayed())
        return len(page.traces("recovered")[0]["z"][0])

    patched = {"prompt": PROMPT, "other_prompt": OTHER, "patch": {"at": "resid_pre"}}
    page.go({**patched, "layer": 1, "head": 0})
    page.wait(lambda: page.all("#recovered .main-svg"))
    page.run(
        "document.querySelector('#patch-at').value = 'head_out';"
        "document.querySelector('#patch-start').click()"
    )
    assert columns() == 4
    page.run("document.querySelector('#patch-start').click()")  # the same once more is no step
    page.driver.back()
    page.wait(lambda: page.state["patch"]["at"] == "resid_pre")
    assert columns() == 16
    page.go({**patched, "other_prompt": "one two, one in", "layer": 1, "head": 0})
    assert columns() == 16


# ---------------------------------------------------------------- keep


def test_the_address_the_page_and_the_figure_hold_what_is_shown(
    page: LivePage, driver: webdriver.Chrome, downloads: Path
) -> None:
    change = {"head_changes": [{"layer": 0, "head": 1, "to": "previous_token"}]}
    page.go({"prompt": PROMPT, "layer": 2, "head": 3, "change": change})
    told, said, title = page.tokens, page.find("#said").text, page.find("#head-title").text
    driver.refresh()
    page.wait_until_ready()
    page.settle()
    assert (page.tokens, page.find("#said").text) == (told, said)
    assert page.find("#head-title").text == title

    page.run("document.querySelector('#keep').open = true")
    figure = page.saved("#keep [data-figure='#map']", ".svg")
    marks = [item.tag.split("}")[1] for item in ElementTree.parse(figure).getroot().iter()]
    assert marks.count("image") == len(page.all("#map [data-head]"))
    saved = page.saved("#save-page", ".html")
    with in_a_tab(driver):
        kept = Browser(driver, saved.as_uri(), downloads).wait_until_ready()
        kept.wait(lambda: kept.find("#head-title").text == title)
        assert [box.get_attribute("aria-label") for box in kept.all("#tokens span")] == told
        assert kept.find("#said").text == said
        assert kept.all("#ask, #take-away, #move") == []
        asked = kept.run("return performance.getEntriesByType('resource').map(e => e.name)")
        assert [name for name in asked if not name.startswith("data:")] == []
        assert driver.get_log("browser") == []


def test_the_address_is_copied_where_the_clipboard_is_closed(page: LivePage) -> None:
    """As it is in a frame: then only what stands in the page can be copied."""
    page.run("document.querySelector('#keep').open = true")
    page.run("navigator.clipboard.writeText = () => Promise.reject(new Error('closed'))")
    page.click("#copy-address")
    page.wait(lambda: page.find("#copy-address").text == "Copied")
    page.find("#prompt").send_keys(Keys.CONTROL, "av")
    assert page.find("#prompt").get_attribute("value") == page.run("return location.href")
    assert not page.all("#keep code.hidden")
    page.find("#prompt").send_keys(Keys.CONTROL, "a", Keys.NULL, PROMPT)  # as others find it


def test_the_lines_of_python_print_the_same_numbers(page: LivePage, read: dict[str, Any]) -> None:
    page.run("document.querySelector('#keep').open = true")
    code = page.wait(lambda: page.find("#python").text)
    assert len([line for line in code.splitlines() if line]) <= 10
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    shown = [float(number) for number in re.findall(r"\d+\.\d+", printed.getvalue())]
    expected = [*surprisal(read), *read["log_p"][-1].exp().topk(10).values.tolist()]
    assert shown == pytest.approx(expected, abs=1e-5)


# ---------------------------------------------------------------- by keyboard alone


def test_the_mouse_does_all_of_it_on_a_phone(page: LivePage) -> None:
    """As on a desk, above, where each number is looked at."""
    window(page, PHONE)
    close_parts(page)
    page.find("#prompt").send_keys(" five")
    page.click("#ask button[type='submit']")
    page.wait(lambda: page.state["prompt"] == PROMPT + " five")
    page.settle()
    page.click("#map [data-layer='2'][data-head='1']")
    page.wait(lambda: page.find("#head-title").text.startswith("L2H1"))
    page.click("#take-away > summary")
    page.choose("#head-change", "ablated")
    page.wait(lambda: "Loss goes from" in page.find("#said").text)
    page.settle()
    page.click("#move > summary")
    page.wait(lambda: page.all("#tokens.drags"))
    page.settle()  # what is still to come would shift the tokens under the mouse
    page.run("document.querySelector('#tokens').scrollIntoView({block: 'center'})")
    tokens = page.all("#tokens span")
    ActionChains(page.driver).drag_and_drop(tokens[9], tokens[4]).perform()
    page.wait(lambda: page.find("#moved").is_displayed())
    page.settle()
    assert page.state["move"]["moves"] == {"9": 4}
    page.click("#patch > summary")
    page.find("#patch textarea.other").send_keys(OTHER + " five")
    page.click("#patch-start")
    page.wait(lambda: page.find("#patched").is_displayed())
    page.settle()
    page.click("#keep > summary")
    saved = page.saved("#save-page", ".html")
    assert saved.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert "set_position" in page.find("#python").text
    wide, room = page.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= room == PHONE[0]
    page.settle()


def close_parts(page: LivePage) -> None:
    page.run("document.activeElement.blur(); scrollTo(0, 0)")
    for part in page.all("details.part"):
        page.run("arguments[0].open = false", part)


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=str)
def test_the_keyboard_does_all_of_it(page: LivePage, size: tuple[int, int]) -> None:
    window(page, size)
    close_parts(page)
    page.tab_to("#prompt")
    page.keys(Keys.END, " four", Keys.ENTER)
    page.wait(lambda: page.state["prompt"] == PROMPT + " four")
    page.settle()
    page.run("document.querySelector('.skip').focus()")
    page.keys(Keys.ENTER)  # the address stays that of what is shown
    assert page.state["prompt"] == PROMPT + " four"
    assert page.run("return document.activeElement.matches('#tokens span')")
    page.run("document.activeElement.blur()")
    page.tab_to("#tokens span")
    page.keys(Keys.HOME, Keys.ARROW_RIGHT)
    assert page.find("#token-told").text.startswith("Token 1 ")
    page.tab_to("#take-away > summary")
    page.keys(Keys.ENTER)
    page.tab_to("#head-change")
    page.keys("output")
    page.wait(lambda: page.state.get("change"))
    page.settle()
    page.tab_to("#move > summary")
    page.keys(Keys.ENTER)
    page.tab_to("#from")
    page.keys("9", Keys.TAB, "4", Keys.ENTER)
    page.wait(lambda: page.state.get("move"))
    page.settle()
    assert page.state["move"]["moves"] == {"9": 4}
    page.tab_to("#patch > summary")
    page.keys(Keys.ENTER)
    page.tab_to("#patch textarea.other")
    page.keys(OTHER + " four")
    page.tab_to("#patch-start")
    page.keys(Keys.ENTER)
    page.wait(lambda: page.find("#patched").is_displayed())
    page.settle()
    page.tab_to("#map [data-head]")
    page.keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ENTER)
    page.wait(lambda: (page.state["layer"], page.state["head"]) == (2, 1))  # from L1H0
    page.settle()
    assert page.find("#head-title").text.startswith("L2H1")
    page.tab_to("#keep > summary")
    page.keys(Keys.ENTER)
    page.tab_to("#keep pre")
    assert "set_position" in page.find("#python").text
    for saves, suffix in (("#keep [data-figure='#map']", ".svg"), ("#save-page", ".html")):
        page.empty_downloads()
        page.run("document.querySelector('#keep > summary').focus()")
        page.tab_to(saves)
        page.keys(Keys.ENTER)
        saved = partial(page.downloads.glob, f"*{suffix}")
        page.wait(lambda saved=saved: any(file.stat().st_size for file in saved()))  # type: ignore[misc]
    page.settle()
    wide, room = page.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= room == size[0]
    keep(page, f"explore-{room}")


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=str)
def test_tab_reaches_every_control(page: LivePage, size: tuple[int, int]) -> None:
    window(page, size)
    page.run("for (const part of document.querySelectorAll('details.part')) part.open = true")
    # The members of a list or a grid are one stop, which the arrow keys walk.
    wanted = page.run(
        "return [...document.querySelectorAll('button, select, input, textarea, summary, a[href]')]"
        ".filter(c => c.checkVisibility() && !c.disabled && c.tabIndex >= 0).map((c, i) =>"
        " { c.dataset.stop = i; return String(i); })"
    )
    page.run("document.activeElement.blur(); scrollTo(0, 0)")
    reached: set[str] = set()
    for _ in range(3 * len(wanted)):
        if reached == set(wanted):
            break
        page.keys(Keys.TAB)
        stop = page.run("return document.activeElement.dataset.stop ?? null")
        reached |= {stop} - {None}
    assert reached == set(wanted)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(page: LivePage, scheme: str) -> None:
    window(page, DESKTOP, scheme)
    change = {"head_changes": [{"layer": 0, "head": 1, "to": "ablated"}]}
    page.go({"prompt": PROMPT, "layer": 1, "head": 0, "change": change})
    page.run("for (const part of document.querySelectorAll('details.part')) part.open = true")
    page.click("#sides button:last-child")
    faint = [found for found in page.run(CONTRASTS, NOT_READ) if found[0] < 4.5]
    page.click("#sides button:nth-child(2)")
    assert faint == []


# ---------------------------------------------------------------- what people type


def test_hostile_prompts_are_text(page: LivePage, lm: LoadedModel) -> None:
    title = page.driver.title
    page.go({"prompt": HOSTILE, "layer": 1, "head": 0, "other_prompt": HOSTILE})
    words = page.run(
        "return [...document.querySelectorAll('#tokens span')].map(s => s.textContent).join('')"
    )
    for part in ("<img", "onerror", "</script>", "{{7*7}}", "${alert(1)}"):
        assert part in words.replace("·", "")
    assert page.all("#tokens *:not(span), img") == []
    assert page.driver.title == title


def test_a_token_that_nobody_would_see_is_named(page: LivePage) -> None:
    """Else it is a box without width, or it turns round all that is written after it."""
    script = "return [...arguments[0]].map(c => [common.plain(c), common.visible(c)])"
    assert page.run(script, "\u200d\u202e\ufeffa\u05e9") == [
        ["U+200D", "U+200D"],
        ["U+202E", "U+202E"],
        ["U+FEFF", "U+FEFF"],
        ["a", "a"],
        ["\u05e9", "\u05e9"],
    ]
    family = "\U0001f469\u200d\U0001f467"  # one picture of two
    assert page.run("return common.plain(arguments[0])", family) == family


def test_an_arrow_leads_to_a_word_and_not_to_the_space_before_it(page: LivePage) -> None:
    """A token that begins with a space may stand in two lines."""
    at = page.run(
        "const box = document.createElement('p'), word = document.createElement('span');"
        "box.style.cssText = 'white-space: pre-wrap; width: 6ch; font: 16px monospace';"
        "word.textContent = ' drink';"
        "box.append('gave', word);"
        "document.body.append(box);"
        "const place = common.placeOf(word), all = [...word.getClientRects()];"
        "box.remove();"
        "return [all.length, place.top, Math.max(...all.map(({ top }) => top))]"
    )
    assert at[0] == 2
    assert at[1] == at[2]


@pytest.mark.parametrize(
    "part",
    [
        {"change": {"head_changes": 5}},
        {"change": {"head_changes": [None]}},
        {"change": {"heads": [1]}},
        {"change": []},
        {"move": {"moves": {"3": 4}}},
        {"move": 7},
        {"move": {"code": "t", "layer": 0, "site": "resid_post", "moves": {'"]': 1}}},
        {"move": {"code": "t", "layer": 0, "site": "resid_post", "moves": {"3": '"]'}}},
        {"patch": "x"},
        {"layer": "1"},
        {"layer": 99},
        {"head": -1},
        {"other_prompt": {}},
    ],
    ids=str,
)
def test_an_address_of_which_a_part_is_none_of_ours_shows_the_rest(
    page: LivePage, part: dict[str, Any]
) -> None:
    told = page.tokens
    page.go({"prompt": PROMPT, "layer": 1, "head": 0, **part})
    assert page.tokens == told
    assert not page.find("#sorry").is_displayed()


def test_what_cannot_be_read_is_said_in_a_sentence(page: LivePage) -> None:
    page.run(
        "document.querySelector('#prompt').value = 'one two '.repeat(500);"
        "document.querySelector('#ask').requestSubmit()"
    )
    page.wait(lambda: page.find("#sorry").is_displayed())
    assert page.find("#sorry").text.endswith(".")
    page.find("#prompt").clear()
    page.driver.execute_cdp_cmd("Input.insertText", {"text": "x" * 5000})  # never cut in silence
    page.find("#prompt").send_keys(Keys.ENTER)
    page.wait(lambda: "at most 4096 characters" in page.find("#sorry").text)
    page.driver.get_log("browser")  # which reports each 4xx
    page.find("#prompt").clear()
    page.find("#prompt").send_keys(PROMPT, Keys.ENTER)
    page.settle()
    page.wait(lambda: not page.find("#sorry").is_displayed())


def test_the_newest_prompt_wins(page: LivePage, read: dict[str, Any]) -> None:
    page.run(
        "const box = document.querySelector('#prompt');"
        "for (const text of arguments[0])"
        " { box.value = text; document.querySelector('#ask').requestSubmit(); }",
        ["The first one.", "A second one.", OTHER, PROMPT],
    )
    page.settle()
    assert page.state["prompt"] == PROMPT
    shown = [numbers(words.split("surprisal")[1])[0] for words in page.tokens[1:]]
    assert shown == pytest.approx(surprisal(read).tolist(), rel=6e-3, abs=6e-5)
    page.driver.get_log("browser")  # what was superseded may be reported


def test_two_pages_do_not_disturb_one_another(
    page: LivePage, driver: webdriver.Chrome, downloads: Path, address: str
) -> None:
    first, told = driver.current_window_handle, page.tokens
    with in_a_tab(driver):
        empty = Browser(driver, f"{address}#%7B%22prompt%22:%22%22%7D", downloads)
        empty.wait(lambda: empty.all("#attention:not([data-waiting]) .pair > div"))
        assert "NaN" not in empty.find("#attention").text
        assert not empty.all("#attention .pair > div:not([hidden])")
        for button in empty.all(".picture-of, #attention .save button"):
            assert not button.is_enabled()  # there is nothing to save
        driver.get("about:blank")
        second = LivePage(driver, address, downloads)
        second.go({"prompt": OTHER, "layer": 0, "head": 2})
        assert second.find("#keep .picture-of").is_enabled()
        handle = driver.current_window_handle
        driver.switch_to.window(first)
        assert page.tokens == told
        page.click("#map [data-layer='3'][data-head='3']")
        page.wait(lambda: page.find("#head-title").text.startswith("L3H3"))
        page.settle()
        driver.switch_to.window(handle)
        assert second.state["prompt"] == OTHER
        assert second.find("#head-title").text.startswith("L0H2")
