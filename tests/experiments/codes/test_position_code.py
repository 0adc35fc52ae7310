"""Positions given another's code, against tables of positions that are swapped by hand."""

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import nope_interp as ni
from experiments.codes.position_code import unfitted_code
from experiments.probing.sites import Site
from nope_interp.errors import UserError
from nope_interp.interventions.reading import ROUTES
from nope_interp.streams import stream
from tests import typecheck
from tests.huggingface import VOCABULARY, bridged_model
from tests.small_models import D_VOCAB, random_tokens
from tests.small_models import model as own_model

LENGTH = 16
SWAP = {5: 9, 9: 5}
TOKENS = random_tokens(batch=3, pos=LENGTH).clamp(min=4)


def every_token_everywhere(d_vocab: int) -> Tensor:
    """Sequences in which each token stands at each position once: means tell positions alone."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randint(d_vocab, (LENGTH,), generator=generator)
    return (torch.arange(d_vocab)[:, None] + start) % d_vocab


def with_swapped_table(table: Tensor) -> None:
    order = torch.arange(len(table))
    order[list(SWAP)] = torch.tensor(list(SWAP.values()))
    with torch.no_grad():
        table.copy_(table[order].clone())


@pytest.mark.parametrize("kind", ["ours", "gpt2"])
def test_at_the_embedding_it_is_a_table_of_positions_swapped_by_hand(kind: str) -> None:
    built: Any
    if kind == "ours":
        built = own_model(positions="learned", attn_only=True, n_layers=3)
        tokens, d_vocab = TOKENS, D_VOCAB
        swapped = copy.deepcopy(built)
        with_swapped_table(swapped.positions.table)
    else:
        built, swapped, d_vocab = bridged_model("gpt2"), bridged_model("gpt2"), VOCABULARY
        with_swapped_table(swapped.original_model.transformer.wpe.original_component.weight)
        tokens = TOKENS
    code = ni.fit_code(built, every_token_everywhere(d_vocab), layer=0, site="resid_pre")
    with torch.no_grad():
        before, expected = built(tokens), swapped(tokens)
        with ni.set_position(built, code, SWAP) as running:
            found = built(tokens)
            running.verify()
        assert torch.equal(built(tokens), before)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert (found - before).abs().max() > 0.05


def seen(built: Any) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    names = ["hook_resid_pre", *(f"attn.hook_{letter}" for letter in "qkv"), "attn.hook_pattern"]
    for name in names:
        stream(built, TOKENS, {f"blocks.1.{name}": lambda x, n=name: found.update({n: x.clone()})})
    return found


@pytest.mark.parametrize("kind", ["ours", "gpt2"])
def test_similarity_acts_in_the_scores_alone(kind: str) -> None:
    built: Any = own_model() if kind == "ours" else bridged_model("gpt2")
    fit = random_tokens(seed=7, batch=200, pos=LENGTH)
    code = ni.fit_code(built, fit, "similarity", layer=1, site="attn_in")
    before = seen(built)
    with ni.set_position(built, code, SWAP):
        found = seen(built)
    for name in ("hook_resid_pre", "attn.hook_v"):
        assert torch.equal(found[name], before[name]), name
    for name in ("attn.hook_q", "attn.hook_k", "attn.hook_pattern"):
        assert not torch.allclose(found[name], before[name], atol=1e-3), name


@pytest.mark.parametrize("route", ROUTES)
def test_a_head_reads_the_positional_part_by_its_weights(route: str) -> None:
    """The mean of what attention reads at 9 in place of that at 5, through one head's matrix."""
    built = own_model(positions="learned")
    fit = random_tokens(seed=7, batch=200, pos=LENGTH)
    code = ni.fit_code(built, fit, layer=1, site="attn_in")
    read = torch.zeros(LENGTH, built.cfg.d_model)
    stream(
        built, fit, {"blocks.1.attn.hook_in": lambda x: read.copy_(x.mean(dim=0))}, batch_size=200
    )
    before = seen(built)
    with ni.set_position(built, code, {5: 9}, routes=[route], heads=[2]):
        found = seen(built)
    name = f"attn.hook_{route[0]}"
    weight = getattr(built.blocks[1].attn, f"W_{route[0].upper()}")[2]
    moved = found[name] - before[name]
    expected = torch.zeros_like(moved)
    expected[:, 5, 2] = (read[9] - read[5]) @ weight
    torch.testing.assert_close(moved, expected, rtol=1e-3, atol=1e-5)
    assert moved.abs().max() > 1e-3


def test_a_dose_goes_its_share_of_the_way() -> None:
    built = own_model(positions="learned")
    code = ni.fit_code(built, every_token_everywhere(D_VOCAB), layer=0, site="resid_pre")
    found = []
    for dose in (0.25, 1.0):
        with ni.set_position(built, code, SWAP, dose=dose):
            stream(built, TOKENS, {"blocks.0.hook_resid_pre": lambda x: found.append(x.clone())})
    stream(built, TOKENS, {"blocks.0.hook_resid_pre": lambda x: found.append(x.clone())})
    quarter, whole, none = found
    torch.testing.assert_close(quarter - none, 0.25 * (whole - none), rtol=1e-3, atol=1e-5)
    others = [position for position in range(LENGTH) if position not in SWAP]
    assert torch.equal(whole[:, others], none[:, others])


@pytest.mark.parametrize("dose", [0.5, 1.0])
def test_the_control_moves_each_position_as_far_and_elsewhere(
    dose: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user, who may give NumPy's numbers
    built = own_model(positions="learned")
    fit = random_tokens(seed=7, batch=200, pos=LENGTH)
    code = ni.fit_code(built, fit, layer=0, site="resid_post")
    found = []

    def keep(x: Tensor) -> None:
        found.append(x.clone())

    for seed in (None, 0, np.int64(0), 1):
        with ni.set_position(built, code, SWAP, dose=dose, control=seed) as running:
            stream(built, TOKENS, {"blocks.0.hook_resid_post": keep})
            running.verify()
    stream(built, TOKENS, {"blocks.0.hook_resid_post": keep})
    moved, first, again, other = (one - found[-1] for one in found[:-1])
    at = list(SWAP)
    torch.testing.assert_close(first.norm(dim=-1), moved.norm(dim=-1), rtol=1e-3, atol=1e-5)
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, atol=1e-2)
    # It goes another way, and one of its own in each sequence.
    assert torch.cosine_similarity(first[:, at], moved[:, at], dim=-1).abs().max() < 0.95
    assert not torch.allclose(first[0, at], first[1, at], atol=1e-2)


def test_the_control_of_similarity_leaves_values_and_the_stream() -> None:
    built = own_model()
    fit = random_tokens(seed=7, batch=200, pos=LENGTH)
    code = ni.fit_code(built, fit, "similarity", layer=1, site="attn_in")
    before = seen(built)
    with ni.set_position(built, code, SWAP):
        moved = seen(built)
    with ni.set_position(built, code, SWAP, control=0):
        found = seen(built)
    for name in ("hook_resid_pre", "attn.hook_v"):
        assert torch.equal(found[name], before[name]), name
    for name in ("attn.hook_q", "attn.hook_k", "attn.hook_pattern"):
        assert not torch.allclose(found[name], before[name], atol=1e-3), name
        assert not torch.allclose(found[name], moved[name], atol=1e-3), name


def refused(
    name: str = "mean residual",
    site: str = "resid_post",
    moves: Mapping[int, int] = SWAP,
    **options: Any,
) -> str:
    built = own_model(positions="learned")
    fit = random_tokens(seed=7, batch=50, pos=LENGTH)
    fit[:, 3] = 7  # of the frame
    code = ni.fit_code(built, fit, name, layer=0, site=site)
    with (
        pytest.raises(UserError) as error,
        ni.set_position(built, code, moves, **options),
    ):
        built(TOKENS)
    return str(error.value)


def test_what_cannot_be_moved_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    assert "position 16 has no code of its own: give one of 1 to 15" in refused(moves={5: 16})
    assert "position 0 has no code" in refused(moves={0: 5})
    assert "position 3 has no code" in refused(moves={5: 3})
    assert "no position is moved" in refused(moves={})
    assert "give the position whose code each gets" in refused(moves=[4, 5])
    assert "dose is 2" in refused(dose=2.0)
    assert "dose is '1'" in refused(dose="1")
    assert "control is 0.5: give a whole number from 0" in refused(control=0.5)
    assert "routes are 'keys': give a list, such as ['keys']" in refused(routes="keys")
    assert "fit the code at site 'attn_in'" in refused(heads=[0])
    assert "did you mean 'keys'" in refused(site="attn_in", routes=["key"])
    assert "there is no head 3: choose from heads 0 to 2" in refused(site="attn_in", heads=[3])
    similarity = partial(refused, "similarity", "attn_in")
    assert "give each position a source of its own" in similarity(moves={9: 5})
    assert "leave dose out" in similarity(dose=0.5)
    for control in (None, 0):
        said = similarity(moves={1: 5}, control=control)
        assert "has no earlier one to resemble: move a later one" in said
    said = "not by routes ['keys', 'values']: choose among queries, keys."
    assert said in similarity(routes=["keys", "values"])


def test_a_codes_name_is_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    with (
        pytest.raises(UserError, match="code is 'mean residual': give what fit_code made"),
        ni.set_position(own_model(), "mean residual", SWAP),  # type: ignore[arg-type]
    ):
        pass


def test_a_site_that_carries_nothing_says_so() -> None:
    built = own_model()  # no positions: at the embedding there are none
    code = ni.fit_code(built, random_tokens(seed=7, batch=100, pos=LENGTH), site="resid_pre")
    with (
        pytest.raises(UserError, match=r"blocks\.0\.hook_resid_pre carries nothing of 'mean resid"),
        ni.set_position(built, code, SWAP),
    ):
        pass


def test_bad_fits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    built = own_model(positions="learned")
    with pytest.raises(UserError, match="did you mean 'mean residual'"):
        ni.fit_code(built, TOKENS, "mean residuals")
    with pytest.raises(UserError, match=r"in the scores alone.*fit it at site 'attn_in'"):
        ni.fit_code(built, TOKENS, "similarity")
    with pytest.raises(UserError, match="differ at 0 positions: give at least two"):
        ni.fit_code(built, TOKENS[:1])
    with pytest.raises(
        UserError, match=r"tokens have 1 axes: give a tensor, \[sequence, position\]"
    ):
        unfitted_code(TOKENS[0], "variance", Site(0, "resid_post"))
    with pytest.raises(UserError, match="did you mean 'attn_in'"):
        ni.fit_code(built, TOKENS, site="attn_inn")
    with pytest.raises(UserError, match="the model has no layer 5: choose from layers 0 to 1"):
        ni.fit_code(built, TOKENS, layer=5)
    code = ni.fit_code(built, random_tokens(seed=7, batch=50, pos=LENGTH), site="resid_pre")
    with (
        ni.set_position(built, code, {14: 15}),
        pytest.raises(UserError, match="8 positions and lack some"),
    ):
        built(TOKENS[:, :8])
