"""Predicted means, variances and cosines of a causal NoPE transformer at random initialisation.

Two views of one calculation. `LayerLaw` gives closed formulas over the position m for the first
layer, after Chi et al. 2023 (arXiv 2305.13571) and, for the cosines, Zuo et al. 2025 (arXiv
2501.00073). `stream_covariances`, in `covariances`, carries the covariance between positions
through any number of layers numerically. What neither paper is known to state is marked "derived
here"; the tests hold every formula against random models.

Symbols: m is how many tokens a query sees, itself included (1 for the first); d = d_model; s the
standard deviation of every weight; W_o has s / output_shrink; g = s^2 / (s^2 + norm_eps) the
variance of a normalised component, 1 where epsilon is small; K(m) the probability that two
independent draws from the m tokens are the same token.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from nope_interp.errors import UserError
from nope_interp.fields import Count, Positive, check_fields
from nope_interp.models.config import TransformerConfig
from nope_interp.theory.validity import (
    check_weights,
    not_covered,
    output_divisor,
    warn_of_logits,
    warn_of_sizes,
    weight_spread,
)

Seen = Int[np.ndarray, "..."]
Values = Float[np.ndarray, "..."]


@dataclass(frozen=True)
class Moments:
    """Mean and variance of one component of a step, over draws of weights and tokens, by m."""

    mean: Values
    variance: Values


@dataclass(frozen=True)
class LayerLaw:
    """The first layer of a pre-norm causal NoPE transformer whose weights have spread `scale`.

    Biases are zero, gains one. Derivations use independence of the weight matrices, which is exact,
    and two approximations: sums over d components are Gaussian (relative error of order 1 / d),
    and the mean of a ratio is the ratio of the means (in `share`; relative error below 0.5 v^2,
    v the variance of a logit). The v / d term is its leading order.

    Args:
        d_model: width d.
        n_heads: heads; they matter only through d_head, the width that a logit sums over.
        scale: standard deviation s of every weight and of the embedding.
        d_vocab: tokens are drawn uniformly from so many; None where no token comes twice.
        output_shrink: what the output projection is divided by, sqrt(2 n_layers) in GPT-2.
        attn_scale: factor on q.k; 1 / sqrt(d_head) where None.
        norm_eps: added to the variance by the norm.

    Warns with `OutsideValidity`, once at construction, where the width, a head's width or the
    vocabulary is small or the logit variance is not; the formulas then still give finite numbers,
    shares at most 1. Raises `UserError` for sizes that are not positive and heads that
    do not divide the width.

    Example:
        >>> law = LayerLaw(d_model=768, n_heads=12)
        >>> law.moments(np.array([1, 64]))["blocks.0.hook_attn_out"].variance.round(4)
        array([0.0921, 0.0016])
    """

    d_model: Count
    n_heads: Count
    scale: Positive = 0.02
    d_vocab: Count | None = None
    output_shrink: Positive = 1.0
    attn_scale: Positive | None = None
    norm_eps: Positive = 1e-5

    def __post_init__(self) -> None:
        check_fields(self, "the law's")
        if self.d_model % self.n_heads:
            raise UserError(
                f"d_model {self.d_model} does not divide into {self.n_heads} heads: make d_model a "
                "multiple of n_heads."
            )
        warn_of_sizes(self.d_model, self.d_model // self.n_heads, self.d_vocab)
        warn_of_logits(self.logit_variance)

    @classmethod
    def of(cls, config: TransformerConfig, *, distinct_tokens: bool = False) -> "LayerLaw":
        """The law of a config's first layer, its tokens drawn uniformly from the vocabulary.

        Args:
            config: of a causal pre-norm model without positions, drawn "normal" or "uniform".
            distinct_tokens: sequences hold no token twice.

        Returns:
            The law.

        Raises:
            UserError: where the config is of another kind.
        """
        check_weights(config)
        for name, needed in (("causal", True), ("norm_placement", "pre"), ("residual", True)):
            if getattr(config, name) != needed:
                raise not_covered(config, name, needed)
        if config.normalization == "none":
            raise UserError(
                "the law of the first layer needs a norm, but normalization is 'none': set 'layer' "
                "or 'rms', or call stream_covariances."
            )
        return cls(
            config.d_model,
            config.n_heads,
            weight_spread(config),
            None if distinct_tokens else config.d_vocab,
            output_divisor(config),
            config.attn_scale,
            config.norm_eps,
        )

    @property
    def norm_variance(self) -> float:
        """g = s^2 / (s^2 + eps): variance of a component at `ln1.hook_normalized`.

        An activation of d components N(0, s^2) has mean square s^2 up to 1 / sqrt(d), and the norm
        divides by the square root of that and epsilon. Chi et al. 2023 have 1; epsilon is added
        here, and matters from s = 0.02 (2.4%) downwards.
        """
        return self.scale**2 / (self.scale**2 + self.norm_eps)

    @property
    def projection_variance(self) -> float:
        """d s^2 g: variance of a component of q, k and v.

        Each is a sum of d products of a weight (variance s^2) and a normalised component (g).
        Chi et al. 2023, without g.
        """
        return self.d_model * self.scale**2 * self.norm_variance

    @property
    def logit_variance(self) -> float:
        """v: variance of a scaled logit of a visible key, d^2 s^4 g^2 at scale 1 / sqrt(d_head).

        q.k sums d_head products of two independent components of variance d s^2 g, and is then
        multiplied by attn_scale. Derived here: a note on Chi et al. 2023 prints another power of
        the number of heads, which simulation rules out.
        """
        d_head = self.d_model // self.n_heads
        scale = 1 / math.sqrt(d_head) if self.attn_scale is None else self.attn_scale
        return scale**2 * d_head * self.projection_variance**2

    @property
    def inverse_softmax_noise(self) -> float:
        """1/r = E[w]^2 / E[w^2] of an unnormalised attention weight w = exp(logit): about exp(-v).

        For one query the logits are Gaussian with variance v |q|^2 / E|q|^2, whose relative
        variance is 2 / d_head; the mean of exp of it is exp(v + v^2 / d_head) to second order.
        Derived here. 0 where r passes the largest float.
        """
        v = self.logit_variance
        return math.exp(-v - v**2 / (self.d_model // self.n_heads))

    def collision(self, m: Seen) -> Values:
        """K(m) = 1/m + (1 - 1/m) p, p = 1 / d_vocab: two of m tokens are one position or one token.

        Without repeated tokens 1/m; with them the average over m tokens stops falling at p.
        Derived here.

        Args:
            m: tokens seen, from 1; any shape.

        Returns:
            As `m`.
        """
        m = _seen(m)
        return 1 / m + (1 - 1 / m) * (0 if self.d_vocab is None else 1 / self.d_vocab)

    def share(self, m: Seen) -> Values:
        """Variance of the attention's average of m values, over that of one value; from 1 down.

        With weights w_n / sum w and E[w^2] = r E[w]^2 (`inverse_softmax_noise`), the ratio of the
        means of sum w_n w_k [n, k the same token] and (sum w)^2 is K / (K + (1 - K) / r): exp(v) /
        m for large m, 1 for m = 1. The keys that a query favours also resemble one another, since
        they all lean towards W_k^T q: by Stein's lemma this adds (1 - K)^2 v / d, a floor that no m
        goes below. Derived here; Chi et al. 2023 have 1/m.

        Args:
            m: tokens seen, from 1; any shape.

        Returns:
            As `m`.
        """
        collision = self.collision(m)
        even = collision / (collision + (1 - collision) * self.inverse_softmax_noise)
        leaning = (1 - collision) ** 2 * self.logit_variance / self.d_model
        return np.minimum(even + leaning, 1.0)

    def weight_variance(self, m: Seen) -> Values:
        """Variance of one attention weight over the m visible keys, whose mean is 1/m exactly.

        E[w_n^2] / E[(sum w)^2] as in `share`, less 1/m^2: with e = 1 - 1/r,
        e (1 - K) / (m^2 (1 - e (1 - K))).
        Zero for m = 1. Derived here; Chi et al. 2023 set the weight to 1/m, which is its mean. What
        is left of 1/m^2 is small, so that the error of the ratio weighs more: at few keys the
        variance is too large by up to about v of itself (m = 2: v/8 here, v/8 - v^2/8 in truth).

        Args:
            m: tokens seen, from 1; any shape.

        Returns:
            As `m`.
        """
        excess = (1 - self.inverse_softmax_noise) * (1 - self.collision(m))
        return excess / (1 - excess) / _seen(m) ** 2

    def head_variance(self, m: Seen) -> Values:
        """d s^2 g share(m): variance of a component of z, the head outputs.

        Values have variance d s^2 g, and their weights come from independent matrices. After Chi
        et al. 2023, who have d s^2 / m.

        Args:
            m: tokens seen, from 1; any shape.

        Returns:
            As `m`.
        """
        return self.projection_variance * self.share(m)

    def output_variance(self, m: Seen) -> Values:
        """d^2 s^4 g share(m) / output_shrink^2: variance of a component of the attention output.

        A sum of d products of a weight of W_o and a component of z. After Chi et al. 2023, who
        have d^2 s^4 / m.

        Args:
            m: tokens seen, from 1; any shape.

        Returns:
            As `m`.
        """
        return self._full_output_variance * self.share(m)

    def residual_variance(self, m: Seen) -> Values:
        """s^2 + the variance of the attention output: the two are uncorrelated, as W_o has mean 0.

        Chi et al. 2023: s^2 + d^2 s^4 / m.

        Args:
            m: tokens seen, from 1; any shape.

        Returns:
            As `m`.
        """
        return self.scale**2 + self.output_variance(m)

    def moments(self, m: Seen) -> dict[str, Moments]:
        """Mean and variance after every step, by the name of the hook that shows it.

        `attn.hook_attn_scores` and `attn.hook_pattern` are of visible keys. A model with
        attention alone has `hook_resid_post` where this has `hook_resid_mid`. The mean of every
        step but the pattern is exactly zero, since its sign is that of a weight matrix.

        Args:
            m: tokens seen, from 1; any shape.

        Returns:
            Mean and variance by hook name, each as `m`.

        Raises:
            UserError: for an m below 1.
        """
        seen = _seen(m)
        one = np.ones_like(seen)
        zero_mean = {
            "hook_embed": self.scale**2 * one,
            "blocks.0.ln1.hook_normalized": self.norm_variance * one,
            "blocks.0.attn.hook_q": self.projection_variance * one,
            "blocks.0.attn.hook_k": self.projection_variance * one,
            "blocks.0.attn.hook_v": self.projection_variance * one,
            "blocks.0.attn.hook_attn_scores": self.logit_variance * one,
            "blocks.0.attn.hook_z": self.head_variance(m),
            "blocks.0.hook_attn_out": self.output_variance(m),
            "blocks.0.hook_resid_mid": self.residual_variance(m),
        }
        return {name: Moments(0 * one, variance) for name, variance in zero_mean.items()} | {
            "blocks.0.attn.hook_pattern": Moments(1 / seen, self.weight_variance(m))
        }

    def cosine(self, i: Seen, j: Seen) -> Values:
        """Cosine of the attention outputs that see i and j tokens; arrays broadcast.

        Weights of different queries are independent, so for i < j the inner product of the two
        averages is the chance K(j) that a position of each is the same token: no softmax noise, no
        floor. Over the norms, cos = K(j) / sqrt(share(i) share(j)), which is exp(-v) sqrt(i/j)
        where tokens are distinct and i is large (derived here; Zuo et al. 2025 argue for the same
        fall from uniform weights).

        Args:
            i: tokens that the one sees, from 1.
            j: tokens that the other sees, from 1.

        Returns:
            Cosines, as `i` and `j` broadcast.

        Raises:
            UserError: for positions below 1.
        """
        i, j = np.broadcast_arrays(np.asarray(i), np.asarray(j))
        inner = self.collision(np.maximum(i, j)) * self._full_output_variance
        norms = self.output_variance(i) * self.output_variance(j)
        return np.where(i == j, 1.0, inner / np.sqrt(norms))

    @property
    def _full_output_variance(self) -> float:
        """What the output projection makes of a single value."""
        return self.d_model * (self.scale / self.output_shrink) ** 2 * self.projection_variance


def _seen(m: Seen) -> Values:
    seen = np.asarray(m, dtype=float)
    counts = np.isfinite(seen) & (seen >= 1) & (seen == np.round(seen))
    if not counts.all():
        wrong = seen[~counts].flat[0]
        raise UserError(f"m is {wrong:g}: positions count the tokens seen, 1, 2, 3 and so on.")
    return seen
