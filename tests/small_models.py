"""Small random models of ours, tokens for them and a tokenizer, for the tests of the model."""

from typing import Any

import torch
from torch import Tensor

from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer

D_VOCAB, N_CTX = 40, 24


def model(double: bool = False, **changes: Any) -> HookedTransformer:
    """Two layers of three heads of width 8, weights so large that nothing hides in rounding."""
    sizes = {"n_layers": 2, "d_model": 24, "n_heads": 3, "d_vocab": D_VOCAB, "n_ctx": N_CTX}
    config = TransformerConfig.from_dict({**sizes, "init_scale": 0.3, **changes})
    built = HookedTransformer(config)
    return built.double() if double else built


def random_tokens(seed: int = 0, batch: int = 3, pos: int = 20) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(D_VOCAB, (batch, pos), generator=generator)


def distinct_tokens(seed: int, pos: int) -> Tensor:
    """One sequence in which no token comes twice."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(D_VOCAB, generator=generator)[None, :pos]


class LetterTokenizer:
    """Token 0 is "a", 1 is "b" and so on."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(token + ord("a")) for token in tokens)
