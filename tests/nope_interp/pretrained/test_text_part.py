"""Models that also read images: their text part gives what the whole model gives on text."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from nope_interp.errors import UserError
from nope_interp.positions.ablation import ablate_positions
from nope_interp.positions.layers import positions_in_words
from nope_interp.pretrained import dropped
from nope_interp.pretrained.dropped import drop_positions
from nope_interp.pretrained.load import load_plain, load_pretrained
from tests.first_attention import assert_same, differ
from tests.huggingface import logits_of, plain_model, save_folder
from tests.small_models import random_tokens

TOKENS = random_tokens(batch=2, pos=12).clamp(min=4)
_VISION = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}
_PROJECTED = {"vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16}
_GEMMA4_VISION = {
    **_VISION,
    "model_type": "gemma4_vision",
    "head_dim": 8,
    "num_key_value_heads": 2,
    "position_embedding_size": 16,
}
_DEPTH = {"hidden_size": 16, "depth": 1, "num_heads": 2, "out_hidden_size": 32}
# By type: the family of its text part, the whole model's class, its config's, and its options.
WHOLE: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "gemma3": (
        "gemma3",
        "Gemma3ForConditionalGeneration",
        "Gemma3Config",
        {"vision_config": _VISION, "mm_tokens_per_image": 4, "image_token_index": 3},
    ),
    "gemma4": ("gemma4", "Gemma4ForConditionalGeneration", "Gemma4Config", {"image_token_id": 3}),
    "gemma4_shared": (
        "gemma4_shared",
        "Gemma4ForConditionalGeneration",
        "Gemma4Config",
        {"image_token_id": 3, "vision_config": _GEMMA4_VISION},
    ),
    "llama4": (
        "llama4",
        "Llama4ForConditionalGeneration",
        "Llama4Config",
        {"vision_config": {**_VISION, **_PROJECTED}},
    ),
    "mistral3": (
        "ministral3",
        "Mistral3ForConditionalGeneration",
        "Mistral3Config",
        {"vision_config": {**_VISION, "model_type": "pixtral"}, "image_token_index": 3},
    ),
    "mistral3_untied": (
        "mistral",
        "Mistral3ForConditionalGeneration",
        "Mistral3Config",
        {
            "vision_config": {**_VISION, "model_type": "pixtral"},
            "image_token_index": 3,
            "tie_word_embeddings": False,
        },
    ),
    "qwen3_5": (
        "qwen3_5",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5Config",
        {"vision_config": _DEPTH, "image_token_id": 3, "video_token_id": 3},
    ),
}


def whole_model(kind: str) -> Any:
    family, model, config, options = WHOLE[kind]
    text = plain_model(family).config.to_dict()
    torch.manual_seed(0)
    built = getattr(transformers, config)(text_config=text, **options)
    whole = getattr(transformers, model)(built).eval()
    with torch.no_grad():
        for weight in whole.parameters():
            if weight.ndim == 2:  # so that attention is far from uniform
                weight.mul_(5)
    return whole


def renamed(folder: Path, old: str, new: str) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    assert any(name.startswith(old) for name in tensors)
    changed = {
        new + name.removeprefix(old) if name.startswith(old) else name: tensor
        for name, tensor in tensors.items()
    }
    save_file(changed, path, metadata={"format": "pt"})


@pytest.mark.parametrize("kind", WHOLE)
def test_the_text_part_gives_the_whole_models_logits(kind: str, tmp_path: Path) -> None:
    whole = whole_model(kind)
    folder = save_folder(whole, tmp_path / "m")
    loaded = load_pretrained(folder)
    with torch.no_grad():
        assert_same(loaded.model(TOKENS), whole(TOKENS, use_cache=False).logits)
        assert "only the part that reads text" in loaded.notes[0]
        assert "rotary" in positions_in_words(loaded.model)
        with ablate_positions(loaded.model) as ablation:
            assert differ(loaded.model(TOKENS), whole(TOKENS, use_cache=False).logits)
            ablation.verify()


def test_both_ways_of_naming_its_tensors_are_read(tmp_path: Path) -> None:
    folder = save_folder(whole_model("gemma3"), tmp_path / "m")
    expected = load_pretrained(folder).model(TOKENS)
    renamed(folder, "language_model.model.", "model.language_model.")
    renamed(folder, "vision_tower.", "model.vision_tower.")
    renamed(folder, "multi_modal_projector.", "model.multi_modal_projector.")
    assert torch.equal(load_pretrained(folder).model(TOKENS), expected)


@pytest.mark.parametrize("kind", ["mistral3", "qwen3_5", "gemma4", "gemma4_shared"])
def test_a_text_part_whose_positions_were_dropped_is_a_model_of_its_own(
    kind: str, tmp_path: Path
) -> None:
    model, tokenizer, _ = load_plain(save_folder(whole_model(kind), tmp_path / "whole"))
    drop_positions(model)
    expected = logits_of(model, TOKENS)
    loaded = load_pretrained(dropped.save_folder(model, tokenizer, tmp_path / "dropped"))
    assert_same(logits_of(loaded.model.original_model, TOKENS), expected)
    assert "no positional encoding" in loaded.notes[0]


def test_its_config_is_checked_as_that_of_its_family(tmp_path: Path) -> None:
    folder = save_folder(whole_model("gemma3"), tmp_path / "m")
    without = load_pretrained(folder, positions="none").model
    assert positions_in_words(without) == "none"
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["text_config"]["nope"] = True
    path.write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"nope.*give positions none"):
        load_pretrained(folder)


def test_a_tensor_of_text_without_a_place_is_refused(tmp_path: Path) -> None:
    folder = save_folder(whole_model("gemma3"), tmp_path / "m")
    path = folder / "model.safetensors"
    more = "language_model.model.layers.0.self_attn.sinks"
    save_file({**load_file(path), more: torch.ones(4)}, path, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"1 tensors .* such as model\.layers\.0\.self_attn\.sinks"):
        load_pretrained(folder)
