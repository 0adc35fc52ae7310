"""Divergences against SciPy's and sums by hand; pairs of heads against loops."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from probes.heads.pattern_divergence import (
    from_mean,
    head_distances,
    jensen_shannon,
    nearest_heads,
    nearest_later_heads,
)


def causal_patterns(seed: int, heads: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(2, 4, heads, 6, 6, generator=generator, dtype=torch.float64)
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)


@given(st.integers(0, 2**32 - 1))
def test_divergences_of_two_distributions(seed: int) -> None:
    p, q = np.random.default_rng(seed).dirichlet(np.ones(5), size=2)
    mean = (p + q) / 2
    rows = torch.from_numpy(p), torch.from_numpy(q)
    assert jensen_shannon(*rows).item() == pytest.approx(jensenshannon(p, q) ** 2, abs=1e-12)
    expected = (entropy(mean, p) + entropy(mean, q)) / 2
    assert from_mean(*rows).item() == pytest.approx(expected, abs=1e-12)


def test_the_ends_of_the_scale() -> None:
    p, q = torch.eye(2, dtype=torch.float64)
    assert jensen_shannon(p, q).item() == pytest.approx(np.log(2))
    assert jensen_shannon(p, p).item() == from_mean(p, p).item() == 0
    assert 100 < from_mean(p, q).item() < torch.inf


def test_heads_are_paired_inside_a_layer_and_rows_left_out() -> None:
    p, q = causal_patterns(0), causal_patterns(1)
    rows = torch.arange(6)[None] < torch.tensor([[6], [3], [4], [2]])
    rows[:, 0] = False
    distances = head_distances(p, q, rows)
    every, later = nearest_heads(distances), nearest_later_heads(distances)
    for example in range(4):
        found = np.zeros((2, 3, 3))
        for layer, source, target in np.ndindex(2, 3, 3):
            by_row = [
                jensenshannon(p[layer, example, source, row], q[layer, example, target, row]) ** 2
                for row in range(6)
                if rows[example, row]
            ]
            found[layer, source, target] = np.mean(by_row)
        assert distances[:, example].numpy() == pytest.approx(found)
        assert every[example].item() == pytest.approx(found.min(axis=(1, 2)).mean())
        above = found[:, *np.triu_indices(3, 1)]
        assert later[example].item() == pytest.approx(above.min(axis=1).mean())


def test_a_model_is_nowhere_from_itself_in_any_order_of_heads() -> None:
    p, rows = causal_patterns(0), torch.ones(4, 6, dtype=torch.bool)
    assert nearest_heads(head_distances(p, p.flip(2), rows)).abs().max() < 1e-12
    # The published pairing never compares a head with itself.
    assert nearest_later_heads(head_distances(p, p, rows)).min() > 0.01
