"""Each probe finds the signal it is for, and no probe finds one that is not there.

Every signal is planted in rows that hold nothing else, so that a probe which finds it by another
way than its own (a leaking label, the diagonal of the cosines, an order kept by a tie) shows.
"""

import numpy as np
import pytest
import torch

from probes.nonlinear import TwoLayerProbe
from probes.positional_vectors import PositionalVectorProbe
from probes.regression import LinearProbe
from probes.scores import SHUFFLED
from probes.similarity import SimilarityProbe
from probes.variance import VarianceProbe

POSITIONS = torch.arange(1, 25)
M = (POSITIONS + 1.0)[:, None]
N_FIT, N_HELD_OUT, D = 256, 64, 32


def noise(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N_FIT + N_HELD_OUT, len(POSITIONS), D, generator=generator)


def nothing() -> torch.Tensor:
    return noise(0)


def linear_t() -> torch.Tensor:
    """t in one direction, -1 to 1, among noise that hides it from norms and cosines."""
    x = noise(1)
    x[..., 0] = 0.3 * x[..., 0] + torch.linspace(-1, 1, len(POSITIONS))
    return x


def counting() -> torch.Tensor:
    """1/m in one direction, as the value of a begin token averaged over m tokens."""
    x = noise(2)
    x[..., 0] = 0.02 * x[..., 0] + 1 / M[:, 0]
    return x


def variance_only() -> torch.Tensor:
    """Chi et al. 2023: independent directions, variance a + b/m."""
    return noise(3) * (0.1 + 1 / M).sqrt()


def adjacency_only() -> torch.Tensor:
    """Zuo et al. 2025: means over m independent values, each row brought to one norm.

    Each row by itself is a uniformly random direction, whatever its position: only rows together
    tell it.
    """
    means = noise(4).cumsum(dim=1) / M
    return means / means.norm(dim=-1, keepdim=True)


# What each probe must find. The rest must stay at chance, except for pairs in MAY, where the signal
# does reach the probe but how strongly is not the point here.
FOUND = {
    nothing: set(),
    linear_t: {("linear", "mae"), ("linear", "r2"), ("two_layer", "mae"), ("two_layer", "r2")},
    counting: {("linear", "r2"), ("counting", "r2"), ("two_layer", "mae"), ("two_layer", "r2")},
    variance_only: {
        ("variance", "mae"),
        ("variance", "r2"),
        ("variance", "law_r2"),
        ("two_layer", "mae"),
        ("two_layer", "r2"),
    },
    adjacency_only: {
        ("similarity", metric)
        for metric in ("mae", "r2", "adjacency_a", "adjacency_b", "adjacency_c", "seriation_tau")
    },
}
MAY = {
    nothing: set(),
    linear_t: {
        ("counting", "r2"),
        ("positional_vectors", "share"),
        ("variance", "law_r2"),
        ("variance", "mae"),
        ("variance", "r2"),
        *FOUND[adjacency_only],
    },
    counting: {("linear", "mae"), ("positional_vectors", "share"), ("variance", "law_r2")},
    variance_only: set(),
    # Rows that average each other have variances that drift together along the sequence; two drifts
    # can look alike by chance, and one curve each of fitted and held-out sequences cannot tell.
    adjacency_only: {("variance", "law_r2")},
}
PROBES = [LinearProbe, TwoLayerProbe, VarianceProbe, SimilarityProbe, PositionalVectorProbe]


def gain(score, value: float) -> float:
    """0 at chance, 1 at perfect."""
    perfect = 0.0 if score.metric == "mae" else 1.0
    return (value - score.chance) / (perfect - score.chance)


@pytest.fixture(scope="module", params=list(FOUND), ids=lambda signal: signal.__name__)
def measured(request):
    x = request.param()
    scores = []
    for make in PROBES:
        probe = make()
        for batch in x[:N_FIT].split(64):
            probe.update(batch, POSITIONS)
        probe.evaluate(x[N_FIT:], POSITIONS)
        scores += [(name, s) for name, result in probe.result().items() for s in result.scores]
    return request.param, scores


def test_found_by_the_probes_that_should_and_by_no_other(measured):
    signal, scores = measured
    for name, score in scores:
        if score.control == SHUFFLED or (name, score.metric) == ("counting", "mae"):
            continue
        gains = sorted([gain(score, score.ci_low), gain(score, score.ci_high)])
        where = f"{signal.__name__}: {name} {score}"
        if (name, score.metric) in FOUND[signal]:
            assert gains[0] > 0.05, where
        elif (name, score.metric) not in MAY[signal]:
            # What overfitting costs may put it below chance; above it there is 3% at most.
            assert -0.2 < gain(score, score.value) < 0.03, where
            assert gains[0] < 0.01, where


def test_shuffled_positions_are_at_chance_whatever_the_signal(measured):
    signal, scores = measured
    for name, score in scores:
        if score.control == SHUFFLED and (name, score.metric) != ("counting", "mae"):
            gains = sorted([gain(score, score.ci_low), gain(score, score.ci_high)])
            where = f"{signal.__name__}: {name} {score}"
            # The law's r2 is of one curve of 24 points, whose noise explains more by chance.
            above = 0.15 if score.metric == "law_r2" else 0.03
            assert -0.3 < gain(score, score.value) < above, where
            assert gains[0] < 0.01, where


def test_a_counting_probe_that_knows_nothing_decodes_the_harmonic_mean(measured):
    _, scores = measured
    m = M.numpy()
    constant = np.abs(m - 1 / (1 / m).mean()).mean()
    for name, score in scores:
        if (name, score.metric, score.control) == ("counting", "mae", SHUFFLED):
            # Predictions scatter a little around the constant.
            assert score.chance == pytest.approx(constant)
            assert score.value == pytest.approx(constant, rel=0.05)
