"""An experiment of milliseconds for sweeps: the seed says what becomes of a cell."""

import os
import signal
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from experiments.cli.main import main
from experiments.papers.config import ReproduceConfig
from experiments.results.measurements import table, write_table
from experiments.runs.folder import RunFolder
from experiments.sweeps.registry import EXPERIMENTS, Experiment
from nope_interp.errors import UserError
from nope_interp.files import write_json

RAISES, REFUSES, LEAVES, DIES = 1001, 1002, 1003, 1004
ROWS = 3


def run(config: ReproduceConfig, *, out: Path, device: str, show_progress: bool) -> None:
    """Leave a run folder, and a line in `out`'s `ran`, unless the seed says otherwise.

    Where `out` has a file `mended`, no cell goes wrong.
    """
    with (Path(out) / "ran").open("a") as ran:
        ran.write(f"{config.seed}\n")
    if not (Path(out) / "mended").exists():
        if config.seed == RAISES:
            raise ZeroDivisionError("the cell's own mistake")
        if config.seed == REFUSES:
            raise UserError("this cell cannot be done: choose another.")
        if config.seed == LEAVES:
            raise SystemExit(3)
        if config.seed == DIES:
            os.kill(os.getpid(), signal.SIGKILL)
    folder = RunFolder.of(Path(out), config).begin(config)
    # As every experiment does.
    with tqdm(disable=False), folder.locked():
        leave(folder, config.seed)


def leave(folder: RunFolder, seed: int) -> None:
    """What a finished run leaves, with numbers that the seed decides."""
    rng = np.random.default_rng(seed)
    rows = [
        {
            **dict.fromkeys(("experiment", "model", "variant", "positions", "tokens"), "x"),
            **dict.fromkeys(("site", "probe", "control"), "x"),
            **dict.fromkeys(("ci_low", "ci_high", "chance"), 0.0),
            "begin_token": False,
            "seed": seed,
            "layer": layer,
            "n": 1,
            "metric": "mae",
            "value": rng.normal(),
        }
        for layer in range(ROWS)
    ]
    write_table(table(rows), folder.measurements)
    threads = torch.get_num_threads()  # on which the last bits of real numbers depend
    folder.report.write_text("a page")
    write_json(folder.info, {"experiment": "quick", "seed": seed, "threads": threads})


QUICK = Experiment(
    "quick", "", ReproduceConfig, ("tests.experiments.sweeps.sweep_experiment", "run")
)


def command_line() -> None:
    """The command line of a process that knows this experiment too."""
    EXPERIMENTS["quick"] = QUICK
    main()
