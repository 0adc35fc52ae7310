"""A loaded model's positions switched off, for checkpoints that were trained without them."""

from typing import Any

import torch
from torch import Tensor, nn

from nope_interp.positions.layers import WITHOUT, family_encoding


class _Unrotated(nn.Module):
    """In the place of a rotary embedding: every angle is 0, and nothing is scaled.

    A rotation by 0 leaves queries and keys as they are to the bit.
    """

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.rotary = rotary

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        cos, sin = self.rotary(*args, **kwargs)
        return torch.ones_like(cos), torch.zeros_like(sin)


def switch_off(model: Any) -> None:
    """Leave a Hugging Face model without its rotary or learned positions, and say so in its config.

    Args:
        model: before a bridge is made of it.
    """
    config = model.config
    setattr(config, WITHOUT, True)
    if family_encoding(config) == "learned":
        _zero_tables(model)
        return
    for parent in list(model.modules()):
        rotary = getattr(parent, "rotary_emb", None)
        if isinstance(rotary, nn.Module):
            parent.rotary_emb = _Unrotated(rotary)


@torch.no_grad()
def _zero_tables(model: Any) -> None:
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in ("wpe", "embed_positions"):
            module.weight.zero_()
