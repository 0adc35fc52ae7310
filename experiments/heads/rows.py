"""A heads run as rows of the tidy table, and the table of heads out of the rows again."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.heads.reading import HeadCell
from probes.heads.detectors import FEEDS, HeadScores
from probes.heads.labels import Dependence, HeadLabel
from probes.scores import Score

Row = dict[str, Any]

# What the feeds of a head probe are called where they are tokens, and where they are read.
_TOKENS = {"text": "text", "repeated": "repeated", "copies": "copies", "scores": "alphabet"}
_SITES = {"text": "pattern", "repeated": "pattern", "copies": "pattern", "scores": "attn_scores"}

# Columns of the table of heads, and the probes that their rows are kept under.
_OF_LABELS = {
    "confidence": "label",
    "p_shuffled": "p of label, shuffled",
    "p_random_init": "p of label, random init",
    "q_value": "q of label",
}


def head_rows(cell: HeadCell, context: Row) -> Iterator[Row]:
    """Every detector's number for every head, the share of high frequencies, and the loss."""
    text = context | {"tokens": "text"}
    for layer, scores in enumerate(cell.scores):
        for head in range(scores.n_heads):
            for feed, metrics in FEEDS.items():
                here = context | {"tokens": _TOKENS[feed]}
                for metric in metrics:
                    score = _score(scores, head, metric)
                    if score.n:
                        yield _row(here, layer, head, _SITES[feed], "heads", score)
    shares = cell.frequencies.get("high_share", np.zeros((0, 0, 4)))
    for layer, head in np.ndindex(*shares.shape[:2]):
        if np.isfinite(shares[layer, head, 0]):
            value, low, high, chance = shares[layer, head].tolist()
            score = Score("high_frequency_share", value, low, high, chance, cell.loss.n)
            yield _row(text, layer, head, "rot_q rot_k", "frequency usage", score)
    yield _row(text, len(cell.scores) - 1, None, "logits", "loss", cell.loss)


def label_rows(labels: Sequence[HeadLabel], context: Row) -> Iterator[Row]:
    """Each head's label with its confidence and p-values, and its runner-up."""
    for found in labels:
        numbers = (found.confidence, found.p_shuffled, found.p_random_init, found.q_value)
        for probe, value in zip(_OF_LABELS.values(), numbers, strict=True):
            score = _number(found.label, value)
            yield _row(context, found.layer, found.head, "pattern", probe, score)
        if found.runner_up:
            kind = "runner-up" if found.runner_up_holds else "nearest"
            score = _number(found.runner_up)
            yield _row(context, found.layer, found.head, "pattern", kind, score)


def dependence_rows(
    found: Mapping[tuple[int, int], Dependence], context: Row, probe: str
) -> Iterator[Row]:
    """How much of each labelled head's own score is left under an ablation."""
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


def heads_table(measurements: pd.DataFrame, ablation: str | None) -> pd.DataFrame:
    """One row for each head, as the report and the exports show it, from the tidy table alone."""
    of_heads = measurements.dropna(subset=["head"])
    variant = of_heads[of_heads["variant"] != "random-init twin"]
    intact = variant[variant["positions"] == "intact"]
    ablated = variant[variant["positions"] == ablation] if ablation else variant.iloc[:0]
    columns = {
        "label": _column(intact, "label", "metric"),
        "runner_up": _column(intact, ("runner-up", "nearest"), "metric"),
        **{name: _column(intact, probe, "value") for name, probe in _OF_LABELS.items()},
        "dependence": _column(ablated, "dependence", "metric"),
        "retention": _column(ablated, "dependence", "value"),
        "retention_low": _column(ablated, "dependence", "ci_low"),
        "retention_high": _column(ablated, "dependence", "ci_high"),
        "retention_whole_model": _column(ablated, "retention, whole model", "value"),
        "ablated_label": _column(ablated, "label", "metric"),
    }
    for metric in head_metrics(measurements):
        for name, rows in (("", intact), ("_ablated", ablated)):
            scores = rows[rows["metric"] == metric]
            for suffix in ("", "_low", "_high", "_chance"):
                column = _SUFFIXES[suffix]
                columns[f"{metric}{name}{suffix}"] = _column(scores, _SCORED, column)
    return pd.DataFrame(columns).sort_index().rename_axis(["layer", "head"]).reset_index()


# Probes whose numbers are scores of a head, and where each suffix of a column comes from.
_SCORED = ("heads", "frequency usage")
_SUFFIXES = {"": "value", "_low": "ci_low", "_high": "ci_high", "_chance": "chance"}


def _column(rows: pd.DataFrame, probe: str | tuple[str, ...], column: str) -> "pd.Series[Any]":
    """One column of the rows of a probe, by layer and head."""
    chosen = rows[rows["probe"].isin((probe,) if isinstance(probe, str) else probe)]
    return chosen.set_index(["layer", "head"])[column]


def head_metrics(measurements: pd.DataFrame) -> list[str]:
    """The detectors that gave numbers, in the order they stand in the table."""
    scored = measurements[measurements["probe"].isin(_SCORED)]
    return [str(metric) for metric in scored["metric"].unique()]


def losses(measurements: pd.DataFrame) -> list[Row]:
    """The loss under each condition, as the report shows it."""
    rows = measurements[measurements["probe"] == "loss"]
    names = ("positions", "variant", "tokens", "value", "ci_low", "ci_high", "chance", "n")
    return [{name: row[name] for name in names} for row in rows.to_dict("records")]


def edges(measurements: pd.DataFrame) -> list[Row]:
    """The K-composition edges again, from the tidy table."""
    found = measurements[measurements["probe"] == "k-composition"]
    return [
        {
            "from_layer": int(row["metric"][1:].split("H")[0]),
            "from_head": int(row["metric"].split("H")[1]),
            "to_layer": int(row["layer"]),
            "to_head": int(row["head"]),
            "score": float(row["value"]),
            "chance": float(row["chance"]),
        }
        for row in found.to_dict("records")
    ]


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
