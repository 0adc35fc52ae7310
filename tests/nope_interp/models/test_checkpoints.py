"""What was written is read to the bit, and everything else is refused with one sentence."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from nope_interp.errors import UserError
from nope_interp.models.checkpoints import (
    TrainedOn,
    _digest,
    load_model,
    load_tensors,
    save_model,
    save_tensors,
)
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer

CONFIG = TransformerConfig(n_layers=2, d_model=16, n_heads=2, d_vocab=20, n_ctx=16)
HEADER = {"config": CONFIG.to_dict(), "task": "text"}

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


def written(path: Path, **header: Any) -> Path:
    """A model's weights under a header that need not be right."""
    return save_tensors(path, HookedTransformer(CONFIG).state_dict(), {**HEADER, **header})


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        load_model(path)
    sentence = str(caught.value)
    assert str(path) in sentence
    assert "\n" not in sentence
    return sentence


def test_tensors_of_all_kinds_come_back_to_the_bit(tmp_path: Path) -> None:
    tensors = {
        "number": torch.tensor(3.5),
        "none": torch.zeros(0, 4),
        "bits": torch.tensor([True, False]),
        "half": torch.randn(3, 2).bfloat16(),
        "whole": torch.arange(4),
        "view": torch.arange(6.0).reshape(2, 3).T,
    }
    found, header = load_tensors(save_tensors(tmp_path / "x", tensors, {"a": [1, None]}))
    assert header == {"a": [1, None]}
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize("change", [lambda byte: byte ^ 1, lambda byte: byte ^ 255])
def test_a_changed_byte_anywhere_is_noticed(tmp_path: Path, change: Any) -> None:
    path = save_model(HookedTransformer(CONFIG), tmp_path / "model.safetensors", task="text")
    whole = path.read_bytes()
    places = [*range(8), *range(8, len(whole), len(whole) // 80)]
    assert len(places) >= 80
    for place in places:
        damaged = bytearray(whole)
        damaged[place] = change(damaged[place])
        path.write_bytes(damaged)
        refusal(path)
    path.write_bytes(whole)
    load_model(path)


def test_the_same_model_is_the_same_bytes(tmp_path: Path) -> None:
    files = [written(tmp_path / f"{nth}.safetensors").read_bytes() for nth in range(12)]
    assert len(set(files)) == 1


def test_zeroed_stretches_and_exchanged_tensors_are_noticed(tmp_path: Path) -> None:
    path = save_model(HookedTransformer(CONFIG), tmp_path / "model.safetensors", task="text")
    whole = path.read_bytes()
    for start in range(0, len(whole) - 64, len(whole) // 40):
        path.write_bytes(whole[:start] + bytes(64) + whole[start + 64 :])
        if path.read_bytes() != whole:
            refusal(path)
    path.write_bytes(whole)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    first, second = "blocks.0.attn.out.weight", "blocks.1.attn.out.weight"
    weights[first], weights[second] = weights[second], weights[first]
    save_file(weights, path, metadata)
    assert "damaged" in refusal(path)


def test_a_header_that_was_changed_by_hand_is_noticed(tmp_path: Path) -> None:
    """Of rotary positions no weight tells."""
    path = written(tmp_path / "model.safetensors")
    with safe_open(path, "pt") as file:
        digest, _, header = file.metadata()["nope_interp"].partition(" ")
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    config = {**HEADER["config"], "positions": "rotary"}
    changed = json.dumps({**HEADER, "config": config})
    save_file(weights, path, {"nope_interp": f"{digest} {changed}"})
    assert "damaged" in refusal(path)
    save_file(weights, path, {"nope_interp": header})
    assert "no digest" in refusal(path)
    assert "train it again" in refusal(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": None}, "'lengths' is None: give a value, or leave it out"),
        ({"task": None}, "'task' is None: give a value"),
        ({"task": 3}, "task is 3: give text"),
        ({"task": ""}, "task is '': give the name of one"),
        ({"scratchpad": 3}, "scratchpad is 3: give a list of texts"),
        ({"scratchpad": "output"}, "scratchpad is 'output': give a list of texts"),
        ({"scratchpad": []}, "scratchpad has no parts"),
        ({"lengths": ["2", 3]}, "lengths is ['2', 3]: give a list of whole numbers"),
        (
            {"lengths": [3]},
            "lengths are [3]: give the shortest and the longest, from 1, such as 2-8",
        ),
        ({"lengths": [0, 3]}, "lengths are [0, 3]: give the shortest and the longest"),
        ({"lengths": [8, 3]}, "lengths are [8, 3]: give the shortest and the longest"),
        ({"lenghts": [2, 3]}, "unknown field of the header 'lenghts': did you mean 'lengths'?"),
        ({"config": [1]}, "the model's config is list: give named values"),
        ({"config": {}}, "the model's config lacks n_layers"),
    ],
)
def test_a_wrong_field_of_the_header_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    sentence = refusal(written(tmp_path / "model.safetensors", **changes))
    assert f"is wrong: {message}" in sentence


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "learned"}, "positions are 'learned', with a table of positions of shape"),
        ({"positions": "t5"}, "positions are 't5', with a table of positions of shape (32, 2)"),
        ({"n_layers": 3}, "n_layers is 3, but the weights are of a model with 2"),
        ({"n_layers": 2**24}, "n_layers is 16777216, but the weights"),
        ({"d_model": 2**24}, "d_model is 16777216, but the weights are of a model with 16"),
        ({"d_mlp": 2**24}, "d_mlp is 16777216, but the weights are of a model with 64"),
        ({"d_vocab": 21}, "d_vocab is 21, but the weights are of a model with 20"),
        ({"attn_only": True}, "attn_only is True, but the weights are of a model with False"),
        ({"activation": "swiglu"}, "gated is True, but the weights are of a model with False"),
        ({"normalization": "rms"}, "normalization is 'rms', but the weights are of a model with"),
        ({"tied_embeddings": True}, "tied_embeddings is True, but the weights' are not tied"),
        ({"norm_placement": "post"}, "does not fit its own config"),
        ({"dropout": 1}, "dropout is 1: give a number from 0 to just below 1"),
    ],
)
def test_a_config_that_is_not_that_of_the_weights_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    config = {**CONFIG.to_dict(), **changes}
    assert message in refusal(written(tmp_path / "model.safetensors", config=config))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"positions": "learned", "activation": "swiglu", "normalization": "rms", "d_mlp": 24},
        {"positions": "t5", "attn_only": True, "norm_placement": "post", "tied_embeddings": True},
        {"positions": "rotary", "normalization": "none", "residual": False},
    ],
)
def test_models_of_all_kinds_are_read(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = HookedTransformer(dataclasses.replace(CONFIG, **changes))
    path = tmp_path / "model.safetensors"
    save_model(model, path, task="parity", lengths=(2, 5), scratchpad=("output",))
    found, trained_on = load_model(path)
    assert found.config == model.config
    assert trained_on == TrainedOn("parity", (2, 5), ("output",))
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, found.state_dict()[name])


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=150,
)
@given(
    st.sampled_from(["config", "task", "lengths", "scratchpad"])
    | st.sampled_from(sorted(CONFIG.to_dict())).map(lambda name: f"config.{name}")
    | st.text(max_size=5),
    junk,
)
def test_a_header_with_junk_in_it_is_read_or_refused(
    tmp_path: Path, field: str, value: Any
) -> None:
    outer, _, inner = field.partition(".")
    changes = {outer: {**HEADER["config"], inner: value} if inner else value}
    path = written(tmp_path / "model.safetensors", **changes)
    try:
        load_model(path)
    except UserError:
        refusal(path)


@pytest.mark.parametrize("header", ["[1]", "null", "3", '"config"', "{}", '{"task": "text"}'])
def test_a_header_that_describes_no_model_is_refused(tmp_path: Path, header: str) -> None:
    weights = HookedTransformer(CONFIG).state_dict()
    path = tmp_path / "model.safetensors"
    save_file(weights, path, {"nope_interp": f"{_digest(weights, header)} {header}"})
    assert "train it again" in refusal(path)


@pytest.mark.parametrize("shape", [(), (0,), (21,), (20, 16, 1)])
@pytest.mark.parametrize("name", sorted(HookedTransformer(CONFIG).state_dict()))
def test_weights_of_a_wrong_shape_are_refused(
    tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    weights = {**HookedTransformer(CONFIG).state_dict(), name: torch.zeros(shape)}
    refusal(save_tensors(tmp_path / "model.safetensors", weights, HEADER))


def test_no_weights_at_all_are_refused(tmp_path: Path) -> None:
    assert "n_layers is 2" in refusal(save_tensors(tmp_path / "model.safetensors", {}, HEADER))


def test_a_path_may_be_text_and_begin_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "model.safetensors")
    monkeypatch.setenv("HOME", str(tmp_path))
    model, _ = load_model("~/model.safetensors")
    assert model.config == CONFIG
