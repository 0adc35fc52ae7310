"""All heads of a model scored on one text: what time and memory are measured of."""

from functools import partial

from torch import Tensor

from nope_interp.hooked_model import HookedModel
from nope_interp.positions.layers import layer_positions
from nope_interp.sites import pattern_hook
from nope_interp.streams import stream
from probes.heads.detectors import HeadProbe


def score_heads(model: HookedModel, tokens: Tensor, *, in_blocks: bool) -> None:
    """Read the text once; the scores are not looked at."""
    probes = [HeadProbe(window=layer.window) for layer in layer_positions(model)]
    listeners = {
        pattern_hook(layer): partial(probe.read_text, length=tokens.shape[1])
        for layer, probe in enumerate(probes)
    }
    stream(model, tokens, listeners, in_blocks=in_blocks, until=[*listeners][-1])
