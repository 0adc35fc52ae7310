"""Learned subspaces, in models of which it is known what holds the position, and in how many
dimensions."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import nope_interp as ni
from experiments.benchmark.task import site_of, task_of
from experiments.codes import aligned, alignment
from experiments.codes.aligned import alignment_rows, exam_of
from experiments.codes.alignment import (
    FOLDS,
    FUNCTIONS,
    Answered,
    Exam,
    exchanged,
    learned_subspace,
    told_others,
)
from experiments.codes.variable import NONE, UNDECIDED, lines, variable_of
from experiments.probing.split import Split
from nope_interp.constructions.planted import N_CTX, Planted
from nope_interp.constructions.planted.plants import plant
from nope_interp.errors import UserError
from nope_interp.models.checkpoints import save_model
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.registry import make_answer_task
from probes.codes.trends import TRENDS
from tests import typecheck
from tests.experiments.codes.test_counterfactual import untrained

SITE = site_of("blocks.0.hook_resid_post")


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """In planted models the search begins close to where it ends."""
    monkeypatch.setattr(aligned, "_STEPS", 20)


def exam_on(planted: Planted) -> Exam:
    return Exam(torch.arange(1, N_CTX), planted.logits, planted.answers)


def found(kind: str, rank: int) -> pd.Series:
    planted = plant(kind)
    task = task_of(planted, 0)
    # Of few sequences the interval is the wider.
    few = replace(task, split=Split(task.split.fit[:60], task.split.held_out[:16]))
    (row,) = alignment_rows(few, exam_on(planted), [SITE], [rank])
    return pd.Series(row)


def test_one_direction_holds_what_a_counter_has_made_of_its_count() -> None:
    # Behind the MLP that inverts 1/m stands the position itself.
    row = found("counting", 1)
    assert row["followed"] == 1
    assert row["untrained"] < 0.1
    assert row["net_low"] > 0.9
    # Least squares on the position has found it before any search.
    assert row["regressed"] > 0.9


def test_few_dimensions_do_not_hold_vectors_of_many() -> None:
    # Sixteen of them do.
    assert found("few dimensions", 4)["net_high"] < 0.2


@given(n=st.integers(2 * FOLDS, 20), kept=st.booleans(), seed=st.integers(0, 2**32))
def test_each_position_is_told_to_be_another_of_its_kind(n: int, kept: bool, seed: int) -> None:
    positions = torch.arange(3, 3 + 2 * n, 2)
    among = (torch.arange(1, n + 1) % FOLDS == 0) == kept
    told = told_others(positions, among, torch.Generator().manual_seed(seed))
    assert torch.equal(told[among].sort().values, positions[among])
    assert (told[among] != positions[among]).all()
    assert torch.equal(told[~among], positions[~among])


@given(n=st.integers(2 * FOLDS, 20))
def test_each_position_is_kept_once(n: int) -> None:
    exam = Exam(torch.arange(n), lambda model, tokens: tokens, lambda tokens, told: tokens)
    folds = torch.stack([exam.kept(fold) for fold in range(FOLDS)])
    assert (folds.sum(dim=0) == 1).all()


def test_the_whole_space_is_the_other_activation_itself() -> None:
    # What a model reads and what it says there lies in the site alone: no later layer mixes.
    planted = plant("positional vectors")
    exam, tokens = exam_on(planted), planted.sequences(4, 0)
    told = told_others(exam.positions, exam.kept(), torch.Generator().manual_seed(0))
    site = site_of(f"blocks.{planted.model.config.n_layers - 1}.hook_resid_post")
    whole = torch.eye(planted.model.config.d_model)
    clean = planted.logits(planted.model, tokens)
    changed = exchanged(exam, planted.model, site, tokens, told, whole)
    other = clean.roll(1, dims=0)[:, told - 1]
    torch.testing.assert_close(changed[:, exam.kept()], other[:, exam.kept()], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(changed[:, ~exam.kept()], clean[:, ~exam.kept()])


@pytest.mark.parametrize("fold", range(FOLDS))
def test_what_is_answered_at_kept_positions_is_not_learned_on(fold: int) -> None:
    """Other answers there, and the subspace has the same bits; nor is one of them told another."""
    planted = plant("counting")
    exam, tokens = exam_on(planted), planted.sequences(24, 0)
    kept, asked = exam.kept(fold), []

    def misled(tokens: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
        asked.append(told)
        right = planted.answers(tokens, told)
        return torch.where(kept, (right + 1) % (N_CTX - 1), right)

    found = [
        learned_subspace(
            one, planted.model, SITE, tokens, torch.Generator().manual_seed(0), steps=2, seen=~kept
        )
        for one in (exam, replace(exam, answers=misled))
    ]
    assert torch.equal(*found)
    assert len(asked) == 2
    assert all(torch.equal(told[kept], exam.positions[kept]) for told in asked)
    assert all((told[~kept] != exam.positions[~kept]).all() for told in asked)


def test_right_answers_that_can_follow_are_judged_where_either_position_was_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted by hand, of every pair of positions, in each fold."""
    task = untrained("reversal", 8)
    n, generator = len(task.split.held_out), torch.Generator().manual_seed(0)
    positions = torch.arange(10, 17)
    pairs = [(torch.rand(n, 7, 7, generator=generator) < 0.5).numpy() for _ in range(2)]
    right = torch.rand(n, 7, generator=generator) < 0.5
    said = torch.stack((~right, right), dim=-1).float()
    exam = Exam(positions, lambda *_: said, lambda tokens, told: torch.ones(n, 7).long())

    def learned(*_: object, **how: int) -> torch.Tensor:
        return torch.eye(16)[:, : how["rank"]]

    def told_so(*given: object) -> list[np.ndarray]:
        told = torch.searchsorted(positions, given[-2])
        return [of[:, range(7), told] for of in pairs]

    monkeypatch.setattr(aligned, "learned_subspace", learned)
    monkeypatch.setattr(alignment, "followed", told_so)
    monkeypatch.setattr(aligned, "variable_of", lambda *_: {})
    (row,) = alignment_rows(task, exam, [SITE], [1])
    follows, could = 0, 0
    for kept in (exam.kept(fold).tolist() for fold in range(FOLDS)):
        for here, there in np.ndindex(7, 7):
            if here != there and (kept[here] or kept[there]):
                counted = pairs[1][:, here, there] & right[:, here].numpy()
                follows += (pairs[0][:, here, there] & counted).sum()
                could += counted.sum()
    assert row["followed"] == pytest.approx(follows / could, rel=1e-12)


@pytest.mark.parametrize(("name", "first", "sign"), [("reversal", 1, 9), ("copy-cmc", 2, 10)])
def test_a_position_told_to_be_another_asks_for_the_symbol_there(
    name: str, first: int, sign: int
) -> None:
    task = untrained(name, 8)
    exam, tokens = exam_of(task), task.split.held_out
    # <begin> a ... h = h ... a: the sign asks for the first symbol, and is the frame's.
    assert exam.positions.tolist() == list(range(sign + 1, sign + 8))
    question = tokens[:, first:sign]
    question = question if name == "copy-cmc" else question.flip(1)
    assert torch.equal(exam.answers(tokens, exam.positions), question[:, 1:])
    told = exam.positions.flip(0)
    assert torch.equal(exam.answers(tokens, told), question[:, 1:].flip(1))
    assert isinstance(task.model, HookedTransformer)
    every = task.model(tokens)
    torch.testing.assert_close(exam.logits(task.model, tokens), every[:, exam.positions])


def test_who_has_few_or_no_such_positions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    with pytest.raises(UserError, match=r"3 positions ask for a symbol.*7 symbols or more"):
        alignment_rows(few := untrained("reversal"), exam_of(few), [SITE], [1])
    with pytest.raises(UserError, match="give a model of reversal, copy-cmc or reverse-mc"):
        exam_of(untrained("sort-single", 8))
    task = untrained("reversal", 8)
    # Of seven positions four are learned on where three are kept: centred, they tell three numbers.
    for ranks in ([], [0], [1, 4], [1.5], [1.0], 2):
        with pytest.raises(UserError, match=r"ranks are .*: give a list of .* 1 to 3, .* 4 positi"):
            alignment_rows(task, exam_of(task), [SITE], ranks)


def reader_of_one_number(symbols: int) -> HookedTransformer:
    """Reversal by hand: an asking position holds its number, a question's symbol its place.

    Position p asks for the symbol at q = 2 n + 1 - p: of all keys the one nearest to that, by -(q -
    (2 n + 1 - p))^2, of which p's own square is the same for all.
    """
    task = make_answer_task("reversal", training_lengths=[symbols], test_lengths=())
    d, n_ctx = task.d_vocab, task.n_tokens(symbols)
    number, place, square, one = range(2 * d, 2 * d + 4)
    bare = {"normalization": "none", "attn_only": True, "attn_scale": 1.0}
    config = TransformerConfig(1, 2 * d + 4, 1, d, n_ctx, positions="learned", **bare)
    model = HookedTransformer(config).eval()
    p, attention = torch.arange(n_ctx), model.blocks[0].attn
    question = (p >= 1) & (p <= symbols)
    with torch.no_grad():
        for weights in model.parameters():
            weights.zero_()
        model.W_E[:, :d] = torch.eye(d)
        model.W_E[:, one] = 1
        table = model.positions.table
        table[:, number] = torch.where(question, 0, p)
        table[:, place] = torch.where(question, p, 0)
        table[:, square] = torch.where(question, p.square(), 1000)
        # 2 q (2 n + 1 - p) - q^2, sharpened.
        attention.W_Q[0, number, 0], attention.W_Q[0, one, 0] = -20, 20 * (2 * symbols + 1)
        attention.W_K[0, place, 0], attention.W_K[0, square, 1] = 1, -10
        attention.W_Q[0, one, 1] = 1
        attention.W_V[0, :d, :d] = attention.W_O[0, :d, d : 2 * d] = torch.eye(d)
        model.W_U[d : 2 * d] = 20 * torch.eye(d)
    return model


def test_a_checkpoint_is_asked_which_dimensions_hold_its_positions(tmp_path: Path) -> None:
    saved = tmp_path / "model.safetensors"
    save_model(reader_of_one_number(8), saved, task="reversal", lengths=(8, 8))
    how = {"layers": [0], "hooks": ("resid_pre",), "n_fit": 100, "n_held_out": 30}
    (row,) = ni.load(saved).align_positions(ranks=(1,), **how).to_dict("records")
    assert (row["layer"], row["site"], row["rank"]) == (0, "resid_pre", 1)
    # The number that is asked by is one direction, which least squares finds.
    assert row["regressed"] == row["followed"] == 1
    assert row["untrained"] < 0.2
    # Of seven positions a constant answer is right for one, and where symbols recur.
    assert row["constant"] == pytest.approx(1 / 7, abs=0.04)
    assert row["net"] == pytest.approx(1 - max(row["untrained"], row["constant"]))
    assert "shorter" not in row  # trained on one length alone
    assert 0.6 < row["net_low"] <= row["net"] <= row["net_high"]
    # And it is the position itself. But over two later positions log m tells as much as t.
    assert row["later"] == row["told t"] == row["told log m"] == 1
    assert row["variable"] == UNDECIDED


def test_a_model_of_text_is_refused() -> None:
    with pytest.raises(UserError, match="models of ours that learned a task"):
        ni.load().align_positions()


def teller(function: Callable[[torch.Tensor], torch.Tensor], n: int) -> HookedTransformer:
    """Says at every position which one it is, by a number that is this function of it.

    The logit of position j is -(number - f(j))^2, less the number's own square, sharpened.
    """
    bare = {"normalization": "none", "attn_only": True}
    config = TransformerConfig(1, 8, 1, n, n, positions="learned", **bare)
    model = HookedTransformer(config).eval()
    f = function(torch.arange(n) + 1.0)
    with torch.no_grad():
        for weights in model.parameters():
            weights.zero_()
        # Content varies in other directions.
        model.W_E[:, 2:] = torch.randn(n, 6, generator=torch.Generator().manual_seed(0))
        model.W_E[:, 1] = 1
        model.positions.table[:, 0] = f
        model.W_U[0], model.W_U[1] = 1e4 * 2 * f, -1e4 * f.square()
    return model


def told_by_teller(
    function: Callable[[torch.Tensor], torch.Tensor], n: int, rank: int = 1
) -> dict[str, Any]:
    site = site_of("blocks.0.hook_resid_pre")
    model = teller(function, n)
    tokens = torch.randint(n, (80, n), generator=torch.Generator().manual_seed(1))
    exam = Exam(
        torch.arange(n),
        lambda model, tokens: model(tokens),
        lambda tokens, told: told.expand(len(tokens), -1),
    )
    own = Answered.by(model, exam, tokens[:16])
    assert own.right.all()
    task = replace(task_of(plant("counting"), 0), model=model, split=Split(tokens, tokens[:16]))
    return variable_of(task, own, model, site, rank, 0)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_function_that_a_model_tells_position_by_is_named(function: str) -> None:
    # Least squares on as many functions as the rank finds the direction.
    rank = FUNCTIONS.index(function) + 1
    found = told_by_teller(lambda m: TRENDS[function](m, 12), 12, rank)
    assert found["later"] == found[f"told {function}"] == 1
    assert max(found[f"told {name}"] for name in FUNCTIONS if name != function) < 0.8
    assert found["variable"] == function


@pytest.mark.parametrize(("power", "word"), [(0.7, NONE), (1.2, UNDECIDED)])
def test_what_is_followed_by_less_than_the_activations_themselves_is_not_named(
    power: float, word: str
) -> None:
    found = told_by_teller(lambda m: m**power, 12)
    assert found["later"] > 0.9
    # Told by one of the four, answers are right now and then, as a constant answer is.
    assert max(found[f"told {name}"] for name in FUNCTIONS) <= 0.6
    assert found["later constant"] == pytest.approx(0.25, abs=0.02)
    assert found["variable"] == word


def test_where_nothing_follows_nothing_is_said() -> None:
    planted = plant("positional vectors")
    task = task_of(planted, 0)
    few = replace(task, split=Split(task.split.fit[:60], task.split.held_out[:16]))
    own = Answered.by(planted.model, exam_on(planted), few.split.held_out)
    assert variable_of(few, own, planted.model, SITE, 1, 0)["variable"] == UNDECIDED
    # Another function than the four is followed, and none of them.
    found = told_by_teller(lambda m: (m - 6).abs() + 0.1 * m, 12, rank=4)
    assert found["later"] > 0.9
    assert found["variable"] == NONE


def test_functions_are_fitted_where_they_are_told_to_be() -> None:
    exam = Exam(torch.arange(3, 12), lambda model, tokens: tokens, lambda tokens, told: tokens)
    fitted = torch.arange(9) < 6
    for name, line in lines(torch.randn(9, 4).double(), exam, fitted).items():
        f = TRENDS[name](exam.positions.double() + 1, 12)
        # A line in the space of activations, along the function.
        slope = (line[1] - line[0]) / (f[1] - f[0])
        torch.testing.assert_close(line, line[0] + (f - f[0])[:, None] * slope)
    means = TRENDS["log m"](exam.positions.double() + 1, 12)[:, None].repeat(1, 4)
    told = means.clone()
    told[~fitted] += 1  # what the activations are at later positions has no part in it
    torch.testing.assert_close(lines(told, exam, fitted)["log m"], means)


def test_the_best_constant_answer_is_counted_by_hand() -> None:
    n, generator = 16, torch.Generator().manual_seed(0)
    positions = torch.arange(7)
    symbols = torch.randint(5, (n, 7), generator=generator)
    right = torch.rand(n, 7, generator=generator) < 0.7
    exam = Exam(positions, lambda model, tokens: tokens, lambda tokens, told: tokens[:, told])
    folds = [exam.kept(fold) for fold in range(FOLDS)]
    judges = [lambda by, kept=kept: kept | kept.roll(-by) for kept in folds]
    found = Answered(exam, symbols, right.numpy()).constant(judges)
    totals = []
    for p in range(7):  # one for all folds
        follows = could = 0
        for kept, s, here, there in product(folds, range(n), range(7), range(7)):
            counts = right[s, here] and (kept[here] or kept[there])
            if here != there and counts and symbols[s, here] != symbols[s, there]:
                could += 1
                follows += int(symbols[s, p] == symbols[s, there])
        totals.append(follows)
    assert found[:, 0].sum() == max(totals)
    assert found[:, 1].sum() == could


def test_a_subspace_that_holds_the_position_holds_it_in_shorter_examples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted = plant("counting")
    task = task_of(planted, 0)
    few = replace(task, split=Split(task.split.fit[:60], task.split.held_out[:16]))
    shorter = Exam(
        torch.arange(1, 12),
        lambda model, tokens: planted.logits(model, tokens)[:, :11],
        planted.answers,
    )
    monkeypatch.setattr(aligned, "exam_of", lambda task: shorter)
    (row,) = alignment_rows(few, exam_on(planted), [SITE], [1], shorter=[few])
    # All follow; of eleven positions a constant answer is right for one.
    assert row["shorter"] == pytest.approx(1 - 1 / 11, abs=1e-3)


def test_shorter_examples_are_judged_where_the_model_was_trained_on_some(tmp_path: Path) -> None:
    saved = tmp_path / "model.safetensors"
    save_model(reader_of_one_number(8), saved, task="reversal", lengths=(7, 8))
    how = {"layers": [0], "hooks": ("resid_pre",), "n_fit": 100, "n_held_out": 30}
    (row,) = ni.load(saved).align_positions(ranks=(1,), **how).to_dict("records")
    # The model reverses eight symbols alone: of seven, what it says right at all is by chance.
    assert row["shorter"] < 0.5 < row["followed"]
    assert row["shorter_low"] <= row["shorter"] <= row["shorter_high"]
