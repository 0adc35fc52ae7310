"""What one reading of a model's heads showed; the same as named arrays, and as the tidy table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from experiments.results.heads import EARLY, OF_LABELS, OF_OWN
from experiments.results.measurements import LOSS, Row
from probes.head_rules import FEEDS, METRICS
from probes.heads.detectors import HeadScores
from probes.heads.labels import Dependence, HeadLabel
from probes.scores import Score

_SCORE_ARRAYS = [f.name for f in fields(HeadScores) if f.name != "metrics"]
_LOSS_NUMBERS = ("value", "ci_low", "ci_high", "chance", "n")


@dataclass(frozen=True)
class HeadCell:
    """What one variant of a model, under one condition, showed.

    Attributes:
        scores: those of each layer that has attention, by layer.
        frequencies: "query_norm" and "key_norm" `[layer head freq]` and "high_share"
            `[layer head (value, ci_low, ci_high, chance)]` of these layers, NaN in those that do
            not rotate; empty where none does.
        loss: next-token loss on the text, in nats; chance is that of knowing how often each token
            occurs and nothing of the context; None where it was not asked for.
        patterns: attention on each prompt, `[layer head query key]`, of these layers.
        alone: each layer's scores where it alone is ablated; empty where none is.
        n_layers: that the model has, with attention or without.
    """

    scores: dict[int, HeadScores]
    frequencies: dict[str, np.ndarray]
    loss: Score | None
    patterns: list[np.ndarray]
    alone: dict[int, HeadScores]
    n_layers: int

    def arrays(self) -> dict[str, np.ndarray]:
        """The cell as named arrays; `of_arrays` reads them back."""
        arrays = _score_arrays("scores", self.scores) | _score_arrays("alone", self.alone)
        arrays |= {f"frequencies/{name}": array for name, array in self.frequencies.items()}
        arrays |= {f"patterns/{i:03}": pattern for i, pattern in enumerate(self.patterns)}
        if self.loss is not None:
            numbers = [getattr(self.loss, name) for name in _LOSS_NUMBERS]
            arrays["loss"] = np.array(numbers, dtype=float)
        return arrays | {"layers": np.array([*self.scores]), "n_layers": np.array(self.n_layers)}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "HeadCell":
        """The cell that `arrays` made these of."""
        loss = None
        if "loss" in arrays:
            value, low, high, chance, n = arrays["loss"].tolist()
            loss = Score("loss", value, low, high, chance, int(n))
        return cls(
            scores=_scores_of(arrays, "scores"),
            frequencies=_under(arrays, "frequencies/"),
            loss=loss,
            patterns=list(_under(arrays, "patterns/").values()),
            alone=_scores_of(arrays, "alone"),
            n_layers=int(arrays["n_layers"]),
        )


def _score_arrays(of: str, layers: Mapping[int, HeadScores]) -> dict[str, np.ndarray]:
    if not layers:
        return {}
    return {
        f"{of}/{name}": np.stack([getattr(layer, name) for layer in layers.values()])
        for name in _SCORE_ARRAYS
    }


def _scores_of(arrays: Mapping[str, np.ndarray], of: str) -> dict[int, HeadScores]:
    found = _under(arrays, f"{of}/")
    if not found:
        return {}
    return {
        layer: HeadScores(METRICS, **{name: found[name][i] for name in _SCORE_ARRAYS})
        for i, layer in enumerate(arrays["layers"].tolist())
    }


def _under(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {
        key.removeprefix(prefix): array
        for key, array in sorted(arrays.items())
        if key.startswith(prefix)
    }


# What the feeds of a head probe are called where they are tokens, and where they are read.
_TOKENS = {"text": "text", "repeated": "repeated", "copies": "copies", "scores": "alphabet"}
_SITES = {"text": "pattern", "repeated": "pattern", "copies": "pattern", "scores": "attn_scores"}


def head_rows(cell: HeadCell, context: Row) -> Iterator[Row]:
    """Every detector's number for every head, the share of high frequencies, and any loss."""
    text = context | {"tokens": "text"}
    for layer, scores in cell.scores.items():
        for head in range(scores.n_heads):
            for feed, metrics in FEEDS.items():
                here = context | {"tokens": _TOKENS[feed]}
                for metric in metrics:
                    score = _score(scores, head, metric)
                    if score.n:
                        yield _row(here, layer, head, _SITES[feed], "heads", score)
    shares = cell.frequencies.get("high_share", np.zeros((0, 0, 4)))
    layers = [*cell.scores]
    for row, head in np.ndindex(*shares.shape[:2]):
        if np.isfinite(shares[row, head, 0]):
            layer, (value, low, high, chance) = layers[row], shares[row, head].tolist()
            n = int(cell.scores[layer].n[head, 0])
            score = Score("high_frequency_share", value, low, high, chance, n)
            yield _row(text, layer, head, "rot_q rot_k", "frequency usage", score)
    if cell.loss is not None:
        yield _row(text, cell.n_layers - 1, None, "logits", LOSS, cell.loss)


def label_rows(labels: Sequence[HeadLabel], context: Row) -> Iterator[Row]:
    """Each head's label with its confidence and p-values, and its runner-up."""
    for found in labels:
        numbers = (found.confidence, found.p_shuffled, found.p_random_init, found.q_value)
        for probe, value in zip(OF_LABELS.values(), numbers, strict=True):
            score = _number(found.label, value)
            yield _row(context, found.layer, found.head, "pattern", probe, score)
        if found.runner_up:
            kind = "runner-up" if found.runner_up_holds else "nearest"
            score = _number(found.runner_up)
            yield _row(context, found.layer, found.head, "pattern", kind, score)


def own_label_rows(labels: Sequence[HeadLabel], context: Row) -> Iterator[Row]:
    """Each head's label by a user's own rules, with its confidence and q-value."""
    for found in labels:
        for probe, value in zip(OF_OWN.values(), (found.confidence, found.q_value), strict=True):
            score = _number(found.label, value)
            yield _row(context, found.layer, found.head, "pattern", probe, score)


def early_rows(
    labels: Sequence[HeadLabel], early: Sequence[tuple[int, Sequence[str]]], context: Row
) -> Iterator[Row]:
    """Each head's label by fewer sequences, the fewest first; n is how many of natural text."""
    for n, names in reversed(early):
        for found, name in zip(labels, names, strict=True):
            score = Score(name, np.nan, np.nan, np.nan, np.nan, n)
            yield _row(context, found.layer, found.head, "pattern", EARLY, score)


def dependence_rows(
    found: Mapping[tuple[int, int], Dependence], context: Row, probe: str
) -> Iterator[Row]:
    """How much of each labelled head's own score is left under an ablation.

    Args:
        found: by layer and head.
        context: fills the columns that are the same in all rows.
        probe: what the rows are called.
    """
    for (layer, head), left in found.items():
        if left.kind:
            score = Score(left.kind, left.retention, left.ci_low, left.ci_high, np.nan, 0)
            yield _row(context, layer, head, "pattern", probe, score)


def edge_rows(edges: Sequence[Row], context: Row) -> Iterator[Row]:
    """K-composition scores, at the head that reads; the metric names the head that writes."""
    for edge in edges:
        metric = f"L{edge['from_layer']}H{edge['from_head']}"
        score = Score(metric, edge["score"], np.nan, np.nan, edge["chance"], 0)
        yield _row(context, edge["to_layer"], edge["to_head"], "W_K", "k-composition", score)


def _score(scores: HeadScores, head: int, metric: str) -> Score:
    column = scores.column(metric)
    names = ("value", "ci_low", "ci_high", "chance")
    value, low, high, chance = (float(getattr(scores, name)[head, column]) for name in names)
    return Score(metric, value, low, high, chance, int(scores.n[head, column]))


def _number(metric: str, value: float = np.nan) -> Score:
    """A number without interval or chance level."""
    return Score(metric, value, np.nan, np.nan, np.nan, 0)


def _row(context: Row, layer: int, head: int | None, site: str, probe: str, score: Score) -> Row:
    where = {"layer": layer, "head": head, "site": site, "probe": probe}
    return {**context, **where, **vars(score)}
