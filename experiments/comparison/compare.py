"""The main job: which hypothesis explains how this model knows where it is?

One trained model, its random-init twin and, where the weights are ours, its bidirectional twin are
each read on text and on uniform random tokens, with and without a begin token. That makes the
cells of the run; each is one stream through the model, and is written to disk when it is done.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from experiments.codes.ablation import place_by_place, statistics_at, through_the_stream
from experiments.codes.shift import shift_rows
from experiments.codes.task import InterventionTask, check_enough_to_fit, intervention_task_of
from experiments.comparison.config import CompareConfig
from experiments.comparison.example import LONGEST, example_arrays
from experiments.comparison.result import Comparison
from experiments.emergence.history import history_rows
from experiments.probing.measure import Site, Split, measure, sites
from experiments.probing.shards import Shards, measure_in_shards, note_on, opened
from experiments.results.measurements import (
    FIRST_POSITION,
    read_arrays,
    read_table,
    table,
    write_arrays,
    write_table,
)
from experiments.runs.folder import RunFolder
from experiments.variants.checks import check_shards
from experiments.variants.variants import ModelVariant, bidirectional, random_init, variant_of
from nope_interp.devices import check_device
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.models.transformer import HookedTransformer
from nope_interp.positions.ablation import PositionAblation, ablate_positions
from nope_interp.positions.conditions import parse_condition
from probes.codes.statistics import CodeStatistics

_FRAME = (
    "Where codes are taken away, all examples of a task have one length. The frame, tokens that "
    "they share, is left as it is and not scored: the mean row there tells a token as well as a "
    "position. Elsewhere means still hold what the frame makes of each place."
)


def compare(
    config: CompareConfig | None = None,
    *,
    out: Path | str = "runs",
    device: str = "cpu",
    shards: int = 1,
    ray: str | None = None,
    show_progress: bool = True,
) -> Comparison:
    """Run the comparison, or go on with one that was interrupted, or read one that is finished.

    Args:
        config: which model, which tokens, how many; the default trains the embedded small model.
        out: the folder that run folders are made in.
        device: a torch device, or "auto" to spread a pretrained model over several.
        shards: into how many shares the sequences are cut, each read by a worker with a model of
            its own; see `experiments.probing.shards` for what that leaves as it is.
        ray: HOST:PORT of a running Ray cluster for the workers, of which this machine is part and
            whose machines share `out`; None has them here.
        show_progress: draw progress bars on standard error.

    Raises UserError for anything in `config` that cannot be done, an unwritable `out`, shards that
    the sequences or the device do not allow, a cluster that cannot be used, and activations that
    are not finite.
    """
    config = CompareConfig() if config is None else config
    if not isinstance(config, CompareConfig):
        raise UserError(f"the config is {type(config).__name__}: give a CompareConfig.")
    if device != "auto":
        check_device(device)
    check_shards(shards, ray, n_sequences=config.shareable(shards), device=device)
    _check_ablation(config)
    if config.model is None:
        sites(config.transformer.n_layers, config.sites, config.layers)  # refuses others
        check_enough_to_fit(config, config.transformer.d_model, config.seq_len - FIRST_POSITION)
    run = RunFolder.of(Path(out), config).begin(config)

    def make() -> None:
        with opened(shards, ray, device) as workers:
            _run(config, run, device, show_progress, workers)

    return Comparison.made_in(run, make)


def _run(
    config: CompareConfig,
    run: RunFolder,
    device: str,
    show_progress: bool,
    workers: Shards | None,
) -> None:
    began = time.monotonic()
    facts: dict[str, Any] = {"notes": [*note_on(workers)]}
    if config.code_ablation != "no" and config.task != "text":
        facts["notes"].append(_FRAME)
    for variant in _variants(config, run, device, show_progress):
        facts["model"], facts["positions"] = variant.name, variant.positions
        facts["n_layers"] = variant.n_layers
        facts["notes"] += variant.notes
        with _ablated(variant.model, config) as ablation:
            if ablation is not None:
                facts["model"] += f", {ablation.name}"
                facts["positions"] = ablation.name
                facts["notes"] += ablation.caveats(config.seq_len)
            facts["example_tokens"] = _read(config, run, variant, show_progress, workers)
            if ablation is not None:
                ablation.verify()
    _gather(run)
    run.finish(facts, config, time.monotonic() - began)


def _variants(
    config: CompareConfig, run: RunFolder, device: str, show_progress: bool
) -> Iterator[ModelVariant]:
    """The model in question, then its random-init twin, then, where it can have one, its
    bidirectional twin; each is made when it is its turn."""
    variant = variant_of(
        config,
        run,
        device,
        show_progress,
        needed={"fit": config.n_fit, "held_out": config.n_held_out},
        keep_history=config.history,
    )
    yield variant
    if not config.twins:
        return
    yield random_init(variant, config.seed)
    if isinstance(variant.model, HookedTransformer) and variant.model.config.causal:
        yield bidirectional(variant)


def _check_ablation(config: CompareConfig) -> None:
    """Refuse what cannot be ablated before anything is trained, loaded or written."""
    if config.ablate is not None:
        parse_condition(config.ablate)
    if config.model is None:
        with _ablated(HookedTransformer(config.transformer), config):
            pass


def _ablated(
    model: HookedModel, config: CompareConfig
) -> AbstractContextManager[PositionAblation | None]:
    if config.ablate is None:
        return nullcontext()
    return ablate_positions(model, config.ablate, seed=config.seed)


def _read(
    config: CompareConfig,
    run: RunFolder,
    variant: ModelVariant,
    show_progress: bool,
    workers: Shards | None,
) -> list[str]:
    """Measure one subject in all its cells; the tokens of the example, as strings."""
    cells = list(_cells(variant))
    example = _example(config, cells[0])
    # An untrained twin uses nothing, and what an unmasked one loses says nothing.
    contested = config.code_ablation != "no" and variant.kind in ("trained", "pretrained")
    task = intervention_task_of(config, variant) if contested else None
    statistics: dict[Site, CodeStatistics] = {}
    if task is not None and config.code_ablation == "sites" and workers is None:
        where = sites(variant.n_layers, config.sites, config.layers)
        statistics = {site: CodeStatistics() for site in where}
    for cell in cells:
        drawn = example if cell is cells[0] else None
        also_fitted = statistics if _streams_the_fit_of(task, config, cell) else {}
        _measure_cell(config, run, variant, cell, drawn, also_fitted, show_progress, workers)
    if task is not None:
        _ablate_codes(config, run, variant, task, statistics, show_progress)
    if config.history and variant.kind == "trained":
        _read_history(config, run, variant, show_progress)
    return variant.token_strings(example)


@dataclass(frozen=True)
class _Cell:
    source: Any
    begin_token: bool

    def key(self, variant: str) -> str:
        return f"{variant}/{self.source.name}/{'begin' if self.begin_token else 'nobegin'}"


def _cells(variant: ModelVariant) -> Iterator[_Cell]:
    for source in variant.sources:
        yield _Cell(source, begin_token=False)
        if source.begin_id is not None:
            yield _Cell(source, begin_token=True)


def _streams_the_fit_of(task: InterventionTask | None, config: CompareConfig, cell: _Cell) -> bool:
    """Whether the stream of a cell's sequences to fit probes on can also fit interventions."""
    if task is None or not task.whole:
        return False
    return torch.equal(_split(config, cell).fit, task.split.fit)


def _split(config: CompareConfig, cell: _Cell) -> Split:
    draw = {"seq_len": config.seq_len, "begin_token": cell.begin_token, "seed": config.seed}
    return Split(
        fit=cell.source.sequences(config.n_fit, split="fit", **draw),
        held_out=cell.source.sequences(config.n_held_out, split="held_out", **draw),
    )


def _measure_cell(
    config: CompareConfig,
    run: RunFolder,
    variant: ModelVariant,
    cell: _Cell,
    example: Tensor | None,
    also_fitted: Mapping[Site, CodeStatistics],
    show_progress: bool,
    workers: Shards | None,
) -> None:
    key = cell.key(variant.kind)
    stem = key.replace("/", "-")
    table_path, arrays_path = run.cells / f"{stem}.parquet", run.cells / f"{stem}.safetensors"
    if _whole(table_path, arrays_path):
        return
    context = {
        "experiment": config.experiment,
        "model": variant.name,
        "variant": variant.kind,
        "positions": "intact",
        "tokens": cell.source.name,
        "begin_token": cell.begin_token,
        "seed": config.seed,
    }
    if workers is None:
        read = partial(measure, variant.model, also_fitted=also_fitted)
    else:
        read = partial(measure_in_shards, workers, variant.spec)
    reading = read(
        _split(config, cell),
        sites(variant.n_layers, config.sites, config.layers),
        context=context,
        seed=config.seed,
        batch_size=config.batch_size,
        description=key if show_progress else None,
    )
    arrays = {f"{key}/{name}": array for name, array in reading.arrays.items()}
    if example is not None:
        arrays |= example_arrays(variant, reading, example)
    write_arrays(arrays, arrays_path)
    # Written last: a cell with a table is whole.
    write_table(table(reading.rows), table_path)


def _ablate_codes(
    config: CompareConfig,
    run: RunFolder,
    variant: ModelVariant,
    task: InterventionTask,
    statistics: Mapping[Site, CodeStatistics],
    show_progress: bool,
) -> None:
    table_path, arrays_path = run.cells / "uses.parquet", run.cells / "uses.safetensors"
    if _whole(table_path, arrays_path):
        return
    context = {
        "experiment": config.experiment,
        "model": variant.name,
        "variant": variant.kind,
        "tokens": variant.sources[0].name,
        "begin_token": task.begin_token,
        "seed": config.seed,
    }
    label = f"{variant.kind}, codes taken away" if show_progress else None
    rows = through_the_stream(task, context=context, description=label)
    if config.code_ablation == "sites":
        where = sites(variant.n_layers, config.sites, config.layers)
        # Empty where the cell that was to fill them was read before.
        if not statistics or not all(of_place.n_fitted for of_place in statistics.values()):
            statistics = statistics_at(task, where)
        rows += place_by_place(
            task, statistics, context=context, description=label and f"{label} place by place"
        )
        rows += shift_rows(task, statistics, context=context)
    write_arrays({}, arrays_path)
    write_table(table(rows), table_path)


def _read_history(
    config: CompareConfig, run: RunFolder, variant: ModelVariant, show_progress: bool
) -> None:
    table_path, arrays_path = run.cells / "history.parquet", run.cells / "history.safetensors"
    if _whole(table_path, arrays_path):
        return
    label = f"{variant.kind}, history" if show_progress else None
    rows = table(
        history_rows(config, run, variant, experiment=config.experiment, description=label)
    )
    write_arrays({}, arrays_path)
    write_table(rows, table_path)


def _whole(table_path: Path, arrays_path: Path) -> bool:
    """Whether a cell was measured before; a damaged one is measured again."""
    try:
        read_table(table_path), read_arrays(arrays_path)
    except UserError:
        return False
    return True


def _example(config: CompareConfig, cell: _Cell) -> Int[Tensor, " pos"]:
    """The start of a held-out sequence of the first cell."""
    (sequence,) = cell.source.sequences(
        1,
        config.seq_len,
        begin_token=cell.begin_token,
        split="held_out",
        seed=config.seed,
    )
    return sequence[:LONGEST]


def _gather(run: RunFolder) -> None:
    """Join the cells, in the order they were measured, into the run's table and arrays."""
    paths = sorted(run.cells.glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    write_table(
        pd.concat([read_table(path) for path in paths], ignore_index=True), run.measurements
    )
    arrays: dict[str, np.ndarray] = {}
    for path in paths:
        arrays |= read_arrays(path.with_suffix(".safetensors"))
    write_arrays(arrays, run.arrays)
