"""Zuo et al. 2025: which of two carriers tells position more reliably, by one nonlinear reader."""

from collections.abc import Iterator, Mapping

import numpy as np
from einops import rearrange
from jaxtyping import Float
from sklearn.ensemble import ExtraTreesRegressor
from torch import Tensor

from experiments.results.figures import figure
from experiments.results.findings import Array, Panel, panel
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import Sequences
from nope_interp.sites import hook_name
from nope_interp.streams import read_at
from probes.similarity import cosine_profile, cosine_similarity

# Trees read any law of a number; leaves of several activations average its noise.
_TREES = {"n_estimators": 50, "min_samples_leaf": 5, "n_jobs": 1}
# Of chance: smaller errors are none, and which of two is smaller says nothing.
_LEAST = 0.01

# By carrier: what the reader sees of each activation.
Carriers = Mapping[str, Float[Array, "batch pos feature"]]


def carrier_errors(
    model: HookedTransformer, tokens: Sequences
) -> dict[str, Float[Array, " layer"]]:
    """Held-out error of position after each block, by carrier; trees are fit on half the tokens."""
    hooks = [hook_name(layer, "resid_post") for layer in range(model.config.n_layers)]
    fit, held_out = (
        read_at(model, part, dict.fromkeys(hooks, carriers_of), batch_size=len(part))
        for part in tokens.chunk(2)
    )
    by_layer = [errors_of(fit[hook][0], held_out[hook][0], model.config.seed) for hook in hooks]
    return {carrier: np.array([of[carrier] for of in by_layer]) for carrier in by_layer[0]}


def carriers_of(activations: Float[Tensor, "batch pos d_model"]) -> dict[str, Array]:
    """Cosines of an activation with the others, its variance beside theirs, and its own alone.

    The first position is left out.
    """
    later = activations[:, 1:]
    log_variance = later.var(dim=-1).log()
    # How much larger the variance of each other one is, as a difference of logarithms.
    larger = log_variance[:, None, :] - log_variance[:, :, None]
    return {
        "cosines": cosine_profile(cosine_similarity(later)).numpy(),
        "variances": cosine_profile(larger).numpy(),
        "variance": log_variance[..., None].cpu().numpy(),
    }


def errors_of(fit: Carriers, held_out: Carriers, seed: int) -> dict[str, float]:
    """Mean absolute error of position in held-out sequences, by carrier."""
    return {carrier: _error(fit[carrier], held_out[carrier], seed) for carrier in fit}


def _error(
    fit: Float[Array, "batch pos feature"], held_out: Float[Array, "more pos feature"], seed: int
) -> float:
    reader = ExtraTreesRegressor(random_state=seed, **_TREES).fit(*_read_from(fit))
    activations, positions = _read_from(held_out)
    return float(np.abs(reader.predict(activations) - positions).mean())


def _read_from(carrier: Float[Array, "batch pos feature"]) -> tuple[Array, Array]:
    positions = np.tile(np.arange(carrier.shape[1]), len(carrier))
    return rearrange(carrier, "batch pos feature -> (batch pos) feature"), positions


def chance(length: int) -> float:
    """Error of the best constant, of sequences whose first position is left out."""
    return (length - 1) / 4


def error_ratio(
    errors: Mapping[str, Float[Array, "seed layer"]], length: int
) -> Float[Array, "seed layer"]:
    """Error from cosines over that from variances: 1 where both are about zero.

    Args:
        errors: in positions, by carrier.
        length: positions of a sequence, the first among them.
    """
    cosines, variances = (
        np.maximum(errors[carrier], _LEAST * chance(length)) for carrier in ("cosines", "variances")
    )
    return np.asarray(cosines / variances)


@figure("carriers", "layer", "mean absolute error, positions", claims=("carriers",))
def carriers_figure(
    length: int, errors: Mapping[str, Float[Array, "seed layer"]]
) -> Iterator[Panel]:
    """Two carriers of position.

    Held-out error of position after each block of the base, by extremely randomised trees. They
    read nine quantiles of what an activation has in common with the others of its sequence, later
    ones included. Or they read its own variance.
    """
    layers = np.arange(1, errors["cosines"].shape[1] + 1)
    names = {
        "from its cosines with the others": "cosines",
        "from its variance beside the others'": "variances",
        "from its own variance alone": "variance",
    }
    yield panel(
        "error",
        layers,
        chance={"chance, L/4": chance(length)},
        measured={name: errors[carrier] for name, carrier in names.items()},
    )
    title = "cosines over variances, by the same reader"
    ratio = error_ratio(errors, length)
    yield panel(title, layers, chance={"alike": 1}, measured={"ratio": ratio})
