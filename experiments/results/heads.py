"""The table of heads and its companions, out of the tidy table."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from experiments.results.measurements import INTACT, LOSS

Row = dict[str, Any]

# Columns of the table of heads, and the probes that their rows are kept under.
OF_LABELS = {
    "confidence": "label",
    "p_shuffled": "p of label, shuffled",
    "p_random_init": "p of label, random-init",
    "q_value": "q of label",
}


# Where each suffix of a column comes from.
_SUFFIXES = {"": "value", "_low": "ci_low", "_high": "ci_high", "_chance": "chance"}


def heads_table(measurements: pd.DataFrame, ablation: str | None) -> pd.DataFrame:
    """The table of heads, as the report and the exports show it, from the tidy table alone.

    Args:
        measurements: the tidy table.
        ablation: the condition in which positions were taken away, if any.

    Returns:
        One row for each head.
    """
    variant = _in_question(measurements).dropna(subset=["head"])
    intact = variant[variant["positions"] == INTACT]
    ablated = variant[variant["positions"] == ablation] if ablation else variant.iloc[:0]
    columns = {
        "label": _column(intact, "label", "metric"),
        "runner_up": _column(intact, ("runner-up", "nearest"), "metric"),
        **{name: _column(intact, probe, "value") for name, probe in OF_LABELS.items()},
        "dependence": _column(ablated, "dependence", "metric"),
        "retention": _column(ablated, "dependence", "value"),
        "retention_low": _column(ablated, "dependence", "ci_low"),
        "retention_high": _column(ablated, "dependence", "ci_high"),
        "ablated_label": _column(ablated, "label", "metric"),
        "retention_whole_model": _column(ablated, "retention, whole model", "value"),
    }
    for metric in head_metrics(measurements):
        for name, rows in (("", intact), ("_ablated", ablated)):
            scores = rows[rows["metric"] == metric]
            for suffix, column in _SUFFIXES.items():
                columns[f"{metric}{name}{suffix}"] = _column(scores, _SCORED, column)
    return pd.DataFrame(columns).sort_index().rename_axis(["layer", "head"]).reset_index()


def _in_question(measurements: pd.DataFrame) -> pd.DataFrame:
    """The rows of the model whose heads are labelled, without those of the variant that it is held
    against."""
    labelled = measurements.loc[measurements["probe"] == "label", "variant"].unique()
    return measurements[measurements["variant"].isin(labelled)]


# Probes whose numbers are scores of a head, and where each suffix of a column comes from.
_SCORED = ("heads", "frequency usage")


def _column(rows: pd.DataFrame, probe: str | tuple[str, ...], column: str) -> "pd.Series[Any]":
    """One column of the rows of a probe, by layer and head."""
    chosen = rows[rows["probe"].isin((probe,) if isinstance(probe, str) else probe)]
    return chosen.set_index(["layer", "head"])[column]


def head_metrics(measurements: pd.DataFrame) -> list[str]:
    """The detectors that gave numbers, in the order they stand in the table."""
    scored = measurements[measurements["probe"].isin(_SCORED)]
    return [str(metric) for metric in scored["metric"].unique()]


def losses(measurements: pd.DataFrame) -> list[Row]:
    """The loss of the model in question under each condition, as the report shows it."""
    rows = _in_question(measurements)
    rows = rows[rows["probe"] == LOSS]
    names = ("positions", "variant", "tokens", "value", "ci_low", "ci_high", "chance", "n")
    return [{name: row[name] for name in names} for row in rows.to_dict("records")]


def edges(measurements: pd.DataFrame) -> list[Row]:
    """The K-composition edges again, from the tidy table."""
    found = measurements[measurements["probe"] == "k-composition"]
    edges = []
    for row in found.to_dict("records"):
        layer, head = map(int, row["metric"].removeprefix("L").split("H"))
        writer = {"from_layer": layer, "from_head": head}
        reader = {"to_layer": int(row["layer"]), "to_head": int(row["head"])}
        numbers = {"score": float(row["value"]), "chance": float(row["chance"])}
        edges.append({**writer, **reader, **numbers})
    return edges


# A sentence names at most this many heads of a kind.
_MOST_NAMED = 6


def headline(heads: pd.DataFrame, losses: Sequence[Mapping[str, Any]], info: Any) -> str:
    """How many heads of each kind there are, what the ablation leaves, and what it costs.

    Args:
        heads: what `heads_table` gives.
        losses: what `losses` gives.
        info: how the run was made.

    Returns:
        A few sentences.
    """
    labelled = heads[heads["label"] != "none"]
    kinds = [
        f"{len(group)} {label} ({_names(group)})"
        for label, group in labelled.groupby("label", sort=False)
    ]
    found = ", ".join(sorted(kinds, key=lambda text: -int(text.split()[0])))
    without = len(heads) - len(labelled)
    sentences = [
        f"Of {len(heads)} heads: {found}; {without} without a label."
        if kinds
        else f"None of the {len(heads)} heads has a label."
    ]
    if info["ablation"] and kinds:
        kept = (labelled["label"] == labelled["ablated_label"]).sum()
        counts = labelled["dependence"].value_counts()
        judged = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        sentences.append(
            f"With positions ablated ({info['ablation']}), {kept} of the {len(labelled)} labelled "
            "heads keep their label"
            + (f"; with their own layer alone ablated, {judged}." if judged else ".")
        )
    sentences.append(_losses(losses, info["ablation"]))
    return " ".join(sentences)


def _losses(losses: Sequence[Mapping[str, Any]], ablation: str | None) -> str:
    by_condition = {row["positions"]: row for row in losses}
    intact = by_condition[INTACT]
    text = f"Loss over all tokens {_with_interval(intact)} nats per token"
    if ablation:
        text += f", {_with_interval(by_condition[ablation])} with positions ablated ({ablation})"
    return f"{text}; token frequencies alone give {intact['chance']:.3g}."


def _with_interval(row: Mapping[str, Any]) -> str:
    return f"{row['value']:.3g} [{row['ci_low']:.3g}, {row['ci_high']:.3g}]"


def _names(group: pd.DataFrame) -> str:
    names = [f"L{layer}H{head}" for layer, head in zip(group["layer"], group["head"], strict=True)]
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
