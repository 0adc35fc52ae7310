"""The page as text: nothing escapes, nothing is asked of the network, nothing is invented."""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.report import circuits, figures, lookup, shell
from experiments.report.data import ReportData
from experiments.report.encode import every, json_text, number, packed, script_text
from experiments.report.first import gists
from experiments.report.page import render
from experiments.report.uses import use_groups
from experiments.results.answer import Answer, CodeAnswer, Reading
from experiments.results.position_use import Word
from experiments.results.readability import verdicts
from nope_interp.errors import UserError
from probes.code_names import HALVES
from tests.experiments.report.parsed_page import HOSTILE, IMAGE, Page


@pytest.fixture(scope="module")
def page_text(small_report: ReportData) -> str:
    return render(small_report)


@pytest.fixture(scope="module")
def causal_text(causal_file: Path) -> str:
    return causal_file.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def causal_page(causal_text: str) -> Page:
    return Page(causal_text)


def test_each_library_stands_in_the_page_once(page: Page) -> None:
    page.assert_holds_each_library_once()


def test_every_name_in_the_page_is_given_once(causal_page: Page) -> None:
    ids = [attributes["id"] for _, attributes in causal_page.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    links = [a["href"] for tag, a in causal_page.elements if tag == "a"]
    assert {str(link)[1:] for link in links if str(link).startswith("#")} <= set(ids)


def test_nothing_is_asked_of_the_network(page: Page) -> None:
    page.assert_asks_nothing_of_the_network()


def test_the_policy_lets_only_these_scripts_run(page: Page) -> None:
    page.assert_lets_only_its_own_scripts_run()


def test_hostile_strings_are_text_everywhere(make_report: Any) -> None:
    data = make_report(
        variants=("trained", IMAGE),
        title=HOSTILE,
        answer=Answer((CodeAnswer(IMAGE, Word.USED, None, None, None),), HOSTILE, reason=IMAGE),
        info={"model": HOSTILE, "config": {IMAGE: [IMAGE]}, "notes": [IMAGE], "command": HOSTILE},
    )
    text = render(data)
    page = Page(text)
    assert IMAGE not in text
    assert HOSTILE not in text
    assert not [tag for tag, _ in page.elements if tag == "img"]
    assert len(page.scripts) == 4
    shown = "".join(page.words)
    assert HOSTILE in shown
    assert IMAGE in shown
    assert page.data["example"]["tokens"][0] == HOSTILE


def test_hostile_names_of_conditions_and_controls_are_text_too(causal_report: ReportData) -> None:
    table = causal_report.measurements.copy()
    # The literature's interventions keep no name that the page itself knows.
    leace = table["positions"].str.contains("LEACE")
    table.loc[leace, "positions"] = HOSTILE
    table.loc[leace & (table["control"] == "random subspace"), "control"] = IMAGE
    renamed = [replace(use, variant=IMAGE) for use in causal_report.uses]
    table.loc[table["positions"] != "intact", "variant"] = IMAGE
    text = render(replace(causal_report, measurements=table, uses=renamed))
    page = Page(text)
    assert IMAGE not in text
    assert HOSTILE not in text
    assert not [tag for tag, _ in page.elements if tag == "img"]
    section = text.split('<section id="use"')[1].split("</section>")[0]
    words = Page(section).words
    assert HOSTILE in words
    assert any(IMAGE in word for word in words)
    assert any(HOSTILE in row for row in page.data["still"][0]["rows"])


def test_only_shares_that_are_net_of_controls_are_called_so(make_report: Any) -> None:
    """What a removal costs is not: its controls stand beside it, and may do more."""
    share = (1.0, 0.9, 1.0)
    code = CodeAnswer("variance", Word.USED, share, None, None, control=1.0, restored=share)
    removed = Answer((code,), "text", None, "removed: lead lost", "kept alone: lead kept")
    told = Page(render(make_report(answer=removed))).words
    assert "removed · kept alone: 0 to 100%; controls are not subtracted" in told
    moved = replace(
        removed,
        codes=(replace(code, control=None),),
        share_of="moved: answers follow",
        restored_of="put back: answers return",
    )
    told = Page(render(make_report(answer=moved))).words
    net = "moved · put back, each net of controls: 0 to 100%; below 0% a control does more"
    assert net in told


def test_each_table_of_what_is_still_readable_saves_its_own_numbers(
    causal_report: ReportData,
) -> None:
    """Also where a setting before it has no such table."""
    table = causal_report.measurements
    of_first = (table["tokens"] == "text") & (table["positions"] != "intact")
    read_again = of_first & ~table["probe"].isin(["loss", "side effect", "shift"])
    assert read_again.any()
    page = Page(render(replace(causal_report, measurements=table[~read_again])))
    ((key, nth),) = [
        (str(a["data-setting"]), int(a["data-still"] or 0))
        for _, a in page.elements
        if "data-still" in a
    ]
    assert key == "random|begin"
    assert page.data["still"][nth]["name"].endswith("random_begin")


def test_what_is_nearly_all_is_not_all_on_a_page_either() -> None:
    shown = shell.environment().filters["percent"]
    assert [shown(share) for share in (0.999996, 1, np.nan, None)] == [">99%", "100%", "–", "–"]


def test_only_codes_that_are_read_are_called_read_best_somewhere() -> None:
    """The best site of a code that nothing reads is the luckiest of many."""

    def where(*words: str) -> str:
        read = [
            CodeAnswer(code, None, None, None, Reading("trained", word, (0.0, 0.0, 0.0), "here"))
            for code, word in zip(("variance", "similarity", "counting"), words, strict=True)
        ]
        return gists(Answer(tuple(read), "text"), ["trained"])["where"]

    assert where("unreadable", "faint", "readable") == "Read best: similarity, counting at here."
    unread = "Layer by layer; position is surely read from no code."
    assert where("unreadable", "undecided", "invalid") == unread
    assert gists(Answer((), "text"), ["trained"])["where"] == "Layer by layer."


def test_whole_numbers_of_a_table_are_exact() -> None:
    frame = pd.DataFrame({"seed": [12345678, 16384], "value": [1234567.25, np.nan]})
    frame["step"] = pd.array([2097152, None], dtype="Int64")
    columns = shell.sortable(frame, lambda *of: True, lambda *of: False)["columns"]
    assert [column["values"] for column in columns] == [
        [12345678, 16384],
        [1234570.0, None],
        [2097152, None],
    ]


def test_a_browser_that_goes_back_takes_the_settings_from_the_page(page: Page) -> None:
    (form,) = [a for tag, a in page.elements if tag == "form" and a.get("class") == "settings"]
    assert form["autocomplete"] == "off"


@settings(max_examples=200)
@given(st.recursive(st.text() | st.none() | st.floats(allow_nan=False, allow_infinity=False),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_json_reads_back_and_holds_nothing_an_html_parser_sees(value: Any) -> None:
    text = json_text(value)
    assert json.loads(text) == value
    assert not set(text) & set("<>&\u2028\u2029")


def test_json_refuses_what_json_cannot_say() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text([float("nan")])


def test_script_text_cannot_end_its_element() -> None:
    source = script_text("a = '</script><!-- </SCRIPT-like'\r\n")
    assert "</script" not in source
    assert "<!--" not in source
    assert "\r" not in source


@pytest.mark.parametrize("scale", [1000, 10_000])
def test_packed_numbers_unpack_to_half_a_unit(scale: int) -> None:
    values = np.append(np.random.default_rng(0).uniform(-1, 1, 500), np.nan)
    integers = np.frombuffer(base64.b64decode(packed(values, scale)), "<i2")
    assert integers[-1] == -32768
    # Rounding to whole units of 1/scale errs by at most half of one.
    assert np.max(np.abs(integers[:-1] / scale - values[:-1])) <= 0.5 / scale + 1e-12


@given(st.integers(1, 5000), st.integers(1, 500))
def test_every_is_the_smallest_sufficient_step(length: int, most: int) -> None:
    step = every(length, most)
    assert len(range(0, length, step)) <= most
    assert step == 1 or len(range(0, length, step - 1)) > most


def test_every_chart_has_its_csv_a_heading_and_a_caption(page_text: str, page: Page) -> None:
    first, *figure_texts = re.findall(r'<figure class="chart".*?</figure>', page_text, re.DOTALL)
    assert 'id="answer"' in first
    assert "<caption" in first
    assert len(figure_texts) == len(page.data["charts"]) + 2  # the strip and the attention views
    for text in figure_texts:
        assert 'class="quiet csv"' in text
        assert re.search(r"<h[34][^>]*>\s*\w", text)
        assert re.search(r"<figcaption>\s*\w", text)


def test_so_do_the_chart_and_the_table_of_what_the_model_uses(causal_text: str) -> None:
    section = causal_text.split('<section id="use"')[1].split("</section>")[0]
    figure_texts = re.findall(r'<figure class="chart.*?</figure>', section, re.DOTALL)
    assert len(figure_texts) == 2  # what is still readable under two conditions
    for text in figure_texts:
        assert 'class="quiet csv"' in text
        assert re.search(r"<h[34][^>]*>\s*\w", text)
        assert re.search(r"<figcaption>\s*\w", text)


def test_every_line_chart_draws_chance_and_every_layer_chart_its_control(page: Page) -> None:
    for name, chart in page.data["charts"].items():
        if chart["kind"] != "lines":
            continue
        for view in chart["views"].values():
            for panel in view["panels"]:
                kinds = {series["kind"] for series in panel["series"]}
                assert "chance" in kinds, (name, panel["title"])
                if name in ("probe-error", "adjacency"):
                    assert "control" in kinds, (name, panel["title"])


def test_the_probe_chart_holds_the_tables_numbers(small_report: ReportData) -> None:
    chart = figures.sections(small_report)[0].charts[0]
    table = small_report.measurements
    panel = chart.views["random|begin|mae|resid"]["panels"][0]
    (line,) = (s for s in panel["series"] if s["name"] == "random-init")
    rows = table.query(
        "variant == 'random-init' and tokens == 'random' and begin_token and probe == 'linear'"
        " and metric == 'mae' and control == ''"
    )
    streams = [rows[rows["site"] == site] for site in ("resid_pre", "resid_post")]
    wanted = pd.concat(streams)
    assert line["x"] == [-1, 0, 1]  # the input stands one step before block 0
    for ours, column in (("y", "value"), ("low", "ci_low"), ("high", "ci_high")):
        assert line[ours] == [number(v) for v in wanted[column]]


def test_the_heat_map_holds_the_arrays_numbers(small_report: ReportData) -> None:
    chart = figures.sections(small_report)[2].charts[0]
    panel = chart.views["text|nobegin|attn_out|1"]["panels"][0]
    array = small_report.arrays["trained/text/nobegin/1/attn_out/similarity/cosine"]
    integers = np.frombuffer(base64.b64decode(panel["matrix"]["cells"]), "<i2")
    below = array[np.tril_indices(len(array), k=-1)]
    assert np.allclose(integers / figures.COSINE_SCALE, below, atol=0.5 / figures.COSINE_SCALE)


def test_the_fit_is_the_law_at_each_position(small_report: ReportData) -> None:
    chart = figures.sections(small_report)[1].charts[0]
    panel = chart.views["text|nobegin|resid|1"]["panels"][0]
    (fit,) = (s for s in panel["series"] if s["kind"] == "fit")
    a, b = small_report.arrays["trained/text/nobegin/1/resid_post/variance/law"]
    m = small_report.arrays["trained/text/nobegin/1/resid_post/variance/positions"] + 1
    # Five significant digits are kept.
    assert np.allclose(fit["y"], a + b / m, rtol=1e-4)


def test_what_was_not_measured_is_not_offered(make_report: Any) -> None:
    data = make_report(variants=("pretrained", "random-init"), tokens=("text",), example={})
    kept = data.measurements[data.measurements["probe"] != "two_layer"]
    arrays = {key: a for key, a in data.arrays.items() if "/two_layer/" not in key}
    page = Page(render(make_report(measurements=kept, arrays=arrays, example={})))
    assert page.data["variants"] == ["pretrained", "random-init"]
    assert page.data["example"] is None
    assert list(page.libraries) == ["plotly"]
    titles = [
        panel["title"]
        for chart in page.data["charts"].values()
        for view in chart["views"].values()
        for panel in view["panels"]
    ]
    assert figures.PROBES["linear"] in titles
    assert figures.PROBES["two_layer"] not in titles
    radios = [a["value"] for tag, a in page.elements if a.get("name") == "tokens"]
    assert radios == ["text"]


def test_a_run_with_nothing_to_draw_still_makes_a_page(small_report: ReportData) -> None:
    empty = ReportData(
        title="empty",
        measurements=small_report.measurements.iloc[:0],
        arrays={},
        info={},
        verdicts=[],
        answer=Answer((), ""),
    )
    assert Page(render(empty)).data["charts"] == {}


def test_the_layer_of_the_whole_model_is_explained(causal_page: Page, page: Page) -> None:
    said = "A layer of −1 stands for the whole model, not for a single layer."
    assert said in " ".join(causal_page.words)
    assert said not in " ".join(page.words)


def test_code_in_notes_is_code(make_report: Any) -> None:
    note = f"First `train --out {IMAGE}` is run, then `again`."
    text = render(make_report(info={"notes": [note, "a ` alone"]}))
    page = Page(text)
    assert len([tag for tag, _ in page.elements if tag == "code"]) == 2
    assert IMAGE not in text
    assert "a ` alone" in text


def test_missing_numbers_become_gaps(make_report: Any) -> None:
    data = make_report()
    table = data.measurements.copy()
    table.loc[table["metric"] == "mae", ["value", "ci_low", "ci_high"]] = np.nan
    page = Page(render(make_report(measurements=table)))
    panel = page.data["charts"]["probe-error"]["views"]["text|nobegin|mae|resid"]["panels"][0]
    (line,) = (s for s in panel["series"] if s["name"] == "trained")
    assert line["y"] == [None, None, None]


def test_a_panel_marks_the_site_of_its_verdict_or_says_where_it_is(make_report: Any) -> None:
    data = make_report()
    (counting,) = (v for v in data.verdicts if v.hypothesis == "counting")
    row = next(r for r in counting.rows if r["variant"] == "trained" and r["tokens"] == "text")
    row |= {"site": "attn_out", "layer": 1}
    views = Page(render(data)).data["charts"]["probe-error"]["views"]
    panels = {
        stream: next(p for p in views[f"text|nobegin|r2|{stream}"]["panels"] if "1/m" in p["title"])
        for stream in ("resid", "attn_out")
    }
    assert panels["attn_out"]["marked"] == 1
    assert "elsewhere" not in panels["attn_out"]
    assert panels["resid"]["elsewhere"] == "the attention of layer 1"
    assert "marked" not in panels["resid"]
    assert lookup.words_at("resid", -1) == "the input of layer 0"
    assert lookup.words_at("resid", 1) == "the output of layer 1"


def test_a_code_that_no_probe_reads_says_why(make_report: Any) -> None:
    answer = Answer((CodeAnswer(HALVES[1], Word.USED, (0.4, 0.3, 0.5), None, None),), "text")
    elements = Page(render(make_report(answer=answer))).elements
    why = "Not probed alone: the probe reads the whole mean residual"
    assert [a["aria-label"] for tag, a in elements if tag == "svg" and a.get("role")][:1] == [why]
    assert ("span", {"title": why}) in [(tag, dict(a)) for tag, a in elements]


def test_arrays_of_other_kinds_are_left_alone(small_report: ReportData) -> None:
    more = {**small_report.arrays, "example/trained/pattern/0": np.zeros((2, 3, 3))}
    drawn = figures.sections(small_report)
    fields = vars(small_report) | {"arrays": more}
    assert figures.sections(ReportData(**fields)) == drawn


def test_each_signal_is_shown_where_it_is_read_best(causal_report: ReportData) -> None:
    """The chart opens so; every panel is marked where the verdict of its hypothesis stands."""
    (chart,) = [
        c for s in figures.sections(causal_report) for c in s.charts if c.id == "probe-error"
    ]
    assert chart.controls[1]["value"] == "best"
    best = {v.hypothesis: v.rows[0] for v in causal_report.verdicts}
    panels = {panel["title"]: panel for panel in chart.views["text|nobegin|mae|best"]["panels"]}
    assert len(panels) > 2
    for hypothesis, title in (("variance", "From the variance alone"), ("counting", "Counting")):
        row = best[hypothesis]
        stream = "attention output" if row["site"] == "attn_out" else "residual stream"
        ((shown, panel),) = [found for found in panels.items() if found[0].startswith(title)]
        assert shown.endswith(f", {stream}")
        assert panel["marked"] == (-1 if row["site"] == "resid_pre" else row["layer"])
    assert all("marked" in panel for panel in panels.values())
    assert "is read best in the trained model" in chart.caption
    # The verdict on similarity is of the error of its probe, not of adjacency.
    adjacency = next(
        c for s in figures.sections(causal_report) for c in s.charts if c.id == "adjacency"
    )
    assert not [p for v in adjacency.views.values() for p in v["panels"] if "marked" in p]


def test_the_whole_table_is_in_the_page(small_report: ReportData, page: Page) -> None:
    table = page.data["table"]
    assert table["length"] == len(small_report.measurements)
    columns = {column["name"]: column for column in table["columns"]}
    values = np.array(columns["value"]["values"], dtype=float)
    # Six significant digits are kept.
    assert np.allclose(values, small_report.measurements["value"], rtol=1e-5)
    assert columns["variant"]["choices"]
    assert not columns["model"]["shown"]


def test_a_circuits_view_can_be_taken_down_again() -> None:
    # CircuitsVis keeps React's root to itself; ours hands it out, once, where it is made.
    made = r"\.createRoot\(\w+\)[^}]*;(\w+)\.render\(\w+\);return \1\}"
    assert len(re.findall(made, circuits.source())) == 1


def test_attention_views_are_cropped_and_know_the_future_mask() -> None:
    rng = np.random.default_rng(0)
    full = rng.uniform(0, 1, (2, 80, 80))
    views = circuits.attention_views({"a": {0: full, 1: np.tril(full)}})
    assert views["a"]["0"]["tokens"] == circuits.MOST_TOKENS
    assert not views["a"]["0"]["causal"]
    assert views["a"]["1"]["causal"]


def test_the_page_stays_small_at_the_default_size(make_report: Any) -> None:
    data = make_report(n_layers=4, n_positions=128)
    assert len(render(data).encode()) < 6_000_000


def test_many_matrices_are_thinned_to_the_budget(make_report: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(figures, "COSINE_CELLS", 2000)
    chart = figures.sections(make_report())[2].charts[0]
    panels = [panel for view in chart.views.values() for panel in view["panels"]]
    cells = sum(len(base64.b64decode(panel["matrix"]["cells"])) // 2 for panel in panels)
    assert cells <= 2000
    assert "th position is shown" in chart.caption
    assert panels[0]["matrix"]["positions"][:2] != [1, 2]


def test_a_missing_column_is_named(small_report: ReportData) -> None:
    fields = vars(small_report) | {"measurements": small_report.measurements.drop(columns="chance")}
    with pytest.raises(UserError, match="'chance'"):
        ReportData(**fields)


def test_an_example_of_unequal_length_is_refused(small_report: ReportData) -> None:
    example = {"tokens": ["a", "b"], "predictions": {"trained": {"block 0": [None, 1.0, 2.0]}}}
    with pytest.raises(UserError, match=r"predictions of trained, layer block 0, .* 2 tokens"):
        ReportData(**(vars(small_report) | {"example": example}))


def test_invalid_unicode_in_a_name_does_not_stop_the_page(make_report: Any) -> None:
    text = render(make_report(title="folder \udcff", example_tokens=["a\ud800", "b"] * 4))
    text.encode("utf-8")


def test_a_run_without_code_ablation_says_nothing_of_use(page_text: str, page: Page) -> None:
    assert 'id="use"' not in page_text
    assert "removal" not in page.data["charts"]


def test_what_the_model_uses_comes_before_what_can_be_read(
    causal_text: str, causal_page: Page, causal_report: ReportData
) -> None:
    assert causal_text.index('<section id="use"') < causal_text.index('<section id="verdict"')
    words = " ".join(causal_page.words)
    for use in causal_report.uses:
        assert use.sentence in words
    for term in (
        "Removed",
        "Size-matched control",
        "Total effect",
        "Necessity",
        "Used, contributes",
    ):
        assert re.search(rf"<dt>{term}", causal_text)


def test_what_can_be_read_is_not_touched_by_code_ablation(causal_report: ReportData) -> None:
    table = causal_report.measurements
    intact = table[(table["positions"] == "intact") & (table["probe"] != "loss")]
    assert len(intact) < len(table)
    assert figures.sections(causal_report) == figures.sections(
        replace(causal_report, measurements=intact, uses=())
    )
    assert verdicts(table) == verdicts(intact)


def test_all_rows_of_code_ablation_stand_in_the_table(
    causal_page: Page, causal_report: ReportData
) -> None:
    table = causal_page.data["table"]
    assert table["length"] == len(causal_report.measurements)
    (positions,) = (c for c in table["columns"] if c["name"] == "positions")
    assert positions["shown"]
    assert {"intact", "without smooth trend", "only similarity"} <= set(positions["values"])


def test_the_table_of_uses_holds_the_verdicts_and_their_words(causal_report: ReportData) -> None:
    first, second = use_groups(causal_report)
    assert first["readers"] == ["trained", "random-init"]  # a use needs no bidirectional variant
    by_code = {row["use"].code: row for row in first["rows"]}
    assert list(by_code) == ["variance", "similarity", "smooth trend", "irregular part"]
    assert by_code["variance"]["use"].word == "used"  # as planted
    assert by_code["variance"]["read"] == ["readable", "faint"]
    assert by_code["irregular part"]["read"] == [None, None]  # as on the first screen
    # The loss without all four codes is a row of its own.
    table = causal_report.measurements
    row = table.query(
        "positions == 'without all four codes' and metric == 'nats' and layer == -1"
        " and tokens == 'text'"
    )
    assert first["loss_without"] == pytest.approx(row["value"].item())
    # On the scale, from 2 to 98 percent, the largest number is at the end and nothing at the start.
    assert max(row["marks"]["ci_high"] for row in first["rows"]) <= 98
    assert {row["marks"]["chance"] for row in first["rows"]} == {2.0}
    assert all(row["use"].necessity is None for row in second["rows"])


def test_what_is_still_readable_is_the_gain_over_chance(
    causal_page: Page, causal_report: ReportData
) -> None:
    saved, _ = causal_page.data["still"]
    assert saved["name"] == "still-readable_trained_text_nobegin"
    gains = {(condition, reads): numbers for condition, reads, *numbers in saved["rows"]}
    conditions = list(dict.fromkeys(condition for condition, _ in gains))
    assert conditions[0] == "intact"
    assert conditions[1:5] == [f"without {use.code}" for use in causal_report.uses[0].of_stream]
    assert conditions[9:] == [
        "without all four codes",
        "without t and 1/m, by LEACE",
        "without the positional subspace",
        "without half of the positional channel",
    ]
    last = causal_report.measurements.query(
        "variant == 'trained' and tokens == 'text' and not begin_token and layer == 2"
        " and site == 'resid_post'"
    ).set_index(["positions", "probe", "metric", "control"])
    for condition in ("intact", "without smooth trend"):
        own = last.loc[condition, "variance", "mae", ""]
        control = last.loc[condition, "variance", "mae", "shuffled positions"]
        # The larger the error, the smaller the gain: the interval turns round.
        errors = np.array([own["value"], own["ci_high"], own["ci_low"], control["value"]])
        assert gains[condition, "variance"] == pytest.approx(1 - errors / own["chance"], rel=1e-4)
        explained = last.loc[condition, "counting", "r2", ""]
        wanted = explained[["value", "ci_low", "ci_high"]].tolist()
        assert gains[condition, "counting"][:3] == pytest.approx(wanted, rel=1e-4)


def test_side_effects_stand_beside_what_is_still_readable(
    causal_page: Page, causal_report: ReportData
) -> None:
    saved, _ = causal_page.data["still"]
    moved = {(condition, of): numbers for condition, of, *numbers in saved["rows"] if "moved" in of}
    assert len(moved) == 2 * 12
    rows = causal_report.measurements.query(
        "tokens == 'text' and layer == -1 and probe == 'side effect' and control == ''"
    ).set_index(["positions", "metric"])
    for (condition, of), (value, low, high, control) in moved.items():
        row = rows.loc[condition, "norm" if of.startswith("norms") else "cosine"]
        wanted = row[["value", "ci_low", "ci_high"]].tolist()
        assert [value, low, high] == pytest.approx(wanted, rel=1e-4)
        assert control is None
    assert moved["without similarity", "cosines moved"][0] > 0.01


def test_the_chart_of_places_holds_the_uses_site_by_site(
    causal_page: Page, causal_report: ReportData
) -> None:
    chart = causal_page.data["charts"]["removal"]
    # Code ablation on random tokens was not held site by site.
    assert sorted(chart["views"]) == [
        f"text|nobegin|{measure}|{site}"
        for measure in ("increase", "necessity")
        for site in ("attn_out", "resid")
    ]
    for measure in ("necessity", "increase"):
        panels = chart["views"][f"text|nobegin|{measure}|resid"]["panels"]
        assert [p["title"] for p in panels] == [use.code for use in causal_report.uses[0].of_stream]
        for panel in panels:
            placed = [
                use
                for use in causal_report.uses[0].uses
                if use.code == panel["title"] and use.layer >= 0 and use.site != "attn_out"
            ]
            (line,) = (s for s in panel["series"] if s["kind"] == "value")
            assert line["x"] == [-1, 0, 1]
            assert line["text"] == [use.word for use in placed]
            wanted = [getattr(use, measure) for use in placed]
            assert line["y"] == [None if of is None else number(of[0]) for of in wanted]
            assert line["low"] == [None if of is None else number(of[1]) for of in wanted]
            (chance,) = (s for s in panel["series"] if s["kind"] == "chance")
            assert chance["y"] == [0, 0, 0]
            controls = [s for s in panel["series"] if s["kind"] == "control"]
            assert len(controls) == (measure == "increase")
            if controls:
                assert controls[0]["y"] == [number(use.size_matched[0]) for use in placed]


def test_interventions_of_the_literature_stand_beside_controls(
    causal_report: ReportData,
) -> None:
    first, _ = use_groups(causal_report)
    table = causal_report.measurements.query(
        "metric == 'increase' and layer == -1 and tokens == 'text'"
    ).set_index(["positions", "control"])
    assert [(row["condition"], row["control"]) for row in first["others"]] == [
        ("without t and 1/m, by LEACE", "random subspace"),
        ("without the positional subspace", "random subspace"),
        ("without half of the positional channel", "random subspace"),
        ("attention to the first token frozen", "frozen at each position"),
    ]
    for row in first["others"]:
        for control, found in (("", row["increase"]), (row["control"], row["of_control"])):
            wanted = table.loc[(row["condition"], control)]
            assert found == tuple(wanted[["value", "ci_low", "ci_high"]])


def test_the_page_opens_on_the_setting_of_code_ablation(causal_report: ReportData) -> None:
    held = replace(causal_report, uses=causal_report.uses[1:])
    assert figures.settings_of(held)[0] == ("random", True)
    assert Page(render(held)).data["setting"] == ["random", True]


def _inputs_of_blocks(report: ReportData, outputs: bool = False) -> ReportData:
    """The report as `--sites resid_pre` reads a block more; with `outputs` they are kept, too."""
    table = report.measurements
    read = table[table["site"] == "resid_post"]
    inputs = read.assign(site="resid_pre", layer=read["layer"] + 1)
    kept = table[table["site"] == "resid_pre"]
    arrays = {key: of for key, of in report.arrays.items() if "/resid_pre/" in key}
    for key, of in report.arrays.items():
        if "/resid_post/" in key:
            variant, tokens, begin, layer, _, *rest = key.split("/")
            arrays["/".join([variant, tokens, begin, str(int(layer) + 1), "resid_pre", *rest])] = of
            arrays |= {key: of} if outputs else {}
    parts = [kept, inputs, read] if outputs else [kept, inputs]
    best = [
        replace(
            verdict,
            rows=[row | {"site": "resid_pre", "layer": 2} for row in verdict.rows],
        )
        for verdict in report.verdicts
    ]
    return replace(
        report, measurements=pd.concat(parts, ignore_index=True), arrays=arrays, verdicts=best
    )


def test_the_input_of_each_block_stands_one_step_before_it(small_report: ReportData) -> None:
    page = Page(render(_inputs_of_blocks(small_report)))
    charts = page.data["charts"]
    panels = charts["probe-error"]["views"]["text|nobegin|mae|resid"]["panels"]
    panel = next(p for p in panels if p["title"] == "From the variance alone")
    (line,) = (s for s in panel["series"] if s["name"] == "trained")
    assert line["x"] == [-1, 0, 1]
    assert panel["marked"] == 1
    (cosine,) = (c for c in charts["cosine"]["controls"] if c["name"] == "layer")
    assert [value for value, _ in cosine["options"]] == ["-1", "0", "1"]
    words = " ".join("".join(page.words).split())
    assert "layer 2 resid_pre" in words
    assert "input resid_pre" not in words


def test_inputs_of_blocks_are_kept_apart_from_outputs(small_report: ReportData) -> None:
    data = _inputs_of_blocks(small_report, outputs=True)
    charts = Page(render(data)).data["charts"]
    sites = dict(charts["cosine"]["controls"][0]["options"])
    assert sites == {"resid": "residual stream", "resid_pre": "residual stream before each layer"}
    views = charts["probe-error"]["views"]
    for stream, x in (("resid", [-1, 0, 1]), ("resid_pre", [0, 1])):
        lines = views[f"text|nobegin|mae|{stream}"]["panels"][0]["series"]
        assert [s["x"] for s in lines if s["name"] == "trained"] == [x]
    assert lookup.words_at("resid_pre", 1) == "the input of layer 2"
