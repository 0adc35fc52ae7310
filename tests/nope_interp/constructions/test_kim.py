"""Attention without parameters against sums written out one query at a time."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nope_interp.constructions.kim import parameter_free_scores
from nope_interp.errors import UserError
from tests import typecheck


def one_by_one(x: np.ndarray, n_layers: int, norm: str, causal: bool, rotary: bool) -> np.ndarray:
    """The same scores, query by query; a pair of dimensions turns as a complex number."""
    length, width = x.shape
    found = np.empty((n_layers, length, length))
    for layer in range(n_layers):
        if norm == "unit":
            h, over = np.array([row / math.sqrt((row**2).sum()) for row in x]), 1.0
        else:
            h = np.array([(row - row.mean()) / math.sqrt(row.var() + 1e-5) for row in x])
            over = width if norm == "layer" else math.sqrt(width)
        half = width // 2
        turned = [row[:half] + 1j * row[half:] for row in h]
        if rotary:
            speeds = np.array([10_000 ** (-k / half) for k in range(half)])
            turned = [z * np.exp(1j * speeds * at) for at, z in enumerate(turned)]
        new = x.copy()
        for i in range(length):
            found[layer, i] = [(turned[i] * z.conj()).real.sum() / over for z in turned]
            seen = range(i + 1) if causal else range(length)
            weights = np.exp(found[layer, i][seen])
            new[i] += sum(w * h[j] for w, j in zip(weights / weights.sum(), seen, strict=True))
        x = new
    return found


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["unit", "layer", "layer_sqrt"]),
    st.booleans(),
    st.booleans(),
    st.integers(2, 7),
)
def test_scores_are_those_of_each_query_alone(
    norm: str, causal: bool, rotary: bool, length: int
) -> None:
    x = torch.randn(2, length, 6, generator=torch.Generator().manual_seed(length)).double()
    scores = parameter_free_scores(x, 3, norm=norm, causal=causal, rotary=rotary)
    for sequence in range(2):
        expected = one_by_one(x[sequence].numpy(), 3, norm, causal, rotary)
        np.testing.assert_allclose(scores[:, sequence], expected, rtol=1e-5, atol=1e-6)


def test_three_orthonormal_inputs_by_hand() -> None:
    """The second layer reads 2a, a + (1 + 2e) b, a + b + (2 + 2e) c, but for their lengths."""
    e = math.e
    rows = np.array([[2, 0, 0], [1, 1 + 2 * e, 0], [1, 1, 2 + 2 * e]])
    rows /= np.sqrt((rows**2).sum(axis=1, keepdims=True))
    first, second = parameter_free_scores(torch.eye(3)[None].double(), 2)[:, 0]
    np.testing.assert_allclose(first, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(second, rows @ rows.T, atol=1e-12)


def test_of_fifty_orthonormal_inputs_deeper_layers_do_not_favour_the_nearest_most() -> None:
    # Worked out apart from this code, for keys 1, 11, 25, 41 and 49 of 50.
    apart = [
        [0.0182, 0.0294, 0.0326, 0.0339, 0.0343],
        [0.0697, 0.1288, 0.1415, 0.1410, 0.1390],
        [0.1539, 0.3135, 0.3559, 0.3617, 0.3591],
    ]
    last = parameter_free_scores(torch.eye(50)[None].double(), 4)[1:, 0, -1]
    np.testing.assert_allclose(last[:, [0, 10, 24, 40, 48]], apart, atol=6e-5)


def test_without_the_mask_order_is_lost() -> None:
    x = torch.randn(1, 9, 8, generator=torch.Generator().manual_seed(0)).double()
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    kept, moved = (parameter_free_scores(inputs, 4, causal=False) for inputs in (x, x[:, order]))
    torch.testing.assert_close(moved, kept[..., order, :][..., order])
    masked = parameter_free_scores(x[:, order], 4)
    assert (masked - parameter_free_scores(x, 4)[..., order, :][..., order]).abs().max() > 0.05


def test_what_cannot_be_computed_is_refused() -> None:
    with pytest.raises(UserError, match="of a head's 3 dimensions is 3: make it an even"):
        parameter_free_scores(torch.eye(3)[None], 1, rotary=True)


@pytest.mark.parametrize(
    ("inputs", "n_layers", "norm", "said"),
    [
        (torch.eye(3)[None], 2, "rms", "unknown norm 'rms'"),
        (torch.eye(3), 2, "unit", r"inputs have 2 axes, of 2 layers: give \[batch, position, d\]"),
        (torch.eye(3)[None], 0, "unit", "of 0 layers"),
    ],
)
def test_what_has_no_scores_is_one_sentence(
    inputs: torch.Tensor, n_layers: int, norm: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    with pytest.raises(UserError, match=said):
        parameter_free_scores(inputs, n_layers, norm=norm)
