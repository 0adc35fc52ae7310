"""The heads page as text: nothing escapes, nothing is asked of the network, nothing is invented."""

import base64
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.report.encode import packed_patterns
from experiments.report.heads_page import MOST_TOKENS, HeadsReportData, render_heads
from nope_interp.errors import UserError
from tests.experiments.report.parsed_page import HOSTILE, IMAGE, Page
from tests.experiments.report.synthetic_heads import METRICS, synthetic_heads


@pytest.fixture(scope="module")
def report() -> HeadsReportData:
    return synthetic_heads()


@pytest.fixture(scope="module")
def page_text(report: HeadsReportData) -> str:
    return render_heads(report)


def changed(report: HeadsReportData, **fields: Any) -> HeadsReportData:
    return HeadsReportData(**(vars(report) | fields))


def columns(page: Page) -> dict[str, list[Any]]:
    return {column["name"]: column["values"] for column in page.data["heads"]["columns"]}


def unpacked(text: str, n: int) -> np.ndarray:
    """What the page's script does: the lower triangle, row by row."""
    pattern = np.zeros((n, n))
    pattern[np.tril_indices(n)] = np.frombuffer(base64.b64decode(text), np.uint8) / 255
    return pattern


# ---------------------------------------------------------------- one safe file


def test_each_library_stands_in_the_page_once(page: Page) -> None:
    page.assert_holds_each_library_once()


def test_nothing_is_asked_of_the_network(page: Page) -> None:
    page.assert_asks_nothing_of_the_network()


def test_the_policy_lets_only_these_scripts_run(page: Page) -> None:
    page.assert_lets_only_its_own_scripts_run()


def test_hostile_strings_are_text_everywhere(report: HeadsReportData) -> None:
    heads = report.heads.assign(label=HOSTILE, runner_up=IMAGE, ablated_label=IMAGE)
    heads["dependence"] = IMAGE
    patterns = {"intact": report.patterns["intact"], HOSTILE: report.patterns["rotary:none"]}
    text = render_heads(
        changed(
            report,
            title=HOSTILE,
            headline=IMAGE,
            heads=heads,
            conditions=("intact", HOSTILE),
            patterns=patterns,
            offset_profiles={},
            losses=[dict(report.losses[0], positions=IMAGE, tokens=HOSTILE)],
            rules=[{"label": HOSTILE, "rule": IMAGE, "nulls": IMAGE}],
            prompts=[[IMAGE] * len(prompt) for prompt in report.prompts],
            info={"model": HOSTILE, "notes": [IMAGE], "command": IMAGE},
        )
    )
    page = Page(text)
    assert IMAGE not in text
    assert HOSTILE not in text
    assert not [tag for tag, _ in page.elements if tag == "img"]
    assert len(page.scripts) == 4
    # The words of the page's data are the data's own words.
    assert set(columns(page)["label"]) == {HOSTILE}
    assert page.data["prompts"][0][0] == IMAGE


def test_the_largest_run_stays_small() -> None:
    # Weights without any pattern, which compress the least.
    n = 128
    weights = np.tril(np.random.default_rng(0).random((26, 8, n, n), dtype=np.float32))
    patterns = [weights / weights.sum(-1, keepdims=True)] * 4
    small = synthetic_heads(n_layers=26, n_heads=8, n_tokens=n, n_prompts=1)
    data = changed(
        small,
        prompts=[small.prompts[0]] * 4,
        patterns={"intact": patterns, "rotary:none": patterns},
    )
    text = render_heads(data)
    assert len(text.encode()) < 6_000_000
    page = Page(text)
    # What is left out is told.
    shown, n = len(page.data["prompts"]), len(page.data["prompts"][0])
    assert (shown, n >= 64) == (2, True)
    words = "".join(page.words)
    assert f"the first {n} tokens" in words
    assert "leaves out 2 more prompts" in words


# ---------------------------------------------------------------- the numbers are the run's


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_packed_patterns_unpack_to_half_a_step(
    n_layers: int, n_heads: int, n: int, seed: int
) -> None:
    pattern = np.tril(np.random.default_rng(seed).uniform(0, 1, (n_layers, n_heads, n, n)))
    packed = packed_patterns(pattern)
    back = np.array([[unpacked(head, n) for head in layer] for layer in packed])
    assert back.shape == pattern.shape
    # Rounding to whole steps of 1/255 errs by at most half of one.
    assert np.abs(back - pattern).max() <= 0.5 / 255 + 1e-12


def test_half_precision_that_passes_one_is_kept_at_one() -> None:
    pattern = np.full((1, 1, 1, 1), 1.002, dtype=np.float16)
    assert unpacked(packed_patterns(pattern)[0][0], 1) == 1


def test_the_page_holds_every_pattern(report: HeadsReportData, page: Page) -> None:
    for condition in report.conditions:
        for prompt, pattern in enumerate(report.patterns[condition]):
            packed = page.data["patterns"][condition][prompt]
            n = pattern.shape[-1]
            back = np.array([[unpacked(head, n) for head in layer] for layer in packed])
            assert np.allclose(back, pattern, atol=0.5 / 255 + 1e-12)


def test_long_prompts_are_cropped_and_the_page_says_so() -> None:
    data = synthetic_heads(n_layers=1, n_heads=1, n_tokens=MOST_TOKENS + 9, n_prompts=1)
    page = Page(render_heads(data))
    assert len(page.data["prompts"][0]) == MOST_TOKENS
    packed = page.data["patterns"]["intact"][0][0][0]
    wanted = data.patterns["intact"][0][0, 0, :MOST_TOKENS, :MOST_TOKENS]
    assert np.allclose(unpacked(packed, MOST_TOKENS), wanted, atol=0.5 / 255 + 1e-12)
    assert f"the first {MOST_TOKENS} tokens" in "".join(page.words)


def test_the_table_of_heads_holds_the_runs_numbers(report: HeadsReportData) -> None:
    shuffled = report.heads.sample(frac=1, random_state=0)
    found = columns(Page(render_heads(changed(report, heads=shuffled))))
    wanted = report.heads.sort_values(["layer", "head"])
    assert found["name"] == [f"L{row.layer}H{row.head}" for row in wanted.itertuples()]
    assert found["label"] == wanted["label"].tolist()
    for name in ("confidence", "retention_low", *METRICS, "induction_ablated"):
        # Six significant digits are kept, and what is missing stays missing.
        ours = np.array(found[name], dtype=float)
        assert np.allclose(ours, wanted[name], rtol=1e-5, equal_nan=True), name


def test_labels_stand_in_the_order_of_the_rules(report: HeadsReportData) -> None:
    labels = Page(render_heads(report)).data["labels"]
    assert labels == [*(rule["label"] for rule in report.rules), "none"]


def test_frequencies_stand_from_the_highest_to_the_lowest(report: HeadsReportData) -> None:
    assert report.frequencies is not None
    order = np.random.default_rng(1).permutation(16)
    mixed = {name: np.asarray(array)[..., order] for name, array in report.frequencies.items()}
    found = Page(render_heads(changed(report, frequencies=mixed))).data["frequencies"]
    for ours, name in (
        ("radians", "radians_per_token"),
        ("query_norm", "query_norm"),
        ("key_norm", "key_norm"),
    ):
        # The synthetic frequencies fall; four digits are kept.
        wanted = np.asarray(report.frequencies[name])[:-1]
        assert np.allclose(np.array(found[ours][:-1], dtype=float), wanted, rtol=1e-3)
    assert found["radians"][-1] == [None] * 16  # the layer that does not rotate


def test_profiles_and_edges_are_the_runs(report: HeadsReportData, page: Page) -> None:
    for condition in report.conditions:
        ours = np.array(page.data["profiles"][condition])
        assert np.allclose(ours, report.offset_profiles[condition], rtol=1e-3, atol=1e-9)
    assert np.allclose(page.data["chance"], report.offset_profiles["chance"], rtol=1e-3)
    first, edge = page.data["edges"][0], report.edges[0]
    assert first["from"] == f"L{edge['from_layer']}H{edge['from_head']}"
    assert first["to"] == f"L{edge['to_layer']}H{edge['to_head']}"
    assert first["score"] == pytest.approx(edge["score"], rel=1e-4)
    # Two layers of one head each have no other pair.
    alone = changed(report, edges=[{**edge, "chance": np.nan}])
    assert Page(render_heads(alone)).data["edges"] == [{**first, "chance": None}]


def test_losses_of_both_conditions_stand_side_by_side(page: Page) -> None:
    words = " ".join(" ".join(page.words).split())
    assert "text intact 3.1 2.95 to 3.25 10.8 32 rotary:none 4.6 4.45 to 4.75 10.8 32" in words


def test_what_leads_heads_stands_in_bars_and_words(page: Page) -> None:
    words = " ".join(" ".join(page.words).split())
    assert (
        "3 of 16 heads favour the token before by 0.1. By any query: 1. By the place: 1." in words
    )
    assert "L3H1 0.5 [0.48, 0.52] the place 10% [8%, 12%] 70%" in words
    bars = [a for tag, a in page.elements if tag == "rect" and "data-share" in a]
    assert len(bars) == 3 * 5
    for start in range(0, len(bars), 3):
        of_head = bars[start : start + 3]
        begins, widths = ([float(str(bar[name])) for bar in of_head] for name in ("x", "width"))
        # Each begins where the one before ends, and none passes the scale.
        assert begins == pytest.approx([0, widths[0], widths[0] + widths[1]])
        assert min(widths) >= 0
        assert sum(widths) <= 100 + 1e-9


def test_why_nothing_leads_heads_is_said(report: HeadsReportData) -> None:
    why = "How heads find their tokens is read in text, not in tasks."
    page = Page(render_heads(changed(report, finders=report.finders.iloc[:0], finding=[why])))
    words = " ".join(" ".join(page.words).split())
    assert why in words
    assert "Mean attention Found by" not in words


def test_the_download_has_heads_that_the_page_leaves_out(report: HeadsReportData) -> None:
    many = pd.concat([report.finders] * 10, ignore_index=True)
    page = Page(render_heads(changed(report, finders=many)))
    assert len(page.data["finders"]["rows"]) == len(many) == 50
    words = " ".join(" ".join(page.words).split())
    assert "The 20 strongest are shown; the CSV has all." in words


def test_the_whole_table_is_in_the_page(report: HeadsReportData, page: Page) -> None:
    table = page.data["table"]
    values = {column["name"]: column["values"] for column in table["columns"]}
    assert table["length"] == len(report.measurements)
    assert values["positions"] == report.measurements["positions"].tolist()
    wanted = report.measurements["value"]
    assert np.allclose(np.array(values["value"], dtype=float), wanted, rtol=1e-5)


# ---------------------------------------------------------------- what a run may lack


def ids(page: Page) -> set[str]:
    return {str(attributes["id"]) for _, attributes in page.elements if "id" in attributes}


OPTIONAL = {"finders", "loss", "attention", "usage", "frequencies", "circuit", "settling", "rules"}


def test_what_a_run_lacks_is_not_there() -> None:
    data = synthetic_heads(
        ablation=None,
        frequencies=None,
        edges=[],
        prompts=[],
        patterns={},
        losses=[],
        rules=[],
        settling=[],
        finders=synthetic_heads().finders.iloc[:0],
        finding=[],
    )
    page = Page(render_heads(data))
    assert not ids(page) & OPTIONAL
    links = {str(attributes.get("href")) for tag, attributes in page.elements if tag == "a"}
    assert not links & {f"#{name}" for name in OPTIONAL}
    assert list(page.libraries) == ["plotly"]
    shown = [column["name"] for column in page.data["heads"]["columns"] if column["shown"]]
    assert not {"dependence", "retention", "ablated_label"} & set(shown)


def test_a_full_run_has_every_part(page: Page) -> None:
    assert ids(page) >= OPTIONAL


def test_the_command_for_a_prompt_of_ones_own(page: Page, report: HeadsReportData) -> None:
    words = "".join(page.words)
    assert f"{report.info['command']} --prompt 'A text of your own.'" in words


def test_a_run_without_heads_or_measurements_still_makes_a_page(report: HeadsReportData) -> None:
    empty = changed(
        report, heads=report.heads.iloc[:0], measurements=report.measurements.iloc[:0], edges=[]
    )
    assert Page(render_heads(empty)).data["heads"]["length"] == 0


def test_missing_numbers_and_words_become_gaps(report: HeadsReportData) -> None:
    heads = report.heads.copy()
    heads.loc[0, ["induction", "confidence", "q_value"]] = np.nan
    heads.loc[0, ["label", "runner_up"]] = None
    found = columns(Page(render_heads(changed(report, heads=heads))))
    for name in ("induction", "confidence", "q_value", "label", "runner_up"):
        assert found[name][0] is None, name


# ---------------------------------------------------------------- what is refused


def _pattern(report: HeadsReportData, change: Any) -> dict[str, Any]:
    first, *others = report.patterns["intact"]
    return {"patterns": {"intact": [change(first.copy()), *others]}}


def _with_future(pattern: np.ndarray) -> np.ndarray:
    pattern[0, 0, 0, 1] = 0.5
    return pattern


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            lambda r: {"offset_profiles": {"intact": r.offset_profiles["intact"][0]}},
            r"'offset_profile/intact' has shape \(4, 32\)",
        ),
        (
            lambda r: {"offset_profiles": {"intact": r.offset_profiles["intact"][:2]}},
            "'offset_profile/intact' has shape",
        ),
        (
            lambda r: {"frequencies": dict(r.frequencies, radians_per_token=np.ones((4, 3)))},
            "'frequency/query_norm' has shape",
        ),
        (lambda r: _pattern(r, lambda p: p[..., :-1]), r"'pattern/intact/0' has shape"),
        (lambda r: _pattern(r, lambda p: p[:, :2]), r"'pattern/intact/0' has shape"),
        (lambda r: _pattern(r, lambda p: p * 40), "outside 0 to 1"),
        (lambda r: _pattern(r, lambda p: p * np.nan), "outside 0 to 1"),
        (lambda r: _pattern(r, _with_future), "attends to later tokens"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(
    report: HeadsReportData, changes: Any, sentence: str
) -> None:
    with pytest.raises(UserError, match=f"{sentence}.* delete the run folder"):
        changed(report, **changes(report))


def test_invalid_unicode_in_a_token_does_not_stop_the_page(report: HeadsReportData) -> None:
    prompts = [["a\ud800"] * len(prompt) for prompt in report.prompts]
    render_heads(changed(report, prompts=prompts)).encode("utf-8")
