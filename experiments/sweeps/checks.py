"""Refuses sweeps that cannot be run, before any cell is. Imports nothing heavy by itself."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from numbers import Real

from experiments.drop.config import DropConfig
from experiments.sweeps.config import SweepConfig
from experiments.variants.checks import check_files, check_spread
from experiments.variants.config import ExperimentConfig
from nope_interp.devices import check_device
from nope_interp.errors import UserError, shown
from nope_interp.fields import is_whole
from nope_interp.files import read_text


def check_pool(jobs: int | None, ray: str | None, gpus_per_cell: float, device: str) -> None:
    """Refuse workers that no sweep can have, as `run_sweep` is asked for them.

    Args:
        jobs: cells at once; None for as many as there is room for.
        ray: HOST:PORT of a Ray cluster; None for processes here.
        gpus_per_cell: that Ray keeps for each cell.
        device: a torch device for each cell.

    Raises:
        UserError: for less than one job, less than no GPU, and GPUs without Ray or a CUDA device.
    """
    if jobs is not None and not is_whole(jobs, 1):
        raise UserError(f"jobs is {shown(jobs)}: give at least 1, a whole number.")
    if not isinstance(gpus_per_cell, Real) or not gpus_per_cell >= 0:
        raise UserError(f"GPUs per cell are {shown(gpus_per_cell)}: give 0 or more, a number.")
    if gpus_per_cell and ray is None:
        raise UserError("GPUs per cell are for Ray: add --ray HOST:PORT, or leave them out.")
    if gpus_per_cell and not device.startswith("cuda"):
        raise UserError(f"GPUs are kept for cells on the device {device!r}: add --device cuda.")


def check_cells(config: SweepConfig, device: str, *, here: bool) -> None:
    """Refuse cells that cannot be run, before any is.

    Args:
        config: the sweep.
        device: a torch device for each cell.
        here: whether cells run on this machine, and so on its devices.

    Raises UserError, which names the cell, for a device that is not here, a model that cannot be
    trained, positions that it lacks and that are to be taken away, a model or text that is a file
    and is not there, and an experiment that does not run on the device.
    """
    if here and device != "auto":
        check_device(device)
    # Most cells share one task and one text.
    read, check_trained = cache(read_text), cache(_training_check)
    for cell in config.cells:
        try:
            check_spread(cell.config, device)
            check_files(cell.config, read)
            cell.config.check_runs_on(device)
            if isinstance(cell.config, DropConfig):
                cell.config.check_model()
            elif isinstance(cell.config, ExperimentConfig) and cell.config.model is None:
                check_trained()(cell.config)
        except UserError as error:
            raise UserError(f"{cell.label}: {error}") from error


def _training_check() -> Callable[[ExperimentConfig], None]:
    """Refuses a config that cannot be trained, or whose model lacks positions that are to be taken
    away; loads what trains, which takes seconds."""
    from experiments.variants.ablation import Ablation, ablation_of
    from experiments.variants.train import check_training, task_of
    from nope_interp.tasks.registry import make_task

    # Models that differ in their seeds alone are built once.
    made, check_ablated = cache(make_task), cache(Ablation.check)

    def check(config: ExperimentConfig) -> None:
        check_training(config, task_of(config, made))
        check_ablated(replace(ablation_of(config), seed=0), replace(config.transformer, seed=0))

    return check
