"""Attention patterns for CircuitsVis: its script once per page, the data as escaped JSON.

CircuitsVis's own `local_src` carries the whole script in every view and puts token strings into it
as they are. Here the script is taken from the package once, and its `render` is called by the page
with data that never was part of a program.
"""

import re
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np

from experiments.report.encode import number, packed

MOST_TOKENS = 64
PATTERN_SCALE = 1000  # three digits after the point

# The end of CircuitsVis's own `render`, which keeps the root that React made to itself. A view
# whose root is lost can never be taken down, and at 128 tokens it holds megabytes.
_END_OF_RENDER = re.compile(
    r"(\.createRoot\(\w+\),\w+=[\w.$]+\.createElement\(\w+,\w+,?\w*\);)((\w+)\.render\(\w+\))\}"
)


def source() -> str:
    """CircuitsVis's script, which defines the global `CircuitsVis`; its `render` returns a root."""
    # Importing the package would import torch, which a page has no need of.
    file = distribution("circuitsvis").locate_file("circuitsvis/dist/cdn/iife.js")
    text = Path(str(file)).read_text(encoding="utf-8")
    # The map file is not on the page, and asking for it would be a request.
    text = text.replace("//# sourceMappingURL=iife.js.map", "")
    return _END_OF_RENDER.sub(r"\1\2;return \3}", text)


def attention_views(patterns: Mapping[str, Mapping[Any, np.ndarray]]) -> dict[str, Any]:
    """{variant: {layer: view}} of the first `MOST_TOKENS` tokens, as the page's script reads it.

    A view holds the number of heads, the number of tokens, whether the future is masked, the weight
    that gets the full colour, and the packed weights [head query key].
    """
    return {
        variant: {str(layer): _view(np.asarray(pattern)) for layer, pattern in layers.items()}
        for variant, layers in patterns.items()
    }


def _view(pattern: np.ndarray) -> dict[str, Any]:
    cropped = pattern[:, :MOST_TOKENS, :MOST_TOKENS].astype(np.float64)
    return {
        "heads": cropped.shape[0],
        "tokens": cropped.shape[-1],
        "causal": bool(np.all(np.triu(cropped, k=1) == 0)),
        "top": number(full_colour(cropped), 2),
        "weights": packed(cropped, PATTERN_SCALE),
    }


def full_colour(weights: np.ndarray) -> float:
    """The attention weight that gets the full colour.

    The first queries have few keys and so weights near one: they must not set the scale.
    """
    return max(0.01, float(np.quantile(weights, 0.99)))
