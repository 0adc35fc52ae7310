"""Which tokens a code ablation is run on."""

from collections import Counter
from math import factorial, log, prod
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.codes.guessers import guessed_losses
from experiments.codes.order import order_rows
from experiments.codes.task import InterventionTask, intervention_task_of
from experiments.comparison.config import CompareConfig
from experiments.results.task_use import without_order
from experiments.variants.variants import ModelVariant, loaded_variant
from nope_interp.errors import UserError
from nope_interp.models.config import TransformerConfig
from nope_interp.models.losses import sequence_losses
from nope_interp.models.transformer import HookedTransformer
from nope_interp.pretrained.spec import ModelSpec
from nope_interp.tasks.answers import ExampleSource
from nope_interp.tasks.registry import make_answer_task
from tests.huggingface import save_folder, tiny_gpt2, words

SIZES = {"fit": 120, "held_out": 40}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(words(3000))
    return save_folder(tiny_gpt2(), tmp_path / "gpt2")


def test_a_tokenizer_of_more_tokens_than_the_model_knows_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(words(3000))
    folder = save_folder(tiny_gpt2(vocab_size=20), tmp_path / "gpt2")
    text = str(tmp_path / "text.txt")
    how: dict[str, Any] = {"text": text, "seq_len": 16, "n_fit": 120, "n_held_out": 40}
    config = CompareConfig(model=str(folder), **how)
    variant = loaded_variant(config, "cpu", needed=SIZES)
    with pytest.raises(UserError, match="is not in the vocabulary: give ids from 0 to 19"):
        intervention_task_of(config, variant)


def test_pretrained_models_are_held_to_text_behind_their_begin_token(folder: Path) -> None:
    config = CompareConfig(
        model=str(folder),
        text=str(folder.parent / "text.txt"),
        seq_len=16,
        n_fit=120,
        n_held_out=40,
    )
    variant = loaded_variant(config, "cpu", needed=SIZES)
    task = intervention_task_of(config, variant)
    assert task.begin_token
    begin = variant.sources[0].begin_id
    for tokens in (task.split.fit, task.split.held_out):
        assert set(tokens[:, 0].tolist()) == {begin}
        assert begin not in tokens[:, 1:]
    losses = task.losses(task.model, task.split.held_out)
    torch.testing.assert_close(losses, sequence_losses(variant.model, task.split.held_out))
    # Chance is about the words alone, of which there are 56, equally frequent.
    assert task.chance == pytest.approx(torch.tensor(56.0).log().item(), abs=0.25)


def test_chance_on_text_knows_which_word_follows_which(folder: Path) -> None:
    """Where each word has one follower, only the first behind the begin token is a guess."""
    cycle = " ".join(f"w{4 + i % 56}" for i in range(3000))
    (folder.parent / "text.txt").write_text(cycle)
    text = str(folder.parent / "text.txt")
    config = CompareConfig(model=str(folder), text=text, seq_len=16, n_fit=120, n_held_out=40)
    task = intervention_task_of(config, loaded_variant(config, "cpu", needed=SIZES))
    alone = log(56)
    assert len(task.guessed) == len(task.split.held_out)
    # The first of fifteen words costs that, the others little: smoothing from some 40 followers.
    assert alone / 15 < task.chance < alone / 4


def contest_on(name: str, longest: int, d_model: int = 16) -> InterventionTask:
    task = make_answer_task(
        name,
        training_lengths=range(2, longest + 1),
        test_lengths=range(longest + 1, 2 * longest + 1),
    )
    model = HookedTransformer(TransformerConfig(1, d_model, 2, d_vocab=task.d_vocab, n_ctx=64))
    source = ExampleSource(task)
    variant = ModelVariant(
        name, "trained", model, None, (source,), "none", ModelSpec("nowhere", "cpu")
    )
    return intervention_task_of(
        CompareConfig(task=name, seq_len=64, n_fit=200, n_held_out=80), variant
    )


@pytest.mark.parametrize("name", ["lego", "reversal", "indexing", "addition"])
def test_codes_are_taken_away_where_examples_of_a_task_differ(name: str) -> None:
    task = contest_on(name, 4)
    columns = task.split.fit.T.tolist()
    differ = [i for i, column in enumerate(columns) if i and len(set(column)) > 1]
    assert task.numbers().tolist() == differ
    # Some of each is the task's frame.
    assert len(differ) < len(columns) - 1


def test_only_what_is_no_frame_is_scored_and_chance_knows_the_frame() -> None:
    """An answer of LEGO is a sentence of seven words, of which the sign alone is one of two."""
    task = contest_on("lego", 4)
    asked = task.losses.keywords["answer"]  # type: ignore[attr-defined]
    assert asked.sum(dim=1).eq(1).all()
    assert task.chance == pytest.approx(log(2), abs=0.05)


def test_chance_is_what_the_best_guesser_loses() -> None:
    """All orders of a question's letters are alike; frequencies are learned from few examples."""
    task = contest_on("reversal", 4)
    assert task.answer is not None
    orders = [
        factorial(4) / prod(map(factorial, Counter(tokens[asked].tolist()).values()))
        for tokens, asked in zip(task.split.held_out, task.answer, strict=True)
    ]
    assert task.chance == pytest.approx(np.log(orders).mean() / 4, abs=1e-6)

    # At the first position nine of ten are 5, at the second nine of ten are 6.
    draw = np.random.default_rng(0).random((600, 2)) < 0.9
    tokens = torch.tensor(np.where(draw, [5, 6], [7, 7]))
    fit, held_out = tokens[:400], tokens[400:]
    every = torch.ones_like(fit, dtype=torch.bool)
    expected = []
    for i in range(2):
        counts = Counter(fit[:, i].tolist())
        n, k = counts.total(), len(counts)
        expected += [-log(counts[token] / (n + k)) for token in held_out[:, i].tolist()]
    found = guessed_losses(fit, every, held_out, every[:200], d_vocab=10)
    assert found.mean() == pytest.approx(np.mean(expected), abs=1e-5)


@pytest.mark.parametrize("name", ["copy-rsc", "copy-rsc2x"])
def test_who_sees_the_question_knows_one_symbol_however_often_it_is_repeated(name: str) -> None:
    assert contest_on(name, 7).chance == 0


def test_a_position_at_which_no_example_answers_is_guessed_as_any_other() -> None:
    tokens = torch.tensor([[1, 5, 6], [1, 6, 5], [2, 5, 5], [2, 6, 6]])
    answers = torch.tensor([[False, True, False]]).expand(4, 3)
    asked = torch.tensor([[False, True, True]]).expand(4, 3)
    found = guessed_losses(tokens, answers, tokens, asked, d_vocab=8)
    assert found.mean() == pytest.approx(log(2))


@pytest.mark.parametrize(("name", "share"), [("reversal", 3 / 4), ("lego", 0), ("indexing", 0)])
def test_how_much_is_predicted_where_codes_are_taken_away(name: str, share: float) -> None:
    """The first letter of an answer is predicted from the sign before it, the others from letters;
    the only letter that indexing asks for, and LEGO's sign, from words of the frame."""
    assert contest_on(name, 4).coverage == pytest.approx(share)


def test_examples_that_hardly_differ_are_refused() -> None:
    with pytest.raises(UserError, match=r"parity with length 2 differ at 3 positions, not at \d"):
        contest_on("parity", 2)


def test_a_prompt_that_is_drawn_again_and_again_counts_once() -> None:
    """Training held out an eighth of the letters that can be repeated."""
    task = contest_on("copy-rsc", 7)
    for tokens in (task.split.fit, task.split.held_out):
        assert len(tokens) == len(set(map(tuple, tokens.tolist()))) < 80


def test_too_few_different_prompts_are_refused() -> None:
    with pytest.raises(UserError, match=r"of parity with length 5 only 3 differ, not 8: "):
        contest_on("parity", 5)


@pytest.mark.parametrize("word", ["Yes", "No"])
def test_who_always_says_the_same_does_not_know_order(word: str) -> None:
    """Of the prompts that training held out two thirds have one answer, of the others the other."""
    task = contest_on("parity", 8)
    assert isinstance(task.model, HookedTransformer)
    assert task.source is not None
    with torch.no_grad():
        task.model.unembed.weight.zero_()
        task.model.unembed.bias[task.source.tokenizer.encode(word)[0]] = 5.0
    rows = pd.DataFrame(order_rows(task, context={}))
    assert without_order(rows) is not None
