"""What leads heads to their token, where it is known: in heads built by hand, and in Gemma."""

import math
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import nope_interp as ni
from experiments import HeadsConfig, classify_heads
from experiments.heads import classify
from experiments.heads import found_by as asking
from experiments.heads.found_by import _far_seeing, _taken, finders, left_out_of_finders
from experiments.results.found_by import NOBODY, Finding, FoundBy, told
from nope_interp import memory
from nope_interp.constructions.barbero import positional_head
from nope_interp.constructions.kazemnejad import counting_config, relative_position
from nope_interp.errors import UserError
from nope_interp.interventions.reading import read_changed
from nope_interp.models.checkpoints import save_model
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.positions.layers import layer_positions
from nope_interp.streams import read_at
from nope_interp.tasks.registry import make_task
from tests.gemma import first_blocks
from tests.huggingface import plain_model, save_folder, words

LENGTH, N = 32, 13
SIZES = {"n_layers": 1, "d_model": 64, "n_heads": 1, "d_vocab": 64, "n_ctx": LENGTH}


def texts(seed: int = 0) -> Tensor:
    """In each no token comes twice."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(64, generator=generator)[:LENGTH] for _ in range(N)])


def found(model: HookedTransformer, offset: int, shift: int = 5, batch_size: int = 5) -> Any:
    return finders(model, texts(), [offset], shift, batch_size=batch_size, seed=0)[0]


def bare(**changes: Any) -> HookedTransformer:
    """One head without a norm, whose queries and keys read nothing yet; in double precision."""
    kind = {"normalization": "none", "attn_only": True, "attn_scale": 1.0}
    model = HookedTransformer(TransformerConfig.from_dict({**SIZES, **kind, **changes})).double()
    with torch.no_grad():
        for weight in (model.blocks[0].attn.qkv.weight, model.blocks[0].attn.qkv.bias):
            weight.zero_()
    return model


def set_maps(model: HookedTransformer, queries: Tensor, keys: Tensor) -> None:
    with torch.no_grad():
        model.blocks[0].attn.W_Q[0], model.blocks[0].attn.W_K[0] = queries, keys


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_heads_that_turn_with_position_are_found_by_any_query(offset: int) -> None:
    config = TransformerConfig.from_dict({**SIZES, "positions": "rotary"})
    row = found(positional_head(config, offset, strength=3.0), offset).loc[0]
    assert row["word"] == FoundBy.ANY_QUERY
    np.testing.assert_allclose([row["any_query"], row["place"], row["text"]], [1, 0, 0], atol=0.02)


def test_theorem_2s_head_is_found_by_any_query() -> None:
    """Its queries add -n to all scores alike, which softmax drops: its keys, m, tell recency."""
    config = counting_config(LENGTH, d_vocab=64, d_model=4, n_heads=1)
    model = relative_position(config, begin_token=0).model
    with torch.no_grad():
        model.blocks[1].attn.W_Q[0, 3:] = 0  # no content
    tokens = torch.cat([torch.zeros(N, 1, dtype=torch.long), 1 + texts()[:, 1:] % 63], dim=1)
    (table,) = finders(model, tokens, [0], 5, batch_size=12, seed=0)
    row = table[table["layer"] == 1].iloc[0]
    assert row["word"] == FoundBy.ANY_QUERY
    # Weights e^m over their sum: 1 - 1/e on the last key.
    assert row["value"] == pytest.approx(1 - np.exp(-1), abs=1e-3)
    assert row["any_query"] == pytest.approx(1, abs=1e-3)


def test_heads_whose_queries_name_a_place_are_found_by_it() -> None:
    """Learned positions; the query of place t is the key of place t - 1."""
    model = bare(positions="learned")
    with torch.no_grad():
        model.W_E.zero_()
        model.positions.table.copy_(torch.eye(64)[:LENGTH])
    set_maps(model, 20 * torch.eye(64).roll(-1, dims=1), torch.eye(64))
    row = found(model, 1).loc[0]
    assert row["word"] == FoundBy.PLACE
    assert row["value"] > 0.99
    np.testing.assert_allclose([row["any_query"], row["place"], row["text"]], [0, 1, 0], atol=0.02)


def naming_tokens(recency: float = 0.0) -> HookedTransformer:
    """No positions; a query is its own token's key. Keys count, too, by learned positions that no
    query reads, where they tell recency."""
    model = bare(positions="learned", d_model=128)
    with torch.no_grad():
        model.W_E.zero_()
        model.W_E[:, :64] = torch.eye(64)
        model.positions.table.zero_()
        model.positions.table[:, 64] = recency * torch.arange(LENGTH)
        model.positions.table[:, 65] = 1
    queries, keys = torch.zeros(128, 128), torch.zeros(128, 128)
    queries[:64, :64], keys[:64, :64] = 20 * torch.eye(64), torch.eye(64)
    queries[65, 65], keys[64, 65] = 1, 1
    set_maps(model, queries, keys)
    return model


@pytest.mark.parametrize("recency", [0.0, 0.5])
@pytest.mark.parametrize("batch_size", [2, 3, 4, 12, 32])
def test_heads_whose_queries_name_a_token_are_found_by_their_text(
    batch_size: int, recency: float
) -> None:
    """Also where any query would find the newest key; and no text stands in for itself."""
    row = found(naming_tokens(recency), 0, batch_size=batch_size).loc[0]
    assert row["word"] == FoundBy.TEXT
    assert row["text"] > 0.85
    # By accident some other texts have the token.
    np.testing.assert_allclose([row["any_query"], row["place"]], [0, 0], atol=0.1)


def test_a_head_that_only_keys_lead_is_found_by_any_query() -> None:
    model = naming_tokens(recency=1.0)
    with torch.no_grad():
        model.blocks[0].attn.W_Q[0, :64] = 0
    assert found(model, 0).loc[0, "word"] == FoundBy.ANY_QUERY


@pytest.mark.parametrize("strength", [2, 3])
def test_of_a_head_that_two_things_lead_each_has_its_share(strength: float) -> None:
    """Halves of its scores come from the place and from the text; together they find all. What
    neither finds alone is its text's."""
    model = bare(positions="learned", d_model=128)
    with torch.no_grad():
        model.W_E.zero_()
        model.W_E[:, :64] = torch.eye(64)
        model.positions.table.zero_()
        model.positions.table[:, 64 : 64 + LENGTH] = torch.eye(LENGTH)
    set_maps(model, strength * torch.eye(128), torch.eye(128))
    row = found(model, 0).loc[0]
    both, one = (math.exp(n * strength) for n in (2, 1))
    keys = 18  # that a query sees beside, on average
    alone, together = one / (one + keys), both / (both + keys)
    assert row["place"] == pytest.approx(alone / together, abs=0.1)
    assert row["place"] + row["text"] == pytest.approx(1, abs=0.05)
    if strength == 2:
        assert row["word"] == FoundBy.TEXT


def test_heads_that_look_elsewhere_have_no_row() -> None:
    model = bare()
    assert found(model, 1).empty  # equal weights


@given(st.integers(1, 4), st.booleans(), st.integers(2, 5), st.integers(5, 9))
def test_what_is_taken_comes_from_there(shift: int, other: bool, batch: int, pos: int) -> None:
    of = torch.arange(batch * pos).reshape(batch, pos, 1).double()
    taken = _taken(of, shift, other)
    for b in range(batch):
        for t in range(pos):
            assert taken[b, t, 0] == of[(b - other) % batch, max(0, t - shift), 0]


@pytest.mark.parametrize("family", ["gemma3", "gpt2", "bloom"])
def test_one_pass_shows_what_a_pass_with_one_layer_changed_shows(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "WORTH_NAMING", -2.0)  # untrained heads look nowhere
    model = ni.load(save_folder(plain_model(family), tmp_path)).model
    tokens = torch.randint(2, 60, (4, 14), generator=torch.Generator().manual_seed(0))
    (table,) = finders(model, tokens, [1], 3, batch_size=4, seed=0)
    assert len(table) == model.cfg.n_layers * model.cfg.n_heads
    for layer, rows in table.sort_values("head").groupby("layer"):
        own = above_reference(model, tokens, layer, None)
        same, other = (
            above_reference(model, tokens, layer, partial(_taken, shift=3, other=of))
            for of in (False, True)
        )
        expected = {
            "any_query": np.minimum(same[0], other[0]),
            "place": other[1] - own[1],
            "text": same[1] - other[1],
        }
        for name, weights in expected.items():
            np.testing.assert_allclose(rows[name], weights / own[0], rtol=1e-3, atol=1e-4)


def above_reference(model: Any, tokens: Tensor, layer: int, change: Any) -> np.ndarray:
    """The mean weight on the token before, and on that 3 further back, above that on the reference
    token, `[place head]`; with other queries in this layer."""
    changed = read_changed(model, {layer: change}, ("queries",)) if change else nullcontext()
    name = f"blocks.{layer}.attn.hook_pattern"
    with changed:
        (pattern,) = read_at(model, tokens, {name: Tensor.clone})[name]
    # Of all queries that have the token 7 back behind the first one.
    here, there, reference = (
        pattern.diagonal(-back, -2, -1)[..., 8 - back :].double().mean(dim=(0, 2)).numpy()
        for back in (1, 4, 7)
    )
    return np.stack([here - reference, there - reference])


@pytest.mark.parametrize("family", ["gemma3", "qwen3", "gpt2"])
def test_a_bridges_queries_become_those_of_the_other_place(family: str, tmp_path: Path) -> None:
    """In the first layer, whose input is known: also behind a norm of queries."""
    lm = ni.load(save_folder(plain_model(family), tmp_path))
    tokens = torch.arange(2, 26).reshape(2, 12)
    own = queries(lm.model, tokens)
    with read_changed(lm.model, {0: lambda x: _taken(x, 3, True)}, ("queries",)):
        changed = queries(lm.model, tokens)
    torch.testing.assert_close(changed, _taken(own, 3, True), rtol=1e-4, atol=1e-5)


def queries(model: Any, tokens: Tensor) -> Tensor:
    return read_at(model, tokens, {"blocks.0.attn.hook_q": lambda x: x.flatten(2).clone()})[
        "blocks.0.attn.hook_q"
    ][0]


def test_the_word_needs_a_sure_half() -> None:
    low, half = (0.1, 0.0, 0.2), (0.6, 0.5, 0.7)
    assert Finding(half, low, low).word == FoundBy.ANY_QUERY
    assert Finding(low, half, low).word == FoundBy.PLACE
    assert Finding(low, low, half).word == FoundBy.TEXT
    assert Finding(low, (0.6, 0.49, 0.7), low).word == FoundBy.NONE


def test_a_layer_whose_window_ends_before_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "WORTH_NAMING", -2.0)  # untrained heads look nowhere
    lm = ni.load(save_folder(plain_model("gemma3"), tmp_path))
    windows = {at.layer: at.window for at in layer_positions(lm.model)}
    short = [layer for layer, window in windows.items() if window is not None]
    assert 0 < len(short) < len(windows)
    assert _far_seeing(lm.model, windows[short[0]]) == [at for at in windows if at not in short]
    assert _far_seeing(lm.model, windows[short[0]] - 1) == [*windows]
    tokens = torch.randint(2, 60, (6, 60), generator=torch.Generator().manual_seed(0))
    shift = windows[short[0]] // 2
    # One offset is seen from everywhere, the other not.
    near, far = finders(lm.model, tokens, [0, 2 * shift], 1, batch_size=6, seed=0)
    assert set(near["layer"]) == set(windows)
    assert set(far["layer"]) == set(windows) - set(short)


def test_layers_that_are_left_out_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "WORTH_NAMING", -2.0)  # untrained heads look nowhere
    file = tmp_path / "text.txt"
    file.write_text(words(4000), encoding="utf-8")
    lm = ni.load(save_folder(plain_model("gemma3"), tmp_path), text=str(file))
    told = "windows of layer 0 end before the token 17 back; left out here"
    with pytest.warns(UserWarning, match=told):
        table = lm.heads_find_by(1, n_sequences=16, seq_len=32)
    assert set(table["layer"]) == {1}
    assert left_out_of_finders(lm.model).endswith(told + ".")


def test_where_no_layer_sees_so_far_it_is_said(tmp_path: Path) -> None:
    lm = ni.load(save_folder(plain_model("mistral"), tmp_path))
    tokens = torch.randint(2, 60, (6, 60), generator=torch.Generator().manual_seed(0))
    with pytest.raises(UserError, match="no layer sees the token 50 back: give a smaller offset"):
        finders(lm.model, tokens, [0], 25, batch_size=6, seed=0)


def test_memory_for_whole_maps_is_asked_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2.0**23)
    with pytest.raises(UserError, match="seq_len is 128: a pass takes about"):
        ni.load().heads_find_by(1, n_sequences=16)


def test_a_single_text_has_no_other() -> None:
    with pytest.raises(UserError, match="a single sequence has no other text beside it"):
        finders(bare(), texts()[:1], [0], 3, batch_size=4, seed=0)


def test_a_models_task_is_no_text(tmp_path: Path) -> None:
    config = TransformerConfig(1, 8, 1, d_vocab=make_task("reversal").d_vocab, n_ctx=64)
    file = save_model(HookedTransformer(config), tmp_path / "model.safetensors", task="reversal")
    with pytest.raises(UserError, match="examples have tokens in common: give a model of text, so"):
        ni.load(file).heads_find_by(1, n_sequences=16)


def test_nonsense_is_one_sentence(tmp_path: Path) -> None:
    lm = ni.load()
    for offset, shift, said in ((-1, 8, "offset is -1"), (1, 0, "shift is 0")):
        with pytest.raises(UserError, match=said):
            lm.heads_find_by(offset, shift=shift)
    with pytest.raises(UserError, match="too short for a token 120 back"):
        lm.heads_find_by(120, seq_len=128)
    drawn = HookedTransformer(lm.model.config)
    untrained = ni.load(save_model(drawn, tmp_path / "model.safetensors", task="text"))
    with pytest.raises(UserError, match=r"no head of .* surely puts 0.1"):
        untrained.heads_find_by(1, n_sequences=16, seq_len=32)


def test_a_classification_has_what_is_asked_of_the_model(tmp_path: Path) -> None:
    """The same texts, read beside all else; it comes back from the run's folder."""
    run = classify_heads(out=tmp_path, quick=True, show_progress=False)
    asked = ni.load().heads_find_by(0, n_sequences=16)
    own = run.finders[run.finders["token"] == "own"].drop(columns="token")
    pd.testing.assert_frame_equal(own.reset_index(drop=True), asked, check_dtype=False)
    by = asked.set_index(["layer", "head"])["word"]
    table = run.heads.set_index(["layer", "head"])["finds_itself_by"].dropna()
    assert table.to_dict() == by.to_dict()
    assert f"{len(asked)} of 16 heads favour their own token by 0.1" in " ".join(run.finding)


def test_what_a_classification_cannot_ask_is_a_note(tmp_path: Path) -> None:
    """Every layer's window ends before; the labels are there all the same."""
    text = tmp_path / "text.txt"
    text.write_text(words(4000), encoding="utf-8")
    config = HeadsConfig(
        model=str(save_folder(plain_model("mistral"), tmp_path / "model")),
        text=str(text),
        seq_len=40,
        n_sequences=16,
        quick=True,
    )
    run = classify_heads(config, out=tmp_path, show_progress=False)
    assert run.finders.empty
    (why,) = run.finding
    said = "How heads find their tokens was not read: no layer sees the token 16 back"
    assert why.startswith(said)
    assert why in run.info["notes"]
    assert len(run.heads)


def test_examples_of_a_task_are_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = Path(__file__).parents[3] / "examples" / "copy-rsc.safetensors"
    asked = HeadsConfig(
        model=str(shipped), task="copy-rsc", lengths=(2, 8), seq_len=36, n_sequences=16, quick=True
    )
    monkeypatch.setattr(classify, "finders_in_text", None)
    run = classify_heads(asked, out=tmp_path, show_progress=False)
    assert run.finders.empty
    assert run.finding == ["How heads find their tokens is read in text, not in tasks."]


@given(st.lists(st.sampled_from(list(FoundBy)), max_size=5), st.integers(0, 3))
def test_a_sentence_counts_heads_by_their_word(found: list[FoundBy], n_before: int) -> None:
    before = [FoundBy.PLACE] * n_before
    tokens = ["previous"] * n_before + ["own"] * len(found)
    said = told(pd.DataFrame({"token": tokens, "word": before + found}), 8)
    expected = [of for of in (before, found) if of]
    assert said == [NOBODY] if not expected else len(said) == len(expected)
    for sentence, of in zip(said, expected, strict=False):
        assert sentence.startswith(
            f"{len(of)} of 8 heads {'favours' if len(of) == 1 else 'favour'}"
        )
        counts = sentence.split(". By ")[1:]
        assert sorted(count.removesuffix(".") for count in counts) == sorted(
            f"{word}: {of.count(word)}" for word in set(of)
        )


@pytest.mark.slow
def test_gemmas_previous_token_head_is_found_by_any_query(tmp_path: Path) -> None:
    """L2H3: rotary positions act in the scores (Barbero et al. 2024)."""
    lm = ni.load(first_blocks(3, tmp_path))
    table = lm.heads_find_by(1, n_sequences=16, seq_len=64)
    row = table[(table["layer"] == 2) & (table["head"] == 3)].iloc[0]
    assert row["word"] == FoundBy.ANY_QUERY
    assert abs(row["place"]) < 0.05
    assert abs(row["text"]) < 0.05
