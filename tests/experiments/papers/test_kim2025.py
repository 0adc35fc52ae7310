"""What Kim et al. 2025 say of scores, on scores whose answers are known, and on given models."""

from pathlib import Path

import numpy as np
import pytest
from einops import rearrange

from experiments.papers.config import ReproduceConfig
from experiments.papers.kim2025.given import given_findings
from experiments.papers.kim2025.reading import ORDERS, mean_scores, shuffled
from experiments.papers.kim2025.scores import (
    nearer_share,
    rise,
    share_beyond_distance,
    variation,
)
from experiments.results.findings import Findings, over_seeds
from experiments.runs.cells import Cells
from nope_interp.errors import UserError
from nope_interp.models.checkpoints import save_model
from nope_interp.tasks.registry import make_task
from tests.huggingface import plain_model, save_folder, words
from tests.small_models import model, random_tokens


def test_shares_and_rises_are_counted_pair_by_pair() -> None:
    scores = np.random.default_rng(0).normal(size=(2, 3, 9, 9))
    for index in np.ndindex(2, 3):
        of = scores[index]
        pairs = [of[i, j] > of[i, k] for i in range(9) for j in range(i) for k in range(j)]
        assert nearer_share(scores)[index] == pytest.approx(np.mean(pairs))
        rises = []
        for i in range(2, 9):
            far, near = of[i, : i // 2], of[i, :i][::-1][: i // 2]
            rises.append(near.mean() - far.mean())
        assert rise(scores)[index] == pytest.approx(np.mean(rises))


def test_distance_explains_what_is_relative_and_noise_counts_for_nothing() -> None:
    rng = np.random.default_rng(1)
    at = np.arange(20)
    relative = np.cos(at[:, None] - at)
    noise = rng.normal(size=(400, 20, 20))

    def share(scores: np.ndarray) -> float:
        return float(share_beyond_distance(scores[:, None])[0])

    assert share(np.stack([relative, relative])) == pytest.approx(0, abs=1e-12)
    assert share(relative + noise) == pytest.approx(0, abs=0.02)
    # A score that the query alone sets varies within every distance, but for the farthest.
    absolute = relative + np.sin(at)[:, None]
    i, j = np.tril_indices(20, -1)
    values, distances = absolute[i, j], i - j
    within = sum(
        ((values[distances == d] - values[distances == d].mean()) ** 2).sum() for d in at[1:]
    )
    expected = within / ((values - values.mean()) ** 2).sum()
    assert share(np.stack([absolute] * 3)) == pytest.approx(expected)
    assert share(absolute + noise) == pytest.approx(expected, abs=0.05)


def test_intervals_of_variation_cover_it() -> None:
    """Products of two units' scores: taken for independent ones, 7 of 10 intervals held it."""
    rng = np.random.default_rng(2)
    at = np.arange(8)
    truth = np.cos(at[:, None] - at) + 0.5 * np.sin(at)[:, None]
    expected = variation(np.stack([truth] * 2))[0]
    held = []
    for _ in range(150):
        units = variation(truth + rng.normal(size=(8, 8, 8)))
        for column in (0, 1):
            found = over_seeds(units[:, column])
            held.append(found.ci_low <= expected[column] <= found.ci_high)
    assert np.mean(held) == pytest.approx(0.95, abs=0.04)


def test_scores_are_means_over_heads_and_the_sequences_of_a_unit() -> None:
    read, tokens = model(), random_tokens(batch=16, pos=12)
    found = mean_scores(read, tokens)
    _, cache = read.run_with_cache(tokens)
    for layer in range(2):
        scores = cache["attn_scores", layer][:, :, 1:, 1:]
        by_unit = rearrange(scores, "(unit batch) head q k -> unit (batch head) q k", unit=8)
        np.testing.assert_allclose(found[:, layer], by_unit.mean(dim=1), rtol=1e-4, atol=1e-5)


def test_shuffled_tokens_are_the_same_tokens() -> None:
    tokens = random_tokens(batch=5, pos=20)
    moved = shuffled(tokens, 1, seed=0)
    each = rearrange(moved, "(sequence order) pos -> sequence order pos", sequence=5)
    assert each.shape[1] == ORDERS
    assert (each[:, :, 0] == tokens[:, :1]).all()
    for of, own in zip(each, tokens, strict=True):
        assert (of.sort(dim=1).values == own.sort().values).all()
        assert (of != own).any(dim=1).all()
        assert len(of.unique(dim=0)) == ORDERS


def read(path: Path, folder: Path, **options: str) -> Findings:
    config = ReproduceConfig("kim2025", model=str(path), **options)
    return given_findings(config, Cells(folder), "cpu")


@pytest.mark.parametrize(
    ("positions", "claim"), [("none", "trained-given"), ("rotary", "rope-given")]
)
def test_a_given_model_is_read_for_the_claim_that_it_can_test(
    positions: str, claim: str, tmp_path: Path
) -> None:
    own = model(d_vocab=257, positions=positions)
    path = tmp_path / "model.safetensors"
    save_model(own, path, task="text")
    found = read(path, tmp_path)
    text = make_task("text").source().sequences(64, 24, begin_token=True, split="held_out", seed=0)
    orders = {"none": ORDERS, "rotary": 1}[positions]
    scores = mean_scores(own, shuffled(text, 1, 0, orders))
    assert set(found.claims) == {claim}
    if claim == "trained-given":
        # Of all sequences together, corrected by what is left without each eighth.
        every = nearer_share(scores.mean(axis=0))[1]
        without = [
            nearer_share(np.delete(scores, unit, axis=0).mean(axis=0))[1] for unit in range(8)
        ]
        expected = 8 * every - 7 * np.mean(without)
    else:
        first, second = share_beyond_distance(scores)
        expected = second - first
    assert found.claims[claim].value == pytest.approx(expected, rel=1e-3)
    assert found.claims[claim].n == 8
    read_in = "each in 16 random orders" if orders > 1 else "in a random order"
    assert f"24 tokens of text, {read_in}" in found.setting


def test_a_model_with_other_positions_is_drawn_and_tests_nothing(tmp_path: Path) -> None:
    folder = save_folder(plain_model("gpt2"), tmp_path / "gpt2")
    (tmp_path / "text.txt").write_text(words(30_000))
    found = read(folder, tmp_path, text=str(tmp_path / "text.txt"))
    assert found.claims == {}
    assert any("No claim is tested on gpt2" in note for note in found.notes)
    [figure] = found.figures
    assert len(figure.panels[0].series[-1].y) == 2


def test_a_model_that_shows_no_scores_is_refused(tmp_path: Path) -> None:
    folder = save_folder(plain_model("opt"), tmp_path / "opt")
    (tmp_path / "text.txt").write_text(words(30_000))
    with pytest.raises(UserError, match="opt shows attention weights in place of scores"):
        read(folder, tmp_path, text=str(tmp_path / "text.txt"))
