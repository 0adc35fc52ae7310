"""Labels of heads made by hand, p-values and q-values against scipy and under the null."""

import dataclasses

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from probes.bootstrap import SequenceBootstrap, benjamini_hochberg
from probes.errors import ProbeError
from probes.head_rules import (
    FALSE_DISCOVERY_RATE,
    LABELS,
    METRICS,
    NONE,
    RANDOM_INIT,
    RULES,
    SHUFFLED_OFFSETS,
    Rule,
)
from probes.heads.detectors import HeadProbe, HeadScores
from probes.heads.labels import (
    DEPENDENCE_RULES,
    DependenceRule,
    dependence,
    early_labels,
    label_heads,
    share_interval,
)
from tests.paths import ROOT

LENGTH, PERIOD, ALPHABET = 40, 20, 8
KINDS = (*(rule.label for rule in RULES), NONE)


def visible(window: int | None = None) -> Tensor:
    back = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    return (back >= 0) & (back < (window or LENGTH))


def softmax(scores: Tensor, window: int | None) -> Tensor:
    return scores.masked_fill(~visible(window), -torch.inf).softmax(dim=-1)


def noise(batch: int, seed: int, scale: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(batch, LENGTH, LENGTH, generator=generator)


def tokens_of(feed: str, batch: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if feed == "repeated":
        # More kinds than places, so that a token comes back only in its copy.
        drawn = torch.rand(batch, 1000, generator=generator).argsort(dim=-1)[:, :PERIOD]
        return torch.cat([drawn, drawn], dim=1)
    return torch.randint(ALPHABET, (batch, LENGTH), generator=generator)


def head(kind: str, tokens: Tensor, seed: int, window: int | None) -> Tensor:
    """[batch query key]: the scores of one head of that kind, with noise."""
    back = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    scores = noise(len(tokens), seed, 0.05 if kind == "uniform" else 1.0)
    same = tokens[:, :, None] == tokens[:, None, :]
    after_same = torch.nn.functional.pad(same, (1, 0))[..., :-1]
    taste = torch.linspace(-1.5, 1.5, ALPHABET)[tokens % ALPHABET][:, None, :]
    return (
        scores
        + {
            "diagonal": 6.0 * (back == 0),
            "previous-token": 6.0 * (back == 1),
            "first-token": 6.0 * (torch.arange(LENGTH) == 0),
            "local": 4.0 * (back < 8),
            "induction": 7.0 * (after_same & (back > 0)),
            # Itself is a copy as well.
            "duplicate-token": 7.0 * same,
            "content": taste,
            # These look so far back, whatever stands there.
            "far": 8.0 * (back == PERIOD - 1),
            "farther": 8.0 * (back == PERIOD),
            "uniform": torch.zeros(1),
            "none": torch.zeros(1),
        }[kind]
    )


def scored(
    kinds: tuple[str, ...], seed: int = 0, window: int | None = None, batch: int = 12
) -> HeadScores:
    """One layer with a head of each kind, scored on all feeds."""
    probe = HeadProbe(seed=1, n_resamples=200, window=window)

    def heads(feed: str, seed: int) -> tuple[Tensor, Tensor]:
        tokens = tokens_of(feed, batch, seed)
        made = [head(kind, tokens, 100 * seed + i, window) for i, kind in enumerate(kinds)]
        return torch.stack(made, dim=1), tokens

    probe.read_text(softmax(heads("text", 10 * seed + 1)[0], window))
    probe.read_repeated(softmax(heads("repeated", 10 * seed + 2)[0], window), PERIOD, 0)
    for held_out in (False, True):
        scores, tokens = heads("scores", 10 * seed + 3 + held_out)
        probe.read_scores(scores.masked_fill(~visible(window), -torch.inf), tokens, held_out)
    return probe.result()


def null_layer(seed: int, n_heads: int = 6) -> HeadScores:
    return scored((NONE,) * n_heads, seed)


def test_heads_made_by_hand_get_their_names():
    layers = [scored(KINDS[:5]), scored(KINDS[5:])]
    labels = label_heads(layers, [null_layer(7), null_layer(8)])
    assert [label.label for label in labels] == list(KINDS)
    assert [(label.layer, label.head) for label in labels] == [
        (layer, head) for layer, n in ((0, 5), (1, 4)) for head in range(n)
    ]
    for label in labels:
        assert label.confidence > 0.95
        assert (label.q_value <= FALSE_DISCOVERY_RATE) == (label.label != NONE)


def test_heads_made_by_hand_get_their_names_behind_a_window():
    # Of 25 keys: the first token and everything local of itself are out of late queries' sight.
    kinds = tuple(kind for kind in KINDS if kind != "first-token")
    labels = label_heads([scored(kinds, window=25)], [scored((NONE,) * 6, 7, window=25)])
    assert [label.label for label in labels] == list(kinds)


def test_without_a_null_model_the_shuffled_null_stands_alone():
    with_null = label_heads([scored(KINDS)], [null_layer(7)])
    alone = label_heads([scored(KINDS)])
    assert [label.label for label in alone] == list(KINDS)
    assert all(np.isnan(label.p_random_init) for label in alone)
    for one, two in zip(alone, with_null, strict=True):
        if one.label != NONE:
            np.testing.assert_equal(one.p_shuffled, two.p_shuffled)


def test_a_habit_that_the_reinitialized_has_too_is_no_discovery():
    labels = label_heads([scored(("previous-token",))], [scored(("previous-token",) * 6, 5)])
    assert labels[0].label != "previous-token"
    labels = label_heads([scored(("previous-token",))], [null_layer(5)])
    assert labels[0].label == "previous-token"


@pytest.mark.parametrize("window", [None, 25])
@pytest.mark.parametrize(("kind", "metric"), [("far", "induction"), ("farther", "duplicate_token")])
def test_a_head_that_looks_just_so_far_back_matches_nothing(
    kind: str, metric: str, window: int | None
) -> None:
    """Repeated tokens alone cannot tell it from one that matches; on text it looks there, too."""
    kinds = (kind, "induction", "duplicate-token")
    scores = scored(kinds, window=window)
    assert scores.value[0, scores.column(metric)] > 0.9
    nulls = [scored((NONE,) * 6, 7, window)]
    for null in (None, nulls):
        labels = label_heads([scores], null)
        assert [label.label for label in labels] == [NONE, *kinds[1:]]
        assert labels[0].confidence > 0.95
        assert labels[0].runner_up not in ("induction", "duplicate-token")
    assert [of[0] for _, of in early_labels([scores])] == [NONE]


def test_what_a_match_adds_is_tested_with_the_spread_of_both() -> None:
    """A match gives a half, the distance 0.3 more, which is not enough alone."""
    scores = scored(("induction", NONE))
    column = scores.column("induction")
    value, stderr, by_offset = scores.value.copy(), scores.stderr.copy(), scores.by_offset.copy()
    value[0, column], stderr[0, column], by_offset[:, 0, column] = 0.8, 0.003, (0.3, 0.004)
    both = dataclasses.replace(scores, value=value, stderr=stderr, by_offset=by_offset)
    (rule,) = (rule for rule in RULES if rule.label == "induction")
    (found, _) = label_heads([both], rules=[rule])
    assert found.label == "induction"
    n = scores.n[0, column]
    expected = scipy.stats.t(n - 1).sf((0.5 - scores.chance[0, column]) / 0.005)
    assert found.p_shuffled == pytest.approx(expected, rel=1e-6)
    by_offset[0, 0, column] = 0.395
    assert label_heads([both], rules=[rule])[0].label == NONE


def test_a_uniform_head_is_uniform_beside_nulls_that_are_so_too():
    labels = label_heads([scored(("uniform",))], [scored(("uniform",) * 6, 5)])
    assert labels[0].label == "uniform"
    assert np.isnan([labels[0].p_shuffled, labels[0].p_random_init]).all()


def test_runner_up_is_the_next_that_holds_or_the_nearest():
    labels = {label.label: label for label in label_heads([scored(KINDS)], [null_layer(7)])}
    assert (labels["previous-token"].runner_up, labels["previous-token"].runner_up_holds) == (
        "local",
        True,
    )
    layer = scored((NONE,))
    (only,) = label_heads([layer], [null_layer(7)])
    nearness = {
        rule.label: layer.value[0, layer.column(rule.metric)] / rule.threshold for rule in RULES
    }
    assert only.runner_up == max(nearness, key=nearness.__getitem__)
    assert not only.runner_up_holds


def test_p_values_are_those_of_scipys_tests():
    layer, null = scored(("previous-token", "local")), null_layer(7)
    column = METRICS.index("previous_token")
    label = label_heads([layer], [null])[0]
    assert label.label == "previous-token"
    # Recomputed from per-sequence scores rather than from sums.
    tokens = tokens_of("text", 12, 1)
    pattern = softmax(head("previous-token", tokens, 100, None)[:, None], None)
    per_sequence = pattern[:, 0].diagonal(-1, 1, 2)[:, 7:].mean(dim=-1).double().numpy()
    chance = np.mean([1 / (q + 1) for q in range(8, LENGTH)])
    expected = scipy.stats.ttest_1samp(per_sequence, chance, alternative="greater").pvalue
    assert label.p_shuffled == pytest.approx(expected, rel=1e-3)
    # One more draw against the nulls is Student's two-sample test with a sample of one, once the
    # score has no error of its own.
    nulls = null.value[:, column]
    exact = dataclasses.replace(layer, stderr=np.zeros_like(layer.stderr))
    expected = scipy.stats.ttest_ind(
        layer.value[:1, column], nulls, equal_var=True, alternative="greater"
    ).pvalue
    assert label_heads([exact], [null])[0].p_random_init == pytest.approx(expected, rel=1e-9)
    assert label.p_random_init > expected


def test_the_analytic_null_is_the_mean_of_shuffled_patterns():
    pattern = softmax(head("previous-token", tokens_of("text", 4, 1), 5, None)[:, None], None)
    rng = np.random.default_rng(0)
    values = []
    for _ in range(60):
        shuffled = pattern.clone()
        for q in range(LENGTH):
            order = torch.from_numpy(rng.permuted(np.tile(np.arange(q + 1), (4, 1)), axis=1))
            shuffled[:, 0, q, : q + 1] = pattern[:, 0, q, : q + 1].gather(-1, order)
        probe = HeadProbe(n_resamples=10)
        probe.read_text(shuffled)
        values.append(probe.result().value[0, :4])
    chance = probe.result().chance[0, :4]
    error = np.std(values, axis=0) / np.sqrt(len(values))
    assert (np.abs(np.mean(values, axis=0) - chance) < 4 * error).all()


def dirichlet_scores(seed: int, n_heads: int, concentration: float, batch: int = 8) -> HeadScores:
    """Rows drawn at random, without regard to position or token."""
    rng = np.random.default_rng(seed)
    probe = HeadProbe(seed=seed, n_resamples=20)
    drawn = (
        torch.from_numpy(
            rng.gamma(concentration, size=(2, batch, n_heads, LENGTH, LENGTH)).astype(np.float32)
        )
        + 1e-30
    )
    rows = drawn.tril() / drawn.tril().sum(dim=-1, keepdim=True)
    probe.read_text(rows[0])
    probe.read_repeated(rows[1], PERIOD, 0)
    tokens = torch.from_numpy(rng.integers(ALPHABET, size=(2, batch, LENGTH)))
    for i in range(2):
        probe.read_scores(rows[i].log().masked_fill(~visible(), -torch.inf), tokens[i], i == 1)
    return probe.result()


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), concentration=st.floats(0.1, 1.5))
def test_random_patterns_get_no_label(seed, concentration):
    variant = dirichlet_scores(seed, 4, concentration)
    null = dirichlet_scores(seed + 1, 6, concentration)
    for label in label_heads([variant], [null]):
        # At a concentration of 1.5 rows are still a third of their weight away from uniform.
        assert label.label == NONE
        assert label.confidence > 0.9


def test_where_chance_lies_above_a_threshold_chance_has_to_be_beaten() -> None:
    """Of 12 tokens most are near, wherever a head attends to; no null model is there to say so."""
    drawn = np.random.default_rng(1).gamma(1.0, size=(16, 4, 12, 12))
    rows = torch.from_numpy(drawn).float().tril()
    probe = HeadProbe(n_resamples=20)
    probe.read_text(rows / rows.sum(dim=-1, keepdim=True))
    scores = probe.result()
    chance = np.mean([8 / visible for visible in (9, 10, 11, 12)])
    np.testing.assert_allclose(scores.chance[:, METRICS.index("local")], chance, rtol=1e-6)
    assert [label.label for label in label_heads([scores])] == [NONE] * 4


def test_a_threshold_that_equal_weights_reach_gives_no_label() -> None:
    """Of ten keys eight are near: heads all but uniform, with a slight taste for these."""
    near = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH) < 8
    layers = []
    for taste, n_heads in ((0.1, 4), (0.0, 6)):
        probe = HeadProbe(n_resamples=100, window=10)
        drawn = torch.stack([noise(12, i, 0.05) for i in range(n_heads)], dim=1)
        probe.read_text(softmax(drawn + taste * near, 10))
        layers.append(probe.result())
    scores, null = layers
    column = scores.column("local")
    (local,) = (rule.threshold for rule in RULES if rule.label == "local")
    assert (scores.value[:, column] > scores.chance[:, column]).all()
    assert (scores.chance[:, column] > local).all()
    for label in label_heads([scores], [null]):
        assert (label.label, label.confidence) == ("uniform", 1.0)
        assert label.runner_up != "local"
    assert [label.label for label in label_heads([scores])] == ["uniform"] * 4
    # Whoever sets so low a threshold leaves it to the nulls.
    own = (Rule("near", "local", 0.5, (SHUFFLED_OFFSETS,), ""),)
    assert [label.label for label in label_heads([scores], rules=own)] == ["near"] * 4


@pytest.mark.slow
def test_false_discoveries_among_random_heads_stay_below_the_stated_rate():
    # Every rule's null is true, so that one discovery is a false discovery rate of 1 in that model:
    # the share of models with any must not exceed the rate. The error of 200 models is 0.015.
    beyond_both, beyond_shuffled, p_shuffled = [], [], []
    for seed in range(200):
        variant = dirichlet_scores(2 * seed, 3, 1.0)
        labels = label_heads([variant], [dirichlet_scores(2 * seed + 1, 8, 1.0)])
        beyond_both.append(min(label.q_value for label in labels) <= FALSE_DISCOVERY_RATE)
        alone = min(label.q_value for label in label_heads([variant]))
        beyond_shuffled.append(alone <= FALSE_DISCOVERY_RATE)
        column = METRICS.index("previous_token")
        t = (variant.value - variant.chance)[:, column] / variant.stderr[:, column]
        p_shuffled.extend(scipy.stats.t(7).sf(t))
        assert all(label.label == NONE for label in labels)
    assert np.mean(beyond_both) <= FALSE_DISCOVERY_RATE + 2 * 0.015
    assert np.mean(beyond_shuffled) <= FALSE_DISCOVERY_RATE + 2 * 0.015
    # The shuffled null by itself is calibrated, not merely cautious.
    assert scipy.stats.kstest(p_shuffled, "uniform").pvalue > 0.001


def test_confidence_is_the_share_of_resamples_with_the_same_label():
    layer = scored(("previous-token",))
    column = layer.column("previous_token")
    replicates = layer.replicates.copy()
    # In a quarter of the resamples it falls below the threshold, and is only local.
    replicates[:50, 0, column] = 0.3
    torn = dataclasses.replace(layer, replicates=replicates)
    assert label_heads([torn])[0].confidence == 0.75


def test_feeds_that_were_not_given_take_no_part():
    probe = HeadProbe(n_resamples=50)
    tokens = tokens_of("text", 8, 0)
    kinds = ("induction", "previous-token")
    made = torch.stack([head(kind, tokens, i, None) for i, kind in enumerate(kinds)], dim=1)
    probe.read_text(softmax(made, None))
    labels = label_heads([probe.result()], [null_layer(3)])
    assert labels[1].label == "previous-token"
    assert labels[0].label != "induction"
    only_copies = HeadProbe(n_resamples=50)
    only_copies.read_copies(softmax(made, None), 0)
    for label in label_heads([only_copies.result()]):
        assert (label.label, label.runner_up) == (NONE, "")
        assert np.isnan(label.q_value)


@pytest.mark.parametrize(
    ("label", "after", "kind"),
    [
        ("previous-token", "none", "positional"),
        ("induction", "none", "positional"),
        ("induction", "induction", "content"),
        ("diagonal", "diagonal", "content"),
    ],
)
def test_dependence_of_heads_made_by_hand(label, after, kind):
    found = dependence(label, scored((label, NONE)), scored((after, NONE), 3), 0)
    assert found.kind == kind
    assert found.ci_low <= found.retention <= found.ci_high
    assert found.retention == pytest.approx(1.0 if kind == "content" else 0.0, abs=0.1)


@pytest.mark.parametrize("label", ["content", "uniform", NONE])
def test_what_is_no_place_to_attend_to_has_no_dependence(label):
    found = dependence(label, scored((label, NONE)), scored((NONE, NONE), 3), 0)
    assert found.kind == ""
    assert np.isnan(found.retention)


def test_a_score_that_may_lie_below_its_threshold_gives_no_label():
    """Far beyond chance and both nulls, but within its own noise of the threshold."""
    scores = scored(("previous-token", NONE))
    column = scores.column("previous_token")
    near = dataclasses.replace(scores, value=scores.value.copy(), stderr=scores.stderr.copy())
    near.value[0, column], near.stderr[0, column] = 0.41, 0.02
    assert label_heads([near])[0].label != "previous-token"
    near.stderr[0, column] = 0.001
    assert label_heads([near])[0].label == "previous-token"


def test_dependence_on_part_of_the_habit_is_mixed():
    intact = scored(("previous-token",))
    column = intact.column("previous_token")
    chance = intact.chance[0, column]

    def weakened(share: float) -> HeadScores:
        value, replicates = intact.value.copy(), intact.replicates.copy()
        value[:, column] = chance + share * (value[:, column] - chance)
        replicates[..., column] = chance + share * (replicates[..., column] - chance)
        return dataclasses.replace(intact, value=value, replicates=replicates)

    for share, kind in ((0.2, "positional"), (0.5, "mixed"), (0.9, "content"), (1.0, "content")):
        found = dependence("previous-token", intact, weakened(share), 0)
        assert found.kind == kind
        # Paired resamples share their noise: nothing is left of it in the ratio.
        np.testing.assert_allclose([found.retention, found.ci_low, found.ci_high], share)


def test_intervals_of_shares_are_those_of_a_bootstrap_over_sequences():
    """Of one mean over another that is known: then the bootstrap's own bounds are to be had."""
    sequences = np.random.default_rng(0).normal(0.5, 0.1, size=(8, 1))
    bootstrap = SequenceBootstrap(n_resamples=1000, seed=0).update(sequences)
    resampled = bootstrap.replicates()[:, 0]
    found = share_interval(float(bootstrap.mean()[0]), resampled, 8)
    expected = [float(bound[0]) for bound in bootstrap.interval()]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert share_interval(0.5, resampled, 1) == (-np.inf, np.inf)


def test_labels_without_a_habit_depend_on_nothing():
    layer = scored((NONE, "uniform"))
    for label in (NONE, "uniform"):
        found = dependence(label, layer, layer, 0)
        assert found.kind == ""
        assert np.isnan([found.retention, found.ci_low, found.ci_high]).all()


def test_every_label_has_one_rule_and_every_rule_a_metric():
    assert len(set(LABELS)) == len(LABELS) == len(RULES) + 1
    assert {rule.metric for rule in RULES} <= set(METRICS)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(0, 5))
def test_q_values_are_benjamini_and_hochbergs_by_definition(p_values, n_missing):
    given_p = np.array(p_values + [np.nan] * n_missing)
    found = benjamini_hochberg(given_p)
    m = len(p_values)
    for p, q in zip(p_values, found, strict=False):
        thresholds = [m * t / sum(x <= t for x in p_values) for t in p_values if t >= p]
        assert q == pytest.approx(min(1, *thresholds))
    assert np.isnan(found[m:]).all()


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda: label_heads([]), "no layers to classify"),
        (lambda: label_heads([null_layer(0, 2)], [null_layer(1, 1)]), "1 heads; a spread needs"),
        (lambda: label_heads([null_layer(0, 2)], [text_only(2)]), "lacks 'induction'"),
        (lambda: dependence("sink", null_layer(0, 1), null_layer(1, 1), 0), "no label 'sink'"),
        (
            lambda: dependence("induction", null_layer(0, 1), text_only(1), 0),
            "12 sequences with positions intact and on 0 ablated",
        ),
        (
            lambda: dependence("diagonal", text_only(1, away=True), text_only(1), 0),
            "no more than chance",
        ),
        (lambda: benjamini_hochberg(np.array([0.5, 1.5])), "between 0 and 1"),
    ],
)
def test_misuse_is_said_in_a_sentence(misuse, message):
    with pytest.raises(ProbeError, match=message):
        misuse()


def text_only(n_heads: int, away: bool = False) -> HeadScores:
    """Heads read on natural text alone; `away` has them look away from their own token."""
    scores = noise(4 * n_heads, 0, 1.0).view(4, n_heads, LENGTH, LENGTH)
    probe = HeadProbe(n_resamples=200)
    probe.read_text(softmax(scores - 5 * away * torch.eye(LENGTH), None))
    return probe.result()


def rules_markdown() -> str:
    """All rules as Markdown, in the order in which they are tried: what docs/heads.md holds."""
    lines = [
        "| label | given where | and it beats | meaning |",
        "| --- | --- | --- | --- |",
        *(
            f"| {rule.label} | {rule.condition} | {' and '.join(rule.nulls) or 'the bound'} "
            f"| {rule.says} |"
            for rule in RULES
        ),
        f"| {NONE} | no rule holds | | |",
        "",
        "| dependence | 95% interval of retention | meaning |",
        "| --- | --- | --- |",
        *(f"| {rule.kind} | {_range(rule)} | {rule.says} |" for rule in DEPENDENCE_RULES),
    ]
    return "\n".join(lines) + "\n"


def _range(rule: DependenceRule) -> str:
    if np.isfinite(rule.high):
        return f"below {rule.high:.2f}"
    return f"above {rule.low:.2f}" if np.isfinite(rule.low) else "anything else"


def test_the_rules_stand_in_the_docs_as_they_stand_in_the_code():
    page = ROOT / "docs" / "heads.md"
    assert rules_markdown() in page.read_text(encoding="utf-8")


# ---------------------------------------------------------------- fewer sequences, other rules


def read_text(patterns: Tensor, seed: int = 0) -> HeadScores:
    probe = HeadProbe(seed, n_resamples=50)
    for batch in patterns.split(5):  # batches that end between the powers of two
        probe.read_text(batch)
    return probe.result()


def mixed(n: int, seed: int) -> Tensor:
    """Patterns [n head query key] of a sure, a shy and a plain head."""
    kinds = ("previous-token", "diagonal", NONE)
    drawn = [head(kind, tokens_of("text", n, seed), seed + i, None) for i, kind in enumerate(kinds)]
    shy = drawn[1] / torch.linspace(1, 9, n)[:, None, None]
    return softmax(torch.stack([drawn[0], shy, drawn[2]], dim=1), None)


def test_fewer_sequences_give_what_they_alone_would_have_given() -> None:
    patterns, untrained = mixed(21, 3), mixed(21, 30)[:, 2:].expand(-1, 3, -1, -1)
    found = early_labels([read_text(patterns)], [read_text(untrained)])
    assert [n for n, _ in found] == [16, 8]
    for n, labels in found:
        alone = label_heads([read_text(patterns[:n])], [read_text(untrained[:n])])
        assert labels == [label.label for label in alone]
    scores = read_text(patterns)
    for stage, n in enumerate((16, 8)):
        fewer, alone_scores = scores.stage(stage), read_text(patterns[:n])
        seen = alone_scores.n > 0
        for name in ("value", "stderr", "n"):
            ours, wanted = getattr(fewer, name), getattr(alone_scores, name)
            np.testing.assert_allclose(ours[seen], wanted[seen], rtol=1e-6, atol=1e-9)


def test_shards_settle_as_their_first_sequences_together() -> None:
    patterns = mixed(20, 5)
    halves = [HeadProbe(seed, n_resamples=50) for seed in (0, 1)]
    for probe, half in zip(halves, patterns.split(10), strict=True):
        probe.read_text(half)
        probe.read_repeated(half[:3], period=half.shape[-1] // 2, start=half.shape[-1] % 2)
    halves[0].merge(halves[1])
    scores = halves[0].result()
    # Few are few by their number; where they lack repeated tokens they have no labels.
    assert [scores.stage(i).n.max() for i in range(len(scores.early))] == [16, 8]
    assert [n for n, _ in early_labels([scores])] == [16]
    first = scores.stage(0)
    together = read_text(torch.cat([patterns[:8], patterns[10:18]]))
    seen = together.n > 0
    np.testing.assert_allclose(first.value[seen], together.value[seen], rtol=1e-6)
    np.testing.assert_allclose(first.stderr[seen], together.stderr[seen], rtol=1e-6, atol=1e-9)
    assert (first.n[seen] == 16).all()
    assert (first.n[~np.isnan(first.value) & ~seen] == 4).all()


def test_other_rules_give_other_labels() -> None:
    nulls = (SHUFFLED_OFFSETS, RANDOM_INIT)
    rules = (Rule("near", "local", 0.9, nulls, ""), Rule("near or self", "local", 0.3, nulls, ""))
    labels = label_heads([scored(KINDS)], [null_layer(7)], rules)
    value = scored(KINDS).value[:, METRICS.index("local")]
    for found, score in zip(labels, value, strict=True):
        assert found.label != "near" or score > 0.9
        assert found.label != "near or self" or score > 0.3
    by_kind = dict(zip(KINDS, (found.label for found in labels), strict=True))
    assert by_kind["local"] in ("near", "near or self")
    assert by_kind["uniform"] == NONE
