"""GGUF files: the rotation that they name, and weights that they lack or that have no place."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader, GGUFWriter, RopeScalingType
from transformers import Phi3Config
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from nope_interp.errors import UserError
from nope_interp.positions.layers import describe_positions, rotary_attribute
from nope_interp.pretrained.gguf_rotation import follow_rotation, follow_window
from nope_interp.pretrained.load import load_pretrained
from tests.gguf_writing import finish
from tests.huggingface import word_tokenizer

WIDTH, INNER, LAYERS, HEADS, GROUPS, KINDS, BASE = 64, 128, 2, 4, 2, 60, 20_000.0
TURNED = WIDTH // HEADS
INVERSE = BASE ** (-np.arange(0, TURNED, 2) / TURNED)
TOKENS = torch.arange(3, 43)[None]
PHI3: dict[str, Any] = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "pad_token_id": 0}


def tensors() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray:
        return (0.3 * generator.standard_normal(shape)).astype(np.float32)

    shared = GROUPS * TURNED
    found = {
        "token_embd.weight": drawn(KINDS, WIDTH),
        "output_norm.weight": np.ones(WIDTH, np.float32),
        "output.weight": drawn(KINDS, WIDTH),
    }
    for layer in range(LAYERS):
        of_layer = {
            "attn_q": drawn(WIDTH, WIDTH),
            "attn_k": drawn(shared, WIDTH),
            "attn_v": drawn(shared, WIDTH),
            "attn_output": drawn(WIDTH, WIDTH),
            "ffn_gate": drawn(INNER, WIDTH),
            "ffn_up": drawn(INNER, WIDTH),
            "ffn_down": drawn(WIDTH, INNER),
            "attn_norm": np.ones(WIDTH, np.float32),
            "ffn_norm": np.ones(WIDTH, np.float32),
        }
        found |= {f"blk.{layer}.{name}.weight": of for name, of in of_layer.items()}
    return found


def llama(path: Path, values: Mapping[str, np.ndarray], **scaling: Any) -> str:
    """A Llama of these tensors; its rotation has a type, factor, original and attn_factor."""
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(BASE)
    writer.add_rope_dimension_count(TURNED)
    writer.add_vocab_size(KINDS)
    for name, add in {
        "type": lambda kind: writer.add_rope_scaling_type(RopeScalingType(kind)),
        "factor": writer.add_rope_scaling_factor,
        "original": writer.add_rope_scaling_orig_ctx_len,
        "attn_factor": writer.add_rope_scaling_attn_factors,
    }.items():
        if name in scaling:
            add(scaling[name])
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(3, KINDS))])
    writer.add_token_scores([0.0] * KINDS)
    writer.add_token_types([2, 3, 3] + [1] * (KINDS - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for name, value in values.items():
        writer.add_tensor(name, value)
    finish(writer)
    return str(path)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOPE_INTERP_CACHE", str(tmp_path / "cache"))


def logits(model: Any, **how: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.original_model(TOKENS, use_cache=False, **how).logits


def test_a_file_without_scaling_rotates_by_its_base(tmp_path: Path) -> None:
    for scaling in ({}, {"type": "none"}):
        model = load_pretrained(llama(tmp_path / "m.gguf", tensors(), **scaling)).model
        np.testing.assert_allclose(rotary_attribute(model, 0, "inv_freq"), INVERSE, rtol=1e-6)
        assert "base 20,000, 16 dimensions" in describe_positions(model)


def test_linear_scaling_reads_positions_as_if_they_were_nearer(tmp_path: Path) -> None:
    plain = load_pretrained(llama(tmp_path / "plain.gguf", tensors())).model
    path = llama(tmp_path / "linear.gguf", tensors(), type="linear", factor=4.0)
    scaled = load_pretrained(path).model
    nearer = torch.arange(TOKENS.shape[1])[None] / 4
    # Without a mask transformers takes such positions for several sequences in one row.
    mask = torch.ones_like(TOKENS)
    expected = logits(plain, position_ids=nearer, attention_mask=mask)
    torch.testing.assert_close(logits(scaled), expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits(scaled), logits(plain))


def test_yarn_keeps_fast_turns_and_slows_the_others(tmp_path: Path) -> None:
    """Peng et al. 2023: slowed by all of the factor where less than one turn fits the context."""
    path = llama(tmp_path / "y.gguf", tensors(), type="yarn", factor=4.0, original=1024)
    model = load_pretrained(path).model
    found = rotary_attribute(model, 0, "inv_freq").numpy()
    turns = 1024 * INVERSE / (2 * np.pi)
    np.testing.assert_allclose(found[turns > 32], INVERSE[turns > 32], rtol=1e-5)
    np.testing.assert_allclose(found[turns < 1], INVERSE[turns < 1] / 4, rtol=1e-5)
    assert rotary_attribute(model, 0, "attention_scaling") == pytest.approx(1 + 0.1 * np.log(4))


def test_a_files_own_frequencies_are_followed(tmp_path: Path) -> None:
    """As files of Llama 3.1 and later have them."""
    factors = np.array([1, 1, 1, 2, 5, 8, 8, 8], np.float32)
    path = llama(tmp_path / "f.gguf", {**tensors(), "rope_freqs.weight": factors})
    model = load_pretrained(path).model
    found = rotary_attribute(model, 0, "inv_freq")
    np.testing.assert_allclose(found, INVERSE / factors, rtol=1e-6)
    assert rotary_attribute(model, 0, "attention_scaling") == 1
    logits(model)
    np.testing.assert_allclose(rotary_attribute(model, 0, "inv_freq"), found)


@pytest.mark.parametrize(
    ("scaling", "others"),
    [
        ({"type": "yarn", "factor": 4.0}, {}),
        ({"type": "linear"}, {}),
        ({"type": "longrope", "factor": 4.0}, {}),
        ({"type": "yarn", "factor": 4.0, "original": 1024, "attn_factor": 2.0}, {}),
        ({}, {"rope_factors_long.weight": np.ones(TURNED // 2, np.float32)}),
        (
            {"type": "linear", "factor": 4.0},
            {"rope_freqs.weight": np.ones(TURNED // 2, np.float32)},
        ),
    ],
)
def test_a_scaling_that_cannot_be_followed_is_refused(
    tmp_path: Path, scaling: dict[str, Any], others: dict[str, np.ndarray]
) -> None:
    path = llama(tmp_path / "m.gguf", {**tensors(), **others}, **scaling)
    with pytest.raises(UserError, match=r"'m\.gguf' scales its rotary positions in a way that is"):
        load_pretrained(path)


def test_weights_that_a_file_lacks_or_that_have_no_place_are_refused(tmp_path: Path) -> None:
    lacking, more = tensors(), tensors()
    del lacking["blk.1.attn_k.weight"]
    more["blk.0.attn_q.bias"] = np.ones(WIDTH, np.float32)
    for values, told in (
        (lacking, r"lacks 1 of the model's weights, such as model\.layers\.1\.self_attn\.k_proj"),
        (more, r"has 1 tensors that the model has no place for, such as blk\.0\.attn_q\.bias"),
    ):
        with pytest.raises(UserError, match=told):
            load_pretrained(llama(tmp_path / "m.gguf", values))


def described(path: Path, family: str, **values: int) -> GGUFReader:
    """A file that says these values of a model of this family, and has no tensors."""
    writer = GGUFWriter(path, family)
    for key, value in values.items():
        writer.add_uint32(f"{family}.{key.replace('__', '.')}", value)
    finish(writer)
    return GGUFReader(str(path))


def test_as_much_of_a_head_turns_as_the_file_says(tmp_path: Path) -> None:
    config = Phi3Config(**PHI3)
    follow_rotation(described(tmp_path / "m.gguf", "phi3", rope__dimension_count=12), config, "m")
    assert config.rope_parameters["partial_rotary_factor"] == 0.75
    assert Phi3RotaryEmbedding(config).inv_freq.shape == (6,)


def test_a_window_is_the_one_that_the_file_says(tmp_path: Path) -> None:
    reader = described(tmp_path / "m.gguf", "phi3", attention__sliding_window=2047)
    for own, followed in ((None, 2047), (99, 99)):
        config = Phi3Config(**PHI3, sliding_window=own)
        follow_window(reader, config)
        assert config.sliding_window == followed
    config = Phi3Config(**PHI3)
    follow_window(described(tmp_path / "n.gguf", "phi3", attention__sliding_window=0), config)
    assert config.sliding_window is None


def test_a_file_has_no_revisions(tmp_path: Path) -> None:
    path = llama(tmp_path / "m.gguf", tensors())
    with pytest.raises(
        UserError, match=r"m\.gguf' is a local file and has no revisions: leave rev"
    ):
        load_pretrained(path, revision="main")


def test_what_lies_beside_a_file_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda said="": pytest.fail(f"asked: {said}"))
    path = llama(tmp_path / "m.gguf", tensors())
    word_tokenizer().save_pretrained(tmp_path)
    told = tmp_path / "tokenizer_config.json"
    own = {"auto_map": {"AutoTokenizer": ["evil.Own", None]}, "tokenizer_class": "Own"}
    told.write_text(json.dumps(json.loads(told.read_text()) | own))
    (tmp_path / "evil.py").write_text("raise SystemExit('code of the folder ran')")
    tokenizer = load_pretrained(path).tokenizer
    assert tokenizer.convert_ids_to_tokens([3, KINDS - 1]) == ["w3", f"w{KINDS - 1}"]


def test_what_an_older_conversion_left_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = llama(tmp_path / "m.gguf", tensors(), type="linear", factor=4.0)
    load_pretrained(path)
    [complete] = (tmp_path / "cache").rglob("complete.json")
    config = complete.with_name("config.json")
    config.write_text(config.read_text().replace("linear", "default"))
    complete.write_text('{"sha256": "", "from": "m.gguf"}')
    assert load_pretrained(path).model.original_model.config.rope_parameters["factor"] == 4
    assert "conversion" in complete.read_text()
    complete.write_text('{"sha256": ')  # damaged
    load_pretrained(path)
    assert "conversion" in complete.read_text()
