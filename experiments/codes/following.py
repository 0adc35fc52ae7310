"""Whether answers follow moved positions, from the gate to the last row."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.codes.counterfactual import Counterfactual, counterfactuals
from experiments.codes.counting import counting_rows
from experiments.codes.in_depth import statistics_at, stream_sites
from experiments.codes.interchange import check_enough_to_draw, interchange_rows
from experiments.codes.order import order_rows
from experiments.codes.task import InterventionTask
from experiments.probing.sites import Site
from experiments.results.measurements import table
from experiments.results.task_use import without_order


def movable(task: InterventionTask, by: int = 1) -> list[Counterfactual]:
    """What can be moved in a task's examples, as `counterfactuals` says.

    Args:
        task: one with answers, of a model of ours.
        by: as there.

    Returns:
        One for each set of positions.

    Raises:
        UserError: as there, and for too few examples to draw controls for.
    """
    check_enough_to_draw(task)
    return counterfactuals(task, by)


def following_rows(
    task: InterventionTask,
    elsewhere: Sequence[Counterfactual],
    where: Sequence[Site],
    *,
    context: Mapping[str, Any],
    description: str | None = None,
) -> list[dict[str, Any]]:
    """Rows of the tidy table: whether the model knows order and, only then, what it follows.

    Args:
        task: one with answers, of a model of ours.
        elsewhere: as from `movable`; empty where nothing can be moved.
        where: the single sites at which codes are moved, beside the whole stream.
        context: the columns that tell this model variant from others.
        description: label of the progress bar; None draws no bar.

    Returns:
        The rows of `order_rows`, `interchange_rows` and `counting_rows`.

    Raises:
        UserError: for a site that the model lacks.
    """
    rows = order_rows(task, context=context)
    if not elsewhere or without_order(table(rows)) is not None:
        return rows
    statistics = statistics_at(task, where)
    how: dict[str, Any] = {"context": context}
    moved = interchange_rows(task, statistics, elsewhere, description=description, **how)
    among = {one.moved: one.among for one in elsewhere}
    # Moved through the whole stream alone, a trend is one of 1/m where it is so in all of it.
    read = statistics or statistics_at(task, stream_sites(task))
    return [*rows, *moved, *counting_rows(task, read, among, **how)]
