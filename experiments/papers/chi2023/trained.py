"""Chi et al. 2023 after training: the variance by layer of small trained models, and of one that
the user gives.

The variance is that across the components of one activation, by which a layer norm divides,
averaged over sequences. A random one has hardly a mean, so that its mean square is the same; a
trained one may have one, and how much of the mean square it is stands in the captions. Position 0
holds the begin token and is left out, since trained models make an attention sink of it: m starts
at 2.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from einops import reduce
from jaxtyping import Float, Int
from torch import Tensor

from experiments.papers.config import ReproduceConfig
from experiments.papers.on_text import (
    check_text,
    given_variant,
    held_out,
    sentences,
    told_of,
    trained_on_text,
)
from experiments.results.findings import (
    Array,
    Figure,
    Findings,
    Panel,
    largest_deviation,
    log_spaced,
    over_seeds,
    panel,
)
from experiments.results.measured import Measured
from experiments.results.measurements import RANDOM_INIT
from experiments.runs.cells import Cells
from experiments.variants.variants import random_init
from nope_interp.hooked_model import HookedModel
from nope_interp.models.checkpoints import as_bidirectional
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.sites import hook_name
from nope_interp.streams import read_at
from nope_interp.tasks.registry import make_task
from nope_interp.theory.covariances import stream_covariances
from nope_interp.theory.validity import OutsideValidity
from probes.bootstrap import ArrayFunction
from probes.variance import activation_variance

_SITES = {"resid_post": "after each block", "attn_out": "at each attention output"}
_SQUARE = "resid_post, mean square"
_TOKENS = {"text": "text", "random": "uniform random tokens"}
_TRAINED, _RANDOM, _UNMASKED, _GIVEN = "trained", RANDOM_INIT, "bidirectional", "given"
_SEEDS = 3
_STEPS = 300
_LENGTH, _LEAST_LENGTH = 128, 16
_SEQUENCES = 256
_GIVEN_SEQUENCES = 64
_PREDICTED = 16  # sequences that the recursion follows
# The claim is of a fully pretrained model. A model of 28.6 million had been read when this was set.
_LEAST_MILLIONS = 100


def check_length(config: ReproduceConfig) -> None:
    """Refuse lengths, as `check_text`, at which small models have too little text.

    Args:
        config: asks for a length.

    Raises:
        UserError: for such a length.
    """
    # Behind a begin token.
    check_text(config, _SEQUENCES, lambda asked: _length(asked) - 1)


def trained_models(
    config: ReproduceConfig, cells: Cells, device: str
) -> tuple[tuple[Figure, ...], dict[str, Measured]]:
    """Small models trained on text, beside their random-init and bidirectional variants."""
    length = _length(config)
    base = TransformerConfig(
        n_layers=config.scaled("depth", 4, least=2),
        d_model=config.scaled("width", 128, multiple_of=4, least=48),
        n_heads=4,
        d_vocab=make_task("text").d_vocab,
        n_ctx=length,
    )
    seeds = config.seeds[:_SEEDS]
    steps = config.scaled("training", _STEPS)
    seen = log_spaced(length)[1:]
    compute = partial(_trained, base, steps, seen, device)
    found = cells.side_by_side({_TRAINED: compute}, seeds)[_TRAINED]
    figures = _figures(
        _TRAINED,
        "After training",
        f"{len(seeds)} NoPE models of width {base.d_model}, trained on text for {steps} steps; the "
        "same models before training, with the recursion's prediction; the trained weights without "
        f"the causal mask. Mean over {_SEQUENCES} sequences that no model was trained on; bars "
        f"are 95% intervals over seeds. {_on_means(found, _TRAINED)}",
        {name: _relative(values, values[..., :1]) for name, values in found.items()},
        seen,
        (_TRAINED, _RANDOM, _UNMASKED),
        {"resid_post": ("trained", "trained-bidirectional"), "attn_out": ("trained-attention",)},
    )

    # Each model's own ratio: trained models differ in scale, and the largest would outweigh them.
    def shrinkage(model: str, site: str, largest: ArrayFunction) -> Measured:
        variance = found[f"text/{model}/{site}"]
        return over_seeds(variance[..., -1] / variance[..., 0], largest)

    def least(means: Float[Array, "row layer"]) -> Float[Array, " row"]:
        return means.max(axis=-1)

    from_one = largest_deviation(np.ones(base.n_layers))
    return figures, {
        "trained": shrinkage(_TRAINED, "resid_post", least),
        "trained-attention": shrinkage(_TRAINED, "attn_out", least),
        "trained-bidirectional": shrinkage(_UNMASKED, "resid_post", from_one),
    }


def given_model(config: ReproduceConfig, cells: Cells, device: str) -> Findings:
    """The model that `config.model` names, beside its random-init variant; the claim is left out of
    one that has positions or is small.

    Raises UserError where it cannot be loaded, and where its text or its context is too short.
    """
    found = cells.arrays("given model", lambda: _given(config, device))
    name, seen = Path(config.model or "").name, found["seen"]
    # One sequence's ratio would be noise: all are divided by the mean.
    relative = {
        key: _relative(values, values[..., :1].mean(axis=0, keepdims=True))
        for key, values in found.items()
        if values.ndim == 3
    }
    figures = _figures(
        _GIVEN,
        f"A given model: {name}",
        f"{name} and its random-init variant. Mean over {_GIVEN_SEQUENCES} sequences; bars are 95% "
        "intervals over them. A model that normalises what attention writes, as Gemma 3 does, sets "
        f"its scale. {_on_means(found, _GIVEN)}",
        relative,
        seen,
        (_GIVEN, _RANDOM),
        {"resid_post": ("pretrained",), "attn_out": ()},
    )
    left_out = _left_out(found, name)
    ends = found[f"text/{_GIVEN}/resid_post"][..., [0, -1]]
    return Findings(
        {} if left_out else {"pretrained": over_seeds(ends, least_shrinkage)},
        figures,
        f"{name} on {_GIVEN_SEQUENCES} sequences of {seen[-1]} tokens",
        (*sentences(found["told"]), *left_out),
    )


def _left_out(found: Mapping[str, Array], name: str) -> list[str]:
    """Why the claim is not of this model; nothing where it is."""
    notes = []
    if not found["without_positions"]:
        notes.append(
            "The claim pretrained is left out, since it is of models without positions: those of "
            f"{name} are at work in what is measured."
        )
    millions = found["n_parameters"] / 1e6
    if millions < _LEAST_MILLIONS:
        notes.append(
            f"The claim pretrained is left out, since it is of {_LEAST_MILLIONS} million "
            f"parameters or more: {name} has {millions:.3g} million."
        )
    return notes


def least_shrinkage(means: Float[Array, "row layer_end"]) -> Float[Array, " row"]:
    """Last over first position, where it is largest."""
    ends = means.reshape(len(means), -1, 2)
    return (ends[..., 1] / ends[..., 0]).max(axis=1)


def _length(config: ReproduceConfig) -> int:
    return config.scaled("length", _LENGTH, least=_LEAST_LENGTH)


def _trained(
    base: TransformerConfig, steps: int, seen: Int[Array, " point"], device: str, seed: int
) -> dict[str, Float[Array, "layer point"]]:
    """Means over sequences, by tokens, model and site; no model is kept."""
    task = make_task("text")
    config = replace(base, seed=seed)
    model = trained_on_text(config, steps, device)
    models = {
        _TRAINED: model,
        _RANDOM: HookedTransformer(config).to(device),
        _UNMASKED: as_bidirectional(model),
    }
    found: dict[str, Array] = {}
    for source in (task.source(), task.uniform_source()):
        tokens = held_out(source, _SEQUENCES, base.n_ctx, seed)
        read = _by_sequence(models, source.name, tokens, seen)
        found |= {name: values.mean(axis=0) for name, values in read.items()}
        for site, values in _predicted(config, tokens[:_PREDICTED], seen).items():
            found[f"{source.name}/predicted/{site}"] = values
    return found


def _given(config: ReproduceConfig, device: str) -> dict[str, Array]:
    """By sequence, layer and point, for each source of tokens, model and site."""
    variant = given_variant(config, device, seq_len=_LEAST_LENGTH)
    length = min(_length(config), variant.model.cfg.n_ctx)
    seen = log_spaced(length)[1:]
    models = {_GIVEN: variant.model, _RANDOM: random_init(variant, config.seed).model}
    found = {"seen": seen, "without_positions": np.array(variant.positions == "none")}
    found["told"] = told_of(variant)
    # A bridge may hold copies of queries, keys and values beside one fused projection: up to a
    # quarter too many are counted of such a model.
    found["n_parameters"] = np.array(sum(weight.numel() for weight in variant.model.parameters()))
    for source in variant.sources:
        tokens = held_out(source, _GIVEN_SEQUENCES, length, config.seed)
        found |= _by_sequence(models, source.name, tokens, seen)
    return found


def _by_sequence(
    models: Mapping[str, HookedModel],
    source: str,
    tokens: Int[Tensor, "sequence pos"],
    seen: Int[Array, " point"],
) -> dict[str, Float[Array, "sequence layer point"]]:
    """By source, model and site: variances of the activations that see so many tokens at both
    sites, and after blocks their mean squares."""
    return {
        f"{source}/{name}/{site}": values
        for name, model in models.items()
        for site, values in _variances(model, tokens, seen).items()
    }


def _variances(
    model: HookedModel, tokens: Int[Tensor, "sequence pos"], seen: Int[Array, " point"]
) -> dict[str, Float[Array, "sequence layer point"]]:
    def read(activations: Tensor) -> Float[Tensor, "variance_square sequence point"]:
        chosen = activations[:, torch.from_numpy(seen - 1).to(activations.device)]
        squares = reduce(chosen.double().square(), "b point d -> b point", "mean")
        return torch.stack([activation_variance(chosen), squares]).cpu()

    hooks = {site: [hook_name(i, site) for i in range(model.cfg.n_layers)] for site in _SITES}
    found = read_at(model, tokens, dict.fromkeys(chain(*hooks.values()), read))
    both = {
        site: torch.stack([torch.cat(found[name], dim=1) for name in names], dim=2).numpy()
        for site, names in hooks.items()
    }
    return {site: variance for site, (variance, _) in both.items()} | {
        _SQUARE: both["resid_post"][1]
    }


def _predicted(
    config: TransformerConfig, tokens: Int[Tensor, "sequence pos"], seen: Int[Array, " point"]
) -> dict[str, Float[Array, "layer point"]]:
    """The recursion's variances at both sites, mean over sequences, at random initialisation.

    It predicts mean squares; taking an activation's own mean off them leaves 1 - 1/d.
    """
    with warnings.catch_warnings():
        # Of sequences with few different tokens, whose variances scatter: they are averaged here.
        warnings.simplefilter("ignore", OutsideValidity)
        covariances = [stream_covariances(config, sequence) for sequence in tokens.numpy()]

    def mean_at(name: str) -> Float[Array, " point"]:
        return np.mean([np.diag(c[name]) for c in covariances], axis=0)[seen - 1]

    layers = range(config.n_layers)
    return {
        site: (1 - 1 / config.d_model) * np.stack([mean_at(hook_name(i, site)) for i in layers])
        for site in _SITES
    }


def _on_means(found: Mapping[str, Array], model: str) -> str:
    """How far the variance across an activation's components is from their mean square."""
    variances, squares = (
        np.array([found[f"{tokens}/{model}/{site}"].mean(0) for tokens in _TOKENS])
        for site in ("resid_post", _SQUARE)
    )
    most = np.max(1 - variances / squares)
    return (
        f"After a block the square of an activation's own mean is at most {most:.1%} of its mean "
        "square."
    )


def _relative(values: Float[Array, "row layer point"], first: Array) -> Array:
    """Over the first point; 1 where nothing is written at all."""
    return np.divide(values, first, out=np.ones_like(values), where=first > 0)


def _figures(
    id: str,
    title: str,
    caption: str,
    found: Mapping[str, Array],
    seen: Int[Array, " point"],
    models: Sequence[str],
    claims: Mapping[str, tuple[str, ...]],
) -> tuple[Figure, ...]:
    """One for each site; `found` is relative to m = 2."""
    layers = range(found[f"text/{models[0]}/resid_post"].shape[1])

    def of_layer(layer: int, source: str, site: str) -> Panel:
        law = found.get(f"{source}/predicted/{site}")
        return panel(
            f"layer {layer + 1}, {_TOKENS[source]}",
            seen,
            measured={model: found[f"{source}/{model}/{site}"][:, layer] for model in models},
            predicted={} if law is None else {"predicted, random-init": law[:, layer].mean(axis=0)},
        )

    return tuple(
        Figure(
            f"{id}-{site}",
            f"{title}, {where}",
            f"Variance across an activation's components, over that at m = 2: {caption} Position 0 "
            "is left out.",
            "tokens seen, m",
            "relative variance",
            tuple(of_layer(layer, source, site) for source in _TOKENS for layer in layers),
            claims=claims[site],
            log="xy",
        )
        for site, where in _SITES.items()
    )
