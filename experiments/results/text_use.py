"""How the tidy table names what interchange did on text, and what it says. Needs no torch."""

import pandas as pd

from experiments.results import interchange as names
from experiments.results.answer import Judged, judged_by_moves
from experiments.results.code_ablation import EVERYWHERE, SIZE_MATCHED
from experiments.results.guesser import Score, guesser_words
from experiments.results.measurements import finished
from experiments.results.readability import SETTING
from probes.bootstrap import benjamini_hochberg
from probes.code_names import JUDGED, SIMILARITY

PROBE = "interchange on text"
# In nats: how far predictions move where positions are others; and, of runs behind other text of
# one length, what is left of that in their mean.
WAY, SAME_LENGTH, OVER_NOISE = "way", "prefix of one length", "over prefix of one length"
# What is lost per token, by the model and by whom it is held against.
NATS, NATS_AT_ENDS = "nats", "nats at ends"
BIGRAM = "bigram"
PERMUTED = "earlier tokens permuted"
ABOVE_BIGRAM, LOST_BY_PERMUTATION = names.ABOVE_GUESSER, names.LOST_BY_SHUFFLE
# What is moved where text is told to stand in another order.
EARLIER = "earlier tokens"
# In nats: a way that is shorter is the rounding of float32.
ROUNDING = 1e-9
# In nats per token: losses that differ by less differ by the rounding of float32.
_LOSSES_ROUNDING = 1e-6


def by_route(route: str) -> str:
    """The name of the condition in which one route of a head reads other positions."""
    return f"{route} read other positions"


def without_order_on_text(measurements: pd.DataFrame) -> str | None:
    """Why nothing is said of the codes of a language model, where it has not learned order.

    Args:
        measurements: the tidy table with the rows of `text_order_rows`.

    Returns:
        A sentence; None where the model surely beats the bigram guesser, and surely loses where the
        earlier tokens are permuted and the last one is kept.
    """
    rows = measurements[measurements["probe"] == PROBE].set_index(["metric", "control"])
    gates = [(ABOVE_BIGRAM, ""), (LOST_BY_PERMUTATION, "")]
    if (rows["ci_low"].loc[gates] > _LOSSES_ROUNDING).all():
        return None
    told = [(NATS, ""), (NATS, BIGRAM), (LOST_BY_PERMUTATION, "")]
    own, bigram, lost = rows["value"].loc[told].tolist()
    return (
        f"the model has not learned order: it loses {own:.3g} nats per token, a bigram guesser "
        f"{bigram:.3g}. Permuting earlier tokens adds {lost:.2g}. Train it longer, or give another "
        "one."
    )


def nothing_further_on(measurements: pd.DataFrame) -> str | None:
    """Why the same text further on decides nothing, or only where it is followed.

    Args:
        measurements: the tidy table with the rows of `text_interchange_rows`.

    Returns:
        A sentence; None where predictions there surely differ by more than behind other text, and
        not surely by less than a tenth of what they do in another order.
    """
    metric, further = measurements["metric"], measurements["positions"] != EARLIER
    noise = further & (metric == OVER_NOISE) & (measurements["ci_low"] <= ROUNDING)
    shorter = further & (measurements["ci_high"] < 0)
    nothing, short = (
        shorter & (metric == over) for over in (names.OVER_THOUSANDTH, names.OVER_TENTH)
    )
    for rows, why in (
        (
            measurements[noise],
            "no more than another prefix does. There is nothing to follow, so the order of earlier "
            "tokens alone decides.",
        ),
        (
            measurements[nothing],
            "surely by less than a thousandth of what another order does. There is nothing to "
            "follow, so the order of earlier tokens alone decides.",
        ),
        (
            measurements[short],
            "surely by less than a tenth of what another order does. So it counts only where it is "
            "followed, and else the order of earlier tokens decides.",
        ),
    ):
        for moved in rows["positions"]:
            return f"Moving {moved} changes predictions {why}"
    return None


def judged_on_text(measurements: pd.DataFrame) -> list[Judged]:
    """What moved positions say of a language model's codes, through all of the stream.

    Args:
        measurements: the tidy table.

    Returns:
        One for each setting in which positions were moved in text. A code's share is that of the
        way that predictions go in the clean run, and what is restored that of the way back, both
        net of controls.
    """
    measurements = finished(measurements)
    gated = measurements[measurements["probe"] == PROBE]
    return [
        _judged(measurements, of) for _, of in gated.groupby(SETTING, sort=False, observed=True)
    ]


def routes_read(measurements: pd.DataFrame) -> pd.DataFrame:
    """Which heads read position, by which of their routes.

    Args:
        measurements: the tidy table with the rows of `route_rows`.

    Returns:
        layer, head, route; the share of the way to text in another order that predictions go where
        this route alone reads other positions (`towards`), that of its size-matched control, the
        difference, or less where an unrelated order is followed as far (`net`), with its 95%
        interval over sequences, and its q-value. The most followed first; empty where no attention
        reads a position in the mean. Of the last layer's queries it says nothing: those of the
        tokens that are asked are not moved.
    """
    rows = measurements[measurements["head"].notna() & (measurements["probe"] == names.PROBE)]
    keys = ["layer", "head", "positions"]
    own, control = (
        rows[rows["control"] == side].pivot(index=keys, columns="metric", values="value")
        for side in ("", SIZE_MATCHED)
    )
    net = names.net_rows(rows).set_index(keys)
    told = own.reindex(columns=[names.TOWARDS, names.RANK])
    found = told.assign(
        size_matched=control.get(names.TOWARDS),
        net=net["value"],
        net_low=net["ci_low"],
        net_high=net["ci_high"],
        q=benjamini_hochberg(told[names.RANK].to_numpy()),
    ).reset_index()
    found["route"] = found["positions"].str.removesuffix(by_route(""))
    shown = ["layer", "head", "route", names.TOWARDS, "size_matched", names.NET]
    found = found.sort_values(names.NET, ascending=False, kind="stable", ignore_index=True)
    return found[[*shown, "net_low", "net_high", "q"]].rename_axis(columns=None)


def _judged(measurements: pd.DataFrame, gate: pd.DataFrame) -> Judged:
    first = gate.iloc[0]
    same = (measurements[SETTING] == first[SETTING]).all(axis=1)
    own = gate[(gate["metric"] == NATS) & (gate["control"] == "")].iloc[0]
    reason = without_order_on_text(gate)
    called = names.by_name(
        [use for use in names.uses(measurements[same]) if use.layer == EVERYWHERE]
    )
    value = (float(own["value"]), float(own["ci_low"]), float(own["ci_high"]))
    score = Score("loss", "nats per token", value, float(own["chance"]), guesser_words("text"))
    codes = (*JUDGED, SIMILARITY)
    return judged_by_moves(first.to_dict(), score, called, "predictions", reason, codes)
