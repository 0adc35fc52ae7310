"""Small models, written by hand, that each know positions by exactly one code.

For every account of how a model without positional encodings knows where it is, a model of which we
know that the account is true, and at which site: what claims to find or to take away a code can be
held against them. Content is drawn uniformly and fills most of every activation, so that taking
away a code that is not there hardly moves it. Codes can be there and go unread: activations that
are means are alike wherever they are, so the variance model's are, and `decoy` has both.

| code | first layer writes | what reads it |
| --- | --- | --- |
| variance (Chi et al. 2023) | the mean of i.i.d. values, of variance 1/m | sum of abs(w_i . x) |
| similarity (Zuo et al. 2025) | the same, at one norm | attention by the cosine of activations |
| counting (Kazemnejad et al. 2023) | m, by Theorem 1 | ReLUs along its direction |
| positional vectors (Dong et al. 2024) | nothing: learned positions | the unembedding |
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from scipy.stats import binom
from torch import Generator, Tensor

from nope_interp.constructions.kazemnejad import POSITION, absolute_position, counting_config
from nope_interp.errors import unknown_name
from nope_interp.models.blocks import MLP
from nope_interp.models.config import TransformerConfig
from nope_interp.models.encodings import LearnedPositions
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import PerSequence, Sequences, Tokens

Curve = Float[np.ndarray, " pos"]

N_CTX = 32
_BEGIN = 0
# Logits of an answer far off lie this far below the right one's: being wrong costs little more than
# not knowing.
_DEPTH = 3.0
_BATCH = 128
_SITE = "blocks.0.hook_resid_post"
# Components of the stream of the models that are asked for positions, after a few of their own.
_ANSWERS = slice(3, 2 + N_CTX)
_CONTENT = 2 + N_CTX

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


@dataclass(frozen=True)
class Planted:
    """A model, what it knows positions by, and the task that it solves with it.

    Attributes:
        code: "variance", "similarity", "counting" or "positional vectors".
        model: in single precision, for sequences of `N_CTX` tokens.
        sites: the hook names at which the code lies bare and everything later reads it from: where
            it can be taken away.
        task: "position" asks each token for its position, by the logits of tokens 1 to N_CTX - 1;
            "previous token" asks it for the token before.
        begin_token: what every sequence starts with; None where it is drawn like the others.
        chance: the loss, in nats, of the best answer without the code: that all positions are
            equally likely; or that the previous token is any one of the tokens before.
    """

    code: str
    model: HookedTransformer = field(repr=False)
    sites: tuple[str, ...]
    task: Literal["position", "previous token"]
    begin_token: int | None
    chance: float

    def sequences(self, n: int, seed: int) -> Sequences:
        """n sequences of `N_CTX` tokens, drawn uniformly.

        Args:
            n: sequences.
            seed: of the draws.

        Returns:
            Tokens, `[sequence pos]`.
        """
        generator = torch.Generator().manual_seed(seed)
        first = 0 if self.begin_token is None else self.begin_token + 1
        tokens = torch.randint(first, self.model.config.d_vocab, (n, N_CTX), generator=generator)
        if self.begin_token is not None:
            tokens[:, 0] = self.begin_token
        return tokens

    @torch.no_grad()
    def losses(self, model: HookedTransformer, tokens: Sequences) -> PerSequence:
        """Mean cross-entropy of the task's answer over positions from 1 on, in nats.

        Args:
            model: the one built here, or a changed one.
            tokens: [batch pos].
        """
        return torch.cat([self._losses(model, batch) for batch in tokens.split(_BATCH)])

    def _losses(self, model: HookedTransformer, tokens: Tokens) -> Float[Tensor, " batch"]:
        logits = model(tokens)[:, 1:]
        if self.task == "previous token":
            answers = tokens[:, :-1]
        else:
            logits = logits[..., 1:N_CTX]
            answers = torch.arange(N_CTX - 1).expand(len(tokens), -1)
        by_class = rearrange(logits, "batch pos answer -> batch answer pos")
        return F.cross_entropy(by_class, answers, reduction="none").mean(dim=1)


def plant(code: str, seed: int = 0) -> Planted:
    """The model that knows positions by this code alone.

    Args:
        code: one of `PLANTS`.
        seed: of its random directions.

    Returns:
        The model and the task that it solves.

    Raises:
        UserError: for an unknown code.
    """
    if code not in PLANTS:
        raise unknown_name("code", code, PLANTS)
    return PLANTS[code](seed)


def decoy(seed: int = 0) -> Planted:
    """A counting model whose activations also shrink with position, in unread components.

    A second head averages i.i.d. values, so that the variance of an activation tells its position
    to any probe; the model knows nothing of it.

    Args:
        seed: of its random directions.

    Returns:
        The model, which knows positions by counting alone.
    """
    planted = _counting(seed, d_model=192)
    model = planted.model
    attention = model.blocks[0].attn
    content = slice(_CONTENT, model.config.d_model - attention.W_O.shape[1])
    spread = slice(content.stop, model.config.d_model)
    with torch.no_grad():
        model.W_E[:, spread] = 0
        # Centred, and none of the begin token: else the averages would hold 1/m.
        model.W_E[_BEGIN, content] = 0
        model.W_E[_BEGIN + 1 :, content] = 0.3 * _centred(model.W_E[_BEGIN + 1 :, content])
        values = torch.randn(attention.W_V[1, content].shape, generator=_generator(seed))
        attention.W_V[1, content] = values / math.sqrt(len(values))
        attention.W_O[1, :, spread] = 15 * torch.eye(attention.W_O.shape[1])
    return planted


def _variance(seed: int) -> Planted:
    """Means of i.i.d. vectors, and the sum of their absolute components on a basis.

    The vectors have mean zero over the vocabulary exactly, so that no component's mean depends on
    position; the token's own embedding is a hundredth of a first activation. A vector of k Gaussian
    components of variance 1/m has the mean absolute component sqrt(2 / (pi m)), with a relative
    standard deviation of sqrt((pi / 2 - 1) / k).
    """
    k = 192 - _CONTENT
    model = _silent(
        counting_config(N_CTX, n_layers=3, d_model=192, n_heads=1, d_vocab=512, d_mlp=2 * k)
    )
    generator = _generator(seed)
    basis = torch.linalg.qr(torch.randn(k, k, generator=generator)).Q
    m = np.arange(2, N_CTX + 1)
    with torch.no_grad():
        content = torch.randn(model.config.d_vocab, k, generator=generator)
        model.W_E[:, _CONTENT:] = _centred(content) / 100
        attention, mlp = model.blocks[0].attn, _mlp(model, 1)
        attention.W_V[0] = torch.eye(192)
        attention.W_O[0] = 100 * torch.eye(192)
        mlp.into.weight[:, _CONTENT:] = torch.cat((basis, -basis))
        mlp.out.weight[0] = 1 / k
        sums = np.sqrt(2 / np.pi / m)
        error = math.sqrt((np.pi / 2 - 1) / k)
        _answer(model, 2, 0, sums, np.log(sums) / error)
    return _position_model("variance", model, begin_token=None)


def _similarity(seed: int) -> Planted:
    """Attention to the activations most alike, where these are means over all earlier tokens.

    The cosine of means over m and over m' > m tokens is sqrt(m / m'): the nearest one is the most
    alike. The first MLP cuts the means' components off at a low level, and the norms after each
    sublayer give all activations one length; values come in pairs of opposite sign, so that the
    mean one is the same at all positions. The second MLP tells each activation's token, all or
    nothing: earlier tokens mixed into one do not count. The third layer weighs these tokens by
    exp(_SHARPNESS * cosine), but for those that equal the query's own.
    """
    n, k = 32, 96
    token, mean, clean, answer = (
        slice(a, a + b) for a, b in ((0, n), (n, k), (n + k, n), (n + k + n, n))
    )
    d = answer.stop
    config = counting_config(N_CTX, n_layers=3, d_model=d, n_heads=1, d_vocab=n, d_mlp=2 * k)
    config = replace(config, normalization="rms", norm_placement="post", attn_scale=1.0)
    model = _silent(config)
    values = torch.randn(n // 2, k, generator=_generator(seed))
    one, each = torch.eye(n), torch.eye(k)
    length = math.sqrt(d)  # of every activation, after a norm
    with torch.no_grad():
        model.W_E[:, token] = one - 1 / n
        averaging, _, looking = (block.attn for block in model.blocks)
        # Small beside the token's part of length 1, so that all activations grow by the same
        # factor.
        averaging.W_V[0, token, :k] = torch.cat((values, -values)) / 100
        averaging.W_O[0, :k, mean] = each
        cutting, telling = _mlp(model, 0), _mlp(model, 1)
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
        looking.W_O[0, clean, answer] = one
        model.W_U[answer] = _CERTAINTY / _TOKEN_SIZE * one
    chance = _any_earlier_token(n)
    return Planted("similarity", model, (_SITE,), "previous token", None, chance)


def _counting(seed: int, d_model: int = 128) -> Planted:
    """Theorem 1's count of tokens, and ReLUs that tell each count from its neighbours."""
    config = counting_config(N_CTX, d_vocab=64, d_model=d_model)
    model = absolute_position(replace(config, seed=seed), _BEGIN).model.float()
    m = np.arange(2.0, N_CTX + 1)
    with torch.no_grad():
        model.W_E[:, POSITION + 1 : _CONTENT] = 0
        model.W_E[:, _CONTENT:] *= 10
        _answer(model, 1, POSITION, m, m)
    return _position_model("counting", model, _BEGIN)


def _positional_vectors(seed: int) -> Planted:
    """Learned positions, random but of equal norm and without any part along t or 1/m."""
    k = 64
    config = counting_config(N_CTX, n_layers=1, d_model=2 * k, n_heads=1, d_vocab=64, d_mlp=1)
    model = _silent(replace(config, positions="learned"))
    generator = _generator(seed)
    vectors = _without_counting(torch.randn(N_CTX - 1, k, generator=generator).double().numpy())
    assert isinstance(model.positions, LearnedPositions)
    with torch.no_grad():
        model.W_E[:, k:] = torch.randn(64, k, generator=generator)
        model.positions.table[1:, :k] = 4 * torch.from_numpy(vectors)
        model.W_U[:k, 1:N_CTX] = 2 * _DEPTH / 4 * torch.from_numpy(vectors.T)
    return _position_model("positional vectors", model, begin_token=None)


PLANTS: dict[str, Callable[[int], Planted]] = {
    "variance": _variance,
    "similarity": _similarity,
    "counting": _counting,
    "positional vectors": _positional_vectors,
}


def _position_model(code: str, model: HookedTransformer, begin_token: int | None) -> Planted:
    return Planted(code, model, (_SITE,), "position", begin_token, chance=math.log(N_CTX - 1))


def _any_earlier_token(d_vocab: int) -> float:
    """The expected loss of one who knows the bag of t earlier tokens and not their order.

    With c copies of the previous token among them it is log(t / c), and c - 1 is binomial.
    """
    losses = [
        math.log(t) - binom.expect(lambda copies: np.log1p(copies), (t - 1, 1 / d_vocab))
        for t in range(1, N_CTX)
    ]
    return float(np.mean(losses))


def _answer(
    model: HookedTransformer, layer: int, component: int, values: Curve, scale: Curve
) -> None:
    """The MLP of this layer and the unembedding tell positions from 1 on by one component.

    At values[i] the logit of position j is -(scale[i] - scale[j])^2 / 2, down to -_DEPTH, and in
    between it is linear. `values` rise or fall, and are positions 1 to N_CTX - 1.
    """
    table = -np.minimum((scale[:, None] - scale) ** 2 / 2, _DEPTH)
    order = np.argsort(values)
    knots, table = values[order], table[order]
    slopes = np.diff(table, axis=0) / np.diff(knots)[:, None]
    bends = np.diff(slopes, axis=0, prepend=0, append=0)
    mlp, n = _mlp(model, layer), N_CTX - 1
    mlp.into.weight[:n, component] = 1
    mlp.into.bias[:n] = -torch.from_numpy(knots)
    # Large in the stream, so that what disturbs the activations a little does not reach the answer.
    mlp.out.weight[_ANSWERS, :n] = 100 * torch.from_numpy(bends.T)
    mlp.out.bias[_ANSWERS] = 100 * torch.from_numpy(table[0])
    model.unembed.weight.zero_()
    model.W_U[_ANSWERS, 1:N_CTX] = torch.eye(n) / 100


def _without_counting(vectors: Float[np.ndarray, "pos k"]) -> Float[np.ndarray, "pos k"]:
    """Vectors of length 1 whose components have no part along 1, t or 1/m over positions.

    Projections onto the two sets in turn; they meet long before the last of them.
    """
    t = np.arange(1, len(vectors) + 1)
    terms = np.linalg.qr(np.column_stack((np.ones(len(t)), t, 1 / (t + 1))))[0]
    for _ in range(1000):
        vectors = vectors - terms @ (terms.T @ vectors)
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def _silent(config: TransformerConfig) -> HookedTransformer:
    """A model in which nothing is written yet: all weights but the norms' are zero."""
    model = HookedTransformer(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.zero_()
    return model


def _mlp(model: HookedTransformer, layer: int) -> MLP:
    mlp = model.blocks[layer].mlp
    assert mlp is not None
    return mlp


def _centred(x: Float[Tensor, "token k"]) -> Float[Tensor, "token k"]:
    return x - x.mean(dim=0)


def _generator(seed: int) -> Generator:
    return Generator().manual_seed(seed)
