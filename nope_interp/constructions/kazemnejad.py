"""NoPE can count and can measure distance: Theorems 1 and 2 of Kazemnejad et al. 2023.

arXiv 2305.19466, appendix; the theorems' wording, the embedding and the resulting stream are the
paper's, the matrices inside a layer are filled in here and checked by the tests. Component numbers
are the paper's, counted from 1: component 3 is index 2 of the stream.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float

from nope_interp.constructions.requirements import require, require_at_least
from nope_interp.errors import UserError
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer

Knots = Float[np.ndarray, " knot"]
Points = Float[np.ndarray, " point"]

# Components of the stream: 1, [begin token], and m; what follows is content.
ONES, BEGIN, POSITION = 0, 1, 2
_CONTENT = 3

_ABSOLUTE = "Theorem 1 (absolute position)"
_RELATIVE = "Theorem 2 (relative position)"


def counting_config(
    n_ctx: int, d_vocab: int, n_layers: int = 2, **changes: int
) -> TransformerConfig:
    """A config that both theorems fit: no norm, causal, ReLU.

    An MLP of width n_ctx, the default, interpolates 1/x at every 1/m.

    Args:
        n_ctx: tokens in the longest sequence.
        d_vocab: how many tokens there are, the begin token included.
        n_layers: Theorem 1 needs one, Theorem 2 two.
        changes: other sizes, such as `d_model`, `n_heads` or `d_mlp`.

    Returns:
        The config.
    """
    given = {"n_layers": n_layers, "d_vocab": d_vocab, "n_ctx": n_ctx}
    sizes = {"d_model": 16, "n_heads": 2, "d_mlp": n_ctx} | changes
    kind = {"normalization": "none", "activation": "relu", "init_scale": 1.0}
    return TransformerConfig.from_dict({**given, **sizes, **kind})


@dataclass(frozen=True)
class Counter:
    """A model whose first layer writes m, the number of tokens seen, into component 3.

    `reciprocal_error[m - 1]` is what its MLP writes for m, minus m; it is what a plot of the fit
    shows, and no weight but the MLP's adds to it.
    """

    model: HookedTransformer = field(repr=False)
    reciprocal_error: Float[np.ndarray, " n_ctx"] = field(repr=False)


def absolute_position(config: TransformerConfig, begin_token: int | None) -> Counter:
    """Theorem 1: for sequences that start with the begin token, and have it nowhere else.

    Embedding: component 1 is one, component 2 is one for the begin token alone, component 3 zero,
    the rest is drawn. In head 1 of the first layer every key is the all-ones vector, so that a
    query weighs the m tokens it sees by 1/m each; values read component 2; the output adds to
    component 3 of the stream, which at `blocks.0.hook_resid_mid` is 1/m. The MLP adds 1/x - x,
    fitted by least squares on ReLUs, and at `blocks.0.hook_resid_post` component 3 is m. All other
    heads, and the following layers, write nothing. Weights are in double precision.

    Args:
        config: as `counting_config` makes them.
        begin_token: what every sequence starts with.

    Returns:
        The model, and how far its 1/m is off.

    Raises:
        UserError: without a begin token in the vocabulary, or where the config has a norm, sees
            later tokens, has positions of its own or no residual, is too narrow, or has an MLP
            other than ReLU.
    """
    require(
        config,
        _ABSOLUTE,
        positions="none",
        causal=True,
        normalization="none",
        residual=True,
        attn_only=False,
        activation="relu",
    )
    require_at_least(config, _ABSOLUTE, d_model=_CONTENT)
    whole = isinstance(begin_token, int) and not isinstance(begin_token, bool)
    if begin_token is None or not whole or not 0 <= begin_token < config.d_vocab:
        raise UserError(
            f"{_ABSOLUTE} needs a begin token: give its id, from 0 to {config.d_vocab - 1}, and "
            "start every sequence with it."
        )
    model = HookedTransformer(config).double()
    with torch.no_grad():
        for name, weight in model.blocks.named_parameters():
            if not name.startswith("0.attn.qkv"):
                weight.zero_()
        model.W_E[:, :_CONTENT] = 0
        model.W_E[:, ONES] = 1
        model.W_E[begin_token, BEGIN] = 1
        attention, mlp = model.blocks[0].attn, model.blocks[0].mlp
        assert mlp is not None  # refused above
        attention.W_K.zero_()
        attention.W_K[0, ONES, :] = 1
        attention.W_V.zero_()
        attention.W_V[0, BEGIN, 0] = 1
        attention.W_O[0, 0, POSITION] = 1
        m = np.arange(1, config.n_ctx + 1)
        knots = _knots(config.n_ctx, config.mlp_width)
        slopes, constant = _fit(1 / m, m - 1 / m, knots)
        mlp.into.weight[: len(knots), POSITION] = 1
        mlp.into.bias[: len(knots)] = -torch.from_numpy(knots)
        mlp.out.weight[POSITION, : len(knots)] = torch.from_numpy(slopes)
        mlp.out.bias[POSITION] = constant
    written = 1 / m + _hinges(1 / m, knots) @ slopes + constant
    return Counter(model, written - m)


def relative_position(config: TransformerConfig, begin_token: int | None) -> Counter:
    """Theorem 2: a second layer whose scores are content plus a function of the distance alone.

    On top of `absolute_position`, head 1 of the second layer has queries (1, -n, content) and keys
    (m, 1, content), n and m the positions of query and key counted from 1. The scores at
    `blocks.1.attn.hook_attn_scores` are then content product + (m - n), ALiBi's bias with slope 1,
    whatever the config's attention scale. The content product is that of the drawn weights between
    components 4 and up of the two tokens' embeddings.

    Args:
        config: as `counting_config` makes them.
        begin_token: what every sequence starts with.

    Returns:
        The model, and how far its 1/m is off.

    Raises:
        UserError: as `absolute_position`, and where there is no second layer or no room for
            content in the stream or the head.
    """
    require_at_least(config, _RELATIVE, n_layers=2, d_head=_CONTENT, d_model=_CONTENT + 1)
    counter = absolute_position(config, begin_token)
    drawn = HookedTransformer(config).double().blocks[1].attn
    with torch.no_grad():
        attention = counter.model.blocks[1].attn
        attention.W_Q[0, _CONTENT:, 2:] = drawn.W_Q[0, _CONTENT:, 2:]
        attention.W_K[0, _CONTENT:, 2:] = drawn.W_K[0, _CONTENT:, 2:]
        attention.W_Q[0, ONES, 0], attention.W_K[0, POSITION, 0] = 1, 1
        attention.W_Q[0, POSITION, 1], attention.W_K[0, ONES, 1] = -1, 1
        attention.W_Q[0] /= config.attention_scale
    return counter


def _knots(n_ctx: int, width: int) -> Knots:
    """Where the ReLUs bend: at 1/m for m spread like squares, the first at 0.

    A straight line over m to m + h misses 1/x by h^2 / 4m, so equal errors need h ~ sqrt(m).
    Through n_ctx points goes a line with n_ctx - 2 bends: more ReLUs than n_ctx - 1 are not used.
    """
    bends = max(0, min(width, n_ctx - 1) - 1)
    if bends == n_ctx - 2:
        return np.concatenate(([0.0], 1 / np.arange(2, n_ctx)))
    spread = (np.arange(1, bends + 1) / (bends + 1)) ** 2
    return np.concatenate(([0.0], 1 / (1 + (n_ctx - 1) * spread)))


def _hinges(x: Points, knots: Knots) -> Float[np.ndarray, "point knot"]:
    return np.maximum(x[:, None] - knots, 0)


def _fit(x: Points, y: Points, knots: Knots) -> tuple[Knots, float]:
    """Slopes and constant of the sum of ReLUs that is nearest to y, in least squares."""
    design = np.column_stack((_hinges(x, knots), np.ones_like(x)))
    size = np.linalg.norm(design, axis=0)  # columns differ by orders of magnitude
    solution = np.linalg.lstsq(design / size, y, rcond=None)[0] / size
    return solution[:-1], float(solution[-1])
