"""Counter or pool: shifts of the reading of 1/m in models whose weights say which they are."""

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.papers.config import ReproduceConfig
from experiments.papers.kazemnejad2023 import counter
from experiments.papers.kazemnejad2023.counter import (
    LEAST_R2,
    _claims_of_given,
    counter_findings,
    inversion,
)
from experiments.papers.kazemnejad2023.first_tokens import (
    CHANGES,
    counted,
    n_shared,
    n_unread,
    predicted,
    predicted_inverse,
)
from experiments.runs.cells import Cells
from nope_interp.constructions.kazemnejad import (
    BEGIN,
    POSITION,
    absolute_position,
    counting_config,
)
from nope_interp.errors import UserError
from nope_interp.interventions.attention_weights import scale_attention
from nope_interp.models.checkpoints import save_model
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import Sequences
from nope_interp.streams import read_at
from nope_interp.tasks.registry import make_task
from tests.huggingface import bridged_model

LENGTH, BEGINS, SECOND = 32, 0, (1, 2)
CONTENT = POSITION + 1  # the first component that the theorem leaves to content


def sequences(n: int, seed: int, second: tuple[int, ...] = SECOND) -> Sequences:
    """Behind the begin token, with one of these tokens next and others after that."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, 12, (n, LENGTH), generator=generator)
    tokens[:, 0] = BEGINS
    tokens[:, 1] = torch.tensor(second)[torch.randint(len(second), (n,), generator=generator)]
    return tokens


def theorem(marked: tuple[float, float], inverts: bool) -> HookedTransformer:
    """Theorem 1's model: what its head adds up is marked in the begin token, the second, or both.

    With or without the MLP that makes m of 1/m.
    """
    model = absolute_position(counting_config(LENGTH + 2, 12), BEGINS).model
    with torch.no_grad():
        model.W_E[[BEGINS, *SECOND], BEGIN] = torch.tensor(
            [marked[0], marked[1], marked[1]], dtype=torch.float64
        )
        if not inverts:
            for parameter in model.blocks[0].mlp.parameters():
                parameter.zero_()
    return model


@pytest.mark.parametrize(
    ("marked", "second", "k", "share"),
    [
        ((1.0, 0.0), SECOND, 1, 1),
        ((0.0, 1.0), SECOND, 1, -1),
        ((1.0, 1.0), SECOND, 1, 0),  # a pool of the first two
        # Where all share the second token, either tells how many came before.
        ((1.0, 0.0), SECOND[:1], 2, 1),
        ((0.0, 1.0), SECOND[:1], 2, 1),
        ((1.0, 1.0), SECOND[:1], 2, 1),
    ],
    ids=str,
)
def test_a_counter_shifts_as_predicted_and_a_pool_does_not(
    marked: tuple[float, float], second: tuple[int, ...], k: int, share: float
) -> None:
    model = theorem(marked, inverts=False)
    found = counted(model, [sequences(16, 0, second)], [sequences(6, 1, second)], 0)
    best = found["r2"].argmax()
    assert found["k"] == k
    assert found["r2"][best] > 0.99
    # Both marked alike, each moves half of what is read, less what it takes from the other.
    seen = found["m"]
    alone = np.array(marked) - (1 - np.array(marked)) / (seen.mean() - 1)
    if sum(marked) == 2:
        alone = np.full(2, 0.5)
    np.testing.assert_allclose(found["alone"], alone, atol=0.06)
    for name, change in CHANGES.items():
        np.testing.assert_allclose(found[f"share/{name}"][:, best, 0], share, atol=0.05)
        # What was fitted to permuted positions reads nothing that shifts as they do.
        assert abs(found[f"share/{name}"][:, best, 1]).mean() < 0.1
        expected = share * predicted(change.factor, found["m"], k)
        np.testing.assert_allclose(found[f"shift/{name}"].mean(axis=0), expected, atol=0.01)
    # The first head is the theorem's, and the others write nothing.
    by_head = found["heads"].mean(axis=0)
    np.testing.assert_allclose(by_head[0, 0], share, atol=0.05)
    np.testing.assert_allclose(np.delete(by_head.ravel(), 0), 0, atol=0.01)


def test_an_inverted_count_is_told_from_one_that_is_not() -> None:
    fit, read = [sequences(16, 0)], [sequences(6, 1)]
    for inverts in (True, False):
        found = counted(theorem((1.0, 0.0), inverts), fit, read, 0)
        shift = found["position/shift"]
        expected = -(found["m"] + 1) / 2 if inverts else found["position/without"]
        np.testing.assert_allclose(shift.mean(axis=0), expected, rtol=0.1)
        if inverts:
            assert found["position/r2"].max() > 0.999
            np.testing.assert_allclose(predicted_inverse(2, found["m"]), expected)
            assert inversion(found).value > 0.99
            # It is the MLP that inverts.
            assert found["position/site"] == 1
            before = found["position/before"].mean(axis=0)
            np.testing.assert_allclose(before, found["position/without"], rtol=0.1)
            assert inversion(found, "before").value < 0
        else:
            assert inversion(found).value < 0
    # Of the right size and not of the right shape.
    even = np.full_like(shift, predicted_inverse(2, found["m"]).mean())
    assert inversion(found | {"position/shift": even}).value == pytest.approx(0)


@pytest.mark.parametrize("seed", range(1, 13))
def test_a_counter_that_content_disturbs_is_a_counter(seed: int) -> None:
    """Its readings are shrunk, and so are their shifts; by as much as their slopes."""
    model = theorem((1.0, 0.0), inverts=True)
    content = torch.randn(12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    content[BEGINS] = 0
    with torch.no_grad():
        attention = model.blocks[0].attn
        attention.W_Q[0].zero_()
        attention.W_K[0].zero_()
        # Every query asks for the same component, which holds so much of each token's content.
        model.W_E[:, CONTENT] = content * (0.6, 0.8, 1.0)[seed % 3]
        attention.W_Q[0, 0, 0] = 1.0
        attention.W_K[0, CONTENT, 0] = 1 / counting_config(LENGTH + 2, 12).attention_scale
    found = counted(model, [sequences(128, 0)], [sequences(64, 1)], 0)
    claims = _claims_of_given(found)
    assert found["r2"][0] < 0.99
    assert all(claim.value > 0.8 for claim in claims.values()), claims
    if found["r2"][0] >= LEAST_R2:
        assert {"given", "given-head"} <= set(claims)


def test_what_is_hardly_read_is_not_claimed() -> None:
    found = counted(theorem((1.0, 0.0), inverts=True), [sequences(16, 0)], [sequences(6, 1)], 0)
    claims = _claims_of_given(found)
    assert set(claims) == {"given", "given-head", "given-inverted"}
    assert claims["given"].value == pytest.approx(1, abs=0.05)
    unread = found | {"r2": np.full_like(found["r2"], 0.69)}
    assert set(_claims_of_given(unread)) == {"given-inverted"}
    unread |= {"position/r2": np.full_like(found["r2"], 0.89)}
    assert not _claims_of_given(unread)


def test_shared_tokens_are_counted_over_groups_of_several_lengths() -> None:
    groups = [sequences(5, 0, SECOND[:1]), sequences(5, 1, SECOND[:1])[:, :20]]
    assert n_shared(groups) == 2
    assert n_shared([groups[0], sequences(5, 1, SECOND[1:])]) == 1
    # As many others stand before the first token that is read.
    assert [n_unread(k) for k in (1, 4, 6)] == [8, 8, 12]


def test_scaled_attention_is_as_if_the_token_stood_there_as_often() -> None:
    """Keys without positions: two copies of a token draw what one of twice the weight draws."""
    config = TransformerConfig(
        n_layers=1, d_model=16, n_heads=2, d_vocab=12, n_ctx=40, init_scale=0.2
    )
    model = HookedTransformer(config).eval()
    tokens = sequences(3, 2)
    twice = torch.cat((tokens[:, :1], tokens), dim=1)
    name = "blocks.0.hook_resid_post"
    [expected] = read_at(model, twice, {name: torch.clone})[name]
    with scale_attention(model, [0], 2.0) as scaled:
        [found] = read_at(model, tokens, {name: torch.clone})[name]
        scaled.verify()
    torch.testing.assert_close(found, expected[:, 1:], rtol=1e-4, atol=1e-5)
    with scale_attention(model, [0], 0.0):
        [unseen] = read_at(model, tokens, {name: torch.clone})[name]
    [without] = read_at(model, tokens[:, 1:], {name: torch.clone})[name]
    torch.testing.assert_close(unseen[:, 1:], without, rtol=1e-4, atol=1e-5)
    with (
        pytest.raises(UserError, match="attention is scaled by -1"),
        scale_attention(model, [0], -1),
    ):
        pass
    for positions, head, told in (([99], None, "count from 0"), ([0], (0, 9), "no head 9")):
        with (
            pytest.raises(UserError, match=told),
            scale_attention(model, positions, 2.0, head=head),
        ):
            model(tokens)


@pytest.mark.parametrize("factor", [0.0, 3.0])
def test_an_attention_sink_keeps_its_weight_beside_scaled_tokens(factor: float) -> None:
    """Its score is one more term of the sum, whatever precision the pattern has."""
    model = bridged_model("gpt_oss").to(torch.bfloat16)
    tokens = torch.randint(4, 50, (2, 12), generator=torch.Generator().manual_seed(0))
    name = "blocks.1.attn.hook_pattern"
    [intact] = read_at(model, tokens, {name: torch.Tensor.double})[name]
    assert (intact.sum(dim=-1) < 0.99).any()
    with scale_attention(model, [0, 3], factor, head=(1, 0)):
        [found] = read_at(model, tokens, {name: torch.Tensor.double})[name]
    more = torch.ones(12, dtype=torch.float64)
    more[[0, 3]] = factor
    kept = (intact * more)[:, 0]
    expected = kept / (kept.sum(dim=-1, keepdim=True) + 1 - intact[:, 0].sum(-1, keepdim=True))
    torch.testing.assert_close(found[:, 0, 1:], expected[:, 1:], atol=0.01, rtol=0.02)
    assert (found >= 0).all()
    torch.testing.assert_close(found[:, 1:], intact[:, 1:])


def test_a_given_model_is_read_on_its_own_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counter, "_SPLITS", (("fit", 32), ("held_out", 16)))
    for least in ("LEAST_R2", "LEAST_R2_OF_M"):  # weights are random, and tell m badly
        monkeypatch.setattr(counter, least, -np.inf)
    config = TransformerConfig(n_layers=1, d_model=16, n_heads=2, d_vocab=110, n_ctx=32)
    path = tmp_path / "model.safetensors"
    save_model(HookedTransformer(config), path, task="copy-cmc", lengths=(2, 8))
    asked = ReproduceConfig("kazemnejad2023", model=str(path), length=0.25)
    found = counter_findings(asked, Cells(tmp_path / "cells", lambda title, kept: None), "cpu")
    claims = [*CHANGES, "head", "inverted", "given", "given-head", "given-inverted"]
    assert set(found.claims) == {f"counter-{name}" for name in claims}
    panel = found.figures[0].panels[-1]
    assert panel.series[0].x[-1] == make_task("copy-cmc", lengths=(2, 8)).n_tokens(8)
    assert np.isfinite([claim.ci_low for claim in found.claims.values()]).all()
    assert not any(note.startswith("No claim is tested") for note in found.notes)
    learned = TransformerConfig(1, 16, 2, d_vocab=110, n_ctx=32, positions="learned")
    save_model(HookedTransformer(learned), path, task="copy-cmc", lengths=(2, 8))
    other = counter_findings(asked, Cells(tmp_path / "learned", lambda title, kept: None), "cpu")
    assert not {f"counter-{name}" for name in ("given", "given-head")} & set(other.claims)
    assert "No claim is tested on model.safetensors: it has positions." in other.notes
    assert "Learned positions added to the embedding and read in layer 0." in other.notes
    short = TransformerConfig(n_layers=1, d_model=16, n_heads=2, d_vocab=110, n_ctx=10)
    save_model(HookedTransformer(short), path, task="copy-cmc", lengths=(2, 3))
    with pytest.raises(UserError, match="too short sequences to count in"):
        counter_findings(asked, Cells(tmp_path / "again", lambda title, kept: None), "cpu")
