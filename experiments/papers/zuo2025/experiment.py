"""Zuo et al. 2025 (arXiv 2501.00073): nearby activations point the same way, in random models
and, with a preset, in trained ones."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from experiments.papers.config import ReproduceConfig
from experiments.papers.zuo2025.carriers import carrier_errors, carriers_figure, error_ratio
from experiments.papers.zuo2025.presets import PRESETS
from experiments.papers.zuo2025.scores import (
    SCORES,
    SITES,
    deciding,
    farthest,
    read_activations,
    weakest,
)
from experiments.papers.zuo2025.trained import trained_findings
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, log_spaced, over_seeds, panel
from experiments.runs.cells import Cells
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.sites import hook_name
from nope_interp.streams import read_at
from nope_interp.theory.laws import LayerLaw
from probes.similarity import cosine_similarity

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

_Reader = Callable[[HookedTransformer], Mapping[str, Array]]


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

    def read(title: str, reader: _Reader, **changes: Any) -> dict[str, Array]:
        return cells.per_seed(title, config.seeds, partial(_read, reader, base, changes, device))

    found = {name: read(name, _scores, **changes) for name, changes in SETTINGS.items()}
    carriers = read("carriers", _carriers)
    at = log_spaced(base.n_ctx, 12)
    law = LayerLaw.of(base).cosine(at[:, None], at)
    means = read("cosine law", _first_cosines, n_layers=1 / base.n_layers, attn_only=True)["mean"]
    cosines = means[:, at[:, None] - 1, at - 1]
    by_setting = {name: weakest(deciding(found[name]["blocks"])) for name in _IN_RANGE}
    worst = min(by_setting, key=lambda name: by_setting[name].ci_low)
    claims = {
        "every-layer": by_setting[BASE],
        "embedding": farthest(deciding(found[BASE]["sites"][:, 0])),
        "first-layer": weakest(deciding(found[BASE]["sites"][:, 1])),
        "cosine-law": over_seeds(cosines, lambda means: np.abs(means - law.flatten()).max(axis=-1)),
        "bidirectional": farthest(deciding(found[BIDIRECTIONAL]["sites"])),
        "hyperparameters": by_setting[worst],
        "carriers": over_seeds(error_ratio(carriers, base.n_ctx).mean(axis=1)),
    }
    random = Findings(
        claims,
        (
            _map(found),
            _matrices(base.n_ctx, found[BASE]["cosines"]),
            _law(at, law, cosines),
            carriers_figure(base.n_ctx, carriers),
        ),
        setting=f"{len(config.seeds)} random models for each of {len(SETTINGS)} settings; base: "
        f"{base.n_layers} layers, 6 heads, width {base.d_model}, {base.n_ctx} positions, "
        f"vocabulary 10,000, GPT-2's initialisation; {_SEQUENCES} sequences each",
        notes=(
            f"Of the settings in the claim's range, {worst!r} has the lowest score.",
            "The paper's score could not be checked. Claims rest on adjacency A, its mirror and C, "
            "on whichever says least for them. B stands beside these.",
        ),
    )
    if config.preset is None:
        return random
    return random.and_of(trained_findings(config, PRESETS[config.preset], cells, device))


def _read(
    reader: _Reader, base: TransformerConfig, changes: Mapping[str, Any], device: str, seed: int
) -> Mapping[str, Array]:
    """What is read of the base with changes; those of a size are factors of it."""
    sizes = ("n_layers", "d_model", "n_ctx")
    found = {
        name: max(1, round(value * getattr(base, name))) if name in sizes else value
        for name, value in changes.items()
    }
    return reader(HookedTransformer(dataclasses.replace(base, seed=seed, **found)).to(device))


def _tokens(config: TransformerConfig, count: int) -> Int[Tensor, "sequence pos"]:
    generator = torch.Generator().manual_seed(config.seed)
    return torch.randint(config.d_vocab, (count, config.n_ctx), generator=generator)


def _scores(model: HookedTransformer) -> dict[str, Array]:
    return read_activations(model, _tokens(model.config, _SEQUENCES))


def _first_cosines(model: HookedTransformer) -> dict[str, Array]:
    """The mean cosine matrix of the first attention output."""

    def summed(activations: Tensor) -> Float[Array, "pos pos"]:
        return cosine_similarity(activations).double().sum(dim=0).cpu().numpy()

    tokens = _tokens(model.config, _LAW_SEQUENCES)
    [found] = read_at(model, tokens, {hook_name(0, "attn_out"): summed}).values()
    return {"mean": np.sum(found, axis=0) / len(tokens)}


def _carriers(model: HookedTransformer) -> dict[str, Float[Array, " layer"]]:
    return carrier_errors(model, _tokens(model.config, 2 * _PROBE_SEQUENCES))


@figure(
    "map",
    "site",
    "adjacency",
    claims=("every-layer", "embedding", "first-layer", "bidirectional", "hyperparameters"),
    ticks=SITES,
    heat_about=0.5,
)
def _map(found: Mapping[str, Mapping[str, Array]]) -> Iterator[Panel]:
    """Where the pattern holds, and where it breaks.

    Mean score over seeds and sequences; 0.5 is no pattern, 1 a perfect one. Each row changes one
    thing of the base.
    """
    for i, score in enumerate(SCORES):
        scores = {name: of_setting["sites"][:, :, i] for name, of_setting in found.items()}
        yield panel(f"adjacency {score}", np.arange(len(SITES)), measured=scores)


def _shown(length: int) -> Int[Array, " shown"]:
    return np.unique(np.linspace(1, length, 16).round().astype(int))


@figure(
    "cosines",
    "position",
    "cosine",
    claims=("every-layer",),
    ticks=lambda length, cosines: tuple(map(str, _shown(length))),
    heat_about=0.0,
)
def _matrices(length: int, cosines: Float[Array, "seed site pos pos"]) -> Iterator[Panel]:
    """Self-cosine matrices of the base.

    Mean cosine between the activations of 16 positions, over sequences and seeds; the diagonal,
    which is 1, is left out.
    """
    shown = _shown(length)
    means = cosines.mean(axis=0)[:, shown[:, None] - 1, shown - 1]
    means[:, np.eye(len(shown), dtype=bool)] = np.nan
    for site, matrix in zip(SITES, means, strict=True):
        named = dict(zip(map(str, shown), matrix, strict=True))
        yield panel(site, np.arange(len(shown)), measured=named)


@figure("law", "position, from 1", "cosine", claims=("cosine-law",), log="x")
def _law(
    at: Int[Array, " point"], law: Float[Array, "i j"], cosines: Float[Array, "seed i j"]
) -> Iterator[Panel]:
    """The cosine law of the first attention output.

    Mean cosine of one activation with the others. sqrt(i/j) is the law without softmax noise.
    """
    for i in range(0, len(at), max(1, len(at) // 4)):
        yield panel(
            f"with position {at[i]}",
            at,
            predicted={"predicted": law[i]},
            reference={"sqrt(i/j)": np.sqrt(np.minimum(at, at[i]) / np.maximum(at, at[i]))},
            measured={"measured": cosines[:, i]},
        )
