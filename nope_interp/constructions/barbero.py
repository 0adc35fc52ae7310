"""Rotary positions can make purely positional heads, NoPE cannot: Barbero et al. 2024.

arXiv 2410.06205 on why rotary positions are useful: rotation makes diagonal and previous-token
heads; without positions a head must give copies of one token equal weight. The statements are
recalled, not quoted; the formulas for the weights are derived here.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import brentq
from torch import Tensor

from nope_interp.constructions.requirements import require
from nope_interp.errors import UserError
from nope_interp.fields import is_whole
from nope_interp.hooked_model import HookedModel
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.sites import pattern_hook
from nope_interp.streams import read_at

Frequencies = Float[np.ndarray, " frequency"]

_ROTARY = "a positional head"


def rotary_frequencies(config: TransformerConfig) -> Frequencies:
    """The frequencies at which a head's blocks of two dimensions turn, highest first.

    In radians per position; those that p-RoPE (`rotary_kept`) lets stand still are left out.

    Args:
        config: with rotary positions.

    Returns:
        `[frequency]`.

    Raises:
        UserError: where positions are not rotary, or no frequency turns.
    """
    require(config, _ROTARY, positions="rotary")
    blocks = config.rotary_dims // 2
    kept = round(config.rotary_kept * blocks)
    if kept == 0:
        raise UserError(
            f"{_ROTARY} needs frequencies that turn, but rotary_kept {config.rotary_kept:g} keeps "
            f"none of {blocks}, which is no position encoding: raise it."
        )
    return config.rotary_base ** (-np.arange(kept) / blocks)


def target_weight(strength: float, length: int, offset: int, frequencies: Frequencies) -> float:
    """The weight that the last of `length` queries gives to the key `offset` positions back.

    Every block's query and key are parallel when `offset` apart, and `strength` is their product
    after the attention scale. A key at distance t then falls short of the target's logit by
    strength * sum_k (1 - cos(g_k (t - offset))), and the weight is 1 / sum_t exp(-shortfall). With
    fewer keys it is larger: the last query has the smallest weight of all.

    Args:
        strength: of one block.
        length: tokens.
        offset: positions back.
        frequencies: `[frequency]`, in radians per position.

    Returns:
        From 0 to 1.

    Raises:
        UserError: where the sequence is too short for the offset.
    """
    return 1 / float(np.exp(-strength * _gaps(length, offset, frequencies)).sum())


def strength_needed(eps: float, length: int, offset: int, frequencies: Frequencies) -> float:
    """The smallest strength of a block at which `target_weight` is 1 - eps.

    It exists for any eps, as 1 radian per position never comes back to where it was; but the
    highest frequency alone nearly does, after 44 or 333 positions, and needs a huge one.

    Args:
        eps: between 0 and 1.
        length: tokens.
        offset: positions back.
        frequencies: `[frequency]`, in radians per position.

    Returns:
        The strength, after the attention scale.

    Raises:
        UserError: for an eps outside 0 to 1, or a length too short for the offset.
    """
    if not 0 < eps < 1:
        raise UserError(f"eps is {eps}: give a number between 0 and 1.")
    gaps = _gaps(length, offset, frequencies)
    others = gaps[np.arange(length) != offset]
    if not len(others) or 1 / length >= 1 - eps:
        return 0.0
    # The others' weights relative to the target's must sum to eps / (1 - eps).
    wanted = math.log(eps / (1 - eps))

    def excess(strength: float) -> float:
        exponents = -strength * others
        top = exponents.max()
        return top + math.log(np.exp(exponents - top).sum()) - wanted

    enough = (math.log(len(others)) - wanted) / others.min()
    if excess(enough) >= 0:  # but for rounding, it would be 0 where a single other is there
        return float(enough)
    return float(brentq(excess, 0, enough, xtol=1e-12 * enough))


def positional_head(config: TransformerConfig, offset: int, strength: float) -> HookedTransformer:
    """A model whose first head attends `offset` positions back, whatever the tokens.

    Offset 0 is the diagonal head, 1 the previous-token head. Query and key of the first layer's
    first head are biases, the same for all tokens: in every block of two dimensions that turns, the
    query is (a, 0) and the key (a, 0) turned by offset * g_k, with a = sqrt(strength / attention
    scale). The weights are `target_weight`'s. Everything else is as drawn; in double precision, but
    with the model's sines and cosines in single.

    Args:
        config: causal, with rotary positions; any norm, any embedding.
        offset: how far back the head looks.
        strength: product of query and key in a block, after the attention scale;
            `strength_needed` says how much.

    Returns:
        The model, in evaluation mode.

    Raises:
        UserError: where the config has other positions, no frequency that turns or sees later
            tokens; for an offset outside the context, or a strength below 0.
    """
    frequencies = rotary_frequencies(config)
    require(config, _ROTARY, causal=True)
    if not is_whole(offset, 0, config.n_ctx - 1):
        raise UserError(f"offset is {offset}: give a whole number from 0 to {config.n_ctx - 1}.")
    if not 0 <= strength < math.inf:
        raise UserError(f"strength is {strength}: give a finite number of at least 0.")
    size = math.sqrt(strength / config.attention_scale)
    angles = torch.from_numpy(offset * frequencies)
    first = torch.arange(len(angles))
    second = first + config.rotary_dims // 2
    model = HookedTransformer(config).double()
    attention = model.blocks[0].attn
    with torch.no_grad():
        attention.W_Q[0], attention.W_K[0] = 0, 0
        attention.b_Q[0], attention.b_K[0] = 0, 0
        attention.b_Q[0, first] = size
        attention.b_K[0, first] = size * angles.cos()
        attention.b_K[0, second] = size * angles.sin()
    return model


def repeated_token_gap(
    model: HookedModel, token: int, length: int, before: Sequence[int] = ()
) -> Float[np.ndarray, "layer head"]:
    """How unequally copies of one token are weighted: largest less smallest weight, at worst.

    The model reads `before` and then `length` copies of `token`; of every copy as a query, the
    copies that it sees are compared, and the worst query counts. 0 means equal, and a purely
    positional head has 1. In the first layer of any model without positions it is 0, since
    identical activations have identical keys; without `before` it stays 0 in every layer, as all
    activations then stay identical. Later layers escape where something else comes before the
    copies, through the causal mask: copies have then seen it in different proportion.

    Args:
        model: a HookedTransformer or a TransformerBridge, in evaluation mode.
        token: the id that is repeated.
        length: how many copies, at least 2.
        before: ids of the tokens in front of them, such as a begin token.

    Returns:
        `[layer head]`, from 0 to 1.

    Raises:
        UserError: for fewer than two copies, and as `stream`.
    """
    if length < 2:
        raise UserError(f"length is {length}: it takes at least 2 copies to compare their weights.")
    tokens = torch.tensor([[*before, *[token] * length]])
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)

    def gap(pattern: Float[Tensor, "1 head query key"]) -> Float[np.ndarray, " head"]:
        copies = pattern[0, :, -length:, -length:].double().cpu()
        # A hidden copy has no weight: it is neither the largest nor, filled with 1, the smallest.
        smallest = copies.masked_fill(hidden, 1).amin(dim=-1)
        return (copies.amax(dim=-1) - smallest).amax(dim=-1).numpy()

    names = [pattern_hook(layer) for layer in range(model.cfg.n_layers)]
    found = read_at(model, tokens, dict.fromkeys(names, gap))
    return np.concatenate([found[name] for name in names])


def _gaps(length: int, offset: int, frequencies: Frequencies) -> Float[np.ndarray, " distance"]:
    if not 0 <= offset < length:
        raise UserError(
            f"no key lies {offset} positions before the last of {length} tokens: give an offset "
            f"from 0 to {length - 1}."
        )
    distance = np.arange(length) - offset
    # 1 - cos x as 2 sin^2(x / 2), which keeps its digits at small angles.
    return 2 * (np.sin(np.multiply.outer(distance, frequencies) / 2) ** 2).sum(axis=1)
