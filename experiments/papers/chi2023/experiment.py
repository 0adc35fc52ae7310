"""Chi et al. 2023 (arXiv 2305.13571): position in the variance of a random causal NoPE model."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, product

import numpy as np
from jaxtyping import Float, Int

from experiments.papers.chi2023.mean_squares import mean_squares
from experiments.papers.chi2023.probes import probes
from experiments.papers.chi2023.trained import (
    check_length,
    given_model,
    least_shrinkage,
    trained_models,
)
from experiments.papers.config import ReproduceConfig
from experiments.results.figures import figure
from experiments.results.findings import (
    Array,
    Figure,
    Findings,
    Panel,
    largest_deviation,
    log_spaced,
    over_seeds,
    panel,
    slope,
)
from experiments.results.measured import Measured
from experiments.runs.cells import Cells
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.sites import hook_name
from nope_interp.theory.covariances import stream_covariances
from nope_interp.theory.laws import LayerLaw
from nope_interp.theory.validity import LARGEST_LOGIT_VARIANCE, weight_spread

# What each step of the first layer is called on the page; the formulas as the paper is recalled to
# have them, in d, s and m, without norm epsilon, softmax noise and leaning keys.
STEPS = {
    "hook_embed": "embedding",
    "blocks.0.ln1.hook_normalized": "norm",
    "blocks.0.attn.hook_q": "query",
    "blocks.0.attn.hook_k": "key",
    "blocks.0.attn.hook_v": "value",
    "blocks.0.attn.hook_attn_scores": "scaled logit",
    "blocks.0.attn.hook_pattern": "attention weight (mean square)",
    "blocks.0.attn.hook_z": "head output",
    "blocks.0.hook_attn_out": "output projection",
    "blocks.0.hook_resid_mid": "residual",
}
_SEQUENCES = 2  # of full length, for each seed
_SHORT, _SHORT_SEQUENCES = 32, 64
_CONTROL_SEEDS = 5
_SWEPT_WIDTHS = (96, 192, 384, 768)
_SWEPT_SPREADS = (0.01, 0.02, 0.03)
_OUTPUT = "blocks.0.hook_attn_out"
# Claims on the sweep, and the law that each holds it against.
_LAWS = {"widths": "the paper's formula", "widths-corrected": "ours, corrected"}

# Arrays by hook name; of what is measured, with a first axis over seeds.
Squares = Mapping[str, Array]
# By law, spread and width.
Ratios = dict[str, dict[float, dict[str, Array]]]


def reproduce(config: ReproduceConfig, cells: Cells, device: str) -> Findings:
    """Variance after every step and layer of random models, its controls and sweeps; the probe by
    layer; trained models, and the one that the user gives."""
    # First, so that what cannot be read is said before anything is computed.
    check_length(config)
    given = given_model(config, cells, device) if config.model is not None else None
    d_model = config.scaled("width", 768, multiple_of=12, least=48)
    length = config.scaled("length", 512, least=16)
    base = TransformerConfig(
        n_layers=config.scaled("depth", 6, least=2),
        d_model=d_model,
        n_heads=12,
        d_vocab=4 * length,
        n_ctx=length,
    )
    first = replace(base, n_layers=1, d_mlp=1)
    seen = log_spaced(length)

    def measured(title: str, model: TransformerConfig, n_seeds: int | None = None) -> Squares:
        compute = partial(_variances, model, seen, device)
        return cells.per_seed(title, config.seeds[:n_seeds], compute)

    causal = measured("all layers", base)
    bidirectional = measured("bidirectional", replace(base, causal=False), _CONTROL_SEEDS)
    post_norm = measured("post-norm", replace(base, norm_placement="post"), _CONTROL_SEEDS)
    predicted = cells.arrays("recursion", lambda: _recursion(base, seen))
    one = measured("first layer", first)
    moments = LayerLaw.of(first, distinct_tokens=True).moments(seen)
    laws = {name: moment.variance + moment.mean**2 for name, moment in moments.items()}
    sweep, sweep_claims = _sweep_over_sizes(config, cells, device)
    read, probe_claims, probe_notes = probes(config, cells, device)
    trained, trained_claims = trained_models(config, cells, device)
    attended, blocks = "blocks.0.hook_attn_out", _hooks(base, "resid_post")
    ends = np.stack([causal[name][:, [0, -1]] for name in blocks], axis=1)
    both = {"attention outputs": _hooks(base, "attn_out"), "blocks": blocks}
    models = {"causal, pre-norm": causal, "bidirectional": bidirectional, "post-norm": post_norm}
    sites = {attended: "first attention output", blocks[-1]: "after the last block"}
    own = Findings(
        {
            "steps": _deviation(one, laws, STEPS),
            "inverse": over_seeds(causal[attended], partial(slope, seen)),
            "every-layer": over_seeds(ends, least_shrinkage),
            "layers": _deviation(causal, predicted, chain(*both.values())),
            **sweep_claims,
            "bidirectional": over_seeds(bidirectional[attended], partial(slope, seen)),
            "post-norm": over_seeds(post_norm[blocks[-1]], partial(slope, seen)),
            **probe_claims,
            **trained_claims,
        },
        (
            _steps(seen, one, laws, _paper_squares(first, seen)),
            _layers(seen, causal, predicted, both),
            _difference(seen, (one, laws), (causal, predicted), both),
            _controls(seen, models, sites),
            sweep,
            *read,
            *trained,
        ),
        setting=f"{len(config.seeds)} random models, {base.n_layers} layers, width {d_model}, "
        f"12 heads, {length} positions, every weight N(0, 0.02²)",
        notes=(
            "Predicted: our formulas, with softmax noise, the norm's epsilon and keys that lean "
            "towards the query. The paper's formulas, as recalled, leave these out.",
            "Sequences hold no token twice: with repeated tokens the variance has a floor.",
            *probe_notes,
        ),
    )
    return own if given is None else own.and_of(given)


def _hooks(config: TransformerConfig, site: str) -> list[str]:
    return [hook_name(layer, site) for layer in range(config.n_layers)]


def _variances(
    base: TransformerConfig, seen: Int[Array, " point"], device: str, seed: int
) -> dict[str, Array]:
    """Mean square of a component at each step of the first layer and each layer's output, by m.

    All means but an attention weight's are zero, so that mean squares are variances. Small m have
    few keys to average over: they are taken from many short sequences, which a causal model reads
    as it does the beginnings of long ones.
    """
    model = HookedTransformer(replace(base, seed=seed)).to(device)
    names = dict.fromkeys((*STEPS, *_hooks(base, "resid_post"), *_hooks(base, "attn_out")))
    if not base.causal:
        return mean_squares(model, names, seen, _SEQUENCES, base.n_ctx)
    short = seen <= _SHORT
    few = mean_squares(model, names, seen[short], _SHORT_SEQUENCES, min(_SHORT, base.n_ctx))
    if short.all():
        return few
    many = mean_squares(model, names, seen[~short], _SEQUENCES, base.n_ctx)
    return {name: np.concatenate((few[name], many[name])) for name in few}


def _paper_squares(base: TransformerConfig, seen: Int[Array, " point"]) -> dict[str, Array]:
    """The formulas as recalled: d² s⁴ / m and what follows from it."""
    variance, one = weight_spread(base) ** 2, np.ones(len(seen))
    projected = base.d_model * variance
    attention = "blocks.0.attn.hook_"
    return {
        "hook_embed": variance * one,
        "blocks.0.ln1.hook_normalized": one,
        **{f"{attention}{name}": projected * one for name in "qkv"},
        f"{attention}pattern": 1 / seen**2,
        f"{attention}z": projected / seen,
        "blocks.0.hook_attn_out": projected**2 / seen,
        "blocks.0.hook_resid_mid": variance + projected**2 / seen,
    }


@figure("steps", "tokens seen, m", "mean square", claims=("steps", "inverse"), log="xy")
def _steps(
    seen: Int[Array, " point"], measured: Squares, predicted: Squares, paper: Squares
) -> Iterator[Panel]:
    """Every step of the first layer.

    Mean square of a component, over seeds, heads and components; bars are 95% intervals over seeds.
    """
    for name, title in STEPS.items():
        formula = {"the paper's formula, as recalled": paper[name]} if name in paper else {}
        yield panel(
            title,
            seen,
            predicted={"predicted": predicted[name]},
            reference=formula,
            measured={"measured": measured[name]},
        )


def _deviation(measured: Squares, predicted: Squares, names: Iterable[str]) -> Measured:
    """The largest over all points at these hooks."""
    at = list(names)
    laws = np.concatenate([predicted[name] for name in at])
    return over_seeds(
        np.concatenate([measured[name] for name in at], axis=1), largest_deviation(laws)
    )


@figure("difference", "tokens seen, m", "measured / predicted", claims=("steps", "layers"), log="x")
def _difference(
    seen: Int[Array, " point"],
    one: tuple[Squares, Squares],
    every: tuple[Squares, Squares],
    sites: Mapping[str, list[str]],
) -> Iterator[Panel]:
    """The difference.

    Measured over predicted: 1 where the formula is exact. Bars are 95% intervals over seeds.
    """
    groups = {"steps of the first layer": (STEPS, one)}
    for title, hooks in sites.items():
        layers = {hook: f"layer {i}" for i, hook in enumerate(hooks, start=1)}
        groups[f"{title}, all layers"] = layers, every
    for title, (named, (measured, predicted)) in groups.items():
        ratios = {name: measured[hook] / predicted[hook] for hook, name in named.items()}
        yield panel(title, seen, chance={"exact": 1}, measured=ratios)


def _recursion(base: TransformerConfig, seen: Int[Array, " point"]) -> dict[str, Array]:
    found = stream_covariances(base, np.arange(base.n_ctx))
    return {name: np.diag(matrix)[seen - 1] for name, matrix in found.items()}


@figure("layers", "tokens seen, m", "mean square", claims=("layers", "every-layer"), log="xy")
def _layers(
    seen: Int[Array, " point"], causal: Squares, predicted: Squares, sites: Mapping[str, list[str]]
) -> Iterator[Panel]:
    """Every layer.

    Mean square of a component, against the covariance recursion.
    """
    for layer, hooks in enumerate(zip(*sites.values(), strict=True), start=1):
        for hook, title in zip(hooks, ("attention output", "after the block"), strict=True):
            yield panel(
                f"layer {layer}, {title}",
                seen,
                predicted={"predicted": predicted[hook]},
                measured={"measured": causal[hook]},
            )


@figure(
    "controls", "position, from 1", "mean square", claims=("bidirectional", "post-norm"), log="xy"
)
def _controls(
    seen: Int[Array, " point"], models: Mapping[str, Squares], sites: Mapping[str, str]
) -> Iterator[Panel]:
    """Controls.

    Without the causal mask every position sees the same tokens: flat everywhere. A norm after the
    residual sets the scale of every activation after a block; the attention outputs that go into it
    still fall.
    """
    for hook, title in sites.items():
        yield panel(title, seen, measured={name: found[hook] for name, found in models.items()})


def _sweep_over_sizes(
    config: ReproduceConfig, cells: Cells, device: str
) -> tuple[Figure, dict[str, Measured]]:
    """Measured over what each law predicts, and its largest deviation from 1."""
    length = config.scaled("length", 128, least=16)
    seen = log_spaced(length, 12)
    ratios: Ratios = {law: {spread: {} for spread in _SWEPT_SPREADS} for law in _LAWS}
    for spread, width in product(_SWEPT_SPREADS, _SWEPT_WIDTHS):
        d_model = config.scaled("width", width, multiple_of=4, least=48)
        base = TransformerConfig(
            1, d_model, 4, d_vocab=4 * length, n_ctx=length, attn_only=True, init_scale=spread
        )
        law = LayerLaw.of(base, distinct_tokens=True)
        if law.logit_variance <= LARGEST_LOGIT_VARIANCE:
            title = f"width {width}, spread {spread:g}"
            found = cells.per_seed(title, config.seeds, partial(_squares, base, seen, device))
            predicted = _paper_squares(base, seen)[_OUTPUT], law.output_variance(seen)
            for of_law, variance in zip(ratios.values(), predicted, strict=True):
                of_law[spread][f"d = {d_model}"] = found[_OUTPUT] / variance
    claims = {id: _from_one(of_law) for id, of_law in ratios.items()}
    return _widths(seen, ratios), claims


def _from_one(ratios: Mapping[float, Squares]) -> Measured:
    """The largest deviation from 1, over spreads, widths and points."""
    together = np.concatenate([ratio for of in ratios.values() for ratio in of.values()], axis=1)
    return over_seeds(together, largest_deviation(np.ones(together.shape[1])))


@figure("widths", "tokens seen, m", "measured / predicted", claims=tuple(_LAWS), log="x")
def _widths(seen: Int[Array, " point"], ratios: Ratios) -> Iterator[Panel]:
    """Widths and spreads.

    Mean square of the first attention output over the predicted one: 1 where the formula is exact.
    One layer; widths at which a logit's variance passes 0.5 are left out.
    """
    for id, of_law in ratios.items():
        for spread, named in of_law.items():
            title = f"{_LAWS[id]}, s = {spread:g}"
            yield panel(title, seen, chance={"exact": 1}, measured=named)


def _squares(
    base: TransformerConfig, seen: Int[Array, " point"], device: str, seed: int
) -> dict[str, Float[Array, " point"]]:
    model = HookedTransformer(replace(base, seed=seed)).to(device)
    return mean_squares(model, [_OUTPUT], seen, 8, base.n_ctx)
