"""Barbero et al. 2024 (arXiv 2410.06205) on a model of the user's choice, as they look at Gemma.

Which rotary frequencies its heads use, whether its positional heads use the highest ones, and
whether its first layer can tell copies of a token apart without its positions.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from experiments.heads.reading import on_rotated
from experiments.papers.config import ReproduceConfig
from experiments.papers.given import given_variant
from experiments.results.findings import (
    Figure,
    Findings,
    Panel,
    Series,
    curve,
    exactly,
    line,
    over_seeds,
)
from experiments.results.measured import Measured
from experiments.runs.cells import Cells
from nope_interp.constructions.barbero import repeated_token_gap
from nope_interp.hooked_model import HookedModel
from nope_interp.positions.ablation import ablate_positions
from nope_interp.positions.layers import LayerPositions, layer_positions
from nope_interp.streams import one_thread_pool, stream
from probes.head_rules import RULES
from probes.heads.detectors import HeadProbe
from probes.heads.frequencies import frequency_shares, n_high

Array = np.ndarray

_SEQUENCES, _LENGTH, _LEAST_LENGTH = 32, 128, 40
_LEAST_SHOWN = 1 / 32  # of equal use
_TOKENS, _COPIES, _BEFORE = 8, 32, 4

# The labels that name one offset, with the attention on it that earns them.
_POSITIONAL = {rule.metric: rule for rule in RULES if rule.label in ("previous-token", "diagonal")}


def read_given(config: ReproduceConfig, cells: Cells, device: str) -> Findings:
    """Reads the model that `config.model` names; claims on rotation are left out where it has none.

    Raises UserError where it cannot be loaded or keeps its positions in an unknown place, and where
    its text is too short.
    """
    found = cells.arrays("given model", lambda: _read(config, device))
    name = Path(config.model or "").name
    claims, figures, notes = _copies(found, name)
    if "share" in found:
        of_heads = _frequencies(found, name)
        claims |= of_heads.claims
        figures = (*of_heads.figures, *figures)
        notes = (*of_heads.notes, *notes)
    else:
        notes = (*notes, f"{name} has no rotary positions: no frequencies to tell apart.")
    n, length = found["text_shape"].tolist()
    return Findings(claims, figures, f"{name} on {n} sequences of {length} tokens of text", notes)


def _read(config: ReproduceConfig, device: str) -> dict[str, Array]:
    variant = given_variant(config, device, seq_len=_LEAST_LENGTH, needed={})
    positions = layer_positions(variant.model)
    natural, uniform = variant.sources[:2]
    begin = natural.begin_id is not None
    text = natural.sequences(
        _SEQUENCES,
        min(_LENGTH, variant.model.cfg.n_ctx),
        begin_token=begin,
        split="held_out",
        seed=config.seed,
    )
    copied = uniform.sequences(_TOKENS, 1, begin_token=False, split="held_out", seed=config.seed)
    return {
        "text_shape": np.array(text.shape),
        **_read_text(variant.model, positions, text),
        **_read_copies(variant.model, positions, copied[:, 0], text[0, : _BEFORE + begin]),
    }


def _read_text(
    model: HookedModel, positions: Sequence[LayerPositions], text: Int[Tensor, "sequence pos"]
) -> dict[str, Array]:
    """Each head's mean attention on its own token and the one before, and its use of frequencies.

    "share" is `[sequence layer head freq]`, over the layers in "rotating".
    """
    probes = [HeadProbe(window=layer.window) for layer in positions]
    listeners = {
        f"blocks.{layer}.attn.hook_pattern": probe.read_text for layer, probe in enumerate(probes)
    }
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
            "base": np.array([positions[layer].rotary_base for layer in rotated], dtype=float),
        }
    return found


def _read_copies(
    model: HookedModel,
    positions: Sequence[LayerPositions],
    copied: Int[Tensor, " token"],
    before: Int[Tensor, " pos"],
) -> dict[str, Array]:
    """`[token layer head]` gaps among copies, with positions intact and, if it has any, without.

    A window shorter than the copies would hide some of them: it is lifted with the positions.
    """
    found = _gaps(model, "intact", copied, before)
    if all(layer.encoding == "none" for layer in positions):
        return found
    longest = _COPIES + len(before)
    short = any(layer.window is not None and layer.window < longest for layer in positions)
    with ablate_positions(model, "all", lift_window=short) as ablation:
        found |= _gaps(model, "ablated", copied, before)
        ablation.verify()
    return found


def _gaps(
    model: HookedModel, condition: str, copied: Int[Tensor, " token"], before: Int[Tensor, " pos"]
) -> dict[str, Array]:
    tokens = copied.tolist()
    first: dict[str, list[int]] = {"alone": [], "after": before.tolist()}
    return {
        f"{condition}/{name}": np.stack(
            [repeated_token_gap(model, token, _COPIES, ids) for token in tokens]
        )
        for name, ids in first.items()
    }


def _frequencies(found: dict[str, Array], name: str) -> Findings:
    share, rotating = found["share"], found["rotating"]
    n = share.shape[-1]
    low = share[..., -(n // 2) :].sum(-1)
    high = share[..., : n_high(n)].sum(-1)
    positional = _positional(found)[rotating]
    claims = {"frequencies": over_seeds(low.mean(axis=(1, 2)))}
    notes = [f"Frequencies: queries and keys of {name} are read after its norms of them, if any."]
    if positional.any() and not positional.all():
        ahead = high[:, positional].mean(axis=1) - high[:, ~positional].mean(axis=1)
        claims["positional-heads"] = over_seeds(ahead)
    else:
        notes.append(
            f"{'All' if positional.any() else 'No'} heads of {name} put more than "
            f"{_POSITIONAL['diagonal'].threshold} of their attention on their own token or the one "
            "before: there is nothing to compare."
        )
    figures = (_usage(found, name), _by_layer(found, name, low, high, positional))
    return Findings(claims, figures, "", tuple(notes))


def _positional(found: dict[str, Array]) -> Bool[Array, "layer head"]:
    """Heads that `nope-interp heads` would call diagonal or previous-token by their attention."""
    return np.any([found[m] > rule.threshold for m, rule in _POSITIONAL.items()], axis=0)


def _usage(found: dict[str, Array], name: str) -> Figure:
    share = found["share"]
    n = share.shape[-1]
    times = n * share.mean(axis=(0, 2))
    doublings = np.log2(np.maximum(times, _LEAST_SHOWN))
    panels = []
    for base in np.unique(found["base"]):
        rows = [
            line(f"L{layer}", "measured", np.arange(n), doublings[row])
            for row, layer in enumerate(found["rotating"])
            if found["base"][row] == base
        ]
        panels.append(Panel(f"layers with base {base:,.10g}", tuple(rows)))
    return Figure(
        "usage",
        f"Rotary frequencies that {name} uses",
        "Share of |q||k| in each frequency, mean over heads and sequences, in doublings over equal "
        "use: 1 is twice the share that each frequency would have if all were used alike, -1 half "
        f"of it; less than 1/{1 / _LEAST_SHOWN:g} of it is shown as that. Frequency 0 is the "
        "highest, one radian per token.",
        "frequency",
        "doublings over equal use",
        tuple(panels),
        claims=("frequencies",),
        ticks=tuple(str(k) for k in range(n)),
        heat_about=0.0,
    )


def _by_layer(
    found: dict[str, Array],
    name: str,
    low: Float[Array, "sequence layer head"],
    high: Float[Array, "sequence layer head"],
    positional: Bool[Array, "layer head"],
) -> Figure:
    layers, n = found["rotating"], found["share"].shape[-1]
    others = []
    for row, layer in enumerate(layers):
        if not positional[row].all():
            others.append((layer, high[:, row, ~positional[row]].mean(axis=1)))
    series: list[Series] = [line("equal use", "chance", layers, n_high(n) / n)]
    if others:
        at, rows = zip(*others, strict=True)
        series.append(curve("other heads, mean", "measured", np.array(at), np.stack(rows, axis=1)))
    for row, head in np.argwhere(positional):
        layer = layers[row]
        weights = {metric: found[metric][layer, head] for metric in _POSITIONAL}
        label = _POSITIONAL[max(weights, key=weights.__getitem__)].label
        title = f"L{layer}H{head}, {label}"
        series.append(curve(title, "measured", np.array([layer]), high[:, row, [head]]))
    low_half = (
        line("equal use", "chance", layers, n // 2 / n),
        curve("all heads, mean", "measured", layers, low.mean(axis=2)),
    )
    return Figure(
        "halves",
        f"High and low frequencies in {name}",
        "Share of |q||k| in the highest quarter and the lower half of the frequencies; bars are "
        "95% intervals over sequences.",
        "layer",
        "share of |q||k|",
        (Panel("highest quarter", tuple(series)), Panel("lower half", low_half)),
        claims=("frequencies", "positional-heads"),
        ticks=tuple(str(layer) for layer in range(len(found["diagonal"]))),
    )


def _copies(
    found: dict[str, Array], name: str
) -> tuple[dict[str, Measured], tuple[Figure, ...], tuple[str, ...]]:
    conditions = {"intact": "positions intact", "ablated": "positions taken away"}
    shown = [condition for condition in conditions if f"{condition}/alone" in found]
    notes: tuple[str, ...] = ()
    if "ablated" not in shown:
        notes = (f"{name} has no positional encoding: it is read as it is.",)
    panels = []
    for before, title in (("alone", "copies alone"), ("after", "copies after other tokens")):
        gaps = {condition: found[f"{condition}/{before}"].max(axis=-1) for condition in shown}
        series = (
            curve(conditions[condition], "measured", np.arange(gap.shape[1]), gap)
            for condition, gap in gaps.items()
        )
        panels.append(Panel(title, tuple(series)))
    figure = Figure(
        "given-copies",
        f"Copies of one token in {name}",
        f"Largest difference of a query's weights on the copies it sees, in the head where it is "
        f"largest; mean over {_TOKENS} tokens, bars are 95% intervals over them. The other tokens "
        "are the beginning of a text.",
        "layer",
        "difference of weights",
        tuple(panels),
        claims=("impossible-given",),
    )
    first = (found[f"{shown[-1]}/{before}"][:, 0].max() for before in ("alone", "after"))
    return {"impossible-given": exactly(first)}, (figure,), notes
