"""When do the position codes appear? One training under several seeds, read as it goes on.

Each training is read after 0, 1, 2, 4, 8, ... optimiser steps (`experiments.codes.history`). How
times are compared, and what they do not say, stands at the head of `experiments.emergence.result`.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments.codes.history import N_FIT, N_HELD_OUT, history_rows
from experiments.emergence.config import EmergenceConfig
from experiments.emergence.result import SEEDS_TO_BE_SURE, Emergence
from experiments.heads.history import head_history
from experiments.results.measurements import table
from experiments.runs.cells import Cell, Cells
from experiments.runs.finished import Made
from experiments.runs.folder import RunFolder
from experiments.runs.steps import Steps
from experiments.runs.timing import OF_A_STEP, seconds_a_sequence
from experiments.runs.workers import one_thread_each
from experiments.variants.variants import variant_of
from experiments.variants.words import asked
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.sources import Split
from nope_interp.training.loop import watched_steps

# For estimates: how many passes of each of its sequences a reading takes the time of, as measured.
_READING = 40.0


def watch_emergence(
    config: EmergenceConfig | str | Path | None = None,
    *,
    out: Path | str = "runs",
    device: str = "cpu",
    show_progress: bool = True,
    **words: Any,
) -> Emergence:
    """Train and read, or go on where that was interrupted, or read a finished run.

    Args:
        config: which training, under how many seeds; by default a small model on text.
        out: the folder that run folders are made in.
        device: only "cpu", on which models this small train fastest.
        show_progress: draw a bar on standard error.
        words: values laid over `config`, by the words of the command line: `n_seeds=2`,
            `steps=100`, `positions="rotary"`.

    Returns:
        The finished run: when each code became readable, under every seed, and the report.

    Raises:
        UserError: for a config that cannot be trained, another device, and an unwritable `out`.
    """
    config = asked(EmergenceConfig, config, words)
    config.check_runs_on(device)
    return Emergence.once(config, out, lambda run: _made(config, run, show_progress), device)


def _made(config: EmergenceConfig, run: RunFolder, show_progress: bool) -> Made:
    with Steps("emergence", show_progress, config.n_seeds) as steps:
        cells = Cells(run.cells, steps.done, one_thread_each())
        if show_progress:
            weights = dict.fromkeys((f"seed {seed}" for seed in config.seeds), _passes(config))
            steps.plan(weights, _seconds_a_sequence(config), cells.at_once)
        cells.all({f"seed {seed}": partial(_seed, config, run, seed) for seed in config.seeds})
    measurements = cells.gathered().rows
    training = config.training
    facts = {
        "setting": f"{config.n_seeds} trainings of {measurements['model'].iloc[0]} on "
        f"{config.task}, each of {training.steps} steps with {training.batch_size} sequences of "
        f"{training.seq_len} tokens",
        "notes": [
            "A code is readable at a step where the gain at its best site is surely a tenth or "
            "more. Intervals are widened for the number of sites and steps. Gains of different "
            "measures cannot be compared, so this is the order in which probes read the codes.",
            f"Of differences over fewer than {SEEDS_TO_BE_SURE} seeds none is called sure.",
            "A code that appears between two watched steps is given the later one. Step 0 counts "
            "as one doubling before step 1, and a code that never appears as one after the end.",
            "Surely means by the 95% interval over seeds, widened for the number of codes; the "
            "numbers told are not widened. The first code is the one that is first in these seeds. "
            "Differences to it are taken over the same seeds, which favours it. The delay of a "
            "code that never comes is the least that it could be.",
        ],
    }
    return Made(measurements, {}, facts)


def _passes(config: EmergenceConfig) -> float:
    """Forward passes of a sequence whose time one training takes, with all that is read of it."""
    training = config.training
    read = len(watched_steps(training.steps)) * (N_FIT + N_HELD_OUT)
    return OF_A_STEP * training.steps * training.batch_size + _READING * read


def _seconds_a_sequence(config: EmergenceConfig) -> float:
    model = HookedTransformer(config.transformer)
    shape = (N_HELD_OUT, config.training.seq_len)
    return seconds_a_sequence(model, torch.zeros(shape, dtype=torch.long))


def _seed(config: EmergenceConfig, run: RunFolder, seed: int) -> Cell:
    """Train under one seed and read what its history shows."""
    own, out = config.of_seed(seed), run.path.parent
    needed: dict[Split, int] = {"fit": N_FIT, "held_out": N_HELD_OUT}
    variant = variant_of(own, out, "cpu", False, needed=needed, keep_history=True)
    rows = history_rows(own, out, variant, head_history, experiment=config.experiment)
    return Cell(table(rows))
