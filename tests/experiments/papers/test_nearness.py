"""The scores that Zuo et al.'s claims rest on, planted: nearness passes, and nothing else does."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from experiments.papers.zuo2025.scores import SCORES, deciding, farthest, weakest
from experiments.results.findings import Array
from probes.similarity import cosine_similarity

LENGTH, WIDTH = 64, 192
SEEN = torch.arange(1.0, LENGTH + 1)[:, None]


def noise(draw: torch.Generator) -> Tensor:
    return torch.randn(8, LENGTH, WIDTH, generator=draw)


def scored(of_seed: Callable[[torch.Generator], Tensor]) -> Array:
    """Of each of five seeds the scores that claims rest on."""
    cosines = [cosine_similarity(of_seed(torch.Generator().manual_seed(seed))) for seed in range(5)]
    every = [[score(of).mean().item() for score in SCORES.values()] for of in cosines]
    return deciding(np.array(every))


@pytest.mark.parametrize("fades", [False, True])
def test_a_common_vector_that_grows_or_fades_is_no_nearness(fades: bool) -> None:
    size = SEEN.rsqrt().flip(0) if fades else SEEN.rsqrt()
    scores = scored(lambda draw: torch.randn(WIDTH, generator=draw) + size * noise(draw))
    # A or its mirror is fooled, and C, too, by the bound of no pattern.
    assert scores.max(axis=1).min() > 0.9
    assert scores[:, 1].min() > 0.52
    assert weakest(scores).ci_high < 0.3
    assert farthest(scores).ci_low > 0.3


def test_the_mean_of_all_before_is_nearness_and_noise_is_none() -> None:
    assert weakest(scored(lambda draw: noise(draw).cumsum(dim=1) / SEEN)).ci_low > 0.9
    independent = scored(noise)
    assert weakest(independent).ci_low < 0.5
    assert farthest(independent).ci_high < 0.02
