"""Mean squares of activations by position, on sequences of tokens that are all different."""

from collections.abc import Iterable
from functools import partial

import torch
from einops import reduce
from jaxtyping import Float, Int
from torch import Tensor

from experiments.results.findings import Array
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import Sequences
from nope_interp.streams import read_at


def distinct_tokens(config: TransformerConfig, count: int, length: int) -> Sequences:
    """Sequences without a token that comes twice, other ones for each seed."""
    generator = torch.Generator().manual_seed(config.seed)
    return torch.rand(count, config.d_vocab, generator=generator).argsort(dim=1)[:, :length]


def mean_squares(
    model: HookedTransformer,
    names: Iterable[str],
    seen: Int[Array, " point"],
    n_sequences: int,
    length: int,
) -> dict[str, Float[Array, " point"]]:
    """Of a component at these hooks, by the number of tokens seen."""
    reads = {name: partial(_mean_square, name, seen) for name in names}
    tokens = distinct_tokens(model.config, n_sequences, length)
    # One batch, so that what is made of it is the mean over all sequences.
    found = read_at(model, tokens, reads, batch_size=n_sequences)
    return {name: read for name, [read] in found.items()}


def _mean_square(
    name: str, seen: Int[Array, " point"], activations: Tensor
) -> Float[Array, " point"]:
    at = torch.from_numpy(seen - 1).to(activations.device)
    if name.endswith(("attn_scores", "pattern")):
        read = activations[:, :, at].double().cpu()
        # The law is of the m visible keys; a bidirectional query sees more.
        hidden = torch.arange(read.shape[-1]) >= torch.from_numpy(seen)[:, None]
        squares = read.masked_fill(hidden, 0).square().mean(dim=(0, 1)).sum(dim=-1)
        return squares.numpy() / seen
    squares = activations[:, at].double().cpu().flatten(2).square()
    return reduce(squares, "b q d -> q", "mean").numpy()
