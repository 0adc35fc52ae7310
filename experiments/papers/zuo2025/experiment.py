"""Zuo et al. 2025 (arXiv 2501.00073): nearby rows point the same way, in random models and, with a
preset, in trained ones."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from experiments.papers.config import ReproduceConfig
from experiments.papers.zuo2025.presets import PRESETS
from experiments.papers.zuo2025.scores import PLACES, SCORES, read_rows
from experiments.papers.zuo2025.trained import trained_findings
from experiments.results.findings import (
    Figure,
    Findings,
    Panel,
    curve,
    line,
    log_spaced,
    over_seeds,
)
from experiments.runs.cells import Cells
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.sites import hook_name
from nope_interp.streams import stream
from nope_interp.theory.laws import LayerLaw
from probes.regression import LinearProbe
from probes.similarity import cosine_profile, cosine_similarity
from probes.variance import VarianceProbe

Array = np.ndarray

BASE = "base"
BIDIRECTIONAL = "bidirectional"

# One change of the base at a time; factors are of the base's own sizes. Those in the claim's range
# are what people train with; the others show where the pattern breaks.
_IN_RANGE: dict[str, dict[str, Any]] = {
    BASE: {},
    "depth / 3": {"n_layers": 1 / 3},
    "depth × 2": {"n_layers": 2.0},
    "1 head": {"n_heads": 1},
    "12 heads": {"n_heads": 12},
    "width / 4": {"d_model": 1 / 4},
    "width × 2": {"d_model": 2.0},
    "length / 4": {"n_ctx": 1 / 4},
    "length × 4": {"n_ctx": 4.0},
    "vocabulary 14": {"d_vocab": 14},
    "vocabulary 100": {"d_vocab": 100},
    "uniform": {"init": "uniform"},
    "Xavier normal": {"init": "xavier_normal"},
    "Xavier uniform": {"init": "xavier_uniform"},
    "Kaiming normal": {"init": "kaiming_normal"},
    "Kaiming uniform": {"init": "kaiming_uniform"},
    "s = 0.01": {"init_scale": 0.01},
    "s = 0.05": {"init_scale": 0.05},
    "no rescaled projections": {"rescale_output_projections": False},
}
_BEYOND: dict[str, dict[str, Any]] = {
    "s = 0.002": {"init_scale": 0.002},
    "s = 0.2": {"init_scale": 0.2},
    "post-norm": {"norm_placement": "post"},
    "no norm": {"normalization": "none"},
    "no residual": {"residual": False},
    BIDIRECTIONAL: {"causal": False},
}
SETTINGS = _IN_RANGE | _BEYOND
_SEQUENCES = 16
_LAW_SEQUENCES = 256  # enough for the mean cosine to tell the law from sqrt(i/j)
_PROBE_SEQUENCES = 32  # to fit on, and as many held out


def reproduce(config: ReproduceConfig, cells: Cells, device: str) -> Findings:
    """Adjacency scores over settings and sites, the cosine law, and the two carriers compared."""
    base = TransformerConfig(
        n_layers=config.scaled("depth", 6, least=2),
        d_model=config.scaled("width", 384, multiple_of=24, least=96),
        n_heads=6,
        d_vocab=10_000,
        n_ctx=config.scaled("length", 64, least=16),
        rescale_output_projections=True,
    )
    found = {
        name: cells.per_seed(
            name,
            config.seeds,
            lambda seed, changes=changes: _read(_changed(base, seed, changes), device),  # type: ignore[misc]
        )
        for name, changes in SETTINGS.items()
    }
    carriers = cells.per_seed(
        "carriers", config.seeds, lambda seed: _carriers(_changed(base, seed, {}), device)
    )
    at = log_spaced(base.n_ctx, 12)
    law = LayerLaw.of(base).cosine(at[:, None], at)
    first = dataclasses.replace(base, n_layers=1, attn_only=True)
    cosines = cells.per_seed(
        "cosine law", config.seeds, lambda seed: _first_cosines(_changed(first, seed, {}), device)
    )["mean"][:, at[:, None] - 1, at - 1]

    def lowest(means: Float[Array, "row layer"]) -> Float[Array, " row"]:
        return means.min(axis=-1)

    by_setting = {name: over_seeds(found[name]["blocks"][:, :, 0], lowest) for name in _IN_RANGE}
    worst = min(by_setting, key=lambda name: by_setting[name].ci_low)
    ratio = (carriers["cosines"] / carriers["variances"]).mean(axis=1)
    claims = {
        "every-layer": by_setting[BASE],
        "embedding": over_seeds(found[BASE]["places"][:, 0, 0]),
        "first-layer": over_seeds(found[BASE]["places"][:, 1, 0]),
        "cosine-law": over_seeds(cosines, lambda means: np.abs(means - law.flatten()).max(axis=-1)),
        "bidirectional": over_seeds(
            found[BIDIRECTIONAL]["places"][:, :, 0],
            lambda means: np.abs(means - 0.5).max(axis=-1),
        ),
        "hyperparameters": by_setting[worst],
        "carriers": over_seeds(ratio),
    }
    random = Findings(
        claims,
        (
            _map(found),
            _matrices(base.n_ctx, found[BASE]["cosines"]),
            _law(at, law, cosines),
            _compared(base, carriers),
        ),
        setting=f"{len(config.seeds)} random models for each of {len(SETTINGS)} settings; base: "
        f"{base.n_layers} layers, 6 heads, width {base.d_model}, {base.n_ctx} positions, "
        f"vocabulary 10,000, GPT-2's initialisation; {_SEQUENCES} sequences each",
        notes=(
            f"Of the settings in the claim's range, {worst!r} has the lowest score.",
            "The paper's score could not be checked; adjacency A, over all pairs left of the "
            "diagonal, decides the claims, and B and C stand beside it.",
        ),
    )
    if config.preset is None:
        return random
    return random.and_of(trained_findings(config, PRESETS[config.preset], cells, device))


def _changed(base: TransformerConfig, seed: int, changes: Mapping[str, Any]) -> TransformerConfig:
    """The base with a change; a fraction of a size is a factor of it."""
    sizes = ("n_layers", "d_model", "n_ctx")
    found = {
        name: max(1, round(value * getattr(base, name))) if name in sizes else value
        for name, value in changes.items()
    }
    return dataclasses.replace(base, seed=seed, **found)


def _tokens(config: TransformerConfig, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(config.seed)
    return torch.randint(config.d_vocab, (count, config.n_ctx), generator=generator)


def _read(config: TransformerConfig, device: str) -> dict[str, Array]:
    return read_rows(HookedTransformer(config).to(device), _tokens(config, _SEQUENCES))


def _first_cosines(config: TransformerConfig, device: str) -> dict[str, Array]:
    """The mean cosine matrix of the first attention output."""
    found: list[Array] = []

    def listen(activations: Tensor) -> None:
        found.append(cosine_similarity(activations).double().sum(dim=0).cpu().numpy())

    model = HookedTransformer(config).to(device)
    tokens = _tokens(config, _LAW_SEQUENCES)
    stream(model, tokens, {hook_name(0, "attn_out"): listen})
    return {"mean": np.sum(found, axis=0) / len(tokens)}


def _carriers(config: TransformerConfig, device: str) -> dict[str, Float[Array, " layer"]]:
    """Error of position after each block: from the row's cosines with the others, from its variance
    beside theirs by the same reader, and from its own variance alone."""
    model = HookedTransformer(config).to(device)
    tokens = _tokens(config, 2 * _PROBE_SEQUENCES)
    positions = torch.arange(1, config.n_ctx)  # the first one is left out
    probes = {
        hook_name(layer, "resid_post"): {
            "cosines": LinearProbe(seed=config.seed),
            "variances": LinearProbe(seed=config.seed),
            "variance": VarianceProbe(seed=config.seed),
        }
        for layer in range(config.n_layers)
    }

    def feed(activations: Tensor, name: str, stage: str) -> None:
        rows = activations[:, 1:]
        read = {
            "cosines": cosine_profile(cosine_similarity(rows)),
            "variances": cosine_profile(log_variance_differences(rows)),
            "variance": rows,
        }
        for kind, probe in probes[name].items():
            getattr(probe, stage)(read[kind], positions)

    for part, stage in zip(tokens.chunk(2), ("update", "evaluate"), strict=True):
        stream(model, part, {name: partial(feed, name=name, stage=stage) for name in probes})
    results = {"cosines": "linear", "variances": "linear", "variance": "variance"}
    return {
        kind: np.array([p[kind].result()[result].score("mae").value for p in probes.values()])
        for kind, result in results.items()
    }


def log_variance_differences(
    rows: Float[Tensor, "batch pos d_model"],
) -> Float[Tensor, "batch pos pos"]:
    """How much larger the variance of each other row is, as a difference of logarithms."""
    log = rows.var(dim=-1).log()
    return log[:, None, :] - log[:, :, None]


def _map(found: Mapping[str, Mapping[str, Array]]) -> Figure:
    at = np.arange(len(PLACES))
    panels = [
        Panel(
            f"adjacency {score}",
            tuple(
                curve(name, "measured", at, cells["places"][:, :, i])
                for name, cells in found.items()
            ),
        )
        for i, score in enumerate(SCORES)
    ]
    return Figure(
        "map",
        "Where the pattern holds, and where it breaks",
        "Mean score over seeds and sequences; 0.5 is no pattern, 1 a perfect one. Each row changes "
        "one thing of the base.",
        "place",
        "adjacency",
        tuple(panels),
        claims=("every-layer", "embedding", "first-layer", "bidirectional", "hyperparameters"),
        ticks=PLACES,
        heat_about=0.5,
    )


def _matrices(length: int, cosines: Float[Array, "seed place pos pos"]) -> Figure:
    shown = np.unique(np.linspace(1, length, 16).round().astype(int))
    at = np.arange(len(shown))
    means = cosines.mean(axis=0)[:, shown[:, None] - 1, shown - 1]
    panels = [
        Panel(
            place,
            tuple(
                line(str(i), "measured", at, np.where(shown == i, np.nan, row))
                for i, row in zip(shown, matrix, strict=True)
            ),
        )
        for place, matrix in zip(PLACES, means, strict=True)
    ]
    return Figure(
        "cosines",
        "Self-cosine matrices of the base",
        "Mean cosine between the rows of 16 positions, over sequences and seeds; the diagonal, "
        "which is 1, is left out.",
        "position",
        "cosine",
        tuple(panels),
        claims=("every-layer",),
        ticks=tuple(map(str, shown)),
        heat_about=0.0,
    )


def _law(at: Array, law: Float[Array, "i j"], cosines: Float[Array, "seed i j"]) -> Figure:
    panels = []
    for i in range(0, len(at), max(1, len(at) // 4)):
        series = (
            line("predicted", "predicted", at, law[i]),
            line(
                "sqrt(i/j)", "reference", at, np.sqrt(np.minimum(at, at[i]) / np.maximum(at, at[i]))
            ),
            curve("measured", "measured", at, cosines[:, i]),
        )
        panels.append(Panel(f"with row {at[i]}", series))
    return Figure(
        "law",
        "The cosine law of the first attention output",
        "Mean cosine of one row with the others. sqrt(i/j) is the law without softmax noise.",
        "position, from 1",
        "cosine",
        tuple(panels),
        claims=("cosine-law",),
        log="x",
    )


def _compared(base: TransformerConfig, carriers: Mapping[str, Array]) -> Figure:
    layers = np.arange(1, base.n_layers + 1)
    chance = (base.n_ctx - 1) / 4
    names = {
        "cosines": "from its cosines with the other rows",
        "variances": "from its variance beside the other rows'",
        "variance": "from its own variance alone",
    }
    errors = [curve(name, "measured", layers, carriers[key]) for key, name in names.items()]
    ratio = curve("ratio", "measured", layers, carriers["cosines"] / carriers["variances"])
    return Figure(
        "carriers",
        "Two carriers of position",
        "Held-out error of position after each block of the base, by ridge regression on nine "
        "quantiles of what a row has in common with the others of its sequence, later ones "
        "included; and from the row's own variance.",
        "layer",
        "mean absolute error, positions",
        (
            Panel("error", (line("chance, L/4", "chance", layers, chance), *errors)),
            Panel(
                "cosines over variances, by the same reader",
                (line("alike", "chance", layers, 1.0), ratio),
            ),
        ),
        claims=("carriers",),
    )
