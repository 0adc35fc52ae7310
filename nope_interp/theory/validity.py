"""Where the laws at random initialisation hold: which configs they cover, and when they warn."""

import math
import warnings
from collections.abc import Iterator

from nope_interp.errors import UserError
from nope_interp.models.config import TransformerConfig

# Where the formulas were held against random models; outside, they warn.
LARGEST_LOGIT_VARIANCE = 0.5
SMALLEST_D_VOCAB = 20
SMALLEST_D_MODEL = 32
SMALLEST_D_HEAD = 8


class OutsideValidity(UserWarning):
    """A formula is computed for sizes at which one of its approximations may not hold."""


def warn_of_logits(variance: float) -> None:
    """Warn with `OutsideValidity` where the variance of a scaled logit is not small."""
    if variance > LARGEST_LOGIT_VARIANCE:
        warnings.warn(
            f"the logit variance {variance:.3g} is not small: attention is sharp, and the "
            "softmax's noise is overestimated at small m.",
            OutsideValidity,
            stacklevel=4,
        )


def warn_of_sizes(d_model: int, d_head: int, d_vocab: int | None) -> None:
    """Warn with `OutsideValidity` of each size that is small; None where no token repeats."""
    for doubt in _doubtful_sizes(d_model, d_head, d_vocab):
        warnings.warn(doubt, OutsideValidity, stacklevel=4)


def _doubtful_sizes(d_model: int, d_head: int, d_vocab: int | None) -> Iterator[str]:
    """Why a formula may not hold at these sizes."""
    if d_vocab is not None and d_vocab < SMALLEST_D_VOCAB:
        yield (
            f"a vocabulary of {d_vocab} is small: models with different embeddings differ from one "
            "another more than positions do."
        )
    if d_model < SMALLEST_D_MODEL:
        yield (
            f"a width of {d_model} is small: sums over it are not Gaussian. Epsilon, centring and "
            "the v / d term are off by terms of order 1 / d."
        )
    if d_head < SMALLEST_D_HEAD:
        yield (
            f"a head's width of {d_head} is small: the spread of the queries' lengths is known to "
            "second order in 1 / d_head only."
        )


def check_weights(config: TransformerConfig) -> None:
    """Raise UserError for positions, and for weights whose spreads differ."""
    if config.positions != "none":
        raise not_covered(config, "positions", "none")
    if config.init not in ("normal", "uniform"):
        raise UserError(
            f"the laws need one spread for all weights, but init is {config.init!r}: set 'normal' "
            "or 'uniform'."
        )


def not_covered(config: TransformerConfig, name: str, needed: object) -> UserError:
    """The error for a field of another value than the law needs."""
    return UserError(
        f"the law needs {name}={needed!r}, but this config has {getattr(config, name)!r}: change "
        "it, or measure the model."
    )


def weight_spread(config: TransformerConfig) -> float:
    """s: the standard deviation of every weight at initialisation."""
    return 0.02 if config.init_scale is None else config.init_scale


def output_divisor(config: TransformerConfig) -> float:
    """What the spread of output projections is divided by."""
    return math.sqrt(2 * config.n_layers) if config.rescale_output_projections else 1.0
