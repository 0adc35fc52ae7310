"""Dropped positions and scaled ones, against transformers with rotary patched by hand."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama

from nope_interp.errors import UserError
from nope_interp.pretrained.dropped import check_droppable, drop_positions, save_folder
from nope_interp.pretrained.load import load_plain, load_pretrained
from nope_interp.pretrained.scaled import SCALINGS, can_be_scaled, scaled_rotary
from tests.byte_llama import byte_llama
from tests.huggingface import VOCABULARY, plain_model
from tests.huggingface import save_folder as saved

TOKENS = torch.randint(VOCABULARY, (2, 24), generator=torch.Generator().manual_seed(0))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS, use_cache=False).logits


def test_a_dropped_llama_is_one_whose_queries_and_keys_are_not_turned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = byte_llama(tmp_path / "llama")
    model, tokenizer, _ = load_plain(str(folder))
    drop_positions(model)
    plain = AutoModelForCausalLM.from_pretrained(folder)
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda q, k, *args, **more: (q, k))
    assert torch.equal(logits(model), logits(plain))
    capfd.readouterr()
    kept = save_folder(model, tokenizer, tmp_path / "dropped")
    assert capfd.readouterr().err == ""
    assert {path.name for path in tmp_path.iterdir()} == {"llama", "dropped"}
    again = load_pretrained(str(kept))
    assert any("no positional encoding" in note for note in again.notes)
    assert torch.equal(logits(load_plain(str(kept))[0]), logits(plain))
    assert again.tokenizer("ab").input_ids == tokenizer("ab").input_ids


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_norms_of_queries_and_keys_are_saved_as_they_are_published(
    family: str, tmp_path: Path
) -> None:
    folder = saved(plain_model(family), tmp_path / family)
    model, tokenizer, _ = load_plain(str(folder))
    drop_positions(model, qk_norm=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "_proj.norm." in name:
                parameter.uniform_(0.5, 2)
    kept = save_folder(model, tokenizer, tmp_path / "dropped")
    config = json.loads((kept / "config.json").read_text())
    assert config["model_type"] == f"{family}_drope"
    assert config["attention_type"] == "qk_norm_nope"
    again = load_pretrained(str(kept))
    torch.testing.assert_close(logits(again.model.original_model), logits(model))
    plain, _, _ = load_plain(str(folder))
    drop_positions(plain)
    assert (logits(plain) - logits(model)).abs().max() > 1e-2


def test_what_has_nothing_to_drop_is_refused(tmp_path: Path) -> None:
    gpt2 = plain_model("gpt2")
    with pytest.raises(UserError, match="'gpt2' has no rotary positions to drop"):
        check_droppable(gpt2, "gpt2")
    llama, _, _ = load_plain(str(byte_llama(tmp_path / "llama")), positions="none")
    with pytest.raises(UserError, match="no rotary positions to drop"):
        check_droppable(llama, "llama")
    with pytest.raises(UserError, match="'g' is of the family 'gemma3_text', and only models of"):
        check_droppable(plain_model("gemma3"), "g", qk_norm=True)


def test_scaled_frequencies_are_those_of_the_papers(tmp_path: Path) -> None:
    model, _, _ = load_plain(str(byte_llama(tmp_path / "llama", head_dim=16)))
    own, size, factor = model.model.rotary_emb.inv_freq.clone(), 16, 4.0
    before = logits(model)
    found = {}
    for scaling in SCALINGS:
        with scaled_rotary(model, scaling, 128, 512):
            found[scaling] = model.model.rotary_emb.inv_freq.clone()
            if scaling == "YaRN":
                # Peng et al.: scores are divided by the square of 0.1 ln(s) + 1.
                yarn = 0.1 * math.log(factor) + 1
                assert model.model.rotary_emb.attention_scaling == pytest.approx(yarn)
            assert not torch.equal(logits(model), before)
    assert torch.equal(logits(model), before)
    torch.testing.assert_close(found["position interpolation"], own / factor)
    base = 10_000 * factor ** (size / (size - 2))
    ntk = base ** (-torch.arange(0, size, 2) / size)
    torch.testing.assert_close(found["NTK"], ntk.float())
    assert found["NTK"][-1] == pytest.approx(float(own[-1]) / factor)
    turns = 128 * own / (2 * math.pi)  # over the context
    assert torch.equal(found["YaRN"][turns > 32], own[turns > 32])
    torch.testing.assert_close(found["YaRN"][turns < 1], own[turns < 1] / factor)


def test_the_only_frequency_of_a_head_is_the_highest_and_stays(tmp_path: Path) -> None:
    model, _, _ = load_plain(str(byte_llama(tmp_path / "llama", head_dim=2)))
    own = model.model.rotary_emb.inv_freq.clone()
    with scaled_rotary(model, "NTK", 128, 512):
        assert torch.equal(model.model.rotary_emb.inv_freq, own)


def test_layers_with_a_window_and_models_without_frequencies_are_not_scaled() -> None:
    gemma = plain_model("gemma3")
    local = gemma.model.rotary_emb.sliding_attention_inv_freq.clone()
    with scaled_rotary(gemma, "NTK", 16, 64):
        assert torch.equal(gemma.model.rotary_emb.sliding_attention_inv_freq, local)
    assert not can_be_scaled(plain_model("gptj"))
    assert not can_be_scaled(plain_model("llama_yarn"))
    dropped = plain_model("llama")
    drop_positions(dropped)
    assert not can_be_scaled(dropped)
