"""Several models' heads side by side: how many of each kind, how deep, and what stays of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from experiments.results.findings import Figure, Panel, Series
from experiments.results.heads import headline as headline_of_one
from experiments.results.heads import heads_table
from probes.head_rules import LABELS, NONE

DEPTHS = ("early", "middle", "late")  # thirds of a model's layers


def all_heads(measurements: pd.DataFrame, ablations: Mapping[str, str | None]) -> pd.DataFrame:
    """The tables of heads of all models, one below the other.

    Args:
        measurements: the tidy table of all of them.
        ablations: by model, the condition in which its positions were taken away, if any.

    Returns:
        One row for each head, with its model and the third of the layers that it stands in.
    """
    found = []
    for model, ablation in ablations.items():
        own = measurements[measurements["model"] == model]
        table = heads_table(own, ablation)
        # The loss is the last layer's, which has no heads in some hybrids.
        third = table["layer"] * len(DEPTHS) // (own["layer"].max() + 1)
        found.append(table.assign(model=model, depth=[DEPTHS[at] for at in third]))
    return pd.concat(found, ignore_index=True)


def counts(heads: pd.DataFrame) -> pd.DataFrame:
    """How many heads of each model have each label.

    Args:
        heads: what `all_heads` gives.

    Returns:
        One row for each model and label that one of its heads has: heads, their share of the
        model's (0 to 1), how many stand in each third of its layers, how many keep the label with
        all positions ablated, and how many depend on their own layer's positions.
    """
    rows = []
    for model, own in heads.groupby("model", sort=False):
        for label in LABELS:
            some = own[own["label"] == label]
            if some.empty:
                continue
            row: dict[str, Any] = {"model": model, "label": label, "heads": len(some)}
            row["share"] = len(some) / len(own)
            row |= {depth: int((some["depth"] == depth).sum()) for depth in DEPTHS}
            if some["ablated_label"].notna().any():
                row["keep it ablated"] = int((some["ablated_label"] == label).sum())
                row["positional"] = int((some["dependence"] == "positional").sum())
            rows.append(row)
    return _whole(pd.DataFrame(rows))


def by_model(heads: pd.DataFrame) -> pd.DataFrame:
    """One line a model: its heads, those with a label, and those that keep it without positions.

    Args:
        heads: what `all_heads` gives.
    """
    rows = []
    for model, own in heads.groupby("model", sort=False):
        labelled = own[own["label"] != NONE]
        row = {"model": model, "heads": len(own), "labelled": len(labelled)}
        if own["ablated_label"].notna().any():
            row["keep it ablated"] = int((labelled["label"] == labelled["ablated_label"]).sum())
        common = labelled["label"].value_counts().head(2)
        row["most often"] = ", ".join(f"{n} {label}" for label, n in common.items()) or "–"
        rows.append(row)
    return _whole(pd.DataFrame(rows))


def _whole(table: pd.DataFrame) -> pd.DataFrame:
    """Counts stay whole numbers where a model without positions has none of them."""
    partial = [name for name in ("keep it ablated", "positional") if name in table]
    return table.astype(dict.fromkeys(partial, "Int64"))


def headline(heads: pd.DataFrame, ablations: Mapping[str, str | None]) -> str:
    """How many heads of all models have a label, and how many keep it.

    Args:
        heads: what `all_heads` gives.
        ablations: by model, the condition without positions, if any.

    Returns:
        One sentence.
    """
    taken = {model: ablation for model, ablation in ablations.items() if ablation}
    conditions = set(taken.values())
    ablation = "each in its own way" if len(conditions) > 1 else next(iter(conditions), None)
    if not taken or len(taken) == len(ablations):
        whose = f"Of {len(ablations)} models,"
    else:
        heads = heads[heads["model"].isin(taken)]
        have = "has" if len(taken) == 1 else "have"
        whose = f"{len(taken)} of {len(ablations)} models {have} positions:"
    own = headline_of_one(heads, ablation)
    return f"{whose} {own[0].lower()}{own[1:]}"


def figures(heads: pd.DataFrame) -> tuple[Figure, ...]:
    """Labels by model, with positions and without, and by depth, where any head has one."""
    models = tuple(dict.fromkeys(heads["model"]))
    columns = {"positions intact": "label", "positions ablated": "ablated_label"}
    shown = {title: name for title, name in columns.items() if heads[name].notna().any()}
    # Without positions heads may have labels that none has with them.
    given = {label for name in shown.values() for label in heads[name]}
    labels = tuple(label for label in LABELS if label in given)
    placed = tuple(label for label in labels if label != NONE and label in set(heads["label"]))

    def shares(model: str, name: str) -> Series:
        own = heads[heads["model"] == model]
        known = own[name].notna().any()
        found = np.array([(own[name] == label).mean() if known else np.nan for label in labels])
        n = len(own)
        return Series(model, "measured", np.arange(float(len(labels))), found, n=n)

    def depths(model: str) -> tuple[Series, ...]:
        own = heads[heads["model"] == model]
        found = pd.crosstab(own["label"], own["depth"])
        every = found.reindex(index=placed, columns=DEPTHS, fill_value=0)
        x = np.arange(float(len(DEPTHS)))
        return tuple(
            Series(str(label), "measured", x, row.to_numpy(float))
            for label, row in every.iterrows()
        )

    by_label = Figure(
        "labels",
        "How many heads of each kind",
        "The share of a model's heads with each label. Ablated: all positions are taken away.",
        "label",
        "share of heads",
        tuple(
            Panel(title, tuple(shares(model, name) for model in models))
            for title, name in shown.items()
        ),
        ticks=labels,
    )
    if not placed:
        return (by_label,)
    by_depth = Figure(
        "depths",
        "Where they stand",
        "How many heads with each label stand in each third of a model's layers.",
        "third of the layers",
        "heads",
        tuple(Panel(model, depths(model)) for model in models),
        ticks=DEPTHS,
        heat_about=0.0,
    )
    return by_label, by_depth
