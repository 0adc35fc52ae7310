"""Length generalisation: numbers by hand and by SciPy, planted codes, and a comparison small enough
to run."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from experiments.papers.config import ReproduceConfig
from experiments.papers.kazemnejad2023 import counter as counter
from experiments.papers.kazemnejad2023 import lengths as lengths
from experiments.papers.kazemnejad2023 import models as models
from experiments.papers.kazemnejad2023 import position as position
from experiments.papers.kazemnejad2023.attention import DISTANCES, FLOOR, similarity_findings
from experiments.papers.kazemnejad2023.lengths import reciprocal_ranks
from experiments.papers.kazemnejad2023.models import (
    attention_patterns,
    position_code,
    scalings,
    trained_and_read,
)
from experiments.papers.kazemnejad2023.position import (
    bootstrapped,
    error_shares,
    rank_correlation,
)
from experiments.papers.kazemnejad2023.presets import (
    ENCODINGS,
    FULL,
    PLAIN,
    PRESETS,
    Preset,
    Scratchpads,
)
from experiments.papers.kazemnejad2023.published import ACCURACIES, RANKS, sizes_match
from experiments.papers.kazemnejad2023.scaling import dispersed
from experiments.papers.kazemnejad2023.tasks import by_task_figure, order_said
from experiments.papers.reproduce import reproduce
from experiments.results.findings import Figure, Findings
from experiments.runs.cells import Cells
from experiments.runs.folder import RunFolder
from nope_interp.errors import UserError
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.registry import make_answer_task

accuracies = st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=5, max_size=5)


@given(accuracies)
def test_ranks_are_counted_and_ties_share_their_places(accuracy: list[float]) -> None:
    [found] = reciprocal_ranks(np.array([accuracy]))
    [listed] = reciprocal_ranks(np.array([accuracy]), ties_share=False)
    for i in range(5):
        better = sum(other > accuracy[i] for other in accuracy)
        tied = [j for j in range(5) if accuracy[j] == accuracy[i]]
        places = range(better + 1, better + len(tied) + 1)
        assert found[i] == pytest.approx(sum(1 / place for place in places) / len(tied))
        assert listed[i] == pytest.approx(1 / places[tied.index(i)])
    assert found.sum() == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5)


def test_a_preset_that_is_unknown_or_not_the_papers_is_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'tiny'"):
        ReproduceConfig("kazemnejad2023", preset="tinny")
    with pytest.raises(UserError, match="haviv2022 has no preset: leave 'tiny' out"):
        ReproduceConfig("haviv2022", preset="tiny")


def test_presets_are_what_the_config_offers_and_can_be_built() -> None:
    assert set(ReproduceConfig("kazemnejad2023").paper.presets) == set(PRESETS)
    for preset in PRESETS.values():
        for name in preset.tasks:
            task = preset.task(name)
            shape = {"d_vocab": task.d_vocab, "n_ctx": task.n_tokens(max(task.test_lengths))}
            for positions in ENCODINGS.values():
                TransformerConfig.from_dict({**preset.sizes.model, **shape, "positions": positions})


def test_the_papers_preset_has_the_papers_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """About 107M parameters, with the 32,128 tokens of T5, and all seventeen variants of tasks."""
    monkeypatch.setattr(HookedTransformer, "_initialize", lambda model: None)  # meta has no data
    preset = PRESETS["paper"]
    config = TransformerConfig.from_dict({**preset.sizes.model, "d_vocab": 32_128, "n_ctx": 64})
    with torch.device("meta"):
        total = sum(p.numel() for p in HookedTransformer(config).parameters())
    assert 107e6 < total < 110e6
    assert len(preset.tasks) == 17
    assert preset.sizes.warmup == 0.06 * preset.sizes.steps


# ---------------------------------------------------------------- rank correlation


@given(st.integers(0, 2**32 - 1), st.integers(4, 12))
def test_one_group_gives_spearmans_correlation(seed: int, n: int) -> None:
    x, y = np.random.default_rng(seed).integers(0, 6, size=(2, n)).astype(float)
    found = rank_correlation(x, y)
    if len(set(x)) < 2 or len(set(y)) < 2:
        assert np.isnan(found)
    else:
        assert found == pytest.approx(spearmanr(x, y).statistic)
        assert rank_correlation(x, y, np.zeros(n, dtype=int)) == pytest.approx(found)


def test_what_tasks_alone_bring_is_taken_off() -> None:
    """Two tasks, one harder and read worse: no link within them, a strong one over both."""
    generator = np.random.default_rng(0)
    task = np.repeat([0, 1], 200)
    x, y = 10.0 * task + generator.normal(size=400), -10.0 * task + generator.normal(size=400)
    assert rank_correlation(x, y) < -0.7
    cluster = np.arange(400) % 20
    within = bootstrapped(x, y, cluster, task)
    assert within.ci_low < 0 < within.ci_high
    assert within.n == 20
    assert bootstrapped(x, -x, cluster, task).ci_high == pytest.approx(-1)
    assert np.isnan(bootstrapped(x, np.ones(400), cluster, task).value)


def test_copies_of_a_model_bring_no_certainty() -> None:
    """Five models without a link, each there ten times: the interval is that of five."""
    generator = np.random.default_rng(3)
    x, y = (np.repeat(generator.normal(size=5), 10) for _ in range(2))
    together = bootstrapped(x, y, np.repeat(np.arange(5), 10))
    apart = bootstrapped(x, y, np.arange(50))
    assert together.ci_high - together.ci_low > 1.5 * (apart.ci_high - apart.ci_low)


# ---------------------------------------------------------------- what a model's cell holds


def codes(positions: str) -> dict[str, np.ndarray]:
    task = make_answer_task("copy-cmc", training_lengths=range(2, 5), test_lengths=range(5, 9))
    config = TransformerConfig(
        2,
        32,
        4,
        d_vocab=task.d_vocab,
        n_ctx=task.n_tokens(8),
        init="xavier_normal",
        positions=positions,
    )
    return position_code(HookedTransformer(config), task, 48, seed=1)


def test_position_is_found_where_it_was_added_and_chance_where_it_was_not() -> None:
    found = codes("sinusoidal")
    without = codes("none")
    assert found["edge"] == 12
    for code in (found, without):
        for reading, first in (("within", 1), ("extrapolated", 12), ("refitted", 12)):
            rows = code[f"{reading}/count"] > 0
            at = np.arange(len(rows))
            assert at[rows].min() == first
            assert (code[f"{reading}/error"][:, ~rows] == 0).all()
        assert at[code["extrapolated/count"] > 0].max() == 19
        assert at[code["within/count"] > 0].max() == 11
    # At the embedding; of positions dealt out at random nothing can be learned.
    stacked = [{name: values[None] for name, values in code.items()} for code in (found, without)]
    for reading in ("within", "refitted"):
        count = found[f"{reading}/count"]
        at = np.repeat(np.arange(len(count)), count.astype(int))
        constant = np.abs(at - np.median(at)).mean()
        known, unknown, shuffled = (
            (code[f"{reading}/{name}"][0] * code[f"{reading}/count"]).sum() / count.sum() / constant
            for code, name in ((found, "error"), (without, "error"), (found, "shuffled"))
        )
        assert known < 0.5 < unknown
        assert 0.9 < shuffled < 1.2
        assert error_shares(stacked[0], reading)[0] < error_shares(stacked[1], reading)[0]
    # A probe that follows the sinusoids reads later positions as later ones.
    read = found["within/read"][0]
    assert np.corrcoef(read[1:12], np.arange(1, 12))[0, 1] > 0.9


def test_shares_are_errors_over_those_of_constants() -> None:
    count = np.array([[0, 4.0, 4, 4, 0, 0], [0, 4.0, 4, 4, 0, 0]])
    later = np.array([[0, 0, 0, 0, 2.0, 2], [0, 0, 0, 0, 2.0, 2]])
    error = np.zeros((2, 3, 6))
    error[:, 1, 1:] = 0.5
    error[:, 2, 1:] = 1.0
    cell = {
        "edge": np.array([4, 4]),
        "within/count": count,
        "extrapolated/count": later,
        "refitted/count": later,
        **{f"{reading}/error": error for reading in ("within", "extrapolated", "refitted")},
    }
    # Layer 1 reads best; constants are 2 within, 3 (the last one within) and 4 beyond.
    assert error_shares(cell, "within") == pytest.approx(0.5 / (2 / 3))
    assert error_shares(cell, "extrapolated") == pytest.approx(0.5 / 1.5)
    assert error_shares(cell, "refitted") == pytest.approx(0.5 / 0.5)


def test_patterns_are_of_the_same_examples_for_every_model() -> None:
    task = make_answer_task("copy-rsc", training_lengths=range(2, 5), test_lengths=range(5, 8))
    shape = {"d_vocab": task.d_vocab, "n_ctx": task.n_tokens(7)}
    first, second = (
        attention_patterns(
            HookedTransformer(TransformerConfig(2, 16, 2, seed=seed, **shape)), task, 3
        )
        for seed in (0, 1)
    )
    assert set(first) == {f"{what}/{n}" for what in ("patterns", "tokens") for n in (3, 4, 6, 7)}
    for name, values in first.items():
        assert values.shape == second[name].shape
        if name.startswith("tokens"):
            assert (values == second[name]).all()
            width = first[f"patterns/{name.split('/')[1]}"].shape[-1]
            assert values.max() == width
        else:
            assert values.sum(axis=-1) == pytest.approx(1, abs=1e-5)
            assert not np.allclose(values, second[name])


def test_scaling_changes_nothing_where_factors_are_one() -> None:
    task = make_answer_task("copy-rsc", training_lengths=range(2, 4), test_lengths=range(4, 7))
    config = TransformerConfig(1, 16, 2, d_vocab=task.d_vocab, n_ctx=task.n_tokens(6))
    model = HookedTransformer(config)
    before = {name: values.clone() for name, values in model.state_dict().items()}
    found = scalings(model, task, 12, 8, seed=0)
    assert found["tuned_length"] == 5
    assert (found["none/factors"] == 1).all()
    assert len(np.unique(found["uniform/factors"])) == 1
    assert found["heads/factors"].shape == found["control/factors"].shape == (1, 2)
    # A new model's attention is nearly uniform; row i sees i + 1 tokens, row 0 is left out.
    assert found["none/entropy"][-1, 0, 0] == pytest.approx(found["most"][-1], abs=1e-3)
    assert found["most"][0] == pytest.approx(np.log(np.arange(2, 9)).mean())
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())


def test_length_alone_disperses_no_attention() -> None:
    """Scores of one spread at every length: the share of the logarithm rises, the nats do not."""
    generator = np.random.default_rng(0)
    lengths = np.array([50, 100, 400])
    entropies = []
    for length in lengths:
        scores = np.exp(generator.normal(scale=0.5, size=(500, length)))
        weights = scores / scores.sum(axis=1, keepdims=True)
        entropies.append(-(weights * np.log(weights)).sum(axis=1).mean())
    cell = {"most": np.log(lengths), "none/entropy": np.array(entropies)[None, :, None, None]}
    shares = entropies / np.log(lengths)
    assert shares[-1] - shares[0] > 0.005
    assert dispersed(cell, 0) == pytest.approx(0, abs=0.005)
    cell["none/entropy"][:, -1] += 0.2
    assert dispersed(cell, 0) == pytest.approx(0.2, abs=0.005)


@pytest.mark.parametrize("n_seeds", [2, 3, 4])
def test_no_two_models_are_compared_twice(n_seeds: int) -> None:
    """Of two seeds each is the other's next: their distance is one number and has no interval."""
    scores = np.random.default_rng(0).random((n_seeds, 1, 3, 2, 4, 4))
    weights = np.tril(scores + 1e-3)
    cell = {
        "patterns/4": weights / weights.sum(axis=-1, keepdims=True),
        "tokens/4": np.full((n_seeds, 3), 4),
    }
    preset = dataclasses.replace(small(), tasks=("copy-rsc",))
    runs = {("copy-rsc", name): cell for name in ENCODINGS}
    learned = np.zeros((n_seeds, 1, 5), dtype=bool)
    [figure] = similarity_findings(preset, runs, learned).figures
    for panel in figure.panels:
        floor = next(series for series in panel.series if series.name == FLOOR)
        assert floor.n == {2: 1, 3: 3, 4: 4}[n_seeds]
        assert (floor.low is None) == (n_seeds == 2)
        assert panel.series[0].n == n_seeds
    [standard, _] = figure.panels
    assert len(figure.panels) == len(DISTANCES)
    # The same cells under every encoding: the floor is then any other's mean over pairs.
    assert standard.series[-1].y == pytest.approx(standard.series[0].y)


# ---------------------------------------------------------------- task by task

EVERY = np.ones((3, 5), dtype=bool)


def test_a_lead_is_taken_seed_by_seed() -> None:
    """Seeds differ far more than the two encodings do, but these differ under every seed alike."""
    beyond = np.zeros((3, 5))
    beyond[:, 2] = [0.2, 0.5, 0.8]
    beyond[:, 1] = beyond[:, 2] - np.array([0.09, 0.10, 0.11])
    said = order_said("scan", beyond, EVERY)
    assert said.startswith("scan: ALiBi comes first, 0.500 [")
    assert "before T5, 0.400 [" in said
    assert said.endswith("over 3 seeds, is sure.")
    beyond[:, 1] = beyond[::-1, 1]
    assert order_said("scan", beyond, EVERY).endswith("over 3 seeds, is not sure.")


def test_what_did_not_learn_has_no_place_in_the_order() -> None:
    beyond, learned = np.tile([0.9, 0.3, 0.2, 0.1, 0.0], (3, 1)), EVERY.copy()
    learned[1:, 0] = False
    said = order_said("reverse-mc", beyond, learned)
    assert "T5 comes first, 0.300" in said
    assert said.endswith("is sure. Left out: NoPE.")
    assert "fewer than two encodings" in order_said("scan", beyond, np.zeros_like(EVERY))
    assert "at 0.000" in order_said("scan", np.zeros((3, 5)), EVERY)
    assert "T5 and ALiBi share" in order_said(
        "scan", np.tile([0.0, 0.5, 0.5, 0.1, 0.0], (3, 1)), EVERY
    )
    # Both learned under two seeds, but under one together.
    learned = np.zeros_like(EVERY)
    learned[:2, 1] = learned[1:, 2] = True
    assert "too few seeds" in order_said("scan", beyond, learned)

    learned = EVERY.copy()
    learned[1:, 0] = learned[2:, 1] = learned[:, 2] = False
    figure = by_task_figure(("scan",), beyond[:, None], learned[:, None], published="")
    [panel] = figure.panels
    assert [series.name for series in panel.series] == [
        "NoPE, 1 of 3 learned",
        "T5, 2 of 3 learned",
        "ALiBi, 0 of 3 learned",
        "RoPE",
        "sinusoidal",
    ]
    assert [series.n for series in panel.series] == [1, 2, 0, 3, 3]
    assert [list(series.x) for series in panel.series] == [[0], [1], [], [3], [4]]
    assert panel.series[0].low is None
    none = by_task_figure(("scan",), beyond[:, None], np.zeros_like(learned)[:, None], published="")
    assert none.panels == ()


def test_intervals_of_three_accuracies_end_where_accuracies_do() -> None:
    beyond = np.zeros((3, 5))
    beyond[:, 0], beyond[:, 1] = (1.0, 0.95, 0.4), (0.9, 0.1, 0.0)
    said = order_said("scan", beyond, EVERY)
    assert re.search(r"NoPE comes first, 0.783 \[0\.\d+, 1.000\], before T5, 0.333 \[0.000, ", said)
    [panel] = by_task_figure(("scan",), beyond[:, None], EVERY[:, None], published="").panels
    lows, highs = (np.array([getattr(s, of)[0] for s in panel.series]) for of in ("low", "high"))
    assert (lows.min(), highs.max()) == (0, 1)
    # The lead of one over another is no share.
    assert "the lead, 0.450 [-" in said


def test_the_papers_numbers_stand_beside_ours_and_change_none() -> None:
    beyond, learned = np.random.default_rng(0).random((3, 2, 5)), np.ones((3, 2, 5), dtype=bool)
    tasks = ("scan", "parity")  # the paper's numbers for parity are not to be had
    ours, both = (by_task_figure(tasks, beyond, learned, words) for words in ("", "The paper's."))
    scan, parity = both.panels
    theirs = scan.series[-1]
    assert (theirs.name, theirs.kind, theirs.n) == ("the paper's own", "reference", 0)
    assert tuple(theirs.y) == ACCURACIES["scan"]
    for panel, alone in zip(both.panels, ours.panels, strict=True):
        for one, other in zip(panel.series, alone.series, strict=False):
            assert (one.y == other.y).all()
    assert len(parity.series) == 5
    assert "paper" not in ours.caption


def test_the_papers_numbers_are_ranks_and_shares_of_what_the_preset_runs() -> None:
    assert set(ACCURACIES) < set(PRESETS["paper"].tasks)
    # Seventeen tasks whose places bring 1 + 1/2 + ... + 1/5, whoever takes them.
    assert sum(RANKS) == pytest.approx(137 / 60, abs=3e-3)
    assert all(len(of_task) == len(ENCODINGS) for of_task in ACCURACIES.values())


@pytest.mark.parametrize(
    ("options", "matches"),
    [({"preset": "paper"}, True), ({"preset": "paper", "training": 0.5}, False)]
    + [({"preset": name}, False) for name in ("tiny", "small")],
)
def test_sizes_match_at_the_papers_preset_alone(options: dict[str, Any], matches: bool) -> None:
    assert sizes_match(ReproduceConfig("kazemnejad2023", **options)) == matches


# ---------------------------------------------------------------- the whole comparison


def small() -> Preset:
    sizes = dataclasses.replace(
        PRESETS["tiny"].sizes,
        model={"n_layers": 1, "d_model": 16, "n_heads": 2, "rotary_fraction": 0.25},
    )
    return dataclasses.replace(
        PRESETS["tiny"],
        tasks=("copy-rsc", "reverse-mc"),
        sizes=sizes,
        lengths=(2, 3),
        n_per_length=6,
        n_read=6,
        n_patterns=2,
        scratchpads=Scratchpads(
            tasks=("parity",), formats=(PLAIN, FULL), sizes=sizes, lengths=(2, 3), n_per_length=4
        ),
    )


def _read_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alike in all comparisons, so that they share their cells."""
    monkeypatch.setattr(models, "_TUNING_STEPS", 2)
    monkeypatch.setattr(position, "_RESAMPLES", 100)
    monkeypatch.setattr(counter, "_SPLITS", (("fit", 32), ("held_out", 16)))


def _of_made_up_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ReproduceConfig, Cells]:
    _read_less(monkeypatch)
    monkeypatch.setattr(lengths, "trained_and_read", _made_up)
    config = ReproduceConfig("kazemnejad2023", n_seeds=2, training=0.002, preset="tiny")
    return config, Cells(tmp_path, lambda title, kept: None)


def test_the_same_seed_gives_the_same_bits() -> None:
    first, again = (trained_and_read(small(), "copy-rsc", "none", 2, "cpu", 3) for _ in range(2))
    assert first.keys() == again.keys()
    for name, values in first.items():
        assert np.array_equal(values, again[name], equal_nan=True), name


def test_tasks_beside_the_others_are_shown_and_change_no_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, cells = _of_made_up_cells(tmp_path, monkeypatch)
    without, beside = (
        lengths.length_findings(config, dataclasses.replace(small(), beside=names), cells, "cpu")
        for names in ((), ("scan-natural",))
    )
    assert beside.claims == without.claims != {}
    # Cells are shared: that one is the same whatever stands beside it is seen of a pair made anew.
    among = dataclasses.replace(small(), beside=("scan-natural",))
    alone, one = (trained_and_read(of, "copy-rsc", "none", 2, "cpu", 0) for of in (small(), among))
    assert alone.keys() == one.keys()
    assert all(np.array_equal(alone[name], one[name], equal_nan=True) for name in alone)
    for figure_id in ("tasks", "lengths"):
        one, other = (
            next(figure for figure in found.figures if figure.id == figure_id)
            for found in (without, beside)
        )
        assert [panel.title for panel in other.panels] == [
            *(panel.title for panel in one.panels),
            "scan-natural",
        ]
    said = [note for note in beside.notes if "scan-natural" in note]
    assert any("no other claim is of them" in note for note in said)


def test_nope_alone_has_the_numbers_that_it_has_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, cells = _of_made_up_cells(tmp_path, monkeypatch)
    nope = dataclasses.replace(small(), encodings=("NoPE",))
    every, alone = (
        lengths.length_findings(config, preset, cells, "cpu") for preset in (small(), nope)
    )
    assert {"dispersed", "uniform-scale", "head-scale"} <= alone.claims.keys() < every.claims.keys()
    assert alone.claims == {claim: every.claims[claim] for claim in alone.claims}
    assert "2 NoPE models for each of 2 tasks, " in alone.setting
    of_every = {figure.id: figure for figure in every.figures}
    for figure in alone.figures:
        for panel, beside in zip(figure.panels, of_every[figure.id].panels, strict=True):
            assert panel.title == beside.title
            assert {one.name for one in panel.series} <= {one.name for one in beside.series}


def test_tasks_whose_examples_never_reach_beyond_are_not_read_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Examples of pcfg may have many tokens and seldom do."""
    found = trained_and_read(small(), "pcfg", "none", 2, "cpu", 0)
    assert found["refitted/count"].sum() == 0 < found["within/count"].sum()
    assert (found["refitted/error"] == 0).all()

    def made(preset: Preset, task: str, *rest: Any) -> dict[str, np.ndarray]:
        cell = _made_up(preset, task, *rest)
        return cell | {"refitted/count": (task != "pcfg") * cell["refitted/count"]}

    config, cells = _of_made_up_cells(tmp_path, monkeypatch)
    monkeypatch.setattr(lengths, "trained_and_read", made)
    preset = dataclasses.replace(small(), tasks=("copy-rsc", "pcfg", "reverse-mc"))
    of_three = lengths.length_findings(config, preset, cells, "cpu")
    of_two = lengths.length_findings(config, small(), cells, "cpu")
    read = [next(f for f in of.figures if f.id == "position") for of in (of_three, of_two)]
    assert [[panel.title for panel in f.panels] for f in read] == [["copy-rsc", "reverse-mc"]] * 2
    for claim in ("position-extrapolates", "position-remains"):
        assert of_three.claims[claim] == of_two.claims[claim]
    assert any("No test example of pcfg stands where" in note for note in of_three.notes)
    assert not any("No test example" in note for note in of_two.notes)


@pytest.mark.slow
def test_a_comparison_runs_and_leaves_out_what_did_not_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRESETS, "tiny", small())
    _read_less(monkeypatch)
    monkeypatch.setattr(lengths, "trained_and_read", _made_up)
    config = ReproduceConfig(
        "kazemnejad2023", n_seeds=2, training=0.002, preset="tiny", length=0.25
    )
    folder = RunFolder.of(tmp_path, config).begin(config).cells
    monkeypatch.setattr(lengths, "LEARNED", 1.1)
    unlearned = lengths.length_findings(
        config, small(), Cells(folder, lambda title, kept: None), "cpu"
    )
    assert unlearned.claims == {}
    note = next(note for note in unlearned.notes if "Not learned" in note)
    assert all(f"reverse-mc with {name}: 2 of 2 runs" in note for name in ENCODINGS)
    assert "0 of 4" in note

    # The same cells, with less asked of them, as if they were of the paper's size.
    monkeypatch.setattr(lengths, "LEARNED", 0.9)
    monkeypatch.setitem(PRESETS, "paper", small())
    _beside_the_papers(
        lengths.length_findings(
            ReproduceConfig("kazemnejad2023", n_seeds=2, preset="paper"),
            PRESETS["paper"],
            Cells(folder, lambda title, kept: None),
            "cpu",
        )
    )

    ranked = reproduce(config, out=tmp_path, show_progress=False)
    assert "--preset tiny" in ranked.info["command"]
    figures = {figure.id: figure for figure in ranked.figures}
    assert figures["lengths"].shaded == (2, 3)
    curves = figures["lengths"].panels[0].series
    assert [series.name for series in curves] == list(ENCODINGS)
    assert all(list(series.x) == [2, 3, 4, 5, 6] for series in curves)
    chance, ranks = figures["ranking"].panels[0].series
    assert ranks.y.sum() == pytest.approx(chance.y.sum())
    assert _theirs(ranked.figures) == []
    assert [[list(series.y) for series in panel.series] for panel in figures["tasks"].panels] == [
        [[pytest.approx(0.5 - 0.1 * place)] for place in range(5)]
    ] * 2
    for task in small().tasks:
        [said] = [note for note in ranked.info["notes"] if note.startswith(f"{task}: ")]
        assert "NoPE comes first, 0.500" in said
    n_of = ranked.measurements.groupby("site")["n"].max()
    assert n_of[["tasks", "lengths", "ranking", "position-correlation"]].tolist() == [2, 2, 2, 5]
    claims = ranked.claims.set_index("claim")
    trained = [claim.id for claim in ranked.paper.claims if claim.needs.startswith("--")]
    assert len(trained) == 15
    assert claims.loc["theorem-1", "status"] == "reproduced small"
    lead = claims.loc["length-generalisation", "value"]
    assert lead == pytest.approx(ranks.y[0] - ranks.y[1:].max())
    assert lead == pytest.approx(1 - 1 / 2)
    # Accuracy beyond over within is 0.5, 0.4, ..., 0.1 in the order of the encodings.
    assert claims.loc["explicit-fail", "value"] == pytest.approx(0.3)
    # No made-up cells: no model is given, examples are too short to count in, too short to read 1/m
    # from, too, and nothing was learned in so few steps.
    unmeasured = claims.index[claims["status"] == "not measured"]
    counted = [id for id in claims.index if id.startswith("counter-")]
    assert list(unmeasured) == [*counted, "scratchpads", "scratchpad-format"]
    assert _t5_less_the_next(figures["similarity"]) == pytest.approx(
        claims.loc["like-t5", "value"], abs=1e-9
    )
    points = figures["position-models"].panels[0].series
    assert sorted(rank for series in points for rank in series.x) == list(range(10))
    [correlation] = figures["position-correlation"].panels
    [within_tasks] = [series for series in correlation.series if series.name == "within tasks"]
    assert claims.loc["position-extrapolates", "value"] == pytest.approx(within_tasks.y[1])
    assert claims.loc["position-remains", "value"] == pytest.approx(within_tasks.y[2])
    scaled = np.array([[s.y for s in panel.series] for panel in figures["scaling"].panels])
    gains = (scaled - scaled[:, :1])[..., 2:].mean(axis=(0, 2))
    assert claims.loc["uniform-scale", "value"] == pytest.approx(gains[1])
    assert claims.loc["head-scale", "value"] == pytest.approx(gains[2])
    entropies = np.array([panel.series[1].y for panel in figures["entropy"].panels])
    fall = (entropies[:, 1] - entropies[:, -1]).mean()
    assert claims.loc["dispersed", "value"] == pytest.approx(fall)
    assert figures["entropy"].panels[0].series[0].y == pytest.approx(0)
    assert ranked.html()


def _beside_the_papers(found: Findings) -> None:
    assert _theirs(found.figures) == [
        ("tasks", "copy-rsc", ACCURACIES["copy-rsc"]),
        ("tasks", "reverse-mc", ACCURACIES["reverse-mc"]),
        ("ranking", "ties in the paper's order", RANKS),
    ]


def _theirs(figures: Sequence[Figure]) -> list[tuple[str, str, tuple[float, ...]]]:
    return [
        (figure.id, panel.title, tuple(series.y))
        for figure in figures
        for panel in figure.panels
        for series in panel.series
        if "paper" in series.name
    ]


# Tests compare findings of the same cells: each is made once, whatever other tasks there are.
_CELLS: dict[str, dict[str, np.ndarray]] = {}


def _made_up(preset: Preset, *rest: Any) -> dict[str, np.ndarray]:
    """A cell whose accuracies fall in the order of the encodings."""
    alone = dataclasses.replace(preset, tasks=(), beside=())
    key = repr((alone, rest, models._TUNING_STEPS, counter._SPLITS))
    if key not in _CELLS:
        _CELLS[key] = trained_and_read(preset, *rest)
    found = dict(_CELLS[key])
    place = list(ENCODINGS.values()).index(rest[1])
    found["within"] = np.ones_like(found["within"])
    found["beyond"] = np.full_like(found["beyond"], 0.5 - 0.1 * place)
    return found


def _t5_less_the_next(similarity: Figure) -> float:
    """From the curves of the figure: mean over lengths and tasks."""
    panels = [panel for panel in similarity.panels if "Jensen-Shannon" in panel.title]
    names = [series.name for series in panels[0].series]
    means = np.mean([[series.y.mean() for series in panel.series] for panel in panels], axis=0)
    assert names == [*list(ENCODINGS)[1:], "NoPE, another seed"]
    return float(means[0] - means[1:4].min())
