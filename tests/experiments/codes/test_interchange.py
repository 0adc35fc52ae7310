"""Answers that follow a moved position, in a model that reads positions from a table, and in one
that was never trained."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import nope_interp as ni
from experiments.codes.ablation import statistics_at
from experiments.codes.interchange import asking_positions, interchange_rows
from experiments.codes.order import _guessed, order_rows
from experiments.codes.task import InterventionTask, intervention_task_of
from experiments.comparison.config import CompareConfig
from experiments.probing.measure import Site
from experiments.results.code_ablation import SIZE_MATCHED
from experiments.results.interchange import GUESSER, SHUFFLED_QUESTION, of_next, without_order
from experiments.results.measurements import table
from experiments.variants.variants import ModelVariant
from nope_interp.errors import UserError
from nope_interp.models.checkpoints import save_model
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.pretrained.spec import ModelSpec
from nope_interp.tasks.answers import ExampleSource
from nope_interp.tasks.registry import make_answer_task
from nope_interp.training.config import TrainingConfig
from nope_interp.training.train import train
from probes.codes.interchange import MOVABLE

LENGTH = 4
EMBEDDING = Site(0, "resid_pre")


def reversal(steps: int) -> InterventionTask:
    """Reversal of four letters by a small model with learned positions, after so many steps."""
    task = make_answer_task("reversal", training_lengths=[LENGTH], test_lengths=())
    length = task.n_tokens(LENGTH)
    config = TransformerConfig(2, 32, 4, d_vocab=task.d_vocab, n_ctx=length, positions="learned")
    model = HookedTransformer(config).eval()
    if steps:
        how = TrainingConfig(
            steps=steps, batch_size=64, seq_len=length, warmup=50, learning_rate=5e-3
        )
        model = train(config, how, task, show_progress=False)
    source, spec = ExampleSource(task), ModelSpec("nowhere", "cpu")
    variant = ModelVariant("reversal", "trained", model, None, (source,), "learned", spec)
    asked = CompareConfig(
        task="reversal", lengths=(LENGTH, LENGTH), seq_len=length, n_fit=300, n_held_out=100
    )
    return intervention_task_of(asked, variant)


@pytest.fixture(scope="module")
def trained() -> InterventionTask:
    return reversal(600)


CONTEXT = {
    "experiment": "probe",
    "model": "small",
    "variant": "trained",
    "seed": 0,
    "positions": "intact",
    "tokens": "reversal",
    "begin_token": True,
}


def frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows).set_index(["metric", "control"])


def moved(task: InterventionTask) -> pd.DataFrame:
    rows = interchange_rows(task, statistics_at(task, [EMBEDDING]), context={"seed": 0})
    return pd.DataFrame(rows).set_index(["positions", "metric", "control"])


def test_positions_that_ask_lie_between_the_frame_and_the_end() -> None:
    # <begin> a b c d = d c b a: the sign asks for the first letter, and is the frame's.
    assert asking_positions(reversal(0)).tolist() == [6, 7]


@pytest.mark.slow
def test_answers_follow_the_table_of_positions_that_the_model_reads(
    trained: InterventionTask,
) -> None:
    found = moved(trained)
    for code in ("mean residual", "positional vectors"):
        shares = found.loc[of_next(code)]
        assert shares.loc[("towards", ""), "ci_low"] > 0.9
        assert shares.loc[("towards", SIZE_MATCHED), "ci_high"] < 0.2
        assert shares.loc[("net", ""), "ci_low"] > 0.8
    # Taken together the three shares are all answers that count.
    for (_, control), shares in found.drop(index="net", level="metric").groupby(
        level=["positions", "control"]
    ):
        assert shares["value"].sum() == pytest.approx(1), control
    # A smooth trend is not what a learned table holds.
    assert found.loc[(of_next("t"), "towards", ""), "ci_high"] < 0.2
    assert set(found.index.get_level_values("positions")) == {of_next(code) for code in MOVABLE}


@pytest.mark.slow
def test_who_knows_the_order_beats_the_guesser_and_loses_by_the_shuffle(
    trained: InterventionTask,
) -> None:
    found = frame(order_rows(trained, context={}))
    assert found.loc[("accuracy", ""), "value"] > 0.9
    assert found.loc[("above_guesser", ""), "ci_low"] > 0.2
    assert found.loc[("lost_by_shuffle", ""), "ci_low"] > 0.3
    difference = found.loc[("accuracy", ""), "value"] - found.loc[("accuracy", GUESSER), "value"]
    assert found.loc[("above_guesser", ""), "value"] == pytest.approx(difference)


def test_an_untrained_model_knows_no_order_and_follows_nothing() -> None:
    task = reversal(0)
    found = frame(order_rows(task, context={}))
    assert found.loc[("above_guesser", ""), "ci_high"] < 0
    shuffled = found.loc[("accuracy", SHUFFLED_QUESTION), "value"]
    assert found.loc[("accuracy", ""), "value"] == pytest.approx(shuffled, abs=0.05)
    shares = moved(task)
    assert (shares.xs("net", level="metric")["ci_low"] < 0.05).all()


@pytest.mark.slow
def test_a_checkpoint_is_asked_in_two_lines(trained: InterventionTask, tmp_path: Path) -> None:
    assert isinstance(trained.model, HookedTransformer)
    saved = tmp_path / "model.safetensors"
    save_model(trained.model, saved, task="reversal", lengths=(LENGTH, LENGTH))
    found = ni.load(saved).move_positions()
    assert set(found["code"]) == set(MOVABLE)
    best = found.iloc[0]
    assert best["code"] in ("mean residual", "positional vectors")
    assert (best["layer"], best["site"]) == (0, "resid_pre")
    assert best["net_low"] > 0.8
    assert found["net"].is_monotonic_decreasing
    assert best["net"] == pytest.approx(best["towards"] - best["size_matched"])
    np.testing.assert_allclose(found[["towards", "stays", "neither"]].sum(axis=1), 1)


def test_what_has_not_learned_order_is_told_so(tmp_path: Path) -> None:
    rows = table(order_rows(reversal(0), context=CONTEXT))
    sentence = without_order(rows)
    assert sentence is not None
    assert "has not learned order: " in sentence
    own = rows[(rows["metric"] == "accuracy") & (rows["control"] == "")]["value"].item()
    assert f"{own:.0%} of its answers are right" in sentence
    task = make_answer_task("reversal")
    model = HookedTransformer(TransformerConfig(1, 8, 1, d_vocab=task.d_vocab, n_ctx=20))
    saved = save_model(model, tmp_path / "model.safetensors", task="reversal")
    with pytest.raises(UserError, match="has not learned order"):
        ni.load(saved).move_positions()


@pytest.mark.slow
def test_who_has_learned_order_is_judged(trained: InterventionTask) -> None:
    assert without_order(table(order_rows(trained, context=CONTEXT))) is None


def test_the_guesser_crosses_off_what_was_answered() -> None:
    """Of a b b the first answer is b in its guess, the second a or b, the last what is left."""
    tokens = torch.tensor([[9, 1, 2, 2, 8, 2, 2, 1], [9, 1, 2, 2, 8, 2, 1, 2]])
    answer = torch.zeros(2, 8, dtype=torch.bool)
    answer[:, 5:] = True
    question = torch.tensor([False, True, True, True, False, False, False, False])
    np.testing.assert_allclose(_guessed(tokens, answer, question), [1 + 0.5 + 1, 1 + 0.5 + 1])


def test_tasks_whose_answers_say_nothing_of_the_next_position_are_refused() -> None:
    task = make_answer_task("indexing", training_lengths=[4], test_lengths=())
    length = task.n_tokens(4)
    config = TransformerConfig(1, 16, 2, d_vocab=task.d_vocab, n_ctx=length)
    source, spec = ExampleSource(task), ModelSpec("nowhere", "cpu")
    model = HookedTransformer(config)
    variant = ModelVariant("indexing", "trained", model, None, (source,), "none", spec)
    asked = CompareConfig(task="indexing", lengths=(4, 4), seq_len=length, n_fit=200, n_held_out=50)
    with pytest.raises(UserError, match="no two neighbouring positions ask"):
        asking_positions(intervention_task_of(asked, variant))
