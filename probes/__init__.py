"""What can be read from activations. Takes tensors; has never heard of a model.

Example:
    >>> import torch
    >>> from probes import LinearProbe
    >>> x = torch.randn(64, 16, 4, generator=torch.Generator().manual_seed(0))
    >>> positions = torch.arange(16)
    >>> x[..., 0] += positions                # activations [batch pos d_model] that know position
    >>> probe = LinearProbe()
    >>> probe.update(x[:48], positions)       # as often as there are batches to fit on
    >>> probe.evaluate(x[48:], positions)     # and held-out ones
    >>> score = probe.result()["linear"].score("mae")
    >>> score.ci_high < score.chance
    True
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probes.bootstrap import SequenceBootstrap as SequenceBootstrap
    from probes.codes.statistics import CodeStatistics as CodeStatistics
    from probes.errors import ProbeError as ProbeError
    from probes.estimators.ridge import RidgeRegressor as RidgeRegressor
    from probes.heads.detectors import HeadProbe as HeadProbe
    from probes.heads.labels import label_heads as label_heads
    from probes.nonlinear import TwoLayerProbe as TwoLayerProbe
    from probes.positional_vectors import PositionalVectorProbe as PositionalVectorProbe
    from probes.regression import LinearProbe as LinearProbe
    from probes.similarity import SimilarityProbe as SimilarityProbe
    from probes.streaming import StreamingProbe as StreamingProbe
    from probes.variance import VarianceProbe as VarianceProbe

# Where each name is defined, in the order of the alphabet.
_HOMES = {
    "CodeStatistics": "probes.codes.statistics",
    "HeadProbe": "probes.heads.detectors",
    "LinearProbe": "probes.regression",
    "PositionalVectorProbe": "probes.positional_vectors",
    "ProbeError": "probes.errors",
    "RidgeRegressor": "probes.estimators.ridge",
    "SequenceBootstrap": "probes.bootstrap",
    "SimilarityProbe": "probes.similarity",
    "StreamingProbe": "probes.streaming",
    "TwoLayerProbe": "probes.nonlinear",
    "VarianceProbe": "probes.variance",
    "label_heads": "probes.heads.labels",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    # Loaded on first use: importing a submodule must stay fast.
    if name not in _HOMES:
        raise AttributeError(f"module 'probes' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
