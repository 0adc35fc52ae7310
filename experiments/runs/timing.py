"""How long one sequence takes a model on this machine: a short measurement, for estimates alone."""

import time

import torch
from jaxtyping import Int
from torch import Tensor, nn

from nope_interp.hooked_model import HookedModel

# Enough to keep the machine busy, and few enough to take no time of their own.
_MOST = 8


def seconds_a_sequence(model: HookedModel | nn.Module, tokens: Int[Tensor, "batch pos"]) -> float:
    """How long a forward pass takes, for each sequence.

    Args:
        model: any, ours or of transformers.
        tokens: sequences as they will be read; the first few are.

    Returns:
        Seconds, after a pass that warms up.
    """
    few = tokens[:_MOST].to(next(iter(model.parameters())).device)
    with torch.inference_mode():
        model(few[:1])
        began = time.perf_counter()
        found = model(few)
        # On an accelerator the number is there when the work is done.
        float((found if isinstance(found, Tensor) else found.logits).sum())
        return (time.perf_counter() - began) / len(few)
