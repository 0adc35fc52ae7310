"""What is read of the activations of a model, and of one in training: adjacency scores, mean
cosines and variances."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from experiments.papers.answering import accuracies, trained_to_answer
from experiments.papers.zuo2025.presets import Preset
from experiments.results.findings import Array, over_seeds, slope
from experiments.results.measured import Measured
from nope_interp.models.checkpoints import as_bidirectional
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import Sequences
from nope_interp.sites import hook_name
from nope_interp.streams import read_at
from probes.adjacency import adjacency_a, adjacency_a_mirrored, adjacency_b, adjacency_c
from probes.similarity import cosine_similarity
from probes.variance import activation_variance

SCORES = {
    "A": adjacency_a,
    "B": adjacency_b,
    "C": adjacency_c,
    "A mirrored": adjacency_a_mirrored,
}
# Claims rest on all of these. Activations that come nearer to one common vector with position pass
# A without any nearness, and C by a little; those that go away from it pass A mirrored.
DECIDING = ("A", "C", "A mirrored")
_OF_LAYER = {
    "attn_out": "attention",
    "resid_mid": "after it",
    "mlp_out": "MLP",
    "resid_post": "block",
}
# The embedding, then four sites of three layers.
SITES = (
    "embedding",
    *(f"{layer} {site}" for layer in ("first", "middle", "last") for site in _OF_LAYER.values()),
)


def read_activations(
    model: HookedTransformer, tokens: Sequences, *, first: int = 0
) -> dict[str, Array]:
    """Means over sequences, of activations from position `first` on.

    * sites [site score], blocks [layer score]: `SCORES` at `SITES` and after every block.
    * cosines [site pos pos]: matrices at `SITES`.
    * variance [layer pos]: of an activation's components, after every block.
    """
    last = model.config.n_layers - 1
    sites = [hook_name(0, "resid_pre")] + [
        hook_name(layer, site) for layer in (0, last // 2, last) for site in _OF_LAYER
    ]
    blocks = [hook_name(layer, "resid_post") for layer in range(last + 1)]

    def read(activations: Tensor) -> dict[str, Array]:
        cosines = cosine_similarity(activations[:, first:]).cpu()
        return {
            "scores": np.array([score(cosines).mean().item() for score in SCORES.values()]),
            "cosines": cosines.mean(dim=0).numpy(),
            "variance": activation_variance(activations[:, first:]).mean(dim=0).cpu().numpy(),
        }

    found = read_at(model, tokens, dict.fromkeys([*sites, *blocks], read), batch_size=len(tokens))

    def stacked(what: str, names: list[str]) -> Array:
        return np.stack([found[name][0][what] for name in names])

    return {
        "sites": stacked("scores", sites),
        "blocks": stacked("scores", blocks),
        "cosines": stacked("cosines", sites),
        "variance": stacked("variance", blocks),
    }


def read_through_training(
    preset: Preset, name: str, changes: Mapping[str, Any], steps: int, device: str, seed: int
) -> dict[str, Array]:
    """What is read of a model of the preset's sizes, with `changes`, that is trained on the task of
    that name, at each of `watched_steps`. Position 0, the begin token's, is left out.

    * accuracy [step]: share of held-out prompts answered, mean over the training lengths.
    * sites [step site score], blocks [step layer score], variance [step layer pos]: as in
      `read_activations`; and the same of the same weights without the causal mask, as
      unmasked_sites, unmasked_blocks and unmasked_variance.
    """
    task, tokens = preset.task(name), preset.read_on(name, seed)
    states: list[dict[str, Array]] = []

    def watch(step: int, model: HookedTransformer) -> None:
        accuracy = accuracies(model, task, preset.n_scored, "validation", seed).mean()
        states.append({"accuracy": np.array(accuracy), **_with_and_without_mask(model, tokens)})

    sizes = replace(preset.sizes, model={**preset.sizes.model, **changes})
    trained_to_answer(task, sizes, steps=steps, seed=seed, watch=watch, device=device)
    return {what: np.stack([state[what] for state in states]) for what in states[0]}


def _with_and_without_mask(model: HookedTransformer, tokens: Sequences) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for prefix, read in (("", model), ("unmasked_", as_bidirectional(model))):
        of_model = read_activations(read, tokens, first=1)
        found |= {f"{prefix}{what}": of_model[what] for what in ("sites", "blocks", "variance")}
    return found


def deciding(scores: Float[Array, "*rows score"]) -> Float[Array, "*rows deciding"]:
    """Those of `SCORES` that claims rest on."""
    return scores[..., [list(SCORES).index(name) for name in DECIDING]]


def weakest(scores: Float[Array, "seed *k deciding"]) -> Measured:
    """The pattern where it is weakest: the smallest mean over seeds, of all scores and places."""
    return over_seeds(scores, lambda means: means.min(axis=-1))


def farthest(scores: Float[Array, "seed *k deciding"]) -> Measured:
    """The largest distance of a mean over seeds from no pattern, of all scores and places."""
    return over_seeds(scores, lambda means: np.abs(means - 0.5).max(axis=-1))


def above_unmasked(cell: Mapping[str, Array]) -> Float[Array, "seed step layer deciding"]:
    """Adjacency after each block minus that of the same weights without the causal mask, of what
    `read_through_training` gave for each seed."""
    return deciding(cell["blocks"]) - deciding(cell["unmasked_blocks"])


def variance_trend(variance: Float[Array, "*rows pos"]) -> Float[Array, "*rows"]:
    """How the variance of activations falls with position: the slope of its logarithm over that of
    the number of tokens seen, by least squares.

    They are those of positions 1, 2, ..., which see 2, 3, ... tokens. The law of Chi et al.
    2023, 1/m after m tokens, is -1; variances that know no position are 0.
    """
    return slope(np.arange(2, variance.shape[-1] + 2), variance)
