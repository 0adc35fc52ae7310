"""Random models, and sequences of tokens that are all different."""

import dataclasses
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from nope_interp.models.config import TransformerConfig


def drawn(base: TransformerConfig, seed: int, **changes: Any) -> TransformerConfig:
    return dataclasses.replace(base, seed=seed, **changes)


def distinct_tokens(
    config: TransformerConfig, count: int, length: int
) -> Int[Tensor, "sequence pos"]:
    """Sequences without a token that comes twice, other ones for each seed."""
    generator = torch.Generator().manual_seed(config.seed)
    return torch.rand(count, config.d_vocab, generator=generator).argsort(dim=1)[:, :length]
