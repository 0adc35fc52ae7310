"""The page of one run of `nope-interp heads`: every head, with positions intact and ablated."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.report import circuits
from experiments.report.encode import nested, number, packed_patterns
from experiments.report.heads_data import CHANCE, HEAD_COLUMNS, HeadsReportData
from experiments.report.shell import (
    fill,
    marks,
    measurements_table,
    page_script,
    plotly,
    sortable,
    top_of,
)
from experiments.results.measurements import INTACT

# A CircuitsVis view of more is neither readable nor quick.
MOST_TOKENS = 128

# What the table of heads shows beside the metrics; the rest stands in the head's own panel and in
# the downloads.
_SHOWN = ("name", "layer", "label", "confidence", "q_value", "runner_up", "dependence", "retention")
_WORDS = ("label", "runner_up", "dependence", "ablated_label")
_LOSS_MARKS = ("value", "ci_low", "ci_high", "chance")


def render_heads(data: HeadsReportData) -> str:
    """The whole report as one HTML page: scripts, styles and numbers inside, no request made.

    Every string of `data` is shown as text whatever it holds, and a content security policy names
    the page's own scripts by their hashes, so that nothing else can run. Attention weights are kept
    to 1/255, of the first `MOST_TOKENS` tokens of each prompt.

    Args:
        data: what the page shows.

    Returns:
        The page.
    """
    has_patterns = any(len(patterns) for patterns in data.patterns.values())
    scripts = [plotly(), page_script("heads_panel.js", "heads.js")]
    if has_patterns:
        scripts.insert(1, circuits.bundle())
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
        "prompts": [[str(token) for token in prompt[:MOST_TOKENS]] for prompt in data.prompts],
        "patterns": {
            condition: [
                packed_patterns(np.asarray(pattern)[:, :, :MOST_TOKENS, :MOST_TOKENS])
                for pattern in data.patterns[condition]
            ]
            for condition in data.conditions
            if condition in data.patterns
        },
        "edges": [_edge(edge) for edge in data.edges],
        "table": measurements_table(data.measurements),
    }
    return fill(
        "heads.html",
        scripts,
        page_data,
        data,
        losses=_losses(data.losses),
        has_patterns=has_patterns,
        has_profiles=bool(profiles),
        cropped=any(len(prompt) > MOST_TOKENS for prompt in data.prompts),
        most_tokens=MOST_TOKENS,
    )


def labels_of(data: HeadsReportData) -> list[str]:
    """The labels in the order of the rules, then those that the rules do not name."""
    found = pd.concat([data.heads["label"], data.heads["ablated_label"]]).dropna()
    return list(dict.fromkeys([*(r["label"] for r in data.rules), *sorted(map(str, found))]))


def heads_table(data: HeadsReportData) -> dict[str, Any]:
    """The table of heads, each named as in L3H2, column by column."""
    heads = data.heads.sort_values(["layer", "head"], ignore_index=True)
    names = [f"L{layer}H{head}" for layer, head in zip(heads["layer"], heads["head"], strict=True)]
    order = [*HEAD_COLUMNS, *(c for c in heads.columns if c not in HEAD_COLUMNS)]
    frame = pd.concat([pd.Series(names, name="name", dtype="string"), heads[order]], axis=1)
    # A column of nothing but missing words would otherwise pass for numbers.
    frame = frame.astype(dict.fromkeys(_WORDS, "string"))
    shown = {*_SHOWN, *data.metrics}
    if len(data.conditions) > 1:
        shown.add("ablated_label")
    else:
        shown -= {"dependence", "retention"}
    return sortable(
        frame,
        shown=lambda name, distinct: name in shown,
        chosen=lambda name, distinct: name in ("layer", *_WORDS) and distinct > 1,
    )


def _frequencies(frequencies: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Each layer's frequencies from the highest to the lowest, and what its heads put on them."""
    if frequencies is None:
        return None
    radians = np.asarray(frequencies["radians_per_token"], dtype=np.float64)
    order = np.argsort(-radians, axis=1, kind="stable")  # layers of NaN stay as they are
    found = {"radians": nested(np.take_along_axis(radians, order, axis=1))}
    for name in ("query_norm", "key_norm"):
        norm = np.asarray(frequencies[name], dtype=np.float64)
        found[name] = nested(np.take_along_axis(norm, order[:, None, :], axis=2))
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
    top = top_of(losses, _LOSS_MARKS)
    groups: dict[str, list[dict[str, Any]]] = {}
    for loss in losses:
        row = dict(loss) | {
            "marks": marks(loss, _LOSS_MARKS, top),
            "role": "intact" if loss["positions"] == INTACT else "ablated",
        }
        groups.setdefault(str(loss["tokens"]), []).append(row)
    return [{"tokens": tokens, "rows": rows} for tokens, rows in groups.items()]
