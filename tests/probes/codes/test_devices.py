"""Interventions are fitted on one device and act on activations of another.

`meta`, the device without numbers, stands for an accelerator: it refuses to be mixed with the CPU.
"""

from collections.abc import Callable

import pytest
import torch

from probes.code_names import CODES, MEAN_RESIDUAL
from probes.codes.controls import OtherContent, PermutedRescaling, moved_elsewhere, sizes_of
from probes.codes.directions import leace, leace_of_code, project_out, scale_channel, swap_vectors
from probes.codes.interchange import interchange, levelled, put_back, variation_at
from probes.codes.similarity import SimilarityFit, moved_similarity
from probes.codes.statistics import CodeStatistics, Intervention
from probes.codes.trends import MOVABLE
from probes.regression import LinearProbe

N, POS, D_MODEL = 64, 12, 8
POSITIONS = torch.arange(1, POS + 1)
SOURCES = torch.arange(POS).roll(1)


@pytest.fixture(scope="module")
def activations() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    content = torch.randn(N, POS, D_MODEL, generator=generator)
    return content + 3 * torch.randn(POS, D_MODEL, generator=generator)


@pytest.fixture(scope="module")
def statistics(activations: torch.Tensor) -> CodeStatistics:
    found = CodeStatistics()
    found.update(activations, POSITIONS)
    return found


@pytest.fixture(scope="module")
def linear(activations: torch.Tensor) -> LinearProbe:
    found = LinearProbe()
    found.update(activations, POSITIONS)
    return found


def acts_elsewhere(intervention: Intervention) -> bool:
    x = torch.empty(3, POS, D_MODEL, device="meta")
    changed = intervention(x)
    return (changed.device, changed.shape) == (x.device, x.shape)


def test_devices_are_not_mixed() -> None:
    """Or none of these tests could fail."""
    with pytest.raises(RuntimeError, match="device"):
        torch.ones(POS, D_MODEL) + torch.empty(3, POS, D_MODEL, device="meta")


@pytest.mark.parametrize("code", MOVABLE)
def test_moved_codes(statistics: CodeStatistics, code: str) -> None:
    base = levelled(statistics)
    assert acts_elsewhere(base)
    for move in (
        interchange(statistics, code, SOURCES),
        put_back(statistics, code, SOURCES, base),
    ):
        assert acts_elsewhere(move.by(0.5))
        generator = torch.Generator().manual_seed(0)
        assert acts_elsewhere(move.size_matched(variation_at(statistics), generator, together=2))


@pytest.mark.parametrize("code", CODES)
def test_removed_codes(statistics: CodeStatistics, code: str) -> None:
    kept = statistics.kept([other for other in CODES if other != code])
    assert acts_elsewhere(kept)
    assert acts_elsewhere(PermutedRescaling(kept))
    assert acts_elsewhere(statistics.kept([code], permuted=SOURCES))


CONTROLS: dict[str, Callable[[CodeStatistics, LinearProbe], Intervention]] = {
    "other content": lambda of, _: OtherContent(sizes_of(of.kept([]), of), of),
    "other content, drawn": lambda of, _: OtherContent(
        sizes_of(of.kept([]), of), of, torch.Generator().manual_seed(0)
    ),
    "elsewhere": lambda of, _: moved_elsewhere(of.positional_vectors().float(), of),
    "projection": lambda of, _: project_out(of, 2),
    "channel": lambda of, _: scale_channel(of, 0.5),
    "swap": lambda of, _: swap_vectors(of, 2),
    "LEACE": lambda _, linear: leace(linear),
    "LEACE of a code": lambda of, linear: leace_of_code(linear, of, "irregular part"),
}


def test_moved_similarity(activations: torch.Tensor) -> None:
    fit = SimilarityFit()
    fit.update(activations, POSITIONS)
    assert acts_elsewhere(moved_similarity(fit.correlations(), SOURCES))


@pytest.mark.parametrize("name", CONTROLS)
def test_other_interventions(statistics: CodeStatistics, linear: LinearProbe, name: str) -> None:
    assert acts_elsewhere(CONTROLS[name](statistics, linear))


def test_half_precision_is_given_back_as_it_came(statistics: CodeStatistics) -> None:
    x = torch.empty(3, POS, D_MODEL, device="meta", dtype=torch.bfloat16)
    assert interchange(statistics, MEAN_RESIDUAL, SOURCES).by(1.0)(x).dtype == x.dtype
