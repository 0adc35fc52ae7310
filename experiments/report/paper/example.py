"""One sequence in a paper's style: where a probe puts its tokens, and what heads look at."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawn
from matplotlib.patches import Rectangle

from experiments.report import lookup
from experiments.report.circuits import MOST_TOKENS, full_colour
from experiments.report.data import ReportData
from experiments.report.paper.drawing import (
    COLOURS,
    PAGE,
    Drawing,
    attention_maps,
    size_of_maps,
    visible,
)

_PER_ROW = 16


def _last_layer(data: ReportData, what: str) -> tuple[str, str, Any] | None:
    """The model in question, its last layer, and what the example holds of it."""
    kept = data.example.get(what, {})
    for variant in lookup.variants_of(data):
        for layer in reversed(kept.get(variant, {})):
            return variant, str(layer), kept[variant][layer]
    return None


def of_strip(data: ReportData) -> Drawing | None:
    """Under each token the position that a probe of the last layer recovers; None without one."""
    found = _last_layer(data, "predictions")
    if found is None:
        return None
    variant, layer, predicted = found
    tokens = [visible(str(token)) for token in data.example["tokens"]]
    title = f"{variant}, {layer}: token, and the position that a probe recovers"
    inches = (PAGE, 0.4 + 0.34 * -(-len(tokens) // _PER_ROW))
    return Drawing("strip", lambda drawn: _strip(drawn, title, tokens, predicted), inches)


def _strip(drawn: Drawn, title: str, tokens: list[str], predicted: Any) -> None:
    axes = drawn.subplots()
    axes.set_title(title, loc="left")
    for at, (token, guess) in enumerate(zip(tokens, predicted, strict=True)):
        row, column = divmod(at, _PER_ROW)
        near = 0.0 if guess is None else max(0.0, 1 - 4 * abs(guess - at) / len(tokens))
        box = Rectangle((column, row), 0.94, 0.9, facecolor=COLOURS[0], alpha=0.6 * near)
        axes.add_patch(box)
        told = "–" if guess is None else f"{guess:.0f}"
        axes.text(column + 0.47, row + 0.3, token, ha="center", va="center", fontsize=6)
        axes.text(column + 0.47, row + 0.68, told, ha="center", va="center", fontsize=5)
    axes.set_xlim(0, _PER_ROW)
    axes.set_ylim(-(-len(tokens) // _PER_ROW), 0)
    axes.set_axis_off()


def of_attention(data: ReportData) -> Drawing | None:
    """What each head of the last layer looks at; None without attention patterns."""
    found = _last_layer(data, "patterns")
    if found is None:
        return None
    variant, layer, pattern = found
    heads = np.asarray(pattern, dtype=np.float64)[:, :MOST_TOKENS, :MOST_TOKENS]
    maps = [(f"{variant}, L{layer}H{h}", weights) for h, weights in enumerate(heads)]
    tokens = [visible(str(token)) for token in data.example["tokens"][:MOST_TOKENS]]
    top, inches = full_colour(heads), size_of_maps(len(maps))
    return Drawing("attention", lambda drawn: attention_maps(drawn, maps, tokens, top), inches)
