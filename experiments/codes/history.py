"""What a training's history shows: loss, position codes and adjacency after 0, 1, 2, 4, ...
optimiser steps, and what `experiments.heads.history` reads of the same models.

Every kept model is read on the same few sequences with the same draws, so that what moves from one
step to the next is the model.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from einops import rearrange

from experiments.codes.following import movable
from experiments.codes.interchange import noising_rows
from experiments.codes.order import order_rows
from experiments.codes.task import InterventionTask, intervention_task_of
from experiments.codes.text_interchange import text_noising_rows, too_little_to_move
from experiments.codes.text_order import text_order_rows
from experiments.probing.measure import code_probes, measure
from experiments.probing.sites import sites
from experiments.results.code_ablation import EVERYWHERE, STREAM
from experiments.results.measurements import LOSS
from experiments.results.notes import UNMOVED
from experiments.variants.config import ProbingConfig
from experiments.variants.train import training_folder
from experiments.variants.variants import ModelVariant
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.models.checkpoints import load_model
from nope_interp.progress import progress
from nope_interp.tasks.sources import TextSource, TokenSource
from nope_interp.training.loop import watched_steps
from probes.bootstrap import SequenceBootstrap

_LOG = logging.getLogger(__name__)

Row = dict[str, Any]
# What reads the heads of one model after another: of which variant, how, and with a begin token?
OfHeads = Callable[[HookedModel, Row], Iterator[Row]]
HeadHistory = Callable[[ModelVariant, ProbingConfig, bool], OfHeads]
OfMoves = Callable[[InterventionTask, Row], list[Row]]

# Few, as there are a dozen models to read: seconds for each of the small ones.
N_FIT, N_HELD_OUT = 96, 48


def history_rows(
    config: ProbingConfig,
    out: Path,
    variant: ModelVariant,
    heads: HeadHistory,
    *,
    experiment: str,
    description: str | None = None,
) -> Iterator[Row]:
    """Rows of the tidy table, with the column `step` filled, of every model in the history of the
    config's training, which is kept under `out`.

    On held-out sequences of what `variant` was made for:

    * probe "loss", metric `nats`: the task's loss, chance that of knowing no order; layer -1.
    * the probes of every position code at the layers and sites of `config`; "similarity" has the
      adjacency scores.
    * whether the model knows order, and how far it follows each code that is moved through its
      whole stream (`noising_rows`, `text_noising_rows`); only where enough can be moved.
    * what `heads` reads.

    Args:
        config: which training, and how its models are read.
        out: the folder in which the training has a folder of its own.
        variant: the model in question, for its tokens.
        heads: `experiments.heads.history.head_history`.
        experiment: fills the column of that name.
        description: label of the progress bar; None draws none.

    Yields:
        The rows, model by model in the order of their steps.

    Raises:
        UserError: where a kept model is missing or damaged.
    """
    n_fit, n_held_out = min(config.n_fit, N_FIT), min(config.n_held_out, N_HELD_OUT)
    task = intervention_task_of(replace(config, n_fit=n_fit, n_held_out=n_held_out), variant)
    _, *where = sites(variant.n_layers, config.sites, config.layers)
    rows_of_heads = heads(variant, config, task.begin_token)
    rows_of_moves = _moved(task, variant.sources[0])
    device = next(variant.model.parameters()).device
    context = variant.context(experiment, config.seed, task.begin_token)
    training, steps = training_folder(out, config), watched_steps(config.training.steps)
    for step in progress(steps, description, "model"):
        model: HookedModel = load_model(training.history(step))[0].to(device)
        here = {**context, "step": step}
        yield _loss_row(task, model, here)
        yield from measure(
            model,
            task.split,
            where,
            context=here,
            seed=task.seed,
            batch_size=task.batch_size,
            probes=code_probes,
        ).rows
        yield from rows_of_moves(replace(task, model=model), here)
        yield from rows_of_heads(model, here)


def _moved(task: InterventionTask, source: TokenSource) -> OfMoves:
    """What moves positions in one model after another; nothing, said once, where they cannot be."""
    try:
        return _in_text(task, source) if isinstance(source, TextSource) else _in_answers(task)
    except UserError as error:
        _LOG.warning("%s %s", UNMOVED, error)
        return lambda task, context: []


def _in_text(task: InterventionTask, source: TextSource) -> OfMoves:
    if (why := too_little_to_move(*task.split.held_out.shape)) is not None:
        raise UserError(why)
    return lambda task, context: [
        *text_order_rows(task, source, context=context),
        *text_noising_rows(task, context=context),
    ]


def _in_answers(task: InterventionTask) -> OfMoves:
    elsewhere = movable(task)
    return lambda task, context: [
        *order_rows(task, context=context),
        *noising_rows(task, elsewhere, context=context),
    ]


def _loss_row(task: InterventionTask, model: HookedModel, context: Row) -> Row:
    losses = rearrange(task.losses(model, task.split.held_out), "sequence -> sequence 1")
    bootstrap = SequenceBootstrap(seed=task.seed).update(losses)
    score = bootstrap.score("nats", lambda means: means[..., 0], chance=task.chance)
    return {**context, "layer": EVERYWHERE, "site": STREAM, "probe": LOSS, **vars(score)}
