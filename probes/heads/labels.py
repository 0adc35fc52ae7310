"""What to call a head: one table of rules, p-values against two nulls, and false discoveries held.

A label says that the score is above its rule's threshold, and beyond its nulls, in the long run and
not just in these sequences: all heads of the model and all rules are tested together (Benjamini and
Hochberg 1995). The thresholds are our choices and no paper's: they say how strong a habit must be
to be worth a name.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import stdtr

from probes.bootstrap import benjamini_hochberg, few_sequences
from probes.errors import ProbeError
from probes.head_rules import (
    FALSE_DISCOVERY_RATE,
    LABELS,
    NONE,
    NULLS,
    RANDOM_INIT,
    RULES,
    SHUFFLED_OFFSETS,
    Rule,
)
from probes.heads.detectors import HeadScores

# What single precision leaves of a score: a smaller standard error is one of rounding.
_ROUNDING = 1e-6
# Beyond either bound of an interval.
_TAIL = 0.025

PerRule = Float[np.ndarray, "head rule"]

# Of every layer, in order; or by layer, where some have no heads.
LayerScores = Sequence[HeadScores] | Mapping[int, HeadScores]


@dataclass(frozen=True)
class HeadLabel:
    """What one head is called, and how sure that is.

    runner_up is the next rule in the table's order that holds too (runner_up_holds), or else the
    one whose score comes nearest to its threshold (by score / threshold) without holding; "" where
    nothing was measured. confidence is the share of bootstrap resamples of the sequences in which
    the thresholds alone give the same label. The p-values against the nulls and q are those of
    the label's rule, NaN where a null does not apply or was not given; "none" has the smallest q of
    all rules, which is above the false-discovery rate, and no p-values.
    """

    layer: int
    head: int
    label: str
    runner_up: str
    runner_up_holds: bool
    confidence: float
    p_shuffled: float
    p_random_init: float
    q_value: float


def label_heads(
    scores: LayerScores,
    null: LayerScores | None = None,
    rules: Sequence[Rule] = RULES,
) -> list[HeadLabel]:
    """A label for every head of a model, by the first of the rules that holds.

    The p-value of a rule is the largest of those against its threshold and its nulls, as it must
    beat them all; q is Benjamini and Hochberg's over all heads and rules that were measured. Of
    `induction` and `duplicate_token` only what goes beyond `HeadScores.by_offset` counts: a head
    that looks so far back whatever stands there matches no token. A rule of ours whose threshold
    equal weights reach holds for no head.

    Args:
        scores: one for each layer, from the same feeds; by layer where some have no heads.
        null: the layers of one or more random-init models, scored alike; without them a label has
            only its shuffled null to beat.
        rules: what labels there are; ours unless given.

    Returns:
        One label for each head, layer by layer.

    Raises:
        ProbeError: for no rules, for nulls that are not known, where there are no layers, or where
            those of `null` lack a metric that the model has, or have less than two heads.
    """
    _check_rules(rules)
    if null is not None and not len(null):
        raise ProbeError("the random-init models have no layers: give their scores, or none")
    by_layer = scores if isinstance(scores, Mapping) else dict(enumerate(scores))
    tested = _Tested.of(_each(scores), None if null is None else _each(null), rules)
    labels = (*(rule.label for rule in rules), NONE)
    # In the order of HeadLabel's last fields; the last column of each is of "none".
    columns = (
        np.concatenate([_confidence(layer, rules) for layer in by_layer.values()]),
        np.pad(tested.shuffled, ((0, 0), (0, 1)), constant_values=np.nan),
        np.pad(tested.random_init, ((0, 0), (0, 1)), constant_values=np.nan),
        np.column_stack([tested.q_values, np.fmin.reduce(tested.q_values, axis=1)]),
    )
    heads = [(layer, head) for layer, of in by_layer.items() for head in range(of.n_heads)]
    return [
        HeadLabel(
            *head,
            labels[rule],
            *_runner_up(rule, tested.holds[i], tested.nearness[i], rules),
            *(float(column[i, rule]) for column in columns),
        )
        for i, (head, rule) in enumerate(zip(heads, tested.chosen.tolist(), strict=True))
    ]


def _check_rules(rules: Sequence[Rule]) -> None:
    if not rules:
        raise ProbeError("there are no rules to label heads by: give one, or leave rules out")
    for rule in rules:
        for name in rule.nulls:
            if name not in NULLS:
                known = ", ".join(NULLS)
                raise ProbeError(f"{rule.label} is to beat {name!r}: choose from {known}")


def early_labels(
    scores: LayerScores, null: LayerScores | None = None
) -> list[tuple[int, list[str]]]:
    """What fewer sequences would have said: the labels of all heads by the first of them.

    Shares of scores are judged on fewer sequences, too, but by the same fits; what offset alone
    explains is that of all sequences.

    Args:
        scores: as `label_heads` takes them.
        null: as there.

    Returns:
        How many sequences of natural text, and a label for each head, layer by layer; the most
        sequences come first. Fewer than a rule needs, of what it is tested on, give no labels.
    """
    layers, untrained = _each(scores), _each(null or ())
    stages = min((len(layer.early) for layer in (*layers, *untrained)), default=0)
    found, measured = [], ~np.isnan(_of_rules(layers, "value", RULES))
    for stage in range(stages):
        fewer = [layer.stage(stage) for layer in layers]
        if np.isnan(_of_rules(fewer, "value", RULES)[measured]).any():
            break  # shards had fewer than two sequences of a kind
        nulls = None if null is None else [layer.stage(stage) for layer in untrained]
        chosen = _Tested.of(fewer, nulls, RULES).chosen
        n = int(max(layer.n.max(initial=0) for layer in fewer))
        found.append((n, [LABELS[rule] for rule in chosen]))
    return found


def _each(scores: LayerScores) -> list[HeadScores]:
    return list(scores.values() if isinstance(scores, Mapping) else scores)


@dataclass(frozen=True)
class _Tested:
    """Every rule tested on every head, and which rule each head gets; the last one is none."""

    nearness: PerRule  # of scores to their thresholds, as shares of these
    shuffled: PerRule
    random_init: PerRule
    q_values: PerRule
    holds: Bool[np.ndarray, "head rule"]
    chosen: Int[np.ndarray, " head"]

    @classmethod
    def of(
        cls,
        scores: Sequence[HeadScores],
        null: Sequence[HeadScores] | None,
        rules: Sequence[Rule],
    ) -> "_Tested":
        if not scores:
            raise ProbeError("there are no layers to classify: give the HeadScores of at least one")
        chance, stderr, n = (_of_rules(scores, name, rules) for name in ("chance", "stderr", "n"))
        value = _beyond_offset(scores, rules)
        stderr = np.hypot(stderr, _by_offset(scores, 1, rules))
        shuffled = _p_above(value, chance, stderr, n)
        random_init = np.full_like(value, np.nan)
        if null is not None:
            random_init = _p_random_init(value, stderr, _beyond_offset(null, rules), rules)
        thresholds = _thresholds(chance, rules)
        above = _p_above(value, thresholds, stderr, n)
        shuffled[:, [not set(rule.nulls) - {RANDOM_INIT} for rule in rules]] = np.nan
        # NaN, a null that is not there, beats no number.
        q_values = benjamini_hochberg(np.fmax(above, np.fmax(shuffled, random_init)))
        holds = q_values <= FALSE_DISCOVERY_RATE
        chosen = np.where(holds.any(axis=1), holds.argmax(axis=1), len(rules))
        return cls(value / thresholds, shuffled, random_init, q_values, holds, chosen)


def _thresholds(chance: PerRule, rules: Sequence[Rule]) -> PerRule:
    """Of our rules infinite where equal weights reach them: there they say nothing of a head.

    Whoever gives a rule such a threshold leaves it to the nulls.
    """
    bounds, ours = np.array([(rule.threshold, rule in RULES) for rule in rules]).T
    return np.where((chance >= bounds) & (ours > 0), np.inf, bounds)


def _of_rules(layers: Sequence[HeadScores], name: str, rules: Sequence[Rule]) -> PerRule:
    """One array of HeadScores, all layers' heads together, in the columns of the rules."""
    return np.concatenate(
        [getattr(layer, name)[:, [layer.column(rule.metric) for rule in rules]] for layer in layers]
    ).astype(np.float64)


def _beyond_offset(layers: Sequence[HeadScores], rules: Sequence[Rule]) -> PerRule:
    """Scores without what a head that looks so far back, whatever stands there, has as well."""
    beyond: PerRule = _of_rules(layers, "value", rules) - _by_offset(layers, 0, rules)
    return beyond


def _by_offset(layers: Sequence[HeadScores], which: int, rules: Sequence[Rule]) -> PerRule:
    """What of the scores offset alone explains (0), or its standard error (1)."""
    columns = [layers[0].column(rule.metric) for rule in rules]
    found: PerRule = np.concatenate([layer.by_offset[which][:, columns] for layer in layers])
    return found


def _p_above(
    value: PerRule, level: Float[np.ndarray, "... rule"], stderr: PerRule, n: PerRule
) -> PerRule:
    """One-sided t-tests over sequences; NaN where there are none."""
    excess = (value - level) / np.maximum(stderr, _ROUNDING)
    return np.asarray(stdtr(np.maximum(n - 1, 1), -excess))  # Student's distribution


def _p_random_init(
    value: PerRule,
    stderr: PerRule,
    nulls: Float[np.ndarray, "null rule"],
    rules: Sequence[Rule],
) -> PerRule:
    """One-sided t-tests of each score as one more draw from the normal law of random-init heads.

    The spread of a new draw about the mean of k draws is sd sqrt(1 + 1/k); the score's own standard
    error comes on top, and the degrees of freedom are k - 1.
    """
    k = len(nulls)
    if k < 2:
        raise ProbeError(f"the random-init model has {k} heads; a spread needs at least 2")
    missing = ~np.isnan(value).any(axis=0) & np.isnan(nulls).any(axis=0)
    if missing.any():
        rule = rules[int(np.argmax(missing))]
        raise ProbeError(
            f"the random-init model lacks {rule.metric!r}, which the model has: feed both alike"
        )
    variance = nulls.var(axis=0, ddof=1) * (1 + 1 / k) + stderr**2
    spread = np.sqrt(np.maximum(variance, _ROUNDING**2))
    p_values: np.ndarray = stdtr(k - 1, (nulls.mean(axis=0) - value) / spread)
    p_values[:, [RANDOM_INIT not in rule.nulls for rule in rules]] = np.nan
    return p_values


def _confidence(layer: HeadScores, rules: Sequence[Rule]) -> Float[np.ndarray, "head label"]:
    """The share of resamples in which the thresholds alone give each label."""
    columns = [layer.column(rule.metric) for rule in rules]
    replicates = layer.replicates[:, :, columns]
    drawn = ~np.isnan(replicates[:, :, layer.n[0, columns] > 0]).any(axis=(1, 2))
    thresholds = _thresholds(layer.chance[:, columns], rules)
    reached = replicates[drawn] - layer.by_offset[0][:, columns] >= thresholds
    first = np.where(reached.any(axis=-1), reached.argmax(axis=-1), len(rules))
    return np.stack([(first == label).mean(axis=0) for label in range(len(rules) + 1)], axis=-1)


def _runner_up(
    chosen: int,
    holds: Bool[np.ndarray, " rule"],
    nearness: Float[np.ndarray, " rule"],
    rules: Sequence[Rule],
) -> tuple[str, bool]:
    """The next label that holds, or the one nearest to its threshold; and which of the two."""
    others = np.arange(len(rules)) != chosen
    if (holds & others).any():
        return rules[int(np.argmax(holds & others))].label, True
    near = np.where(others & ~np.isnan(nearness), nearness, -np.inf)
    return (rules[int(np.argmax(near))].label if np.isfinite(near).any() else ""), False


@dataclass(frozen=True)
class DependenceRule:
    """A kind of head is one whose whole interval of retention lies from `low` to `high`."""

    kind: str
    low: float
    high: float
    says: str


# Bounds of our choosing, as the thresholds are.
DEPENDENCE_RULES = (
    DependenceRule(
        "positional", -np.inf, 1 / 3, "most of the score goes with the layer's positional encoding"
    ),
    DependenceRule(
        "content",
        2 / 3,
        np.inf,
        "most of the score stays without it; the label *content* means something else",
    ),
    DependenceRule("mixed", -np.inf, np.inf, "part of it stays, or the data cannot tell"),
)


@dataclass(frozen=True)
class Dependence:
    """How much of a head's habit is left when positions are taken away.

    retention is (ablated - chance) / (intact - chance) of the label's metric: 0 is chance, 1 as
    strong as before. ci_low and ci_high bound its 95% paired bootstrap interval over sequences.
    kind is the first of `DEPENDENCE_RULES` that holds, "" (and NaN) where no position is attended
    to, and so there is nothing to lose: for the labels none and uniform, and for content, which is
    a share of what varies and rises by itself where positions no longer make scores vary.
    """

    kind: str
    retention: float
    ci_low: float
    ci_high: float


def dependence(label: str, intact: HeadScores, ablated: HeadScores, head: int) -> Dependence:
    """Whether a head's habit depends on the positional encoding that `ablated` is without.

    Args:
        label: the head's, with positions intact.
        intact: scores of the head's layer.
        ablated: those without positions, by a probe with the same seed that was given the same
            sequences in the same batches, so that their resamples are paired.
        head: its number in the layer.

    Returns:
        The kind of dependence and the retention (1 is all of the habit).

    Raises:
        ProbeError: for an unknown label, for scores of different sequences, and where the intact
            head scores no more than chance.
    """
    if label not in LABELS:
        raise ProbeError(f"no label {label!r}: there are {', '.join(LABELS)}")
    rule = next((rule for rule in RULES if rule.label == label), None)
    if rule is None or SHUFFLED_OFFSETS not in rule.nulls:
        return Dependence("", np.nan, np.nan, np.nan)
    at = (head, intact.column(rule.metric))
    if not intact.n[at] == ablated.n[at] > 0 or len(intact.replicates) != len(ablated.replicates):
        raise ProbeError(
            f"{rule.metric} was taken on {intact.n[at]} sequences with positions intact and on "
            f"{ablated.n[at]} ablated: give both the same sequences, and the probes one seed and "
            "one n_resamples"
        )
    habit = intact.value[at] - intact.chance[at]
    if habit <= 0:
        raise ProbeError(
            f"head {head} scores {intact.value[at]:.3g} on {rule.metric}, no more than chance: "
            "there is nothing that it could lose"
        )
    left = ablated.value[at] - ablated.chance[at]
    resampled = (ablated.replicates[:, *at] - ablated.chance[at]) / (
        intact.replicates[:, *at] - intact.chance[at]
    )
    retention = float(left / habit)
    low, high = share_interval(retention, resampled, int(intact.n[at]))
    kind = next(rule.kind for rule in DEPENDENCE_RULES if rule.low <= low and high <= rule.high)
    return Dependence(kind, retention, low, high)


def share_interval(
    value: float, resampled: Float[np.ndarray, " resample"], n: int
) -> tuple[float, float]:
    """The 95% interval of a share that is taken in resamples, drawn out since sequences are few.

    Args:
        value: the share over all sequences.
        resampled: the same in each resample, NaN where it holds no sequence.
        n: how many sequences there are.

    Returns:
        The lower and the upper bound, infinite for a single sequence.
    """
    if n < 2:
        return -math.inf, math.inf
    low, high = np.nanquantile(resampled, [_TAIL, 1 - _TAIL])
    few = few_sequences(_TAIL, n)
    return float(value + few * (low - value)), float(value + few * (high - value))
