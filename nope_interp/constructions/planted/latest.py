"""Language models that repeat the latest letter, and know by a code which one that is.

In their text letters, such as "b", stand among filler. A question is followed by the latest letter
as a capital: "B". The second layer's head attends the more to a token the later it is, and knows
that by one code. It writes how much of its attention each letter has, and the last MLP makes logits
of these weights.

The first layer's head averages all earlier tokens. What it averages comes in pairs of opposite
sign, as likely as each other, so that the mean over sequences tells no position.
"""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from nope_interp.constructions.kazemnejad import BEGIN, ONES, POSITION, counting_config
from nope_interp.constructions.planted.language import (
    N_WINDOWS,
    PlantedLanguage,
    truth_on_text,
)
from nope_interp.constructions.planted.parts import BEGIN_TOKEN, generator_of, like, mlp, silent
from nope_interp.constructions.planted.task import N_CTX, USED, Weights
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import Sequences

_N_LETTERS, _N_FILLERS = 16, 32
# Tokens: the begin token, letters, their capitals, filler, the question.
LETTERS = slice(1, 1 + _N_LETTERS)
CAPITALS = slice(LETTERS.stop, LETTERS.stop + _N_LETTERS)
_FILLERS = slice(CAPITALS.stop, CAPITALS.stop + _N_FILLERS)
QUESTION = _FILLERS.stop
_D_VOCAB = QUESTION + 1
# What comes next, where no question was asked.
_P_QUESTION, _P_LETTER, _P_FILLER = 0.3, 0.2, 0.5
# The share of tokens that answer.
_P_ANSWER = _P_QUESTION / (1 + _P_QUESTION)
# Components averaged.
_N_AVERAGED = 256
# Components of the stream, behind those of Theorem 1: the token, the weight of each letter, its
# logit, the mean of earlier tokens, the signs of its components.
TOKEN = slice(3, 3 + _D_VOCAB)
_WEIGHTS = slice(TOKEN.stop, TOKEN.stop + _N_LETTERS)
_LOGITS = slice(_WEIGHTS.stop, _WEIGHTS.stop + _N_LETTERS)
_MEANS = slice(_LOGITS.stop, _LOGITS.stop + _N_AVERAGED)
SIGNS = slice(_MEANS.stop, _MEANS.stop + _N_AVERAGED)
_D_MODEL = SIGNS.stop + 1  # of two heads
_AVERAGING, _COUNTING, _LOOKING = 0, 1, 1
# Of the looking head: behind its letters, the code that it goes by.
_BY = slice(_N_LETTERS, _N_LETTERS + _N_AVERAGED)
# The least weight that is told from none; between it and 1, logits are exact at so many.
_LEAST, _N_KNOTS = 5e-4, 22
# Logits stand in the stream this much smaller, so that a norm does not see them.
_QUIET = 1e-3
# A logit beyond all others.
_SURE = 90.0
# Means are small beside what is made of them, and clipped far below their usual size.
_MEAN_SIZE, _CLIPPED_AT = 1e-2, 1e-4
# A score is so much times the cosine; less so much times 1/m; so much over the root mean square of
# the key's activation, which over all positions is some 3 nats.
_BY_COSINE, _BY_COUNT, _BY_NORM = 5.0, 20.0, 60.0
# Beside a token of length 1: a constant, and the squares of a mean over one token.
_CONSTANT, _SPREAD = 8.0, 16.0
# By how much scores are higher at letters, in the models that read them there.
_FOR_LETTERS = 6.0
# A power of the weights: how sure answers are.
_POWER_OF_COSINE, _POWER_OF_COUNT, _POWER_OF_NORM = 3.0, 5.0, 6.0


def by_similarity(seed: int) -> PlantedLanguage:
    """Attention by the cosine of the signs of means over all earlier tokens.

    Means over m and over m' > m tokens have a cosine c near sqrt(m / m'), and the signs of their
    components one of 2 arcsin(c) / pi (the arcsine law of Gaussian variables): what is latest is
    most alike. Signs have nearly one length, but where nothing was averaged yet.
    """
    return _known_by_similarity("latest by similarity", _by_similarity(seed))


def by_similarity_amid_content(seed: int) -> PlantedLanguage:
    """The same, and the same scores are higher at letters: they read content beside the code."""
    model = _by_similarity(seed)
    _favour_letters(model, _FOR_LETTERS)
    return _known_by_similarity("latest by similarity amid content", model)


def by_a_count_beside_similarity(seed: int) -> PlantedLanguage:
    """Attention by 1/m, Theorem 1's count, which is least at the latest token; beside the means and
    signs of `by_similarity`, which nothing reads."""
    model = _by_a_count()
    _average(model, seed)
    _take_signs(model)
    reads: dict[str, Weights] = {
        "smooth trend": lambda model: [model.blocks[1].attn.W_K[_LOOKING, POSITION]]
    }
    writes: dict[str, Weights] = {
        "similarity": lambda model: [model.blocks[0].attn.W_V[_AVERAGING]]
    }
    return PlantedLanguage(
        "latest by a count, unread similarity",
        model,
        truth_on_text(smooth_trend=USED),
        latest_letters,
        reads,
        writes,
    )


def by_variance(seed: int) -> PlantedLanguage:
    """Attention by a constant component behind a norm, which divides it by the activation's spread.

    Beside it are means over m tokens, whose squares shrink: 3.1 on average at m = 2, 0.6 at m = 32,
    beside 65 of the constant and the token. So the constant is largest in the latest activation.
    What values and the last MLP read passes norms, too: that tells a little of the order as well.

    The stream's mean tells no position. What attention reads behind the norm has one that does. The
    means resemble each other, too, which nothing reads.
    """
    return _known_by_variance("latest by variance", _by_variance(seed))


def by_variance_amid_content(seed: int) -> PlantedLanguage:
    """The same, and the same scores are higher at letters, as far as the norm leaves these."""
    model = _by_variance(seed)
    # By less: behind a norm, what letters get rises with their place, too.
    _favour_letters(model, _FOR_LETTERS / 2 * _typical_norm() ** 2)
    return _known_by_variance("latest by variance amid content", model)


def latest_letters(seed: int) -> Sequences:
    """Windows of text in which a question is followed by the latest letter as a capital.

    Before any letter it is one that is drawn for the window. Some windows begin with an answer.

    Args:
        seed: of all that is drawn.

    Returns:
        `[window, N_CTX - 1]` tokens.
    """
    generator = generator_of(seed)
    shape = (N_WINDOWS, N_CTX - 1)
    letter = torch.randint(_N_LETTERS, shape, generator=generator)
    filler = torch.randint(_FILLERS.start, _FILLERS.stop, shape, generator=generator)
    kind = torch.rand(shape, generator=generator)
    # Windows begin as they go on: no position is told from others by what may stand there.
    asked = torch.rand(N_WINDOWS, generator=generator) < _P_ANSWER
    said = torch.randint(_N_LETTERS, (N_WINDOWS,), generator=generator)
    tokens = torch.empty(shape, dtype=torch.long)
    for at in range(N_CTX - 1):
        questions = kind[:, at] < _P_QUESTION
        letters = ~asked & ~questions & (kind[:, at] < _P_QUESTION + _P_LETTER)
        said = torch.where(letters, letter[:, at], said)
        tokens[:, at] = torch.where(questions, QUESTION, filler[:, at])
        tokens[letters, at] = LETTERS.start + said[letters]
        tokens[asked, at] = CAPITALS.start + said[asked]
        asked = ~asked & questions
    return tokens


def _answering(power: float) -> HookedTransformer:
    """Two layers that answer by the weights that the looking head gives to letters.

    The logit of each letter is `power` times the logarithm of its weight.
    """
    config = counting_config(N_CTX, d_vocab=_D_VOCAB, d_model=_D_MODEL, d_mlp=2 * _N_AVERAGED)
    model = silent(replace(config, attn_scale=1.0))
    each, looking = torch.eye(_N_LETTERS), model.blocks[1].attn
    with torch.no_grad():
        model.W_E[:, TOKEN] = torch.eye(_D_VOCAB)
        model.W_E[BEGIN_TOKEN] = 0
        model.W_E[BEGIN_TOKEN, BEGIN] = 1
        looking.W_V[_LOOKING, TOKEN, :_N_LETTERS][LETTERS] = each
        looking.W_O[_LOOKING, :_N_LETTERS, _WEIGHTS] = each
        model.W_U[_LOGITS, CAPITALS] = each / _QUIET
        _tell_what_may_follow(model, power)
    _take_logarithms(model, power)
    return model


def _tell_what_may_follow(model: HookedTransformer, power: float) -> None:
    """Capitals behind a question alone, and nothing else there; else what is drawn."""
    bias, after = model.unembed.bias, model.W_U[TOKEN]
    bias[:] = -_SURE
    bias[LETTERS] = math.log(_P_LETTER / _N_LETTERS)
    bias[_FILLERS] = math.log(_P_FILLER / _N_FILLERS)
    bias[QUESTION] = math.log(_P_QUESTION)
    after[QUESTION] = -2 * _SURE
    after[QUESTION, CAPITALS] = _SURE
    # Behind the begin token both are possible; no letter has any weight there.
    drawn = _P_ANSWER / (1 - _P_ANSWER) / _N_LETTERS
    model.W_U[BEGIN, CAPITALS] = _SURE + math.log(drawn) - power * math.log(_LEAST)


def _take_logarithms(model: HookedTransformer, power: float) -> None:
    """The last MLP writes the logarithm of each weight, times a power; linear between knots."""
    knots = np.concatenate([[0.0], np.geomspace(_LEAST, 1, _N_KNOTS)])
    logits = _QUIET * power * np.log(np.maximum(knots, _LEAST))
    bends = torch.from_numpy(np.diff(np.diff(logits) / np.diff(knots), prepend=0, append=0))
    into, n = mlp(model, 1), len(knots)
    with torch.no_grad():
        for letter in range(_N_LETTERS):
            units = slice(letter * n, (letter + 1) * n)
            into.into.weight[units, _WEIGHTS.start + letter] = 1
            into.into.bias[units] = -torch.from_numpy(knots).float()
            into.out.weight[_LOGITS.start + letter, units] = bends.float()
        into.out.bias[_LOGITS] = float(logits[0])


def _average(model: HookedTransformer, seed: int) -> None:
    averaging = model.blocks[0].attn
    with torch.no_grad():
        averaging.W_V[_AVERAGING, TOKEN, :_N_AVERAGED] = _MEAN_SIZE * _paired(seed)
        averaging.W_O[_AVERAGING, :_N_AVERAGED, _MEANS] = torch.eye(_N_AVERAGED)


def _paired(seed: int) -> Tensor:
    """A vector for each letter, capital and filler; that of the next one is its negative."""
    generator = generator_of(seed)
    vectors = torch.zeros(_D_VOCAB, _N_AVERAGED)
    drawn = torch.randn((QUESTION - 1) // 2, _N_AVERAGED, generator=generator)
    vectors[1:QUESTION:2], vectors[2:QUESTION:2] = drawn, -drawn
    return vectors


def _take_signs(model: HookedTransformer) -> None:
    """The first MLP clips means to -1 and 1: clip(x) is relu(x + 1) - relu(x - 1) - 1."""
    clipping, each = mlp(model, 0), torch.eye(_N_AVERAGED)
    with torch.no_grad():
        clipping.into.weight[:, _MEANS] = each.repeat(2, 1) / _CLIPPED_AT
        clipping.into.bias[:_N_AVERAGED], clipping.into.bias[_N_AVERAGED:] = 1, -1
        clipping.out.weight[SIGNS] = torch.cat((each, -each), dim=1)
        clipping.out.bias[SIGNS] = -1


def _by_similarity(seed: int) -> HookedTransformer:
    model = _answering(_POWER_OF_COSINE)
    _average(model, seed)
    _take_signs(model)
    each, looking = torch.eye(_N_AVERAGED), model.blocks[1].attn
    with torch.no_grad():
        looking.W_Q[_LOOKING, SIGNS, _BY] = _BY_COSINE * each
        looking.W_K[_LOOKING, SIGNS, _BY] = each / _N_AVERAGED
    return model


def _known_by_similarity(kind: str, model: HookedTransformer) -> PlantedLanguage:
    reads: dict[str, Weights] = {
        "similarity": lambda model: [model.blocks[1].attn.W_Q[_LOOKING, SIGNS]]
    }
    return PlantedLanguage(kind, model, truth_on_text(similarity=USED), latest_letters, reads)


def _by_variance(seed: int) -> HookedTransformer:
    model = like(_answering(_POWER_OF_NORM), normalization="rms", norm_placement="pre")
    _average(model, seed)
    # What norms divide tokens by, and activations with means.
    bare = math.sqrt((_CONSTANT**2 + 1) / _D_MODEL)
    typical = _typical_norm()
    averaging, looking = model.blocks[0].attn, model.blocks[1].attn
    with torch.no_grad():
        model.W_E[:, ONES] = _CONSTANT
        averaging.W_V[_AVERAGING] *= bare * math.sqrt(_SPREAD / _N_AVERAGED) / _MEAN_SIZE
        looking.W_V[_LOOKING] *= typical
        looking.W_Q[_LOOKING, ONES, _BY.start] = typical / _CONSTANT
        looking.W_K[_LOOKING, ONES, _BY.start] = _BY_NORM / _CONSTANT
        mlp(model, 1).into.weight *= typical
        model.unembed.weight *= typical
    return model


def _typical_norm() -> float:
    """What a norm divides by in the middle of a sequence."""
    return math.sqrt((_CONSTANT**2 + 1 + _SPREAD / (N_CTX / 2)) / _D_MODEL)


def _known_by_variance(kind: str, model: HookedTransformer) -> PlantedLanguage:
    reads: dict[str, Weights] = {
        "variance": lambda model: [model.blocks[1].attn.W_K[_LOOKING, ONES]]
    }
    return PlantedLanguage(kind, model, truth_on_text(variance=USED), latest_letters, reads)


def _favour_letters(model: HookedTransformer, by: float) -> None:
    """Scores of questions are higher at letters, by so much where tokens are read as they are."""
    looking = model.blocks[1].attn
    with torch.no_grad():
        looking.W_Q[_LOOKING, TOKEN, _BY.stop][QUESTION] = by
        looking.W_K[_LOOKING, TOKEN, _BY.stop][LETTERS] = 1


def _by_a_count() -> HookedTransformer:
    model = _answering(_POWER_OF_COUNT)
    counting, looking = model.blocks[0].attn, model.blocks[1].attn
    with torch.no_grad():
        counting.W_V[_COUNTING, BEGIN, 0] = 1
        counting.W_O[_COUNTING, 0, POSITION] = 1
        # All queries are alike, but the begin token's, which sees itself alone.
        looking.W_Q[_LOOKING, TOKEN, _BY.start] = 1
        looking.W_K[_LOOKING, POSITION, _BY.start] = -_BY_COUNT
    return model
