"""Which positions a checkpoint has: published models, hints that are not heeded, `positions`.

The reference is transformers itself with its rotation patched out, bit for bit.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2

from nope_interp.errors import UserError
from nope_interp.positions.ablation import ablate_positions
from nope_interp.positions.layers import (
    describe_positions,
    layer_positions,
    positions_in_words,
)
from nope_interp.positions.order import order_dependence
from nope_interp.pretrained import checks
from nope_interp.pretrained.checkpoint import read_checkpoint
from nope_interp.pretrained.load import Pretrained, load_pretrained, reinitialized
from nope_interp.pretrained.spec import ModelSpec
from tests.byte_llama import byte_llama
from tests.huggingface import plain_logits, plain_model, save_folder

TOKENS = torch.randint(4, 60, (2, 20), generator=torch.Generator().manual_seed(0))
LAYERS, HEADS, GROUPS, WIDTH = 2, 4, 2, 8


def folder_of(
    family: str,
    folder: Path,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
) -> str:
    """A checkpoint whose config has these fields too, and whose weights these tensors."""
    save_folder(plain_model(family), folder)
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(told | dict(config or {})))
    if tensors:
        weights = load_file(folder / "model.safetensors")
        save_file(weights | dict(tensors), folder / "model.safetensors", {"format": "pt"})
    return str(folder)


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(TOKENS, use_cache=False).logits


def unrotated(
    monkeypatch: pytest.MonkeyPatch,
    family: str = "llama",
    outputs: Mapping[str, Any] | None = None,
) -> Tensor:
    """Logits of transformers' own model without its rotation; `outputs` changes what projections
    give, by layer and name."""
    plain = plain_model(family)
    plain.set_attn_implementation("eager")
    for name, change in (outputs or {}).items():
        projection = plain.get_submodule(name)
        projection.register_forward_hook(lambda module, args, out, change=change: change(out))
    with monkeypatch.context() as patched:
        for module in (modeling_llama, modeling_qwen2):
            patched.setattr(module, "apply_rotary_pos_emb", lambda q, k, *cos_sin, **how: (q, k))
        return logits(plain)


def assert_without_positions(loaded: Pretrained, expected: Tensor, atol: float = 0) -> None:
    found = logits(loaded.model.original_model)
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)
    assert positions_in_words(loaded.model) == "none"
    with pytest.raises(UserError, match="nothing to take away"):
        ablate_positions(loaded.model)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_llama_without_positions_is_transformers_without_rotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    folder = folder_of("llama", tmp_path / "m")
    rotated = load_pretrained(folder, dtype=dtype)
    assert rotated.notes == ()
    loaded = load_pretrained(folder, dtype=dtype, positions="none")
    assert "has no positional encoding" in loaded.notes[0]
    expected = unrotated(monkeypatch)
    if dtype == "float32":
        assert_without_positions(loaded, expected)
    found = logits(loaded.model.original_model)
    assert not torch.equal(found, logits(rotated.model.original_model))
    # A dozen roundings to three digits in bfloat16.
    assert (found.float() - expected).abs().max() <= 0.1 * expected.abs().max()
    assert describe_positions(loaded.model) == "No positional encoding in layers 0-1."
    assert positions_in_words(reinitialized(loaded, seed=1).model) == "none"
    made = ModelSpec(folder, "cpu", dtype=dtype, positions="none").make()
    assert torch.equal(logits(made.original_model), found)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize(
    ("attention", "written"),
    [
        ("nope", ""),
        ("qk_norm_nope", "qk"),
        # The authors' code makes both norms wherever it uses one.
        ("q_norm_nope", "qk"),
        ("k_norm_nope", "qk"),
        ("q_norm_nope", "q"),
        ("k_norm_nope", "k"),
    ],
)
def test_drope_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, attention: str, written: str
) -> None:
    generator = torch.Generator().manual_seed(1)
    used = "" if attention == "nope" else attention.partition("_")[0]
    tensors, outputs, idle = {}, {}, set()
    for layer in range(LAYERS):
        for of in written:
            heads = HEADS if of == "q" else GROUPS
            gain = 1 + torch.rand(heads * WIDTH, generator=generator)
            at = f"model.layers.{layer}.self_attn"
            tensors[f"{at}.{of}_norm.weight"] = gain
            if of in used:
                outputs[f"{at}.{of}_proj"] = normed(gain)
            else:
                idle.add(f"{at}.{of}_norm.weight")
    stem = {"llama": "Llama", "qwen2": "Qwen2"}[family]
    config = {
        "model_type": f"{family}_drope",
        "architectures": [f"DroPE{stem}ForCausalLM"],
        "attention_type": attention,
        "auto_map": {
            "AutoConfig": f"drope.DroPE{stem}Config",
            "AutoModelForCausalLM": f"drope.DroPE{stem}ForCausalLM",
        },
    }
    folder = tmp_path / "m"
    loaded = load_pretrained(folder_of(family, folder, config, tensors))
    assert_without_positions(loaded, unrotated(monkeypatch, family, outputs))
    assert "code of its own (auto_map), which was not run" in loaded.notes[0]
    assert ("2 norms of queries or keys" in "".join(loaded.notes)) == bool(idle)
    untrained = reinitialized(loaded, seed=1).model
    assert positions_in_words(untrained) == "none"
    weights = dict(untrained.original_model.named_parameters())
    assert len(weights) == len(dict(loaded.model.original_model.named_parameters()))
    # What transformers writes back is the published format.
    where = {"pretrained_model_name_or_path": str(folder)}
    how = {"dtype": torch.float32, "device_map": None}
    read_checkpoint("m", where, "auto", **how)[0].save_pretrained(tmp_path / "again")
    again, first = (load_file(f / "model.safetensors") for f in (tmp_path / "again", folder))
    assert again.keys() == first.keys() - idle
    assert all(torch.equal(again[name], first[name]) for name in again)


def test_a_softmax_scale_of_drope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"model_type": "llama_drope", "attention_type": "nope"}
    config["softmax_scale"] = 2 * WIDTH**-0.5
    at = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(LAYERS)]
    doubled = {name: lambda out: 2 * out for name in at}
    loaded = load_pretrained(folder_of("llama", tmp_path / "m", config))
    assert_without_positions(loaded, unrotated(monkeypatch, "llama", doubled))


def normed(gain: Tensor) -> Any:
    return lambda out: torch.nn.functional.rms_norm(out, gain.shape, gain, eps=1e-6)


def test_head_wise_scales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scales = 1 + torch.rand(LAYERS, HEADS, generator=torch.Generator().manual_seed(2))
    at = [f"model.layers.{layer}.self_attn" for layer in range(LAYERS)]
    tensors = {f"{name}.scale_param": scales[layer].clone() for layer, name in enumerate(at)}
    folder = folder_of("llama", tmp_path / "m", {"nope": True}, tensors)

    def scaled(by_head: Tensor) -> Any:
        return lambda out: (out.unflatten(-1, (HEADS, WIDTH)) * by_head[:, None]).flatten(-2)

    outputs = {f"{name}.q_proj": scaled(scales[layer]) for layer, name in enumerate(at)}
    loaded = load_pretrained(folder, positions="none")
    assert_without_positions(loaded, unrotated(monkeypatch, "llama", outputs))
    assert not torch.equal(logits(loaded.model.original_model), unrotated(monkeypatch))


@pytest.mark.parametrize(
    "name",
    [
        "AntNLP/TinyLlama-NoPE-1.1B",
        "AntNLP/TinyLlama-NoPE-HeadScale8k",
        "starmpcc/NoPE_1.5B_FW_EDU_15T",
    ],
)
def test_published_names_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # The hub's place is taken by a working folder in which the name leads to a checkpoint.
    folder_of("llama", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert_without_positions(load_pretrained(name), unrotated(monkeypatch))
    rotated = load_pretrained(name, positions="rotary")
    assert positions_in_words(rotated.model) == "rotary"
    # Not a tensor of it is left out without a word.
    extra = {"model.layers.0.mlp.extra.weight": torch.ones(2)}
    folder_of("llama", tmp_path / name, tensors=extra)
    with pytest.raises(UserError, match=r"1 tensors .* such as model\.layers\.0\.mlp\.extra"):
        load_pretrained(name)


@pytest.mark.parametrize("name", ["nope", "rotary", "alibi"])
def test_the_code_models_are_refused_by_name(name: str) -> None:
    with pytest.raises(UserError, match="only its authors' code runs, which is not run here"):
        load_pretrained(f"McGill-NLP/codellm_1b_{name}")


def test_a_folder_of_a_code_model_is_refused_too(tmp_path: Path) -> None:
    # Kazemnejad et al.'s configs say of their models that they are T5s.
    folder = folder_of("t5", tmp_path / "m", {"architectures": ["CustomDecoderOnlyT5"]})
    with pytest.raises(UserError, match="only its authors' code runs, which is not run here"):
        load_pretrained(folder)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"no_rope_layers": [0, 1]}, r"`no_rope_layers: \[0, 1\]`"),
        ({"no_rope_layer_interval": 4}, "`no_rope_layer_interval: 4`"),
        ({"use_rope": False}, "`use_rope: false`"),
        ({"nope": True}, "`nope: true`"),
        ({"position_embedding_type": "nope"}, '`position_embedding_type: "nope"`'),
        ({"attention_type": "qk_norm_nope"}, '`attention_type: "qk_norm_nope"`'),
        ({"position_encoding_type": "none"}, '`position_encoding_type: "none"`'),
        ({"use_rope": 0}, "`use_rope: 0`"),
        ({"use_rope": "false"}, '`use_rope: "false"`'),
        ({"disable_rope": "True"}, '`disable_rope: "True"`'),
        ({"rope_layers": [0]}, r"`rope_layers: \[0\]`"),
        ({"rope_layers": []}, r"`rope_layers: \[\]`"),
        ({"rotary_layers": [1, 0]}, r"`rotary_layers: \[1, 0\]`"),
        ({"use_rope": [True, False]}, r"`use_rope: \[true, false\]`"),
        ({"nope_layers": [1]}, r"`nope_layers: \[1\]`"),
        ({"nope_layer_interval": 2}, "`nope_layer_interval: 2`"),
        ({"disable_rope": True}, "`disable_rope: true`"),
        ({"rotary_disabled": 1}, "`rotary_disabled: 1`"),
        ({"nope": 1}, "`nope: 1`"),
        ({"no_pos_emb": True}, "`no_pos_emb: true`"),
        ({"position_embedding_type": "nopos"}, '`position_embedding_type: "nopos"`'),
        ({"position_embedding": "no_pe"}, '`position_embedding: "no_pe"`'),
        ({"pos_encoding": "NoPE"}, '`pos_encoding: "NoPE"`'),
        ({"pos_emb_type": "no_position_encoding"}, '`pos_emb_type: "no_position_encoding"`'),
        ({"rope_type": "none"}, '`rope_type: "none"`'),
        ({"use_rotary_pos_emb": False}, "`use_rotary_pos_emb: false`"),
        ({"use_position_embeddings": False}, "`use_position_embeddings: false`"),
        ({"rotary_pct": 0.0}, "`rotary_pct: 0.0`"),
        ({"partial_rotary_factor": 0.0}, "`partial_rotary_factor: 0.0`"),
        ({"rotary_dim": 0}, "`rotary_dim: 0`"),
        ({"architectures": ["NoPELlama"]}, r"`architectures: \[\"NoPELlama\"\]`"),
        ({"rope_theta": None}, "`rope_theta: null`"),
        ({"rope_parameters": None}, "`rope_parameters: null`"),
        (
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.0}},
            "`partial_rotary_factor: 0.0`",
        ),
    ],
)
def test_a_hint_that_transformers_does_not_heed_is_refused_with_both_remedies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], said: str
) -> None:
    folder = folder_of("llama", tmp_path / "m", config)
    remedies = "give positions none or rotary"
    with pytest.raises(UserError, match=f"{said} in the config .* hints at no .*: {remedies}"):
        load_pretrained(folder)
    assert_without_positions(load_pretrained(folder, positions="none"), unrotated(monkeypatch))
    rotated = load_pretrained(folder, positions="rotary").model
    assert torch.equal(logits(rotated.original_model), logits(eager(plain_model("llama"))))


def eager(plain: Any) -> Any:
    plain.set_attn_implementation("eager")
    return plain


@pytest.mark.parametrize("name", ["NoPE_1.5B_FW_EDU_15T", "my-drope", "llama.nope"])
def test_a_name_hints_too(tmp_path: Path, name: str) -> None:
    folder = folder_of("llama", tmp_path / name)
    with pytest.raises(UserError, match=r"the name .* hints at no positional encoding"):
        load_pretrained(folder)
    load_pretrained(folder, positions="rotary")


@pytest.mark.parametrize(
    ("family", "field"),
    [
        ("phi", {"rotary_dim": 0}),
        ("gpt_neox", {"rotary_dim": 0}),
        ("stablelm", {"rope_pct": 0.0}),
        ("nemotron", {"rope_percent": 0.0}),
    ],
)
def test_a_family_that_turns_a_part_of_its_heads_heeds_its_own_spelling_alone(
    tmp_path: Path, family: str, field: dict[str, Any]
) -> None:
    folder = folder_of(family, tmp_path / "m", field)
    with pytest.raises(UserError, match="hints at no positional encoding, but transformers would"):
        load_pretrained(folder)


@pytest.mark.parametrize(
    ("family", "config"),
    [
        # Words of another encoding than the family's.
        ("gpt2", {"rotary": False, "use_rope": False, "rotary_dim": 0}),
        ("opt", {"use_rotary": False}),
        ("gpt2", {"disable_rope": True}),
        ("bloom", {"use_rotary": False, "position_embedding_type": "alibi"}),
        ("t5", {"use_rope": False}),
        # One kind is off, another one on.
        ("llama", {"use_position_embedding": False, "use_rotary_position_embeddings": True}),
        # A part that Llama's code does not know: it turns whole heads.
        ("llama", {"partial_rotary_factor": 0.3}),
        # In every layer 1: it rotates.
        ("llama", {"no_rope_layers": [1, 1]}),
        ("llama", {"architectures": ["CanopeForCausalLM"]}),
    ],
)
def test_what_says_that_there_are_positions_is_not_refused(
    tmp_path: Path, family: str, config: dict[str, Any]
) -> None:
    loaded = load_pretrained(folder_of(family, tmp_path / "m", config))
    assert positions_in_words(loaded.model) != "none"


@pytest.mark.parametrize(
    "field",
    [
        {"rope_theta": None, "rope_parameters": {}},
        {"rope_parameters": {"rope_type": "none", "rope_theta": 1e4}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": None}},
        {"rope_scaling": {"type": "nope"}},
    ],
)
def test_a_rotation_of_no_kind_is_refused_before_transformers_fails(
    tmp_path: Path, field: dict[str, Any]
) -> None:
    folder = folder_of("llama", tmp_path / "m", field)
    with pytest.raises(UserError, match=r"hints at no .* take `rope_.*` out of config\.json"):
        load_pretrained(folder, positions="none")


@pytest.mark.parametrize(
    "of_global_layers", [None, {"rope_type": "none"}, {"rope_type": "default", "rope_theta": None}]
)
def test_a_type_of_layers_without_rotation_is_refused_too(
    tmp_path: Path, of_global_layers: dict[str, Any] | None
) -> None:
    """transformers would give Gemma 3's global layers a rotation of its own."""
    local = {"rope_type": "default", "rope_theta": 1e4}
    told = {"sliding_attention": local, "full_attention": of_global_layers}
    folder = folder_of("gemma3", tmp_path / "m", {"rope_parameters": told})
    with pytest.raises(UserError, match=r"hints at no .* take `rope_parameters` out of config"):
        load_pretrained(folder)


def test_a_table_that_turns_nothing_is_refused_before_transformers_fails(tmp_path: Path) -> None:
    folder = folder_of("gptj", tmp_path / "m", {"rotary_dim": 0})
    with pytest.raises(UserError, match=r"take `rotary_dim` out .* and give positions none"):
        load_pretrained(folder)


@pytest.mark.parametrize(
    "config",
    [
        {"use_rope": True},
        {"nope": False},
        {"no_rope_layers": None},
        {"use_rope": [True, True]},
        {"use_rope": "true"},
        {"disable_rope": "false"},
        {"rope_layers": [1, 1]},
        {"rope_layers": None},
        {"nope_layers": []},
        {"qk_nope_head_dim": 8},
        {"disable_rope": False},
        # Of how positions are used, not of whether they are.
        {"rope_scaling": None},
        {"rope_interleaved": False},
        {"use_scaled_rope": False},
        {"rotary_emb_interleaved": False},
        {"position_embedding_trainable": False},
        {"position_embedding_type": "rope"},
        {"max_position_embeddings": 64},
        {"architectures": ["LlamaForCausalLM"]},
    ],
)
def test_what_hints_at_nothing_is_read_as_it_is(tmp_path: Path, config: dict[str, Any]) -> None:
    loaded = load_pretrained(folder_of("llama", tmp_path / "nopetown", config))
    assert positions_in_words(loaded.model) == "rotary"


def test_a_config_of_ours_says_it_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_pretrained(folder_of("llama", tmp_path / "m"), positions="none")
    first.model.original_model.config.save_pretrained(tmp_path / "m")
    assert_without_positions(load_pretrained(str(tmp_path / "m")), unrotated(monkeypatch))
    rotated = load_pretrained(str(tmp_path / "m"), positions="rotary").model
    assert positions_in_words(rotated) == "rotary"
    assert torch.equal(logits(rotated.original_model), logits(eager(plain_model("llama"))))


@pytest.mark.parametrize(
    ("family", "config", "said"),
    [
        ("llama", {"sliding_window": 4}, None),
        ("llama", {"attention_chunk_size": 4}, None),
        # Phi 3's window is every layer's, whatever types a config names.
        ("phi3", {"layer_types": ["sliding_attention", "full_attention"]}, 16),
    ],
)
def test_windows_are_those_that_the_families_code_heeds(
    tmp_path: Path, family: str, config: dict[str, Any], said: int | None
) -> None:
    """Held against the attention patterns themselves."""
    model = load_pretrained(folder_of(family, tmp_path / "m", config)).model
    with torch.no_grad():
        patterns = model.run_with_cache(TOKENS)[1]
    for layer, positions in enumerate(layer_positions(model)):
        assert (positions.encoding, positions.window) == ("rotary", said)
        seen = patterns[f"blocks.{layer}.attn.hook_pattern"] > 0
        assert torch.equal(seen.all(dim=1)[0], positions.sees(TOKENS.shape[1]))


@pytest.mark.parametrize(
    ("family", "config"),
    [("gpt_neox", {"rotary_pct": 0.0}), ("phi", {"partial_rotary_factor": 0.0})],
)
def test_a_model_that_rotates_nothing_has_no_positions(
    tmp_path: Path, family: str, config: dict[str, Any]
) -> None:
    told = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, **config}, **config}
    model = load_pretrained(folder_of(family, tmp_path / "m", told)).model
    assert positions_in_words(model) == "none"
    with pytest.raises(UserError, match="nothing to take away"):
        ablate_positions(model)


def test_an_olmo_hybrid_without_a_base_has_no_positions_in_its_attention(tmp_path: Path) -> None:
    without = {"rope_type": "default", "rope_theta": None}
    config = {"rope_parameters": without, "rope_theta": None}
    model = load_pretrained(folder_of("olmo_hybrid", tmp_path / "m", config)).model
    found = [layer.encoding for layer in layer_positions(model)]
    assert found == ["recurrence", "recurrence", "recurrence", "none"]
    order = order_dependence(model, layer_positions(model))
    assert order[3] < 1e-6 < 1e-3 < order[0]  # its rounding knows the order of sums
    # The plain model does not rotate either.
    assert model.original_model.model.rotary_emb is None


@pytest.mark.parametrize("said", ["nope", None])
def test_a_granite_hybrid_without_positions_is_read_as_it_says(
    tmp_path: Path, said: str | None
) -> None:
    """As IBM's Granite 4.0 H is published: attention without positions between recurrent layers.
    Where the config says nothing, transformers does not rotate either."""
    published = {"layer_types": [*["mamba"] * 3, "attention"], "position_embedding_type": said}
    folder = folder_of("granitemoehybrid", tmp_path / "nope", published)
    model = load_pretrained(folder).model
    found = [layer.encoding for layer in layer_positions(model)]
    assert found == ["recurrence", "recurrence", "recurrence", "none"]
    order = order_dependence(model, layer_positions(model))
    assert order[3] < 1e-6 < 1e-3 < order[0]
    assert model.original_model.model.rotary_emb is None
    with pytest.raises(UserError, match=r"no layer of .* has positions, by its config: leave"):
        load_pretrained(folder, positions="rotary")
    assert positions_in_words(load_pretrained(folder, positions="none").model) == (
        "recurrence, none in layer 3"
    )


def test_a_jamba_has_no_positions_in_its_attention(tmp_path: Path) -> None:
    folder = folder_of("jamba", tmp_path / "nope")
    for positions in ("auto", "none"):
        model = load_pretrained(folder, positions=positions).model
        assert positions_in_words(model) == "recurrence, none in layer 3"
        assert torch.equal(logits(model.original_model), logits(eager(plain_model("jamba"))))
    order = order_dependence(model, layer_positions(model))
    assert order[3] < 1e-6 < 1e-3 < order[0]
    with pytest.raises(UserError, match="nothing to take away"):
        ablate_positions(model)
    with pytest.raises(UserError, match=r"no layer of .* has positions, by its config: leave"):
        load_pretrained(folder, positions="rotary")


def test_a_granite_hybrid_with_positions_can_be_read_without(tmp_path: Path) -> None:
    folder = folder_of("granitemoehybrid", tmp_path / "m")
    assert positions_in_words(load_pretrained(folder).model) == "recurrence and rotary"
    without = load_pretrained(folder, positions="none").model
    told = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(
        json.dumps(told | {"position_embedding_type": "nope"})
    )
    expected = logits(load_pretrained(folder).model.original_model)
    torch.testing.assert_close(logits(without.original_model), expected)


def test_an_mpt_without_alibi_is_refused(tmp_path: Path) -> None:
    folder = folder_of("mpt", tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config["attn_config"]["alibi"] = False
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"`alibi: false` in .*: give positions alibi\.$"):
        load_pretrained(folder)
    load_pretrained(folder, positions="alibi")
    table = {"transformer.wpe.weight": torch.ones(64, 32)}
    with pytest.raises(UserError, match=r"1 tensors .* such as transformer\.wpe\.weight"):
        load_pretrained(folder_of("mpt", tmp_path / "table", tensors=table))


def test_a_layer_whose_attention_writes_nothing_tells_no_order(tmp_path: Path) -> None:
    silent = {"model.layers.1.self_attn.o_proj.weight": torch.zeros(32, HEADS * WIDTH)}
    folder = folder_of("llama", tmp_path / "m", tensors=silent)
    model = load_pretrained(folder).model
    order = order_dependence(model, layer_positions(model))
    assert order[1] == 0 < order[0] < math.inf
    assert positions_in_words(load_pretrained(folder, positions="none").model) == "none"


def test_a_tokenizer_without_an_end_can_be_asked_for_tokens(tmp_path: Path) -> None:
    model = load_pretrained(str(byte_llama(tmp_path))).model
    assert model.to_tokens("ab").shape == (1, 3)
    assert model.to_str_tokens("ab")[1:] == ["a", "b"]


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("llama", {"head_dim": 7}),
        ("llama", {"head_dim": None, "hidden_size": 36}),
        # Three of a head's eight.
        ("phi", {"rope_parameters": {"partial_rotary_factor": 0.375, "rope_theta": 1e4}}),
        ("gptj", {"rotary_dim": 3}),
    ],
)
def test_heads_of_an_odd_size_are_refused(
    tmp_path: Path, family: str, config: dict[str, Any]
) -> None:
    folder = folder_of(family, tmp_path / "m", config)
    for positions in ("auto", "rotary", "none"):
        with pytest.raises(
            UserError, match=r"turns dimensions in pairs, but a head of .* has [379] to turn:"
        ):
            load_pretrained(folder, positions=positions)


def test_a_drope_checkpoint_is_checked_as_its_family_is(tmp_path: Path) -> None:
    odd = folder_of("llama", tmp_path / "odd", {"model_type": "llama_drope", "head_dim": 7})
    with pytest.raises(UserError, match=r"a head of .* has 7 to turn: choose another model"):
        load_pretrained(odd)
    unsaid = {"model_type": "qwen2_drope", "rope_theta": None, "rope_parameters": None}
    null = folder_of("qwen2", tmp_path / "null", unsaid)
    with pytest.raises(UserError, match=r"`rope_theta: null` in the config .*give positions none"):
        load_pretrained(null)


@pytest.mark.parametrize("family", ["gpt2", "gpt_bigcode", "gpt_neo", "opt"])
def test_learned_positions_are_switched_off_too(family: str, tmp_path: Path) -> None:
    plain = eager(plain_model(family))
    table = plain.model.decoder.embed_positions if family == "opt" else plain.transformer.wpe
    table.weight.data.zero_()
    loaded = load_pretrained(folder_of(family, tmp_path / "m"), positions="none")
    # GPT-2's bridge sums in another order, as it does with positions.
    expected = logits(plain)
    assert_without_positions(loaded, expected, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize(
    "family",
    ["cohere", "gptj", "codegen", "llama4", "gemma3", "phi", "phi3", "glm", "afmoe"],
)
def test_each_way_of_rotating_is_switched_off(family: str, tmp_path: Path) -> None:
    folder = folder_of(family, tmp_path / "m")
    zeros = torch.zeros_like(TOKENS)
    # Without the mask transformers takes such positions for several sequences in one row.
    expected = plain_logits(family, TOKENS, position_ids=zeros, attention_mask=zeros + 1)
    loaded = load_pretrained(folder, positions="none")
    assert_without_positions(loaded, expected, atol=1e-5 * float(expected.abs().max()))


def test_positions_that_a_family_cannot_have(tmp_path: Path) -> None:
    llama = folder_of("llama", tmp_path / "llama")
    bloom = folder_of("bloom", tmp_path / "bloom")
    unknown = folder_of("lfm2", tmp_path / "lfm2")
    for folder, positions, said in [
        (llama, "learned", "cannot have learned positions: give positions auto, none or rotary"),
        (llama, "nope", "unknown positions 'nope': did you mean 'none'"),
        (bloom, "none", "without its alibi positions: leave positions at auto, and ablate them"),
        (unknown, "none", "keeps its positions is not known here: leave positions at auto"),
    ]:
        with pytest.raises(UserError, match=said) as refused:
            load_pretrained(folder, positions=positions)
        assert "\n" not in str(refused.value)
    load_pretrained(bloom, positions="alibi")


def test_tensors_of_attention_without_a_place_are_refused(tmp_path: Path) -> None:
    gain = {"model.layers.0.self_attn.q_norm.weight": torch.ones(HEADS * WIDTH)}
    with pytest.raises(UserError, match=r"1 tensors .* such as model\.layers\.0\.self_attn\.q_n"):
        load_pretrained(folder_of("llama", tmp_path / "m", tensors=gain))
    config = {"model_type": "llama_drope", "attention_type": "q_norm_nope"}
    with pytest.raises(UserError, match=r"lacks 1 of its weights, such as .*layers\.1.*norm"):
        load_pretrained(folder_of("llama", tmp_path / "m", config, gain))
    config = {"model_type": "llama_drope", "attention_type": "qk_norm_rope"}
    with pytest.raises(UserError, match="attention_type of a DroPE model 'qk_norm_rope': did you"):
        load_pretrained(folder_of("llama", tmp_path / "m", config))


def test_a_layer_that_tells_order_is_not_believed_to_have_no_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of("smollm3", tmp_path / "m")
    load_pretrained(folder)
    believed = checks.layer_positions

    def swapped(model: Any) -> Any:
        first, second = believed(model)
        return (
            type(first)(0, second.encoding, second.rotary_base),
            type(second)(1, first.encoding, first.rotary_base),
        )

    monkeypatch.setattr(checks, "layer_positions", swapped)
    with pytest.raises(UserError, match=r"layer 0 .* said to have no positions, but its attention"):
        load_pretrained(folder)
