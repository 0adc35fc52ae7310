"""Gelberg et al. 2025 (arXiv 2512.12167): positions help training, stand in the way beyond the
context, and can be dropped after a short recalibration; on small models trained here."""

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
from jaxtyping import Float

from experiments.papers.config import ReproduceConfig
from experiments.papers.gelberg2025.models import (
    CONTROL,
    DROPPED,
    RECALIBRATED,
    TIMES,
    Sizes,
    bias_gradients,
    curve_steps,
    read_model,
)
from experiments.papers.on_text import check_text
from experiments.results.claims import Outcome, Paper
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, over_seeds, panel
from experiments.results.measured import Measured
from experiments.results.measurements import INTACT
from experiments.runs.cells import Cells
from nope_interp.fields import check_seeds
from nope_interp.pretrained.scaled import SCALINGS

_ENCODINGS = {"NoPE": "none", "RoPE": "rotary"}
_WINDOWS = 96
# Random models, each of a seed of its own: nothing is trained, and their gradients differ much.
_RANDOM_MODELS = 10
_LEARNED = ("converges", "cost")
_GATED = ("recovers", "extends")

# By "loss/..." or "curve/..." and a name, as `read_model` gives them.
Found = Mapping[str, Float[Array, "seed _point"]]


def reproduce(config: ReproduceConfig, cells: Cells, device: str) -> Findings:
    """Trains rotary models and models without positions, drops, recalibrates, and reads them."""
    check_text(config, _WINDOWS, lambda asked: max(TIMES) * _context(asked))
    random = range(config.seed, config.seed + max(_RANDOM_MODELS, len(config.seeds)))
    check_seeds(random)
    sizes = Sizes(
        n_layers=config.scaled("depth", 4, least=1),
        width=config.scaled("width", 64, multiple_of=8, least=16),
        context=_context(config),
        steps=config.scaled("training", 1000),
        again=config.scaled("training", 200),
        n_windows=_WINDOWS,
        device=device,
    )
    found = cells.side_by_side({"models": partial(read_model, sizes)}, config.seeds)["models"]
    gradients = {
        name: cells.per_seed(f"gradient, {name}", random, partial(_norms, sizes, positions))
        for name, positions in _ENCODINGS.items()
    }
    norms = {name: of_encoding["norm"] for name, of_encoding in gradients.items()}
    numbers = _numbers(found) | {"gradient": (norms["NoPE"] / norms["RoPE"]).mean(axis=1)}
    claims = {id: over_seeds(values) for id, values in numbers.items()}
    shown = _shown(config.paper, claims)
    return Findings(
        shown,
        (_curves(found, sizes), _lengths(found, sizes), _gradients(norms)),
        setting=f"{len(config.seeds)} byte-level Llamas of {sizes.n_layers} layers, width "
        f"{sizes.width} and a context of {sizes.context} bytes, trained for {sizes.steps} steps, "
        f"dropped and recalibrated for {sizes.again}",
        notes=(
            "With one seed all models begin with the same weights and see the same batches.",
            "Scaled rotary positions are those of the intact model trained as long.",
            f"Gradients are of {len(random)} random-init models with LayerNorm and GELU: none of "
            f"these is trained.",
            *_left_out(shown),
        ),
    )


def _context(config: ReproduceConfig) -> int:
    return config.scaled("length", 64, multiple_of=2, least=16)


def _norms(sizes: Sizes, positions: str, seed: int) -> dict[str, Array]:
    return {"norm": bias_gradients(sizes, positions, seed)}


def _numbers(found: Found) -> dict[str, Float[Array, " seed"]]:
    def loss(name: str, times: int) -> Float[Array, " seed"]:
        of_times: Array = found[f"loss/{name}"][:, TIMES.index(times)]
        return of_times

    longest = max(TIMES)
    scaled = np.stack([loss(scaling, longest) for scaling in SCALINGS])
    return {
        "converges": found["curve/NoPE"][:, -1] - found["curve/RoPE"][:, -1],
        "cost": loss(DROPPED, 1) - loss(INTACT, 1),
        "recovers": loss(RECALIBRATED, 1) - loss(CONTROL, 1),
        "rotary-fails": loss(INTACT, longest) - loss(INTACT, 1),
        "extends": loss(RECALIBRATED, longest) - loss(RECALIBRATED, 1),
        "scaled": scaled.min(axis=0) - loss(RECALIBRATED, longest),
    }


def _shown(paper: Paper, claims: Mapping[str, Measured]) -> dict[str, Measured]:
    """Without `_GATED` where a model that uses no context would pass their bounds from above."""
    learned = all(Outcome(paper.claim(id), claims[id]).by_bounds == "reproduced" for id in _LEARNED)
    return {id: found for id, found in claims.items() if learned or id not in _GATED}


def _left_out(shown: Mapping[str, Measured]) -> Iterator[str]:
    """A note on the claims that a run does not measure."""
    if _GATED[0] not in shown:
        yield (
            f"{' and '.join(_GATED)} are not measured. A model that uses no context would pass "
            f"them, and this run does not surely reproduce both {' and '.join(_LEARNED)}."
        )


@figure("convergence", "optimiser steps, plus 1", "nats per byte", claims=("converges",), log="x")
def _curves(found: Found, sizes: Sizes) -> Iterator[Panel]:
    """Training with and without positions.

    Held-out loss; models of one seed begin with the same weights. Bars are 95% intervals over
    seeds.
    """
    curves = {name: found[f"curve/{name}"] for name in _ENCODINGS}
    yield panel("held-out text", curve_steps(sizes) + 1, measured=curves)


@figure(
    "beyond",
    "bytes read",
    "nats per byte",
    claims=("cost", "recovers", "rotary-fails", "extends", "scaled"),
    log="x",
)
def _lengths(found: Found, sizes: Sizes) -> Iterator[Panel]:
    """Within the context and beyond it.

    Loss of the same last bytes of held-out windows, read with one, two and four contexts before
    their end. Bars are 95% intervals over seeds.
    """
    at = sizes.context * np.array(TIMES)
    names = (INTACT, CONTROL, DROPPED, RECALIBRATED, *SCALINGS)
    yield panel("held-out text", at, measured={name: found[f"loss/{name}"] for name in names})


@figure("gradients", "layer", "norm of the gradient", claims=("gradient",))
def _gradients(norms: Mapping[str, Float[Array, "seed layer"]]) -> Iterator[Panel]:
    """What builds a positional bias at initialisation.

    Gradient of a layer's mean attention on the previous token, by the weights of its queries and
    keys, on text in shuffled order. Bars are 95% intervals over seeds.
    """
    layers = np.arange(1, norms["NoPE"].shape[1] + 1)
    yield panel("random-init models", layers, measured=norms)
