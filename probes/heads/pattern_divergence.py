"""How far the attention of two models is apart, by the two of their heads that are nearest.

Two models have no order of heads in common, so a layer's distance is the smallest over pairs of
heads, one of each model (Kazemnejad et al. 2023, arXiv 2305.19466, the comparison of attention
patterns; the details are those of its public code, as summarised by others and not checked).
"""

from collections.abc import Callable

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

Weights = Float[Tensor, "*rows key"]
PerRow = Float[Tensor, "*rows"]
Patterns = Float[Tensor, "layer example head query key"]
Distances = Float[Tensor, "layer example source target"]
Divergence = Callable[[Tensor, Tensor], Tensor]


def jensen_shannon(p: Weights, q: Weights) -> PerRow:
    """(KL(p | m) + KL(q | m)) / 2 with m the mean of p and q, in nats: 0 to log 2 (Lin 1991).

    Args:
        p: weights of queries over keys; rows sum to 1.
        q: the same, over the same keys.

    Returns:
        One number for each query.
    """
    mean = (p + q) / 2
    return _entropy(mean) - (_entropy(p) + _entropy(q)) / 2


def from_mean(p: Weights, q: Weights) -> PerRow:
    """(KL(m | p) + KL(m | q)) / 2, the arguments the other way round, in nats.

    Unbounded: it grows with how little weight one side gives to what the other attends to. A weight
    of 0 counts as the smallest normal number of its precision.

    Args:
        p: weights of queries over keys; rows sum to 1.
        q: the same, over the same keys.

    Returns:
        One number for each query.
    """
    mean = (p + q) / 2
    least = torch.finfo(p.dtype).tiny
    cross = mean * (p.clamp(min=least).log() + q.clamp(min=least).log()) / 2
    return -_entropy(mean) - cross.sum(-1)


def head_distances(
    p: Patterns,
    q: Patterns,
    rows: Bool[Tensor, "example query"],
    divergence: Divergence = jensen_shannon,
) -> Distances:
    """Mean divergence over the chosen rows, for each head of p and each head of q.

    Args:
        p: those of one model, on all layers.
        q: those of another, on the same tokens.
        rows: which queries of each example count.
        divergence: of two weights, in nats.

    Returns:
        `[layer example head head]`, in nats: heads of p before heads of q.
    """
    sources = rearrange(p, "layer example head query key -> layer example head 1 query key")
    targets = rearrange(q, "layer example head query key -> layer example 1 head query key")
    by_row = divergence(*torch.broadcast_tensors(sources, targets))
    weights = rearrange(rows / rows.sum(dim=1, keepdim=True), "example query -> example 1 1 query")
    return (by_row * weights).sum(dim=-1)


def nearest_heads(distances: Distances) -> Float[Tensor, " example"]:
    """The smallest distance over all pairs of heads in a layer, mean over layers."""
    return distances.flatten(2).min(dim=-1).values.mean(dim=0)


def nearest_later_heads(distances: Distances) -> Float[Tensor, " example"]:
    """As `nearest_heads`, over pairs whose target has the larger number, as the public code has it.

    Needs two heads at least: with one there is no such pair, and the distance is infinite.
    """
    heads = torch.arange(distances.shape[-1])
    earlier = heads <= rearrange(heads, "head -> head 1")
    return nearest_heads(distances.masked_fill(earlier.to(distances.device), torch.inf))


def _entropy(p: Weights) -> PerRow:
    entropy: Tensor = torch.special.entr(p).sum(-1)
    return entropy
