"""Haviv et al. 2022: shuffled prefixes, probes on planted positions, and what each claim counts."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments.papers import on_text
from experiments.papers.config import ReproduceConfig
from experiments.papers.haviv2022 import experiment as haviv2022
from experiments.papers.haviv2022 import masked
from experiments.papers.haviv2022.experiment import (
    ENCODINGS,
    kept_in_order,
    last_token_loss,
    probe_errors,
    shuffled_before,
    unseen_text,
)
from experiments.papers.haviv2022.masked import blanks
from experiments.papers.registry import paper
from experiments.papers.reproduce import reproduce
from experiments.results.claims import NOT_MEASURED
from experiments.results.findings import chances
from nope_interp.errors import UserError
from nope_interp.models.config import TransformerConfig
from nope_interp.models.losses import sequence_losses
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.text import TextTask

LENGTH = 16
# Large weights: attention is far from uniform, as it is after training.
ONE_LAYER = TransformerConfig(1, 32, 4, d_vocab=50, n_ctx=LENGTH, init_scale=0.4)


def random_tokens(count: int, length: int = LENGTH, d_vocab: int = 50) -> torch.Tensor:
    return torch.randint(d_vocab, (count, length), generator=torch.Generator().manual_seed(0))


def model_with(**changes: Any) -> HookedTransformer:
    return HookedTransformer(dataclasses.replace(ONE_LAYER, **changes)).eval()


# ---------------------------------------------------------------- order


@given(st.integers(2, 40), st.integers(0, 10), st.data())
def test_shuffling_keeps_the_tokens_and_the_end(
    length: int, seed: int, data: st.DataObject
) -> None:
    kept = data.draw(st.integers(0, length - 1))
    tokens = torch.arange(3 * length).view(3, length)
    found = shuffled_before(tokens, kept, seed)
    assert torch.equal(found.sort(dim=1).values, tokens)
    assert torch.equal(found[:, length - 1 - kept :], tokens[:, length - 1 - kept :])
    assert torch.equal(found, shuffled_before(tokens, kept, seed))


def test_the_shuffled_part_is_in_any_order_alike() -> None:
    tokens = torch.arange(8).expand(4000, 8)
    shuffled = shuffled_before(tokens, 2, 0)[:, :5]
    # Each of 5 places holds each of 5 tokens equally often: 800 times, give or take 5 deviations.
    counts = torch.nn.functional.one_hot(shuffled).sum(dim=0)
    assert (counts - 800).abs().max() < 5 * (4000 * 0.2 * 0.8) ** 0.5


@pytest.mark.parametrize(("length", "rungs"), [(2, [1]), (5, [1, 2, 4]), (10, [1, 2, 4, 8, 9])])
def test_rungs_double_and_end_with_the_intact_sequence(length: int, rungs: list[int]) -> None:
    assert kept_in_order(length) == rungs


def test_the_last_loss_is_the_last_of_the_losses() -> None:
    model, tokens = model_with(n_layers=2), random_tokens(40)
    every = sequence_losses(model, tokens) * (LENGTH - 1)
    but_last = sequence_losses(model, tokens[:, :-1]) * (LENGTH - 2)
    torch.testing.assert_close(
        last_token_loss(model, tokens).float(), every - but_last, rtol=1e-4, atol=1e-4
    )


def test_one_layer_without_positions_is_blind_to_order_and_two_are_not() -> None:
    """Attention of the last token is a function of the set of tokens before it."""
    tokens = random_tokens(40)
    shuffled = shuffled_before(tokens, 1, 0)

    def changed(**changes: Any) -> float:
        model = model_with(**changes)
        difference = last_token_loss(model, tokens) - last_token_loss(model, shuffled)
        return float(difference.abs().max())

    assert changed() < 1e-5
    for sees_order in ({"n_layers": 2}, {"positions": "alibi"}, {"positions": "learned"}):
        assert changed(**sees_order) > 1e-2


# ---------------------------------------------------------------- probes


def test_probes_find_planted_positions_and_nothing_where_there_is_none() -> None:
    tokens = random_tokens(600)
    middle, uniform = chances(LENGTH - 1)
    planted = model_with(positions="sinusoidal", causal=False)
    errors = probe_errors(planted, tokens[:400], tokens[400:], seed=0)
    assert errors["error"].shape == errors["shuffled"].shape == (2,)
    assert errors["by_position"].shape == (2, LENGTH - 1)
    np.testing.assert_allclose(errors["by_position"].mean(axis=1), errors["error"])
    assert errors["error"][0] < 0.05 * middle
    assert (errors["shuffled"] > 0.9 * middle).all()
    assert (errors["shuffled"] < uniform).all()
    # A causal mask and a begin token, which attention averages away as 1/m.
    tokens[:, 0] = 0
    causal = probe_errors(model_with(init_scale=0.1), tokens[:400], tokens[400:], seed=0)
    assert causal["error"][0] > 0.95 * middle
    assert causal["error"][1] < 0.9 * middle
    unmasked = model_with(init_scale=0.1, causal=False)
    absent = probe_errors(unmasked, tokens[:400], tokens[400:], seed=0)
    assert (absent["error"] > 0.95 * middle).all()


def test_chances_are_a_quarter_and_a_third() -> None:
    draws = np.random.default_rng(0).integers(63, size=(2, 400_000))
    assert chances(63)[0] == pytest.approx(np.abs(draws[0] - 31).mean(), rel=0.01)
    assert chances(63)[1] == pytest.approx(np.abs(draws[0] - draws[1]).mean(), rel=0.01)
    assert chances(1024) == pytest.approx((1024 / 4, 1024 / 3), rel=1e-3)


def test_probes_are_fitted_and_scored_on_different_parts_of_the_unseen_text() -> None:
    fit, held_out = unseen_text(64, 900, seed=0)
    assert (len(fit), len(held_out)) == (900, 500)
    unseen = bytes(TextTask().source().tokens.tolist())
    fitted, scored = ({bytes(row.tolist()) for row in part} for part in (fit, held_out))
    assert not fitted & scored
    assert all(row in unseen for row in fitted | scored)
    with pytest.raises(UserError, match="the text is too short"):
        unseen_text(64, 10_000, seed=0)


# ---------------------------------------------------------------- claims


Cells = dict[str, dict[str, np.ndarray]]


def planted_arrays() -> tuple[Cells, dict[str, np.ndarray], Cells]:
    """Two seeds, 4 layers, 9 probed positions, whose L/4 is 20/9; both seeds alike."""

    def twice(values: Any) -> np.ndarray:
        return np.stack([np.asarray(values, dtype=float)] * 2)

    errors = {
        "NoPE": [2.2, 1.0, 0.6, 0.7, 0.8],
        "learned": [0.0, 0.1, 0.2, 0.3, 0.3],
        "sinusoidal": [0.0, 0.1, 0.3, 0.4, 0.7],
        "ALiBi": [2.2, 0.6, 0.4, 0.4, 0.9],
    }
    losses = {"NoPE": 2.1, "learned": 2.05, "sinusoidal": 1.95, "ALiBi": 2.0}
    trained = {
        name: {
            "loss": twice(losses[name]),
            "chance": twice(3.05),
            "error": twice(errors[name]),
            "by_position": twice(np.zeros((5, 9))),
            "last_loss": twice([3.0, 2.5, 2.0]),
        }
        for name in errors
    }
    trained["NoPE"]["unmasked"] = twice([2.2, 2.3, 2.0, 2.2, 2.2])
    masked = {
        name: {"loss": twice(loss), "chance": twice(3.2)}
        for name, loss in (("NoPE", 2.7), ("learned", 1.2))
    }
    return trained, {"error": twice([2.2, 1.2, 1.5, 1.6, 1.7])}, masked


def test_claims_are_the_numbers_that_they_say() -> None:
    found = {id: claim.value for id, claim in haviv2022._claims(*planted_arrays()).items()}
    quarter = 20 / 9
    assert found == pytest.approx(
        {
            "competitive": 2.1 / 2.0,
            "trails": 2.1 / 2.05,
            "order": 1.0,
            "decodable": 0.6 / quarter,
            "input": 2.2 / quarter,
            "falls": 1.0,
            "near-explicit": 0.3 / quarter,
            "rises": 0.1,
            "training": 0.6 / 1.2,
            "mask": (2.0 - 0.6) / quarter,
            "masked": 2.7 / 1.2,
            # Of two nats 1.5 are lost, of one 0.05.
            "masked-more": 1.5 / 2.0 - 0.05 / 1.0,
        }
    )


def test_the_mask_gives_nothing_away_where_no_layer_knows_position() -> None:
    """Nor does an embedding that is lower by chance: it is the same with and without the mask."""
    test = paper("haviv2022").claim("mask")
    trained, *rest = planted_arrays()
    rng = np.random.default_rng(0)
    at_chance = {name: 2.2 + rng.normal(0, 0.01, (2, 5)) for name in ("error", "unmasked")}
    at_chance["error"][:, 0] = at_chance["unmasked"][:, 0] = 1.0
    trained["NoPE"] |= at_chance
    found = haviv2022._claims(trained, *rest)["mask"]
    best = [at_chance[name].mean(axis=0)[1:].min() for name in ("unmasked", "error")]
    assert found.value == pytest.approx((best[0] - best[1]) / (20 / 9))
    assert test.verdict(found.value, found.ci_low, found.ci_high) == "uncertain"
    found = haviv2022._claims(*planted_arrays())["mask"]
    assert test.verdict(found.value, found.ci_low, found.ci_high) == "reproduced"


def test_an_error_that_goes_on_falling_does_not_rise() -> None:
    trained, *rest = planted_arrays()
    trained["ALiBi"]["error"][:, -1] = 0.3
    found = haviv2022._claims(trained, *rest)["rises"]
    assert found.ci_high < 0


def test_how_fast_the_error_falls_is_not_testable_where_it_does_not() -> None:
    trained, *rest = planted_arrays()
    trained["NoPE"]["error"][:, 1:] = 2.3
    found = haviv2022._claims(trained, *rest)
    assert "falls" not in found
    [note] = haviv2022._left_out(found)
    assert note.startswith("The claim falls is left out: ")
    assert [*haviv2022._left_out(haviv2022._claims(*planted_arrays()))] == []


def test_noise_hardly_falls_and_a_planted_fall_does() -> None:
    """Of noise the least error is the second layer's in one of five draws: a share of 1."""
    rng, test = np.random.default_rng(0), paper("haviv2022").claim("falls")

    def share_reproduced(by_layer: list[float]) -> float:
        said = []
        for _ in range(100):
            trained, *rest = planted_arrays()
            trained["NoPE"]["error"] = 2.2 + np.array(by_layer) + rng.normal(0, 0.02, (2, 5))
            found = haviv2022._claims(trained, *rest).get("falls", NOT_MEASURED)
            said.append(test.verdict(found.value, found.ci_low, found.ci_high) == "reproduced")
        return float(np.mean(said))

    assert share_reproduced([0.0, 0.0, 0.0, 0.0, 0.0]) < 0.05
    assert share_reproduced([0.0, -1.0, -1.5, -1.4, -1.4]) > 0.9


def test_shares_are_of_what_learned_positions_gain_where_they_do() -> None:
    trained, untrained, masked = planted_arrays()
    masked["learned"]["loss"][1] = 3.3  # than frequencies worse, in one seed
    assert "masked-more" not in haviv2022._claims(trained, untrained, masked)


# ---------------------------------------------------------------- masked models


@given(st.integers(1, 8), st.integers(1, 40), st.integers(0, 1000))
def test_blanks_hide_some_tokens_and_no_begin_token(n: int, length: int, seed: int) -> None:
    tokens = torch.randint(1, 9, (n, length + 1))
    tokens[:, 0] = 0
    hidden = blanks(tokens, 0, torch.Generator().manual_seed(seed))
    assert hidden.any()
    assert not hidden[:, 0].any()


def test_blanks_are_a_share_of_the_tokens() -> None:
    tokens = torch.ones(400, 64, dtype=torch.int64)
    hidden = blanks(tokens, None, torch.Generator().manual_seed(0)).double()
    assert float(hidden.mean()) == pytest.approx(0.15, abs=5 * (0.15 * 0.85 / 25_600) ** 0.5)


def test_a_masked_model_is_held_against_its_own_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: what the trained weights give the hidden bytes, seen from both sides."""
    kept: list[HookedTransformer] = []

    class Kept(HookedTransformer):
        def __init__(self, config: TransformerConfig) -> None:
            super().__init__(config)
            kept.append(self)

    monkeypatch.setattr(masked, "HookedTransformer", Kept)
    base = TransformerConfig(1, 16, 4, d_vocab=257, n_ctx=16)
    unseen = partial(unseen_text, 16, 40)
    found, again = (masked.masked_model(base, 3, unseen, "cpu", 5) for _ in range(2))
    assert found == again
    model, generator = kept[0], torch.Generator().manual_seed(5)
    assert not model.config.causal
    _, held_out = unseen(5)
    losses = []
    for some in held_out.split(32):
        hidden = blanks(some, 256, generator)
        with torch.no_grad():
            logits = model(some.masked_fill(hidden, 257)).double()
        losses.append(torch.nn.functional.cross_entropy(logits[hidden], some[hidden]))
    assert float(found["loss"]) == pytest.approx(float(torch.stack(losses).mean()), abs=1e-5)
    assert 2.5 < float(found["chance"]) < 3.6


# ---------------------------------------------------------------- the run


def test_every_encoding_sees_the_same_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def stopped(config: TransformerConfig, training: Any, *rest: Any, **options: Any) -> None:
        asked.append((config, training))
        raise KeyboardInterrupt

    monkeypatch.setattr(on_text, "train", stopped)
    base = TransformerConfig(2, 16, 4, d_vocab=257, n_ctx=8)
    for positions in ENCODINGS.values():
        with pytest.raises(KeyboardInterrupt):
            haviv2022._trained(
                dataclasses.replace(base, positions=positions),
                1,
                2,
                "cpu",
                7,
            )
    configs, trainings = zip(*asked, strict=True)
    assert {training.seed for training in trainings} == {config.seed for config in configs} == {7}
    assert len(set(trainings)) == 1
    assert {dataclasses.replace(config, positions="none") for config in configs} == {
        dataclasses.replace(base, seed=7)
    }


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_the_next_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ReproduceConfig(
        "haviv2022", n_seeds=2, width=0.25, length=0.125, depth=0.5, training=0.001
    )
    trained = haviv2022._trained
    begun: list[tuple[str, int]] = []

    def counted(base: TransformerConfig, *rest: Any) -> dict[str, np.ndarray]:
        begun.append((base.positions, rest[-1]))
        if len(begun) == 3:
            raise KeyboardInterrupt
        return trained(base, *rest)

    monkeypatch.setattr(haviv2022, "_trained", counted)
    monkeypatch.setattr(haviv2022, "_HELD_OUT", 512)
    with pytest.raises(KeyboardInterrupt):
        reproduce(config, out=tmp_path, show_progress=False)
    resumed = reproduce(config, out=tmp_path, show_progress=False)
    encodings = list(ENCODINGS.values())
    assert begun[:3] == [(p, 0) for p in encodings[:3]]
    assert begun[3:] == [*((p, 0) for p in encodings[2:]), *((p, 1) for p in encodings)]
    whole = reproduce(config, out=tmp_path / "other", show_progress=False)
    assert resumed.measurements.equals(whole.measurements)
