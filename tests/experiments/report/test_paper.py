"""Figures for a paper: their numbers are the run's, and their files of the kind asked for."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure as Drawn

from experiments.report.data import ReportData
from experiments.report.paper.comparison import of_comparison
from experiments.report.paper.drawing import Drawing
from experiments.report.paper.findings import of_figure
from experiments.report.paper.heads import of_labels, of_settling
from experiments.report.uses import use_groups
from experiments.results.answer import Answer, CodeAnswer, Reading
from experiments.results.findings import Figure, Panel, Series
from experiments.results.position_use import Word
from experiments.results.worth import WORTH_NAMING
from nope_interp.errors import UserError
from tests.experiments.conftest import synthetic_report

HOSTILE = "</script> $x^$ <b>"


@pytest.fixture(scope="module")
def report() -> ReportData:
    after = Reading("trained", "readable", (0.8, 0.7, 0.9), "the output of layer 1")
    before = Reading("random-init", "faint", (0.2, 0.1, 0.3), "the output of layer 0")
    codes = (
        CodeAnswer("smooth trend", Word.USED, (0.6, 0.5, 0.7), before, after, 0.1, (0.3, 0.2, 0.4)),
        CodeAnswer(HOSTILE, Word.UNDECIDED, None, None, after),
    )
    return synthetic_report(answer=Answer(codes, "text", share_of="moved", restored_of="put back"))


def words(path: Path) -> str:
    return " ".join("".join(ElementTree.parse(path).getroot().itertext()).split())


def drawn(drawing: Drawing) -> Drawn:
    figure = Drawn(figsize=drawing.size)
    drawing.draw(figure)
    return figure


def test_every_chart_of_a_comparison_is_saved(
    report: ReportData, history_report: ReportData, tmp_path: Path
) -> None:
    found = of_comparison(report)
    assert {"verdict", "probe-error", "adjacency", "cosine", "error-by-position"} <= set(found)
    told = of_comparison(history_report)
    assert {"history-codes", "history-heads"} <= set(told)
    found |= told
    for name, drawing in found.items():
        assert len(words(drawing.save(tmp_path / f"{name}.svg"))) > 20, name


def test_one_sequence_is_drawn_as_the_page_opens_it(report: ReportData) -> None:
    found, example = of_comparison(report), report.example
    layer = max(example["patterns"]["trained"])
    maps = [axes for axes in drawn(found["attention"]).axes if axes.images]
    titles = [axes.get_title(loc="left") for axes in maps]
    assert titles[0] == f"trained, L{layer}H0"
    for axes, weights in zip(maps, example["patterns"]["trained"][layer], strict=False):
        np.testing.assert_allclose(axes.images[0].get_array(), weights, rtol=1e-6)
    (strip,) = drawn(found["strip"]).axes
    *_, (last, predicted) = example["predictions"]["trained"].items()
    assert str(last) in strip.get_title(loc="left")
    told = [text.get_text() for text in strip.texts[1::2]]
    assert told == ["–" if guess is None else f"{guess:.0f}" for guess in predicted]


def test_what_is_still_readable_has_the_pages_numbers(causal_report: ReportData) -> None:
    group, *_ = use_groups(causal_report)
    axes, _ = drawn(of_comparison(causal_report)["still-readable"]).axes
    cells = [cell for row in group["still"]["conditions"] for cell in row["cells"] if cell]
    assert [text.get_text() for text in axes.texts] == [
        "{}% [{}, {}]".format(*(round(100 * c[k]) for k in ("gain", "low", "high"))) for c in cells
    ]


def test_the_verdict_shows_what_was_read_and_what_is_used(
    report: ReportData, tmp_path: Path
) -> None:
    verdict = of_comparison(report)["verdict"]
    said = words(verdict.save(tmp_path / "verdict.svg"))
    least = f"{100 * WORTH_NAMING:.0f}%: a whole interval above it counts"
    legend = ("untrained", "this model", "moved", "put back", least)
    for part in ("smooth trend", "used", *legend, HOSTILE):
        assert part in said, part
    read, used = drawn(verdict).axes
    marks = [float(line.get_xdata()[0]) for line in read.lines if line.get_label() != least]
    assert sorted(marks) == [20, 80, 80]
    for axes in (read, used):
        (line,) = [line for line in axes.lines if line.get_label() == least]
        assert [*line.get_xdata()] == [100 * WORTH_NAMING] * 2
    assert [bar.get_width() for bar in used.patches] == pytest.approx([60, 30])


def test_a_chart_is_drawn_at_the_site_where_it_opens(report: ReportData) -> None:
    (axes, *_) = drawn(of_comparison(report)["adjacency"]).axes
    rows = report.measurements
    rows = rows[(rows["metric"] == "adjacency_a") & (rows["control"] == "")]
    values = set(np.round(rows["value"].astype(float), 4))
    (line,) = [line for line in axes.lines if line.get_label() == "trained"]
    assert {round(float(y), 4) for y in line.get_ydata()} <= values


def test_a_name_has_one_colour_in_all_panels() -> None:
    x = np.arange(3.0)
    a, b = (Series(name, "measured", x, x) for name in "ab")
    panels = (Panel("one", (a, b)), Panel("two", (b,)))
    first, second, *_ = drawn(of_figure(Figure("f", "", "", "x", "y", panels))).axes
    assert [line.get_color() for line in second.lines] == [first.lines[1].get_color()]
    assert first.lines[0].get_color() != first.lines[1].get_color()


def test_panels_in_one_unit_have_one_scale(report: ReportData) -> None:
    """As on the page: shares are in another unit than errors."""
    errors = drawn(of_comparison(report)["probe-error"]).axes
    scales = {a.get_title(loc="left"): a.get_ylim() for a in errors if a.axison}
    own = scales.pop(next(title for title in scales if title.startswith("Mean residual")))
    assert len(scales) > 2
    assert len({*scales.values()}) == 1
    assert own not in scales.values()


def test_curves_of_a_figure_are_its_series(tmp_path: Path) -> None:
    x = np.arange(4.0)
    curve = Series("found", "measured", x, x**2, x**2 - 1, x**2 + 1)
    chance = Series("chance", "chance", x, np.ones(4))
    figure = Figure("f", "", "", "step", "loss", (Panel("one", (curve, chance)),) * 4, log="x")
    axes = drawn(of_figure(figure)).axes[:4]
    for axis in axes:
        assert [line.get_ydata().tolist() for line in axis.lines] == [[0, 1, 4, 9], [1] * 4]
    heat = Figure("h", "", "", "", "difference", (Panel("", (curve, chance)),), heat_about=0.0)
    (image,) = drawn(of_figure(heat)).axes[0].images
    np.testing.assert_array_equal(image.get_array(), [[0, 1, 4, 9], [1] * 4])
    assert image.get_clim() == (-9, 9)


def test_a_legend_is_as_wide_as_its_figure_at_most() -> None:
    x = np.arange(3.0)
    lines = tuple(Series(f"{'w' * 9} {i}", "measured", x, x) for i in range(4))
    figure = drawn(of_figure(Figure("f", "", "", "step", "loss", (Panel("", lines),))))
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 4
    assert 0 < legend.get_window_extent().width <= figure.bbox.width


def test_heads_and_how_they_settle(tmp_path: Path) -> None:
    grid = {0: ["local", "none"], 3: [None, "induction"]}
    labels = of_labels({"intact": grid, "rotary:none": grid}, ("induction", "local", "none"))
    said = words(labels.save(tmp_path / "labels.svg"))
    assert all(part in said for part in ("intact", "rotary:none", "induction", "local", "head"))
    lines = [{"condition": "intact", "n": [8, 16], "share": [0.5, 1.0], "chance": [0.3, 0.3]}]
    found, chance = drawn(of_settling(lines)).axes[0].lines
    assert found.get_ydata().tolist() == [0.5, 1.0]
    assert chance.get_label() == "chance"
    lines.append({"condition": "rotary:none", "n": [8], "share": [1.0], "chance": [0.9]})
    both = drawn(of_settling(lines)).axes
    chances = {axes.get_title("left"): axes.lines[1].get_ydata().tolist() for axes in both}
    assert chances == {"intact": [0.3, 0.3], "rotary:none": [0.9]}


@pytest.mark.parametrize(
    ("kind", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")]
)
def test_the_ending_says_the_kind_and_the_same_figure_is_the_same_file(
    report: ReportData, tmp_path: Path, kind: str, start: bytes
) -> None:
    verdict = of_comparison(report)["verdict"]
    first, second = (verdict.save(tmp_path / f"{n}.{kind}").read_bytes() for n in (1, 2))
    assert first.startswith(start)
    assert first == second
    if kind == "png":  # what a notebook's cell shows
        assert verdict._repr_png_() == first


def test_an_unknown_ending_is_one_sentence(report: ReportData, tmp_path: Path) -> None:
    verdict = of_comparison(report)["verdict"]
    with pytest.raises(UserError, match=r"unknown kind of picture '.pfd'.*did you mean '.pdf'"):
        verdict.save(tmp_path / "x.pfd")
    with pytest.raises(UserError, match="kind of picture 'verdict'"):
        verdict.save(tmp_path / "verdict")
    assert not list(tmp_path.iterdir())
