"""A training's history is kept whole, read step by step, and timed by planted numbers."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from experiments.codes.following import following_rows, movable
from experiments.codes.history import history_rows
from experiments.codes.interchange import interchange_rows, noising_rows
from experiments.codes.order import order_rows
from experiments.codes.task import InterventionTask, intervention_task_of
from experiments.codes.text_interchange import text_interchange_rows
from experiments.comparison.config import CompareConfig
from experiments.heads.history import head_history
from experiments.probing.measure import code_probes, feed, reading_of
from experiments.probing.sites import Site
from experiments.results import interchange
from experiments.results.emergence import FOLLOWED, code_gains, followed_codes, onsets
from experiments.results.interchange import followed
from experiments.results.measurements import table
from experiments.results.position_use import Word
from experiments.results.worth import WORTH_NAMING
from experiments.runs.folder import RunFolder
from experiments.variants.train import trained_model, training_folder
from experiments.variants.variants import ModelVariant, variant_of
from nope_interp.errors import UserError
from nope_interp.models.checkpoints import load_model
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.registry import make_answer_task
from nope_interp.tasks.text import TextTask
from nope_interp.training.config import TrainingConfig
from nope_interp.training.loop import watched_steps
from probes.head_rules import LABELS, METRICS
from probes.scores import SHUFFLED
from tests.experiments.cli.command import nope_interp
from tests.experiments.codes.test_counterfactual import untrained
from tests.trainings import assert_same_bits, dies_after

CONFIG = CompareConfig(
    transformer=TransformerConfig(n_layers=2, d_model=32, n_heads=2, d_vocab=257, n_ctx=24),
    training=TrainingConfig(steps=6, batch_size=4, seq_len=24, warmup=2, checkpoint_every=3),
    seq_len=24,
    n_fit=48,
    n_held_out=32,
    uses="no",
    history=True,
)
STEPS = [0, 1, 2, 4, 6]


def test_a_history_is_of_the_model_with_its_positions() -> None:
    with pytest.raises(UserError, match="ablate takes 'learned' away: leave one of the two out"):
        dataclasses.replace(CONFIG, ablate="learned")


def keep(out: Path, keep_history: bool = True) -> HookedTransformer:
    return trained_model(CONFIG, out, "cpu", False, keep_history=keep_history)


def training(out: Path) -> RunFolder:
    return training_folder(out, CONFIG)


def kept(run: RunFolder) -> list[Path]:
    return sorted((run.path / "history").glob("*"))


# ---------------------------------------------------------------- what is kept


def test_every_watched_step_is_a_model(tmp_path: Path) -> None:
    run = training(tmp_path)
    model = keep(tmp_path)
    assert kept(run) == [run.history(step) for step in STEPS]
    first, asked = load_model(run.history(0))
    assert asked.task == "text"
    assert_same_bits(first, HookedTransformer(CONFIG.transformer))
    assert_same_bits(load_model(run.history(6))[0], model)
    assert not run.training_state.exists()


def test_no_history_unless_it_is_asked_for(tmp_path: Path) -> None:
    run = training(tmp_path)
    plain = keep(tmp_path, keep_history=False)
    assert not kept(run)
    # A model that was trained without its history is trained again, to the same bits.
    assert_same_bits(keep(tmp_path), plain)
    assert len(kept(run)) == len(STEPS)
    before = [path.stat().st_mtime_ns for path in (run.model, *kept(run))]
    keep(tmp_path)
    assert [path.stat().st_mtime_ns for path in (run.model, *kept(run))] == before


@pytest.mark.parametrize("watched_before", [True, False])
def test_a_killed_training_leaves_no_gaps(tmp_path: Path, watched_before: bool) -> None:
    run, whole = training(tmp_path / "killed"), training(tmp_path / "whole")
    with dies_after(5) as asked:
        with pytest.raises(KeyboardInterrupt):
            keep(tmp_path / "killed", keep_history=watched_before)
        assert run.training_state.is_file()
        keep(tmp_path / "killed")
    # From the state of step 5 where all steps before it were kept, else from the start.
    assert len(asked) == 6 + (1 if watched_before else 6)
    keep(tmp_path / "whole")
    for step in STEPS:
        assert_same_bits(load_model(run.history(step))[0], load_model(whole.history(step))[0])


# ---------------------------------------------------------------- what is read


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, ModelVariant, pd.DataFrame]:
    out = tmp_path_factory.mktemp("read")
    variant = variant_of(CONFIG, out, "cpu", False, needed={}, keep_history=True)
    rows = history_rows(CONFIG, out, variant, head_history, experiment="compare")
    return training(out), variant, table(rows)


def test_all_is_read_at_every_step(read: tuple[RunFolder, ModelVariant, pd.DataFrame]) -> None:
    _, _, rows = read
    assert sorted(rows["step"].unique()) == STEPS
    per_step = rows[rows["probe"] != "label"].groupby("step").size()
    assert per_step.nunique() == 1
    codes = rows[rows["probe"].isin(["linear", "counting", "variance", "similarity"])]
    assert set(zip(codes["layer"], codes["site"], strict=True)) == {
        (layer, site) for layer in (0, 1) for site in ("resid_post", "attn_out")
    }
    assert set(codes["control"]) == {"", SHUFFLED}
    assert set(rows["metric"]) >= {"adjacency_a", "adjacency_b", "adjacency_c", "share"}
    heads = rows[rows["probe"] == "heads"]
    assert set(heads["metric"]) == set(METRICS)
    assert (heads.groupby(["step", "metric"]).size() == 4).all()
    labels = rows[rows["probe"] == "label"]
    assert set(labels["metric"]) <= set(LABELS)
    assert (labels.groupby("step").size() == 4).all()
    assert (rows["variant"] == "trained").all()
    assert (rows["positions"] == "intact").all()


def test_the_loss_is_cross_entropy_on_held_out_text(
    read: tuple[RunFolder, ModelVariant, pd.DataFrame],
) -> None:
    run, _, rows = read
    draw = {"seq_len": 24, "begin_token": False, "seed": 0}
    tokens = TextTask().source().sequences(32, split="held_out", **draw)
    losses = rows[rows["probe"] == "loss"].set_index("step")
    for step in STEPS:
        model, _ = load_model(run.history(step))
        with torch.no_grad():
            logits = model(tokens)
        expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten().long())
        assert losses.loc[step, "value"] == pytest.approx(expected.item(), rel=1e-5)
    assert (losses["ci_low"] < losses["value"]).all()
    assert losses["chance"].nunique() == 1
    assert losses.loc[6, "value"] < losses.loc[0, "value"]


@pytest.mark.parametrize("step", [0, 6])
def test_each_step_is_its_own_model(
    read: tuple[RunFolder, ModelVariant, pd.DataFrame], step: int
) -> None:
    _, variant, rows = read
    model = HookedTransformer(CONFIG.transformer).eval() if step == 0 else variant.model
    draw = {"seq_len": 24, "begin_token": False, "seed": 0}
    site = Site(1, "resid_post")
    probes = {site: code_probes(site, 0)}
    for stage, split, n in (("update", "fit", 48), ("evaluate", "held_out", 32)):
        tokens = TextTask().source().sequences(n, split=split, **draw)  # type: ignore[arg-type]
        feed(model, tokens, probes, stage, batch_size=32)  # type: ignore[arg-type]
    expected = pd.DataFrame(reading_of(probes, {}).rows)
    found = rows[(rows["step"] == step) & (rows["layer"] == 1) & (rows["site"] == "resid_post")]
    found = found[found["probe"].isin(expected["probe"])]
    assert len(found) == len(expected) > 0
    np.testing.assert_array_equal(found["value"], expected["value"])


# ---------------------------------------------------------------- when it comes


def planted(
    gains: dict[int, float], losses: dict[int, float], *, half: float = 0.2, control: float = 0.0
) -> pd.DataFrame:
    """A table in which the probe of variance has these gains, and the loss these values."""
    chance, common = 10.0, {"experiment": "compare", "model": "m", "variant": "trained"}
    common |= {"positions": "intact", "tokens": "text", "begin_token": False, "seed": 0, "n": 64}
    rows = []
    for step, gain in gains.items():
        for layer, name, value in (
            (0, "", chance),
            (0, SHUFFLED, chance),
            (1, "", chance * (1 - gain)),
            (1, SHUFFLED, chance * (1 - control)),
        ):
            rows.append(
                common
                | {"step": step, "layer": layer, "site": "resid_post", "probe": "variance"}
                | {"control": name, "metric": "mae", "chance": chance}
                | {"value": value, "ci_low": value - half, "ci_high": value + half}
            )
    for step, loss in losses.items():
        rows.append(
            common
            | {"step": step, "layer": -1, "site": "resid_post", "probe": "loss", "control": ""}
            | {"metric": "nats", "value": loss, "ci_low": loss, "ci_high": loss, "chance": 4.0}
        )
    return table(rows)


LOSSES = {0: 5.0, 1: 4.9, 2: 4.1, 4: 4.0, 8: 3.0}


@pytest.mark.parametrize(
    ("gains", "half", "control", "onset"),
    [
        ({0: 0.0, 1: 0.02, 2: 0.5, 4: 0.6, 8: 0.6}, 0.2, 0.0, 2.0),
        ({0: 0.4, 1: 0.0, 2: 0.0, 4: 0.0, 8: 0.5}, 0.2, 0.0, 0.0),  # the first, if it does not last
        ({0: 0.0, 1: 0.11, 2: 0.12, 4: 0.5, 8: 0.5}, 0.2, 0.0, 4.0),  # a tenth, but not surely
        ({0: 0.0, 1: 0.09, 2: 0.09, 4: 0.09, 8: 0.09}, 0.01, 0.0, math.nan),
        ({0: 0.5, 1: 0.5, 2: 0.5, 4: 0.5, 8: 0.5}, 0.2, 0.2, math.nan),  # so does its control
    ],
)
def test_onset_of_planted_gains(
    gains: dict[int, float], half: float, control: float, onset: float
) -> None:
    measurements = planted(gains, LOSSES, half=half, control=control)
    found = onsets(measurements)
    assert set(found) == {"variance", "loss"}
    assert found["variance"] == pytest.approx(onset, nan_ok=True)
    assert found["loss"] == 4
    by_step = code_gains(measurements).set_index("step")
    assert by_step["gain"].to_dict() == pytest.approx(gains, abs=1e-9)
    assert (by_step["layer"][by_step["gain"] > 0] == 1).all()
    where = by_step["gain"] > 0
    np.testing.assert_allclose(by_step["control"][where], control, atol=1e-9)


def test_rows_without_a_step_do_not_count() -> None:
    gains = {0: 0.0, 1: 0.0, 8: 0.5}
    later = planted(gains, LOSSES)
    finished = planted({0: 0.9}, {0: 0.1}).assign(step=pd.NA).astype(later.dtypes.to_dict())
    both = pd.concat([finished, later], ignore_index=True)
    assert onsets(both) == onsets(later) == {"variance": 8.0, "loss": 4.0}


# ---------------------------------------------------------------- how it is asked for


def test_history_is_of_a_training() -> None:
    with pytest.raises(
        UserError, match=r"history follows a training, but 'gpt2'.*leave one of the two out"
    ):
        dataclasses.replace(CONFIG, model="gpt2")


@pytest.mark.slow
def test_history_on_the_command_line(tmp_path: Path) -> None:
    values = dataclasses.replace(CONFIG, history=False).to_dict()
    values["transformer"] |= {"n_layers": 1, "d_model": 16}
    values |= {"n_fit": 24, "n_held_out": 16, "sites": ["resid_post"]}
    (tmp_path / "tiny.json").write_text(json.dumps({**values, "variants": False}))
    arguments = ["compare", "--config", "tiny.json", "--history", "--json"]
    done = nope_interp(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    info = RunFolder(tmp_path / Path(json.loads(done.stdout)["report"]).parent).read_info()
    assert info["config"]["history"] is True
    trained = RunFolder((tmp_path / "runs" / info["trained_model"]).parent)
    assert kept(trained) == [trained.history(step) for step in STEPS]


# ---------------------------------------------------------------- followed


@pytest.mark.parametrize(("task", "steps"), [("text", 2), ("reversal", 16)])
def test_every_step_is_moved_as_the_finished_model_is(
    tmp_path: Path, task: str, steps: int
) -> None:
    """At the last step the shares are those of the whole table of moves, to the last bit."""
    lengths = {} if task == "text" else {"lengths": (6, 6)}
    asked = lengths | {"task": task, "seq_len": 32, "n_held_out": 24, "n_fit": 96}
    config = dataclasses.replace(
        CONFIG,
        transformer=dataclasses.replace(CONFIG.transformer, n_layers=1, n_ctx=32),
        training=dataclasses.replace(CONFIG.training, seq_len=32, steps=steps, batch_size=32),
        **asked,
    )
    variant = variant_of(config, tmp_path, "cpu", False, needed={}, keep_history=True)
    rows = history_rows(config, tmp_path, variant, no_heads, experiment="compare")
    told = [row for row in rows if row["probe"].startswith("interchange")]
    assert {row["step"] for row in told} == set(watched_steps(steps))
    work = intervention_task_of(config, variant)
    context = variant.context("compare", config.seed, work.begin_token)
    if task == "text":
        whole = text_interchange_rows(work, {}, context=context)
    else:
        whole = interchange_rows(work, {}, movable(work), context=context)
    shares = {"towards", "stays", "neither", "net"}
    of_moves = {key(row): row for row in whole if row["metric"] in shares}
    last = [row for row in told if row["step"] == steps and row["metric"] in shares]
    assert last
    for row in last:
        for column in ("value", "ci_low", "ci_high", "n"):
            assert row[column] == of_moves[key(row)][column], key(row)


def reader_of(codes: torch.Tensor, symbols: int) -> HookedTransformer:
    """Reversal by hand: each position has a vector, and asks for the symbol whose it knows."""
    task = make_answer_task("reversal", training_lengths=[symbols], test_lengths=())
    d, n = task.d_vocab, task.n_tokens(symbols)
    bare = {"normalization": "none", "attn_only": True, "attn_scale": 1.0}
    config = TransformerConfig(1, 2 * d + 2 * n, 1, d, n, positions="learned", **bare)
    model = HookedTransformer(config).eval()
    asks, place = slice(2 * d, 2 * d + n), slice(2 * d + n, None)
    question, attention = slice(1, symbols + 1), model.blocks[0].attn
    with torch.no_grad():
        for weights in model.parameters():
            weights.zero_()
        model.W_E[:, :d] = torch.eye(d)
        model.positions.table[:, asks] = codes
        model.positions.table[question, asks] = 0
        model.positions.table[question, place] = codes[question]
        wanted = codes[symbols + 1 : 2 * symbols + 1].mT @ codes[question].flip(0)
        attention.W_Q[0, asks, :n], attention.W_K[0, place, :n] = 60 * wanted, torch.eye(n)
        attention.W_V[0, :d, :d] = attention.W_O[0, :d, d : 2 * d] = torch.eye(d)
        model.W_U[d : 2 * d] = 20 * torch.eye(d)
    return model


def unrelated_vectors(symbols: int) -> InterventionTask:
    """Reversal by a table of vectors of which none tells how far another position is."""
    task = untrained("reversal", symbols)
    n = task.split.held_out.shape[1]
    unrelated = torch.randn(n, n, generator=torch.Generator().manual_seed(0))
    return dataclasses.replace(task, model=reader_of(torch.linalg.qr(unrelated).Q, symbols))


def test_of_three_positions_a_smooth_trend_is_not_called_used() -> None:
    """Two functions are all that tells them apart: whatever is followed is followed by a trend."""
    task = unrelated_vectors(4)
    at = {"variant": "trained", "tokens": "reversal", "begin_token": True, "seed": 0}
    at |= {"positions": "intact"}
    found = followed(table(following_rows(task, movable(task), [], context=at)))
    words = found[found["moved"] == interchange.ASKING].set_index("code")["word"]
    assert words["mean residual"] == Word.USED
    assert words["smooth trend"] == Word.UNDECIDED


@pytest.mark.parametrize("symbols", [4, 5, 8])
def test_a_table_of_unrelated_vectors_follows_no_smooth_trend(symbols: int) -> None:
    """Any two functions of so few positions tell them apart a little."""
    task = unrelated_vectors(symbols)
    at = {"variant": "trained", "tokens": "reversal", "begin_token": True, "head": pd.NA, "step": 8}
    order = order_rows(task, context={**at, "probe": interchange.PROBE, "positions": "intact"})
    moves = noising_rows(task, movable(task), context=at)
    found = followed_codes(pd.DataFrame([*order, *moves])).set_index("code")
    assert found.loc["mean residual", "net"] == 1
    assert found.loc["irregular part", "word"] == FOLLOWED
    # Of an equally large random change hardly any answer follows the move.
    nets = [row for row in moves if row["metric"] == "net" and "smooth trend" in row["positions"]]
    assert max(row["ci_low"] for row in nets) > WORTH_NAMING
    assert found.loc["smooth trend", "word"] == ""


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[column] for column in ("positions", "metric", "control", "layer", "site"))


def no_heads(*_: Any) -> Any:
    return lambda model, context: iter(())


def test_why_nothing_is_moved_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    transformer = dataclasses.replace(CONFIG.transformer, n_layers=1, d_model=16)
    how = {"transformer": transformer, "seq_len": 16, "n_held_out": 8, "n_fit": 24}
    config = dataclasses.replace(CONFIG, **how)
    variant = variant_of(config, tmp_path, "cpu", False, needed={}, keep_history=True)
    assert [*history_rows(config, tmp_path, variant, no_heads, experiment="compare")]
    (told,) = caplog.messages
    assert told.startswith("No position was moved: ")


def test_nothing_is_moved_where_too_little_is_there(
    read: tuple[RunFolder, ModelVariant, pd.DataFrame],
) -> None:
    _, _, rows = read
    assert not any(probe.startswith("interchange") for probe in rows["probe"])
