"""Attention without any parameter, in which the causal mask alone tells near keys from far ones.

Kim et al. 2025, arXiv 2509.21042, on how the causal mask encodes positions: queries, keys and
values are the normalised activations themselves, and what attention gives is added to them.
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from nope_interp.errors import UserError, unknown_name
from nope_interp.models.config import TransformerConfig
from nope_interp.models.encodings import RotaryPositions, rotate

Norm = Literal["unit", "layer", "layer_sqrt"]

Inputs = Float[Tensor, "batch pos d"]


def parameter_free_scores(
    inputs: Inputs,
    n_layers: int,
    *,
    norm: Norm = "unit",
    causal: bool = True,
    rotary: bool = False,
) -> Float[Tensor, "layer batch pos pos"]:
    """Attention scores of every layer, of hidden keys too.

    Args:
        inputs: what the first layer reads.
        n_layers: how many attention layers.
        norm: of activations: "unit" divides by the length, "layer" takes the mean away and divides
            by the spread, with scores over the width; "layer_sqrt" divides scores by its root.
        causal: whether a query sees earlier keys and its own only.
        rotary: whether queries and keys are turned by their positions, with base 10,000.

    Returns:
        Scores as the softmax reads them, but for its mask.

    Raises:
        UserError: for an odd width with rotary positions, another norm, no layer, and inputs that
            are not `[batch pos d]`.

    Example:
        >>> scores = parameter_free_scores(torch.eye(3)[None], 2)
        >>> [round(float(scores[1, 0, i, j]), 3) for i, j in ((1, 0), (2, 0), (2, 1))]
        [0.154, 0.132, 0.151]
    """
    if norm not in get_args(Norm):
        raise unknown_name("norm", norm, get_args(Norm))
    if inputs.ndim != 3 or n_layers < 1:
        raise UserError(
            f"inputs have {inputs.ndim} axes, of {n_layers} layers: give [batch, position, d], and "
            "at least one layer."
        )
    length, width = inputs.shape[1:]
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1) if causal else None
    x, found = inputs, []
    for _ in range(n_layers):
        h = _normalised(x, norm)
        turned = _turned(h) if rotary else h
        scores = turned @ turned.mT / {"unit": 1, "layer": width, "layer_sqrt": width**0.5}[norm]
        found.append(scores)
        seen = scores if hidden is None else scores.masked_fill(hidden, -torch.inf)
        x = seen.softmax(dim=-1) @ h + x
    return torch.stack(found)


def _normalised(x: Inputs, norm: Norm) -> Inputs:
    return F.normalize(x, dim=-1) if norm == "unit" else F.layer_norm(x, x.shape[-1:])


def _turned(h: Inputs) -> Inputs:
    length, width = h.shape[1:]
    config = TransformerConfig(1, width, 1, d_vocab=2, n_ctx=length, positions="rotary")
    cos, sin = RotaryPositions(config)(torch.arange(length))
    turned = rotate(rearrange(h, "batch pos d -> batch pos 1 d"), cos.to(h), sin.to(h))
    return rearrange(turned, "batch pos 1 d -> batch pos d")
