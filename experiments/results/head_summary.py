"""What a classification of heads comes to, in sentences and as a plain table."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

# A sentence names at most this many heads of a kind.
_MOST_NAMED = 6


def headline(heads: pd.DataFrame, losses: Sequence[Mapping[str, Any]], info: Any) -> str:
    """How many heads of each kind there are, what the ablation leaves, and what it costs."""
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
        judged = ", ".join(
            f"{count} {kind}" for kind, count in labelled["dependence"].value_counts().items()
        )
        sentences.append(
            f"With {info['ablation']}, {kept} of the {len(labelled)} keep their label"
            + (f"; with their own layer alone ablated, {judged}." if judged else ".")
        )
    sentences.append(_losses(losses, info["ablation"]))
    return " ".join(sentences)


def markdown_table(table: pd.DataFrame) -> str:
    """A Markdown table with numbers to three digits."""
    lines = [list(table.columns), ["---"] * len(table.columns)]
    lines += [[_cell(value) for value in row] for row in table.itertuples(index=False)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _losses(losses: Sequence[Mapping[str, Any]], ablation: str | None) -> str:
    by_condition = {row["positions"]: row for row in losses if row["variant"] != "random-init twin"}
    intact = by_condition["intact"]
    text = f"Loss over all tokens {_with_interval(intact)} nats per token"
    if ablation:
        text += f", {_with_interval(by_condition[ablation])} with {ablation}"
    return f"{text}; token frequencies alone give {intact['chance']:.3g}."


def _with_interval(row: Mapping[str, Any]) -> str:
    return f"{row['value']:.3g} [{row['ci_low']:.3g}, {row['ci_high']:.3g}]"


def _names(group: pd.DataFrame) -> str:
    names = [f"L{layer}H{head}" for layer, head in zip(group["layer"], group["head"], strict=True)]
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _cell(value: Any) -> str:
    if pd.isna(value):
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value).replace("|", "\\|")
