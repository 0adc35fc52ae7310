"""Pretrained models: loaded faithfully, checked on load, refused in one sentence."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from nope_interp import pretrained
from nope_interp.errors import UserError
from nope_interp.pretrained import load_pretrained, random_twin
from tests.huggingface import save_folder, tiny_gemma3, tiny_gpt2, words


@pytest.fixture(scope="module")
def gpt2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tiny_gpt2(), tmp_path_factory.mktemp("gpt2"))


@pytest.fixture
def copy(gpt2_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(gpt2_folder, tmp_path / "copy"))


@pytest.mark.parametrize("make", [tiny_gpt2, tiny_gemma3])
def test_logits_equal_the_plain_model(make: object, tmp_path: Path) -> None:
    plain = make()  # type: ignore[operator]
    loaded = load_pretrained(str(save_folder(plain, tmp_path / "m")))
    tokens = torch.randint(4, 60, (3, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = plain(tokens).logits
        actual = loaded.model(tokens)
    # The bridge sums in another order: float32 rounding over two or three layers.
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


def test_random_twin_is_drawn_anew_from_its_seed(gpt2_folder: Path) -> None:
    loaded = load_pretrained(str(gpt2_folder))
    twins = [random_twin(loaded, seed).model for seed in (1, 1, 2)]
    weights = [model.original_model.state_dict() for model in (loaded.model, *twins)]
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
    with pytest.raises(UserError, match="attends to the future"):
        load_pretrained(str(folder))


def test_names_that_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="did you mean 'gpt2-medium'"):
        load_pretrained("gpt2-meduim")
    with pytest.raises(UserError, match="check the name and the network"):
        load_pretrained("zzzz-qqqq-0000")
    with pytest.raises(UserError, match="no GGUF file"):
        load_pretrained(str(tmp_path / "absent.gguf"))
    with pytest.raises(UserError, match="neither a hub name"):
        load_pretrained("./absent")
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


def test_pickled_weights_are_refused(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    torch.save(tiny_gpt2().state_dict(), copy / "pytorch_model.bin")
    with pytest.raises(UserError, match="cannot load the model"):
        load_pretrained(str(copy))


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
    assert pretrained.cache_folder() == tmp_path / "cache"
