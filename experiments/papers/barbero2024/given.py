"""Barbero et al. 2024 (arXiv 2410.06205) on a model of the user's choice, as they look at Gemma.

Which rotary frequencies its heads use, whether its positional heads use the highest ones and need
them, and whether its first layer can tell copies of a token apart without its positions.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from experiments.heads.rotated import on_rotated
from experiments.papers.barbero2024.removal import read_removed, removed
from experiments.papers.config import ReproduceConfig
from experiments.papers.on_text import given_variant, held_out, sentences, told_of
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, exactly, over_seeds, panel
from experiments.results.measurements import INTACT
from experiments.runs.cells import Cells
from experiments.variants.variants import ModelVariant
from nope_interp.constructions.barbero import repeated_token_gap
from nope_interp.hooked_model import HookedModel
from nope_interp.positions.ablation import ablate_positions
from nope_interp.positions.layers import LayerPositions, layer_positions
from nope_interp.sites import pattern_hook
from nope_interp.streams import stream
from nope_interp.tasks.sources import RepeatedSource, UniformSource
from nope_interp.threads import one_thread_pool
from probes.head_rules import RULES
from probes.heads.detectors import HeadProbe
from probes.heads.frequencies import frequency_shares

_SEQUENCES, _LENGTH, _LEAST_LENGTH = 32, 128, 40
_LEAST_SHOWN = 1 / 32  # of equal use
_QUARTERS = 4
_TOKENS, _COPIES, _BEFORE = 8, 32, 4
_BEFORE_COPIES = {"alone": "copies alone", "after": "copies after other tokens"}

# The labels that name one offset, with the attention on it that earns them.
_POSITIONAL = {rule.metric: rule for rule in RULES if rule.label in ("previous-token", "diagonal")}


def read_given(config: ReproduceConfig, cells: Cells, device: str) -> Findings:
    """Reads the model that `config.model` names; claims on rotation are left out where it has none.

    Raises UserError where it cannot be loaded or keeps its positions in an unknown place, and where
    its text is too short.
    """
    found = cells.arrays("given model", lambda: _read(config, device))
    name = Path(config.model or "").name
    n, length = found["text_shape"].tolist()
    setting = f"{name} on {n} sequences of {length} tokens of text"
    conditions = {INTACT: "positions intact", "ablated": "positions taken away"}
    gaps = {
        title: {before: found[f"{condition}/{before}"] for before in _BEFORE_COPIES}
        for condition, title in conditions.items()
        if f"{condition}/alone" in found
    }
    *_, without = gaps.values()  # the positions, if it has any
    claims = {"impossible-given": exactly(gap[:, 0].max() for gap in without.values())}
    figures, notes = (_copies(gaps, name),), sentences(found["told"])
    if len(gaps) == 1:
        notes.append(f"{name} has no positional encoding: it is read as it is.")
    if "share" not in found:
        notes.append(f"{name} has no rotary positions: no frequencies to tell apart.")
        return Findings(claims, figures, setting, tuple(notes))
    used, lost = _frequencies(found, name), Findings({}, (), "")
    if "on_target" in found:
        lost = removed(found, name)
    return Findings(
        claims | used.claims | lost.claims,
        used.figures + lost.figures + figures,
        setting,
        (*used.notes, *lost.notes, *notes),
    )


def _read(config: ReproduceConfig, device: str) -> dict[str, Array]:
    variant = given_variant(config, device, seq_len=_LEAST_LENGTH, of_heads=True)
    positions = layer_positions(variant.model)
    natural, uniform = variant.sources[:2]
    text = held_out(natural, _SEQUENCES, min(_LENGTH, variant.model.cfg.n_ctx), config.seed)
    before = text[0, : _BEFORE + (natural.begin_id is not None)]
    copied = uniform.sequences(_TOKENS, 1, begin_token=False, split="held_out", seed=config.seed)
    return {
        "text_shape": np.array(text.shape),
        "told": told_of(variant),
        **_read_text(variant.model, positions, text),
        **_read_removed(variant, positions, text, config.seed),
        **_read_copies(variant.model, positions, copied[:, 0], before),
    }


def _read_text(
    model: HookedModel, positions: Sequence[LayerPositions], text: Int[Tensor, "sequence pos"]
) -> dict[str, Array]:
    """Each head's mean attention on its own token and the one before, and its use of frequencies.

    "share" is `[sequence layer head freq]`, over the layers in "rotating", of which so many as
    "turning" says turn in each.
    """
    probes = [HeadProbe(window=layer.window) for layer in positions]
    listeners = {pattern_hook(layer): probe.read_text for layer, probe in enumerate(probes)}
    rotated = {
        layer.layer: layer.rotary_dims for layer in positions if layer.rotary_dims is not None
    }
    shares: dict[int, list[Array]] = {layer: [] for layer in rotated}

    def read(layer: int, queries: Tensor, keys: Tensor) -> None:
        shares[layer].append(frequency_shares(queries, keys, rotated[layer]).cpu().numpy())

    readers = {layer: partial(read, layer) for layer in rotated}
    stream(model, text, listeners | on_rotated(model, readers))
    with one_thread_pool():
        scores = [probe.result() for probe in probes]
    found = {
        metric: np.stack([layer.value[:, layer.column(metric)] for layer in scores])
        for metric in _POSITIONAL
    }
    if rotated:
        found |= {
            "share": np.stack([np.concatenate(shares[layer]) for layer in rotated], axis=1),
            "rotating": np.array(list(rotated)),
            "turning": np.array([(positions[layer].turning or 0) // 2 for layer in rotated]),
            "base": np.array([positions[layer].rotary_base for layer in rotated], dtype=float),
        }
    return found


def _read_removed(
    variant: ModelVariant,
    positions: Sequence[LayerPositions],
    text: Int[Tensor, "sequence pos"],
    seed: int,
) -> dict[str, Array]:
    """As `read_removed`, on this text and as many random tokens that come twice.

    Nothing where no layer rotates, or there is no vocabulary to draw from.
    """
    uniform = variant.sources[1]
    rotates = any(layer.rotary_dims is not None for layer in positions)
    if not rotates or not isinstance(uniform, UniformSource):
        return {}
    source, begin = RepeatedSource(uniform.ids, uniform.begin_id), uniform.begin_id is not None
    n, length = text.shape
    repeated = source.sequences(n, length, begin_token=begin, split="held_out", seed=seed)
    period = source.period(length, begin_token=begin)
    return read_removed(variant.model, positions, text, repeated, period, seed)


def _read_copies(
    model: HookedModel,
    positions: Sequence[LayerPositions],
    copied: Int[Tensor, " token"],
    before: Int[Tensor, " pos"],
) -> dict[str, Array]:
    """`[token layer head]` gaps among copies, with positions intact and, if it has any, without.

    A window shorter than the copies would hide some of them: it is lifted with the positions.
    """
    found = _gaps(model, INTACT, copied, before)
    if all(layer.encoding == "none" for layer in positions):
        return found
    longest = _COPIES + len(before)
    short = any(layer.reach is not None and layer.reach < longest for layer in positions)
    with ablate_positions(model, "all", lift_window=short) as ablation:
        found |= _gaps(model, "ablated", copied, before)
        ablation.verify()
    return found


def _gaps(
    model: HookedModel, condition: str, copied: Int[Tensor, " token"], before: Int[Tensor, " pos"]
) -> dict[str, Array]:
    tokens = copied.tolist()
    first: dict[str, list[int]] = dict(zip(_BEFORE_COPIES, ([], before.tolist()), strict=True))
    return {
        f"{condition}/{name}": np.stack(
            [repeated_token_gap(model, token, _COPIES, ids) for token in tokens]
        )
        for name, ids in first.items()
    }


def _frequencies(found: Mapping[str, Array], name: str) -> Findings:
    quarters = _quarters(found)
    positional = _positional(found)[found["rotating"]]
    of_heads = rearrange(quarters.mean(axis=0), "layer head quarter -> (layer head) quarter")
    claims, notes = {}, []
    if found["turning"].min() >= _QUARTERS:
        claims["frequencies"] = over_seeds(of_heads, _last_most)
    else:
        notes.append(f"Fewer than {_QUARTERS} frequencies turn in {name}: they have no quarters.")
    notes.append(f"Queries and keys of {name} are read after its norms of them, if any.")
    ahead = _ahead(quarters[..., 0].mean(axis=0), positional)
    if len(ahead) > 1:
        claims["positional-heads"] = over_seeds(ahead)
    else:
        notes.append(
            f"{'One head' if len(ahead) else 'No head'} of {name} stands beside others of its "
            f"layer and puts more than {_POSITIONAL['diagonal'].threshold} of its attention on its "
            "own token, or the one before: there is too little to compare."
        )
    figures = (_usage(found, name), _by_layer(found, name, quarters, positional))
    return Findings(claims, figures, "", tuple(notes))


def _quarters(found: Mapping[str, Array]) -> Float[Array, "sequence layer head quarter"]:
    """Use of each quarter of the frequencies that turn, the highest first: 1/4 is equal use.

    Of quarters that cannot be equally large it is the mean of their frequencies that counts.
    """
    by_layer = []
    for layer, n in enumerate(found["turning"].tolist()):
        turning = found["share"][:, layer, :, :n]
        parts = np.array_split(turning / turning.sum(axis=-1, keepdims=True), _QUARTERS, axis=-1)
        # With fewer frequencies than quarters the lower ones hold none.
        means = [part.mean(axis=-1) for part in parts if part.shape[-1]]
        means += [np.zeros_like(means[0])] * (_QUARTERS - len(means))
        by_layer.append(np.stack(means, axis=-1) * n / _QUARTERS)
    return np.stack(by_layer, axis=1)


def _last_most(means: Float[Array, "row quarter"]) -> Float[Array, " row"]:
    """How much more is used of the lowest quarter than of the one among the others used most."""
    return np.asarray(means[..., -1] - means[..., :-1].max(axis=-1))


def _ahead(
    high: Float[Array, "layer head"], positional: Bool[Array, "layer head"]
) -> Float[Array, " positional"]:
    """By how much each positional head uses the highest quarter more than others of its layer."""
    return np.array(
        [
            high[layer, head] - high[layer, ~positional[layer]].mean()
            for layer, head in np.argwhere(positional)
            if not positional[layer].all()
        ]
    )


def _positional(found: Mapping[str, Array]) -> Bool[Array, "layer head"]:
    """Heads that `nope-interp heads` would call diagonal or previous-token by their attention."""
    return np.any([found[m] > rule.threshold for m, rule in _POSITIONAL.items()], axis=0)


@figure(
    "usage",
    "frequency",
    "doublings over equal use",
    claims=("frequencies",),
    ticks=lambda found, name: tuple(map(str, range(found["share"].shape[-1]))),
    heat_about=0.0,
)
def _usage(found: Mapping[str, Array], name: str) -> Iterator[Panel]:
    """Rotary frequencies that {name} uses.

    Share of |q||k| in each frequency, mean over heads and sequences, in doublings over equal use. 1
    is twice the share that each frequency would have if all were used alike, -1 half of it. Less
    than 1/32 of it is shown as that. Frequency 0 is the highest, one radian per token.
    """
    n = found["share"].shape[-1]
    times = n * found["share"].mean(axis=(0, 2))
    doublings = np.log2(np.maximum(times, _LEAST_SHOWN))
    for base in np.unique(found["base"]):
        with_base = np.flatnonzero(found["base"] == base)
        layers = {f"L{found['rotating'][i]}": doublings[i] for i in with_base}
        yield panel(f"layers with base {base:,.10g}", np.arange(n), measured=layers)


@figure(
    "quarters",
    "layer",
    "share of |q||k|",
    claims=("frequencies", "positional-heads"),
    ticks=lambda found, *_: tuple(map(str, range(len(found["diagonal"])))),
)
def _by_layer(
    found: Mapping[str, Array],
    name: str,
    quarters: Float[Array, "sequence layer head quarter"],
    positional: Bool[Array, "layer head"],
) -> Iterator[Panel]:
    """Frequencies in {name}, by quarters.

    Share of |q||k| in the highest quarter of the frequencies, by kind of head. Then in every
    quarter, mean over heads. Bars are 95% intervals over sequences.
    """
    layers, high = found["rotating"], quarters[..., 0]

    def drawn(at: Array, **curves: Mapping[str, Array | float]) -> Panel:
        return panel("highest quarter", at, **curves)

    parts = [drawn(layers, chance={"equal use": 1 / _QUARTERS})]
    has_others = np.flatnonzero(~positional.all(axis=1))
    if len(has_others):
        others = [high[:, i, ~positional[i]].mean(axis=1) for i in has_others]
        mean = {"other heads, mean": np.stack(others, axis=1)}
        parts.append(drawn(layers[has_others], measured=mean))
    for i, head in np.argwhere(positional):
        weights = {metric: found[metric][layers[i], head] for metric in _POSITIONAL}
        label = _POSITIONAL[max(weights, key=weights.__getitem__)].label
        of_head = {f"L{layers[i]}H{head}, {label}": high[:, i, [head]]}
        parts.append(drawn(layers[[i]], measured=of_head))
    yield Panel("highest quarter", tuple(series for part in parts for series in part.series))
    names = ("highest quarter", "second", "third", "lowest quarter")
    used = dict(zip(names, np.moveaxis(quarters.mean(axis=2), -1, 0), strict=True))
    yield panel("all heads, mean", layers, chance={"equal use": 1 / _QUARTERS}, measured=used)


@figure("given-copies", "layer", "difference of weights", claims=("impossible-given",))
def _copies(gaps: Mapping[str, Mapping[str, Array]], name: str) -> Iterator[Panel]:
    """Copies of one token in {name}.

    Largest difference of a query's weights on the copies it sees, in the head where it is largest.
    It is the mean over {_TOKENS} tokens. Bars are 95% intervals over them. The other tokens are the
    beginning of a text.
    """
    yield from copies_panels(gaps)


def copies_panels(
    gaps: Mapping[str, Mapping[str, Float[Array, "unit layer head"]]],
) -> Iterator[Panel]:
    """Of several models or conditions, the largest gap of a layer's heads."""
    for before, title in _BEFORE_COPIES.items():
        most = {kind: found[before].max(axis=-1) for kind, found in gaps.items()}
        n_layers = next(iter(most.values())).shape[1]
        yield panel(title, np.arange(n_layers), measured=most)
