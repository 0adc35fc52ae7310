"""Chi et al. 2023: position read from frozen random models by a two-layer probe.

Two questions: how well after each layer, and how much data that takes. A network must find the size
of an activation among its many directions, where the variance alone is handed the size itself.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from experiments.papers.config import ReproduceConfig
from experiments.probing.measure import feed
from experiments.probing.sites import Site
from experiments.results.figures import figure
from experiments.results.findings import (
    Array,
    Figure,
    Panel,
    chance_levels,
    chances,
    over_seeds,
    panel,
)
from experiments.results.measured import Measured
from experiments.runs.cells import Cells
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from probes.nonlinear import TwoLayerProbe
from probes.variance import VarianceProbe

_SEEDS = 3
_HELD_OUT = 64  # sequences that a probe is scored on
_LEARNING_RATE = 1e-3
_BATCH = 32
# What changes, and how many sequences are fitted on: on few, one control reads position as well,
# and the other never does.
_FEW, _MANY = (256,), (128, 256, 512, 1024)
_MODELS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "causal": ({}, _MANY),
    "causal, vocabulary of 64": ({"d_vocab": 64}, _FEW),
    "bidirectional, vocabulary of 64": ({"d_vocab": 64, "causal": False}, _FEW),
}
_CLAIMS = ("probe-few", "probe-small-vocabulary", "probe-bidirectional")
# What a preset adds: the first block alone, where the error is least, on as many as are needed.
_PRESET, _FIRST_BLOCK = "large", "causal, first block"
_MOST = (*_MANY, 4096, 16384, 64000)
# What these claims say in their own words, so that another count is no test of them.
_NAMED = {"probe-few": _MANY[-1], "probe": _MOST[-1]}
_PROBES = {"two_layer": "two-layer probe", "variance": "from the variance alone"}


def probes(
    config: ReproduceConfig, cells: Cells, device: str
) -> tuple[tuple[Figure, ...], dict[str, Measured], tuple[str, ...]]:
    """Position by layer and by number of sequences to fit on, the claims on its best layer, and
    notes on those that are left out."""
    length = config.scaled("length", 64, least=16)
    base = TransformerConfig(
        n_layers=config.scaled("depth", 3, least=2),
        d_model=config.scaled("width", 512, multiple_of=8, least=48),
        n_heads=8,
        d_vocab=1000,
        n_ctx=length,
    )
    seeds = config.seeds[:_SEEDS]
    models = dict(_MODELS)
    if config.preset == _PRESET:
        models[_FIRST_BLOCK] = {"n_layers": 1}, _MOST
    counts = {
        title: sorted({config.scaled("training", n, least=8) for n in sizes})
        for title, (_, sizes) in models.items()
    }
    read = cells.side_by_side(
        {
            title: partial(_errors, replace(base, **changes), counts[title], device)
            for title, (changes, _) in models.items()
        },
        seeds,
    )
    # Position 0 is left out.
    middle, _ = chances(length - 1)

    def best_share(means: Float[Array, "row layer"]) -> Float[Array, " row"]:
        return means.min(axis=-1) / middle

    of_claims = dict(zip((*_CLAIMS, "probe"), models, strict=False))
    others = {
        claim: counts[title][-1]
        for claim, title in of_claims.items()
        if counts[title][-1] != _NAMED.get(claim, counts[title][-1])
    }
    claims = {
        claim: over_seeds(read[title]["two_layer"][:, -1, 1:], best_share)
        for claim, title in of_claims.items()
        if claim not in others
    }
    notes = tuple(
        f"The claim {claim} is left out: it is of {_NAMED[claim]:,} sequences, and the probe has "
        f"seen {count:,}."
        for claim, count in others.items()
    )
    setting = f"{len(seeds)} seeds, width {base.d_model}, {length} positions, uniform tokens"
    by_data = _FIRST_BLOCK if _FIRST_BLOCK in models else "causal"
    figures = (
        _layers(base, {title: read[title] for title in _MODELS}, counts, setting),
        _data(base, read[by_data], counts[by_data], setting),
    )
    return figures, claims, notes


@figure("probes", "layer", "mean absolute error, positions", claims=_CLAIMS)
def _layers(
    base: TransformerConfig,
    read: Mapping[str, Mapping[str, Array]],
    counts: Mapping[str, Sequence[int]],
    setting: str,
) -> Iterator[Panel]:
    """Position by layer.

    Held-out error of position, read after each block of frozen random models: {setting}. Titles say
    how many sequences the probes were fitted on.
    """
    for title, errors in read.items():
        yield panel(
            f"{title}, fitted on {counts[title][-1]}",
            np.arange(1, base.n_layers + 1),
            chance=chance_levels(base.n_ctx - 1),
            measured={name: errors[kind][:, -1, 1:] for kind, name in _PROBES.items()},
        )


@figure(
    "data",
    "sequences to fit on",
    "mean absolute error, positions",
    claims=("probe", "probe-few"),
    log="x",
)
def _data(
    base: TransformerConfig, causal: Mapping[str, Array], counts: Sequence[int], setting: str
) -> Iterator[Panel]:
    """Position by number of sequences to fit on.

    The causal model above: {setting}. The first attention output's variance is nearly all position;
    the block's MLP then adds variance that is the same at every position. The network must find out
    what an activation's size is, and needs many sequences for it.
    """
    for i, site in enumerate(("first attention output", "after block 1")):
        yield panel(
            site,
            np.array(counts),
            chance=chance_levels(base.n_ctx - 1),
            measured={name: causal[kind][:, :, i] for kind, name in _PROBES.items()},
        )


def _errors(
    base: TransformerConfig, counts: Sequence[int], device: str, seed: int
) -> dict[str, Float[Array, "count site"]]:
    """Mean absolute error of each probe, in positions, at the first attention output and after
    each block, once it has been fitted on the first so many sequences."""
    model = HookedTransformer(replace(base, seed=seed)).to(device)
    generator = torch.Generator().manual_seed(seed)
    shape = _HELD_OUT + counts[-1], base.n_ctx
    tokens = torch.randint(base.d_vocab, shape, generator=generator)
    held_out, to_fit = tokens[:_HELD_OUT], tokens[_HELD_OUT:]
    blocks = [Site(layer, "resid_post") for layer in range(base.n_layers)]
    fitted = {
        site: (TwoLayerProbe(learning_rate=_LEARNING_RATE, seed=seed), VarianceProbe())
        for site in (Site(0, "attn_out"), *blocks)
    }
    found: dict[str, list[list[float]]] = {kind: [] for kind in _PROBES}
    for start, stop in zip((0, *counts[:-1]), counts, strict=True):
        feed(model, to_fit[start:stop], fitted, "update", batch_size=_BATCH)
        # Copies, since a probe that has been scored can learn no more.
        scored = copy.deepcopy(fitted)
        feed(model, held_out, scored, "evaluate", batch_size=_BATCH)
        for i, kind in enumerate(_PROBES):
            results = (readers[i].result()[kind] for readers in scored.values())
            found[kind].append([result.score("mae").value for result in results])
    return {kind: np.array(errors) for kind, errors in found.items()}
