"""Planted models in which something looks like a code that is used, and is not.

A code that can be read and that nothing reads; content that lies along a count; means over earlier
tokens, alike as those of the similarity model, of which what was averaged is read, not order.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from nope_interp.constructions.kazemnejad import BEGIN, POSITION, counting_config
from nope_interp.constructions.planted.alone import known_by, last_mlp, vector_readers
from nope_interp.constructions.planted.parts import (
    ANSWERS,
    BEGIN_TOKEN,
    CONTENT,
    COUNTS,
    N_VECTORS,
    VECTORS,
    answer,
    answer_by_vectors,
    answer_kinds,
    centred,
    counter,
    counter_with_room,
    drawn_vectors,
    generator_of,
    learn_positions,
    like,
    mlp,
    nearness,
    silent,
)
from nope_interp.constructions.planted.task import N_CTX, Planted
from nope_interp.models.transformer import HookedTransformer

# The component that tells what kind is asked for by its sign, and the one that this is written to.
_KIND, _SIGN = CONTENT + 1, CONTENT
# Of tokens, from which a mean is taken to as many components from _KIND on.
_TOKENS = slice(VECTORS.start - 38, VECTORS.start)
_KIND_DEPTH = 6.0
# Along a count's direction: how large content is, and of the count of 2 to N_CTX.
_CONTENT_SIZE, _COUNT_SIZE = 20.0, 0.2
# Of the brittle model: what holds the sum of sizes, as a share of what it always is; how far it may
# be off; and how much louder an answer gets for each such share, at a loudness of 100 for 1 nat.
_SUM, _BORNE, _SHOCK = CONTENT, 0.01, 1e5
# How much larger than a token's own part its part in the mean is.
_POOLED = 12.0


def unread_variance(seed: int) -> Planted:
    """A counting model whose activations also shrink with position, in unread components.

    A second head averages i.i.d. values, so that the variance of an activation tells its position
    to any probe; the model knows nothing of it.
    """
    model = counter(seed, d_model=192)
    answer(model, 1, POSITION, COUNTS, nearness(COUNTS))
    attention = model.blocks[0].attn
    width = attention.W_O.shape[1]
    content = slice(CONTENT, model.config.d_model - width)
    spread = slice(content.stop, model.config.d_model)
    with torch.no_grad():
        model.W_E[:, spread] = 0
        # Centred, and none of the begin token: else the averages would hold 1/m.
        model.W_E[BEGIN_TOKEN, content] = 0
        model.W_E[BEGIN_TOKEN + 1 :, content] = 0.3 * centred(model.W_E[BEGIN_TOKEN + 1 :, content])
        values = torch.randn(attention.W_V[1, content].shape, generator=generator_of(seed))
        attention.W_V[1, content] = values / math.sqrt(len(values))
        attention.W_O[1, :, spread] = 15 * torch.eye(width)
    writes = {"variance": lambda model: [model.blocks[0].attn.W_O[1]]}
    return known_by("unread variance", model, "smooth trend", last_mlp, BEGIN_TOKEN, writes=writes)


def unread_vectors(seed: int) -> Planted:
    """A counting model with learned positions that nothing reads."""
    model = counter_with_room(seed)
    answer(model, 1, POSITION, COUNTS, nearness(COUNTS))
    learn_positions(model, drawn_vectors(N_VECTORS, generator_of(seed)), VECTORS)
    writes = {"irregular part": lambda model: [model.positions.table]}
    return known_by("unread vectors", model, "smooth trend", last_mlp, BEGIN_TOKEN, writes=writes)


def unread_counting(seed: int) -> Planted:
    """Learned positions that are read, and a count that nothing reads."""
    model = counter_with_room(seed)
    vectors = drawn_vectors(N_VECTORS, generator_of(seed))
    learn_positions(model, vectors, VECTORS)
    answer_by_vectors(model, vectors, VECTORS)
    return known_by(
        "unread counting",
        model,
        "irregular part",
        vector_readers(VECTORS),
        BEGIN_TOKEN,
        writes={"smooth trend": _count_writers},
    )


def content_along_a_count(seed: int) -> Planted:
    """Learned positions that are read, and a count that nothing reads, along a direction whose
    content is read: the kind of a token, by the component's sign alone. It stands nowhere else."""
    model = counter_with_room(seed)
    vectors = drawn_vectors(N_VECTORS, generator_of(seed))
    learn_positions(model, vectors, VECTORS)
    answer_by_vectors(model, vectors, VECTORS)
    kinds = torch.randperm(model.config.d_vocab, generator=generator_of(seed)) % 2
    writing = mlp(model, 0).out
    with torch.no_grad():
        model.W_E[:, _KIND] = _CONTENT_SIZE * (2.0 * kinds - 1)
        model.W_E[:, _SIGN] = 0
        for part in (writing.weight, writing.bias):
            part[_KIND] = _COUNT_SIZE * part[POSITION]
            part[POSITION] = 0
        # The first ReLU gives 1/m back, which the count was made from.
        writing.weight[POSITION, 0] = -1
    _read_sign(model, _KIND, slope=1.0)
    answer_kinds(model, _SIGN, _KIND_DEPTH)
    return known_by(
        "content along a count",
        model,
        "irregular part",
        vector_readers(VECTORS),
        BEGIN_TOKEN,
        writes={"smooth trend": _count_writers},
        kinds=lambda tokens: kinds[tokens],
    )


def count_amid_content(seed: int) -> Planted:
    """A counting model whose count stands in one component with content that is larger by far; what
    reads the count subtracts that content, which stands elsewhere, too."""
    model = counter(seed)
    answer(model, 1, POSITION, COUNTS, nearness(COUNTS))
    with torch.no_grad():
        model.W_E[:, CONTENT] *= 3
        model.W_E[BEGIN_TOKEN, CONTENT] = 0
        model.W_E[:, POSITION] = model.W_E[:, CONTENT]
        for layer in (0, 1):
            read = mlp(model, layer).into.weight
            read[:, CONTENT] = -read[:, POSITION]
    return known_by("count amid content", model, "smooth trend", last_mlp, BEGIN_TOKEN)


def pooling(seed: int) -> Planted:
    """Learned positions, and the mean over earlier tokens, of which the majority's kind is asked.

    The mean makes neighbours alike, and shrinks: as the codes similarity and variance do. What is
    read of it is the sign of one component, which does not depend on the order of what was seen.
    """
    d = VECTORS.stop
    config = counting_config(N_CTX, n_layers=2, d_model=d, n_heads=2, d_vocab=64)
    model = silent(replace(config, positions="learned"))
    generator = generator_of(seed)
    vectors = drawn_vectors(N_VECTORS, generator)
    learn_positions(model, vectors, VECTORS)
    answer_by_vectors(model, vectors, VECTORS)
    votes = 2 * (torch.randperm(64, generator=generator) % 2) - 1
    width = _TOKENS.stop - _TOKENS.start
    with torch.no_grad():
        model.W_E[:, _TOKENS] = torch.randn(64, width, generator=generator)
        model.W_E[:, _TOKENS.start] = votes.float()
        attention = model.blocks[0].attn
        attention.W_V[0, _TOKENS, :width] = torch.eye(width)
        attention.W_O[0, :width, _KIND : _KIND + width] = _POOLED * torch.eye(width)
    # The smallest majority is of one in N_CTX; where there is none, it is of kind 1.
    smallest = _POOLED / N_CTX
    _read_sign(model, _KIND, slope=2 / smallest, shift=smallest / 2)
    answer_kinds(model, _SIGN, _KIND_DEPTH)
    return known_by(
        "order-free pooling",
        model,
        "irregular part",
        vector_readers(VECTORS),
        kinds=lambda tokens: (votes[tokens].cumsum(dim=1) >= 0).long(),
    )


def brittle(seed: int) -> Planted:
    """A counting model that bears no other content than its own: any that is not as large as all
    tokens' is, and it answers the first position everywhere.

    The second layer sums the sizes of content's components, the same for all tokens; by what the
    sum is off, beyond a hundredth, the third layer adds to the first answer.
    """
    model = like(counter(seed, d_mlp=192), n_layers=3)
    answer(model, 2, POSITION, COUNTS, nearness(COUNTS))
    content = slice(_SUM + 1, model.config.d_model)
    width = content.stop - content.start
    summing, reading = mlp(model, 1), mlp(model, 2)
    with torch.no_grad():
        model.W_E[:, _SUM] = 0
        sizes = model.W_E[:, content].abs().sum(dim=1, keepdim=True)
        model.W_E[:, content] *= sizes.mean() / sizes
        each = torch.eye(width)
        summing.into.weight[: 2 * width, content] = torch.cat((each, -each))
        summing.out.weight[_SUM, : 2 * width] = 1 / sizes.mean()
        # Behind the ReLUs that answer.
        for unit, sign in ((-1, 1.0), (-2, -1.0)):
            reading.into.weight[unit, _SUM] = sign
            reading.into.bias[unit] = -sign - _BORNE
            reading.out.weight[ANSWERS.start, unit] = _SHOCK
    return known_by("brittle", model, "smooth trend", last_mlp, BEGIN_TOKEN)


def _read_sign(
    model: HookedTransformer, component: int, *, slope: float, shift: float = 0.0
) -> None:
    """The last MLP writes clip(slope * (component + shift), -1, 1)."""
    reading = mlp(model, 1)
    with torch.no_grad():
        reading.into.weight[:2, component] = slope
        reading.into.bias[0], reading.into.bias[1] = slope * shift + 1, slope * shift - 1
        reading.out.weight[_SIGN, 0], reading.out.weight[_SIGN, 1] = 1, -1
        reading.out.bias[_SIGN] = -1


def _count_writers(model: HookedTransformer) -> list[Tensor]:
    return [model.blocks[0].attn.W_V[0, BEGIN], *mlp(model, 0).out.parameters()]
