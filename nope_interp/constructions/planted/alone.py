"""Small models, written by hand, that each know positions by exactly one code.

Content is drawn uniformly and fills most of every activation, so that taking away a code that is
not there hardly moves it. Codes can be there and go unread: activations that are means are alike
wherever they are, so the variance models' are.

| code | first layer writes | what reads it |
| --- | --- | --- |
| variance (Chi et al. 2023) | the mean of i.i.d. values, of variance 1/m | sum of abs(w_i . x) |
| similarity (Zuo et al. 2025) | the same, at one norm | attention by the cosine of activations |
| counting (Kazemnejad et al. 2023) | m, by Theorem 1 | ReLUs along its direction |
| positional vectors (Dong et al. 2024) | nothing: learned positions | the unembedding |

The pre-norm ones divide each activation by its root mean square before anything reads it. A large
constant component makes that nearly the same for all, or, where variance is what is read, tells it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from nope_interp.constructions.kazemnejad import BEGIN, ONES, POSITION, counting_config
from nope_interp.constructions.planted.parts import (
    BEGIN_TOKEN,
    CONTENT,
    COUNTS,
    LENGTH,
    answer,
    answer_by_vectors,
    centred,
    counter,
    drawn_vectors,
    generator_of,
    learn_positions,
    like,
    loudness,
    mlp,
    nearness,
    of_length,
    silent,
)
from nope_interp.constructions.planted.task import (
    N_CTX,
    SITE,
    USED,
    Planted,
    Weights,
    any_earlier_token,
    truth,
)
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import Tokens

# Of the similarity model. Means are cut off at _CUT times a value's standard deviation, below that
# of the last position, 1 / sqrt(N_CTX); once cut they make up nine tenths of an activation's
# square.
_CUT = 0.15
_MEAN_SIZE = 6.0
# A token's part of an activation lies near 4.
_THRESHOLDS = (2.2, 2.8)
_TOKEN_SIZE = 4.0
# Steeper attention would find the previous token more often, and be surer of a wrong one.
_SHARPNESS = 35.0
_CERTAINTY = 4.5

# The constant component of the pre-norm models: beside a count that goes up to N_CTX; and in the
# middle of what the means' lengths are.
_CONSTANT = 300.0
_FAINT_CONSTANT = 4.5
_CONTENT_LENGTH = 100.0


def variance(seed: int) -> Planted:
    """Means of i.i.d. vectors, and the sum of their absolute components on a basis.

    The vectors have mean zero over the vocabulary exactly, so that no component's mean depends on
    position; the token's own embedding is a hundredth of a first activation. A vector of k Gaussian
    components of variance 1/m has the mean absolute component sqrt(2 / (pi m)), with a relative
    standard deviation of sqrt((pi / 2 - 1) / k).
    """
    model, k = _averaging(seed)
    basis = torch.linalg.qr(torch.randn(k, k, generator=generator_of(seed))).Q
    with torch.no_grad():
        into = mlp(model, 1)
        into.into.weight[:, CONTENT:] = torch.cat((basis, -basis))
        into.out.weight[0] = 1 / k
        sums = np.sqrt(2 / np.pi / COUNTS)
        error = math.sqrt((np.pi / 2 - 1) / k)
        answer(model, 2, 0, sums, nearness(np.log(sums) / error))
    # The sums are a count of a kind, which the last layer reads. Of c / sqrt(m), t and 1/m explain
    # nearly all: whether the irregular part is used is not asked.
    words = dict(truth(variance=USED, smooth_trend=USED))
    del words["irregular part"]
    return Planted(
        "variance",
        model,
        words,
        {SITE: truth(variance=USED)},
        "position",
        None,
        reads={
            "variance": lambda model: list(mlp(model, 1).out.parameters()),
            "smooth trend": last_mlp,
        },
    )


def variance_pre_norm(seed: int) -> Planted:
    """Means of i.i.d. vectors beside a constant, and the norm that divides both.

    A constant c beside k components of variance 1/m comes out of the norm as c sqrt(d / (c^2 +
    k / m)), which grows with m; the relative standard deviation of k / m is sqrt(2 / k).
    """
    model, k = _averaging(seed)
    model = like(model, n_layers=2, normalization="rms", norm_placement="pre")
    d, c = model.config.d_model, _FAINT_CONSTANT
    with torch.no_grad():
        model.W_E[:, ONES] = c
        # The norm before it divides by the constant; the constant itself stays what it is.
        model.blocks[0].attn.W_O[0] *= c / math.sqrt(d)
        model.blocks[0].attn.W_O[0, ONES] = 0
        table = nearness(np.log(COUNTS) / math.sqrt(2 / k))
        values = c / np.sqrt((c**2 + k / COUNTS) / d)
        told = math.sqrt(c**2 + loudness(table) ** 2) / math.sqrt(d)
        answer(model, 1, ONES, values, table, told=told)
    return known_by("variance, pre-norm", model, "variance", last_mlp)


def similarity(seed: int) -> Planted:
    """Attention to the activations most alike, where these are means over all earlier tokens.

    The cosine of means over m and over m' > m tokens is sqrt(m / m'): the nearest one is the most
    alike. The first MLP cuts the means' components off at a low level, and the norms after each
    sublayer give all activations one length; values come in pairs of opposite sign, so that the
    mean one is the same at all positions. The second MLP tells each activation's token, all or
    nothing: earlier tokens mixed into one do not count. The third layer weighs these tokens by
    exp(_SHARPNESS * cosine), but for those that equal the query's own.
    """
    n, k = 32, 96
    token, mean, clean, answers = (
        slice(a, a + b) for a, b in ((0, n), (n, k), (n + k, n), (n + k + n, n))
    )
    d = answers.stop
    config = counting_config(N_CTX, n_layers=3, d_model=d, n_heads=1, d_vocab=n, d_mlp=2 * k)
    config = replace(config, normalization="rms", norm_placement="post", attn_scale=1.0)
    model = silent(config)
    values = torch.randn(n // 2, k, generator=generator_of(seed))
    one, each = torch.eye(n), torch.eye(k)
    length = math.sqrt(d)  # of every activation, after a norm
    with torch.no_grad():
        model.W_E[:, token] = one - 1 / n
        averaging, _, looking = (block.attn for block in model.blocks)
        # Small beside the token's part of length 1, so that all activations grow by the same
        # factor.
        averaging.W_V[0, token, :k] = torch.cat((values, -values)) / 100
        averaging.W_O[0, :k, mean] = each
        cutting, telling = mlp(model, 0), mlp(model, 1)
        # clip(x, -1, 1) is relu(x + 1) - relu(x - 1) - 1.
        cutting.into.weight[:, mean] = each.repeat(2, 1) * (100 / (_CUT * length))
        cutting.into.bias[:k], cutting.into.bias[k:] = 1, -1
        cutting.out.weight[mean] = _MEAN_SIZE * torch.cat((each, -each), dim=1)
        cutting.out.bias[mean] = -_MEAN_SIZE
        # 0 below the first threshold, _TOKEN_SIZE above the second.
        low, high = _THRESHOLDS
        telling.into.weight[: 2 * n, token] = one.repeat(2, 1) / (high - low)
        telling.into.bias[:n] = -low / (high - low)
        telling.into.bias[n : 2 * n] = -high / (high - low)
        telling.out.weight[clean, : 2 * n] = _TOKEN_SIZE * torch.cat((one, -one), dim=1)
        looking.W_Q[0] = torch.eye(d)
        looking.W_K[0, range(clean.start), range(clean.start)] = _SHARPNESS / length**2
        looking.W_K[0, clean, clean] = -_SHARPNESS / _TOKEN_SIZE**2 * one
        looking.W_V[0] = torch.eye(d)
        looking.W_O[0, clean, answers] = one
        model.W_U[answers] = _CERTAINTY / _TOKEN_SIZE * one
    words = truth(similarity=USED)
    return Planted(
        "similarity",
        model,
        words,
        {SITE: words},
        "previous token",
        None,
        any_earlier_token(n),
        reads={"similarity": lambda model: [model.blocks[2].attn.W_K[0, : clean.start]]},
    )


def counting(seed: int) -> Planted:
    """Theorem 1's count of tokens, and ReLUs that tell each count from its neighbours."""
    model = counter(seed)
    answer(model, 1, POSITION, COUNTS, nearness(COUNTS))
    return known_by("counting", model, "smooth trend", last_mlp, BEGIN_TOKEN)


def counting_pre_norm(seed: int) -> Planted:
    """The same behind norms, that divide by a constant and content of one length, or nearly."""
    model = like(counter(seed), normalization="rms", norm_placement="pre")
    d = model.config.d_model
    bare = _CONSTANT**2 + _CONTENT_LENGTH**2
    norm = math.sqrt(bare / d)
    with torch.no_grad():
        model.W_E[:, ONES] = _CONSTANT
        model.W_E[:, CONTENT:] = of_length(model.W_E[:, CONTENT:], _CONTENT_LENGTH)
        # A norm leaves keys alike but for rounding, which queries would magnify.
        model.blocks[0].attn.W_Q.zero_()
        model.blocks[0].attn.W_V[0, BEGIN] *= norm
        mlp(model, 0).into.weight[:, POSITION] *= norm
    table, values = nearness(COUNTS), COUNTS / np.sqrt(1 + COUNTS**2 / bare)
    told = math.sqrt((bare + loudness(table) ** 2) / d)
    answer(model, 1, POSITION, values, table, read=norm, told=told)
    return known_by("counting, pre-norm", model, "smooth trend", last_mlp, BEGIN_TOKEN)


def positional_vectors(seed: int) -> Planted:
    """Learned positions, random but of equal norm and without any part along t or 1/m."""
    k = 64
    model = _learned(seed, k)
    return known_by("positional vectors", model, "irregular part", vector_readers(slice(k)))


def positional_vectors_pre_norm(seed: int) -> Planted:
    """The same behind a norm, with content of one length: it divides all by the same."""
    k = 64
    model = like(_learned(seed, k), normalization="rms", norm_placement="pre")
    with torch.no_grad():
        content = math.sqrt(k)
        model.W_E[:, k:] = of_length(model.W_E[:, k:], content)
        model.W_U[:k] *= math.sqrt((LENGTH**2 + content**2) / model.config.d_model)
    reads = vector_readers(slice(k))
    return known_by("positional vectors, pre-norm", model, "irregular part", reads)


def few_dimensions(seed: int) -> Planted:
    """31 positions and 64 tokens in 16 dimensions: each vector lies across many others."""
    d = 16
    config = counting_config(N_CTX, n_layers=1, d_model=d, n_heads=1, d_vocab=64, d_mlp=1)
    model = silent(replace(config, positions="learned"))
    generator = generator_of(seed)
    vectors, where = drawn_vectors(d, generator), slice(d)
    learn_positions(model, vectors, where)
    with torch.no_grad():
        model.W_E.copy_(of_length(torch.randn(64, d, generator=generator), 0.5 * LENGTH))
    answer_by_vectors(model, vectors, where, depth=12.0)
    return known_by("few dimensions", model, "irregular part", vector_readers(where))


def known_by(
    kind: str,
    model: HookedTransformer,
    code: str,
    reads: Weights,
    begin_token: int | None = None,
    *,
    writes: Mapping[str, Weights] | None = None,
    kinds: Callable[[Tokens], Tokens] | None = None,
) -> Planted:
    """A model that is asked for positions and knows them by one code, at the usual site, too."""
    words = {**truth(), code: USED}
    return Planted(
        kind,
        model,
        words,
        {SITE: words},
        "position" if kinds is None else "position and kind",
        begin_token,
        reads={code: reads},
        writes=writes or {},
        kinds=kinds,
    )


def last_mlp(model: HookedTransformer) -> list[Tensor]:
    """What the last layer's MLP writes by, which answers by what it reads."""
    return list(mlp(model, model.config.n_layers - 1).out.parameters())


def vector_readers(where: slice) -> Weights:
    """What reads learned positions in these components."""
    return lambda model: [model.W_U[where]]


def _averaging(seed: int) -> tuple[HookedTransformer, int]:
    """A first layer that writes means of i.i.d. vectors, and how many components these have."""
    d = 192
    k = d - CONTENT
    config = counting_config(N_CTX, n_layers=3, d_model=d, n_heads=1, d_vocab=512, d_mlp=2 * k)
    model = silent(config)
    with torch.no_grad():
        content = torch.randn(model.config.d_vocab, k, generator=generator_of(seed))
        model.W_E[:, CONTENT:] = centred(content) / 100
        model.blocks[0].attn.W_V[0] = torch.eye(d)
        model.blocks[0].attn.W_O[0] = 100 * torch.eye(d)
    return model, k


def _learned(seed: int, k: int) -> HookedTransformer:
    """Learned positions in the first k components, content in as many others."""
    config = counting_config(N_CTX, n_layers=1, d_model=2 * k, n_heads=1, d_vocab=64, d_mlp=1)
    model = silent(replace(config, positions="learned"))
    generator = generator_of(seed)
    vectors = drawn_vectors(k, generator)
    with torch.no_grad():
        model.W_E[:, k:] = torch.randn(64, k, generator=generator)
    learn_positions(model, vectors, slice(k))
    answer_by_vectors(model, vectors, slice(k))
    return model
