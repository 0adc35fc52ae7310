"""Experiments: which models, which tokens, which probes; and everything a person touches.

Example:
    >>> from experiments import compare
    >>> comparison = compare("openai-community/gpt2", ablate="learned")  # doctest: +SKIP
    >>> comparison.headline, comparison.measurements  # doctest: +SKIP
    >>> comparison.write_report("report.html")  # doctest: +SKIP

What `_HOMES` lists is the public face; each name is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.comparison.compare import compare as compare
    from experiments.comparison.config import CompareConfig as CompareConfig
    from experiments.comparison.result import Comparison as Comparison
    from experiments.emergence.config import EmergenceConfig as EmergenceConfig
    from experiments.emergence.watch import watch_emergence as watch_emergence
    from experiments.heads.classify import classify_heads as classify_heads
    from experiments.heads.config import HeadsConfig as HeadsConfig
    from experiments.heads.result import HeadClassification as HeadClassification
    from experiments.loaded import LoadedModel as LoadedModel
    from experiments.loaded import load as load
    from experiments.papers.reproduce import reproduce as reproduce
    from experiments.papers.result import Reproduction as Reproduction
    from experiments.sweeps.run import run_sweep as run_sweep
    from experiments.sweeps.runs import load_run as load_run
    from experiments.sweeps.sweep import read_sweep as read_sweep
    from experiments.variants.train import train as train

# Where each public name is defined, in the order of the alphabet.
_HOMES = {
    "CompareConfig": "experiments.comparison.config",
    "Comparison": "experiments.comparison.result",
    "EmergenceConfig": "experiments.emergence.config",
    "HeadClassification": "experiments.heads.result",
    "HeadsConfig": "experiments.heads.config",
    "LoadedModel": "experiments.loaded",
    "Reproduction": "experiments.papers.result",
    "classify_heads": "experiments.heads.classify",
    "compare": "experiments.comparison.compare",
    "load": "experiments.loaded",
    "load_run": "experiments.sweeps.runs",
    "read_sweep": "experiments.sweeps.sweep",
    "reproduce": "experiments.papers.reproduce",
    "run_sweep": "experiments.sweeps.run",
    "train": "experiments.variants.train",
    "watch_emergence": "experiments.emergence.watch",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'experiments' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
