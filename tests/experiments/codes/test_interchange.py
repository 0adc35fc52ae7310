"""Answers that follow a moved position, in a model that reads positions from a table, and in one
that was never trained."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import nope_interp as ni
from experiments.benchmark.task import context, site_of, task_of
from experiments.codes import following
from experiments.codes import interchange as codes_interchange
from experiments.codes.answering import Answers, Asking
from experiments.codes.counterfactual import Counterfactual, counterfactuals
from experiments.codes.following import following_rows, movable
from experiments.codes.guessers import guessed_losses
from experiments.codes.in_depth import Place, statistics_at, stream_sites
from experiments.codes.interchange import DOSES, _Run, interchange_rows, trial_of
from experiments.codes.order import _guessed, order_rows
from experiments.codes.task import InterventionTask, intervention_task_of
from experiments.codes.trial import Trial
from experiments.comparison.config import CompareConfig
from experiments.probing.sites import Site
from experiments.probing.split import Split
from experiments.results.code_ablation import EVERYWHERE, SIZE_MATCHED
from experiments.results.interchange import (
    ADDED_PARTICULAR,
    ASKING,
    GUESSER,
    NET,
    ORDER_DESTROYED,
    PARTICULAR,
    QUESTION,
    RANK,
    SHUFFLED_QUESTION,
    at_dose,
    denoising,
    doses,
    followed,
    noising,
)
from experiments.results.interchange import _guessed as _guessed_share
from experiments.results.measurements import table
from experiments.results.position_use import FALSE_DISCOVERIES, Word
from experiments.results.task_use import judged_on_task, without_order
from experiments.results.worth import WORTH_NAMING
from experiments.variants.variants import ModelVariant
from nope_interp.constructions.planted import N_CTX, plant
from nope_interp.errors import UserError
from nope_interp.interventions.intervene import intervene
from nope_interp.models.checkpoints import save_model
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.pretrained.spec import ModelSpec
from nope_interp.tasks.answers import ExampleSource
from nope_interp.tasks.copying import StringTask
from nope_interp.tasks.dataset import dataset
from nope_interp.tasks.registry import make_answer_task
from nope_interp.training.config import TrainingConfig
from nope_interp.training.train import train
from probes.code_names import HALVES, JUDGED, MEAN_RESIDUAL, SMOOTH, VARIANCE
from probes.codes.interchange import levelled, put_back
from probes.codes.trends import random_functions
from tests.experiments.codes.on_text import CONTEXT as OF_TEXT

LENGTH = 4
EMBEDDING = Site(0, "resid_pre")


def reversal(steps: int, name: str = "reversal") -> InterventionTask:
    """Reversal of four letters, or another task of that length, by a small model with learned
    positions, after so many steps."""
    task = make_answer_task(name, training_lengths=[LENGTH], test_lengths=())
    length = task.n_tokens(LENGTH)
    config = TransformerConfig(2, 32, 4, d_vocab=task.d_vocab, n_ctx=length, positions="learned")
    model = HookedTransformer(config).eval()
    if steps:
        how = TrainingConfig(
            steps=steps, batch_size=32, seq_len=length, warmup=30, learning_rate=1e-2
        )
        model = train(config, how, task, show_progress=False)
    source, spec = ExampleSource(task), ModelSpec("nowhere", "cpu")
    variant = ModelVariant(name, "trained", model, None, (source,), "learned", spec)
    asked = CompareConfig(
        task=name, lengths=(LENGTH, LENGTH), seq_len=length, n_fit=100, n_held_out=60
    )
    return intervention_task_of(asked, variant)


@pytest.fixture(scope="module")
def trained() -> InterventionTask:
    return reversal(250)


CONTEXT = {**OF_TEXT, "tokens": "reversal", "begin_token": True}


def frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows).set_index(["metric", "control"])


def moved(task: InterventionTask) -> pd.DataFrame:
    rows = interchange_rows(
        task, statistics_at(task, [EMBEDDING]), counterfactuals(task), context=CONTEXT
    )
    return table(rows)


@pytest.fixture(scope="module")
def found(trained: InterventionTask) -> pd.DataFrame:
    return moved(trained)


@pytest.mark.slow
def test_answers_follow_the_table_of_positions_that_the_model_reads(found: pd.DataFrame) -> None:
    verdicts = followed(found).set_index(["code", "layer", "moved"])
    for moved in (ASKING, QUESTION):
        # Alone, and through the whole stream.
        for layer in (0, EVERYWHERE):
            use = verdicts.loc[MEAN_RESIDUAL, layer, moved]
            assert use["word"] == Word.USED
            assert use["towards"] > 0.95
            assert use["size_matched"] < 0.2
            assert use["restored"] > 0.95
            assert use["destroyed"] < 0.6
        # The table tells nothing by lengths.
        assert verdicts.loc[VARIANCE, 0, moved]["word"] == Word.NOT_USED


@pytest.mark.slow
def test_moved_through_the_stream_alone_a_trend_is_told_from_others_at_all_of_it(
    trained: InterventionTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[Site]] = []

    def recorded(task: InterventionTask, statistics: Any, moved: Any, **how: Any) -> list[Any]:
        asked.append(set(statistics))
        return []

    monkeypatch.setattr(following, "counting_rows", recorded)
    rows = table(following_rows(trained, movable(trained), [], context=CONTEXT))
    assert asked == [set(stream_sites(trained))]
    # No single site is moved at, for all that.
    assert set(rows.loc[rows["metric"] == NET, "layer"]) == {EVERYWHERE}


def test_shares_are_of_all_answers_that_count(found: pd.DataFrame) -> None:
    shares = found[found["metric"].isin(["towards", "stays", "neither"])]
    for where, of in shares.groupby(["positions", "layer", "control"]):
        assert of["value"].sum() == pytest.approx(1), where


def test_answers_that_were_wrong_before_are_counted_neither_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a model that is right of 30% of answers. Nothing moves: those that were right all stay."""
    monkeypatch.setattr(codes_interchange, "JUDGED", (VARIANCE,))
    planted = plant("variance")
    task = task_of(planted, 0)
    tokens = task.split.held_out[:20]
    task = replace(task, split=Split(task.split.fit[:60], tokens))
    (name,) = planted.sites
    statistics = statistics_at(task, [site_of(name)])
    among, still = torch.arange(1, N_CTX), torch.arange(N_CTX - 1)
    own = torch.zeros_like(tokens)
    own[:, 1:] = planted.answered(tokens)
    asked = own > 0
    other = torch.where(asked, own % (N_CTX - 1) + 1, 0)
    elsewhere = Counterfactual("positions", among, still, still, own, other, asked, asked)
    columns = context(planted, 0)
    rows = interchange_rows(task, statistics, [elsewhere], context=columns, through_stream=False)
    found = table(rows).set_index(["positions", "metric", "control"])["value"]
    assert found[noising(VARIANCE, "positions"), "stays", ""] == 1

    def right(changes: dict[str, Any]) -> torch.Tensor:
        with torch.no_grad(), intervene(planted.model, changes, among):
            return asked & (planted.model(tokens).argmax(dim=-1) == own)

    (codes,), clean = statistics.values(), right({})
    base = levelled(codes)
    shares = [
        float((clean & right({name: change})).sum() / clean.sum())
        for change in (base, put_back(codes, VARIANCE, still, base))
    ]
    told = denoising(VARIANCE, "positions"), "restored"
    assert found[*told, ORDER_DESTROYED] == pytest.approx(shares[0])
    assert found[*told, ""] == pytest.approx(shares[1])


@pytest.mark.slow
def test_effects_are_net_of_the_control_and_of_a_run_where_nothing_is_moved(
    found: pd.DataFrame,
) -> None:
    by = found.set_index(["positions", "layer", "metric", "control"])["value"].sort_index()
    for layer in (0, EVERYWHERE):
        there = by.loc[noising(MEAN_RESIDUAL, QUESTION), layer]
        own, control = (there.xs(side, level="control") for side in ("", SIZE_MATCHED))
        assert own["net"] == pytest.approx(own["towards"] - control["towards"])
        assert own["broken"] == pytest.approx(own["neither"] - control["neither"])
        back = by.loc[denoising(MEAN_RESIDUAL, QUESTION), layer]
        restored = back["restored"]
        assert back["net", ""] == pytest.approx(restored[""] - restored[SIZE_MATCHED])
        assert back["beyond", ""] == pytest.approx(restored[""] - restored[ORDER_DESTROYED])


@pytest.mark.slow
def test_a_code_that_passes_is_ranked_among_as_many_draws_as_that_needs(
    found: pd.DataFrame,
) -> None:
    ranks = found[found["metric"] == RANK].set_index(["positions", "layer"])
    best = ranks.loc[noising(MEAN_RESIDUAL, ASKING), 0]
    assert best["value"] == pytest.approx(1 / (1 + best["n"]))
    assert (ranks["value"] > 0).all()
    # Two sets of positions, two sites, four codes, two directions.
    passing = (ranks["value"] <= best["value"]).sum()
    assert best["n"] >= 32 / FALSE_DISCOVERIES / passing
    nets = found[found["metric"] == NET].set_index(["positions", "layer"])["ci_low"]
    undrawn = ranks[ranks["n"] == 0]
    assert len(undrawn) > 0
    assert (nets.loc[undrawn.index] < WORTH_NAMING).all()


def test_a_trend_is_held_against_random_functions_and_what_it_adds_against_what_they_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What follows each function is made up: those drawn do as little as those left do much."""
    task = reversal(0)
    one, codes = counterfactuals(task)[1], statistics_at(task, [EMBEDDING])
    run, place = _Run(task, one, codes), Place(0, "resid_pre", (EMBEDDING,))
    drawn: list[tuple[Tensor, Tensor]] = []

    def recorded(*how: Any) -> tuple[Tensor, Tensor]:
        drawn.append(random_functions(*how))
        return drawn[-1]

    def follows(asking: Asking, code: Tensor) -> np.ndarray:
        (share,) = [
            low + number / 100
            for number, both in enumerate(drawn)
            for low, of in zip((0.1, 0.5), both, strict=True)
            if of is code
        ]
        return asking.n * (share if asking is run._noising else share / 2)

    monkeypatch.setattr(codes_interchange, "random_functions", recorded)
    monkeypatch.setattr(codes_interchange, "_following", follows)
    monkeypatch.setattr(_Run, "_moves", lambda self, code, sites: code)
    monkeypatch.setattr(_Run, "_put_back", lambda self, code, base: code)

    def trials(asking: Asking, *shares: float) -> dict[str, Trial]:
        found = {}
        for half, share in zip(HALVES, shares, strict=True):
            found[half] = trial_of(asking, asking.answers({}), {}, {}, (1.0,), 0)
            followed = asking.n * share
            found[half].__dict__["own"] = [Answers(followed, followed, followed)]
        return found

    def rows(trend: float, needed: bool) -> dict[tuple[str, str], float]:
        there, back = trials(run._noising, trend, 0.2), trials(run._denoising, trend, 0.05)
        found = run._beyond_random(place, CONTEXT, {}, there, back, needed)
        return {(row["positions"], row["metric"]): row["value"] for row in found}

    noised, denoised = (of(SMOOTH, QUESTION) for of in (noising, denoising))
    # Eight pairs, of which each does a hundredth more than the one before.
    some, left = 0.1 + 0.035, 0.5 + 0.035
    assert rows(0.8, True) == pytest.approx(
        {
            (noised, PARTICULAR): 0.8 - some,
            (noised, ADDED_PARTICULAR): left - 0.2,
            (denoised, PARTICULAR): 0.8 - some / 2,
            (denoised, ADDED_PARTICULAR): left / 2 - 0.05,
        }
    )
    shapes = {tuple(tuple(of.shape) for of in both) for both in drawn}
    assert shapes == {((LENGTH, 2), (LENGTH, 1))}
    # Neither stands there where it can change nothing.
    assert set(rows(0.8, False)) == {(noised, PARTICULAR), (denoised, PARTICULAR)}
    assert set(rows(0.09, True)) == {(noised, ADDED_PARTICULAR), (denoised, ADDED_PARTICULAR)}


@pytest.mark.slow
def test_small_doses_do_less(found: pd.DataFrame) -> None:
    own = found[(found["positions"] == noising(MEAN_RESIDUAL, ASKING)) & (found["control"] == "")]
    of = own.set_index(["layer", "metric"])["value"]
    assert of[0, "towards"] > 0.5
    shares = [of[0, at_dose(dose)] for dose in DOSES[:-1]] + [of[0, "towards"]]
    assert shares == sorted(shares)
    assert shares[0] < 0.1
    # The table has the same, beside the control's.
    told = doses(found).set_index(["code", "layer", "moved"])
    told = told.loc[(MEAN_RESIDUAL, 0, ASKING)].set_index("dose")
    assert list(told.index) == list(DOSES)
    np.testing.assert_allclose(told["towards"], shares)
    assert told.loc[1.0, "towards_low"] > told.loc[1.0, "size_matched"]


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


def test_an_untrained_model_knows_no_order() -> None:
    task = reversal(0)
    found = frame(order_rows(task, context={}))
    assert found.loc[("above_guesser", ""), "ci_high"] < 0
    shuffled = found.loc[("accuracy", SHUFFLED_QUESTION), "value"]
    assert found.loc[("accuracy", ""), "value"] == pytest.approx(shuffled, abs=0.05)


@pytest.mark.slow
def test_a_checkpoint_is_asked_in_two_lines(trained: InterventionTask, tmp_path: Path) -> None:
    assert isinstance(trained.model, HookedTransformer)
    saved = tmp_path / "model.safetensors"
    save_model(trained.model, saved, task="reversal", lengths=(LENGTH, LENGTH))
    loaded = ni.load(saved)
    found = loaded.move_positions(layers=[0], hooks=(), n_fit=100, n_held_out=60)
    assert set(found["code"]) == set(JUDGED)
    best = found.iloc[0]
    assert (best["code"], best["word"]) == (MEAN_RESIDUAL, Word.USED)
    assert best["net_low"] > 0.8
    assert found["net"].is_monotonic_decreasing
    assert best["net"] == pytest.approx(best["towards"] - best["size_matched"])
    moved = found.dropna()
    np.testing.assert_allclose(moved[["towards", "stays", "neither"]].sum(axis=1), 1)
    for by, said in ((0, "give how many positions to move by"), (9, "no answer of these examples")):
        with pytest.raises(UserError, match=said):
            loaded.move_positions(by=by)
    with pytest.raises(
        UserError, match=r"19 different examples of .* are too few to move codes in"
    ):
        loaded.move_positions(n_held_out=19)


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


def test_where_order_adds_nothing_no_model_is_said_to_lack_it() -> None:
    """Who sees that one symbol is repeated copies it without order."""
    rows = table(order_rows(reversal(0, "copy-rsc"), context=CONTEXT))
    guesser = rows[(rows["metric"] == "accuracy") & (rows["control"] == GUESSER)]
    assert guesser["value"].item() == 1
    assert without_order(rows) is not None
    assert judged_on_task(rows) == []
    (judged,) = judged_on_task(table(order_rows(reversal(0), context=CONTEXT)))
    assert judged.lacks_order


@pytest.mark.slow
def test_who_has_learned_order_is_judged(trained: InterventionTask) -> None:
    assert without_order(table(order_rows(trained, context=CONTEXT))) is None


def test_a_model_that_is_never_right_has_no_answers_that_rest_on_order() -> None:
    rows = table(order_rows(reversal(0), context=CONTEXT))
    own = (rows["metric"] == "accuracy") & (rows["control"] == "")
    assert _guessed_share(rows.assign(value=rows["value"].mask(own, 0.0))) == 1


def test_the_guesser_crosses_off_what_was_answered() -> None:
    """Of a b b the first answer is b in its guess, the second a or b, the last what is left."""
    tokens = torch.tensor(
        [[9, 1, 2, 2, 8, 2, 2, 1], [9, 2, 1, 2, 8, 2, 1, 2], [9, 2, 2, 1, 8, 1, 2, 2]]
    )
    answer = torch.zeros(3, 8, dtype=torch.bool)
    answer[:, 5:] = True
    for anew in (False, True):  # one answer has no gap
        found = _guessed(tokens, answer, anew=anew)
        np.testing.assert_allclose(found, [1 + 0.5 + 1, 1 + 0.5 + 1, 0 + 1 + 1])
    # Each of the three orders has probability a third: 2/3, 1/2 and 1, or 1/3, 1 and 1.
    found = guessed_losses(tokens, answer, tokens, answer, 10)
    torch.testing.assert_close(found, torch.full((3,), math.log(3) / 3))


@pytest.mark.parametrize(("name", "rounds"), [("copy-cmc", 1), ("copy-cmc2x", 2)])
def test_who_answers_twice_has_the_whole_question_twice(name: str, rounds: int) -> None:
    """Behind the token between both rounds a guesser knows as much as at first."""
    task = StringTask(name, training_lengths=[4], test_lengths=[6])
    examples = dataset(task, 200, split="validation", seed=0, lengths=[4])[4]
    tokens = examples.tokens[:, : int(examples.length.min())]
    answer = examples.answer[:, : tokens.shape[1]] & (tokens != tokens[0]).any(dim=0)
    crossed, anew = (_guessed(tokens, answer, anew=anew).sum() for anew in (False, True))
    assert crossed > 0
    assert anew == pytest.approx(rounds * crossed)
