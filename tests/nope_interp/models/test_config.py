"""A config is valid or refused with one sentence."""

import dataclasses
import json
import subprocess
import sys
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nope_interp.errors import UserError
from nope_interp.fields import LARGEST_SEED
from nope_interp.models.config import (
    POSITIONS,
    Activation,
    Initialization,
    Normalization,
    NormPlacement,
    TransformerConfig,
)

SIZES: dict[str, Any] = {"n_layers": 2, "d_model": 32, "n_heads": 4, "d_vocab": 50, "n_ctx": 16}
FIELDS = [field.name for field in dataclasses.fields(TransformerConfig)]

valid_fields = st.fixed_dictionaries(
    {
        "n_layers": st.integers(1, 100),
        "d_model": st.integers(1, 50).map(lambda k: 24 * k),
        "n_heads": st.sampled_from([1, 2, 3, 4, 6, 12]),
        "d_vocab": st.integers(1, 300_000),
        "n_ctx": st.integers(1, 10_000),
    },
    optional={
        "d_mlp": st.none() | st.integers(1, 10_000),
        "positions": st.sampled_from(POSITIONS),
        "rotary_kept": st.floats(0, 1),
        "causal": st.booleans(),
        "normalization": st.sampled_from(get_args(Normalization)),
        "norm_placement": st.sampled_from(get_args(NormPlacement)),
        "residual": st.booleans(),
        "attn_only": st.booleans(),
        "activation": st.sampled_from(get_args(Activation)),
        "attn_scale": st.none() | st.floats(1e-3, 1e3),
        "dropout": st.floats(0, 0.99),
        "init": st.sampled_from(get_args(Initialization)),
        "init_scale": st.none() | st.floats(1e-4, 10),
        "seed": st.integers(0, LARGEST_SEED),
    },
)
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def test_defaults_that_depend_on_other_fields() -> None:
    config = TransformerConfig(**SIZES)
    assert (config.d_head, config.mlp_width, config.rotary_dims) == (8, 128, 8)
    assert config.attention_scale == pytest.approx(8**-0.5)
    given_values = TransformerConfig(**SIZES, d_mlp=100, attn_scale=1.0, activation="swiglu")
    assert (given_values.mlp_width, given_values.attention_scale, given_values.gated) == (
        100,
        1.0,
        True,
    )


@given(valid_fields)
def test_a_valid_config_survives_json(fields: dict[str, Any]) -> None:
    config = TransformerConfig.from_dict(fields)
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert {name: getattr(config, name) for name in fields} == fields


@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(), junk, max_size=6))
def test_junk_fields_raise_nothing_but_user_errors(fields: dict[str, Any]) -> None:
    try:
        config = TransformerConfig.from_dict({**SIZES, **fields})
    except UserError as error:
        sentence = str(error)
    else:
        sentence = ""
        assert set(fields) <= set(FIELDS)
        assert TransformerConfig.from_dict(config.to_dict()) == config
    assert "\n" not in sentence
    assert not sentence or sentence.endswith((".", "?"))


@given(junk)
def test_junk_in_place_of_a_config_raises_nothing_but_user_errors(fields: Any) -> None:
    with pytest.raises(UserError):
        TransformerConfig.from_dict(fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"positions": "rotery"}, "unknown positions 'rotery': did you mean 'rotary'?"),
        ({"init": "kaiming"}, "unknown init 'kaiming': did you mean 'kaiming_"),
        ({"activation": "swish"}, "unknown activation 'swish': "),
        ({"normalization": None}, "normalization is None: choose from layer, rms, none."),
        ({"norm_placement": "sandwich"}, "unknown norm_placement 'sandwich'"),
        ({"n_layers": 0}, "n_layers is 0: give a whole number from 1 to"),
        ({"n_layers": True}, "n_layers is True: give a whole number"),
        ({"n_layers": 2.0}, "n_layers is 2.0: give a whole number"),
        ({"n_ctx": 10**5000}, "n_ctx is a huge int: give a whole number from 1 to"),
        ({"d_mlp": -1}, "d_mlp is -1: give a whole number"),
        ({"n_heads": 5}, "d_model 32 does not divide into 5 heads: make d_model a multiple"),
        ({"causal": 1}, "causal is 1: give True or False."),
        ({"dropout": 1.0}, "dropout is 1.0: give a number from 0 to just below 1."),
        ({"dropout": float("nan")}, "dropout is nan: give a number from 0"),
        ({"norm_eps": 10**400}, "norm_eps is 1000"),
        ({"rotary_kept": 1.5}, "rotary_kept is 1.5: give a number from 0 to 1."),
        ({"attn_scale": 0}, "attn_scale is 0: give a number above 0."),
        ({"init_scale": "big"}, "init_scale is 'big': give a number above 0."),
        ({"seed": -1}, "seed is -1: give a whole number from 0 to"),
        ({"positions": "rotary", "rotary_fraction": 0.3}, "rotary_fraction 0.3 of a head's 8 dim"),
        ({"positions": "rotary", "n_heads": 32}, "a head's 1 dimensions is 1: make it an even"),
        (
            {"positions": "sinusoidal", "d_model": 33, "n_heads": 3},
            "sinusoidal positions need an even d_model, half sines and half cosines; 33 is odd.",
        ),
        ({"n_layer": 2}, "unknown field of the model's config 'n_layer': did you mean 'n_layers'?"),
        ({"zzz": 2}, "unknown field of the model's config 'zzz': choose from n_layers, d_model"),
    ],
)
def test_a_wrong_field_is_named_with_its_remedy(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        TransformerConfig.from_dict({**SIZES, **fields})
    assert message in str(caught.value)


def test_missing_sizes_are_named() -> None:
    with pytest.raises(UserError, match="lacks n_heads, n_ctx: these have no default"):
        TransformerConfig.from_dict({"n_layers": 1, "d_model": 8, "d_vocab": 5})


def test_an_odd_rotated_width_matters_to_rotary_positions_alone() -> None:
    assert TransformerConfig(**{**SIZES, "n_heads": 32}).d_head == 1


def test_numpy_numbers_become_python_numbers() -> None:
    sizes = {name: np.int64(value) for name, value in SIZES.items()}
    config = TransformerConfig.from_dict({**sizes, "dropout": np.float32(0.5)})
    assert config == TransformerConfig(**SIZES, dropout=0.5)
    assert json.loads(json.dumps(config.to_dict()))["n_layers"] == 2


def test_a_config_cannot_be_changed_but_replaced() -> None:
    config = TransformerConfig(**SIZES)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.n_layers = 3  # type: ignore[misc]
    assert dataclasses.replace(config, d_model=64).mlp_width == 256


def test_importing_the_config_loads_no_torch() -> None:
    code = "import sys, nope_interp.models.config; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
