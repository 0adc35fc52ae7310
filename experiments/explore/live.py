"""Scores and labels of heads at present: on the prompt, and on a few repeated random tokens.

They are what `heads` computes, by the same probes and rules, on far fewer tokens: without intervals
or tests, a rule holds where its score is above its threshold. A finished run says it surely.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from einops import repeat
from torch import Tensor

from experiments.explore.asked import Change
from experiments.explore.changed import changed
from experiments.explore.one_pass import PatternsOf, Repeated, Scores
from experiments.explore.playground import Playground
from nope_interp.sites import pattern_hook
from nope_interp.streams import stream
from nope_interp.tasks.sources import RepeatedSource, UniformSource
from probes.errors import ProbeError
from probes.head_rules import FEEDS, NONE, RULES, Rule
from probes.heads.detectors import FIRST_QUERY, HeadProbe, local_chance

# Of the prompt and of repeated tokens; the others need more tokens than there are.
_METRICS = (*FEEDS["text"], *FEEDS["repeated"])
# Repeated tokens: sequences, and tokens of the part that comes again.
_SEQUENCES, _PERIOD = 2, 24


def live_scores(playground: Playground, patterns: PatternsOf, change: Change | None) -> Scores:
    """Every detector's number for every head, NaN where tokens are too few or sums not one.

    Args:
        playground: whose model.
        patterns: of the prompt under the change.
        change: what the model is under; heads keep their own pattern on repeated tokens where they
            have another prompt's.

    Returns:
        `[layer head]`, by metric; NaN in layers without heads.

    Raises:
        UserError: as `changed`.
    """
    on_text = {
        layer: _numbers(playground, layer, partial(_read_text, patterns[layer]))
        for layer in playground.attending
    }
    return _by_metric(playground, on_text, FEEDS["text"]) | _on_repeated(playground, change)


def _by_metric(
    playground: Playground, found: dict[int, dict[str, np.ndarray]], metrics: Sequence[str]
) -> Scores:
    """`[layer head]` by metric, of what was found by layer."""
    cfg = playground.model.cfg
    scores = {name: np.full((cfg.n_layers, cfg.n_heads), np.nan) for name in metrics}
    for name, rows in scores.items():
        for layer, of_layer in found.items():
            rows[layer] = of_layer[name]
    return scores


def live_labels(playground: Playground, scores: Scores, n_tokens: int) -> list[list[str]]:
    """The first rule whose score is above its threshold, for each head of each layer.

    In short prompts, and behind short windows, most tokens are near: where equal weights reach its
    threshold no head is called local.

    Args:
        playground: whose model.
        scores: as from `live_scores`.
        n_tokens: of the prompt.

    Returns:
        Labels, `[layer][head]`.
    """
    return [
        [
            next(
                (rule.label for rule in rules if scores[rule.metric][layer, head] > rule.threshold),
                NONE,
            )
            for head in range(playground.heads_of(layer))
        ]
        for layer in range(playground.model.cfg.n_layers)
        for rules in [_telling(scores, n_tokens, playground.positions[layer].window)]
    ]


def _telling(scores: Scores, n_tokens: int, window: int | None) -> list[Rule]:
    """The rules on these scores whose thresholds equal weights do not reach."""
    chance = {"local": local_chance(n_tokens, window)} if n_tokens > FIRST_QUERY else {}
    return [
        rule
        for rule in RULES
        if rule.metric in scores and chance.get(rule.metric, 0.0) < rule.threshold
    ]


def _read_text(pattern: Tensor, probe: HeadProbe) -> None:
    # Twice, since a bootstrap takes two sequences at least; their mean is the one's.
    probe.read_text(repeat(pattern, "head query key -> 2 head query key"))


def _numbers(
    playground: Playground, layer: int, feed: Callable[[HeadProbe], None]
) -> dict[str, np.ndarray]:
    """What a probe of a layer finds; NaN where it refuses."""
    probe = HeadProbe(n_resamples=2, window=playground.positions[layer].window)
    try:
        feed(probe)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # two resamples have little spread
            found = probe.result()
    except ProbeError:  # too few tokens, or an attention sink: weights that do not sum to one
        return {name: np.full(playground.model.cfg.n_heads, np.nan) for name in _METRICS}
    return {name: found.value[:, found.column(name)] for name in _METRICS}


def _on_repeated(playground: Playground, change: Change | None) -> Scores:
    """Scores on repeated tokens, which are the same ones whatever the prompt: read once."""
    if change is not None:
        own = [head for head in change.head_changes if head.to != "other_prompt"]
        change = change.model_copy(update={"head_changes": own})
    key = "" if change is None or change.nothing else change.model_dump_json()
    return playground.repeated.get(
        key, lambda: Repeated(key, _read_repeated(playground, change))
    ).scores


def _read_repeated(playground: Playground, change: Change | None) -> Scores:
    source, begin = playground.variant.sources[1], playground.begin_id is not None
    assert isinstance(source, UniformSource)
    drawn = RepeatedSource(source.ids, playground.begin_id)
    length = min(2 * _PERIOD + begin, playground.model.cfg.n_ctx)
    period = drawn.period(length, begin_token=begin)
    tokens = drawn.sequences(_SEQUENCES, length, begin_token=begin, split="held_out", seed=0)
    rows: dict[int, dict[str, np.ndarray]] = {}

    def read(pattern: Tensor, layer: int) -> None:
        rows[layer] = _numbers(
            playground, layer, lambda probe: probe.read_repeated(pattern, period, begin)
        )

    layers = playground.attending
    listeners = {pattern_hook(layer): partial(read, layer=layer) for layer in layers}
    with changed(playground, change):
        stream(playground.model, tokens, listeners)
    return _by_metric(playground, rows, FEEDS["repeated"])
