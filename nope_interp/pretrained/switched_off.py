"""A loaded model's positions switched off, for checkpoints that were trained without them."""

from typing import Any

import torch
from torch import Tensor, nn

from nope_interp.positions.families import WITHOUT, family_encoding


class _Unrotated(nn.Module):
    """In the place of a rotary embedding: every angle is 0, and nothing is scaled.

    A rotation by 0 leaves queries and keys as they are to the bit.
    """

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.rotary = rotary

    def forward(self, *args: Any, **kwargs: Any) -> Tensor | tuple[Tensor, Tensor]:
        turns = self.rotary(*args, **kwargs)
        if isinstance(turns, Tensor):  # complex numbers
            return torch.ones_like(turns)
        cos, sin = turns
        return torch.ones_like(cos), torch.zeros_like(sin)


def rotary_modules(model: Any) -> list[Any]:
    """The modules of a Hugging Face model that have a rotary embedding of their own."""
    return [m for m in model.modules() if isinstance(getattr(m, "rotary_emb", None), nn.Module)]


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
    for module in rotary_modules(model):
        module.rotary_emb = _Unrotated(module.rotary_emb)
    for module in model.modules():
        table = getattr(module, "embed_positions", None)
        if isinstance(table, Tensor):  # GPT-J's and CodeGen's sines, then cosines
            sin, cos = table.chunk(2, dim=-1)
            module.embed_positions = torch.cat((torch.zeros_like(sin), torch.ones_like(cos)), -1)


@torch.no_grad()
def _zero_tables(model: Any) -> None:
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in ("wpe", "embed_positions"):
            module.weight.zero_()
