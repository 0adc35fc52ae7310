"""What a training's history shows: loss, position codes, adjacency and heads after 0, 1, 2, 4, ...
optimiser steps.

Every kept model is read on the same few sequences with the same draws, so that what moves from one
step to the next is the model.
"""

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pandas as pd
from einops import rearrange
from torch import Tensor
from tqdm import tqdm

from experiments.codes.ablation import EVERYWHERE, STREAM
from experiments.codes.task import InterventionTask, intervention_task_of
from experiments.comparison.config import CompareConfig
from experiments.heads.config import HeadsConfig
from experiments.heads.reading import read_cell
from experiments.heads.rows import head_rows, label_rows
from experiments.heads.tokens import HeadTokens, head_tokens
from experiments.probing.measure import code_probes, feed, reading_of, sites
from experiments.results.measurements import INTACT, LOSS
from experiments.results.readability import HYPOTHESES, gain, verdicts
from experiments.runs.folder import RunFolder
from experiments.variants.config import ExperimentConfig
from experiments.variants.variants import ModelVariant
from nope_interp.models.checkpoints import load_model
from nope_interp.positions.layers import layer_positions
from nope_interp.training.train import watched_steps
from probes.controls import SequenceBootstrap
from probes.heads.detectors import HeadScores
from probes.heads.labels import classify

Row = dict[str, Any]

# Few, as there are a dozen models to read: seconds for each of the small ones.
N_FIT, N_HELD_OUT, N_OF_HEADS = 96, 48, 16


def history_rows(
    config: CompareConfig, run: RunFolder, variant: ModelVariant, *, description: str | None = None
) -> Iterator[Row]:
    """Rows of the tidy table, with the column `step` filled, of every model in the run's history.

    On held-out sequences of what `subject` was made for:

    * probe "loss", metric `nats`: the task's loss, chance that of knowing no context; layer -1.
    * the probes of every position code at the layers and sites of `config`; "similarity" has the
      adjacency scores.
    * probe "heads": every detector's score of every head; probe "label": what the head is called,
      as the metric, with the model at step 0 for untrained twin, and its confidence. Sequences too
      short to tell heads apart have neither.

    Raises UserError where a kept model is missing or damaged.
    """
    few = replace(
        config,
        n_fit=min(config.n_fit, N_FIT),
        n_held_out=min(config.n_held_out, N_HELD_OUT),
    )
    task = intervention_task_of(few, variant)
    tokens = _tokens_of_heads(config, task, variant)
    device = next(variant.model.parameters()).device
    context = {
        "experiment": config.experiment,
        "model": variant.name,
        "variant": variant.kind,
        "positions": INTACT,
        "tokens": variant.sources[0].name,
        "begin_token": task.begin_token,
        "seed": config.seed,
    }
    untrained: list[HeadScores] = []
    steps = watched_steps(config.training.steps)
    for step in tqdm(steps, desc=description, unit="model", disable=description is None):
        model, _ = load_model(run.history(step))
        then, at = replace(task, model=model.to(device)), {**context, "step": step}
        yield _loss_row(then, at)
        yield from _code_rows(config, then, at)
        if tokens is not None:
            scores, rows = _scored_heads(config, model, tokens, at)
            untrained = untrained or scores
            # One head is too few for a spread.
            null = untrained if model.cfg.n_layers * model.cfg.n_heads > 1 else None
            labels = label_rows(classify(scores, null), at)
            yield from rows
            yield from (row for row in labels if row["probe"] == "label")


def _tokens_of_heads(
    config: CompareConfig, task: InterventionTask, variant: ModelVariant
) -> HeadTokens | None:
    if config.seq_len < HeadsConfig.least["seq_len"]:
        return None
    return head_tokens(
        variant,
        HeadsConfig(
            **{f.name: getattr(config, f.name) for f in fields(ExperimentConfig)},
            begin_token=task.begin_token,
            n_sequences=N_OF_HEADS,
        ),
    )


def _loss_row(task: InterventionTask, context: Row) -> Row:
    losses: Tensor = task.losses(task.model, task.split.held_out)
    bootstrap = SequenceBootstrap(seed=task.seed)
    bootstrap.update(rearrange(losses, "sequence -> sequence 1"))
    score = bootstrap.score("nats", lambda means: means[..., 0], chance=task.chance)
    return {**context, "layer": EVERYWHERE, "site": STREAM, "probe": LOSS, **vars(score)}


def _code_rows(config: CompareConfig, task: InterventionTask, context: Row) -> list[Row]:
    _, *where = sites(task.model.cfg.n_layers, config.sites, config.layers)
    probes = {site: code_probes(task.seed) for site in where}
    size = task.batch_size
    feed(task.model, task.split.fit, probes, "update", batch_size=size)
    feed(task.model, task.split.held_out, probes, "evaluate", batch_size=size)
    return reading_of(probes, context).rows


def _scored_heads(
    config: CompareConfig, model: Any, tokens: HeadTokens, context: Row
) -> tuple[list[HeadScores], list[Row]]:
    cell = read_cell(
        model,
        tokens,
        layer_positions(model),
        [],
        seed=config.seed,
        batch_size=config.batch_size,
        description=None,
    )
    return cell.scores, [row for row in head_rows(cell, context) if row["probe"] == "heads"]


def code_gains(measurements: pd.DataFrame) -> pd.DataFrame:
    """What each code comes to at every step of one training, by `experiments.results.readability`.

    One row for each code and step: code, step, layer and site of its best place there, gain with
    its interval low to high, control (the gain of the shuffled positions at that place) and word.
    Every step is judged as a variant of its own, so that intervals are widened for the number of
    steps, too.
    """
    kept = measurements[measurements["step"].notna()]
    no_step = pd.Series(pd.NA, kept.index, dtype="Int64")
    judged = verdicts(kept.assign(variant=kept["step"].astype("string"), step=no_step))
    rows = []
    for verdict in judged:
        _, _, smaller = HYPOTHESES[verdict.hypothesis]
        for row in verdict.rows:
            ends = (gain(row[end], row["chance"], smaller) for end in ("ci_low", "ci_high"))
            low, high = sorted(ends)
            rows.append(
                {
                    "code": verdict.hypothesis,
                    "step": int(row["variant"]),
                    "layer": row["layer"],
                    "site": row["site"],
                    "gain": row["gain"],
                    "low": low,
                    "high": high,
                    "control": gain(row["control_value"], row["chance"], smaller),
                    "word": row["verdict"],
                }
            )
    return pd.DataFrame(rows)


def onsets(measurements: pd.DataFrame) -> dict[str, float]:
    """The first watched step of one training at which each code is readable, and "loss": at which
    the loss has fallen half of its way from the first step to the last. NaN for what never comes.

    `readable` is the word of `experiments.results.readability`: surely a gain of a tenth or more.
    """
    gains = code_gains(measurements)
    found = {
        str(code): _first(of_code["step"][of_code["word"] == "readable"])
        for code, of_code in gains.groupby("code", sort=False)
    }
    losses = loss_by_step(measurements)
    half_way = (losses.iloc[0] + losses.iloc[-1]) / 2
    return {**found, LOSS: _first(losses.index[losses <= half_way].to_series())}


def order_sentence(measurements: pd.DataFrame) -> str:
    """Which codes are surely readable first in this one training, which later and which never."""
    found = onsets(measurements)
    half_way = found.pop(LOSS)
    never = [code for code, step in found.items() if math.isnan(step)]
    by_step: dict[float, list[str]] = {}
    for code, step in sorted(found.items(), key=lambda onset: onset[1]):
        if code not in never:
            by_step.setdefault(step, []).append(code)
    parts = [
        f"{' and '.join(codes)} {f'from step {step:.0f} on' if step else 'before any step'}"
        for step, codes in by_step.items()
    ]
    sentences = []
    if parts:
        sentences.append(f"Surely readable first in this training: {'; then '.join(parts)}")
    if never:
        sentences.append(f"Surely readable at no watched step: {', '.join(never)}")
    if half_way > 0:
        sentences.append(f"The loss has come half of its way down by step {half_way:.0f}")
    return f"{'. '.join(sentences)}."


def loss_by_step(measurements: pd.DataFrame) -> "pd.Series[float]":
    """The loss, in nats, of one training at each step."""
    kept = measurements[measurements["step"].notna() & (measurements["probe"] == LOSS)]
    return kept.set_index("step")["value"].sort_index()


def _first(steps: "pd.Series[int]") -> float:
    return float(steps.min()) if len(steps) else math.nan
