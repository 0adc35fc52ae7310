"""When codes become readable in a training, and when it follows them, out of the tidy table."""

import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from experiments.results import interchange, task_use, text_use
from experiments.results.measurements import LOSS
from experiments.results.readability import HYPOTHESES, gain, gain_bounds, verdicts, widened
from experiments.results.worth import WORTH_NAMING

FOLLOWED = "followed"
NEVER_ORDER = "No model that was watched knows order: nothing is said of what it follows"


def code_gains(measurements: pd.DataFrame) -> pd.DataFrame:
    """What each code comes to at every step of one training, by `experiments.results.readability`.

    Every step is judged as a variant of its own, so that intervals are widened for the number of
    steps, too.

    Args:
        measurements: the tidy table of the training.

    Returns:
        One row for each code and step: code, step, layer and site where it is best then, gain with
        its interval low to high, control (the gain of the shuffled positions at that site), word.

    Raises:
        UserError: a measurement lacks its shuffled-position control.
    """
    kept = measurements[measurements["step"].notna()]
    no_step = pd.Series(pd.NA, kept.index, dtype="Int64")
    judged = verdicts(kept.assign(variant=kept["step"].astype("string"), step=no_step))
    return pd.DataFrame(
        [_gain(verdict.hypothesis, row) for verdict in judged for row in verdict.rows]
    )


def _gain(code: str, row: dict[str, Any]) -> dict[str, Any]:
    _, _, smaller = HYPOTHESES[code]
    low, high = gain_bounds(row, smaller)
    control = gain(row["control_value"], row["chance"], smaller)
    at = {"code": code, "step": int(row["variant"]), "layer": row["layer"], "site": row["site"]}
    found = {"gain": row["gain"], "low": low, "high": high, "control": control}
    return {**at, **found, "word": row["verdict"]}


def onsets(measurements: pd.DataFrame) -> dict[str, float]:
    """The first watched step of one training at which each code is readable, and "loss": at which
    the loss has fallen half of its way from the first step to the last.

    Args:
        measurements: the tidy table of the training.

    Returns:
        Optimiser steps by code; NaN for what never comes, and for a loss that does not fall.
        `readable` is the word of `experiments.results.readability`: surely a gain of a tenth or
        more.
    """
    gains = code_gains(measurements)
    found = {
        str(code): _first(of_code["step"][of_code["word"] == "readable"])
        for code, of_code in gains.groupby("code", sort=False)
    }
    losses = loss_by_step(measurements)
    first, last = losses.iloc[0], losses.iloc[-1]
    fallen = losses.index[(losses <= (first + last) / 2) & (last < first)]
    return {**found, LOSS: _first(fallen.to_series())}


def followed_codes(measurements: pd.DataFrame) -> pd.DataFrame:
    """How far a model in training follows each code that is moved through its whole stream.

    Args:
        measurements: the tidy table of one training.

    Returns:
        One row for each code and step, of several sets of positions the one surely followed most:
        code, step, net (the share of answers, or of the way of predictions, that follows, less the
        control's, or less what follows random functions) with its interval low to high, widened for
        all codes and steps, and word: "followed" where it is surely a tenth or more of a model that
        knows order, else "". 0 where nothing can follow: positions are too few for the code, or too
        few answers are right.
        Empty where no positions were moved.
    """
    kept = _moved(measurements)
    nets = _least_rows(kept)
    knows = {step: _knows_order(rows) for step, rows in kept.groupby("step")}
    found = [_follows(row, knows[row["step"]]) for row in nets.to_dict("records")]
    table = pd.DataFrame(found, columns=["code", "step", "net", "low", "high", "word"])
    surest = table.sort_values("low", kind="stable").groupby(["code", "step"]).last()
    steps = measurements["step"].dropna().unique()
    every = pd.MultiIndex.from_product([table["code"].unique(), steps], names=["code", "step"])
    return with_nothing(surest, every)


def _least_rows(kept: pd.DataFrame) -> pd.DataFrame:
    """Of each code's effects the one that is least sure once intervals are widened for all.

    On text its own share has to pass, too, as a control may go the other way. Of a smooth trend so
    has what is beyond random functions: any few of them tell a few positions apart.
    """
    metric = kept["metric"]
    nets = metric.isin([interchange.NET, interchange.THIS_ORDER, interchange.PARTICULAR])
    shares = (metric == interchange.BEYOND) & (kept["control"] == "")
    every = kept[nets | (shares & (kept["probe"] == text_use.PROBE))]
    each = ["step", "positions"]
    n_compared = len(every.drop_duplicates(each))
    ends = [
        widened(row["value"], row["ci_low"], row["ci_high"], n_compared, row["n"])
        for row in every.to_dict("records")
    ]
    low, high = np.array(ends).reshape(-1, 2).T
    every = every.assign(ci_low=low, ci_high=high).sort_values("ci_low", kind="stable")
    return every.drop_duplicates(each).sort_index()


def with_nothing(followed: pd.DataFrame, every: pd.MultiIndex) -> pd.DataFrame:
    """What is followed, with a row of 0 wherever nothing can follow.

    Args:
        followed: net, low, high and word, by the levels of `every`.
        every: codes, steps and whatever else tells the rows.

    Returns:
        One row for each of these.
    """
    return followed.reindex(every).reset_index().fillna({"net": 0, "low": 0, "high": 0, "word": ""})


def _follows(row: Mapping[Hashable, Any], knows_order: bool) -> dict[str, Any]:
    _, code, _ = interchange.condition_of(row["positions"])
    word = FOLLOWED if knows_order and row["ci_low"] >= WORTH_NAMING else ""
    at = {"code": code, "step": row["step"], "word": word}
    return {**at, "net": row["value"], "low": row["ci_low"], "high": row["ci_high"]}


def never_knows_order(measurements: pd.DataFrame) -> bool:
    """Whether one training's model was asked for order, and knows it at no watched step.

    Args:
        measurements: the tidy table of the training.
    """
    kept = _moved(measurements)
    return len(kept) > 0 and not any(_knows_order(rows) for _, rows in kept.groupby("step"))


def _moved(measurements: pd.DataFrame) -> pd.DataFrame:
    """What is measured at steps where positions were moved."""
    probes = (interchange.PROBE, text_use.PROBE)
    return measurements[measurements["step"].notna() & measurements["probe"].isin(probes)]


def _knows_order(rows: pd.DataFrame) -> bool:
    on_text = (rows["probe"] == text_use.PROBE).any()
    lacks = text_use.without_order_on_text if on_text else task_use.without_order
    return lacks(rows) is None


def follow_onsets(measurements: pd.DataFrame) -> dict[str, float]:
    """The first watched step of one training at which each code is followed where it is moved, by a
    model that knows order.

    Args:
        measurements: the tidy table of the training.

    Returns:
        Optimiser steps by code; NaN for what never is. Empty where no positions were moved.
    """
    followed = followed_codes(measurements)
    return {
        str(code): _first(of_code["step"][of_code["word"] == FOLLOWED])
        for code, of_code in followed.groupby("code", sort=False)
    }


def order_sentence(measurements: pd.DataFrame) -> str:
    """Which codes are surely readable first in this one training, which later and which never."""
    found = onsets(measurements)
    half_way = found.pop(LOSS)
    sentences = _by_onset(found, "Surely readable first in this training", "Surely readable")
    if never_knows_order(measurements):
        sentences.append(NEVER_ORDER)
    else:
        first, never = "Surely followed first where it is moved", "Once order is known, followed"
        sentences += _by_onset(follow_onsets(measurements), first, never)
    if half_way > 0:
        sentences.append(f"The loss has come half of its way down by step {half_way:.0f}")
    return f"{'. '.join(sentences)}."


def _by_onset(found: Mapping[str, float], first: str, surely: str) -> list[str]:
    """Which codes come when, and which never, without full stops."""
    never = [code for code, step in found.items() if math.isnan(step)]
    by_step: dict[float, list[str]] = {}
    for code, step in sorted(found.items(), key=lambda onset: onset[1]):
        if code not in never:
            by_step.setdefault(step, []).append(code)
    parts = [
        f"{' and '.join(codes)} {f'by step {step:.0f}' if step else 'before any step'}"
        for step, codes in by_step.items()
    ]
    sentences = [f"{first}: {'; then '.join(parts)}"] if parts else []
    return [*sentences, f"{surely} at no watched step: {', '.join(never)}"] if never else sentences


def loss_by_step(measurements: pd.DataFrame) -> "pd.Series[float]":
    """The loss, in nats, of one training at each step."""
    kept = measurements[measurements["step"].notna() & (measurements["probe"] == LOSS)]
    return kept.set_index("step")["value"].sort_index()


def _first(steps: "pd.Series[int]") -> float:
    return float(steps.min()) if len(steps) else math.nan
