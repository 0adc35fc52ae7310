"""Pretrained models: loaded faithfully, checked on load, refused in one sentence."""

import importlib.util
import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader, GGUFWriter
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2LMHeadModel,
    LlamaConfig,
    MambaConfig,
    MambaForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
)

from nope_interp import memory
from nope_interp.errors import UserError
from nope_interp.interventions.intervene import intervene
from nope_interp.models.sinks import sinks_note
from nope_interp.pretrained import checks, gguf_file
from nope_interp.pretrained import load as pretrained
from nope_interp.pretrained.load import load_pretrained, reinitialized
from nope_interp.streams import run_trunk, stream
from tests.gguf_writing import finish
from tests.huggingface import (
    FAMILIES,
    VARIANTS,
    bridged_model,
    logits_of,
    plain_logits,
    plain_model,
    save_folder,
    tiny_gemma3,
    tiny_gpt2,
    words,
)
from tests.small_models import random_tokens


@pytest.fixture(scope="module")
def gpt2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tiny_gpt2(), tmp_path_factory.mktemp("gpt2"))


@pytest.fixture
def copy(gpt2_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(gpt2_folder, tmp_path / "copy"))


@pytest.mark.parametrize("family", [*FAMILIES, *VARIANTS])
def test_logits_equal_the_plain_model(family: str, tmp_path: Path) -> None:
    loaded = load_pretrained(str(save_folder(plain_model(family), tmp_path / "m")))
    tokens = torch.randint(4, 60, (3, 20), generator=torch.Generator().manual_seed(0))
    expected = plain_logits(family, tokens)
    with torch.no_grad():
        actual = loaded.model(tokens)
    # The bridge sums in another order: float32 rounding over two layers.
    torch.testing.assert_close(actual, expected, atol=2e-5 * float(expected.abs().max()), rtol=0)


def test_an_opt_without_its_last_norm_is_read(tmp_path: Path) -> None:
    """As checkpoints that were tuned with old versions of transformers say."""
    plain = plain_model("opt", _remove_final_layer_norm=True)
    loaded = load_pretrained(str(save_folder(plain, tmp_path / "m")))
    tokens = torch.randint(4, 60, (3, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(tokens), logits_of(plain, tokens))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["gpt2", "gemma3", "falcon_alibi", "olmo", "olmo2", "olmo3"])
def test_half_precision(family: str, dtype: str, tmp_path: Path) -> None:
    loaded = load_pretrained(str(save_folder(plain_model(family), tmp_path / "m")), dtype=dtype)
    half = getattr(torch, dtype)
    assert {weight.dtype for weight in loaded.model.parameters()} == {half}
    assert next(reinitialized(loaded, 0).model.parameters()).dtype == half
    tokens = torch.randint(4, 60, (3, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        difference = (loaded.model(tokens).float() - plain_logits(family, tokens)).abs().max()
    # A dozen roundings to 3 or 4 digits, each of half a unit in the last place.
    assert 0 < difference < 8 * torch.finfo(half).eps * plain_logits(family, tokens).abs().max()


def test_a_device_map_needs_accelerate(gpt2_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_pretrained(str(gpt2_folder), device_map="auto")
    run_trunk(loaded.model, torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(UserError, match="contradict each other"):
        load_pretrained(str(gpt2_folder), device="meta", device_map="auto")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "accelerate" else found(name)
    )
    with pytest.raises(UserError, match="needs the package accelerate"):
        load_pretrained(str(gpt2_folder), device_map="auto")


def test_t5s_decoder_reads_like_any_other_model(tmp_path: Path) -> None:
    loaded = load_pretrained(str(save_folder(plain_model("t5"), tmp_path / "t5")))
    assert loaded.model.cfg.n_layers == 2  # its encoder has 3
    tokens = loaded.text_source(words(400)).sequences(5, 16, begin_token=True, split="fit", seed=0)
    assert (tokens[:, 0] == 0).all()  # what its decoder starts from
    shapes = {}
    for name in ("hook_embed", "blocks.1.hook_resid_pre", "blocks.1.attn.hook_pattern"):
        stream(loaded.model, tokens, {name: lambda x, name=name: shapes.update({name: x.shape})})  # type: ignore[misc]
    assert [tuple(shape) for shape in shapes.values()] == [(5, 16, 32), (5, 16, 32), (5, 4, 16, 16)]
    untrained = reinitialized(loaded, seed=1)
    assert untrained.begin_id == 0
    assert not torch.equal(untrained.model(tokens), loaded.model(tokens))
    padded = torch.ones_like(tokens)
    padded[0, 0] = 0
    with pytest.raises(UserError, match="takes no padding"):
        loaded.model.original_model(tokens, attention_mask=padded)


def test_without_a_tokenizer_there_are_tokens_but_no_text(tmp_path: Path) -> None:
    tiny_gpt2().save_pretrained(tmp_path)
    loaded = load_pretrained(str(tmp_path))
    assert loaded.tokenizer is None
    assert loaded.begin_id is None
    assert loaded.model(torch.zeros(1, 4, dtype=torch.long)).shape == (1, 4, 60)
    with pytest.raises(UserError, match="has no tokenizer, so text cannot"):
        loaded.text_source("text")
    with pytest.raises(UserError, match="has no tokenizer, so nothing says which"):
        loaded.uniform_source()


def test_a_reinitialized_model_is_drawn_anew_from_its_seed(gpt2_folder: Path) -> None:
    loaded = load_pretrained(str(gpt2_folder))
    drawn = [reinitialized(loaded, seed).model for seed in (1, 1, 2)]
    weights = [model.original_model.state_dict() for model in (loaded.model, *drawn)]
    matrices = [name for name, weight in weights[0].items() if weight.ndim == 2]
    assert matrices
    for name in matrices:
        assert torch.equal(weights[1][name], weights[2][name])
        assert not torch.equal(weights[1][name], weights[3][name])
        assert not torch.equal(weights[0][name], weights[1][name])
        assert weights[1][name].shape == weights[0][name].shape


def test_sources_use_the_models_own_tokens(gpt2_folder: Path) -> None:
    loaded = load_pretrained(str(gpt2_folder))
    text = loaded.text_source(words(400)).sequences(5, 16, begin_token=True, split="fit", seed=0)
    assert (text[:, 0] == 1).all()
    uniform = loaded.uniform_source().sequences(200, 16, begin_token=False, split="fit", seed=0)
    # Special tokens 0, 1 and 2 are never drawn; every other one is.
    assert set(uniform.unique().tolist()) == set(range(3, 60))


def test_bridges_turn_text_into_the_tokenizers_own_tokens(gpt2_folder: Path) -> None:
    loaded = load_pretrained(str(gpt2_folder))
    for model in (loaded.model, reinitialized(loaded, 0).model):
        # This tokenizer begins no text by itself; the bridge's default is to begin it.
        assert model.to_tokens("w7 w5 w9", prepend_bos=False).tolist() == [[7, 5, 9]]
        assert model.to_tokens("w7 w5 w9", prepend_bos=True).tolist() == [[1, 7, 5, 9]]
        assert model.to_str_tokens("w7 w5", prepend_bos=False) == ["w7", "w5"]


def test_unfaithful_wrapping_is_refused(gpt2_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformer_lens.model_bridge.sources as sources

    real = sources.build_bridge_from_module

    def broken(model: nn.Module, *args: object, **kwargs: object) -> object:
        bridge = real(model, *args, **kwargs)
        with torch.no_grad():
            next(model.parameters()).mul_(1.5)
        return bridge

    monkeypatch.setattr(sources, "build_bridge_from_module", broken)
    with pytest.raises(UserError, match="not wrapped faithfully"):
        load_pretrained(str(gpt2_folder))


def test_non_causal_models_are_refused(tmp_path: Path) -> None:
    model = tiny_gemma3()
    model.config.use_bidirectional_attention = True
    model.config.sliding_window = 64
    folder = save_folder(model, tmp_path / "bidirectional")
    with pytest.raises(UserError, match="sees the future in layer 0: choose a causal model"):
        load_pretrained(str(folder))


def test_a_hybrid_whose_attention_nothing_shows_is_refused(tmp_path: Path) -> None:
    kinds = ["linear_attention", "mlp", "full_attention"]
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    mixer = {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1}
    config = NemotronHConfig(**sizes, **mixer, vocab_size=60, layers_block_type=kinds)
    folder = save_folder(NemotronHForCausalLM(config), tmp_path)
    with pytest.raises(UserError, match="a NemotronHForCausalLM, shows no attention patterns"):
        load_pretrained(str(folder))


def test_architectures_that_are_no_causal_transformer(tmp_path: Path) -> None:
    mamba = MambaForCausalLM(MambaConfig(vocab_size=60, hidden_size=32, num_hidden_layers=1))
    with pytest.raises(UserError, match="a MambaForCausalLM, shows no attention patterns"):
        load_pretrained(str(save_folder(mamba, tmp_path / "mamba")))
    sizes = {"vocab_size": 60, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1}
    bart = BartForConditionalGeneration(BartConfig(**sizes))
    with pytest.raises(UserError, match="encoder-decoder of type 'bart': of these only T5's"):
        load_pretrained(str(save_folder(bart, tmp_path / "bart")))
    t5 = save_folder(plain_model("t5"), tmp_path / "t5")
    with pytest.raises(UserError, match="give bfloat16"):
        load_pretrained(str(t5), dtype="float16")


def test_attention_sinks_take_the_rest_of_the_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(save_folder(plain_model("gpt_oss"), tmp_path / "m"))
    model = load_pretrained(folder).model
    tokens = torch.randint(4, 60, (3, 20), generator=torch.Generator().manual_seed(0))
    plain = plain_model("gpt_oss")
    plain.set_attn_implementation("eager")
    with torch.no_grad():
        expected = plain(tokens, use_cache=False, output_attentions=True).attentions
    with torch.no_grad():
        cache = model.run_with_cache(tokens)[1]
    for layer, weights in enumerate(expected):
        found = cache["pattern", layer]
        torch.testing.assert_close(found, weights, atol=1e-6, rtol=0)
        assert (found.sum(-1) < 0.99).any()
    note = sinks_note(model)
    assert note is not None
    assert note.startswith("Heads in layers 0-1 have attention sinks")
    # Weight that neither a token nor the sink has is still an error.
    monkeypatch.setattr(checks, "sink_share", lambda scores, sinks: torch.zeros(scores.shape[:3]))
    with pytest.raises(UserError, match="do not sum to one with the sink's share in layer 0"):
        load_pretrained(folder)


def test_models_without_sinks_have_no_note(gpt2_folder: Path) -> None:
    assert sinks_note(load_pretrained(str(gpt2_folder)).model) is None


def test_a_hybrids_missing_site_names_the_layers_that_have_it() -> None:
    model, tokens = bridged_model("lfm2"), torch.arange(8)[None]
    message = (
        r"the model has no 'blocks\.0\.hook_attn_out': choose from layers 1-2 for it "
        r"\(--layers 1,2\)\."
    )
    with pytest.raises(UserError, match=message):
        stream(model, tokens, {"blocks.0.hook_attn_out": lambda x: None})
    with pytest.raises(UserError, match=message), intervene(model, {"blocks.0.hook_attn_out": abs}):
        pass
    # No option chooses these.
    with pytest.raises(UserError, match=r"choose from layers 1-2 for it\.$"):
        stream(model, tokens, {"blocks.0.attn.hook_pattern": lambda x: None})


def test_a_model_that_fails_by_itself_is_one_sentence(tmp_path: Path) -> None:
    # transformers makes such a Falcon and cannot run it.
    folder = save_folder(plain_model("falcon_grouped"), tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "parallel_attn": False}))
    weights = load_file(folder / "model.safetensors")
    names = {"ln_attn": "input_layernorm", "ln_mlp": "post_attention_layernorm"}
    for old, new in names.items():
        weights = {name.replace(old, new): weight for name, weight in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"a FalconForCausalLM, fails by itself \('FalconDecoder"):
        load_pretrained(str(folder))


def test_what_an_adapter_asserts_is_one_sentence(
    gpt2_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError

    monkeypatch.setattr(pretrained, "wrap", refuse)
    with pytest.raises(UserError, match=r"cannot wrap .* in float32 \(AssertionError\)"):
        load_pretrained(str(gpt2_folder))


def test_devices_that_cannot_hold_the_model(
    gpt2_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="the device 'gpu7' cannot be used here"):
        load_pretrained(str(gpt2_folder), device="gpu7")

    def full(*args: object, **kwargs: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(GPT2LMHeadModel, "to", full)
    with pytest.raises(UserError, match="does not fit the device 'cpu': give bfloat16"):
        load_pretrained(str(gpt2_folder))


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "unheard-of"},
        {"model_type": None},
        {"n_embd": 48},
        {"n_head": 5},
        {"n_embd": "many"},
        {"n_layer": -1},
        {"activation_function": "unheard-of"},
        {"dtype": "float7"},
        {"vocab_size": 10**9},
    ],
)
def test_configs_that_do_not_fit_are_one_sentence(copy: Path, change: dict[str, object]) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(UserError) as refused:
        load_pretrained(str(copy))
    assert repr(str(copy)) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"7", b"\xff\xfe", b'{"a": 1}'])
def test_configs_that_are_none_are_one_sentence(copy: Path, content: bytes) -> None:
    (copy / "config.json").write_bytes(content)
    with pytest.raises(UserError, match="cannot load the model") as refused:
        load_pretrained(str(copy))
    assert "\n" not in str(refused.value)


def test_options_that_do_not_fit(gpt2_folder: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'bfloat16'"):
        load_pretrained(str(gpt2_folder), dtype="bfloat-16")
    with pytest.raises(
        UserError, match="is a local folder and has no revisions: leave revision out"
    ):
        load_pretrained(str(gpt2_folder), revision="main")


def test_a_model_of_a_hub_is_weighed_before_it_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its files the config alone is there: to look for weights would fail."""
    kept = hub_config(tmp_path, monkeypatch, "someone/large")
    sizes = {"hidden_size": 8192, "num_hidden_layers": 2, "num_attention_heads": 64}
    config = LlamaConfig(**sizes, intermediate_size=16_384, vocab_size=2**28)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(kept)
    # Two tables of the vocabulary and two layers, of which attention has four matrices each.
    numbers = 2 * 2**28 * 8192 + 2 * (4 * 8192**2 + 3 * 8192 * 16_384 + 2 * 8192) + 8192
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        with pytest.raises(UserError, match="choose a smaller model") as refused:
            load_pretrained("someone/large", dtype=dtype)
        told = f"'someone/large' takes {size * numbers / 2**30:,.1f} GiB in {dtype}"
        assert told in str(refused.value)


def test_a_config_of_a_hub_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a type that transformers has no language model of, and with code of its own: transformers
    would ask on the terminal whether to run it."""
    monkeypatch.setattr("builtins.input", lambda said="": pytest.fail(f"asked: {said}"))
    cached = hub_config(tmp_path, monkeypatch, "someone/code")
    own = {"AutoModelForCausalLM": "modeling.Own", "AutoConfig": "modeling.OwnConfig"}
    (cached / "config.json").write_text(json.dumps({"model_type": "vit", "auto_map": own}))
    with pytest.raises(UserError, match="someone/code"):
        load_pretrained("someone/code")


def hub_config(cache: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Path:
    """The folder of a hub's model in a cache that has no other; nothing is in it yet."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    cached = cache / f"models--{name.replace('/', '--')}"
    kept = cached / "snapshots" / "0123456789abcdef"
    kept.mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(kept.name)
    return kept


def test_a_folder_is_weighed_before_it_is_read(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1024.0)
    with pytest.raises(UserError, match=r"takes 0\.0 GiB in float32"):
        load_pretrained(str(copy))
    # A GGUF file takes more than its size, once it is dequantised; this one cannot even be read.
    (copy / "model.gguf").write_bytes(bytes(2048))
    with pytest.raises(UserError, match=r"model\.gguf' takes 0\.0 GiB in float32"):
        load_pretrained(str(copy / "model.gguf"))


def test_names_that_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="did you mean 'gpt2-medium'"):
        load_pretrained("gpt2-meduim")
    with pytest.raises(UserError, match="check the name and the network"):
        load_pretrained("zzzz-qqqq-0000")
    with pytest.raises(UserError, match="no GGUF file"):
        load_pretrained(str(tmp_path / "absent.gguf"))
    with pytest.raises(UserError, match="neither a hub name"):
        load_pretrained("./absent")
    with pytest.raises(UserError, match="a user who has no home here: check the path"):
        load_pretrained("~nobody-of-this-name/model")
    with pytest.raises(UserError, match=r"no config\.json"):
        load_pretrained(str(tmp_path))


def test_damaged_folders(copy: Path) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match="cannot load the model"):
        load_pretrained(str(copy))
    (copy / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot load the model"):
        load_pretrained(str(copy))


def test_a_damaged_tokenizer_is_not_a_missing_one(copy: Path) -> None:
    (copy / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="cannot load the model"):
        load_pretrained(str(copy))


def test_missing_weights_are_refused(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"n_layer": 3}))
    with pytest.raises(UserError, match=r"lacks 12 of its weights, such as transformer\.h\.2\."):
        load_pretrained(str(copy))


def test_weights_of_other_sizes_are_refused(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"n_positions": 7}))
    said = r"has 1 weights of other sizes than its config says, such as transformer\.wpe\.weight"
    with pytest.raises(UserError, match=said):
        load_pretrained(str(copy))


def test_weights_that_are_not_finite_are_named(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    name = next(name for name in weights if name.endswith("wte.weight"))
    weights[name][5] = torch.nan
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="hold NaN or infinite values: its weights are damaged"):
        load_pretrained(str(copy))


def test_pickled_weights_are_refused(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    torch.save(tiny_gpt2().state_dict(), copy / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"weights in pytorch_model\.bin, which is pickled and not"):
        load_pretrained(str(copy))


def test_pickled_weights_of_a_hub_are_not_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers would ask a service on the network to unpickle them."""
    tiny_gpt2().config.save_pretrained(hub_config(tmp_path, monkeypatch, "someone/pickled"))
    asked = "transformers.modeling_utils.auto_conversion"
    monkeypatch.setattr(asked, lambda *_, **__: pytest.fail("a conversion was asked for"))
    monkeypatch.setattr("transformers.modeling_utils.is_offline_mode", lambda: False)
    monkeypatch.delenv("DISABLE_SAFETENSORS_CONVERSION", raising=False)
    with pytest.raises(
        UserError, match="no weights in safetensors could be had of 'someone/pickled'"
    ):
        load_pretrained("someone/pickled")
    assert "DISABLE_SAFETENSORS_CONVERSION" not in os.environ


@pytest.mark.parametrize(
    ("family", "masks"),
    [
        ("gpt2", ["attn.bias", "attn.masked_bias"]),
        ("gpt_neo", ["attn.attention.bias", "attn.attention.masked_bias"]),
        ("gptj", ["attn.bias", "attn.masked_bias"]),
        ("codegen", ["attn.causal_mask"]),
    ],
)
def test_masks_that_were_saved_with_the_weights_are_left_out(
    tmp_path: Path, family: str, masks: list[str]
) -> None:
    """As old versions of transformers did."""
    folder, tokens = save_folder(plain_model(family), tmp_path), random_tokens(batch=2, pos=12)
    expected = logits_of(load_pretrained(str(folder)).model.original_model, tokens)
    weights = load_file(folder / "model.safetensors")
    weights |= {f"transformer.h.1.{mask}": torch.ones(1, 1, 8, 8) for mask in masks}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(
        logits_of(load_pretrained(str(folder)).model.original_model, tokens), expected
    )


def test_remote_code_is_not_run(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "evil.Model", "AutoConfig": "evil.Config"}
    config["model_type"] = "unheard-of"
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "evil.py").write_text("raise SystemExit('remote code ran')")
    with pytest.raises(UserError, match="cannot load the model"):
        load_pretrained(str(copy))


def test_damaged_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOPE_INTERP_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "broken.gguf"
    for content in (b"", b"GGUF", b"not a model at all" * 100):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"cannot load the model .*broken\.gguf"):
            load_pretrained(str(path))
    assert not list((tmp_path / "cache").rglob("complete.json"))
    assert gguf_file.cache_folder() == tmp_path / "cache"


def test_who_asks_while_a_file_is_converted_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOPE_INTERP_CACHE", str(tmp_path / "cache"))
    path, made = tmp_path / "any.gguf", list[Path]()
    path.write_bytes(b"any")
    begun, asked = threading.Event(), threading.Barrier(2)

    def convert(path: Path, folder: Path) -> None:
        begun.set()
        asked.wait()
        made.append(folder)

    monkeypatch.setattr(gguf_file, "_convert", convert)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(gguf_file.converted_gguf, path)
        begun.wait()
        second = pool.submit(gguf_file.converted_gguf, path)
        asked.wait()
        assert first.result() == second.result()
    assert made == [first.result()]


def test_a_gguf_that_ends_within_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOPE_INTERP_CACHE", str(tmp_path / "cache"))
    whole, cut = tmp_path / "whole.gguf", tmp_path / "cut.gguf"
    writer = GGUFWriter(whole, "llama")
    writer.add_block_count(1)
    writer.add_tensor("token_embd.weight", np.zeros((64, 32), np.float32))
    finish(writer)
    assert len(GGUFReader(whole).tensors) == 1
    cut.write_bytes(whole.read_bytes()[:-4096])
    with pytest.raises(UserError, match=r"cannot load the model .*cut\.gguf.*reshape"):
        load_pretrained(str(cut))
    assert not list((tmp_path / "cache").rglob("complete.json"))
