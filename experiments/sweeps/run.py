"""Run a sweep: everything, or what an earlier start did not finish."""

from contextlib import nullcontext
from pathlib import Path

from experiments.runs.folder import FORMAT, RunFolder, environment, refuse_newer, short_hash
from experiments.sweeps.checks import check_cells, check_pool
from experiments.sweeps.config import SWEEP_FILE, SweepConfig
from experiments.sweeps.sweep import Sweep, read_sweep
from nope_interp.errors import UserError
from nope_interp.files import given_path, make_folder, write_json


def run_sweep(
    config: SweepConfig | Path | str,
    *,
    out: Path | str = "runs",
    jobs: int | None = None,
    ray: str | None = None,
    gpus_per_cell: float = 0,
    device: str = "cpu",
    show_progress: bool = True,
) -> Sweep:
    """Run what is left of a sweep: everything, or what an earlier start did not finish.

    Each cell has one thread, however many run at once: bits are those of its run alone with one.

    Args:
        config: the sweep, or its YAML file.
        out: the folder that run folders, and the sweep's own, are made in; on Ray, one that all
            machines share.
        jobs: cells at once; None for one on each core, or as many as the Ray cluster holds.
        ray: HOST:PORT of a running Ray cluster of which this machine is part; None runs here.
        gpus_per_cell: GPUs that Ray keeps for each cell; fractions share one.
        device: a torch device for each cell.
        show_progress: show a table of cells, or lines where there is no terminal.

    Returns:
        The sweep; cells that failed left a log and did not keep others from running.

    Raises:
        UserError: before anything runs, for cells that cannot be run or are the same run, an
            unwritable `out`, a device or a cluster that cannot be used, and a sweep that another
            process is running; afterwards where workers die without a cell to blame, and where a
            log cannot be kept.
    """
    from experiments.runs.ray_cluster import check_answers
    from experiments.sweeps.progress import shown

    check_pool(jobs, ray, gpus_per_cell, device)
    if ray is not None:
        check_answers(ray)
    # Loads torch, which takes longer.
    from experiments.sweeps.workers import run_all, sweep_pool

    if not isinstance(config, SweepConfig):
        config = SweepConfig.read(config)
    check_cells(config, device, here=ray is None)
    pool = sweep_pool(len(config.cells), jobs, ray, gpus_per_cell)
    sweep = begin_sweep(config, given_path(out))
    with sweep.locked():
        left = [cell for cell in sweep.cells if sweep.state(cell) != "done"]
        for cell in sweep.cells:  # a killed sweep's are no one's now
            sweep.marker(cell).unlink(missing_ok=True)
        for cell in left:
            sweep.log(cell).unlink(missing_ok=True)
        if left:
            with shown(sweep) if show_progress else nullcontext():
                run_all(sweep, left, pool, device)
    return sweep


def begin_sweep(config: SweepConfig, out: Path) -> Sweep:
    """The folder of a sweep, with what its cells are."""
    kind = config.experiment
    folders = [kind.folder(out, cell.config) for cell in config.cells]
    _refuse_same(config, folders)
    cells = [
        {"values": cell.values, "config": cell.config.to_dict(), "folder": run.path.name}
        for cell, run in zip(config.cells, folders, strict=True)
    ]
    asked = {"experiment": kind.name, "cells": cells}
    folder = make_folder(out / f"sweep-{config.name}-{short_hash(asked)}")
    if (folder / SWEEP_FILE).is_file():
        refuse_newer(folder / SWEEP_FILE)
    else:
        write_json(folder / SWEEP_FILE, {**asked, "environment": environment(), "format": FORMAT})
    return read_sweep(folder)


def _refuse_same(config: SweepConfig, folders: list[RunFolder]) -> None:
    first: dict[Path, str] = {}
    for cell, run in zip(config.cells, folders, strict=True):
        if run.path in first:
            raise UserError(f"{first[run.path]} and {cell.label} are the same run: leave one out.")
        first[run.path] = cell.label
