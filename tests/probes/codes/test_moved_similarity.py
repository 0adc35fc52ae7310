"""Similarity exchanged between positions: the planted one, and against Cholesky by numpy."""

import numpy as np
import pytest
import torch

from probes.codes.similarity import moved_similarity
from probes.codes.statistics import CodeStatistics
from probes.errors import ProbeError
from probes.variance import activation_variance
from tests.probes.codes.test_codes import POSITIONS, fitted, planted

# For fewer than all positions; its inverse is another order.
SOURCES = torch.arange(10).roll(3) + 4
N = len(SOURCES)


@pytest.fixture(scope="module")
def activations() -> torch.Tensor:
    return planted(2048, seed=0)


@pytest.fixture(scope="module")
def statistics(activations: torch.Tensor) -> CodeStatistics:
    return fitted(activations)


def test_positions_resemble_one_another_as_their_sources_do(statistics: CodeStatistics) -> None:
    x = planted(512, seed=1)[:, :N]
    moved = moved_similarity(statistics, SOURCES)(x).double()
    means = statistics.positional_vectors()[:N]
    deviations = moved - means
    products = torch.einsum("bid,bjd->ij", deviations, deviations)
    scale = products.diagonal().sqrt()
    m = POSITIONS[SOURCES].double() + 1
    planted_there = (torch.minimum(m, m[:, None]) / torch.maximum(m, m[:, None])).sqrt()
    torch.testing.assert_close(products / scale / scale[:, None], planted_there, atol=0.03, rtol=0)
    # The mean of deviations is 0 but for its standard error, at which 640 numbers lie within 5.
    errors = deviations.std(dim=0) / len(x) ** 0.5
    assert (deviations.mean(dim=0) / errors).abs().max() < 5


def test_deviations_are_turned_from_one_cholesky_factor_to_the_other_and_variances_stay(
    statistics: CodeStatistics, activations: torch.Tensor
) -> None:
    x = activations[:64, :N]
    moved = moved_similarity(statistics, SOURCES)(x).double()
    torch.testing.assert_close(activation_variance(moved), activation_variance(x))

    every = activations.double().numpy()
    deviations = every - every.mean(axis=0)
    products = np.einsum("bid,bjd->ij", deviations, deviations)
    scale = np.sqrt(products.diagonal())
    correlation = products / scale / scale[:, None]
    there = correlation[np.ix_(SOURCES, SOURCES)]
    factor, wanted = (np.linalg.cholesky(of) for of in (correlation[:N, :N], there))
    turned = wanted @ np.linalg.inv(factor) @ (deviations[:64, :N] / scale[:N, None])
    found = moved.numpy() - every.mean(axis=0)[:N]
    lengths = np.linalg.norm(turned, axis=-1) * np.linalg.norm(found, axis=-1)
    np.testing.assert_allclose((turned * found).sum(axis=-1) / lengths, 1, atol=1e-4)


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ([4, 5, 4], "two positions would get the similarity of one"),
        ([4, 24], "give one for each of the first positions, as an index from 0 to 23"),
        ([-1, 4], "an index from 0 to 23"),
        (list(range(25)), "an index from 0 to 23"),
    ],
)
def test_sources_that_are_none_are_refused(
    statistics: CodeStatistics, sources: list[int], said: str
) -> None:
    with pytest.raises(ProbeError, match=said):
        moved_similarity(statistics, torch.tensor(sources))
