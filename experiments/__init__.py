"""Experiments: which models, which tokens, which probes; and everything a person touches.

Example:
    >>> from experiments import CompareConfig, compare
    >>> comparison = compare(CompareConfig())    # trains and reads the embedded model
    >>> print(comparison.headline)               # what each model's position can be read from
    >>> comparison.measurements                  # the numbers, one per row
    >>> comparison.write_report("report.html")   # the page

    >>> from experiments import HeadsConfig, classify_heads
    >>> found = classify_heads(HeadsConfig(model="openai-community/gpt2", ablate="learned"))
    >>> found.heads                              # one row per head
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.compare_config import CompareConfig
    from experiments.heads import HeadClassification, classify_heads
    from experiments.heads_config import HeadsConfig
    from experiments.hypotheses import Comparison, compare

# Where each name is defined.
_HOMES = {
    "CompareConfig": "compare_config",
    "Comparison": "hypotheses",
    "HeadClassification": "heads",
    "HeadsConfig": "heads_config",
    "classify_heads": "heads",
    "compare": "hypotheses",
}

__all__ = [
    "CompareConfig",
    "Comparison",
    "HeadClassification",
    "HeadsConfig",
    "classify_heads",
    "compare",
]


def __getattr__(name: str) -> Any:
    # Loaded on first use: importing a submodule such as the command line must stay fast.
    if name not in _HOMES:
        raise AttributeError(f"module 'experiments' has no attribute {name!r}")
    return getattr(import_module(f"experiments.{_HOMES[name]}"), name)
