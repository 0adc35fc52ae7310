"""Positional encodings, one class each, chosen by name.

An encoding acts at one of three points, and its base class says which: it adds to the embedding,
rotates queries and keys, or biases the attention scores. `NoPositions` acts in none.
"""

import math
from collections.abc import Callable

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from nope_interp.models.config import TransformerConfig
from nope_interp.models.initialization import Initializer

# Positions of queries and of keys, and what depends on both.
Queries = Int[Tensor, " query"]
Keys = Int[Tensor, " key"]
Bias = Float[Tensor, "head query key"]
# Cosines or sines of rotary angles, and the queries or keys that they turn.
Turns = Float[Tensor, "pos 1 half"]
PerHead = Float[Tensor, "batch pos head d_head"]

T5_BUCKETS = 32
T5_MAX_DISTANCE = 128


class PositionalEncoding(nn.Module):
    """What all encodings share: they are made from a config, and some have weights to draw."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()

    def initialize(self, draw: Initializer) -> None:
        """Draws the encoding's weights, if it has any."""


class NoPositions(PositionalEncoding):
    """No encoding at all: position can only come from the causal mask."""


class AddedToEmbedding(PositionalEncoding):
    """Adds row p of a table to the embedding of the token at position p."""

    table: Float[Tensor, "n_ctx d_model"]

    def forward(self, positions: Int[Tensor, " pos"]) -> Float[Tensor, "pos d_model"]:
        return self.table[positions]


class LearnedPositions(AddedToEmbedding):
    """A trained vector per position (Radford et al. 2019, GPT-2)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.table = nn.Parameter(torch.empty(config.n_ctx, config.d_model))

    def initialize(self, draw: Initializer) -> None:
        draw(self.table)


class SinusoidalPositions(AddedToEmbedding):
    """Sines then cosines of geometrically falling frequencies, amplitude 1.

    Vaswani et al. 2017, section 3.5, in the layout of Kazemnejad et al. 2023 (arXiv 2305.19466):
    all the sines come first, where Vaswani et al. interleave them.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        angles = _angles(config.n_ctx, _frequencies(config.d_model, 10000.0))
        self.register_buffer("table", torch.cat((angles.sin(), angles.cos()), -1), persistent=False)


class RotaryPositions(PositionalEncoding):
    """Rotates queries and keys (Su et al. 2021, arXiv 2104.09864, equation 34).

    Dimension k of the rotated ones pairs with dimension k + half (the layout of GPT-NeoX and
    Llama). With `rotary_kept` below 1 the lowest frequencies stand still: p-RoPE (Barbero et al.
    2024, arXiv 2410.06205). With `rotary_fraction` below 1 only a head's first dimensions rotate.
    """

    frequencies: Float[Tensor, " half"]
    """Radians per position, highest first."""
    cos: Float[Tensor, "n_ctx half"]
    sin: Float[Tensor, "n_ctx half"]

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        frequencies = _frequencies(config.rotary_dims, config.rotary_base)
        frequencies[round(config.rotary_kept * len(frequencies)) :] = 0
        angles = _angles(config.n_ctx, frequencies)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, positions: Int[Tensor, " pos"]) -> tuple[Turns, Turns]:
        """Cosines and sines to give to `rotate`, with an axis to broadcast over heads."""
        return self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)


def rotate(x: PerHead, cos: Turns, sin: Turns) -> PerHead:
    """Queries or keys turned by the angles of `RotaryPositions`; other dimensions stay.

    Args:
        x: `[batch pos head d_head]`.
        cos: of the angles, `[pos 1 half]`.
        sin: likewise.

    Returns:
        As `x`.
    """
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat((*turned, rest) if rest.shape[-1] else turned, dim=-1)


class ScoreBias(PositionalEncoding):
    """Adds to the attention scores a number that depends on the two positions alone."""

    def forward(self, queries: Queries, keys: Keys) -> Bias:
        raise NotImplementedError


class AlibiPositions(ScoreBias):
    """Minus a slope times the distance (Press et al. 2022, arXiv 2108.12409, section 3)."""

    slopes: Float[Tensor, " head"]

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        slopes = torch.tensor(alibi_slopes(config.n_heads))
        self.register_buffer("slopes", slopes, persistent=False)

    def forward(self, queries: Queries, keys: Keys) -> Bias:
        distance = (queries[:, None] - keys).abs()
        return -self.slopes[:, None, None] * distance


def alibi_slopes(n_heads: int) -> list[float]:
    """One slope per head, falling geometrically from 2 ** (-8 / n_heads) to 2 ** -8.

    Where `n_heads` is no power of two, the slopes of the power below come first, then every other
    slope of the power above (footnote 3 of the paper and its code; Bloom and MPT agree).

    Args:
        n_heads: at least 1.

    Returns:
        One slope a head, each from 0 to 1.
    """
    below = 2 ** (n_heads.bit_length() - 1)
    slopes = [2 ** (-8 * k / below) for k in range(1, below + 1)]
    between = [2 ** (-8 * k / (2 * below)) for k in range(1, 2 * below, 2)]
    return (slopes + between)[:n_heads]


class T5Positions(ScoreBias):
    """A trained number per head and bucket of distances (Raffel et al. 2020, section 2.1).

    All layers share the table. Bidirectional models keep half the buckets for later keys.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.causal = config.causal
        self.table = nn.Parameter(torch.empty(T5_BUCKETS, config.n_heads))

    def initialize(self, draw: Initializer) -> None:
        draw(self.table)

    def forward(self, queries: Queries, keys: Keys) -> Bias:
        buckets = t5_buckets(keys - queries[:, None], bidirectional=not self.causal)
        return rearrange(self.table[buckets], "query key head -> head query key")


def t5_buckets(offset: Int[Tensor, "*shape"], bidirectional: bool) -> Int[Tensor, "*shape"]:
    """T5's bucket, 0 to 31, of an offset key minus query.

    Half the buckets of a direction hold one distance each, the other half grow logarithmically up
    to distance 128; everything further shares the last. One-directional buckets put all later
    keys into bucket 0.

    Args:
        offset: key's position minus query's, any shape.
        bidirectional: whether later keys have buckets of their own.

    Returns:
        Bucket numbers, as `offset`.
    """
    count = T5_BUCKETS // 2 if bidirectional else T5_BUCKETS
    distance = offset.abs() if bidirectional else (-offset).clamp(min=0)
    exact = count // 2
    grown = (distance.clamp(min=exact).float() / exact).log() / math.log(T5_MAX_DISTANCE / exact)
    logarithmic = (exact + (grown * (count - exact)).long()).clamp(max=count - 1)
    bucket = torch.where(distance < exact, distance, logarithmic)
    return bucket + (offset > 0).long() * count if bidirectional else bucket


ENCODINGS: dict[str, Callable[[TransformerConfig], PositionalEncoding]] = {
    "none": NoPositions,
    "learned": LearnedPositions,
    "sinusoidal": SinusoidalPositions,
    "rotary": RotaryPositions,
    "alibi": AlibiPositions,
    "t5": T5Positions,
}


def _frequencies(dims: int, base: float) -> Float[Tensor, " half"]:
    # Single precision on purpose: pretrained rotary weights were trained with these roundings.
    return 1.0 / base ** (torch.arange(0, dims, 2).float() / dims)


def _angles(n_ctx: int, frequencies: Float[Tensor, " half"]) -> Float[Tensor, "n_ctx half"]:
    return torch.arange(n_ctx).float()[:, None] * frequencies
