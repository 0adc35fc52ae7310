"""Language models that tell the next token by where it stood before.

They read text in which words of `PERIOD` random tokens come again and again: the next token is the
one that stands a period before it. The second layer's head looks it up, and the unembedding tells
it. What it is found by differs: its distance, which a bias of attention knows and no activation
tells, or its position, which learned vectors or a count tell. In one model the distance itself
depends on the position: from `FARTHER_FROM` on words are shorter.

Similarity and variance tell too little to look a token up by: `latest` plants these.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int

from nope_interp.constructions.kazemnejad import BEGIN, POSITION, counting_config
from nope_interp.constructions.planted.language import (
    N_WINDOWS,
    PlantedLanguage,
    truth_on_text,
)
from nope_interp.constructions.planted.parts import (
    BEGIN_TOKEN,
    LENGTH,
    centred,
    drawn_vectors,
    generator_of,
    interpolate,
    learn_positions,
    like,
    mlp,
    silent,
)
from nope_interp.constructions.planted.task import N_CTX, USED, Weights
from nope_interp.models.config import Positions
from nope_interp.models.encodings import T5Positions
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import Sequences

# Tokens of a word; from a position on, of a shorter one, where a model has such.
PERIOD, SHORTER, FARTHER_FROM = 12, 7, 25
_D_VOCAB = 32
_N_VECTORS = 48
# Components of the stream, behind those of Theorem 1: what is told next, the token, its position,
# and the mean of earlier tokens.
_TOLD = slice(3, 3 + _D_VOCAB)
_TOKEN = slice(_TOLD.stop, _TOLD.stop + _D_VOCAB)
_VECTORS = slice(_TOKEN.stop, _TOKEN.stop + _N_VECTORS)
_POOLED = slice(_VECTORS.stop, _VECTORS.stop + _D_VOCAB)
_D_MODEL = _POOLED.stop + 1
# The first layer's head that averages, the second layer's that looks up.
_AVERAGING, _LOOKING = 0, 1
# In nats: by how much the score of the right token is above others', and the logit of what is told.
_SHARPNESS, _CERTAINTY = 14.0, 6.0
# How large 1/m stands in the stream; a mean of tokens, and how far it raises the logits of these.
_COUNT_SIZE, _POOLED_SIZE, _POOLED_LOGIT = 10.0, 12.0, 3.0

_VECTORS_READ: Mapping[str, Weights] = {
    "irregular part": lambda model: [model.blocks[1].attn.W_Q[_LOOKING, _VECTORS]]
}
_COUNT_WRITTEN: Mapping[str, Weights] = {
    "smooth trend": lambda model: [model.blocks[0].attn.W_V[_AVERAGING, BEGIN]]
}


def by_positions(seed: int) -> PlantedLanguage:
    """Learned positions: the head's queries ask for the vector of the position that they want."""
    return _known_by_vectors("looked up", _with_vectors(seed))


def by_positions_pre_norm(seed: int) -> PlantedLanguage:
    """The same behind norms, which divide all activations by nearly the same."""
    model = like(_with_vectors(seed), normalization="rms", norm_placement="pre")
    looking = model.blocks[1].attn
    norm = ((LENGTH**2 + 1) / _D_MODEL) ** 0.5
    with torch.no_grad():
        for weight in (looking.W_Q, looking.W_K, looking.W_V):
            weight *= norm
        model.W_U[_TOLD] *= norm
    return _known_by_vectors("looked up, pre-norm", model)


def by_positions_beside_a_count(seed: int) -> PlantedLanguage:
    """The same beside a count that nothing reads."""
    model = _with_vectors(seed)
    _count(model)
    return replace(_known_by_vectors("looked up, unread count", model), writes=_COUNT_WRITTEN)


def by_positions_beside_pooling(seed: int) -> PlantedLanguage:
    """The same beside the mean of earlier tokens, which raises the logits of all of these."""
    model = _with_vectors(seed)
    _pool(model)
    return _known_by_vectors("looked up, pooling", model)


def by_positions_farther_on(seed: int) -> PlantedLanguage:
    """Learned positions that also tell how far back the token stands: farther on it is nearer."""
    model = _with_vectors(seed, shorter=True)
    words = partial(_words, shorter=True)
    return replace(_known_by_vectors("looked up, nearer farther on", model), windows=words)


def by_a_count(seed: int) -> PlantedLanguage:
    """1/m, of which the first MLP makes a vector for each position: these are looked up."""
    model = _silent("none")
    vectors = drawn_vectors(_N_VECTORS, generator_of(seed))
    _count(model)
    _vectors_of_the_count(model, vectors)
    _look_up_by(model, vectors)
    words = truth_on_text(smooth_trend=USED, irregular_part=USED)
    reads: dict[str, Weights] = {
        "smooth trend": lambda model: [mlp(model, 0).into.weight[:, POSITION]],
        **_VECTORS_READ,
    }
    return PlantedLanguage("count looked up", model, words, _words, reads=reads)


def by_distance(seed: int) -> PlantedLanguage:
    """A bias of attention that is large at one distance. No activation tells a position."""
    return PlantedLanguage("distance", _with_bias(), truth_on_text(), _words)


def by_distance_beside_a_count(seed: int) -> PlantedLanguage:
    """The same beside a count that nothing reads."""
    model = _with_bias()
    _count(model)
    return PlantedLanguage(
        "distance, unread count", model, truth_on_text(), _words, writes=_COUNT_WRITTEN
    )


def by_distance_beside_vectors(seed: int) -> PlantedLanguage:
    """The same beside a count, and vectors made of it, that nothing else reads."""
    model = _with_bias()
    _count(model)
    _vectors_of_the_count(model, drawn_vectors(_N_VECTORS, generator_of(seed)))
    writes: dict[str, Weights] = {
        **_COUNT_WRITTEN,
        "irregular part": lambda model: list(mlp(model, 0).out.parameters()),
    }
    return PlantedLanguage(
        "distance, unread vectors", model, truth_on_text(), _words, writes=writes
    )


def by_distance_beside_pooling(seed: int) -> PlantedLanguage:
    """The same beside the mean of earlier tokens, which raises the logits of all of these."""
    model = _with_bias()
    _pool(model)
    return PlantedLanguage("distance, pooling", model, truth_on_text(), _words)


def _words(seed: int, shorter: bool = False) -> Sequences:
    """Windows of text, each with a word of its own."""
    generator = generator_of(seed)
    tokens = torch.randint(1, _D_VOCAB, (N_WINDOWS, N_CTX), generator=generator)
    for at, earlier in zip(range(2, N_CTX), _looked_up(shorter), strict=False):
        if earlier > 0:  # position 0 is the begin token's
            tokens[:, at] = tokens[:, earlier]
    return tokens[:, 1:]


def _known_by_vectors(kind: str, model: HookedTransformer) -> PlantedLanguage:
    return PlantedLanguage(
        kind, model, truth_on_text(irregular_part=USED), _words, reads=_VECTORS_READ
    )


def _silent(positions: Positions) -> HookedTransformer:
    """Two layers that know tokens and write nothing yet; what is told is what they write."""
    config = counting_config(N_CTX, d_vocab=_D_VOCAB, d_model=_D_MODEL)
    model = silent(replace(config, positions=positions, attn_scale=1.0))
    each = torch.eye(_D_VOCAB)
    looking = model.blocks[1].attn
    with torch.no_grad():
        # The mean of what is drawn is zero: averaged beside the begin token it tells no position.
        model.W_E[1:, _TOKEN] = centred(each[1:])
        model.W_E[BEGIN_TOKEN, BEGIN] = 1
        looking.W_V[_LOOKING, _TOKEN, :_D_VOCAB] = each
        looking.W_O[_LOOKING, :_D_VOCAB, _TOLD] = each
        model.W_U[_TOLD] = _CERTAINTY * each
    return model


def _with_vectors(seed: int, shorter: bool = False) -> HookedTransformer:
    model, vectors = _silent("learned"), drawn_vectors(_N_VECTORS, generator_of(seed))
    learn_positions(model, vectors, _VECTORS)
    _look_up_by(model, vectors, shorter)
    return model


def _with_bias() -> HookedTransformer:
    model = _silent("t5")
    assert isinstance(model.positions, T5Positions)
    with torch.no_grad():
        # The next token stands one nearer than a word is long; so near, each distance has a bucket.
        model.positions.table[PERIOD - 1, _LOOKING] = _SHARPNESS
    return model


def _looked_up(shorter: bool) -> Int[np.ndarray, " pos"]:
    """For each position from 1 on, where the next token was last; 0 and less where nowhere."""
    following = np.arange(2, N_CTX + 1)
    return following - np.where(shorter & (following >= FARTHER_FROM), SHORTER, PERIOD)


def _look_up_by(
    model: HookedTransformer, vectors: Float[np.ndarray, "pos k"], shorter: bool = False
) -> None:
    """The head attends to the position that it wants: a linear map takes one's vector there."""
    wanted = _looked_up(shorter)
    asking = wanted > 0
    asks = np.linalg.lstsq(vectors[asking], vectors[wanted[asking] - 1], rcond=None)[0]
    looking, n = model.blocks[1].attn, vectors.shape[1]
    with torch.no_grad():
        looking.W_Q[_LOOKING, _VECTORS, :n] = _SHARPNESS / LENGTH * torch.from_numpy(asks).float()
        looking.W_K[_LOOKING, _VECTORS, :n] = torch.eye(n) / LENGTH


def _count(model: HookedTransformer) -> None:
    """Theorem 1's head: it weighs the begin token by 1/m."""
    averaging = model.blocks[0].attn
    with torch.no_grad():
        averaging.W_V[_AVERAGING, BEGIN, 0] = 1
        averaging.W_O[_AVERAGING, 0, POSITION] = _COUNT_SIZE


def _vectors_of_the_count(model: HookedTransformer, vectors: Float[np.ndarray, "pos k"]) -> None:
    """The first MLP writes the vector of each position from 1 on, and none at the begin token."""
    none = np.zeros_like(vectors[:1])
    values, table = _COUNT_SIZE / np.arange(1.0, N_CTX + 1), np.concatenate([none, vectors])
    interpolate(mlp(model, 0), POSITION, values, LENGTH * table, _VECTORS)


def _pool(model: HookedTransformer) -> None:
    averaging, each = model.blocks[0].attn, torch.eye(_D_VOCAB)
    with torch.no_grad():
        averaging.W_V[_AVERAGING, _TOKEN, :_D_VOCAB] = each
        averaging.W_O[_AVERAGING, :_D_VOCAB, _POOLED] = _POOLED_SIZE * each
        model.W_U[_POOLED] = _POOLED_LOGIT / _POOLED_SIZE * each
