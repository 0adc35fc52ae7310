"""Experiments: which models, which tokens, which probes; and everything a person touches.

Example:
    >>> from experiments import CompareConfig, compare
    >>> comparison = compare(CompareConfig())    # trains and reads the embedded model
    >>> print(comparison.headline)               # what each model's position can be read from
    >>> comparison.measurements                  # the numbers, one per row
    >>> comparison.write_report("report.html")   # the page
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.compare_config import CompareConfig
    from experiments.hypotheses import Comparison, compare

__all__ = ["CompareConfig", "Comparison", "compare"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: importing a submodule such as the command line must stay fast.
    if name == "CompareConfig":
        from experiments.compare_config import CompareConfig

        return CompareConfig
    if name in ("Comparison", "compare"):
        from experiments import hypotheses

        return getattr(hypotheses, name)
    raise AttributeError(f"module 'experiments' has no attribute {name!r}")
