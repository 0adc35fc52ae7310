"""Kim et al. 2025 (arXiv 2509.21042): the causal mask alone makes scores favour nearby keys.

Without parameters, with trained ones, and on what rotary positions leave relative; a model of the
user's is read where the config names one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from experiments.papers.config import ReproduceConfig
from experiments.papers.kim2025.given import given_findings
from experiments.papers.kim2025.scores import (
    nearer_share,
    share_beyond,
    share_beyond_distance,
    variation,
)
from experiments.papers.kim2025.trained import N_SEQUENCES, length_of, trained_findings
from experiments.papers.on_text import check_text
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, exactly, over_seeds, panel
from experiments.runs.cells import Cells
from nope_interp.constructions.kim import parameter_free_scores

_LAYERS = 4
# The first layer has no pattern at all.
_SEEN = range(1, _LAYERS)
# How many times as many positions the deeper layers are looked at with, too.
_DEEPER, _LONGER = slice(2, _LAYERS), (1, 2, 4)
_DRAWS, _AT_ONCE = 4000, 500
_PRINTED = {(1, 0): 0.154, (2, 0): 0.132, (2, 1): 0.150}
# What is changed of inputs of about unit length that are drawn independently.
_JUDGED: dict[str, dict[str, Any]] = {
    f"correlation {alpha:g}": {"correlation": alpha} for alpha in (0.0, 0.2, 0.4, 0.6, 0.8)
}
_DRAWN: dict[str, dict[str, Any]] = {
    "layer norm, scores over the width": {"norm": "layer"},
    "layer norm, scores over its root": {"norm": "layer_sqrt"},
}
_NO_MASK, _ROTARY, _ROTARY_NO_MASK = "without the mask", "rotary", "rotary, without the mask"
_CONTROLS: dict[str, dict[str, Any]] = {
    _NO_MASK: {"causal": False},
    _ROTARY: {"rotary": True},
    _ROTARY_NO_MASK: {"rotary": True, "causal": False},
}

Draw = Callable[..., dict[str, Array]]
Settings = Mapping[str, dict[str, Any]]
# Mean scores by setting.
Means = Mapping[str, Float[Array, "seed layer pos pos"]]


def reproduce(config: ReproduceConfig, cells: Cells, device: str) -> Findings:
    """Scores without parameters, then those of models trained here.

    A given model comes first, so that one which cannot be read is refused before the rest.
    """
    check_text(config, N_SEQUENCES, length_of)
    given = None if config.model is None else given_findings(config, cells, device)
    own = _without_parameters(config, cells).and_of(trained_findings(config, cells, device))
    return own if given is None else own.and_of(given)


def _without_parameters(config: ReproduceConfig, cells: Cells) -> Findings:
    width = config.scaled("width", 64, multiple_of=8, least=16)
    length = length_of(config)

    def kept(title: str, draw: Draw, settings: Settings) -> dict[str, Array]:
        return {
            name: cells.per_seed(
                f"{title}, {name}", config.seeds, partial(draw, width, length, **changes)
            )["mean"]
            for name, changes in settings.items()
        }

    means = kept("without parameters", _mean_scores, _JUDGED | _DRAWN | _CONTROLS)
    within = kept("within one input", _within_one, _JUDGED)
    exact, *longer = (_exact(times * length) for times in _LONGER)
    nearer = {
        (name, layer): over_seeds(nearer_share(means[name][:, layer]))
        for name in _JUDGED
        for layer in _SEEN
    }
    alone = [over_seeds(shares[:, layer]) for shares in within.values() for layer in _SEEN]
    name, layer = least = min(nearer, key=lambda where: nearer[where].ci_low)
    bent = np.stack([variation(means[kind][:, -1]) for kind in (_ROTARY, _ROTARY_NO_MASK)], axis=1)
    claims = {
        "by-hand": exactly([_off_by_hand()]),
        "near": exactly(nearer_share(exact[1:2])),
        "near-deep": exactly([nearer_share(longer[-1][_DEEPER]).min()]),
        "near-random": nearer[least],
        "near-one": min(alone, key=lambda found: found.ci_low),
        "no-mask": over_seeds(nearer_share(means[_NO_MASK])[:, 1:].mean(axis=1)),
    }
    if len(bent) > 2:
        claims["rope"] = over_seeds(bent, lambda rows: share_beyond(rows) @ np.array([1, -1]))
    return Findings(
        claims,
        (
            _rows(exact, means),
            _shares(means),
            _with_length([exact, *longer]),
            _alone(within),
            _bends(means),
        ),
        setting=f"{_LAYERS} attention layers without parameters, {length} positions, "
        f"width {width}, {_DRAWS} draws of the inputs for each of {len(config.seeds)} seeds",
        notes=(f"Random inputs favour nearby keys least with {name}, in layer {layer + 1}.",),
    )


def _exact(length: int) -> Float[Array, "layer pos pos"]:
    """Of orthonormal inputs."""
    return parameter_free_scores(torch.eye(length)[None].double(), _LAYERS)[:, 0].numpy()


def _mean_scores(
    width: int, length: int, seed: int, *, correlation: float = 0.0, **changes: Any
) -> dict[str, Float[Array, "layer pos pos"]]:
    """Mean over draws; inputs have what they share beside what each has for itself."""
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros(_LAYERS, length, length, dtype=torch.float64)
    for _ in range(_DRAWS // _AT_ONCE):
        inputs = _inputs(width, length, correlation, generator)
        total += parameter_free_scores(inputs, _LAYERS, **changes).double().sum(dim=1)
    return {"mean": (total / _DRAWS).numpy()}


def _within_one(
    width: int, length: int, seed: int, *, correlation: float
) -> dict[str, Float[Array, " layer"]]:
    """What an average over inputs hides: the share of pairs within each, mean over inputs."""
    inputs = _inputs(width, length, correlation, torch.Generator().manual_seed(seed))
    scores = parameter_free_scores(inputs, _LAYERS).double().numpy()
    return {"mean": nearer_share(scores).mean(axis=1)}


def _inputs(
    width: int, length: int, correlation: float, generator: torch.Generator
) -> Float[torch.Tensor, "draw pos d_model"]:
    own = torch.randn(_AT_ONCE, length, width, generator=generator)
    common = torch.randn(_AT_ONCE, 1, width, generator=generator)
    inputs = correlation**0.5 * common + (1 - correlation) ** 0.5 * own
    return inputs / width**0.5


def _off_by_hand() -> float:
    """Of three orthonormal inputs, the largest difference from the identity, then from print."""
    first, second = parameter_free_scores(torch.eye(3)[None].double(), 2)[:, 0].numpy()
    printed = [abs(second[pair] - value) for pair, value in _PRINTED.items()]
    return max(np.abs(first - np.eye(3)).max(), *printed)


@figure("rows", "key, from 1", "score", claims=("by-hand", "near"))
def _rows(exact: Float[Array, "layer pos pos"], means: Means) -> Iterator[Panel]:
    """Scores of the last query, without parameters.

    Scores for its earlier keys. Orthonormal inputs are exact; random ones are means over draws,
    with 95% intervals over seeds. The first layer tells no position.
    """
    keys = np.arange(1, exact.shape[-1])
    for layer in range(_LAYERS):
        drawn = {name: means[name][:, layer, -1, :-1] for name in ("correlation 0", _NO_MASK)}
        orthonormal = {"orthonormal inputs": exact[layer, -1, :-1]}
        yield panel(f"layer {layer + 1}", keys, predicted=orthonormal, measured=drawn)


@figure(
    "nearer",
    "layer",
    "share of pairs of keys",
    claims=("near", "near-random", "no-mask"),
    ticks=lambda means: tuple(str(layer) for layer in range(2, _LAYERS + 1)),
    heat_about=0.5,
)
def _shares(means: Means) -> Iterator[Panel]:
    """Where the nearer of two keys scores higher.

    Share of pairs of earlier keys, by their mean scores over all draws; 0.5 is no pattern.
    """
    shares = {
        name: nearer_share(means[name].mean(axis=0))[1:] for name in (*_JUDGED, *_DRAWN, _NO_MASK)
    }
    yield panel("without parameters", np.arange(_LAYERS - 1), measured=shares)


@figure("longer", "positions", "share of pairs of keys", claims=("near-deep",), log="x")
def _with_length(exact: Sequence[Float[Array, "layer _ _"]]) -> Iterator[Panel]:
    """Does it last with more positions.

    Share of pairs of earlier keys of which the nearer scores higher, of orthonormal inputs, exact.
    0.5 is no pattern; below it farther keys win. The first layer tells no position.
    """
    lengths = np.array([scores.shape[-1] for scores in exact], dtype=float)
    shares = np.stack([nearer_share(scores) for scores in exact], axis=1)
    measured = {f"layer {layer + 1}": shares[layer][None] for layer in _SEEN}
    yield panel("orthonormal inputs", lengths, chance={"no pattern": 0.5}, measured=measured)


@figure("one", "layer", "share of pairs of keys", claims=("near-one",))
def _alone(within: Mapping[str, Float[Array, "seed layer"]]) -> Iterator[Panel]:
    """Where the nearer of two keys scores higher within one input.

    Share of pairs of earlier keys within one random input, mean over inputs. 0.5 is no pattern. In
    the first layer scores do not know the mask: a control. Bars are 95% intervals over seeds.
    """
    layers = np.arange(1, _LAYERS + 1)
    yield panel("without parameters", layers, chance={"no pattern": 0.5}, measured=within)


@figure("rope", "layer", "share of variation", claims=("rope",))
def _bends(means: Means) -> Iterator[Panel]:
    """What distance does not explain with rotary positions, without parameters.

    Share of the variation of mean scores that is left when the mean of each distance is taken away.
    Without the mask a sequence still has ends. The first layer has no mean pattern at all: it is
    left out.
    """
    shares = {
        title: share_beyond_distance(means[name])[1:]
        for title, name in (("with the mask", _ROTARY), ("without the mask", _ROTARY_NO_MASK))
    }
    layers = np.arange(2, _LAYERS + 1)
    yield panel("not explained by distance", layers, chance={"relative": 0.0}, measured=shares)
