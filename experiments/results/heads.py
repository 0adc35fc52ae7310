"""The table of heads and its companions, out of the tidy table."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from experiments.results.found_by import finders_table
from experiments.results.intervals import with_interval
from experiments.results.measurements import INTACT, LOSS, Row
from probes.head_rules import NONE

# Columns of the table of heads, and the probes that their rows are kept under.
OF_LABELS = {
    "confidence": "label",
    "p_shuffled": "p of label, shuffled",
    "p_random_init": "p of label, random-init",
    "q_value": "q of label",
}

OF_OWN = {"own_confidence": "own label", "own_q_value": "q of own label"}
# What leads a head to the token before, and to its own, by token.
FOUND_BY = {"previous": "finds_previous_by", "own": "finds_itself_by"}
# Labels by fewer sequences.
EARLY = "label of fewer sequences"


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
    variant = _in_question(measurements).dropna(subset=["head"]).set_index(["layer", "head"])
    intact = variant[variant["positions"] == INTACT]
    ablated = variant[variant["positions"] == ablation] if ablation else variant.iloc[:0]
    columns = {
        "label": _of(intact, "label")["metric"],
        "runner_up": _of(intact, "runner-up", "nearest")["metric"],
        **{name: _of(intact, probe)["value"] for name, probe in OF_LABELS.items()},
        "dependence": _of(ablated, "dependence")["metric"],
        "retention": _of(ablated, "dependence")["value"],
        "retention_low": _of(ablated, "dependence")["ci_low"],
        "retention_high": _of(ablated, "dependence")["ci_high"],
        "ablated_label": _of(ablated, "label")["metric"],
        "settled_at": _settled_at(intact),
        "retention_whole_model": _of(ablated, "retention, whole model")["value"],
    }
    finders = finders_table(measurements).set_index(["layer", "head"])
    for token, name in FOUND_BY.items():
        columns[name] = finders.loc[finders["token"] == token, "word"]
    if (intact["probe"] == "own label").any():
        columns["own_label"] = _of(intact, "own label")["metric"]
        columns["own_ablated_label"] = _of(ablated, "own label")["metric"]
        columns |= {name: _of(intact, probe)["value"] for name, probe in OF_OWN.items()}
    scored = {"": _of(intact, *_SCORED), "_ablated": _of(ablated, *_SCORED)}
    for metric in head_metrics(measurements):
        for name, rows in scored.items():
            scores = rows[rows["metric"] == metric]
            for suffix, column in _SUFFIXES.items():
                columns[f"{metric}{name}{suffix}"] = scores[column]
    return pd.DataFrame(columns).sort_index().rename_axis(["layer", "head"]).reset_index()


def _settled_at(rows: pd.DataFrame) -> "pd.Series[Any]":
    """The fewest sequences from which on a head has the label that all of them give."""
    last = _of(rows, "label")["metric"]
    n_all = rows.loc[rows["probe"] == "heads", "n"].max()
    since = pd.Series(float(n_all), index=last.index)
    stages = rows[rows["probe"] == EARLY]
    steady = pd.Series(True, index=last.index)
    for n in sorted(stages["n"].unique(), reverse=True):
        of_stage = stages.loc[stages["n"] == n, "metric"]
        steady &= of_stage.reindex(last.index) == last
        since[steady] = float(n)
    return since


def settling(measurements: pd.DataFrame) -> list[Row]:
    """What share of the heads has its final label already after fewer sequences.

    Args:
        measurements: the tidy table.

    Returns:
        For each condition its name, how many sequences there were, the shares, and the share that
        the same labels would reach if they were permuted over the heads.
    """
    found = []
    variant = _in_question(measurements)
    labelled = _of(variant, "label", EARLY).set_index(["layer", "head"])
    for condition, rows in labelled.groupby("positions", sort=False):
        last = _of(rows, "label")["metric"]
        dealt = last.value_counts(normalize=True)
        n, shares, chance = [], [], []
        stages = rows[rows["probe"] == EARLY]
        for stage in sorted(stages["n"].unique().tolist()):
            names = stages.loc[stages["n"] == stage, "metric"]
            n.append(int(stage))
            shares.append(float((names == last.reindex(names.index)).mean()))
            drawn = names.value_counts(normalize=True)
            chance.append(float(drawn.mul(dealt, fill_value=0.0).sum()))
        found.append({"condition": condition, "n": n, "share": shares, "chance": chance})
    return found


def _in_question(measurements: pd.DataFrame) -> pd.DataFrame:
    """The rows of the model whose heads are labelled, without those of the variant that it is held
    against."""
    labelled = measurements.loc[measurements["probe"] == "label", "variant"].unique()
    return measurements[measurements["variant"].isin(labelled)]


# Probes whose numbers are scores of a head, and where each suffix of a column comes from.
_SCORED = ("heads", "frequency usage")


def _of(rows: pd.DataFrame, *probes: str) -> pd.DataFrame:
    """The rows of these probes."""
    return rows[rows["probe"].isin(probes)]


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


# Of tasks with answers: their examples stand one after another, and no prompt can be told from
# another's answer once they do.
OF_PROMPTS_TOO = (
    "Tokens of prompts and of further examples count, so a model whose answers are all right can "
    "have a loss above chance."
)
# A sentence names at most this many kinds of heads.
_MOST_KINDS = 3
# And names at most so many of them.
_MOST_NAMED = 12


def headline(heads: pd.DataFrame, ablation: str | None) -> str:
    """How many heads have a label, and how many of these keep it without positions.

    Args:
        heads: what `heads_table` gives.
        ablation: the condition in which positions were taken away, if any.

    Returns:
        One sentence.
    """
    labelled = heads[heads["label"] != NONE]
    if labelled.empty:
        return f"None of the {len(heads)} heads has a label."
    have = (
        f"{len(labelled)} of {len(heads)} heads {'has' if len(labelled) == 1 else 'have'} a label"
    )
    if ablation:
        kept = int((labelled["label"] == labelled["ablated_label"]).sum())
        return f"{have}; {_keep(kept)} when positions are taken away ({ablation})."
    counts = labelled["label"].value_counts()
    kinds = [f"{count} {label}" for label, count in counts.head(_MOST_KINDS).items()]
    others = int(counts.iloc[_MOST_KINDS:].sum())
    return f"{have}: {', '.join([*kinds, *([f'{others} others'] if others else [])])}."


def positional_heads(
    heads: pd.DataFrame, ablation: str | None, each_layer_alone: bool = True
) -> str:
    """Which heads lose their habit with positions.

    Args:
        heads: what `heads_table` gives.
        ablation: the condition in which positions were taken away, if any, in words.
        each_layer_alone: whether they were taken from a head's own layer alone; else from the
            model.

    Returns:
        A sentence; "" where there are none.
    """
    found = heads[heads["dependence"] == "positional"]
    names = [f"L{layer}H{head}" for layer, head in zip(found["layer"], found["head"], strict=True)]
    if not names:
        return ""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    one = len(names) == 1
    told = "1 head needs" if one else f"{len(names)} heads need"
    own = f"positions in {'its' if one else 'their'} own layer"
    which = own if each_layer_alone else "the model's positions"
    listed = ", ".join(names[:_MOST_NAMED])
    return f"{told} {which} ({ablation} takes them away): {listed}{more}."


def by_own_rules(heads: pd.DataFrame, labels: Sequence[str]) -> str:
    """How many heads have each label of a user's own rules.

    Args:
        heads: what `heads_table` gives.
        labels: of the rules, in their order.

    Returns:
        A sentence; "" where there are no such rules.
    """
    if not labels:
        return ""
    told = ", ".join(f"{(heads['own_label'] == label).sum()} {label}" for label in labels)
    return f"By your own rules, of {len(heads)} heads: {told}."


def _keep(n: int) -> str:
    if n == 0:
        return "none of these keeps it"
    return f"{n} of these {'keeps' if n == 1 else 'keep'} it"


def measured_on(measurements: pd.DataFrame, ablation: str | None, task: str = "text") -> str:
    """What the model read, and how well it does there, against chance.

    Args:
        measurements: the tidy table.
        ablation: the condition in which positions were taken away, if any.
        task: what was read: text, or a task with answers.

    Returns:
        Two sentences; of a task a third, since nobody can guess its prompts.
    """
    begin = bool(_in_question(measurements)["begin_token"].iloc[0])
    by_condition = {row["positions"]: row for row in losses(measurements)}
    intact = by_condition[INTACT]
    without = f", and {_with_interval(by_condition[ablation])} under {ablation}" if ablation else ""
    told = (
        f"Read on {task} {'with' if begin else 'without'} a begin token. Its loss is "
        f"{_with_interval(intact)} nats per token{without}; chance is {intact['chance']:#.3g}."
    )
    return told if task == "text" else f"{told} {OF_PROMPTS_TOO}"


def measured_in_brief(measurements: pd.DataFrame, ablation: str | None, task: str = "text") -> str:
    """The losses against chance, for a line of 50 characters.

    Args:
        measurements: the tidy table.
        ablation: the condition in which positions were taken away, if any.
        task: as `measured_on` takes it.

    Returns:
        One sentence.
    """
    by_condition = {row["positions"]: row for row in losses(measurements)}
    intact = by_condition[INTACT]
    without = f", ablated {by_condition[ablation]['value']:#.3g}" if ablation else ""
    loss = "Loss" if task == "text" else "Loss with prompts"
    return f"{loss} {intact['value']:#.3g}{without}, chance {intact['chance']:#.3g} nats per token."


def _with_interval(row: Mapping[str, Any]) -> str:
    return with_interval(row["value"], row["ci_low"], row["ci_high"], "#.3g")
