"""Chi et al. 2023 (arXiv 2305.13571): position in the variance of a random causal NoPE model."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import torch
from einops import reduce
from jaxtyping import Float, Int
from torch import Tensor

from experiments.papers.chi2023.models import distinct_tokens
from experiments.papers.chi2023.probes import probes
from experiments.papers.chi2023.sweep import sweep_over_sizes
from experiments.papers.chi2023.trained import given_model, least_shrinkage, trained_models
from experiments.papers.config import ReproduceConfig
from experiments.results.findings import (
    Array,
    Figure,
    Findings,
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
from nope_interp.streams import Listener, stream
from nope_interp.theory.covariances import stream_covariances
from nope_interp.theory.laws import LayerLaw

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


def reproduce(config: ReproduceConfig, cells: Cells, device: str) -> Findings:
    """Variance after every step and layer of random models, its controls and sweeps; the probe by
    layer; trained models, and the one that the user gives."""
    # First, so that a model that cannot be read is said before anything is computed.
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
    seen = log_spaced(length)
    causal = cells.per_seed("all layers", config.seeds, partial(_variances, base, seen, device))
    few = config.seeds[:_CONTROL_SEEDS]
    controls = {
        name: cells.per_seed(name, few, partial(_variances, model, seen, device))
        for name, model in (
            ("bidirectional", replace(base, causal=False)),
            ("post-norm", replace(base, norm_placement="post")),
        )
    }
    predicted = cells.arrays("recursion", lambda: _recursion(base, seen))
    first = replace(base, n_layers=1, d_mlp=1)
    one = cells.per_seed("first layer", config.seeds, partial(_variances, first, seen, device))
    moments = LayerLaw.of(first, distinct_tokens=True).moments(seen)
    laws = {name: moment.variance + moment.mean**2 for name, moment in moments.items()}
    steps, steps_claim = _steps(first, seen, one, laws)
    layers, layers_claim = _layers(base, seen, causal, predicted)
    sweep, sweep_claim = sweep_over_sizes(config, cells, device)
    read, probe_claims = probes(config, cells, device)
    trained, trained_claims = trained_models(config, cells, device)
    attended, last = "blocks.0.hook_attn_out", hook_name(base.n_layers - 1, "resid_post")
    ends = np.stack([causal[name][:, [0, -1]] for name in _hooks(base, "resid_post")], axis=1)
    claims = {
        "steps": steps_claim,
        "inverse": over_seeds(causal[attended], partial(slope, seen)),
        "every-layer": over_seeds(ends, least_shrinkage),
        "layers": layers_claim,
        "widths": sweep_claim,
        "bidirectional": over_seeds(controls["bidirectional"][attended], partial(slope, seen)),
        "post-norm": over_seeds(controls["post-norm"][last], partial(slope, seen)),
        **probe_claims,
        **trained_claims,
        **(given.claims if given else {}),
    }
    return Findings(
        claims,
        (
            steps,
            layers,
            _difference(base, seen, (one, laws), (causal, predicted)),
            _controls(seen, causal, controls, attended, last),
            sweep,
            *read,
            *trained,
            *(given.figures if given else ()),
        ),
        setting=f"{len(config.seeds)} random models, {base.n_layers} layers, width {d_model}, "
        f"12 heads, {length} positions, every weight N(0, 0.02²)"
        + (f"; {given.setting}" if given else ""),
        notes=(
            "Predicted: our formulas, with softmax noise, the norm's epsilon and keys that lean "
            "towards the query. The paper's formulas, as recalled, leave these out.",
            "Sequences hold no token twice: with repeated tokens the variance has a floor.",
            *(given.notes if given else ()),
        ),
    )


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
    if not base.causal:
        return _mean_squares(model, seen, _SEQUENCES, base.n_ctx)
    short = seen <= _SHORT
    few = _mean_squares(model, seen[short], _SHORT_SEQUENCES, min(_SHORT, base.n_ctx))
    if short.all():
        return few
    many = _mean_squares(model, seen[~short], _SEQUENCES, base.n_ctx)
    return {name: np.concatenate((few[name], many[name])) for name in few}


def _mean_squares(
    model: HookedTransformer, seen: Int[Array, " point"], n_sequences: int, length: int
) -> dict[str, Float[Array, " point"]]:
    found: dict[str, Array] = {}
    at = torch.from_numpy(seen - 1)
    by_layer = (_hooks(model.config, site) for site in ("resid_post", "attn_out"))
    names = dict.fromkeys(chain(STEPS, *by_layer))

    def listen(activations: Tensor, name: str) -> None:
        if name.endswith(("attn_scores", "pattern")):
            rows = activations[:, :, at.to(activations.device)].double().cpu()
            # The law is of the m visible keys; a bidirectional query sees more.
            hidden = torch.arange(rows.shape[-1]) >= torch.from_numpy(seen)[:, None]
            squares = rows.masked_fill(hidden, 0).square().mean(dim=(0, 1)).sum(dim=-1)
            found[name] = squares.numpy() / seen
        else:
            rows = activations[:, at.to(activations.device)].double().cpu().flatten(2)
            found[name] = reduce(rows.square(), "b q d -> q", "mean").numpy()

    listeners: dict[str, Listener] = {name: partial(listen, name=name) for name in names}
    stream(model, distinct_tokens(model.config, n_sequences, length), listeners)
    return found


def _paper_squares(base: TransformerConfig, seen: Int[Array, " point"]) -> dict[str, Array]:
    """The formulas as recalled: d² s⁴ / m and what follows from it."""
    d, variance = base.d_model, 0.02**2
    projected = d * variance
    return {
        "hook_embed": variance * np.ones(len(seen)),
        "blocks.0.ln1.hook_normalized": np.ones(len(seen)),
        **dict.fromkeys(
            ("blocks.0.attn.hook_q", "blocks.0.attn.hook_k", "blocks.0.attn.hook_v"),
            projected * np.ones(len(seen)),
        ),
        "blocks.0.attn.hook_pattern": 1 / seen**2,
        "blocks.0.attn.hook_z": projected / seen,
        "blocks.0.hook_attn_out": projected**2 / seen,
        "blocks.0.hook_resid_mid": variance + projected**2 / seen,
    }


def _steps(
    base: TransformerConfig,
    seen: Int[Array, " point"],
    causal: Mapping[str, Array],
    predicted: Mapping[str, Array],
) -> tuple[Figure, Measured]:
    paper = _paper_squares(base, seen)
    panels = [
        panel(
            title,
            seen,
            predicted={"predicted": predicted[name]},
            reference={"the paper's formula, as recalled": paper[name]} if name in paper else {},
            measured={"measured": causal[name]},
        )
        for name, title in STEPS.items()
    ]
    figure = Figure(
        "steps",
        "Every step of the first layer",
        "Mean square of a component, over seeds, heads and components; bars are 95% intervals over "
        "seeds.",
        "tokens seen, m",
        "mean square",
        tuple(panels),
        claims=("steps", "inverse"),
        log="xy",
    )
    return figure, _deviation(causal, predicted, STEPS)


def _deviation(
    measured: Mapping[str, Array], predicted: Mapping[str, Array], names: Iterable[str]
) -> Measured:
    """The largest over all points at these hooks."""
    laws = np.concatenate([predicted[name] for name in names])
    together = np.concatenate([measured[name] for name in names], axis=1)
    return over_seeds(together, largest_deviation(laws))


def _difference(
    base: TransformerConfig,
    seen: Int[Array, " point"],
    one: tuple[Mapping[str, Array], Mapping[str, Array]],
    every: tuple[Mapping[str, Array], Mapping[str, Array]],
) -> Figure:
    """Measured over predicted; each pair is (measured, predicted)."""
    groups = {"steps of the first layer": (STEPS, one)}
    for title, site in (("attention outputs", "attn_out"), ("blocks", "resid_post")):
        named = {name: f"layer {i}" for i, name in enumerate(_hooks(base, site), start=1)}
        groups[f"{title}, all layers"] = (named, every)
    panels = [
        panel(
            title,
            seen,
            chance={"exact": 1},
            measured={name: measured[hook] / predicted[hook] for hook, name in named.items()},
        )
        for title, (named, (measured, predicted)) in groups.items()
    ]
    return Figure(
        "difference",
        "The difference",
        "Measured over predicted: 1 where the formula is exact. Bars are 95% intervals over seeds.",
        "tokens seen, m",
        "measured / predicted",
        tuple(panels),
        claims=("steps", "layers"),
        log="x",
    )


def _recursion(base: TransformerConfig, seen: Int[Array, " point"]) -> dict[str, Array]:
    found = stream_covariances(base, np.arange(base.n_ctx))
    return {name: np.diag(matrix)[seen - 1] for name, matrix in found.items()}


def _layers(
    base: TransformerConfig,
    seen: Int[Array, " point"],
    causal: Mapping[str, Array],
    predicted: Mapping[str, Array],
) -> tuple[Figure, Measured]:
    sites = {"attn_out": "attention output", "resid_post": "after the block"}
    panels = [
        panel(
            f"layer {layer + 1}, {title}",
            seen,
            predicted={"predicted": predicted[hook_name(layer, site)]},
            measured={"measured": causal[hook_name(layer, site)]},
        )
        for layer in range(base.n_layers)
        for site, title in sites.items()
    ]
    figure = Figure(
        "layers",
        "Every layer",
        "Mean square of a component, against the covariance recursion.",
        "tokens seen, m",
        "mean square",
        tuple(panels),
        claims=("layers", "every-layer"),
        log="xy",
    )
    names = [name for site in sites for name in _hooks(base, site)]
    return figure, _deviation(causal, predicted, names)


def _controls(
    seen: Int[Array, " point"],
    causal: Mapping[str, Array],
    controls: Mapping[str, Mapping[str, Array]],
    attended: str,
    last: str,
) -> Figure:
    models = {"causal, pre-norm": causal, **controls}
    panels = [
        panel(title, seen, measured={model: found[name] for model, found in models.items()})
        for name, title in ((attended, "first attention output"), (last, "after the last block"))
    ]
    return Figure(
        "controls",
        "Controls",
        "Without the causal mask every position sees the same tokens: flat everywhere. A norm "
        "after the residual sets the scale of every row after a block; the attention outputs that "
        "go into it still fall.",
        "position, from 1",
        "mean square",
        tuple(panels),
        claims=("bidirectional", "post-norm"),
        log="xy",
    )
