"""The trained part of zuo2025, on models small enough to train here."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.papers.answering import LEARNED, accuracies, trained_to_answer
from experiments.papers.config import ReproduceConfig
from experiments.papers.registry import paper
from experiments.papers.reproduce import reproduce
from experiments.papers.zuo2025 import control as zuo2025_control
from experiments.papers.zuo2025 import experiment as zuo2025
from experiments.papers.zuo2025 import scores as zuo2025_scores
from experiments.papers.zuo2025 import trained as zuo2025_trained
from experiments.papers.zuo2025.control import control_findings, share_left, without_order
from experiments.papers.zuo2025.presets import PRESETS, Preset
from experiments.papers.zuo2025.scores import (
    DECIDING,
    SCORES,
    SITES,
    read_activations,
    read_through_training,
    variance_trend,
)
from experiments.papers.zuo2025.trained import sweep_findings, trained_findings
from experiments.results.findings import Array, Findings
from experiments.runs.cells import Cells
from experiments.runs.folder import RunFolder
from nope_interp.models.checkpoints import as_bidirectional
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.registry import make_answer_task

CONFIG = ReproduceConfig(
    "zuo2025", n_seeds=2, preset="tiny", width=0.25, length=0.25, depth=0.34, training=0.002
)


def small() -> Preset:
    tiny = PRESETS["tiny"]
    return replace(
        tiny,
        lengths={"ordering": range(2, 5), "indexing": range(2, 5)},
        sizes=replace(tiny.sizes, model={"n_layers": 2, "d_model": 16, "n_heads": 2}),
        changes={"base": {}, "3 layers": {"n_layers": 3}},
        sweep_steps={"ordering": 1500},
        n_scored=20,
        n_filled=100,
        n_read=8,
    )


def findings(folder: Path) -> Findings:
    return trained_findings(CONFIG, small(), Cells(folder, lambda title, kept: None), "cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of `CONFIG` whose trained part is done."""
    out = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        # To draw examples that guesses are taken from takes longer than these trainings.
        patch.setattr(zuo2025_control, "_GUESSED_FROM", 200)
        findings(RunFolder.of(out, CONFIG).begin(CONFIG).cells)
    return out


@pytest.fixture
def few_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the random models' settings three: the base, another in the claim's range, no mask.

    All of them are run in `test_reproduce.py`.
    """
    chosen = {name: zuo2025.SETTINGS[name] for name in (zuo2025.BASE, "1 head")}
    without_mask = {zuo2025.BIDIRECTIONAL: zuo2025.SETTINGS[zuo2025.BIDIRECTIONAL]}
    monkeypatch.setattr(zuo2025, "_IN_RANGE", chosen)
    monkeypatch.setattr(zuo2025, "SETTINGS", chosen | without_mask)


# ---------------------------------------------------------------- the numbers


@pytest.mark.parametrize("power", [-1.0, 0.0, 0.4])
def test_the_trend_is_the_power_of_a_planted_variance_law(power: float) -> None:
    # Position p, from 1 on, sees p + 1 tokens; a factor on all variances is no trend.
    seen = np.arange(2, 20)
    planted = np.stack([factor * seen**power for factor in (0.3, 1.0, 7.0)])
    np.testing.assert_allclose(variance_trend(planted), power, atol=1e-9)


def test_the_runs_seeds_decide_those_of_trainings() -> None:
    tiny = PRESETS["tiny"]
    assert tiny.seeds(ReproduceConfig("zuo2025").seeds) == [1, 2, 3]
    assert tiny.seeds(ReproduceConfig("zuo2025", seed=7, n_seeds=2).seeds) == [8, 9]


def test_activations_are_read_without_the_first_position() -> None:
    config = TransformerConfig(3, 16, 2, d_vocab=11, n_ctx=12)
    model = HookedTransformer(config)
    tokens = torch.randint(11, (6, 12), generator=torch.Generator().manual_seed(0))
    rows = read_activations(model, tokens, first=1)
    assert rows["sites"].shape == (len(SITES), len(SCORES))
    # The last block is also a site.
    np.testing.assert_array_equal(rows["sites"][-1], rows["blocks"][-1])
    _, cache = model.run_with_cache(tokens)
    expected = cache["resid_post", 1].double().var(dim=-1, unbiased=False).mean(dim=0)
    np.testing.assert_allclose(rows["variance"][1], expected[1:], rtol=1e-4)
    embedding = cache["resid_pre", 0][:, 1:]
    cosines = torch.nn.functional.cosine_similarity(
        embedding[:, :, None], embedding[:, None], dim=-1
    )
    np.testing.assert_allclose(rows["cosines"][0], cosines.mean(dim=0), atol=1e-5)


def test_guessing_and_answers_of_one_token_come_to_what_counting_says() -> None:
    reversal = make_answer_task("reversal", training_lengths=[2], test_lengths=())
    found = without_order(reversal, 4000, seed=0)
    # Of 676 equally likely pairs of letters 26 are twice the same.
    assert found["alike"] == pytest.approx(1 / 26, abs=0.015)
    assert found["guess"] < 0.01
    indexing = make_answer_task("indexing", training_lengths=[3, 5], test_lengths=())
    found = without_order(indexing, 4000, seed=0)
    assert found["guess"] == pytest.approx((1 / 3 + 1 / 5) / 2, abs=0.03)
    assert found["alike"] == 1


def test_the_share_left_counts_what_is_above_chance() -> None:
    # Without the mask, with it, chance: nothing, half and all of what the mask gives.
    means = np.array([[0.2, 1.0, 0.2], [0.6, 1.0, 0.2], [0.9, 0.9, 0.0]])
    np.testing.assert_allclose(share_left(means), [0, 0.5, 1])


def test_the_sweep_is_judged_by_the_task_whose_pattern_is_weakest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task has the pattern, the other lacks it in A, its mirror or C."""
    preset = replace(small(), sweep_steps={"ordering": 1500, "reversal": 1500})
    above = {("ordering", 2): [0.2, -0.02, 0.2], ("reversal", 2): [0.2, 0.1, 0.2]}
    above |= {("ordering", 3): [0.2, -0.03, 0.2], ("reversal", 3): [0.2, 0.3, 0.2]}

    def planted(
        preset: Preset, task: str, changes: dict[str, Any], steps: int, device: str, seed: int
    ) -> dict[str, Array]:
        layers = changes.get("n_layers", 2)
        blocks = np.full((4, layers, len(SCORES)), 0.5)  # of steps 0, 1, 2 and 3
        unmasked = blocks.copy()
        blocks[..., [list(SCORES).index(score) for score in DECIDING]] += above[task, layers]
        variance = np.ones((4, layers, 5))
        return {
            "accuracy": np.ones(4),
            "sites": np.full((4, len(SITES), len(SCORES)), 0.5),
            "unmasked_sites": np.full((4, len(SITES), len(SCORES)), 0.5),
            "blocks": blocks,
            "unmasked_blocks": unmasked,
            "variance": variance,
            "unmasked_variance": variance,
        }

    monkeypatch.setattr(zuo2025_trained, "read_through_training", planted)
    cells = Cells(tmp_path, lambda title, kept: None)
    found = sweep_findings(CONFIG, preset, cells, "cpu")
    measured = found.claims["trained-sweep"]
    assert measured.value == pytest.approx(-0.025)
    verdict = paper("zuo2025").claim("trained-sweep").verdict
    assert verdict(measured.value, measured.ci_low, measured.ci_high) != "reproduced"
    assert any("ordering with '3 layers', -0.03" in note for note in found.notes)


# ---------------------------------------------------------------- the whole


def test_trained_models_are_read_and_those_that_learned_decide(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a kept cell was computed again")

    for part in (zuo2025_scores, zuo2025_control):
        monkeypatch.setattr(part, "trained_to_answer", refuse)
    cells = RunFolder.of(shutil.copytree(runs, tmp_path / "runs"), CONFIG).begin(CONFIG).cells
    unlearned = findings(cells)
    assert unlearned.claims == {}
    assert any("ordering: 2 of 2 models" in note for note in unlearned.notes)
    panel, *_ = {f.id: f for f in unlearned.figures}["sweep-through-training"].panels
    assert [row.name for row in panel.series[1:]] == ["base, not learned", "3 layers, not learned"]

    monkeypatch.setattr(zuo2025_trained, "LEARNED", 0.0)
    found = findings(cells)
    # Nothing is filled in better than by guessing, and so there is nothing to take a share of.
    assert set(found.claims) == {"trained", "trained-sweep"}
    assert set(found.claims) <= {id for figure in found.figures for id in figure.claims}
    figures = {figure.id: figure for figure in found.figures}

    through = {panel.title: panel for panel in figures["through-training"].panels}
    lowest = []
    for panel in figures["trained"].panels:
        chance, trained, untrained, unmasked, *others = panel.series
        assert set(chance.y) == {0.5}
        # Six steps of training move the scores, but not far.
        assert not np.array_equal(trained.y, untrained.y)
        np.testing.assert_allclose(trained.y, untrained.y, atol=0.2)
        assert not np.array_equal(unmasked.y, trained.y)
        lowest.append((trained.y - unmasked.y).min())
        by_name = {row.name: row.y for row in others}
        for score in ("C", "A mirrored"):
            null = by_name[f"without the causal mask, score {score}"]
            lowest.append((by_name[f"trained, score {score}"] - null).min())
        by_layer = [s for s in through[panel.title].series if s.name.startswith("layer")]
        # Steps 0, 1, 2, 4 and 6; of indexing, which takes more, up to 24.
        longer = [9, 17, 25] if panel.title == "indexing" else [7]
        assert list(by_layer[0].x) == [1, 2, 3, 5, *longer]
        np.testing.assert_array_equal([s.y[0] for s in by_layer], untrained.y)
        np.testing.assert_array_equal([s.y[-1] for s in by_layer], trained.y)
    assert found.claims["trained"].value == pytest.approx(min(lowest))
    assert found.claims["trained"].n == 2

    names = ["base", "3 layers"]
    assert all(
        [row.name for row in panel.series] == names for panel in figures["trained-map"].panels
    )
    # At two layers the middle block is the first one: every block is on the map.
    ends = [SITES.index(site) for site in ("first block", "last block")]
    trained, _, unmasked = (panel.series[0] for panel in figures["trained-map"].panels)
    of_blocks = (trained.y - unmasked.y)[ends]
    assert found.claims["trained-sweep"].n == 2
    [weakest] = [note for note in found.notes if "weakest" in note]
    assert "one seed" in weakest

    panels = figures["sweep-through-training"].panels
    assert [panel.title for panel in panels] == [f"ordering, {score}" for score in DECIDING]
    of_settings = [np.mean([row.y[-1] for row in panel.series[1:]]) for panel in panels]
    assert found.claims["trained-sweep"].value == pytest.approx(min(of_settings))
    null, *above = panels[0].series
    assert set(null.y) == {0}
    assert [row.name for row in above] == names
    assert above[0].y[-1] == of_blocks.min()
    # The sweep trains three steps, the base six: axes are the task's own.
    assert list(above[0].x) == [1, 2, 3, 4]
    [panel] = figures["sweep-variance-through-training"].panels
    chance, _, *trends = panel.series
    assert set(chance.y) == {0}
    assert [row.name for row in trends] == names

    preset = small()
    tokens = preset.read_on("ordering", 1)
    model = trained_to_answer(preset.task("ordering"), preset.sizes, steps=3, seed=1)
    for step, state in ((0, HookedTransformer(model.config)), (-1, model)):
        rows = read_activations(state, tokens, first=1)
        without = read_activations(as_bidirectional(state), tokens, first=1)
        # The block that is lowest at the end, at every step.
        lowest_block = of_blocks.argmin()
        assert above[0].y[step] == (rows["blocks"] - without["blocks"])[lowest_block, 0]
        seen = np.log(np.arange(2, tokens.shape[1] + 1))
        power, _ = np.polyfit(seen, np.log(rows["variance"][-1]), 1)
        assert trends[0].y[step] == pytest.approx(power)

    [control] = figures["control"].panels
    by_name = {series.name: series.y for series in control.series}
    # Distinct letters in order: no answer is one token throughout.
    assert by_name["answers of one token throughout"][0] == by_name["without it"][0] == 0


@pytest.mark.parametrize("changes", [{}, {"n_layers": 3, "init": "kaiming_normal"}])
def test_the_watched_ends_are_the_models_before_and_after_training(changes: dict[str, Any]) -> None:
    preset = small()
    found = read_through_training(preset, "ordering", changes, 5, "cpu", 1)
    assert {len(states) for states in found.values()} == {5}  # steps 0, 1, 2, 4 and 5
    task, tokens = preset.task("ordering"), preset.read_on("ordering", 1)
    sizes = replace(preset.sizes, model={**preset.sizes.model, **changes})
    trained = trained_to_answer(task, sizes, steps=5, seed=1)
    for step, model in ((0, HookedTransformer(trained.config)), (-1, trained)):
        rows = read_activations(model, tokens, first=1)
        unmasked = read_activations(as_bidirectional(model), tokens, first=1)
        for what in ("sites", "blocks", "variance"):
            np.testing.assert_array_equal(found[what][step], rows[what])
            np.testing.assert_array_equal(found[f"unmasked_{what}"][step], unmasked[what])
        right = accuracies(model, task, preset.n_scored, "validation", 1).mean()
        assert found["accuracy"][step] == right


def test_every_training_and_reading_is_on_the_runs_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU by another name, which only what the run was given can have brought there."""
    device = "cpu:0"
    trained: list[object] = []
    to, read = HookedTransformer.to, read_activations

    def move(model: HookedTransformer, place: object, *dtype: object) -> HookedTransformer:
        model.moved_to = place
        return to(model, place, *dtype)  # type: ignore[call-overload, no-any-return]

    def train(*arguments: Any, **options: Any) -> HookedTransformer:
        trained.append(options["device"])
        return trained_to_answer(*arguments, **options)

    def read_moved(model: HookedTransformer, *arguments: Any, **options: Any) -> Any:
        # The bidirectional variant goes where its weights come from, by their own device.
        assert model.moved_to == (device if model.config.causal else torch.device("cpu"))
        return read(model, *arguments, **options)

    monkeypatch.setattr(HookedTransformer, "to", move)
    for part in (zuo2025_scores, zuo2025_control):
        monkeypatch.setattr(part, "trained_to_answer", train)
    monkeypatch.setattr(zuo2025_scores, "read_activations", read_moved)
    preset = replace(small(), lengths={"ordering": range(2, 5)}, most_seeds=2)
    trained_findings(CONFIG, preset, Cells(tmp_path, lambda title, kept: None), device)
    # Two watched, two settings of sizes, two each with and without the mask, one with positions.
    assert trained == [device] * 9


def test_the_trained_part_is_given_the_runs_device(
    few_settings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []

    def note(config: ReproduceConfig, preset: Preset, cells: Cells, device: str) -> Findings:
        given.append(device)
        return Findings({}, (), "nothing trained")

    monkeypatch.setattr(zuo2025, "trained_findings", note)
    found = zuo2025.reproduce(CONFIG, Cells(tmp_path, lambda title, kept: None), "cpu:0")
    assert found.setting.endswith("nothing trained")
    assert given == ["cpu:0"]


@pytest.mark.slow
def test_the_mask_is_what_a_task_is_learned_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zuo2025_control, "_GUESSED_FROM", 200)
    preset = replace(
        small(),
        lengths={"reversal": range(2, 3)},
        sizes=replace(
            PRESETS["tiny"].sizes, model={"n_layers": 2, "d_model": 32, "n_heads": 2}, warmup=20
        ),
        most_seeds=2,
    )
    config = ReproduceConfig("zuo2025", preset="tiny", training=300 / preset.control_steps)
    found = control_findings(config, preset, Cells(tmp_path, lambda title, kept: None), "cpu")
    [panel] = found.figures[0].panels
    accuracy = {series.name: series.y[0] for series in panel.series}
    assert accuracy["with the causal mask"] > LEARNED
    assert accuracy["without it, with learned positions"] > LEARNED
    assert accuracy["without it"] <= accuracy["answers of one token throughout"] < 0.1
    measured = found.claims["bidirectional-fails"]
    chance = accuracy["commonest answer"]
    assert measured.value == pytest.approx(
        (accuracy["without it"] - chance) / (accuracy["with the causal mask"] - chance)
    )
    assert measured.n == 2


@pytest.mark.slow
def test_the_command_runs_the_trained_part(
    few_settings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRESETS, "tiny", small())
    monkeypatch.setattr(zuo2025_control, "_GUESSED_FROM", 200)
    found = reproduce(CONFIG, out=tmp_path, show_progress=False)
    status = found.claims.set_index("claim")["status"]
    for claim in paper("zuo2025").claims:
        assert (status[claim.id] == "not measured") == bool(claim.needs)
    assert {"trained", "through-training", "trained-map", "control"} <= {
        figure.id for figure in found.figures
    }
    assert found.html()
