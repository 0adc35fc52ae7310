"""The page of one run of `nope-interp heads`: every head, with positions intact and ablated."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from experiments.report import shell
from experiments.report.encode import nested, number, numbers, packed_patterns
from experiments.report.finders import finder_columns, finder_groups
from experiments.results.found_by import SHARES
from experiments.results.heads import FOUND_BY, OF_PROMPTS_TOO
from experiments.results.measurements import INTACT
from nope_interp.errors import UserError

# Beside the conditions, `offset_profiles` may hold what a head without preference would show.
CHANCE = "chance"

# The scripts that draw one head, here and on the live page.
LOOK_OF_HEADS = ("heads_look.js", "heads_attention.js")

# The name of an array by head, itself, and the sizes of its axes after [layer head], None for any.
_Drawn = tuple[str, np.ndarray, tuple[int | None, ...]]

# Half-precision weights may pass 1, and a hidden cell zero, by this much.
_ROUNDING = 1e-2


@dataclass(frozen=True)
class HeadsReportData:
    """Everything that the heads page shows; the page computes nothing beyond it.

    `conditions` is ("intact",) or ("intact", the ablation's name). `heads` has one row for each
    layer and head, as `experiments.results.heads.heads_table` gives it, with, for each metric m of
    `metrics`, m (positions intact), m_low, m_high, m_chance and m_ablated; m_ablated_low and
    m_ablated_high are shown where they are there. Any number may be NaN and any word missing.
    `finders` is what `experiments.results.found_by.finders_table` gives, `finding` what is said of
    it: a sentence for each token that heads look at, or why there is none.

    Arrays by layer are of the layers that `heads` has, in order: some of a hybrid have no heads.
    `losses` are in nats per token. `offset_profiles` holds the mean attention weight at each
    distance from query to key, {condition: [layer head offset]}, and may hold "chance": [offset].
    `frequencies` is None without rotary positions, else radians_per_token [layer freq], query_norm
    and key_norm [layer head freq], with NaN for layers that do not rotate. `patterns` holds one
    [layer head query key] array for each prompt, {condition: [prompt ...]}; `edges` K-composition
    scores of head pairs with their chance level; `rules` the classification table, `own_rules` the
    user's own; `settling` what `experiments.results.heads.settling` gives. info is JSON-able; its
    "command" and "notes" are shown apart from the rest. headline answers in one sentence; needing
    says which heads need positions, "" where none is known to; measured says what was read, and how
    well the model does there; brief says it in one line of a phone. task is "text", or that of a
    model whose losses are over prompts too.

    Raises:
        UserError: an array has another shape than the heads and prompts ask for, or a pattern is no
            causal attention: the run's files were damaged, or are of different runs.
    """

    title: str
    headline: str
    needing: str
    measured: str
    brief: str
    measurements: pd.DataFrame
    heads: pd.DataFrame
    finders: pd.DataFrame
    finding: Sequence[str]
    metrics: Sequence[str]
    conditions: Sequence[str]
    losses: Sequence[Mapping[str, Any]]
    offset_profiles: Mapping[str, np.ndarray]
    frequencies: Mapping[str, Any] | None
    prompts: Sequence[Sequence[str]]
    patterns: Mapping[str, Sequence[np.ndarray]]
    edges: Sequence[Mapping[str, Any]]
    settling: Sequence[Mapping[str, Any]]
    rules: Sequence[Mapping[str, str]]
    own_rules: Sequence[Mapping[str, str]]
    info: Mapping[str, Any]
    task: str = "text"

    def __post_init__(self) -> None:
        n_heads = 1 + int(self.heads["head"].max()) if len(self.heads) else 0
        sizes = (self.heads["layer"].nunique(), n_heads)
        for name, array, rest in self._by_head():
            shape = np.shape(array)
            few = any(size < least for size, least in zip(shape, sizes, strict=False))
            if few or len(shape) != 2 + len(rest) or (None not in rest and shape[2:] != rest):
                raise _damaged(name, f"has shape {shape}")
        for name, pattern, _ in self._patterns():
            if not ((pattern >= -_ROUNDING) & (pattern <= 1 + _ROUNDING)).all():
                raise _damaged(name, "holds weights outside 0 to 1")
            if (np.triu(pattern, k=1) > _ROUNDING).any():
                raise _damaged(name, "attends to later tokens")

    def _by_head(self) -> Iterator[_Drawn]:
        for condition, profile in self.offset_profiles.items():
            if condition != CHANCE:
                yield f"offset_profile/{condition}", profile, (None,)
        if self.frequencies is not None:
            n_freq = np.shape(self.frequencies["radians_per_token"])[-1]
            for name in ("query_norm", "key_norm"):
                yield f"frequency/{name}", self.frequencies[name], (n_freq,)
        yield from self._patterns()

    def _patterns(self) -> Iterator[_Drawn]:
        for condition, patterns in self.patterns.items():
            for i, (pattern, tokens) in enumerate(zip(patterns, self.prompts, strict=True)):
                yield f"pattern/{condition}/{i}", pattern, (len(tokens), len(tokens))


def _damaged(name: str, how: str) -> UserError:
    return UserError(
        f"the array {name!r} {how}, which does not fit the run's table of heads and prompts: "
        "delete the run folder and run the command again."
    )


# A CircuitsVis view of more is neither readable nor quick.
MOST_TOKENS = 128
# More attention weights would make the page too heavy: prompts are cut, then left out.
_MOST_WEIGHTS = 2_400_000
_LEAST_TOKENS = 64

# What the table of heads shows beside the metrics; the rest stands in the head's own panel and in
# the downloads.
_SHOWN = (
    "name",
    "layer",
    "label",
    "confidence",
    "q_value",
    "runner_up",
    "dependence",
    "retention",
    "own_label",
)
_WORDS = (
    "label",
    "runner_up",
    "dependence",
    "ablated_label",
    "own_label",
    "own_ablated_label",
    *FOUND_BY.values(),
)
_LOSS_MARKS = ("value", "ci_low", "ci_high", "chance")


def render_heads(data: HeadsReportData) -> str:
    """The whole report as one HTML page: scripts, styles and numbers inside, no request made.

    Every string of `data` is shown as text whatever it holds, and a content security policy names
    the page's own scripts by their hashes, so that nothing else can run. Attention weights are kept
    to 1/255, of at most the first `MOST_TOKENS` tokens of each prompt, and of as many prompts as a
    page can carry.

    Args:
        data: what the page shows.

    Returns:
        The page.
    """
    has_patterns = any(len(patterns) for patterns in data.patterns.values())
    libraries = [shell.PLOTLY, *([shell.CIRCUITS] if has_patterns else [])]
    n_prompts, n_tokens = _carried(data)
    prompts = [[str(token) for token in prompt[:n_tokens]] for prompt in data.prompts[:n_prompts]]
    profiles = {
        condition: nested(data.offset_profiles[condition])
        for condition in data.conditions
        if condition in data.offset_profiles
    }
    page_data = {
        "conditions": list(map(str, data.conditions)),
        "metrics": list(map(str, data.metrics)),
        "labels": labels_of(data),
        "heads": heads_table(data),
        "profiles": profiles,
        "chance": nested(data.offset_profiles[CHANCE]) if CHANCE in data.offset_profiles else None,
        "frequencies": _frequencies(data.frequencies),
        "prompts": prompts,
        "patterns": {
            condition: [
                packed_patterns(np.asarray(pattern)[:, :, :n_tokens, :n_tokens])
                for pattern in data.patterns[condition][:n_prompts]
            ]
            for condition in data.conditions
            if condition in data.patterns
        },
        "settling": [
            dict(line) | {name: numbers(line[name]) for name in ("share", "chance")}
            for line in data.settling
        ],
        "edges": [_edge(edge) for edge in data.edges],
        "finders": finder_columns(data.finders),
        "table": shell.measurements_table(data.measurements),
    }
    return shell.fill(
        "heads.html",
        shell.page_script(*LOOK_OF_HEADS, "heads_panel.js", "heads.js"),
        libraries,
        page_data,
        data,
        losses=_losses(data.losses),
        prompts_too=OF_PROMPTS_TOO,
        has_patterns=has_patterns,
        has_profiles=bool(profiles),
        gists=_gists(data),
        finders=finder_groups(data.finders, data.finding),
        share_words=SHARES,
        own_command=data.info["command"] + ("" if data.own_rules else " --rules rules.toml"),
        own_prompt=f"{data.info['command']} --prompt 'A text of your own.'",
        n_left_out=len(data.prompts) - n_prompts,
        cropped=any(len(prompt) > n_tokens for prompt in data.prompts),
        most_tokens=n_tokens,
    )


def _carried(data: HeadsReportData) -> tuple[int, int]:
    """How many prompts, and how many tokens of each, the page shows."""
    n_prompts, each = len(data.prompts), len(data.heads) * len(data.patterns)
    longest = min(MOST_TOKENS, max(map(len, data.prompts), default=0))

    def fits(n_prompts: int, n_tokens: int) -> bool:
        return n_prompts * each * n_tokens * (n_tokens + 1) // 2 <= _MOST_WEIGHTS

    n_tokens = min(longest, _LEAST_TOKENS)
    while n_prompts > 1 and not fits(n_prompts, n_tokens):
        n_prompts -= 1
    while n_tokens > 2 and not fits(n_prompts, n_tokens):
        n_tokens -= 1
    while n_tokens < longest and fits(n_prompts, n_tokens + 1):
        n_tokens += 1
    return n_prompts, n_tokens


def _gists(data: HeadsReportData) -> dict[str, str]:
    """One line under the title of each part, which says what is inside before it is opened."""
    ablated = len(data.conditions) > 1
    return {
        "head": "What it attends to, token by token, and its numbers.",
        "heads": data.needing
        or f"{len(data.heads)} heads: labels, scores, intervals; to sort, filter and save.",
        "finders": next(iter(data.finding), ""),
        "loss": "Next-token loss with positions intact"
        + (" and taken away." if ablated else "; none were taken away in this run."),
        "frequencies": "How much of its queries and keys each head puts on each frequency.",
        "circuit": f"{len(data.edges)} pairs of heads, and how strongly one can feed the other.",
        "settling": "Share of the heads that have their final label after fewer sequences.",
        "rules": "Each label, its rule, and what the rule is tested against.",
    }


def labels_of(data: HeadsReportData) -> list[str]:
    """The labels in the order of the rules, then those that the rules do not name."""
    kept = [name for name in ("label", "ablated_label", "own_label") if name in data.heads]
    found = pd.concat([data.heads[name] for name in kept]).dropna()
    named = [rule["label"] for rule in (*data.rules, *data.own_rules)]
    return list(dict.fromkeys([*named, *sorted(map(str, found))]))


def heads_table(data: HeadsReportData) -> dict[str, Any]:
    """The table of heads, each named as in L3H2, column by column."""
    heads = data.heads.sort_values(["layer", "head"], ignore_index=True)
    names = [f"L{layer}H{head}" for layer, head in zip(heads["layer"], heads["head"], strict=True)]
    frame = pd.concat([pd.Series(names, name="name", dtype="string"), heads], axis=1)
    # A column of nothing but missing words would otherwise pass for numbers.
    words = [name for name in _WORDS if name in frame]
    frame = frame.astype(dict.fromkeys(words, "string"))
    shown = {*_SHOWN, *data.metrics}
    if len(data.conditions) > 1:
        shown.add("ablated_label")
    else:
        shown -= {"dependence", "retention"}
    return shell.sortable(
        frame,
        shown=lambda name, distinct: name in shown,
        chosen=lambda name, distinct: name in ("layer", *_WORDS) and distinct > 1,
    )


def _frequencies(frequencies: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Each layer's frequencies from the highest to the lowest, and what its heads put on them."""
    if frequencies is None:
        return None
    return {name: nested(array) for name, array in highest_first(frequencies).items()}


def highest_first(frequencies: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Each layer's frequencies from the highest to the lowest.

    Args:
        frequencies: as `HeadsReportData` has them.

    Returns:
        radians [layer freq], and query_norm and key_norm [layer head freq] in the same order.
    """
    radians = np.asarray(frequencies["radians_per_token"], dtype=np.float64)
    order = np.argsort(-radians, axis=1, kind="stable")  # layers of NaN stay as they are
    found = {"radians": np.take_along_axis(radians, order, axis=1)}
    for name in ("query_norm", "key_norm"):
        norm = np.asarray(frequencies[name], dtype=np.float64)
        found[name] = np.take_along_axis(norm, order[:, None, :], axis=2)
    return found


def _edge(edge: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "from": f"L{edge['from_layer']}H{edge['from_head']}",
        "to": f"L{edge['to_layer']}H{edge['to_head']}",
        "score": number(edge["score"]),
        "chance": number(edge["chance"]),
    }


def _losses(losses: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The losses by kind of tokens, and where each number falls on one scale from zero."""
    top = shell.top_of(losses, _LOSS_MARKS)
    groups: dict[str, list[dict[str, Any]]] = {}
    for loss in losses:
        row = dict(loss) | {
            "marks": shell.marks(loss, _LOSS_MARKS, top),
            "role": INTACT if loss["positions"] == INTACT else "ablated",
        }
        groups.setdefault(str(loss["tokens"]), []).append(row)
    return [{"tokens": tokens, "rows": rows} for tokens, rows in groups.items()]
