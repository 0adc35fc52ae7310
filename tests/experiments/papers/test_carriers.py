"""Zuo et al.'s two carriers of position, planted: the exact one is the more reliable."""

import numpy as np
import pytest
import torch
from torch import Tensor

from experiments.papers.registry import paper
from experiments.papers.zuo2025.carriers import (
    carrier_errors,
    carriers_of,
    chance,
    error_ratio,
    errors_of,
)
from experiments.results.findings import over_seeds
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer

LENGTH, SEQUENCES = 64, 16


def planted(seed: int, *, cosines: float = 0, variances: float = 0) -> Tensor:
    """Activations with the residual law of first attention, its variance that of the embedding.

    Noise of these spreads is on their cosines, and on the logarithms of their variances.
    """
    draw = np.random.default_rng(seed)
    t = np.arange(1, LENGTH + 1)
    covariance = np.eye(LENGTH) + 1 / np.maximum(t, t[:, None])
    law = covariance / np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    noise = draw.normal(0, cosines, size=(SEQUENCES, LENGTH, LENGTH))
    values, vectors = np.linalg.eigh(law + np.triu(noise, 1) + np.triu(noise, 1).mT)
    unit = vectors * np.sqrt(np.maximum(values, 0))[:, None, :]
    unit /= np.linalg.norm(unit, axis=-1, keepdims=True)
    log_variance = np.log(np.diag(covariance)) + draw.normal(0, variances, (SEQUENCES, LENGTH))
    # Each component beside its opposite: the mean is 0, so that the variance is the squared norm.
    rows = np.concatenate([unit, -unit], axis=-1) * np.exp(log_variance / 2)[..., None]
    return torch.from_numpy(rows)


def errors(**noise: float) -> dict[str, float]:
    return errors_of(carriers_of(planted(0, **noise)), carriers_of(planted(1, **noise)), seed=0)


def ratio(found: dict[str, float]) -> float:
    of = {carrier: np.array([[error]]) for carrier, error in found.items()}
    return float(error_ratio(of, LENGTH)[0, 0])


def test_where_both_carriers_are_exact_the_claim_does_not_pass() -> None:
    found = errors()
    assert max(found.values()) < 0.1
    assert ratio(found) == 1
    measured = over_seeds(np.full(5, ratio(found)))
    verdict = paper("zuo2025").claim("carriers").verdict
    assert verdict(measured.value, measured.ci_low, measured.ci_high) == "uncertain"


def test_the_carrier_without_noise_is_the_more_reliable() -> None:
    noisy_cosines, noisy_variances = errors(cosines=0.03), errors(variances=0.1)
    assert noisy_cosines["variances"] < 0.1 < 1 < noisy_cosines["cosines"]
    assert ratio(noisy_cosines) > 2
    assert noisy_variances["cosines"] < 0.1 < 1 < noisy_variances["variances"]
    assert ratio(noisy_variances) < 0.5


def test_an_activations_own_variance_is_read_by_the_same_reader() -> None:
    found = errors(cosines=0.03)
    assert found["variance"] < 0.1


def test_what_holds_no_position_is_read_at_chance() -> None:
    draw = torch.Generator().manual_seed(0)
    fit, held_out = (torch.randn(SEQUENCES, LENGTH, 32, generator=draw) for _ in range(2))
    found = errors_of(carriers_of(fit), carriers_of(held_out), seed=0)
    for error in found.values():
        assert error == pytest.approx(chance(LENGTH), rel=0.1)


def test_every_block_of_a_model_is_read_and_alike_each_time() -> None:
    model = HookedTransformer(TransformerConfig(3, 16, 2, d_vocab=11, n_ctx=12))
    tokens = torch.randint(11, (8, 12), generator=torch.Generator().manual_seed(0))
    found = carrier_errors(model, tokens)
    assert {carrier: error.shape for carrier, error in found.items()} == {
        "cosines": (3,),
        "variances": (3,),
        "variance": (3,),
    }
    again = carrier_errors(model, tokens)
    for carrier, error in found.items():
        np.testing.assert_array_equal(error, again[carrier])
    _, cache = model.run_with_cache(tokens)
    fit, held_out = (carriers_of(part) for part in cache["resid_post", 2].chunk(2))
    assert errors_of(fit, held_out, model.config.seed)["cosines"] == found["cosines"][2]
