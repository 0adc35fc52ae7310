"""Planted models that know positions by two codes: either of them, both, or one after the other."""

import numpy as np
import torch
from jaxtyping import Float

from nope_interp.constructions.kazemnejad import POSITION
from nope_interp.constructions.planted.alone import last_mlp, vector_readers
from nope_interp.constructions.planted.parts import (
    ANSWERS,
    BEGIN_TOKEN,
    COUNTS,
    LENGTH,
    LOUD,
    N_VECTORS,
    VECTORS,
    answer,
    answer_by_vectors,
    counter_with_room,
    drawn_vectors,
    generator_of,
    learn_positions,
    mlp,
    nearness,
    without_counting,
)
from nope_interp.constructions.planted.task import (
    N_CTX,
    REDUNDANT,
    SITE,
    USED,
    Planted,
    truth,
)
from nope_interp.models.blocks import MLP

_T = np.arange(1, N_CTX)

# Of two codes that are both needed one tells the block of positions, the other the place in it.
_BLOCK = 8
_BLOCK_DEPTH = 6.0
_PLACE_DEPTH = 10.0
# Of two codes of which either suffices: nats for a position's distance, and how near to its number
# a count has to come.
_NEARNESS, _REACH = 8.0, 0.4
# A learned position is found by its cosine, which is 1 for its own and less than this for others.
_OTHERS = 0.7


def either(seed: int) -> Planted:
    """Counting and learned positions, whose logits are added: each alone gives the answer.

    Each tells how near an answer is: the logit falls with the square of the distance. Where the two
    contradict one another the answer is the position midway, which neither tells. The mean of all
    counts, or of all learned positions, tells none: a count does between `_REACH` about its number.
    """
    model = counter_with_room(seed, d_mlp=5 * (N_CTX - 1))
    vectors = drawn_vectors(N_VECTORS, generator_of(seed))
    learn_positions(model, vectors, VECTORS)
    near = -_NEARNESS * (_T[:, None] - _T) ** 2 / 2
    told = near[COUNTS.mean() != COUNTS]
    counts = COUNTS[COUNTS.mean() != COUNTS]
    values = np.concatenate([counts + end for end in (-_REACH, -_REACH / 2, _REACH / 2, _REACH)])
    answer(model, 1, POSITION, values, np.concatenate([0 * told, told, told, 0 * told]))
    first, reading = len(values), mlp(model, 1)
    units = slice(first, first + len(_T))
    with torch.no_grad():
        _find(reading, vectors, units)
        reading.out.weight[ANSWERS, units] = LOUD * torch.from_numpy(near.T).float()
    words = truth(smooth_trend=REDUNDANT, irregular_part=REDUNDANT)
    return Planted(
        "either of two",
        model,
        words,
        {SITE: words},
        "position",
        BEGIN_TOKEN,
        reads={
            "smooth trend": lambda model: [mlp(model, 1).out.weight[:, :first]],
            "irregular part": lambda model: [mlp(model, 1).out.weight[:, units]],
        },
    )


def both(seed: int) -> Planted:
    """Counting tells the block of eight positions, learned positions the place in a block."""
    model = counter_with_room(seed)
    block, place = np.divmod(_T, _BLOCK)
    shared = (place[:, None] == place) / (place[:, None] == place).sum(axis=1)
    drawn = torch.randn(N_CTX - 1, N_VECTORS, generator=generator_of(seed)).double().numpy()
    vectors = without_counting(drawn, shared)
    learn_positions(model, vectors, VECTORS)
    table = -_BLOCK_DEPTH * (block[:, None] != block)
    answer(model, 1, POSITION, COUNTS, table)
    answer_by_vectors(model, vectors, VECTORS, depth=_PLACE_DEPTH)
    words = truth(smooth_trend=USED, irregular_part=USED)
    reads = {"smooth trend": last_mlp, "irregular part": vector_readers(VECTORS)}
    return Planted("both of two", model, words, {SITE: words}, "position", BEGIN_TOKEN, reads=reads)


def one_after_the_other(seed: int) -> Planted:
    """Learned positions, which the first MLP makes a count of and takes away.

    Each of its ReLUs finds one learned position, by its cosine.
    """
    model = counter_with_room(seed)
    vectors = drawn_vectors(N_VECTORS, generator_of(seed))
    learn_positions(model, vectors, VECTORS)
    model.blocks[0].attn.W_V.data.zero_()
    into, n = mlp(model, 0), N_CTX - 1
    with torch.no_grad():
        for weight in into.parameters():
            weight.zero_()
        _find(into, vectors, slice(n))
        into.out.weight[POSITION, :n] = torch.from_numpy(COUNTS).float()
        into.out.weight[VECTORS, :n] = -LENGTH * torch.from_numpy(vectors.T).float()
    answer(model, 1, POSITION, COUNTS, nearness(COUNTS))
    at_first = truth(irregular_part=USED)
    return Planted(
        "one after the other",
        model,
        truth(smooth_trend=USED, irregular_part=USED),
        {"blocks.0.hook_resid_pre": at_first, SITE: truth(smooth_trend=USED)},
        "position",
        BEGIN_TOKEN,
        reads={
            "smooth trend": last_mlp,
            "irregular part": lambda model: [mlp(model, 0).into.weight[:, VECTORS]],
        },
    )


def _find(reading: MLP, vectors: Float[np.ndarray, "pos k"], units: slice) -> None:
    """Units that are 1 for the learned position of their own, 0 for others."""
    reading.into.weight[units, VECTORS] = torch.from_numpy(vectors).float() / (
        LENGTH * (1 - _OTHERS)
    )
    reading.into.bias[units] = -_OTHERS / (1 - _OTHERS)
