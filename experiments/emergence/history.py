"""What a training's history shows: loss, position codes, adjacency and heads after 0, 1, 2, 4, ...
optimiser steps.

Every kept model is read on the same few sequences with the same draws, so that what moves from one
step to the next is the model.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from einops import rearrange
from tqdm import tqdm

from experiments.codes.task import InterventionTask, intervention_task_of
from experiments.heads.cell import head_rows, label_rows
from experiments.heads.config import HeadsConfig
from experiments.heads.reading import read_cell
from experiments.heads.tokens import head_tokens
from experiments.probing.measure import code_probes, read_with, sites
from experiments.results.code_ablation import EVERYWHERE, STREAM
from experiments.results.measurements import LOSS
from experiments.variants.config import ProbingConfig
from experiments.variants.train import training_folder
from experiments.variants.variants import ModelVariant
from nope_interp.hooked_model import HookedModel
from nope_interp.models.checkpoints import load_model
from nope_interp.positions.layers import layer_positions
from nope_interp.training.train import watched_steps
from probes.bootstrap import SequenceBootstrap
from probes.heads.detectors import HeadScores
from probes.heads.labels import label_heads

Row = dict[str, Any]

# Few, as there are a dozen models to read: seconds for each of the small ones.
N_FIT, N_HELD_OUT, N_OF_HEADS = 96, 48, 16


def history_rows(
    config: ProbingConfig,
    out: Path,
    variant: ModelVariant,
    *,
    experiment: str,
    description: str | None = None,
) -> Iterator[Row]:
    """Rows of the tidy table, with the column `step` filled, of every model in the history of the
    config's training, which is kept under `out`.

    On held-out sequences of what `variant` was made for:

    * probe "loss", metric `nats`: the task's loss, chance that of knowing no context; layer -1.
    * the probes of every position code at the layers and sites of `config`; "similarity" has the
      adjacency scores.
    * probe "heads": every detector's score of every head; probe "label": what the head is called,
      as the metric, with the model at step 0 for the untrained one, and its confidence. Sequences
      too short to tell heads apart have neither.

    Args:
        config: which training, and how its models are read.
        out: the folder in which the training has a folder of its own.
        variant: the model in question, for its tokens.
        experiment: fills the column of that name.
        description: label of the progress bar; None draws none.

    Raises UserError where a kept model is missing or damaged.
    """
    n_fit, n_held_out = min(config.n_fit, N_FIT), min(config.n_held_out, N_HELD_OUT)
    task = intervention_task_of(replace(config, n_fit=n_fit, n_held_out=n_held_out), variant)
    _, *where = sites(variant.n_layers, config.sites, config.layers)
    tokens = None
    if config.seq_len >= HeadsConfig.least["seq_len"]:
        asked = {"begin_token": task.begin_token, "n_sequences": N_OF_HEADS}
        tokens = head_tokens(variant, HeadsConfig.like(config, **asked))
    device = next(variant.model.parameters()).device
    context = variant.context(experiment, config.seed, task.begin_token)
    untrained: list[HeadScores] = []
    training, steps = training_folder(out, config), watched_steps(config.training.steps)
    for step in tqdm(steps, desc=description, unit="model", disable=description is None):
        model: HookedModel = load_model(training.history(step))[0].to(device)
        here = {**context, "step": step}
        yield _loss_row(task, model, here)
        probes = {site: code_probes(task.seed) for site in where}
        yield from read_with(model, task.split, probes, here, batch_size=task.batch_size).rows
        if tokens is not None:
            positions, size = layer_positions(model), config.batch_size
            cell = read_cell(model, tokens, positions, seed=config.seed, batch_size=size)
            untrained = untrained or cell.scores
            # One head is too few for a spread.
            null = untrained if model.cfg.n_layers * model.cfg.n_heads > 1 else None
            labels = label_rows(label_heads(cell.scores, null), here)
            rows = (*head_rows(cell, here), *labels)
            yield from (row for row in rows if row["probe"] in ("heads", "label"))


def _loss_row(task: InterventionTask, model: HookedModel, context: Row) -> Row:
    losses = rearrange(task.losses(model, task.split.held_out), "sequence -> sequence 1")
    bootstrap = SequenceBootstrap(seed=task.seed).update(losses)
    score = bootstrap.score("nats", lambda means: means[..., 0], chance=task.chance)
    return {**context, "layer": EVERYWHERE, "site": STREAM, "probe": LOSS, **vars(score)}
