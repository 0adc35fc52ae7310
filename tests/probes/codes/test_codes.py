"""Position codes taken away: each alone, on planted truth, against formulas written another way."""

from itertools import combinations

import numpy as np
import pytest
import torch
from concept_erasure import LeaceEraser
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from probes.adjacency import adjacency_a
from probes.code_names import CODES, HALVES, IRREGULAR, SMOOTH
from probes.codes.controls import (
    OtherContent,
    PermutedRescaling,
    moved_elsewhere,
    random_subspace,
    removal_sizes,
    side_effects,
    size_matched_removal,
    sizes_of,
)
from probes.codes.directions import (
    ScaledDirections,
    leace,
    leace_of_code,
    positional_rank,
    principal_directions,
    project_out,
    scale_channel,
    swap_vectors,
)
from probes.codes.filter import CodeFilter
from probes.codes.interchange import SizeMatched
from probes.codes.statistics import CodeStatistics
from probes.codes.trends import functions_of
from probes.errors import ProbeError
from probes.positional_vectors import PositionalVectorProbe
from probes.regression import LinearProbe
from probes.similarity import SimilarityProbe, cosine_similarity
from probes.streaming import StreamingProbe
from probes.variance import VarianceProbe, activation_variance

POSITIONS = torch.arange(1, 25)
T = POSITIONS.double()
D = 64
SUBSETS = [subset for n in range(5) for subset in combinations(CODES, n)]


def planted_counting() -> torch.Tensor:
    """1/m in one direction, of mean 0 over positions."""
    direction = torch.randn(D, generator=torch.Generator().manual_seed(100)).double()
    inverse_m = 1 / (T + 1)
    return 5 * (inverse_m - inverse_m.mean())[:, None] * direction / direction.norm()


def planted_vectors() -> torch.Tensor:
    """A random vector at each position, uncorrelated over positions with 1, t and 1/m."""
    vectors = torch.randn(len(T), D, generator=torch.Generator().manual_seed(101)).double()
    terms = torch.stack([torch.ones_like(T), T, 1 / (T + 1)], dim=1)
    basis = torch.linalg.qr(terms).Q
    return 0.25 * (vectors - basis @ (basis.T @ vectors))


def planted(n: int, seed: int) -> torch.Tensor:
    """All four codes: the deviation is the mean of m independent draws, as in causal attention.

    Its variance is 1/m and its correlation sqrt(i/j) between m = i and m = j > i.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(n, len(T) + 1, D, generator=generator)
    deviation = tokens.cumsum(dim=1)[:, 1:] / (POSITIONS + 1)[:, None]
    level = 0.1 * torch.randn(D, generator=torch.Generator().manual_seed(102))
    return deviation + (level + planted_counting() + planted_vectors()).float()


def fitted(x: torch.Tensor, positions: torch.Tensor = POSITIONS) -> CodeStatistics:
    statistics = CodeStatistics()
    for batch in x.split(37):
        statistics.update(batch, positions)
    return statistics


@pytest.fixture(scope="module")
def statistics() -> CodeStatistics:
    return fitted(planted(512, 0))


@pytest.fixture(scope="module")
def fresh() -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences that the interventions were not fitted on: to fit probes on, and to score them."""
    return planted(256, 1), planted(128, 2)


def gain(score, value: float | None = None) -> float:
    """0 at chance, 1 without error."""
    perfect = 0.0 if score.metric == "mae" else 1.0
    value = score.value if value is None else value
    return (value - score.chance) / (perfect - score.chance)


def at_chance(score) -> bool:
    """Nothing is read; what overfitting costs may put a probe below chance."""
    least = min(gain(score, score.ci_low), gain(score, score.ci_high))
    return -0.2 < gain(score) < 0.03 and least < 0.01


def without_means(fit: torch.Tensor, held_out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    means = fit.mean(dim=0)
    return fit - means, held_out - means


# --- the four codes


@pytest.mark.parametrize("codes", SUBSETS, ids=lambda codes: "+".join(codes) or "none")
def test_codes_kept_are_read_and_codes_taken_are_not(codes, statistics, fresh, feed):
    kept = statistics.kept(codes)
    fit, held_out = (kept(x) for x in fresh)

    variance = feed(VarianceProbe(), fit, held_out, POSITIONS)["variance"].score("mae")
    if "variance" in codes:
        assert gain(variance) > 0.5
    else:
        assert at_chance(variance)

    # Mean codes and variance show in cosines of whole activations; similarity is of deviations.
    deviations = without_means(fit, held_out)
    similarity = feed(SimilarityProbe(n_sequences=64), *deviations, POSITIONS)["similarity"]
    if "similarity" in codes:
        assert similarity.score("adjacency_a").value > 0.9
        assert gain(similarity.score("mae")) > 0.4
    else:
        assert similarity.score("adjacency_a").value == pytest.approx(0.5, abs=0.02)
        assert at_chance(similarity.score("mae"))

    linear = feed(LinearProbe(), fit, held_out, POSITIONS)
    if SMOOTH in codes:
        assert gain(linear["linear"].score("mae")) > 0.1
        assert linear["counting"].score("r2").value > 0.3
    else:
        assert at_chance(linear["linear"].score("mae"))
        assert at_chance(linear["linear"].score("r2"))
        assert at_chance(linear["counting"].score("r2"))

    vectors = feed(PositionalVectorProbe(), fit, held_out, POSITIONS)["positional_vectors"]
    if set(HALVES) & set(codes):
        assert vectors.score("share").value > 0.02
    else:
        assert abs(vectors.score("share").value) < 0.005


@pytest.mark.parametrize("codes", SUBSETS, ids=lambda codes: "+".join(codes) or "none")
def test_mean_rows_are_the_planted_codes_that_are_kept(codes, statistics):
    means = statistics.kept(codes)(planted(1024, 3)).mean(dim=0).double()
    means = means - means.mean(dim=0)
    for name, truth in (
        (SMOOTH, planted_counting()),
        (IRREGULAR, planted_vectors()),
    ):
        share = float((means * truth).sum() / truth.square().sum())
        assert share == pytest.approx(float(name in codes), abs=0.06), name


def test_the_error_of_the_means_becomes_a_code_of_its_size(feed):
    """Rows without any code get positional vectors of 1/n of their variance, for n fitted on."""
    x = torch.randn(464, 24, D, generator=torch.Generator().manual_seed(0))
    kept = fitted(x[:50]).kept(("variance", "similarity"))
    changed = kept(x[50:])
    result = feed(PositionalVectorProbe(), changed[:300], changed[300:], POSITIONS)
    assert result["positional_vectors"].score("share").value == pytest.approx(1 / 51, rel=0.15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_all_codes_kept_give_the_rows_back(statistics, dtype):
    x = planted(5, 3).to(dtype)
    assert torch.equal(statistics.kept(CODES)(x), x)


def test_variance_goes_and_the_cosines_of_the_rests_stay(statistics, fresh):
    x, _ = fresh
    changed = statistics.kept(set(CODES) - {"variance"})(x)
    # Rows are scaled about a mean part that stays; about it no cosine moves.
    means = statistics.positional_vectors().float()
    before, after = cosine_similarity(x - means), cosine_similarity(changed - means)
    torch.testing.assert_close(after, before, atol=1e-4, rtol=0)
    assert adjacency_a(before).mean() > 0.9
    # Cosines of whole rows move a little, since the deviation weighs more or less against the mean.
    assert side_effects(x, changed)["cosine"].mean() < 0.15


def test_log_variance_has_one_mean_and_deviation_at_all_positions(statistics):
    x = planted(512, 0)
    changed = statistics.kept(("similarity", *HALVES))(x)
    before, after = (activation_variance(rows).log() for rows in (x, changed))
    mean, deviation = before.mean(dim=0), before.std(dim=0, correction=0)
    torch.testing.assert_close(after.mean(dim=0), mean.mean().expand(24), atol=1e-3, rtol=0)
    common = deviation.square().mean().sqrt().expand(24)
    torch.testing.assert_close(after.std(dim=0, correction=0), common, atol=0, rtol=1e-2)
    # A map that rises within each position: rows keep their order.
    assert torch.equal(after[:, 5].argsort(), before[:, 5].argsort())


@pytest.mark.parametrize("taken", ["similarity", *HALVES])
def test_every_row_keeps_its_variance_where_variance_is_kept(statistics, fresh, taken):
    _, x = fresh
    changed = statistics.kept(set(CODES) - {taken})(x)
    moved = (activation_variance(changed) / activation_variance(x)).log().abs()
    # Where the mean part alone varies more than the row did, no factor brings it down to that.
    assert (moved < 1e-4).double().mean() > 0.999


def test_whitened_rests_are_alike_at_all_distances():
    """At enough data the correlation of held-out deviations is the same between all positions."""
    kept = fitted(planted(2048, 0)).kept(("variance", *HALVES))
    x = kept(planted(512, 1)).double()
    deviations = x - x.mean(dim=0)
    products = torch.einsum("bid,bjd->ij", deviations, deviations)
    scale = products.diagonal().sqrt()
    correlation = (products / scale / scale[:, None])[~torch.eye(24, dtype=torch.bool)]
    m = T + 1
    planted_correlation = (torch.minimum(m, m[:, None]) / torch.maximum(m, m[:, None])).sqrt()
    level = float((planted_correlation.sum() - 24) / (24 * 23))
    assert float(correlation.mean()) == pytest.approx(level, abs=0.02)
    assert float(correlation.std()) < 0.02


def test_permuted_codes_are_those_of_other_positions():
    """Means, log variances and correlations at position t are those planted at order[t]."""
    order = torch.randperm(24, generator=torch.Generator().manual_seed(5))
    statistics, x = fitted(planted(2048, 0)), planted(512, 1)
    changed = statistics.kept(CODES, permuted=order)(x).double()

    means = changed.mean(dim=0)
    for truth in (planted_counting(), planted_vectors()):
        share = float(((means - means.mean(dim=0)) * truth[order]).sum() / truth.square().sum())
        assert share == pytest.approx(1, abs=0.06)

    logs = activation_variance(x).log().mean(dim=0)
    assert float(logs.max() - logs.min()) > 1
    torch.testing.assert_close(
        activation_variance(changed).log().mean(dim=0), logs[order], atol=0.03, rtol=0
    )

    alone = statistics.kept(("similarity",), permuted=order)(x).double()
    deviations = alone - alone.mean(dim=0)
    products = torch.einsum("bid,bjd->ij", deviations, deviations)
    scale = products.diagonal().sqrt()
    m = (T + 1)[order]
    wanted = (torch.minimum(m, m[:, None]) / torch.maximum(m, m[:, None])).sqrt()
    torch.testing.assert_close(products / scale / scale[:, None], wanted, atol=0.03, rtol=0)


@pytest.mark.parametrize("code", CODES)
def test_a_permuted_code_alone_leaves_no_other(code, statistics, fresh):
    """Permuted back, it is where it was: the others stay away."""
    order = torch.randperm(24, generator=torch.Generator().manual_seed(5))
    once = statistics.kept((code,), permuted=order)(fresh[0])
    alone = statistics.kept((code,))(fresh[0])
    for rows, back in ((alone, slice(None)), (once, order.argsort())):
        means = rows.mean(dim=0).double()[back]
        means = means - means.mean(dim=0)
        for name, truth in (
            (SMOOTH, planted_counting()),
            (IRREGULAR, planted_vectors()),
        ):
            share = float((means * truth).sum() / truth.square().sum())
            assert share == pytest.approx(float(name == code), abs=0.1), name
        logs = activation_variance(rows).log().mean(dim=0)[back]
        of_planted = activation_variance(fresh[0]).log().mean(dim=0)
        slope = float(torch.cov(torch.stack([logs, of_planted]))[0, 1] / of_planted.var())
        assert slope == pytest.approx(float(code == "variance"), abs=0.1)


def test_positions_permuted_to_their_own_order_change_nothing_else(statistics, fresh):
    x = fresh[0]
    for codes in SUBSETS:
        same = statistics.kept(codes, permuted=torch.arange(24))(x)
        torch.testing.assert_close(same, statistics.kept(codes)(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("permuted", [[0, 0, 1], list(range(23)), list(range(1, 25))])
def test_what_is_no_order_of_the_positions_is_refused(statistics, permuted):
    with pytest.raises(ProbeError, match=r"no order of 24 positions: give each of 0 to 23 once"):
        statistics.kept(CODES, permuted=torch.tensor(permuted))


@pytest.mark.parametrize("permuted", [None, POSITIONS.flip(0) - 1])
def test_no_row_knows_of_later_rows(statistics, fresh, permuted):
    x = fresh[0][:8]
    for codes in SUBSETS:
        kept = statistics.kept(codes, permuted=permuted)
        for i in (0, 7, 22):
            changed = x.clone()
            changed[:, i + 1 :] = 5 * fresh[0][8:16, i + 1 :]
            assert torch.equal(kept(changed)[:, : i + 1], kept(x)[:, : i + 1])


# --- against formulas written another way


def numpy_rebuilt(fit: np.ndarray, x: np.ndarray, codes: tuple[str, ...]) -> np.ndarray:
    """The contract in NumPy: whitening by QR of the rows themselves, factors by np.roots."""
    t = np.arange(1, fit.shape[1] + 1.0)
    p = fit.mean(axis=0)
    design = np.column_stack([np.ones(len(t)), t, 1 / (t + 1)])
    line = design @ np.linalg.lstsq(design, p, rcond=None)[0]
    level = p.mean(axis=0)
    y = np.tile(level, (len(t), 1))
    if SMOOTH in codes:
        y += line - level
    if IRREGULAR in codes:
        y += p - line

    deviations = np.moveaxis(fit - p, 1, 0).reshape(len(t), -1)  # [pos (batch d)]
    scale = np.sqrt((deviations**2).sum(axis=1))
    # A ridge is as many further rows, of which each holds one position.
    ridge = 1e-5
    columns = np.vstack(
        [np.sqrt(1 - ridge) * (deviations / scale[:, None]).T, np.sqrt(ridge) * np.eye(len(t))]
    )
    upper = np.linalg.qr(columns)[1]
    upper *= np.sign(np.diag(upper))[:, None]
    level_r = (columns.T @ columns)[~np.eye(len(t), dtype=bool)].mean()
    even = np.linalg.cholesky(np.where(np.eye(len(t)), 1, level_r))

    logs = np.log(fit.var(axis=-1))
    mu, sigma = logs.mean(axis=0), logs.std(axis=0)
    out = np.empty_like(x)
    for s, sequence in enumerate(x):
        deviation = sequence - p
        b = deviation
        if "similarity" not in codes:
            b = even @ np.linalg.inv(upper.T) @ (deviation / scale[:, None])
            b *= np.linalg.norm(deviation, axis=1, keepdims=True) / np.linalg.norm(
                b, axis=1, keepdims=True
            )
        for i in range(len(t)):
            wanted = sequence[i].var()
            if "variance" not in codes:
                z = (np.log(wanted) - mu[i]) / sigma[i]
                wanted = np.exp(mu.mean() + np.sqrt((sigma**2).mean()) * z)
            covariance = np.cov(y[i], b[i], ddof=0)
            parabola = [covariance[1, 1], 2 * covariance[0, 1], covariance[0, 0] - wanted]
            roots = np.roots(parabola)
            real = [r.real for r in roots if abs(r.imag) < 1e-12 and r.real >= 0]
            vertex = max(0.0, -parabola[1] / 2 / parabola[0])
            g = min(real, key=lambda root: abs(root - 1)) if real else vertex
            out[s, i] = y[i] + g * b[i]
    return out


@pytest.mark.parametrize("codes", SUBSETS, ids=lambda codes: "+".join(codes) or "none")
def test_rebuilt_rows_are_numpys(codes):
    # Large mean codes, so that for some rows two factors do, or none.
    x = planted(44, 5)[:, :9, :12].double()
    x = x + 2 * planted_vectors()[:9, :12]
    expected = numpy_rebuilt(x[:40].numpy(), x[40:].numpy(), codes)
    changed = fitted(x[:40], POSITIONS[:9]).kept(codes)(x[40:])
    np.testing.assert_allclose(changed.numpy(), expected, atol=2e-4)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    size=st.floats(0.01, 100),
    shift=st.floats(0, 10),
    d_model=st.integers(2, 9),
)
def test_the_factor_is_the_best_there_is(seed, size, shift, d_model):
    """No factor from 0 to 10 brings the variance nearer to the one wanted."""
    generator = torch.Generator().manual_seed(seed)
    x = size * torch.randn(2, 3, d_model, generator=generator, dtype=torch.float64)
    y = size * shift * torch.randn(3, d_model, generator=generator)
    kept = CodeFilter(means=0 * y, removed=-y, whitening=None, variance_map=None)
    missed = (activation_variance(kept(x)) - activation_variance(x)).abs()
    others = torch.linspace(0, 10, 101, dtype=torch.float64)[:, None, None, None] * x + y
    variances = others.var(dim=-1, correction=0)
    best = (variances - activation_variance(x)).abs().amin(dim=0)
    assert (missed <= best + 1e-5 * activation_variance(x)).all()


def test_what_hardly_varies_is_not_blown_up():
    """One position with next to no deviation, and with next to no spread of variance."""
    x = planted(64, 0)
    generator = torch.Generator().manual_seed(1)
    x[:, 4] = x[0, 4] + 1e-4 * torch.randn(x[:, 4].shape, generator=generator)
    statistics, fresh = fitted(x), planted(32, 1)
    for codes in ((), ("variance",), ("similarity", SMOOTH)):
        changed = statistics.kept(codes)(fresh)
        assert torch.isfinite(changed).all()
        assert (changed.norm(dim=-1) < 30 * fresh.norm(dim=-1).max()).all()


def test_mean_codes_are_numpys_regression(statistics):
    x = planted(512, 0).double().numpy()
    p = x.mean(axis=0)
    design = np.column_stack([np.ones(24), T, 1 / (T + 1)])
    line = design @ np.linalg.lstsq(design, p, rcond=None)[0]
    np.testing.assert_allclose(statistics.positional_vectors().numpy(), p, atol=1e-6)
    codes = statistics.mean_codes()
    np.testing.assert_allclose(codes[SMOOTH].numpy(), line - p.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(codes[IRREGULAR].numpy(), p - line, atol=1e-6)


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=5),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    offset=st.sampled_from([0.0, 100.0]),
    where=st.integers(0, 5),
)
def test_merged_parts_are_the_whole(sizes, scale, offset, where):
    generator = torch.Generator().manual_seed(sum(sizes))
    x = scale * torch.randn(sum(sizes), 6, 8, generator=generator, dtype=torch.float64)
    x = x * (0.5 + T[:6, None]) + scale * offset
    whole, first, second = CodeStatistics(), CodeStatistics(), CodeStatistics()
    whole.update(x, POSITIONS[:6])
    for i, batch in enumerate(x.split(sizes)):
        (first if i < where else second).update(batch, POSITIONS[:6])
    first.merge(second)
    assert first.n_fitted == sum(sizes)
    for codes in ((), ("variance", SMOOTH)):
        ours, theirs = first.kept(codes)(x), whole.kept(codes)(x)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * scale)


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**31),
    scale=st.floats(0.01, 100),
    codes=st.sets(st.sampled_from(CODES)),
)
def test_a_turn_about_the_all_ones_direction_turns_the_result(seed, scale, codes):
    """Variance is about a row's own mean: nothing else tells one component from another."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.randn(10, 10, generator=generator, dtype=torch.float64)
    basis[:, 0] = 1
    basis = torch.linalg.qr(basis).Q
    turn = torch.linalg.qr(torch.randn(9, 9, generator=generator, dtype=torch.float64)).Q
    turned = basis[:, 1:] @ turn @ basis[:, 1:].T + basis[:, :1] @ basis[:, :1].T
    x = planted(30, seed)[:, :7, :10].double()
    plain = fitted(x, POSITIONS[:7]).kept(codes)(x)
    changed = fitted(scale * x @ turned, POSITIONS[:7]).kept(codes)(scale * x @ turned)
    torch.testing.assert_close(changed / scale, plain @ turned, rtol=0, atol=1e-3)


# --- directions


@pytest.fixture(scope="module")
def linear() -> LinearProbe:
    probe = LinearProbe()
    for batch in planted(512, 0).split(37):
        probe.update(batch, POSITIONS)
    return probe


def test_leace_is_the_packages_own_on_the_rows_themselves(linear):
    rows = planted(512, 0).double().flatten(0, 1)
    concept = torch.stack([T, 1 / (T + 1)], dim=-1).repeat(512, 1)
    concept = (concept - concept.mean(dim=0)) / concept.std(dim=0)
    theirs = LeaceEraser.fit(rows, concept)
    erase = leace(linear)
    x = planted(3, 1).double()
    expected = theirs(x.flatten(0, 1)).view(x.shape)
    torch.testing.assert_close(erase(x), expected, rtol=0, atol=1e-4)
    assert erase.rank == 2


@pytest.mark.parametrize(("code", "held"), [(SMOOTH, 2), (IRREGULAR, 21)])
def test_leace_of_a_code_is_the_packages_own_of_all_functions_that_it_holds(
    linear, statistics, code, held
):
    functions = functions_of(code, POSITIONS)
    assert functions.shape == (24, held)
    rows, concept = planted(512, 0).double().flatten(0, 1), (functions * 24**0.5).repeat(512, 1)
    theirs = LeaceEraser.fit(rows, concept)
    erase = leace_of_code(linear, statistics, code)
    x = planted(3, 1).double()
    expected = theirs(x.flatten(0, 1)).view(x.shape)
    torch.testing.assert_close(erase(x), expected, rtol=0, atol=1e-4)
    assert erase.rank == held


def test_leace_of_a_code_leaves_in_what_hardly_correlates():
    """As the package does, whose bound is a correlation of 0.01: of three lines one is below."""
    functions = functions_of(IRREGULAR, POSITIONS) * 24**0.5
    content = torch.randn(100, 24, 4, generator=torch.Generator().manual_seed(0)).double()
    # In pairs of opposite sign, so that means are the lines to the last digit.
    x = torch.cat((content, -content))
    x[..., :3] += functions[:, :3] * torch.tensor([0.5, 0.02, 0.003]).double()
    probe = LinearProbe()
    probe.update(x, POSITIONS)
    erase = leace_of_code(probe, fitted(x), IRREGULAR)
    theirs = LeaceEraser.fit(x.flatten(0, 1), functions.repeat(200, 1))
    assert erase.rank == 2
    expected = theirs(x.flatten(0, 1)).view(x.shape)
    torch.testing.assert_close(erase(x), expected, rtol=0, atol=1e-4)


def test_after_leace_no_linear_map_reads_position(linear, fresh, feed):
    erase = leace(linear)
    fit, held_out = (erase(x) for x in fresh)
    results = feed(LinearProbe(), fit, held_out, POSITIONS)
    assert at_chance(results["linear"].score("mae"))
    assert at_chance(results["linear"].score("r2"))
    assert at_chance(results["counting"].score("r2"))
    # On the rows fitted on, covariances are gone to the last digits of float32.
    x = planted(512, 0)
    concept = torch.stack([T, 1 / (T + 1)]).float()
    concept = (concept - concept.mean(dim=1, keepdim=True)) / concept.std(dim=1, keepdim=True)
    before, after = (torch.einsum("kp,bpd->kd", concept, rows).norm() for rows in (x, erase(x)))
    assert after < 1e-4 * before
    # It leaves the other codes to be read.
    variance = feed(VarianceProbe(), fit, held_out, POSITIONS)["variance"].score("mae")
    assert gain(variance) > 0.5


def test_leace_finds_no_direction_where_nothing_counts():
    """The same rows at every position have no covariance with it at all."""
    row = torch.randn(40, 1, 8, generator=torch.Generator().manual_seed(0))
    x = row.expand(-1, 24, -1).contiguous()
    probe = LinearProbe()
    probe.update(x, POSITIONS)
    erase = leace(probe)
    assert erase.rank == 0
    torch.testing.assert_close(erase(x), x)


def test_principal_directions_are_scikit_learns(statistics):
    pca = PCA().fit(statistics.positional_vectors().numpy())
    directions = principal_directions(statistics).numpy()
    assert directions.shape == (23, D)
    overlap = np.abs((directions[:10] * pca.components_[:10]).sum(axis=1))
    np.testing.assert_allclose(overlap, 1, atol=1e-9)


def test_projected_rows_keep_nothing_along_the_directions(statistics, fresh, feed):
    erase = project_out(statistics, 23)
    x = erase(fresh[1])
    along = (x - statistics.positional_vectors().mean(dim=0).float()) @ erase.directions.T
    assert along.abs().max() < 1e-5
    across = fresh[1] - x
    assert torch.linalg.matrix_rank(across.flatten(0, 1), rtol=1e-4) == 23
    probe = PositionalVectorProbe()
    share = feed(probe, erase(fresh[0]), x, POSITIONS)["positional_vectors"].score("share")
    assert abs(share.value) < 0.01


def test_a_scaled_channel_is_scaled_about_the_mean_and_nothing_else_is(statistics, fresh):
    x = fresh[1]
    direction = principal_directions(statistics)[0].float()
    centre = statistics.positional_vectors().mean(dim=0).float()
    changed = scale_channel(statistics, -0.5)(x)
    expected = -0.5 * (x - centre) @ direction
    torch.testing.assert_close((changed - centre) @ direction, expected, rtol=0, atol=1e-5)
    moved = changed - x
    across = moved - (moved @ direction)[..., None] * direction
    assert across.abs().max() < 1e-5


def test_a_subspace_has_as_many_directions_as_hold_the_share():
    """Three lines of 60%, 30% and 10% of what positions vary by, the same in all sequences."""
    functions = functions_of("mean residual", POSITIONS)[:, :3].float()
    x = torch.zeros(4, 24, D)
    x[..., :3] = functions * torch.tensor([60.0, 30.0, 10.0]).sqrt()
    held = fitted(x)
    assert [positional_rank(held, share) for share in (0.5, 0.85, 0.95)] == [1, 2, 3]


@pytest.mark.parametrize("offset", [0, 3, -5])
def test_swapped_vectors_come_from_offset_positions_and_clamp_at_the_ends(statistics, offset):
    x = planted(4, 9).double()
    p = statistics.positional_vectors().numpy()
    changed = swap_vectors(statistics, offset)(x).numpy()
    for i in range(24):
        source = min(max(i + offset, 0), 23)
        np.testing.assert_allclose(changed[:, i], x[:, i].numpy() - p[i] + p[source], atol=1e-6)


# --- controls


def test_other_content_moves_every_row_as_far_and_leaves_every_code(statistics, fresh):
    x = fresh[1]
    kept = statistics.kept(set(CODES) - {SMOOTH})
    sizes = sizes_of(kept, statistics)
    mixed = OtherContent(sizes, statistics)(x)
    means = statistics.positional_vectors().float()
    deviations = [rows - means for rows in (x, mixed)]
    size = sizes * deviations[0].norm(dim=-1)
    torch.testing.assert_close((mixed - x).norm(dim=-1), size, rtol=1e-3, atol=1e-4)
    # As far as the removal itself moves other sequences, on average.
    moved = (kept(x) - x).norm(dim=-1).mean(dim=0)
    torch.testing.assert_close(size.mean(dim=0), moved, rtol=0.25, atol=1e-4)
    torch.testing.assert_close(
        deviations[1].norm(dim=-1), deviations[0].norm(dim=-1), rtol=1e-4, atol=1e-4
    )
    # The examples in turn: the next call goes on where this one ended.
    control = OtherContent(sizes, statistics)
    assert torch.equal(torch.cat([control(x[:3]), control(x[3:])]), mixed)


@pytest.mark.parametrize("code", CODES)
def test_a_size_is_how_far_examples_move_in_shares_of_their_deviations(statistics, code):
    change = statistics.kept(set(CODES) - {code})
    means = statistics.positional_vectors().float()
    shares = [
        (change(x[None])[0] - x).norm(dim=-1) / (x - means).norm(dim=-1)
        for x in statistics.examples()
    ]
    assert max(share.max() for share in shares) < 2
    expected = torch.stack(shares).mean(dim=0)
    torch.testing.assert_close(sizes_of(change, statistics), expected, rtol=1e-4, atol=1e-6)
    # No activation is turned by more than to its opposite.
    far = sizes_of(lambda x: x + 100 * torch.eye(8)[0][:, None, None], statistics)
    torch.testing.assert_close(far, torch.full((24,), 2 / 8))


def test_other_content_leans_to_the_next_example_and_then_away_from_it(statistics):
    """By a chord of half a deviation, on the circle through it and what is new in the other."""
    x = statistics.examples()
    deviations = (x - statistics.positional_vectors().float()).double()
    control, angle = OtherContent(torch.full((24,), 0.5), statistics), 2 * np.arcsin(0.25)
    assert len(x) == 8
    for turn in range(16):
        own, next_one = deviations[turn % 8], deviations[(turn + 1) % 8]
        sign = (-1) ** ((turn + 1) // 8)
        length = own.norm(dim=-1, keepdim=True)
        new = next_one - (next_one * own).sum(dim=-1, keepdim=True) / length**2 * own
        moved = (np.cos(angle) - 1) * own + sign * np.sin(angle) * length * new / new.norm(
            dim=-1, keepdim=True
        )
        found = control(x[turn % 8][None])[0]
        torch.testing.assert_close(found.double() - x[turn % 8], moved, rtol=0, atol=1e-5)


def test_what_is_moved_elsewhere_goes_as_far_and_takes_no_code(statistics, fresh):
    x = fresh[1]
    removed = statistics.mean_codes()[SMOOTH].float()
    changed = moved_elsewhere(removed, statistics, seed=1)(x)
    torch.testing.assert_close(
        (changed - x).norm(dim=-1), removed.norm(dim=-1).expand(len(x), -1), rtol=1e-4, atol=1e-5
    )
    again = moved_elsewhere(removed, statistics, seed=1)(x)
    assert torch.equal(changed, again)
    # The code is where it was, but for what random directions have of it.
    along = torch.nn.functional.normalize(removed, dim=-1)
    before, after = ((rows * along).sum(-1).mean(0) for rows in (x, changed))
    taken = statistics.kept(set(CODES) - {SMOOTH})(x)
    gone = (taken * along).sum(-1).mean(0)
    assert (after - before).abs().mean() < 0.3 * (gone - before).abs().mean()


def varying_along(spreads: torch.Tensor, n: int = 400) -> torch.Tensor:
    """Sequences of four positions that know none, each component with a spread of its own."""
    generator = torch.Generator().manual_seed(3)
    return spreads * torch.randn(n, 4, len(spreads), generator=generator)


def test_elsewhere_is_where_activations_vary():
    """Each sequence goes a way of its own, along a component as often as activations vary so."""
    spreads = torch.tensor([2.0, 1, 0, 0])
    x = varying_along(spreads)
    vectors = torch.eye(4)[2].expand(4, 4)
    moved = moved_elsewhere(vectors, fitted(x, torch.arange(4)))(x) - x
    assert moved[..., 2:].abs().max() < 1e-5
    torch.testing.assert_close(moved.norm(dim=-1), torch.ones(400, 4), rtol=1e-4, atol=1e-4)
    # One vector at all positions, and so one direction; of 400 about none is preferred.
    torch.testing.assert_close(moved[:, 0], moved[:, 3], rtol=1e-4, atol=1e-5)
    assert moved[:, 0].mean(dim=0).abs().max() < 4 / 400**0.5
    # Of a Gaussian with spreads a and b, a / (a + b) of the unit direction's square is along a.
    along = moved[:, 0].square().mean(dim=0)
    assert along[0] == pytest.approx(2 / 3, abs=4 * (0.25 / 400) ** 0.5)


@pytest.mark.parametrize("code", HALVES)
def test_a_control_moves_as_far_as_a_removal_whose_deviations_grow_to_keep_the_variance(code):
    """What is subtracted alone is a fifth less of the way, where it is three times a deviation."""
    generator = torch.Generator().manual_seed(6)
    functions = {SMOOTH: torch.linspace(-1.7, 1.7, 16), IRREGULAR: (-1.0) ** torch.arange(16)}
    direction = torch.nn.functional.normalize(torch.randn(32, generator=generator), dim=-1)
    planted_code = 3 * 32**0.5 * functions[code][:, None] * direction
    x = torch.randn(400, 16, 32, generator=generator) + planted_code
    of_fit = fitted(x[:200], torch.arange(16))
    removal = of_fit.kept(set(CODES) - {code})
    sizes = removal_sizes(removal, of_fit)
    control = size_matched_removal(removal, sizes, of_fit)
    removed, elsewhere = ((by(x[200:]) - x[200:]).norm(dim=-1) for by in (removal, control))
    assert elsewhere.mean() == pytest.approx(float(removed.mean()), rel=0.02)
    torch.testing.assert_close(elsewhere, sizes.expand(200, -1), rtol=1e-4, atol=1e-4)
    subtracted = removal.removed.norm(dim=-1).mean()
    assert subtracted < 0.85 * removed.mean()


def test_each_removal_is_held_against_its_own_displacement(statistics):
    for code in CODES:
        removal = statistics.kept(set(CODES) - {code})
        sizes = removal_sizes(removal, statistics)
        control = size_matched_removal(removal, sizes, statistics)
        in_the_mean = code in HALVES
        assert isinstance(control, SizeMatched if in_the_mean else OtherContent)


def test_noise_without_a_code_spans_no_subspace():
    """Sampled means of rows that know no position point everywhere; most of that is no code."""
    x = torch.randn(200, 24, 64, generator=torch.Generator().manual_seed(0))
    without = fitted(x)
    p = without.positional_vectors()
    assert without.noise() == pytest.approx(float((p - p.mean(dim=0)).square().sum()), rel=0.1)
    assert positional_rank(without, 0.95) < 5
    # Rests that one token shares with the next make means that hardly differ between positions.
    alike = fitted(torch.randn(200, 1, 64, generator=torch.Generator().manual_seed(2)) + 0.3 * x)
    p = alike.positional_vectors()
    assert alike.noise() == pytest.approx(float((p - p.mean(dim=0)).square().sum()), rel=0.1)
    direction = torch.randn(64, generator=torch.Generator().manual_seed(1))
    planted_line = x + 2 * torch.linspace(-1, 1, 24)[:, None] * direction
    assert positional_rank(fitted(planted_line), 0.95) == 1


def test_rests_that_are_mixed_alike_keep_their_correlation_between_positions():
    """All of a row's content goes, and what can be read of positions stays as it was."""
    x = planted(400, 5)
    statistics = fitted(x[:200])
    mixed = OtherContent(torch.full((x.shape[1],), 2.0), statistics)(x[200:])
    means = statistics.positional_vectors().float()
    own, other = (rows - means for rows in (x[200:], mixed))
    cosine = torch.nn.functional.cosine_similarity(own, other, dim=-1)
    assert cosine.abs().max() < 1e-3
    adjacency = [
        float(adjacency_a(cosine_similarity(deviations)).mean()) for deviations in (own, other)
    ]
    assert adjacency[0] > 0.8
    assert adjacency[1] == pytest.approx(adjacency[0], abs=0.03)
    torch.testing.assert_close(other.norm(dim=-1), own.norm(dim=-1), rtol=1e-3, atol=1e-3)


def test_a_random_subspace_has_the_same_rank_and_other_directions(statistics, fresh):
    projection = project_out(statistics, 5)
    control = random_subspace(projection, statistics, seed=1)
    gram = control.directions @ control.directions.T
    torch.testing.assert_close(gram, torch.eye(5), rtol=0, atol=1e-5)
    moved = control(fresh[1]) - fresh[1]
    assert torch.linalg.matrix_rank(moved.flatten(0, 1), rtol=1e-4) == 5
    # Deviations vary alike in all directions: two random subspaces overlap by k^2 / d.
    overlaps = [
        float(
            (random_subspace(projection, statistics, seed).directions @ projection.directions.T)
            .norm()
            .square()
        )
        for seed in range(200)
    ]
    assert np.mean(overlaps) == pytest.approx(25 / D, rel=0.2)
    again = random_subspace(projection, statistics, 1)
    assert torch.equal(again.directions, control.directions)


def test_a_random_subspace_lies_where_activations_vary(statistics):
    projection = project_out(statistics, 2)
    spreads = torch.zeros(D)
    spreads[:5] = 1
    control = random_subspace(projection, fitted(varying_along(spreads), torch.arange(4)))
    assert control.directions[:, 5:].abs().max() < 1e-5


@pytest.mark.parametrize("factor", [0.5, 0.0])
def test_a_random_subspace_is_scaled_as_much(statistics, fresh, factor):
    channel, x = scale_channel(statistics, factor), fresh[1]
    control = random_subspace(channel, statistics, seed=1)
    assert control.factor == factor
    along, before = ((rows - channel.centre) @ control.directions.mT for rows in (control(x), x))
    torch.testing.assert_close(along, factor * before, rtol=0, atol=1e-5)


def test_a_random_subspace_beside_leace_is_projected_out(statistics, linear):
    control = random_subspace(leace(linear), statistics)
    assert (control.rank, control.factor) == (2, 0)


def test_permuted_rescaling_uses_the_next_sequences_factors(statistics, fresh):
    x = fresh[1][:6]
    kept = statistics.kept(set(CODES) - {"variance"})
    means = statistics.positional_vectors().float()
    deviation = x - means

    def factors(changed: torch.Tensor) -> torch.Tensor:
        return (changed - means).norm(dim=-1) / deviation.norm(dim=-1)

    permuted = PermutedRescaling(kept, seed=0)(x)
    ours, theirs = factors(permuted), factors(kept(x))
    torch.testing.assert_close(ours.sort(dim=-1).values, theirs.roll(1, 0).sort(dim=-1).values)
    cosines = torch.nn.functional.cosine_similarity(permuted - means, deviation, dim=-1)
    torch.testing.assert_close(cosines, torch.ones_like(cosines))
    assert torch.equal(PermutedRescaling(kept, seed=0)(x), permuted)
    assert not torch.equal(PermutedRescaling(kept, seed=1)(x), permuted)


def test_side_effects_are_their_formulas():
    rng = np.random.default_rng(0)
    x, changed = rng.normal(size=(2, 3, 5, 7))
    found = side_effects(torch.from_numpy(x), torch.from_numpy(changed))
    for s in range(3):
        norms = [np.linalg.norm(changed[s, i]) / np.linalg.norm(x[s, i]) - 1 for i in range(5)]
        assert float(found["norm"][s]) == pytest.approx(np.abs(norms).mean())
        moved = [
            changed[s, i]
            @ changed[s, j]
            / np.linalg.norm(changed[s, i])
            / np.linalg.norm(changed[s, j])
            - x[s, i] @ x[s, j] / np.linalg.norm(x[s, i]) / np.linalg.norm(x[s, j])
            for i, j in combinations(range(5), 2)
        ]
        assert float(found["cosine"][s]) == pytest.approx(np.abs(moved).mean())
    nothing = side_effects(torch.from_numpy(x), torch.from_numpy(x))
    assert not nothing["norm"].any()
    assert not nothing["cosine"].any()


# --- rows without variation, and what is refused


def test_rows_without_variance_stay_finite():
    x = planted(40, 0)
    x[:, 3] = 2.0
    x[:, 5] = planted(1, 1)[0, 5]
    x[7, 8] = 0.0
    for codes in SUBSETS:
        if "similarity" in codes:
            assert torch.isfinite(fitted(x).kept(codes)(x)).all()


def test_half_precision_is_worked_in_float32(statistics):
    x = planted(4, 0).bfloat16()
    for intervention in (statistics.kept(()), project_out(statistics, 3)):
        changed = intervention(x)
        assert changed.dtype == torch.bfloat16
        torch.testing.assert_close(changed, intervention(x.float()).bfloat16())


def test_what_cannot_be_done_is_refused_in_a_sentence(statistics, linear):
    x = planted(4, 0)
    kept = statistics.kept(())
    with pytest.raises(ProbeError, match=r"\(4, 20, 64\), but .* \(batch, 24, 64\)"):
        kept(x[:, :20])
    with pytest.raises(ProbeError, match="fitted on"):
        swap_vectors(statistics, 1)(x[..., :9])
    for wider in (project_out(statistics, 2), leace(linear)):
        with pytest.raises(ProbeError, match=r"width 9, but .* width 64"):
            wider(x[..., :9])
    with pytest.raises(ProbeError, match="no position code 'rotary': the codes are variance, "):
        statistics.kept(("variance", "rotary"))
    for rank in (0, 24):
        with pytest.raises(ProbeError, match="rank of 1 to 23"):
            project_out(statistics, rank)
    with pytest.raises(ProbeError, match="offset between -22 and 22"):
        swap_vectors(statistics, 23)
    with pytest.raises(ProbeError, match="fitted on 2 sequences at least"):
        leace(LinearProbe())
    few = LinearProbe()
    few.update(planted(2, 0), POSITIONS)
    said = "2 sequences are 48 activations, too few for LEACE in 64 dim"
    with pytest.raises(ProbeError, match=said):
        leace(few)


def test_too_little_to_fit_on_is_refused_in_a_sentence():
    x = planted(3, 0)
    with pytest.raises(ProbeError, match="on 0 sequences"):
        CodeStatistics().kept(CODES)
    with pytest.raises(ProbeError, match="on 1 sequences"):
        fitted(x[:1]).kept(CODES)
    few = fitted(x[..., :8])
    with pytest.raises(ProbeError, match=r"3 sequences of width 8 .* 24 at least"):
        few.kept(("variance",))
    few.kept(("similarity",))


def test_a_position_with_one_and_the_same_row_is_left_as_it_is():
    x = planted(40, 0)
    x[:, 4] = x[0, 4]
    without_similarity = fitted(x).kept([code for code in CODES if code != "similarity"])
    changed = without_similarity(x)
    assert torch.isfinite(changed).all()
    torch.testing.assert_close(changed[:, 4], x[:, 4], rtol=1e-4, atol=1e-4)
    # The others are what they are without that position.
    others = [position for position in range(x.shape[1]) if position != 4]
    statistics = CodeStatistics()
    statistics.update(x[:, others], torch.tensor(others) + 1)
    deviation = changed[:, others] - changed[:, others].mean(dim=0)
    alone = statistics.kept([code for code in CODES if code != "similarity"])(x[:, others])
    alone_deviation = alone - alone.mean(dim=0)
    cosine = torch.nn.functional.cosine_similarity(deviation, alone_deviation, dim=-1)
    assert cosine.min() > 0.99


def test_statistics_refuse_what_probes_refuse(statistics):
    x = planted(4, 0)
    broken = x.clone()
    broken[1, 2, 3] = torch.nan
    with pytest.raises(ProbeError, match="NaN or infinite"):
        CodeStatistics().update(broken, POSITIONS)
    with pytest.raises(ProbeError, match="positions have shape"):
        CodeStatistics().update(x, POSITIONS[:9])
    with pytest.raises(ProbeError, match="d_model changed"):
        fitted(x).update(x[..., :9], POSITIONS)
    with pytest.raises(ProbeError, match="positions changed"):
        fitted(x).merge(fitted(x, POSITIONS + 1))
    whole = fitted(x)
    with pytest.raises(ProbeError, match="cannot merge a probe with itself"):
        whole.merge(whole)
    # There is nothing to evaluate, and nothing pretends that there is.
    assert not hasattr(CodeStatistics, "evaluate")
    assert not isinstance(CodeStatistics(), StreamingProbe)


def test_a_factor_of_one_changes_nothing():
    x = planted(2, 0)
    directions = torch.eye(D)[:3]
    assert torch.equal(ScaledDirections(directions, x[0, 0], 1.0)(x), x)


@pytest.mark.parametrize("sizes", [(20,), (3, 17), (1,) * 20])
def test_examples_are_the_first_sequences_however_they_come(sizes: tuple[int, ...]) -> None:
    x = torch.randn(20, 6, 4, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(6)
    in_batches, in_shards = CodeStatistics(), CodeStatistics()
    for part in x.split(sizes):
        in_batches.update(part, positions)
        shard = CodeStatistics()
        shard.update(part, positions)
        in_shards.merge(shard)
    for found in (in_batches, in_shards):
        assert torch.equal(found.examples(), x[:8])
