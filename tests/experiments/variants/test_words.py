"""Words for fields: dotted names, shorthands, and what is said of wrong ones."""

import pickle
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments.comparison.config import CompareConfig
from experiments.heads.config import HeadsConfig
from experiments.variants.checks import check_device_for, check_shards
from experiments.variants.words import check_words, expanded, fields_of, flat, nested, word_for
from nope_interp.devices import check_device_name
from nope_interp.errors import FieldError, UserError, nearest_name
from tests import typecheck

NAMES = st.text(st.characters(codec="ascii", exclude_characters="."), min_size=1, max_size=4)


def test_every_leaf_of_the_config_has_one_word() -> None:
    # Some are left out of what a config writes while they are not given.
    left_out = {"lengths", "scratchpad", "positions"}
    written = flat("the config", CompareConfig().to_dict()).keys() | left_out
    assert fields_of(CompareConfig).keys() == written | {"training.compile"}


@given(
    st.recursive(
        st.integers(), lambda inner: st.dictionaries(NAMES, inner, min_size=1), max_leaves=6
    ).filter(lambda value: isinstance(value, dict))
)
def test_nesting_and_flattening_undo_each_other(values: dict[str, object]) -> None:
    assert nested(flat("it", values)) == values


def test_a_word_and_its_shorthand_in_either_order() -> None:
    expected = {"seed": 1, "transformer.seed": 5, "training.seed": 1}
    assert expanded(CompareConfig, {"seed": 1, "transformer.seed": 5}) == expected
    assert expanded(CompareConfig, {"transformer.seed": 5, "seed": 1}) == expected
    quick = expanded(CompareConfig, {"quick": True})
    for words in ({"quick": True, "sequences": 24}, {"sequences": 24, "quick": True}):
        assert expanded(CompareConfig, words) == {**quick, "n_fit": 16, "n_held_out": 8}
    # What the shorthand is no field of the config is not left in it.
    assert expanded(HeadsConfig, {"sequences": 20}) == {"n_sequences": 20}


def test_what_says_how_a_run_is_done_cannot_stand_in_a_config() -> None:
    for word in ("device", "shards", "quiet"):
        with pytest.raises(UserError, match=f"^{word} cannot stand in .*: give --{word} with"):
            CompareConfig.from_dict({word: "cpu"})


def test_the_word_that_set_a_field_is_found() -> None:
    given_words = {"seq_len": 8, "training.steps": 3}
    assert word_for(CompareConfig, given_words, "transformer.n_ctx") == "seq_len"
    assert word_for(CompareConfig, given_words, "training.steps") == "training.steps"
    assert word_for(CompareConfig, given_words, "n_fit") is None


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("n_layers", "transformer.n_layers"),
        ("n_layer", "transformer.n_layers"),
        ("transformer.steps", "training.steps"),
        ("d_model", "transformer.d_model"),
        ("layer", "layers"),
        ("n_fits", "n_fit"),
    ],
)
def test_the_nearest_word_is_told_by_its_end(wrong: str, right: str) -> None:
    with pytest.raises(UserError, match=f"'{wrong}': did you mean '{right}'"):
        check_words(CompareConfig, nested({wrong: 1}))


def test_what_is_near_nothing_is_told_what_there_is() -> None:
    assert nearest_name("lr", fields_of(CompareConfig), closeness=0.7) is None
    # In capitals no letter is the same as in another name's, but its digits are.
    assert nearest_name("KIM2025", ["zuo2025", "kim2025"]) == "kim2025"
    with pytest.raises(UserError, match="'lr': choose from model, revision"):
        check_words(CompareConfig, {"lr": 1})


def test_an_error_of_a_field_survives_a_worker_and_takes_another_name() -> None:
    error = pickle.loads(pickle.dumps(FieldError("steps", "is 0: it is too small.", "training")))
    assert isinstance(error, UserError)
    assert str(error) == "training steps is 0: it is too small."
    assert str(error.renamed("--steps")) == "--steps is 0: it is too small."


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1", "mps", "xpu:0"])
def test_devices_that_may_be_somewhere(device: str) -> None:
    check_device_name(device)


@pytest.mark.parametrize("device", ["quantum", "meta", "cuda:", "cuda:x", "", "CPU", "cuda:-1"])
def test_what_is_no_device_anywhere(device: str) -> None:
    with pytest.raises(UserError, match=f"device '{device}' cannot be used here"):
        check_device_name(device)


def test_a_device_is_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    for wrong in (torch.device("cpu"), 0, None):
        with pytest.raises(UserError, match=r"the device is .*: give its name, such as 'cpu'"):
            check_device_name(cast(Any, wrong))


def test_only_pretrained_models_are_spread() -> None:
    check_device_for(CompareConfig(model="gpt2"), "auto")
    for model in (None, "own.safetensors"):
        with pytest.raises(UserError, match="'auto' is for pretrained models"):
            check_device_for(CompareConfig(model=model), "auto")


def test_shards_that_cannot_be() -> None:
    check_shards(2, None, n_sequences=4, device="cpu")
    with pytest.raises(UserError, match="shards are too many for 4 sequences: give at most 2"):
        check_shards(3, None, n_sequences=4, device="cpu")
    with pytest.raises(UserError, match="shards is 0: give at least 1"):
        check_shards(0, None, n_sequences=4, device="cpu")
    assert CompareConfig(n_fit=40, n_held_out=20).n_shareable == 20
