"""Heads that need others: in a circuit made by hand, induction lives off a previous-token head."""

from pathlib import Path

import numpy as np
import pytest
import torch

import nope_interp as ni
from experiments.heads.causes import OthersRemoved, removing
from experiments.heads.judged import edges_of
from experiments.loaded import LoadedModel
from nope_interp.constructions.planted.parts import silent
from nope_interp.errors import UserError
from nope_interp.models.checkpoints import save_model
from nope_interp.models.config import TransformerConfig
from nope_interp.models.encodings import LearnedPositions
from probes.heads.labels import HeadLabel

D_VOCAB, N_CTX, SCALE = 257, 64, 40.0
TOKEN, BEFORE = slice(0, D_VOCAB), slice(D_VOCAB, 2 * D_VOCAB)
PLACE = slice(2 * D_VOCAB, 2 * D_VOCAB + N_CTX)
# Layer and head of the circuit's parts; the head beside each writes nothing.
PREVIOUS, INDUCTION = (0, 1), (1, 0)
CIRCUIT_OF_ONE = ((0, 0, "previous-token"), (1, 0, "induction"))


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder: Path = tmp_path_factory.mktemp("circuit")
    return circuit(folder, 2, PREVIOUS, INDUCTION)


def circuit(
    folder: Path, n_heads: int, previous: tuple[int, int], induction: tuple[int, int]
) -> LoadedModel:
    """Tokens and places are one-hot; the previous token is copied beside them, and looked for."""
    sizes = {"n_layers": 2, "d_model": 2 * D_VOCAB + N_CTX, "n_heads": n_heads}
    config = TransformerConfig.from_dict(
        {
            **sizes,
            "d_vocab": D_VOCAB,
            "n_ctx": N_CTX,
            "normalization": "none",
            "attn_only": True,
            "positions": "learned",
            "attn_scale": 1.0,
        }
    )
    model = silent(config)
    assert isinstance(model.positions, LearnedPositions)
    with torch.no_grad():
        model.W_E[:, TOKEN] = torch.eye(D_VOCAB)
        model.positions.table[:, PLACE] = torch.eye(N_CTX)
        for block in model.blocks:
            for weight in (block.attn.W_Q, block.attn.W_K, block.attn.W_V, block.attn.W_O):
                weight.zero_()
        layer, head = previous
        attention = model.blocks[layer].attn
        # The query of a place asks for the place before it.
        attention.W_Q[head, PLACE, :N_CTX] = SCALE * torch.eye(N_CTX).roll(-1, dims=1)
        attention.W_K[head, PLACE, :N_CTX] = torch.eye(N_CTX)
        attention.W_V[head, TOKEN, :D_VOCAB] = torch.eye(D_VOCAB)
        attention.W_O[head, :D_VOCAB, BEFORE] = torch.eye(D_VOCAB)
        layer, head = induction
        attention = model.blocks[layer].attn
        attention.W_Q[head, TOKEN, :D_VOCAB] = SCALE * torch.eye(D_VOCAB)
        attention.W_K[head, BEFORE, :D_VOCAB] = torch.eye(D_VOCAB)
    return ni.load(save_model(model, folder / "circuit.safetensors", task="text"))


def test_induction_is_gone_without_the_previous_token_head_and_stays_without_another(
    lm: LoadedModel,
) -> None:
    (found,) = lm.without_heads(n_sequences=16).to_dict("records")
    assert (found["layer"], found["head"]) == INDUCTION
    assert found["value"] > 0.9
    # All keys look alike then: each gets what equal weights give.
    assert found["left"] == pytest.approx(0, abs=0.02)
    assert found["left_high"] < 0.02
    # The other head of the layer writes nothing.
    assert found["control"] == pytest.approx(1)
    assert found["net"] == pytest.approx(1, abs=0.02)
    assert found["net_low"] > 0.98


def test_without_another_head_there_is_no_control_and_no_chance_of_an_edge(tmp_path: Path) -> None:
    alone = circuit(tmp_path, 1, (0, 0), (1, 0))
    with pytest.warns(UserWarning, match=r"too few other heads in layer 0: .* has no control"):
        (found,) = alone.without_heads(n_sequences=16).to_dict("records")
    assert found["left"] == pytest.approx(0, abs=0.02)
    assert all(np.isnan(found[name]) for name in ("control", "control_low", "net", "net_high"))
    labels = [HeadLabel(*of, "", False, *[1.0] * 4) for of in CIRCUIT_OF_ONE]
    (edge,) = edges_of(alone.model, labels)
    assert edge["score"] > 0.05
    assert np.isnan(edge["chance"])


def test_what_is_not_there_is_one_sentence(lm: LoadedModel) -> None:
    with pytest.raises(UserError, match="did you mean 'previous-token'"):
        lm.without_heads("previous-tokn", n_sequences=16)
    with pytest.raises(
        UserError, match=r"no previous-token head of .* comes after .*: choose other labels"
    ):
        lm.without_heads("induction", "previous-token", n_sequences=16)


def test_a_removed_head_says_the_same_everywhere_and_no_other_is_touched() -> None:
    z = torch.randn(3, 5, 4, 2, generator=torch.Generator().manual_seed(0))
    found = removing(z, [1, 3], 4)
    in_one_row = removing(z.flatten(2), [1, 3], 4)
    torch.testing.assert_close(in_one_row.view_as(z), found)
    torch.testing.assert_close(found[:, :, [0, 2]], z[:, :, [0, 2]])
    for head in (1, 3):
        mean = z[:, :, head].reshape(-1, 2).mean(dim=0)
        torch.testing.assert_close(found[:, :, head], mean.expand(3, 5, 2))


def test_the_control_removes_as_many_others_in_each_sequence() -> None:
    z = torch.randn(40, 5, 6, 2, generator=torch.Generator().manual_seed(0))
    control = OthersRemoved([0, 4], 6, seed=0)
    touched = [(control(z) != z).any(dim=-1).all(dim=1) for _ in range(2)]
    for found in touched:
        assert (found.sum(dim=1) == 2).all()
        assert not found[:, [0, 4]].any()
    every = torch.cat(touched)
    assert (every[:, [1, 2, 3, 5]].sum(dim=0) > 20).all()
    assert not torch.equal(*touched)
    # Of a layer with no other head none is removed.
    assert torch.equal(OthersRemoved([0], 1, seed=0)(z[:, :, :1]), z[:, :, :1])
