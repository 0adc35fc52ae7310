"""What mean attention scores say of position: of near and far keys, and beyond distance."""

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float

from experiments.results.findings import Array
from probes.adjacency import adjacency_a

Scores = Float[Array, "*row pos pos"]
"""Mean scores of queries and keys; those of keys that are not earlier never count."""


def nearer_share(scores: Scores) -> Float[Array, "*row"]:
    """The share of pairs of earlier keys of which the nearer scores higher; chance 0.5.

    Args:
        scores: any number of matrices.

    Returns:
        One share for each, from 0 to 1.
    """
    *rows, length, _ = scores.shape
    matrices = torch.from_numpy(scores.reshape(-1, length, length))
    return adjacency_a(matrices).numpy().reshape(rows)


def rise(scores: Scores) -> Float[Array, "*row"]:
    """Mean score of the nearer half of a query's earlier keys, minus that of the farther half.

    Args:
        scores: any number of matrices.

    Returns:
        For each, the mean over queries with two earlier keys or more, in units of a score.
    """
    by_query = [
        scores[..., query, query - query // 2 : query].mean(axis=-1)
        - scores[..., query, : query // 2].mean(axis=-1)
        for query in range(2, scores.shape[-1])
    ]
    return np.mean(by_query, axis=0)


def variation(scores: Float[Array, "unit *layer pos pos"]) -> Float[Array, "unit *layer 2"]:
    """How much the scores of earlier keys vary, and how much of it distance does not explain.

    The product of what one unit's mean scores show with what the others' show, so that the noise of
    few draws has no share in it on average.

    Args:
        scores: mean scores of independent units, two or more; of two there is one product, which
            has no interval.

    Returns:
        For each unit the sum of products of deviations from the mean, and of deviations from the
        mean of their distance.
    """
    diagonals = [np.diagonal(scores, -k, -2, -1) for k in range(1, scores.shape[-1])]
    whole = _product(np.concatenate(diagonals, axis=-1))
    beyond = np.sum([_product(of_distance) for of_distance in diagonals], axis=0)
    return np.stack((whole, beyond), axis=-1)


def _product(pairs: Float[Array, "unit *layer pair"]) -> Float[Array, "unit *layer"]:
    """Each unit's deviations from its mean times those of the other units' mean, summed.

    Every product is of two units, so that what one unit changes is twice its own share (Hoeffding
    1948): so far each number stands from their mean, which stays as it is.
    """
    others = (pairs.sum(axis=0) - pairs) / (len(pairs) - 1)
    own, theirs = (x - x.mean(axis=-1, keepdims=True) for x in (pairs, others))
    summed: Array = (own * theirs).sum(axis=-1)
    return 2 * summed - summed.mean(axis=0)


def share_beyond(means: Float[Array, "row columns"]) -> Float[Array, "row layer"]:
    """The share of the variation that distance does not explain.

    Args:
        means: of `variation` over units, the two columns of one layer after those of another.

    Returns:
        One share for each row and layer.
    """
    whole, beyond = rearrange(means, "row (layer column) -> column row layer", column=2)
    shares: Array = beyond / whole
    return shares


def share_beyond_distance(scores: Float[Array, "unit layer pos pos"]) -> Float[Array, " layer"]:
    """`share_beyond` of each layer, over all units.

    Args:
        scores: mean scores of independent units.

    Returns:
        One share for each layer.
    """
    means = variation(scores).mean(axis=0)
    return share_beyond(rearrange(means, "layer column -> 1 (layer column)"))[0]
