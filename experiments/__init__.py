"""Experiments: which models, which tokens, which probes; and everything a person touches.

Example:
    >>> from experiments import CompareConfig, compare
    >>> comparison = compare(CompareConfig())  # doctest: +SKIP
    >>> print(comparison.headline)  # doctest: +SKIP
    >>> comparison.measurements  # doctest: +SKIP
    >>> comparison.write_report("report.html")  # doctest: +SKIP

    >>> from experiments import HeadsConfig, classify_heads
    >>> config = HeadsConfig(model="openai-community/gpt2", ablate="learned")
    >>> found = classify_heads(config)  # doctest: +SKIP
    >>> found.heads  # doctest: +SKIP

    >>> from experiments import run_sweep
    >>> sweep = run_sweep("seeds.yaml")  # doctest: +SKIP
    >>> sweep.measurements("cell.seed", "layer", "value")  # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.comparison.compare import compare
    from experiments.comparison.config import CompareConfig
    from experiments.comparison.result import Comparison
    from experiments.heads.classify import classify_heads
    from experiments.heads.config import HeadsConfig
    from experiments.heads.result import HeadClassification
    from experiments.sweeps.run import run_sweep
    from experiments.sweeps.sweep import Sweep, read_sweep

# Where each name is defined.
_HOMES = {
    "CompareConfig": "experiments.comparison.config",
    "Comparison": "comparison.compare",
    "HeadClassification": "heads.classify",
    "HeadsConfig": "heads.config",
    "Sweep": "sweeps.sweep",
    "classify_heads": "heads.classify",
    "compare": "comparison.compare",
    "read_sweep": "sweeps.sweep",
    "run_sweep": "sweeps.run",
}

__all__ = [
    "CompareConfig",
    "Comparison",
    "HeadClassification",
    "HeadsConfig",
    "Sweep",
    "classify_heads",
    "compare",
    "read_sweep",
    "run_sweep",
]


def __getattr__(name: str) -> Any:
    # Loaded on first use: importing a submodule such as the command line must stay fast.
    if name not in _HOMES:
        raise AttributeError(f"module 'experiments' has no attribute {name!r}")
    return getattr(import_module(f"experiments.{_HOMES[name]}"), name)
