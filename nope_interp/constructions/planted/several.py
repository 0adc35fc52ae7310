"""Planted models that know positions by two codes: either of them, both, or one after the other."""

import numpy as np
import torch

from nope_interp.constructions.kazemnejad import POSITION
from nope_interp.constructions.planted.alone import last_mlp, vector_readers
from nope_interp.constructions.planted.parts import (
    BEGIN_TOKEN,
    COUNTS,
    DEPTH,
    LENGTH,
    N_VECTORS,
    VECTORS,
    answer,
    answer_by_table,
    answer_by_vectors,
    counter_with_room,
    drawn_vectors,
    generator_of,
    learn_positions,
    mlp,
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
from nope_interp.models.transformer import HookedTransformer

_T = np.arange(1, N_CTX)

# Of two codes that are both needed one tells the block of positions, the other the place in it.
_BLOCK = 8
_BLOCK_DEPTH = 6.0
_PLACE_DEPTH = 10.0
# A learned position is found by its cosine, which is 1 for its own and less than this for others.
_OTHERS = 0.7


def either(seed: int) -> Planted:
    """Counting and learned positions, whose logits are added: each alone gives the answer."""
    model = counter_with_room(seed)
    vectors = drawn_vectors(N_VECTORS, generator_of(seed))
    learn_positions(model, vectors, VECTORS)
    answer(model, 1, POSITION, COUNTS, COUNTS)
    answer_by_vectors(model, vectors, VECTORS, depth=DEPTH)
    return _of_both("either of two", model, REDUNDANT)


def both(seed: int) -> Planted:
    """Counting tells the block of eight positions, learned positions the place in a block."""
    model = counter_with_room(seed)
    block, place = np.divmod(_T, _BLOCK)
    shared = (place[:, None] == place) / (place[:, None] == place).sum(axis=1)
    drawn = torch.randn(N_CTX - 1, N_VECTORS, generator=generator_of(seed)).double().numpy()
    vectors = without_counting(drawn, shared)
    learn_positions(model, vectors, VECTORS)
    table = -_BLOCK_DEPTH * (block[:, None] != block)
    answer_by_table(model, 1, POSITION, COUNTS, table)
    answer_by_vectors(model, vectors, VECTORS, depth=_PLACE_DEPTH)
    return _of_both("both of two", model, USED)


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
        # 1 for its own position, 0 for others.
        found = torch.from_numpy(vectors).float()
        into.into.weight[:n, VECTORS] = found / (LENGTH * (1 - _OTHERS))
        into.into.bias[:n] = -_OTHERS / (1 - _OTHERS)
        into.out.weight[POSITION, :n] = torch.from_numpy(COUNTS).float()
        into.out.weight[VECTORS, :n] = -LENGTH * found.T
    answer(model, 1, POSITION, COUNTS, COUNTS)
    at_first = truth(positional_vectors=USED)
    return Planted(
        "one after the other",
        model,
        truth(counting=USED, positional_vectors=USED),
        {"blocks.0.hook_resid_pre": at_first, SITE: truth(counting=USED)},
        "position",
        BEGIN_TOKEN,
        reads={
            "counting": last_mlp,
            "positional vectors": lambda model: [mlp(model, 0).into.weight[:, VECTORS]],
        },
    )


def _of_both(kind: str, model: HookedTransformer, word: str) -> Planted:
    words = truth(counting=word, positional_vectors=word)
    reads = {"counting": last_mlp, "positional vectors": vector_readers(VECTORS)}
    return Planted(kind, model, words, {SITE: words}, "position", BEGIN_TOKEN, reads=reads)
