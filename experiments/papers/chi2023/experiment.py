"""Chi et al. 2023 (arXiv 2305.13571): position in the variance of a random causal NoPE model."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from einops import reduce
from jaxtyping import Float, Int
from torch import Tensor

from experiments.papers.chi2023.models import distinct_tokens, drawn
from experiments.papers.chi2023.probes import probes
from experiments.papers.chi2023.sweep import sweep_over_sizes
from experiments.papers.chi2023.trained import given_model, least_shrinkage, trained_models
from experiments.papers.config import ReproduceConfig
from experiments.results.findings import (
    Figure,
    Findings,
    Panel,
    curve,
    largest_deviation,
    line,
    log_spaced,
    over_seeds,
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

Array = np.ndarray

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
    measure = partial(_variances, seen=seen, device=device)
    causal = cells.per_seed("all layers", config.seeds, lambda seed: measure(drawn(base, seed)))
    controls = {
        name: cells.per_seed(
            name,
            config.seeds[:_CONTROL_SEEDS],
            lambda seed, changes=changes: measure(drawn(base, seed, **changes)),  # type: ignore[misc]
        )
        for name, changes in (
            ("bidirectional", {"causal": False}),
            ("post-norm", {"norm_placement": "post"}),
        )
    }
    predicted = cells.arrays("recursion", lambda: _recursion(base, seen))
    first = dataclasses.replace(base, n_layers=1, d_mlp=1)
    one = cells.per_seed("first layer", config.seeds, lambda seed: measure(drawn(first, seed)))
    laws = _predicted_squares(LayerLaw.of(first, distinct_tokens=True), seen)
    steps, steps_claim = _steps(first, seen, one, laws)
    layers, layers_claim = _layers(base, seen, causal, predicted)
    sweep, sweep_claim = sweep_over_sizes(config, cells, device)
    read, probe_claims = probes(config, cells, device)
    trained, trained_claims = trained_models(config, cells, device)
    attended = "blocks.0.hook_attn_out"
    last = hook_name(base.n_layers - 1, "resid_post")
    claims = {
        "steps": steps_claim,
        "inverse": over_seeds(causal[attended], partial(slope, seen)),
        "every-layer": over_seeds(_ends(causal, _posts(base)), least_shrinkage),
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


def _posts(config: TransformerConfig) -> list[str]:
    return [hook_name(layer, "resid_post") for layer in range(config.n_layers)]


def _outs(config: TransformerConfig) -> list[str]:
    return [hook_name(layer, "attn_out") for layer in range(config.n_layers)]


def _variances(
    config: TransformerConfig, seen: Int[Array, " point"], device: str
) -> dict[str, Array]:
    """Mean square of a component at each step of the first layer and each layer's output, by m.

    All means but an attention weight's are zero, so that mean squares are variances. Small m have
    few keys to average over: they are taken from many short sequences, which a causal model reads
    as it does the beginnings of long ones.
    """
    model = HookedTransformer(config).to(device)
    if not config.causal:
        return _mean_squares(model, seen, _SEQUENCES, config.n_ctx)
    short = seen <= _SHORT
    few = _mean_squares(model, seen[short], _SHORT_SEQUENCES, min(_SHORT, config.n_ctx))
    if short.all():
        return few
    many = _mean_squares(model, seen[~short], _SEQUENCES, config.n_ctx)
    return {name: np.concatenate((few[name], many[name])) for name in few}


def _mean_squares(
    model: HookedTransformer, seen: Int[Array, " point"], n_sequences: int, length: int
) -> dict[str, Float[Array, " point"]]:
    found: dict[str, Array] = {}
    at = torch.from_numpy(seen - 1)
    names = dict.fromkeys([*STEPS, *_posts(model.config), *_outs(model.config)])

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


def _predicted_squares(
    law: LayerLaw, seen: Int[Array, " point"]
) -> dict[str, Float[Array, " point"]]:
    return {name: moments.variance + moments.mean**2 for name, moments in law.moments(seen).items()}


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
    panels = []
    for name, title in STEPS.items():
        series = [line("predicted", "predicted", seen, predicted[name])]
        if name in paper:
            series.append(line("the paper's formula, as recalled", "reference", seen, paper[name]))
        panels.append(Panel(title, (*series, curve("measured", "measured", seen, causal[name]))))
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
    together = _stacked(causal, STEPS)
    claim = over_seeds(together, largest_deviation(np.concatenate([predicted[n] for n in STEPS])))
    return figure, claim


def _difference(
    base: TransformerConfig,
    seen: Int[Array, " point"],
    one: tuple[Mapping[str, Array], Mapping[str, Array]],
    every: tuple[Mapping[str, Array], Mapping[str, Array]],
) -> Figure:
    """Measured over predicted; each pair is (measured, predicted)."""
    groups = {"steps of the first layer": (STEPS, one)}
    for title, names in (("attention outputs", _outs(base)), ("blocks", _posts(base))):
        named = {name: f"layer {i + 1}" for i, name in enumerate(names)}
        groups[f"{title}, all layers"] = (named, every)
    panels = []
    for title, (named, (measured, predicted)) in groups.items():
        ratios = (
            curve(name, "measured", seen, measured[hook] / predicted[hook])
            for hook, name in named.items()
        )
        panels.append(Panel(title, (line("exact", "chance", seen, 1.0), *ratios)))
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


def _stacked(found: Mapping[str, Array], names: Sequence[str] | Mapping[str, str]) -> Array:
    return np.concatenate([found[name] for name in names], axis=1)


def _recursion(base: TransformerConfig, seen: Int[Array, " point"]) -> dict[str, Array]:
    found = stream_covariances(base, np.arange(base.n_ctx))
    return {name: np.diag(matrix)[seen - 1] for name, matrix in found.items()}


def _layers(
    base: TransformerConfig,
    seen: Int[Array, " point"],
    causal: Mapping[str, Array],
    predicted: Mapping[str, Array],
) -> tuple[Figure, Measured]:
    panels = []
    for layer in range(base.n_layers):
        for site, title in (("attn_out", "attention output"), ("resid_post", "after the block")):
            name = hook_name(layer, site)
            panels.append(
                Panel(
                    f"layer {layer + 1}, {title}",
                    (
                        line("predicted", "predicted", seen, predicted[name]),
                        curve("measured", "measured", seen, causal[name]),
                    ),
                )
            )
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
    sites = [*_outs(base), *_posts(base)]
    flat = np.concatenate([predicted[name] for name in sites])
    return figure, over_seeds(_stacked(causal, sites), largest_deviation(flat))


def _ends(found: Mapping[str, Array], names: Sequence[str]) -> Float[Array, "seed site end"]:
    """At the first and at the last position."""
    return np.stack([found[name][:, [0, -1]] for name in names], axis=1)


def _controls(
    seen: Int[Array, " point"],
    causal: Mapping[str, Array],
    controls: Mapping[str, Mapping[str, Array]],
    attended: str,
    last: str,
) -> Figure:
    models = {"causal, pre-norm": causal, **controls}
    panels = [
        Panel(title, tuple(curve(m, "measured", seen, models[m][name]) for m in models))
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
