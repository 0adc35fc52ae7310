"""A model's own questions of use: is a moved position followed, and which heads read it?"""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from experiments.codes.following import following_rows, movable
from experiments.codes.in_depth import statistics_at
from experiments.codes.task import InterventionTask, intervention_task_of
from experiments.codes.text_interchange import route_rows, text_interchange_rows
from experiments.codes.text_order import text_order_rows
from experiments.probing.measure import sites
from experiments.results.interchange import followed, without_order
from experiments.results.measurements import table
from experiments.results.text_use import routes_read, without_order_on_text
from experiments.variants.config import ProbingConfig
from experiments.variants.variants import ModelVariant
from nope_interp.errors import UserError
from nope_interp.tasks.sources import TextSource


def positions_moved(
    variant: ModelVariant,
    config: ProbingConfig,
    by: int,
    layers: Sequence[int] | None,
    hooks: Sequence[str],
) -> pd.DataFrame:
    """Do answers, or predictions, follow a position that is moved inside the model?

    Args:
        variant: the model with its tokens.
        config: how many sequences, of which length, and the seed.
        by: how many symbols of a task's answer, or places, positions are moved on.
        layers: which blocks; None for all.
        hooks: where in each block.

    Returns:
        The table of `experiments.results.interchange.followed`.

    Raises:
        UserError: for a model that has not learned order, a task whose answers elsewhere are not
            known, and too few examples or positions.
    """
    where = sites(variant.n_layers, hooks, layers)
    if isinstance(variant.sources[0], TextSource):
        task, context = _on_text(variant, config)
        return followed(
            table(text_interchange_rows(task, statistics_at(task, where), context=context))
        )
    task = intervention_task_of(config, variant)
    elsewhere = movable(task, by)
    context = variant.context("probe", config.seed, task.begin_token)
    rows = table(following_rows(task, elsewhere, where, context=context))
    if (why := without_order(rows)) is not None:
        raise UserError(why)
    return followed(rows)


def positions_routed(variant: ModelVariant, config: ProbingConfig) -> pd.DataFrame:
    """Which heads of a language model read position, by their queries, keys or values?

    Args:
        variant: the model with its tokens.
        config: how many sequences, of which length, and the seed.

    Returns:
        The table of `experiments.results.text_use.routes_read`.

    Raises:
        UserError: for a model that reads no text or has not learned order, and too few or too
            short sequences.
    """
    if not isinstance(variant.sources[0], TextSource):
        raise UserError("routes are read on text, and this model was trained on a task.")
    task, context = _on_text(variant, config)
    return routes_read(table(route_rows(task, context=context)))


def _on_text(
    variant: ModelVariant, config: ProbingConfig
) -> tuple[InterventionTask, dict[str, Any]]:
    """The task of a language model that knows order, and its columns."""
    source = variant.sources[0]
    assert isinstance(source, TextSource)  # as the callers saw to
    task = intervention_task_of(config, variant)
    context = variant.context("probe", task.seed, task.begin_token)
    rows = table(text_order_rows(task, source, context=context))
    if (why := without_order_on_text(rows)) is not None:
        raise UserError(why)
    return task, context
