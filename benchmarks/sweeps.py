"""The measurements of ten thousand finished cells are read at once."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from benchmarks.contest import Claim, timed
from experiments.results.measurements import COLUMNS, table, write_table
from experiments.runs.folder import RunFolder
from experiments.sweeps.config import SweepConfig
from experiments.sweeps.run import begin_sweep
from experiments.sweeps.sweep import Sweep
from nope_interp.files import write_json

N_CELLS, N_ROWS, LIMIT_S = 10_000, 200, 10.0
_WANTED = ("cell.seed", "layer", "value")


def claims() -> list[Claim]:
    with TemporaryDirectory() as folder:
        sweep = _finished(Path(folder))
        ours, peer = (_seconds(partial(read, sweep)) for read in (_ours, _file_by_file))
    cells = f"{N_CELLS:,} finished cells"
    return [
        Claim(f"read three columns of {cells} / ten seconds", ours / LIMIT_S, 1.0),
        Claim(f"read three columns of {cells} / pandas, file by file", ours / peer, None),
    ]


def _seconds(read: Callable[[], pd.DataFrame]) -> float:
    def whole() -> None:
        assert len(read()) == N_CELLS * N_ROWS // 2

    return timed(whole)


def _ours(sweep: Sweep) -> pd.DataFrame:
    return sweep.measurements(*_WANTED, where=pc.field("metric") == "mae")


def _file_by_file(sweep: Sweep) -> pd.DataFrame:
    columns = [name for name in _WANTED if name in COLUMNS]
    read = [
        pd.read_parquet(
            RunFolder(cell.folder).measurements, columns=columns, filters=[("metric", "==", "mae")]
        ).assign(**{"cell.seed": cell.values["seed"]})
        for cell in sweep.cells
    ]
    return pd.concat(read)


def _finished(folder: Path) -> Sweep:
    """A sweep whose cells have all left a table of random numbers."""
    asked = {"experiment": "probe", "grid": {"seed": list(range(N_CELLS))}}
    sweep = begin_sweep(SweepConfig.from_dict(asked, "ten-thousand"), folder)
    numbers = np.random.default_rng(0).normal(size=N_ROWS)
    row = {name: "x" if kind == "string" else 0 for name, kind in COLUMNS.items()}
    rows = [
        row | {"layer": i // 2, "metric": ("mae", "r2")[i % 2], "value": value}
        for i, value in enumerate(numbers)
    ]
    first = folder / "first.parquet"
    write_table(table(rows), first)
    for cell in sweep.cells:
        run = RunFolder(cell.folder)
        run.path.mkdir()
        shutil.copy(first, run.measurements)
        for name in sweep.experiment.last_written:
            write_json(run.path / name, {})
    return sweep
