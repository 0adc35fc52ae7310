"""A model's own questions of position: where is it read, is a moved one followed, do few dimensions
hold it, which heads read it, and does a trained one rescue longer examples?"""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from experiments.codes.aligned import alignment_rows, exam_of
from experiments.codes.following import following_rows, movable
from experiments.codes.in_depth import statistics_at
from experiments.codes.order import order_rows
from experiments.codes.rescue import rescued_lengths
from experiments.codes.task import InterventionTask, intervention_task_of, shorter_tasks
from experiments.codes.text_interchange import route_rows, text_interchange_rows
from experiments.codes.text_order import text_order_rows
from experiments.probing.measure import measure
from experiments.probing.sites import Site, sites
from experiments.probing.split import Split
from experiments.results.interchange import followed
from experiments.results.measurements import INTACT, table
from experiments.results.task_use import without_order
from experiments.results.text_use import routes_read, without_order_on_text
from experiments.variants.ablation import Ablation
from experiments.variants.config import ProbingConfig
from experiments.variants.variants import ModelVariant
from nope_interp.errors import UserError
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.answers import ExampleSource
from nope_interp.tasks.sources import TextSource
from probes.regression import LinearProbe

_READ = ["positions", "layer", "site", "value", "ci_low", "ci_high", "chance"]


def positions_read(
    variant: ModelVariant,
    split: Split,
    where: Sequence[Site],
    ablate: str | None,
    batch_size: int,
    seed: int,
) -> pd.DataFrame:
    """The error of linear probes of position, by condition and site.

    Args:
        variant: the model.
        split: sequences to fit probes on, and others to take the error on.
        where: the sites.
        ablate: positions to take away, too; None reads the model as it is only.
        batch_size: sequences in a forward pass.
        seed: of the ablation and of the bootstrap.

    Returns:
        One row for each condition and site, as `LoadedModel.probe_positions` describes it.

    Raises:
        UserError: for an ablation or a layer that the model lacks.
    """
    with Ablation(ablate, seed=seed).of(variant.model):
        pass  # what cannot be taken away is refused before anything is read
    found: list[dict[str, Any]] = []
    for name in (None, *([] if ablate is None else [ablate])):
        context = variant.context("probe", seed, False, positions=name or INTACT)
        with Ablation(name, seed=seed).of(variant.model):
            found += measure(
                variant.model,
                split,
                where,
                context=context,
                seed=seed,
                batch_size=batch_size,
                probes=lambda _, seed: [LinearProbe(seed=seed)],
            ).rows
    rows = table(found)
    of_position = (rows["probe"] == "linear") & (rows["metric"] == "mae")
    return rows[of_position & (rows["control"] == "")][_READ].reset_index(drop=True)


def positions_moved(
    variant: ModelVariant,
    config: ProbingConfig,
    by: int | None,
    layers: Sequence[int] | None,
    hooks: Sequence[str],
) -> pd.DataFrame:
    """Do answers, or predictions, follow a position that is moved inside the model?

    Args:
        variant: the model with its tokens.
        config: how many sequences, of which length, and the seed.
        by: how many symbols of a task's answer, places, or tokens of text positions are moved on;
            None takes one, of text a quarter of a sequence.
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
        rows = text_interchange_rows(task, statistics_at(task, where), context=context, by=by)
        return followed(table(rows))
    task = intervention_task_of(config, variant)
    elsewhere = movable(task, 1 if by is None else by)
    context = variant.context("probe", config.seed, task.begin_token)
    found = table(following_rows(task, elsewhere, where, context=context))
    if (why := without_order(found)) is not None:
        raise UserError(why)
    return followed(found)


def positions_aligned(
    variant: ModelVariant,
    config: ProbingConfig,
    ranks: Sequence[int],
    layers: Sequence[int] | None,
    hooks: Sequence[str],
) -> pd.DataFrame:
    """Do few learned dimensions hold the position of what a task asks?

    Args:
        variant: a model of ours that was trained on a task with answers.
        config: how many examples, and the seed.
        ranks: of the subspaces.
        layers: which blocks; None for all.
        hooks: where in each block.

    Returns:
        One row for each site and rank: layer, site, rank, and shares of the right answers that are
        judged, 0 to 1; of `net` and `shorter` also 95% intervals over examples (`..._low`, ...):

        - `followed`: those that follow; `regressed`: with what linear regression reads, before any
          search; `untrained`: in a random-init model, searched alike; `constant`: of who gives the
          answer of one position everywhere, the best one; `net`: `followed` less the larger of
          these two;
        - `shorter`: the same, net, on shorter examples, whose lengths the search never saw, where
          the model was trained on some that it answers;
        - `later`, `later constant`, `told t`, `told 1/m`, `told log m`, `told slow cosine` and
          `variable`: as `experiments.codes.variable.variable_of` describes them.

    Raises:
        UserError: for a model that has not learned order, a task whose answer is not read off
            symbol by symbol, and too few positions.
    """
    where = sites(variant.n_layers, hooks, layers)
    task = intervention_task_of(config, variant)
    context = variant.context("probe", config.seed, task.begin_token)
    if (why := without_order(table(order_rows(task, context=context)))) is not None:
        raise UserError(why)
    shorter = shorter_tasks(config, variant, task)
    return pd.DataFrame(alignment_rows(task, exam_of(task), where, ranks, shorter=shorter))


def lengths_rescued(variant: ModelVariant, config: ProbingConfig, length: int) -> pd.DataFrame:
    """Do answers to longer examples return where a code tells trained positions?

    Args:
        variant: a model of ours that was trained on a task with answers.
        config: how many examples, and the seed.
        length: of the longer examples.

    Returns:
        The table of `experiments.results.rescue.rescues`.

    Raises:
        UserError: as `rescued_lengths`, and for another model.
    """
    model, source = variant.model, variant.sources[0]
    if not isinstance(source, ExampleSource) or not isinstance(model, HookedTransformer):
        raise UserError(
            "longer examples are of a task with answers: give a model of ours that was trained on "
            "one."
        )
    # What depends on position in the last block's output is an answer.
    where = sites(variant.n_layers, ("resid_post",))[:-1]
    return rescued_lengths(model, source.task, length, config, where)


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
