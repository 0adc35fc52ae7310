"""The covariance between positions, carried through the layers of a NoPE model at random weights.

Symbols are those of `laws`; the tests hold every formula against random models.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.special import factorial, gammaln, xlogy

from nope_interp.errors import UserError
from nope_interp.models.blocks import ACTIVATIONS
from nope_interp.models.config import TransformerConfig
from nope_interp.theory.validity import (
    check_weights,
    output_divisor,
    warn_of_logits,
    warn_of_sizes,
    weight_spread,
)

Covariance = Float[np.ndarray, "pos pos"]

# Beyond this the power series of the attention's kernel is cut: see `_attention_output`.
SHARPEST = 100.0


def stream_covariances(
    config: TransformerConfig, tokens: Int[np.ndarray, " pos"]
) -> dict[str, Covariance]:
    """Expected covariance between positions at the residual sites of every layer, per component.

    Entry (i, j) is the mean over draws of the weights of x_i . x_j / d_model, both activations of
    the same sequence: variances on the diagonal, cosines by division. Derived here, in the limit of
    wide models in which infinitely wide attention is a Gaussian process (Hron et al. 2020, arXiv
    2006.10540), with one term of finite width. With C the covariance of what attention reads and A
    the matrix of even weights,

        attention output_ij = d^2 s^2 s_o^2 ((A [C * W] A^T)_ij / (A W A^T)_ij + v C_ij l_i l_j / d)
            with W_nk = exp(v C_ij C_nk), the mean product of unnormalised weights: as in
            `LayerLaw.share` the mean of a ratio is taken as the ratio of the means, and keys lean
            towards the query, by l = diag(C) - diag(A C A^T);
        MLP output_ij = d_mlp s_o^2 E[phi(a) phi(b)], (a, b) Gaussian with covariance d s^2 C_ij.

    Sublayers have weights of their own, so their outputs are uncorrelated with the stream and
    covariances add. Later layers read activations that are correlated, so the floor rises with
    depth.

    Args:
        config: of a model without positions, drawn "normal" or "uniform"; causal or not.
        tokens: of one sequence; equal tokens have equal embeddings.

    Returns:
        Arrays `[pos pos]` by hook name: `hook_embed`, and of each block `hook_attn_out`,
        `hook_resid_mid`, `hook_mlp_out` (these two not if attn_only) and `hook_resid_post`.

    Raises:
        UserError: for other configs, and for tokens that are not one sequence.

    Warns with `OutsideValidity` where the width, a head's width or the kinds of repeated tokens are
    few, and where a layer's logit variance is not small.
    """
    check_weights(config)
    tokens = np.asarray(tokens)
    if np.ndim(tokens) != 1 or not len(tokens):
        raise UserError(
            f"tokens have shape {np.shape(tokens)}: give the ids of one sequence, at least one."
        )
    length, kinds = len(tokens), len(np.unique(tokens))
    warn_of_sizes(config.d_model, config.d_head, kinds if kinds < length else None)
    weights = np.tri(length) if config.causal else np.ones((length, length))
    even = weights / weights.sum(1, keepdims=True)
    kernel = _mlp_kernel(config)

    stream = weight_spread(config) ** 2 * (tokens[:, None] == tokens).astype(float)
    found = {"hook_embed": stream}
    for layer in range(config.n_layers):
        written = _attention_output(config, _read(config, stream), even)
        stream = _merge(config, stream, written)
        found[f"blocks.{layer}.hook_attn_out"] = written
        if not config.attn_only:
            found[f"blocks.{layer}.hook_resid_mid"] = stream
            written = kernel(_read(config, stream))
            stream = _merge(config, stream, written)
            found[f"blocks.{layer}.hook_mlp_out"] = written
        found[f"blocks.{layer}.hook_resid_post"] = stream
    return found


def cosines(covariance: Covariance) -> Covariance:
    """The cosines between activations whose covariance this is.

    Args:
        covariance: `[pos pos]`.

    Returns:
        `[pos pos]`, from -1 to 1.
    """
    size = np.sqrt(np.diag(covariance))
    return covariance / size / size[:, None]


def _normalized(config: TransformerConfig, stream: Covariance) -> Covariance:
    if config.normalization == "none":
        return stream
    size = np.sqrt(np.diag(stream) + config.norm_eps)
    return stream / size / size[:, None]


def _read(config: TransformerConfig, stream: Covariance) -> Covariance:
    """What a sublayer reads."""
    return _normalized(config, stream) if config.norm_placement == "pre" else stream


def _merge(config: TransformerConfig, stream: Covariance, written: Covariance) -> Covariance:
    """The stream after a sublayer has written."""
    merged = stream + written if config.residual else written
    return merged if config.norm_placement == "pre" else _normalized(config, merged)


def _attention_output(
    config: TransformerConfig, read: Covariance, even: Float[np.ndarray, "query key"]
) -> Covariance:
    d, variance = config.d_model, weight_spread(config) ** 2
    v = config.attention_scale**2 * config.d_head * (d * variance) ** 2
    largest = v * np.diag(read).max() ** 2
    warn_of_logits(largest)
    # exp(v C_ij C_nk) as a power series in v C_ij, so that one product of matrices does each term;
    # fluctuations of q.q over d_head components add a v^2 / d_head, as in
    # `LayerLaw.inverse_softmax_noise`.
    exponent = v * read * (1 + v * read * np.diag(read).mean() / config.d_head)
    # Each entry's series is divided by exp of its largest argument, which the ratio does not see.
    size = np.abs(read).max()
    argument, unit = np.abs(exponent) * size, read / size
    # Far beyond validity, where a query has long settled on one key, the series would only be long.
    argument *= min(1.0, SHARPEST / argument.max())
    top, bottom, power = np.zeros_like(read), np.zeros_like(read), np.ones_like(read)
    for k in range(_terms(float(argument.max()))):
        weight = np.exp(xlogy(k, argument) - gammaln(k + 1) - argument) * np.sign(exponent) ** k
        bottom += weight * (even @ power @ even.T)
        power = power * unit
        top += weight * (even @ power @ even.T) * size
    leaning = (np.diag(read) - np.diag(even @ read @ even.T)).clip(min=0)
    # A key cannot lean further than all the way.
    attended = top / bottom + min(v / d, 1.0) * read * np.outer(leaning, leaning)
    return d**2 * variance * (variance / output_divisor(config) ** 2) * attended


def _terms(largest: float) -> int:
    """How many terms of the series of exp reach double precision at arguments up to `largest`.

    Over exp(largest) they are the probabilities of a Poisson law: its mean and ten deviations more.
    """
    return math.ceil(20 + largest + 10 * math.sqrt(largest))


def _mlp_kernel(config: TransformerConfig) -> Callable[[Covariance], Covariance]:
    """Covariance of the MLP's output as a function of that of its input.

    E[phi(a) phi(b)] = sum_k h_k^2 c^k for correlation c, h_k the coefficients of phi(sigma x) in
    normalised Hermite polynomials (Mehler's formula). What the series leaves out at c = 1 is
    given to its last term.
    """
    # An even grid, since Gaussian quadrature stumbles over the kink of a ReLU.
    nodes = np.linspace(-9, 9, 3601)
    weights = np.exp(-(nodes**2) / 2)
    weights /= weights.sum()
    degrees = range(25)  # the last one is even: activations are odd in their first degree alone
    polynomials = [
        np.polynomial.hermite_e.hermeval(nodes, np.eye(len(degrees))[k]) / math.sqrt(factorial(k))
        for k in degrees
    ]
    variance = config.d_model * weight_spread(config) ** 2
    shrunk = weight_spread(config) ** 2 / output_divisor(config) ** 2

    def kernel(read: Covariance) -> Covariance:
        spread = np.sqrt(variance * np.diag(read))
        at_nodes = torch.from_numpy(np.multiply.outer(spread, nodes))
        phi = ACTIVATIONS[config.activation](at_nodes).numpy()
        h = np.stack([(phi * polynomial) @ weights for polynomial in polynomials])
        missing = (phi**2 @ weights - (h**2).sum(0)).clip(min=0)
        h[-1] = np.sign(h[-1]) * np.sqrt(h[-1] ** 2 + missing)
        correlation = cosines(read)
        moment = sum(np.outer(h[k], h[k]) * correlation**k for k in degrees)
        if config.gated:
            moment = moment * variance * read
        return config.mlp_width * shrunk * moment

    return kernel
