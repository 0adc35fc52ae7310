"""What moved positions say of a model on a task, at a glance. Needs no torch."""

import pandas as pd

from experiments.results.answer import Judged, judged_by_moves
from experiments.results.code_ablation import EVERYWHERE
from experiments.results.guesser import OF_ANSWERS, Score
from experiments.results.interchange import (
    ABOVE_GUESSER,
    ACCURACY,
    GUESSER,
    LOST_BY_SHUFFLE,
    PROBE,
    SHUFFLED_QUESTION,
    by_name,
    interval_of,
    uses,
)
from experiments.results.measurements import finished
from experiments.results.percent import percent
from probes.code_names import JUDGED

# From this share of right answers on a guesser who knows no order leaves nothing to learn by it.
_ALL_RIGHT = 0.99


def without_order(measurements: pd.DataFrame) -> str | None:
    """Why nothing is said of the codes of a model, where it has not learned order.

    Args:
        measurements: the tidy table with the rows of `order_rows`.

    Returns:
        A sentence; None where the model surely beats the guesser who does not know the order, and
        surely loses where the question's tokens are permuted. On a task that no order matters to
        the guesser alone is to be beaten.
    """
    rows = measurements[measurements["probe"] == PROBE].set_index(["metric", "control"])
    gates = [(ABOVE_GUESSER, ""), *rows.index.intersection([(LOST_BY_SHUFFLE, "")])]
    if (rows["ci_low"].loc[gates] > 0).all():
        return None
    accuracy = rows.loc[ACCURACY]["value"]
    own, guesser = accuracy.loc[["", GUESSER]].tolist()
    if SHUFFLED_QUESTION not in accuracy:
        return (
            f"the model has not learned the task: {percent(own)} of its answers are right. An "
            f"order-blind guesser gets {percent(guesser)}: train it longer, or give another one."
        )
    return (
        f"the model has not learned order: {percent(own)} of its answers are right "
        f"({percent(accuracy.loc[SHUFFLED_QUESTION])} with questions shuffled). An order-blind "
        f"guesser gets {percent(guesser)}: train it longer, or give another one."
    )


def judged_on_task(measurements: pd.DataFrame) -> list[Judged]:
    """What moved positions say of the codes of a model on a task, through its whole stream.

    Args:
        measurements: the tidy table.

    Returns:
        The same as every intervention tells it; a code's share is what follows, and what is
        restored what comes back with it alone, both net of controls.
        Empty where no position was moved in a task by a model that knows order.
    """
    rows = finished(measurements[measurements["probe"] == PROBE])
    records = rows.to_dict("records")
    scores = {row["control"]: row for row in records if row["metric"] == ACCURACY}
    if not scores:
        return []
    accuracy = Score("accuracy", OF_ANSWERS, interval_of(scores[""]), scores[GUESSER]["value"])
    stream = [use for use in uses(rows) if use.layer == EVERYWHERE]
    reason = without_order(rows)
    unjudged = () if reason is None else JUDGED
    # Where nothing was moved removal decides; where order can add nothing, it says that.
    if not stream and (reason is None or scores[GUESSER]["value"] > _ALL_RIGHT):
        return []
    return [judged_by_moves(records[0], accuracy, by_name(stream), "answers", reason, unjudged)]
