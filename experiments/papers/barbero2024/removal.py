"""Barbero et al. 2024 (arXiv 2410.06205) by removal: what a given model's heads lose with their
highest, and with as many of their lowest, rotary frequencies.

A frequency's part of the scores is subtracted from them, in one layer at a time: the layer still
reads what it reads in the intact model. The control subtracts the same numbers from the wrong
keys, so that both change the scores of a query by as much. What is lost is the target's weight
among all tokens but the first: heads rest on that one where they find nothing, and what a removal
does to it would count as a loss, or hide one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from einops import einsum, reduce, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from experiments.heads.rotated import on_rotated
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, over_seeds, panel
from experiments.results.measured import Measured
from nope_interp.hooked_model import HookedModel
from nope_interp.positions.layers import LayerPositions
from nope_interp.sites import layer_ranges, pattern_hook
from nope_interp.streams import Listener, stream
from probes.head_rules import RULES
from probes.heads.detectors import FIRST_QUERY
from probes.heads.frequencies import n_high

REMOVED = ("highest quarter", "lowest quarter")
# Maps that do not come out as the model's own say that its scores hold more than these products.
_TOLERANCE = 1e-3

Maps = Float[Tensor, "batch head query key"]
Seen = Bool[Tensor, "query key"]

# What a head must do to be of a group: the metrics of `nope-interp heads`, in its order.
_GROUP_OF = {
    "induction": "content",
    "duplicate_token": "content",
    "previous_token": "previous-token",
    "diagonal": "diagonal",
}
_METRICS = tuple(_GROUP_OF)
_THRESHOLDS = {rule.metric: rule.threshold for rule in RULES}
_ON_REPEATED = _METRICS[:2]
# A head that has as large a share of its weight at the same offset among tokens that do not come
# twice goes by position, and not by content.
_BY_POSITION = 0.1
# By group, the frequencies that should carry it.
_CARRIERS = {"previous-token": REMOVED[0], "diagonal": REMOVED[0], "content": REMOVED[1]}


def read_removed(
    model: HookedModel,
    positions: Sequence[LayerPositions],
    text: Int[Tensor, "sequence pos"],
    repeated: Int[Tensor, "sequence twice_period"],
    period: int,
    seed: int,
) -> dict[str, Array]:
    """Each head's attention on its targets, intact and with frequencies removed.

    Args:
        model: with rotary positions in some layer.
        positions: of its layers.
        text: where previous-token and diagonal heads are read.
        repeated: where content heads are: it ends with random tokens and the same again.
        period: how many random tokens.
        seed: of the keys that the control takes in place of the right ones.

    Returns:
        "on_target", `[metric state sequence layer head]`, weights among all tokens but the first,
        with one state for the intact model, one for each of `REMOVED`, and one for the control of
        each. "weight", `[metric layer head]`, the mean among all tokens in the intact model, and
        "unrepeated", `[layer head]` of each metric on repeated tokens, the same where the second
        round is another sequence's. Layers whose attention is not the softmax of their queries
        times keys are NaN, as are layers that do not rotate. "unread", the first kind of these by
        their numbers.
    """
    shape = (len(_METRICS), 1 + 2 * len(REMOVED), len(text), len(positions), model.cfg.n_heads)
    found, weight = np.full(shape, np.nan), np.full((shape[0], *shape[3:]), np.nan)
    unrepeated = np.full((len(_ON_REPEATED), *shape[3:]), np.nan)
    rotating = [layer for layer in positions if layer.rotary_dims is not None]
    once = repeated.clone()
    once[:, -period:] = repeated[:, -period:].roll(1, dims=0)
    for tokens, metrics, weights, intact_alone in (
        (repeated, _ON_REPEATED, weight[: len(_ON_REPEATED)], False),
        (once, _ON_REPEATED, unrepeated, True),
        (text, _METRICS[2:], weight[len(_ON_REPEATED) :], False),
    ):
        readers = {
            layer.layer: _Reader(layer, tokens.shape[1], metrics, period, seed + layer.layer)
            for layer in rotating
        }
        listeners: dict[str, Listener] = {
            pattern_hook(layer): reader.look if intact_alone else reader.read
            for layer, reader in readers.items()
        }
        if not intact_alone:
            listeners |= on_rotated(
                model, {layer: reader.meet for layer, reader in readers.items()}
            )
        stream(model, tokens, listeners)
        rows = [_METRICS.index(metric) for metric in metrics]
        for layer, reader in readers.items():
            weights[:, layer] = np.concatenate(reader.weight, axis=1).mean(axis=1)
            if not intact_alone:
                found[rows, :, :, layer] = reader.result()
    unread = [at.layer for at in rotating if np.isnan(found[..., at.layer, :]).any()]
    return {
        "on_target": found,
        "weight": weight,
        "unrepeated": unrepeated,
        "unread": np.array(unread, dtype=int),
    }


@dataclass
class _Reader:
    """Reads one layer: its queries and keys, and then the pattern that its softmax made of them."""

    layer: LayerPositions
    length: int
    metrics: Sequence[str]
    period: int
    seed: int
    parts: list[Maps] = field(default_factory=list)
    on_target: list[Array] = field(default_factory=list)
    weight: list[Array] = field(default_factory=list)

    def meet(
        self,
        queries: Float[Tensor, "batch pos head d_head"],
        keys: Float[Tensor, "batch pos group d_head"],
    ) -> None:
        """Products of all dimensions, and of those that each part of `REMOVED` turns."""
        n, turning = (self.layer.rotary_dims or 0) // 2, (self.layer.turning or 0) // 2
        high = n_high(turning)
        keys = repeat(keys, "b p g d -> b p (g shared) d", shared=queries.shape[2] // keys.shape[2])
        columns = (
            list(range(queries.shape[-1])),
            [*range(high), *range(n, n + high)],
            [*range(turning - high, turning), *range(n + turning - high, n + turning)],
        )
        self.parts = [
            einsum(
                queries[..., dims].float(), keys[..., dims].float(), "b q h d, b k h d -> b h q k"
            )
            for dims in columns
        ]

    def look(self, pattern: Maps) -> None:
        """Weights on the targets, of the pattern alone."""
        self.weight.append(np.array([self._weight(pattern.float(), of) for of in self.metrics]))

    def read(self, pattern: Maps) -> None:
        """Weights on the targets, of the pattern and of those with something removed."""
        self.look(pattern)
        seen = self.layer.sees(self.length).to(pattern.device)
        (whole, *parts), self.parts = self.parts, []  # of no use to later layers
        scale = _scale(pattern.float(), whole, seen)
        if not torch.allclose(_attention(scale * whole, seen), pattern.float(), atol=_TOLERANCE):
            nothing = (len(self.metrics), 1 + 2 * len(REMOVED), len(pattern), pattern.shape[1])
            self.on_target.append(np.full(nothing, np.nan))
            return
        generator = torch.Generator(pattern.device).manual_seed(self.seed)
        seen[:, 0] = False
        made = [whole, *(whole - part for part in parts)]
        made += [whole - _elsewhere(part, seen, generator) for part in parts]
        states = [_attention(scale * scores, seen) for scores in made]
        weights = [[self._weight(state, metric) for state in states] for metric in self.metrics]
        self.on_target.append(np.array(weights))

    def result(self) -> Float[Array, "metric state sequence head"]:
        """Of all batches."""
        return np.concatenate(self.on_target, axis=2)

    def _weight(self, state: Maps, metric: str) -> Float[Array, "batch head"]:
        """Mean weight on the metric's key, over the queries that `nope-interp heads` reads."""
        back = {
            "diagonal": 0,
            "previous_token": 1,
            "induction": self.period - 1,
            "duplicate_token": self.period,
        }[metric]
        first = self.length - self.period if metric in _ON_REPEATED else FIRST_QUERY
        on_key = state.diagonal(offset=-back, dim1=-2, dim2=-1)[..., first - back :]
        return reduce(on_key, "batch head query -> batch head", "mean").cpu().numpy()


def _scale(pattern: Maps, products: Maps, seen: Seen) -> float:
    """The factor on the products that comes nearest to the logarithms of the weights.

    Of weights that are no rounding: what a row adds to all its scores does not count.
    """
    counts = (pattern > 1e-6) & seen

    def centred(x: Maps) -> Maps:
        x = x.double().where(counts, 0)
        mean = x.sum(-1, keepdim=True) / counts.sum(-1, keepdim=True).clamp_min(1)
        return (x - mean).where(counts, 0)

    own = centred(products)
    return float((own * centred(pattern.clamp_min(1e-30).log())).sum() / (own * own).sum())


def _attention(scores: Maps, seen: Seen) -> Maps:
    return scores.masked_fill(~seen, -torch.inf).softmax(-1)


def _elsewhere(part: Maps, seen: Seen, generator: torch.Generator) -> Maps:
    """Each query's numbers, dealt anew to the keys that it sees."""
    drawn = torch.rand(part.shape, generator=generator, device=part.device)
    # Both orders have the keys that are seen first: in their own order, and in a random one.
    in_order = repeat(
        (~seen).int().argsort(stable=True), "q k -> b h q k", b=len(part), h=part.shape[1]
    )
    at_random = drawn.masked_fill(~seen, torch.inf).argsort(-1)
    return torch.zeros_like(part).scatter(-1, in_order, part.gather(-1, at_random))


def removed(found: Mapping[str, Array], name: str) -> Findings:
    """What the heads of each group lose.

    Args:
        found: what `read_removed` found.
        name: the model's.

    Returns:
        A claim and a panel for each group that has heads, and a note on any that has none, and on
        layers that could not be read.
    """
    heads = _heads(found["weight"], found["unrepeated"])
    lost = {group: _lost(found["on_target"], which) for group, which in heads.items() if which}
    claims = {f"removed-{group}": _carried(of, _CARRIERS[group]) for group, of in lost.items()}
    notes = tuple(
        f"{name} has no {group} heads whose frequencies could be removed."
        for group in heads
        if group not in lost
    )
    if len(found["unread"]):
        unread = layer_ranges(found["unread"].tolist())
        notes += (
            f"No frequencies are removed in {unread} of {name}: its weights there are not the "
            "softmax of its queries times its keys.",
        )
    if not lost:
        return Findings({}, (), "", notes)
    titles = {
        group: f"{group}: " + ", ".join(f"L{layer}H{head}" for _, layer, head in heads[group])
        for group in lost
    }
    return Findings(claims, (_losses(lost, titles, name),), "", notes)


def _heads(
    weight: Float[Array, "metric layer head"], unrepeated: Float[Array, "some layer head"]
) -> dict[str, list[tuple[int, int, int]]]:
    """By group, the metric, layer and head of those that earn its label by their attention, and in
    the case of content not where it does not come twice."""
    earned = weight > np.array([_THRESHOLDS[metric] for metric in _METRICS])[:, None, None]
    n = len(_ON_REPEATED)
    earned[:n] &= unrepeated < _BY_POSITION * weight[:n]
    found: dict[str, list[tuple[int, int, int]]] = {group: [] for group in _CARRIERS}
    for layer, head in np.argwhere(earned.any(axis=0)):
        metric = int(earned[:, layer, head].argmax())  # the first one
        found[_GROUP_OF[_METRICS[metric]]].append((metric, int(layer), int(head)))
    return found


def _lost(
    on_target: Array, which: Sequence[tuple[int, int, int]]
) -> Float[Array, "sequence state"]:
    """Share of the intact weight that goes in every other state, mean over heads.

    A head's share is a ratio of means over sequences. Of each sequence that stands here by which it
    moves this ratio, about the ratio: its denominator is measured, too.
    """
    each = np.stack([on_target[metric, :, :, layer, head] for metric, layer, head in which])
    intact, others = each[:, :1], each[:, 1:]
    mean = intact.mean(axis=2, keepdims=True)
    share = 1 - others.mean(axis=2, keepdims=True) / mean
    of_intact = share + ((1 - share) * intact - others) / mean
    return np.asarray(reduce(of_intact, "head state sequence -> sequence state", "mean"))


def _carried(lost: Float[Array, "sequence state"], carrier: str) -> Measured:
    """The net loss with those that should carry a group, less that with the others, if any.

    A net loss is that beyond the control's. One below 0 counts as none: else a group could seem to
    need frequencies which it can do without, only because the control of the others does harm.
    """
    own, n = REMOVED.index(carrier), len(REMOVED)

    def difference(means: Array) -> Array:
        net = means[:, :n] - means[:, n:]
        return np.asarray(net[:, own] - net[:, 1 - own].clip(min=0))

    return over_seeds(lost, difference)


@figure(
    "removed",
    "frequencies removed",
    "share of the weight lost",
    claims=tuple(f"removed-{group}" for group in _CARRIERS),
    ticks=REMOVED,
)
def _losses(
    lost: Mapping[str, Float[Array, "sequence state"]], titles: Mapping[str, str], name: str
) -> Iterator[Panel]:
    """What heads of {name} lose without some frequencies.

    Share of a head's weight on its target, among all tokens but the first, that is lost without
    these frequencies in its scores. The control takes the same numbers from the wrong keys. Mean
    over heads; bars are 95% intervals over sequences. A head needs just these frequencies where it
    loses more than with the control.
    """
    at, n = np.arange(len(REMOVED)), len(REMOVED)
    for group, of in lost.items():
        drawn = {"removed": of[:, :n], "the same from the wrong keys": of[:, n:]}
        yield panel(titles[group], at, measured=drawn)
