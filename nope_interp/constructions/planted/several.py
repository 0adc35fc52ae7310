"""Planted models that know positions by two codes: either of them, both, or one after the other."""

import numpy as np
import torch

from nope_interp.constructions.kazemnejad import POSITION
from nope_interp.constructions.planted.alone import last_mlp, vector_readers
from nope_interp.constructions.planted.parts import (
    BEGIN_TOKEN,
    DEPTH,
    LENGTH,
    answer,
    answer_by_table,
    answer_by_vectors,
    counter,
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

_M = np.arange(2.0, N_CTX + 1)
_T = np.arange(1, N_CTX)

_D_MODEL = 160
# Learned positions, behind the content.
_VECTORS = slice(112, _D_MODEL)
_K = _VECTORS.stop - _VECTORS.start
# Of two codes that are both needed one tells the block of positions, the other the place in it.
_BLOCK = 8
_BLOCK_DEPTH = 6.0
_PLACE_DEPTH = 10.0
# A learned position is found by its cosine, which is 1 for its own and less than this for others.
_OTHERS = 0.7


def either(seed: int) -> Planted:
    """Counting and learned positions, whose logits are added: each alone gives the answer."""
    model = _counter_with_room(seed)
    vectors = drawn_vectors(_K, generator_of(seed))
    learn_positions(model, vectors, _VECTORS)
    answer(model, 1, POSITION, _M, _M)
    answer_by_vectors(model, vectors, _VECTORS, depth=DEPTH)
    return _of_both("either of two", model, REDUNDANT)


def both(seed: int) -> Planted:
    """Counting tells the block of eight positions, learned positions the place in a block."""
    model = _counter_with_room(seed)
    block, place = np.divmod(_T, _BLOCK)
    shared = (place[:, None] == place) / (place[:, None] == place).sum(axis=1)
    drawn = torch.randn(N_CTX - 1, _K, generator=generator_of(seed)).double().numpy()
    vectors = without_counting(drawn, shared)
    learn_positions(model, vectors, _VECTORS)
    table = -_BLOCK_DEPTH * (block[:, None] != block)
    answer_by_table(model, 1, POSITION, _M, table)
    answer_by_vectors(model, vectors, _VECTORS, depth=_PLACE_DEPTH)
    return _of_both("both of two", model, USED)


def one_after_the_other(seed: int) -> Planted:
    """Learned positions, which the first MLP makes a count of and takes away.

    Each of its ReLUs finds one learned position, by its cosine.
    """
    model = _counter_with_room(seed)
    vectors = drawn_vectors(_K, generator_of(seed))
    learn_positions(model, vectors, _VECTORS)
    model.blocks[0].attn.W_V.data.zero_()
    into, n = mlp(model, 0), N_CTX - 1
    with torch.no_grad():
        for weight in into.parameters():
            weight.zero_()
        # 1 for its own position, 0 for others.
        found = torch.from_numpy(vectors).float()
        into.into.weight[:n, _VECTORS] = found / (LENGTH * (1 - _OTHERS))
        into.into.bias[:n] = -_OTHERS / (1 - _OTHERS)
        into.out.weight[POSITION, :n] = torch.from_numpy(_M).float()
        into.out.weight[_VECTORS, :n] = -LENGTH * found.T
    answer(model, 1, POSITION, _M, _M)
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
            "positional vectors": lambda model: [mlp(model, 0).into.weight[:, _VECTORS]],
        },
    )


def _counter_with_room(seed: int) -> HookedTransformer:
    """A count, and no content where learned positions are to stand."""
    model = counter(seed, _D_MODEL, learned=True)
    with torch.no_grad():
        model.W_E[:, _VECTORS] = 0
    return model


def _of_both(kind: str, model: HookedTransformer, word: str) -> Planted:
    words = truth(counting=word, positional_vectors=word)
    reads = {"counting": last_mlp, "positional vectors": vector_readers(_VECTORS)}
    return Planted(kind, model, words, {SITE: words}, "position", BEGIN_TOKEN, reads=reads)
