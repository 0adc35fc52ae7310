"""Sequences of tokens that are all different."""

import torch
from jaxtyping import Int
from torch import Tensor

from nope_interp.models.config import TransformerConfig


def distinct_tokens(
    config: TransformerConfig, count: int, length: int
) -> Int[Tensor, "sequence pos"]:
    """Sequences without a token that comes twice, other ones for each seed."""
    generator = torch.Generator().manual_seed(config.seed)
    return torch.rand(count, config.d_vocab, generator=generator).argsort(dim=1)[:, :length]
