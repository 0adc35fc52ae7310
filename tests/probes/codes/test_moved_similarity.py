"""Similarity exchanged between positions: on planted truth, and against the formulas by numpy."""

import numpy as np
import pytest
import torch
from scipy.stats import ortho_group

from probes.codes.similarity import Correlations, SimilarityFit, moved_similarity
from probes.errors import ProbeError
from probes.variance import activation_variance
from tests.probes.codes.test_codes import POSITIONS, D, planted

# For fewer than all positions; its inverse is another order.
SOURCES = torch.arange(10).roll(3) + 4
N = len(SOURCES)


def fitted(x: torch.Tensor) -> SimilarityFit:
    fit = SimilarityFit()
    for batch in x.split(37):
        fit.update(batch, POSITIONS)
    return fit


@pytest.fixture(scope="module")
def activations() -> torch.Tensor:
    return planted(2048, seed=0)


@pytest.fixture(scope="module")
def correlations(activations: torch.Tensor) -> Correlations:
    return fitted(activations).correlations()


def correlations_of(deviations: torch.Tensor) -> torch.Tensor:
    products = torch.einsum("bid,bjd->ij", deviations, deviations)
    scale = products.diagonal().sqrt()
    return products / scale / scale[:, None]


def of_running_means(positions: torch.Tensor) -> torch.Tensor:
    """Their correlations, sqrt(i/j) between means over i tokens and over j, of more."""
    m = positions.double() + 1
    return (torch.minimum(m, m[:, None]) / torch.maximum(m, m[:, None])).sqrt()


def test_positions_resemble_one_another_as_their_sources_do(correlations: Correlations) -> None:
    x = planted(512, seed=1)[:, :N]
    moved = moved_similarity(correlations, SOURCES)(x).double()
    deviations = moved - correlations.means[:N]
    planted_there = of_running_means(POSITIONS[SOURCES])
    torch.testing.assert_close(correlations_of(deviations), planted_there, atol=0.03, rtol=0)
    # The mean of deviations is 0 but for its standard error, at which 640 numbers lie within 5.
    errors = deviations.std(dim=0) / len(x) ** 0.5
    assert (deviations.mean(dim=0) / errors).abs().max() < 5


def amid_content(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Running means in a quarter of the directions, and tokens' own content in the others; the
    directions of both."""
    generator = torch.Generator().manual_seed(seed)
    quarter = D // 4
    tokens = torch.randn(n, len(POSITIONS) + 1, quarter, generator=generator)
    means = tokens.cumsum(dim=1)[:, 1:] / (POSITIONS + 1)[:, None].sqrt()
    content = torch.randn(n, len(POSITIONS), D - quarter, generator=generator)
    directions = torch.from_numpy(ortho_group.rvs(D, random_state=3)).float()
    return torch.cat([1.5 * means, content], dim=-1) @ directions, *directions.split(
        (quarter, D - quarter)
    )


def test_content_that_no_other_position_shares_stays() -> None:
    correlations = fitted(amid_content(2048, seed=0)[0]).correlations()
    x, of_means, of_content = amid_content(512, seed=1)
    x = x[:, :N]
    moved = moved_similarity(correlations, SOURCES)(x)
    before, after = ((of - correlations.means[:N].float()) @ of_content.mT for of in (x, moved))
    # Of its length 1 a tenth may be the correlations that 2048 sequences have by chance, and what
    # gives each activation its length back.
    assert (after - before).norm() < 0.1 * before.norm()
    found = correlations_of((moved - correlations.means[:N]) @ of_means.mT.double())
    torch.testing.assert_close(found, of_running_means(POSITIONS[SOURCES]), atol=0.06, rtol=0)
    # They were others before.
    assert (correlations_of(x @ of_means.mT) - found).abs().max() > 0.3


def test_groups_of_components_are_turned_from_one_cholesky_factor_to_the_other_and_variances_stay(
    activations: torch.Tensor,
) -> None:
    every = activations + amid_content(len(activations), seed=4)[0]
    x = every[:64, :N].double()
    moved = moved_similarity(fitted(every).correlations(), SOURCES)(x)
    torch.testing.assert_close(activation_variance(moved), activation_variance(x))

    rows = every.double().numpy()
    deviations = rows - rows.mean(axis=0)
    components = np.linalg.svd(deviations.reshape(-1, D), full_matrices=False)[2]
    along = deviations @ components.T
    n_pairs = len(POSITIONS) * (len(POSITIONS) - 1)
    pairs = along.sum(axis=1) ** 2 - (along**2).sum(axis=1)
    likeness = pairs.sum(axis=0) / n_pairs / (along**2).mean(axis=1).sum(axis=0)
    turned = np.zeros((64, N, D))
    sizes = np.sqrt((along**2).sum(axis=(0, 1)))
    for group in np.array_split(np.argsort(likeness), 16):
        alike = along[..., group] / sizes[group]
        products = np.einsum("bik,bjk->ij", alike, alike)
        scale = np.sqrt(products.diagonal())
        correlation = products / scale / scale[:, None]
        # Of the squares of correlations, the share that their variances from text to text explain.
        of_each = np.einsum("bik,bjk->bij", alike, alike) / scale / scale[:, None]
        variances = of_each.var(axis=0, ddof=1) * len(rows) * (len(rows) - 1) / (len(rows) - 2)
        apart = ~np.eye(len(scale), dtype=bool)
        by_chance = min(1, variances[apart].sum() / (correlation[apart] ** 2).sum())
        correlation += by_chance * (np.eye(len(scale)) - correlation)
        there = correlation[np.ix_(SOURCES, SOURCES)]
        factor, wanted = (np.linalg.cholesky(of) for of in (correlation[:N, :N], there))
        rescaled = along[:64, :N][..., group] / scale[:N, None]
        turned += scale[:N, None] * (wanted @ np.linalg.inv(factor) @ rescaled) @ components[group]
    found = moved.numpy() - rows.mean(axis=0)[:N]
    lengths = np.linalg.norm(turned, axis=-1) * np.linalg.norm(found, axis=-1)
    np.testing.assert_allclose((turned * found).sum(axis=-1) / lengths, 1, atol=1e-4)


def test_batches_and_shards_change_nothing(activations: torch.Tensor) -> None:
    once, merged = SimilarityFit(), fitted(activations[:1000])
    once.update(activations, POSITIONS)
    merged.correlations()
    merged.merge(fitted(activations[1000:]))
    first, second = once.correlations(), merged.correlations()
    assert torch.equal(first.means, second.means)
    assert all(map(torch.equal, first.between, second.between))


@pytest.mark.parametrize(("n", "groups"), [(2048, 16), (20, 5), (3, 1)])
def test_few_sequences_tell_fewer_groups_apart(n: int, groups: int) -> None:
    """Ten times as many numbers at a position as the 24 positions; (20 - 1) * 64 are five times
    240."""
    assert len(fitted(planted(n, seed=0)).correlations().between) == groups


@pytest.mark.parametrize(("loud", "of_sequence"), [(0, 0.0), (8, 0.0), (0, 0.7)])
def test_what_correlates_by_chance_alone_is_not_mixed(loud: int, of_sequence: float) -> None:
    """Content as of `compare --quick`: few sequences, many positions, components of any size, and
    sequences of sizes whose logarithms vary so much."""
    n, pos = 128, 63
    generator = torch.Generator().manual_seed(0)
    content = torch.randn(2 * n, pos, D, generator=generator)
    content[..., :loud] *= 300**0.5
    content *= (of_sequence * torch.randn(2 * n, 1, 1, generator=generator)).exp()
    fit = SimilarityFit()
    fit.update(content[:n], torch.arange(1, pos + 1))
    moved = moved_similarity(fit.correlations(), torch.arange(pos).flip(0))
    x = content[n:]
    # Unshrunk, a quarter of the length and more would be mixed, of the last ones two fifths.
    assert (moved(x) - x).norm() < 0.05 * x.norm()
    assert (moved(x) - x)[:, -10:].norm() < 0.05 * x[:, -10:].norm()


def test_a_position_where_all_sequences_are_alike_stays() -> None:
    x = planted(512, seed=0) + 100
    x[:, 2] = x[0, 2]
    # A rounding apart, as activations of one token can be.
    up = torch.rand(512, D, generator=torch.Generator().manual_seed(0)) < 0.5
    x[:, 2] = torch.where(up, x[:, 2].nextafter(torch.tensor(torch.inf)), x[:, 2])
    moved = moved_similarity(fitted(x).correlations(), SOURCES)(x[:20, :N])
    torch.testing.assert_close(moved[:, 2], x[:20, 2], rtol=1e-6, atol=0)
    assert moved.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_activations_of_any_float_type_are_given_back_as_they_came(dtype: torch.dtype) -> None:
    x = planted(64, seed=0)
    fit = fitted(x.to(dtype))
    moved = moved_similarity(fit.correlations(), SOURCES)(x[:20, :N].to(dtype))
    assert moved.dtype == dtype
    assert (moved.float() - x[:20, :N]).norm() > 0.1 * x[:20, :N].norm()


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
    correlations: Correlations, sources: list[int], said: str
) -> None:
    with pytest.raises(ProbeError, match=said):
        moved_similarity(correlations, torch.tensor(sources))


def test_too_few_sequences_are_refused() -> None:
    for n, fit in enumerate((SimilarityFit(), *(fitted(planted(n, seed=0)) for n in (1, 2)))):
        with pytest.raises(ProbeError, match=f"fitted on {n} sequences: give at least 3"):
            fit.correlations()
    with pytest.raises(ProbeError, match="do not determine the correlation between 24 positions"):
        fitted(planted(3, seed=0)[..., :10]).correlations()


def test_activations_that_do_not_vary_stay() -> None:
    x = planted(1, seed=0).repeat(4, 1, 1)
    moved = moved_similarity(fitted(x).correlations(), SOURCES)
    torch.testing.assert_close(moved(x[:, :N]), x[:, :N])
