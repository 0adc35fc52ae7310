"""One example sequence: where probes think its tokens stand, and what heads attend to in it."""

import numpy as np
from einops import rearrange
from jaxtyping import Int
from torch import Tensor

from experiments.comparison.result import PREFIX
from experiments.probing.measure import Reading
from experiments.probing.sites import Site
from experiments.results.measurements import FIRST_POSITION
from experiments.variants.variants import ModelVariant
from nope_interp.hooked_model import attention_layers
from nope_interp.sites import pattern_hook
from nope_interp.streams import Listener, stream
from probes.regression import LinearProbe

# Attention views of longer sequences are unreadable, and their pages heavy.
LONGEST = 64


def example_arrays(
    variant: ModelVariant, reading: Reading, tokens: Int[Tensor, " pos"]
) -> dict[str, np.ndarray]:
    """Predicted positions `[pos]` at each site of the residual stream, and patterns of each layer
    that has attention.

    Keys are `example/variant/prediction/site` and `example/variant/pattern/layer`.
    """
    found: dict[str, np.ndarray] = {}
    listeners: dict[str, Listener] = {}
    for site, probes in reading.probes.items():
        if site.hook.startswith("resid"):
            key = f"{PREFIX}/{variant.kind}/prediction/{_label(site)}"
            linear = next(probe for probe in probes if isinstance(probe, LinearProbe))
            listeners[site.name] = _predictor(linear, found, key)
    for layer in attention_layers(variant.model):
        key = f"{PREFIX}/{variant.kind}/pattern/{layer}"
        listeners[pattern_hook(layer)] = _keeper(found, key)
    stream(variant.model, rearrange(tokens, "pos -> 1 pos"), listeners)
    return found


def _label(site: Site) -> str:
    return "embedding" if site == Site(0, "resid_pre") else f"layer {site.layer} {site.hook}"


def _predictor(probe: LinearProbe, found: dict[str, np.ndarray], key: str) -> Listener:
    def listen(activations: Tensor) -> None:
        found[key] = probe.predict(activations[:, FIRST_POSITION:])[0].astype(np.float32)

    return listen


def _keeper(found: dict[str, np.ndarray], key: str) -> Listener:
    def listen(pattern: Tensor) -> None:
        found[key] = pattern[0].float().cpu().numpy()

    return listen
