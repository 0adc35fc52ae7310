"""The order in which codes appear: from planted onsets, and from trainings small enough to run."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.comparison.config import CompareConfig
from experiments.emergence import watch as module
from experiments.emergence.config import EmergenceConfig
from experiments.emergence.result import Emergence
from experiments.emergence.watch import watch_emergence
from experiments.results import interchange, text_use
from experiments.results.emergence import _least_rows, order_sentence
from experiments.results.measurements import table
from experiments.runs.folder import RunFolder
from experiments.runs.workers import HERE
from experiments.sweeps.registry import experiment
from experiments.sweeps.runs import load_run
from experiments.variants.variants import ModelVariant
from experiments.variants.words import asked
from nope_interp.errors import UserError
from nope_interp.fields import LARGEST_SEED
from nope_interp.models.config import TransformerConfig
from nope_interp.training.config import TrainingConfig
from probes.scores import SHUFFLED
from tests.experiments.cli.command import assert_one_sentence, nope_interp
from tests.experiments.report.parsed_page import Page

STEPS = [0, 1, 2, 4, 8, 16]
INFO = {"setting": "planted", "notes": []}


def planted(onsets: dict[str, list[int | None]]) -> Emergence:
    """Probes that gain a half from their onset on and nothing before; the loss falls at step 4."""
    common = {"experiment": "emergence", "model": "m", "variant": "trained", "positions": "intact"}
    common |= {"tokens": "text", "begin_token": False, "n": 64, "site": "resid_post", "layer": 0}
    rows = []
    for probe, steps in onsets.items():
        for seed, onset in enumerate(steps):
            for step in STEPS:
                gain = 0.5 if onset is not None and step >= onset else 0.0
                for control, value in (("", 10 * (1 - gain)), (SHUFFLED, 10.0)):
                    found = {"value": value, "ci_low": value - 0.1, "ci_high": value + 0.1}
                    at = {"seed": seed, "step": step, "probe": probe, "control": control}
                    rows.append(common | at | found | {"metric": "mae", "chance": 10.0})
                loss = 2.0 if step >= 4 else 5.0
                found = {"value": loss, "ci_low": loss, "ci_high": loss, "chance": 4.0}
                at = {"seed": seed, "step": step, "probe": "loss", "control": ""}
                rows.append(common | at | found | {"metric": "nats"})
    return Emergence(Path(), table(rows), {}, INFO)


def test_the_order_of_planted_onsets_and_its_interval() -> None:
    """Of the same differences in every seed the interval has no width; else it is Student's."""
    found = planted(
        {
            "variance": [1, 2, 1, 1, 1],
            "similarity": [4, 8, 4, 4, 4],
            "linear": [2, 8, 16, 2, 8],
        }
    )
    assert found.onsets["variance"].to_list() == [1, 2, 1, 1, 1]
    assert found.onsets["loss"].to_list() == [4] * 5
    after = found.claims["doublings, similarity after variance"]
    assert (after.value, after.ci_low, after.ci_high, after.n) == (2, 2, 2, 5)
    after = found.claims["doublings, any linear code after variance"]
    assert after.value == pytest.approx((1 + 2 + 4 + 1 + 3) / 5)
    assert after.ci_low < after.value - 1 < after.value + 1 < after.ci_high
    assert found.claims["doublings, variance after loss"].value == pytest.approx(-9 / 5)
    change = found.claims["change of gain, variance"]
    assert (change.value, change.ci_low, change.ci_high) == pytest.approx((0.5, 0.5, 0.5))
    assert found.claims[f"largest gain, {SHUFFLED}"].value == 0
    first = "On average variance is readable first, at step 1 in the median of 5 seeds."
    assert found.headline == first
    said = " ".join(found.sentences)
    assert said.startswith("Delays after variance are in doublings of the number of training")
    assert "Similarity is readable surely 2 doublings [2, 2] later." in " ".join(found.sentences)
    assert "The loss is half way down surely 1.8 doublings [" in " ".join(found.sentences)
    # Beyond its interval, but not beyond that of one of three codes.
    assert after.ci_low > 0
    assert "Any linear code is readable perhaps 2.2 doublings [" in " ".join(found.sentences)
    changed = "Gains (chance 0) that training surely changes: variance by 0.5 [0.5, 0.5],"
    assert changed in said
    assert "never" not in found.headline


def moved(onsets: dict[str, list[int | None]], knows_from: int) -> Emergence:
    """The same with codes that are followed from their onset on, of a model that knows order from
    another step on."""
    read = planted({"variance": [0] * len(next(iter(onsets.values())))})
    like = read.measurements.iloc[0].to_dict() | {"probe": "interchange", "control": ""}
    rows = []
    for code, steps in onsets.items():
        for seed, onset in enumerate(steps):
            for step in STEPS:
                at = like | {"seed": seed, "step": step}
                knows, follows = step >= knows_from, onset is not None and step >= onset
                told = {"above_guesser": knows, "lost_by_shuffle": knows, "net": follows}
                for metric, yes in told.items():
                    value = 0.5 if yes else 0.0
                    positions = f"moved: {code} of the question" if metric == "net" else "intact"
                    ends = {"value": value, "ci_low": value - 0.01, "ci_high": value + 0.01}
                    rows.append(at | ends | {"metric": metric, "positions": positions})
                accuracy = at | {"metric": "accuracy", "value": 0.5}
                controls = ("", "order-free guesser", "question shuffled")
                rows += [accuracy | {"control": control} for control in controls]
    # At first no answer is right: there are no rows of what follows.
    rows = [row for row in rows if row["step"] > 0 or row["metric"] != "net"]
    measured = table([*read.measurements.to_dict("records"), *rows])
    measured = measured.drop_duplicates(["seed", "step", "probe", "metric", "control", "positions"])
    return Emergence(Path(), measured, {}, INFO)


def test_a_code_is_followed_from_the_step_at_which_it_moves_a_model_that_knows_order() -> None:
    """Whatever follows before the model knows order says nothing."""
    found = moved({"smooth trend": [2, 8, 2, 2, 8], "variance": [None] * 5}, knows_from=4)
    assert found.follow_onsets["smooth trend"].to_list() == [4, 8, 4, 4, 8]
    assert found.follow_onsets["variance"].isna().all()
    delay = found.claims["doublings, following of smooth trend after loss"]
    assert delay.value == pytest.approx(2 / 5)
    assert not any("variance after loss" in name and "following" in name for name in found.claims)
    first = found.followed[found.followed["step"] == 0]
    assert len(first) == 10
    assert (first[["net", "low", "high"]] == 0).all(axis=None)
    at = "at step 4 in the median of 5 seeds."
    assert found.headline.endswith(f" Smooth trend is followed first, {at}")
    said = " ".join(found.sentences)
    at = "Smooth trend is surely followed in 5 of 5 seeds, first at step 4 in their median."
    assert f"{at} That is perhaps 0.4 doublings [" in said
    assert "] later than the loss is half way down." in said
    assert said.endswith("Once order is known, variance is followed at no step, in any seed.")


def test_nothing_is_said_of_what_is_followed_by_models_that_never_know_order() -> None:
    found = moved({"smooth trend": [2, 8]}, knows_from=99)
    assert set(found.followed["word"]) == {""}
    assert "followed" not in found.headline
    said = " ".join(found.sentences)
    assert said.endswith(
        "No model that was watched knows order: nothing is said of what it follows."
    )
    first = found.measurements[found.measurements["seed"] == 0]
    assert "No model that was watched knows order" in order_sentence(first)
    # Who knows order late and follows nothing does know it.
    late = moved({"smooth trend": [None, None]}, knows_from=4)
    never = "Once order is known, smooth trend is followed at no step, in any seed."
    assert " ".join(late.sentences).endswith(never)
    first = late.measurements[late.measurements["seed"] == 0]
    assert "Once order is known, followed at no watched step: smooth trend" in order_sentence(first)


def test_codes_that_are_followed_at_once_and_seeds_that_never_follow_are_told() -> None:
    found = moved({"smooth trend": [2, None, None], "variance": [2, None, None]}, knows_from=0)
    assert "Smooth trend and variance are followed first, in 1 of 3 seeds only." in found.headline
    said = " ".join(found.sentences)
    # One doubling before step 4, and one past step 16 in two seeds: 5/3 doublings in the mean.
    assert "in 1 of 3 seeds, first at step 2 in their median. With the others counted a" in said
    assert "doubling past the end, that is perhaps 1.7 doublings [" in said


def test_a_training_in_which_no_code_could_be_moved_counts_as_nothing() -> None:
    """The mean over seeds is over all of them, and so is what is said."""
    found = moved({"smooth trend": [2, 2, 2, 2]}, knows_from=0)
    rows = found.measurements
    none = (rows["seed"] == 3) & (rows["metric"] == "net")
    fewer = Emergence(Path(), rows[~none], {}, INFO)
    last = fewer.followed[fewer.followed["step"] == STEPS[-1]]
    assert last["net"].to_list() == [0.5, 0.5, 0.5, 0]
    assert fewer.follow_onsets["smooth trend"].isna().to_list() == [False, False, False, True]


def test_a_loss_that_rises_is_half_way_down_at_no_step() -> None:
    rows = planted({"variance": [1, 1], "similarity": [2, 2]}).measurements
    losses = rows["probe"] == "loss"
    rows.loc[losses, "value"] = rows.loc[losses, "step"].astype(float)
    found = Emergence(Path(), rows, {}, INFO)
    assert found.onsets["loss"].isna().all()
    assert "The loss falls in no seed." in " ".join(found.sentences)
    assert "half" not in order_sentence(rows[rows["seed"] == 0])


def test_few_seeds_are_sure_of_nothing() -> None:
    found = planted({"variance": [1, 2, 1], "similarity": [4, 8, 4]})
    assert "Similarity is readable perhaps 2 doublings [2, 2] later." in " ".join(found.sentences)
    assert "Gains (chance 0) that training surely changes: none." in " ".join(found.sentences)


def test_seeds_in_which_a_code_never_comes_are_told_beside_its_delay() -> None:
    """Of two seeds at step 2 and three without one the delay is no time at which it came."""
    found = planted({"variance": [1] * 5, "similarity": [2, 2, None, None, None]})
    said = " ".join(found.sentences)
    assert "Similarity is readable perhaps 3.4 doublings [" in said
    counts = "What never comes in a seed counts there as a doubling past the end"
    assert f"{counts}: similarity in 3 of 5 seeds." in said
    every = planted({"variance": [1] * 5, "similarity": [2] * 5, "linear": [None] * 5})
    assert counts not in " ".join(every.sentences)


def test_step_zero_and_never_are_one_doubling_beyond_the_ends() -> None:
    found = planted({"variance": [0, 0], "similarity": [None, None], "linear": [16, None]})
    np.testing.assert_array_equal(found.doublings["variance"], [-1, -1])
    np.testing.assert_array_equal(found.doublings["similarity"], [5, 5])
    np.testing.assert_array_equal(found.doublings["any linear code"], [4, 5])
    assert found.markdown().splitlines()[-2:] == [
        "| 0 | 0 | never | 16 | 4 |",
        "| 1 | 0 | never | never | 4 |",
    ]
    assert found.headline.endswith("; never surely readable: similarity.")
    assert "imilarity is readable" not in " ".join(found.sentences)


def test_codes_that_come_together_or_in_one_seed_of_three_are_told_as_such() -> None:
    together = planted({"variance": [0, 0, 0], "similarity": [0, 0, 0]})
    assert "Similarity is readable at the same step." in " ".join(together.sentences)
    assert together.headline == "Every code is readable, before training in the median of 3 seeds."
    pair = planted({"variance": [1, 1], "similarity": [1, 1], "linear": [4, 4]})
    assert pair.headline.startswith("On average variance and similarity are readable first, at")
    rare = planted({"variance": [None, 2, None], "similarity": [None, None, None]})
    assert "On average variance is readable first, in 1 of 3 seeds only;" in rare.headline


def test_nothing_readable_is_said_so() -> None:
    found = planted({"variance": [None, None], "similarity": [None, None]})
    assert found.headline == "No code is surely readable at any step."


# ---------------------------------------------------------------- trained

CONFIG = EmergenceConfig(
    transformer=TransformerConfig(n_layers=1, d_model=16, n_heads=2, d_vocab=257, n_ctx=24),
    training=TrainingConfig(steps=2, batch_size=4, seq_len=24, warmup=1),
    seq_len=24,
    n_seeds=2,
)


def run(out: Path) -> Emergence:
    return watch_emergence(CONFIG, out=out, show_progress=False)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Emergence:
    return run(tmp_path_factory.mktemp("runs"))


def test_every_seed_is_a_training_of_its_own(found: Emergence) -> None:
    rows = found.measurements
    per_cell = rows[rows["probe"] != "label"].groupby(["seed", "step"]).size()
    assert per_cell.index.to_list() == [(seed, step) for seed in (0, 1) for step in (0, 1, 2)]
    assert per_cell.nunique() == 1
    losses = rows[rows["probe"] == "loss"].pivot(index="step", columns="seed", values="value")
    assert (losses[0] != losses[1]).all()
    codes = {"variance", "similarity", "counting", "mean residual", "any linear code"}
    assert set(found.onsets) == {*codes, "loss"}
    assert set(found.gains["code"]) == codes
    assert {figure.id for figure in found.figures} == {"loss", "gains", "adjacency", "heads"}
    for figure in found.figures:
        assert figure.ticks == ("0", "1", "2")


def test_curves_are_means_over_seeds(found: Emergence) -> None:
    figures = {figure.id: figure for figure in found.figures}
    rows = found.measurements
    loss = figures["loss"].panels[0].series[0]
    expected = rows[rows["probe"] == "loss"].groupby("step")["value"].mean()
    np.testing.assert_allclose(loss.y, expected)
    (panel,) = (p for p in figures["heads"].panels if p.title == "first-token")
    scores = rows[(rows["probe"] == "heads") & (rows["metric"] == "first_token")]
    strongest = scores.groupby(["step", "seed"])["value"].max().groupby("step").mean()
    np.testing.assert_allclose(panel.series[0].y, strongest)


def test_a_finished_run_is_read_back(found: Emergence) -> None:
    assert not RunFolder(found.folder).cells.exists()
    before = (found.folder / "info.json").read_bytes()
    again = run(found.folder.parent)
    assert (found.folder / "info.json").read_bytes() == before
    loaded = load_run(found.folder)
    assert isinstance(loaded, Emergence)
    assert loaded.headline == again.headline == found.headline
    pd.testing.assert_frame_equal(loaded.onsets, found.onsets)


def test_an_interrupted_run_keeps_its_finished_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = dataclasses.replace(CONFIG, training=dataclasses.replace(CONFIG.training, steps=1))
    real, trained = module.variant_of, []

    def second_is_killed(config: CompareConfig, *args: Any, **kwargs: Any) -> ModelVariant:
        trained.append(config.seed)
        if trained == [0, 1]:
            raise KeyboardInterrupt
        return real(config, *args, **kwargs)

    monkeypatch.setattr(module, "variant_of", second_is_killed)
    monkeypatch.setattr(module, "one_thread_each", lambda: HERE)
    with pytest.raises(KeyboardInterrupt):
        watch_emergence(short, out=tmp_path, show_progress=False)
    again = watch_emergence(short, out=tmp_path, show_progress=False)
    assert trained == [0, 1, 1]
    assert set(again.measurements["seed"]) == {0, 1}


def test_the_page_holds_the_numbers(found: Emergence) -> None:
    page = Page((found.folder / "report.html").read_text(encoding="utf-8"))
    page.assert_asks_nothing_of_the_network()
    page.assert_lets_only_its_own_scripts_run()
    words = " ".join(page.words)
    assert found.headline in words
    for name in found.claims:
        assert name in words
    drawn = {figure["id"]: figure for figure in page.data["figures"]}
    for figure in found.figures:
        series = drawn[figure.id]["panels"][0]["series"][0]
        np.testing.assert_allclose(series["y"], figure.panels[0].series[0].y, rtol=1e-3)


def test_nonsense_is_one_sentence() -> None:
    for changes, match in (
        ({"model": "gpt2"}, "emergence trains its own models, but 'gpt2'"),
        ({"n_seeds": 1}, "n_seeds is 1: give a whole number from 2 to 1000"),
        ({"n_seeds": 1001}, "n_seeds is 1001: give a whole number from 2 to 1000"),
        ({"seq_len": 16}, "seq_len is 16: use at least 24"),
        (
            {"transformer": dataclasses.replace(CONFIG.transformer, seed=5)},
            r"transformer\.seed is 5, but seed is that of weights, batches and .*: leave it out",
        ),
        ({"training": dataclasses.replace(CONFIG.training, seed=5)}, r"training\.seed is 5, but"),
        ({"seed": LARGEST_SEED}, f"seed is {LARGEST_SEED}: for 2 seeds give at most"),
    ):
        with pytest.raises(UserError, match=match):
            dataclasses.replace(CONFIG, **changes)


def test_one_seed_is_that_of_all(tmp_path: Path) -> None:
    asked_for = asked(EmergenceConfig, CONFIG, {"seed": 3})
    assert (asked_for.transformer.seed, asked_for.training.seed) == (3, 3)
    assert asked(EmergenceConfig, asked_for, {"seed": 4}).seeds == range(4, 6)
    for word in ("transformer.seed", "training.seed"):
        # The default, too, where it was given beside another.
        with pytest.raises(UserError, match=rf"^{word} is 0, but seed is that of .*: leave it out"):
            asked(EmergenceConfig, None, {"seed": 5, word: 0})
        assert asked(EmergenceConfig, None, {"seed": 5, word: 5}).seed == 5
    for option in ("--transformer.seed", "--training.seed"):
        run = nope_interp("emergence", option, "5", cwd=tmp_path)
        assert_one_sentence(run, f"there is no option {option}: did you mean --")


@pytest.mark.slow
def test_emergence_on_the_command_line(found: Emergence) -> None:
    config = str(found.folder / "config.json")
    arguments = ["emergence", "--config", config, "--out", ".", "--json"]
    done = nope_interp(*arguments, cwd=found.folder.parent)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["headline"] == found.headline
    assert result["onsets"].keys() == {"0", "1"}
    assert Path(result["report"]).parent.name == found.folder.name


def test_a_sweep_can_run_it(tmp_path: Path) -> None:
    kind = experiment("emergence")
    short = dataclasses.replace(CONFIG, training=dataclasses.replace(CONFIG.training, steps=1))
    config = kind.read({**short.to_dict(), "seed": 3})
    assert isinstance(config, EmergenceConfig)
    assert list(config.seeds) == [3, 4]
    kind.run(config, tmp_path, "cpu")
    assert kind.finished(kind.folder(tmp_path, config).path)
    with pytest.raises(UserError, match="emergence runs on the CPU: leave the device 'cuda' out"):
        kind.run(config, tmp_path, "cuda")


ON_TEXT: dict[str, Any] = {
    "variant": "trained",
    "tokens": "text",
    "begin_token": False,
    "layer": -1,
    "n": 64,
}
ON_TEXT |= {"site": "stream", "step": 8, "control": "", "probe": text_use.PROBE, "head": pd.NA}
ON_TEXT |= {"positions": "moved: mean residual of the earlier tokens"}


def test_on_text_a_followed_codes_own_share_has_to_pass_too() -> None:
    """A control that goes the other way alone makes no code followed."""
    low = {interchange.NET: 0.14, interchange.THIS_ORDER: 0.13, interchange.BEYOND: 0.02}
    rows = [
        {**ON_TEXT, "metric": metric, "value": bound + 0.1, "ci_low": bound, "ci_high": bound + 0.2}
        for metric, bound in low.items()
    ]
    (least,) = _least_rows(pd.DataFrame(rows)).to_dict("records")
    assert least["metric"] == interchange.BEYOND
    (on_a_task,) = _least_rows(pd.DataFrame(rows).assign(probe="interchange")).to_dict("records")
    assert on_a_task["metric"] == interchange.THIS_ORDER


def test_every_effect_of_a_followed_code_has_to_pass_where_intervals_are_widened() -> None:
    """Widened for sixty moves, the wide interval of one effect no longer lies above a tenth, though
    the narrow one of the other lay lower before."""
    ends = {interchange.NET: (0.16, 0.14, 0.18), interchange.THIS_ORDER: (0.5, 0.15, 0.85)}
    rows = [
        {**ON_TEXT, "step": step, "metric": metric, "value": of, "ci_low": low, "ci_high": high}
        for metric, (of, low, high) in ends.items()
        for step in range(60)
    ]
    least = _least_rows(pd.DataFrame(rows))
    assert len(least) == 60
    assert set(least["metric"]) == {interchange.THIS_ORDER}
    assert (least["ci_low"] < 0).all()
