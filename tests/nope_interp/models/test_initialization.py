"""Initialisation schemes against their papers' variances, and their own generator."""

import math
from typing import Any, get_args

import numpy as np
import pytest
import torch

from nope_interp.models.config import Initialization, TransformerConfig
from nope_interp.models.initialization import SCHEMES, Initializer
from nope_interp.models.transformer import HookedTransformer

ROWS, COLUMNS = 300, 200


def drawn(scheme: str, scale: float | None = None, seed: int = 0) -> np.ndarray:
    weight = torch.empty(ROWS, COLUMNS)
    Initializer(scheme, scale, seed)(weight)
    return weight.double().numpy()


def model(**changes: Any) -> HookedTransformer:
    sizes = {"n_layers": 3, "d_model": 96, "n_heads": 4, "d_vocab": 500, "n_ctx": 64}
    return HookedTransformer(TransformerConfig.from_dict({**sizes, **changes}))


def test_the_registry_holds_exactly_the_names_that_a_config_accepts() -> None:
    assert set(SCHEMES) == set(get_args(Initialization))


@pytest.mark.parametrize(
    ("scheme", "unit"),
    [
        ("normal", 1.0),
        ("uniform", 1.0),
        ("xavier_normal", math.sqrt(2 / (ROWS + COLUMNS))),
        ("xavier_uniform", math.sqrt(2 / (ROWS + COLUMNS))),
        ("kaiming_normal", math.sqrt(1 / COLUMNS)),
        ("kaiming_uniform", math.sqrt(1 / COLUMNS)),
        ("orthogonal", math.sqrt(1 / ROWS)),
    ],
)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_standard_deviation_is_the_schemes(scheme: str, unit: float, scale: float | None) -> None:
    default = 0.02 if scheme in ("normal", "uniform") else 1.0
    weight = drawn(scheme, scale)
    expected = unit * (default if scale is None else scale)
    # 60,000 draws: the standard deviation's own error is at most 1 / sqrt(2 * 60,000) = 0.3%.
    assert weight.std() == pytest.approx(expected, rel=0.015)
    assert abs(weight.mean()) < 5 * expected / math.sqrt(weight.size)
    if scheme.endswith("uniform"):
        assert abs(weight).max() <= math.sqrt(3) * expected * (1 + 1e-6)
        assert abs(weight).max() > 0.99 * math.sqrt(3) * expected
    elif scheme != "orthogonal":
        assert abs(weight).max() > 3 * expected  # a bell, not a box


def test_orthogonal_columns_are_orthonormal() -> None:
    weight = drawn("orthogonal", 2.0)
    np.testing.assert_allclose(weight.T @ weight, 4 * np.eye(COLUMNS), atol=1e-5)  # float32


@pytest.mark.parametrize("scheme", get_args(Initialization))
def test_the_seed_decides_and_the_global_generator_is_left_alone(scheme: str) -> None:
    torch.manual_seed(1)
    first, following = drawn(scheme, seed=7), torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), following)
    assert np.array_equal(drawn(scheme, seed=7), first)
    assert not np.array_equal(drawn(scheme, seed=8), first)


@pytest.mark.parametrize("scheme", get_args(Initialization))
def test_a_model_has_one_matrix_for_each_of_query_key_and_value(scheme: str) -> None:
    attn = model(init=scheme).blocks[1].attn
    expected = 0.02 if scheme in ("normal", "uniform") else math.sqrt(1 / 96)
    for weight in (attn.W_Q, attn.W_K, attn.W_V, attn.W_O):
        # 96 * 96 draws: 0.75% standard error; a fused Xavier draw would be 29% lower.
        assert weight.std().item() == pytest.approx(expected, rel=0.04)


def test_output_projections_are_rescaled_on_demand() -> None:
    plain, rescaled = model(), model(rescale_output_projections=True)
    for ours, theirs in zip(plain.blocks, rescaled.blocks, strict=True):
        for wanted, weight in (
            (ours.attn.W_O, theirs.attn.W_O),
            (ours.mlp.W_out, theirs.mlp.W_out),
        ):
            torch.testing.assert_close(weight * math.sqrt(6), wanted)
        assert torch.equal(ours.attn.W_V, theirs.attn.W_V)
        assert torch.equal(ours.mlp.W_in, theirs.mlp.W_in)


@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_biases_start_at_zero_and_gains_at_one(activation: str) -> None:
    for name, parameter in model(activation=activation).named_parameters():
        if name.endswith((".bias", ".b")):
            assert not parameter.any(), name
        elif name.endswith(".w"):
            assert (parameter == 1).all(), name
        else:
            assert parameter.std() > 0.01, name


@pytest.mark.parametrize("positions", ["none", "learned", "t5"])
def test_a_models_seed_decides_its_bits(positions: str) -> None:
    torch.manual_seed(0)
    first = model(positions=positions, seed=3).state_dict()
    torch.manual_seed(1)
    again, other = model(positions=positions, seed=3), model(positions=positions, seed=4)
    assert all(torch.equal(first[name], value) for name, value in again.state_dict().items())
    assert not torch.equal(first["embed.weight"], other.embed.weight)


def test_building_a_model_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(2)
    expected = torch.rand(4)
    torch.manual_seed(2)
    model()
    assert torch.equal(torch.rand(4), expected)
