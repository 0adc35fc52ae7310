"""How long one sequence takes a model on this machine: a short measurement, for estimates alone."""

import time
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from nope_interp.hooked_model import HookedModel
from nope_interp.streams import stream

# How many forward passes a step of training takes as long as: backward is twice forward.
OF_A_STEP = 3
# Enough to keep the machine busy, and few enough to take no time of their own.
_MOST = 4
_LONG = 5.0
# A pass this short is taken several times, and the fastest counts: what else the machine does
# can hold it up for many times its length.
_SHORT = 0.5
_TIMES = 5


def seconds_a_sequence(model: HookedModel | nn.Module, tokens: Int[Tensor, "batch pos"]) -> float:
    """How long a forward pass takes, for each sequence.

    Of a model with hooks it is a pass without logits, as its activations are read: those of a large
    vocabulary take longer than all layers.

    Args:
        model: any, ours or of transformers.
        tokens: sequences as they will be read; the first few are.

    Returns:
        Seconds, of the fastest of several passes where they are short, after one that warms up.
    """
    few = tokens[:_MOST].to(next(iter(model.parameters())).device)
    with torch.inference_mode():
        warming = _pass(model, few[:1])
        # What takes so long needs no warming up, and is not to be waited for again.
        if warming > _LONG:
            return warming
        fastest = _pass(model, few)
        if fastest < _SHORT:
            fastest = min(fastest, *(_pass(model, few) for _ in range(_TIMES - 1)))
        return fastest / len(few)


def _pass(model: Any, tokens: Int[Tensor, "batch pos"]) -> float:
    began = time.perf_counter()
    if hasattr(model, "hook_dict"):
        # As it will be read: many tokens some queries at a time, without whole maps of attention.
        stream(model, tokens, {}, batch_size=len(tokens))
    else:
        model(tokens)
    if tokens.device.type != "cpu":
        # There the pass has ended when the work is done.
        torch.accelerator.synchronize()
    return time.perf_counter() - began
