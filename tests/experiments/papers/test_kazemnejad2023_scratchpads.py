"""Scratchpads: answers behind wrong steps, choices that noise does not move, a run small enough."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.papers.config import ReproduceConfig
from experiments.papers.kazemnejad2023 import scratchpads as scratchpads
from experiments.papers.kazemnejad2023.presets import (
    FORMATS,
    FULL,
    PLAIN,
    PRESETS,
    Scratchpads,
)
from experiments.papers.kazemnejad2023.scratchpads import (
    best_less_worst,
    right_answers,
    scratchpad_findings,
    smallest_gains,
    trained_to_write,
)
from experiments.results.findings import Findings
from experiments.runs.cells import Cells
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.answers import AnswerTask
from nope_interp.tasks.dataset import dataset
from nope_interp.tasks.examples import Examples
from nope_interp.tasks.registry import make_answer_task
from nope_interp.tasks.scratchpad import SCRATCHPAD_PARTS, without_steps
from nope_interp.training.config import TrainingConfig
from nope_interp.training.exact_match import exact_matches
from nope_interp.training.train import train

# ---------------------------------------------------------------- choices on the other seeds


def test_noise_gives_nothing_on_average() -> None:
    """Where formats and tasks differ by chance alone; the plain extremes are far from 0."""
    generator = np.random.default_rng(0)
    least, naive, spreads, naive_spreads = [], [], [], []
    for _ in range(400):
        gains = generator.normal(size=(3, 4))
        counted = generator.random((3, 4)) < 0.9
        found, _ = smallest_gains(gains, counted)
        least.extend(found)
        naive.append(gains.mean(axis=0).min())
        accuracy = generator.normal(size=(3, 2, 4))
        spread, chosen = best_less_worst(accuracy, generator.random((3, 2, 4)) < 0.9)
        spreads.extend(spread[chosen])
        naive_spreads.append(np.ptp(accuracy.mean(axis=0), axis=-1).mean())
    assert len(least) > 1000
    assert len(spreads) > 2000
    # Four standard errors of means of variables of variance 1 and 2.
    assert abs(np.mean(least)) < 4 / np.sqrt(1000)
    assert abs(np.mean(spreads)) < 4 * np.sqrt(2 / 2000)
    assert np.mean(naive) < -0.4
    assert np.mean(naive_spreads) > 0.8


def test_planted_differences_are_found() -> None:
    generator = np.random.default_rng(1)
    noise = 0.01 * generator.normal(size=(3, 3))
    found, tasks = smallest_gains(np.array([0.3, -0.4, 0.1]) + noise, np.ones((3, 3), bool))
    assert tasks == [1, 1, 1]
    assert found == pytest.approx((-0.4 + noise)[:, 1])
    planted = np.array([[0.2, 0.9, 0.5], [0.7, 0.7, 0.7]])
    accuracy = np.broadcast_to(planted, (3, 2, 3)).copy()
    spreads, chosen = best_less_worst(accuracy, np.ones((3, 2, 3), bool))
    assert chosen.all()
    assert spreads == pytest.approx(np.array([[0.7, 0.0]] * 3))


def test_what_did_not_learn_is_neither_chosen_nor_measured() -> None:
    gains = np.array([[0.0, -0.5, -9.0], [0.1, -0.3, -9.0], [0.2, -0.1, -9.0]])
    counted = np.array([[True, True, False], [True, True, True], [True, False, False]])
    found, tasks = smallest_gains(gains, counted)
    # The third task has one seed alone, the third seed one task: nothing to choose from there.
    assert tasks == [1, 1]
    assert found == pytest.approx([-0.5, -0.3])
    spreads, chosen = best_less_worst(gains[:, None], counted[:, None])
    assert chosen[:, 0].tolist() == [True, True, False]
    assert spreads[:, 0] == pytest.approx([0.5, 0.4, 0.0])
    none = smallest_gains(gains, np.zeros((3, 3), bool))
    assert len(none[0]) == 0


# ---------------------------------------------------------------- right answers


@pytest.fixture(scope="module")
def half_trained() -> tuple[HookedTransformer, AnswerTask]:
    task = make_answer_task(
        "parity",
        training_lengths=range(2, 4),
        test_lengths=range(4, 5),
        scratchpad=frozenset({"output"}),
    )
    config = TransformerConfig(1, 32, 2, d_vocab=task.d_vocab, n_ctx=task.n_tokens(4))
    training = TrainingConfig(
        steps=120, batch_size=32, seq_len=task.n_tokens(3), learning_rate=5e-3
    )
    return train(config, training, task, show_progress=False), task


def test_an_answer_is_right_whatever_the_steps_say(
    half_trained: tuple[HookedTransformer, AnswerTask],
) -> None:
    """Against every prompt decoded on its own."""
    model, task = half_trained
    found = []
    for examples in (
        *dataset(task, 24, split="train", seed=2).values(),
        *dataset(task, 24, split="test", seed=2).values(),
    ):
        right = right_answers(model, task, examples)
        assert right.tolist() == _decoded(model, task, examples)
        exact = exact_matches(model, examples)
        assert (right | ~exact).all()
        found.append(torch.stack([right, exact], dim=1))
    # All that can come did come: right, right behind wrong steps, and wrong.
    assert len(torch.cat(found).unique(dim=0)) == 3


def _decoded(model: HookedTransformer, task: AnswerTask, examples: Examples) -> list[bool]:
    found = []
    texts = [answer for _, answer in task.text(examples)]
    for tokens, prompt, text in zip(examples.tokens, examples.prompt_length, texts, strict=True):
        written = model.generate(tokens[None, :prompt], len(tokens) - int(prompt))[0, prompt:]
        words, end, _ = task.tokenizer.decode(written.tolist()).partition("<end>")
        wanted = without_steps(text)
        found.append(end != "" and words.rstrip().endswith((f"Thus, {wanted}", wanted)))
    return found


def test_without_steps_the_whole_answer_has_to_be_right() -> None:
    """Prompts of several lengths, and a model that answers nothing right."""
    task = make_answer_task("addition", training_lengths=range(1, 3), test_lengths=range(3, 4))
    model = HookedTransformer(
        TransformerConfig(1, 16, 2, d_vocab=task.d_vocab, n_ctx=task.n_tokens(3))
    )
    [examples] = dataset(task, 20, split="test", seed=0).values()
    assert len(examples.prompt_length.unique()) > 1
    assert torch.equal(right_answers(model, task, examples), exact_matches(model, examples))


# ---------------------------------------------------------------- presets


def test_presets_name_tasks_and_formats_that_there_are() -> None:
    compared = {name: preset.scratchpads for name, preset in PRESETS.items()}
    assert [name for name, sizes in compared.items() if sizes is None] == ["tiny-nope"]
    for sizes in filter(None, compared.values()):
        assert {PLAIN, FULL} <= set(sizes.formats) <= set(FORMATS)
        for task in sizes.tasks:
            written = sizes.written(task)
            assert written[PLAIN] is None
            assert len(set(written.values())) == len(written)
            for parts in written.values():
                sizes.task(task, parts)
    paper = compared["paper"]
    assert paper is not None
    assert len(paper.written("parity")) == 8
    # Sorting has no variables: all parts but these are all.
    assert "without variables" not in paper.written("sort-multi")
    assert paper.written("sort-multi")[FULL] == set(SCRATCHPAD_PARTS) - {"variables"}
    assert paper.written("parity")["without input"] == set(SCRATCHPAD_PARTS) - {"input"}


# ---------------------------------------------------------------- the whole comparison


def small() -> Scratchpads:
    tiny = PRESETS["tiny"].scratchpads
    assert tiny is not None
    sizes = dataclasses.replace(tiny.sizes, model={"n_layers": 1, "d_model": 16, "n_heads": 2})
    return Scratchpads(
        tasks=("parity", "sort-single"),
        formats=(PLAIN, FULL, "computation and output", "without variables"),
        sizes=sizes,
        lengths=(2, 3),
        n_per_length=10,
    )


def test_the_same_seed_gives_the_same_bits() -> None:
    parts = frozenset({"output"})
    first, again = (trained_to_write(small(), "parity", parts, 2, "cpu", 3) for _ in range(2))
    assert first.keys() == again.keys()
    for name, values in first.items():
        assert np.array_equal(values, again[name]), name
    assert (first["steps/beyond"] <= first["beyond"]).all()
    assert first["within"].shape == (2,)
    assert first["guess/beyond"].shape == (3,)
    assert (first["guess/beyond"] >= 0.5).all()  # of two answers, the commoner one


def test_claims_follow_from_the_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratchpads, "trained_to_write", _made_up)
    found = _found(tmp_path / "a")
    # With all parts parity loses 0.3, from 0.8 to what a guess brings, and sorting nothing of that;
    # the best format less the worst is 0.3 and 0.1.
    assert found.claims["scratchpads"].value == pytest.approx(-0.3)
    assert found.claims["scratchpad-format"].value == pytest.approx(0.2)
    [figure] = found.figures
    assert figure.shaded == (2, 3)
    for panel, n_formats in zip(figure.panels, (4, 3), strict=True):
        chance, *curves = panel.series
        assert chance.kind == "chance"
        assert [series.name for series in curves] == list(small().written(panel.title))
        assert len(curves) == n_formats
        assert all(list(series.x) == [2, 3, 4, 5, 6] for series in curves)
    assert "Not learned: none" in found.notes[0]
    assert "parity 0.80 with no scratchpad, 0.30 with all parts" in found.notes[0]
    assert "parity for 2 of 2 seeds" in found.notes[1]
    # A tenth of parity's answers behind steps: 0.13 of 2.2.
    assert "6% follow wrong ones" in found.notes[2]
    # Nothing is trained twice.
    monkeypatch.setattr(scratchpads, "trained_to_write", _refused)
    assert _found(tmp_path / "a").claims == found.claims


def test_without_models_that_learned_there_are_no_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratchpads, "trained_to_write", _made_up)
    monkeypatch.setattr(scratchpads, "LEARNED", 1.1)
    found = _found(tmp_path)
    assert found.claims == {}
    assert "parity with all parts: 2 of 2 runs" in found.notes[0]
    assert "sort-single by no model" in found.notes[0]


def test_who_always_gives_the_commonest_answer_has_not_learned_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def constant(*asked: Any) -> dict[str, np.ndarray]:
        found = _made_up(*asked)
        return found | {"within": np.full(2, 0.95), "guess/within": np.full(2, 0.95)}

    monkeypatch.setattr(scratchpads, "trained_to_write", constant)
    found = _found(tmp_path)
    assert found.claims == {}
    assert "parity with all parts: 2 of 2 runs" in found.notes[0]


def _found(folder: Path) -> Findings:
    config = ReproduceConfig("kazemnejad2023", n_seeds=2, training=0.001, preset="tiny")
    return scratchpad_findings(config, small(), Cells(folder, lambda title, kept: None), "cpu")


def _refused(*arguments: object) -> dict[str, np.ndarray]:
    raise AssertionError("a cell that is there is computed again")


def _made_up(
    sizes: Scratchpads,
    task: str,
    parts: frozenset[str] | None,
    steps: int,
    device: str,
    seed: int,
) -> dict[str, np.ndarray]:
    beyond = {
        ("parity", 0): 0.8,
        ("parity", 5): 0.3,
        ("parity", 2): 0.6,
        ("parity", 4): 0.4,
        ("sort-single", 0): 0.25,
        ("sort-single", 4): 0.5,
        ("sort-single", 2): 0.4,
    }[task, len(parts or ())]
    return {
        "within": np.ones(2),
        "beyond": np.full(3, beyond),
        "steps/within": np.ones(2),
        "steps/beyond": np.full(3, beyond * (0.9 if task == "parity" and parts else 1)),
        "guess/within": np.full(2, 0.5),
        "guess/beyond": np.full(3, 0.5),
    }
