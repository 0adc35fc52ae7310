"""Many runs of one experiment, on one machine or on many, that outlive their workers and driver.

A sweep keeps nothing but `sweep.json`, which says what its cells are, and the logs of cells that
failed. Whether a cell is done is read off its run folder, so a sweep that is started again does
what is left, whatever ended it: finished cells are not run again, failed ones are.
"""

import fcntl
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from experiments.comparison.result import Comparison
from experiments.results.measurements import COLUMNS, read_table, table
from experiments.results.summary import summary
from experiments.results.trainings import OF_CELL, agreement, verdict_rows
from experiments.runs.folder import RunFolder, check_format
from experiments.sweeps.config import SWEEP_FILE, label
from experiments.sweeps.registry import Experiment, experiment
from nope_interp.errors import UserError, unknown_name
from nope_interp.files import given_path, read_json

State = Literal["queued", "running", "done", "failed"]


@dataclass(frozen=True)
class SweepCell:
    """One run of a sweep.

    Attributes:
        number: from 1, in the order of the file.
        values: what tells it from the others, by dotted key.
        config: everything it is asked, JSON-able.
        folder: its run folder.
    """

    number: int
    values: Mapping[str, Any]
    config: Mapping[str, Any]
    folder: Path

    @property
    def label(self) -> str:
        """As messages name it: cell 3 (seed=2, transformer.positions=rotary)."""
        return label(self.number, self.values)


@dataclass(frozen=True, repr=False)
class Sweep:
    """A sweep on disk, whatever has become of it.

    Attributes:
        folder: where its `sweep.json` and the logs of failed cells are.
        experiment: what runs each cell.
        cells: in the order of the file.
    """

    folder: Path
    experiment: Experiment
    cells: tuple[SweepCell, ...]

    def __repr__(self) -> str:
        counts = Counter(self.states().values())
        return summary(
            f"Sweep of {self.experiment.name}, {len(self.cells)} cells",
            {"folder": self.folder, "cells": ", ".join(f"{n} {s}" for s, n in counts.items())},
            "",
            (".summary()", ".measurements(...)", ".verdicts()", ".failed()"),
        )

    def log(self, cell: SweepCell) -> Path:
        """The file that says why a cell failed.

        Args:
            cell: one of this sweep's.

        Returns:
            Its path, whether or not the file is there.
        """
        return self.folder / f"cell-{cell.number:05d}.log"

    def marker(self, cell: SweepCell) -> Path:
        """The file that whoever runs a cell holds a lock on.

        Args:
            cell: one of this sweep's.

        Returns:
            Its path, whether or not the file is there.
        """
        return self.folder / f"cell-{cell.number:05d}.running"

    def state(self, cell: SweepCell) -> State:
        """What has become of a cell, read off its files alone.

        Args:
            cell: one of this sweep's.

        Returns:
            "queued", "running", "done" or "failed".
        """
        if self.experiment.finished(cell.folder):
            return "done"
        if _locked(self.marker(cell)):
            return "running"
        return "failed" if self.log(cell).is_file() else "queued"

    def states(self) -> dict[int, State]:
        """What has become of every cell.

        Returns:
            Its state by its number.
        """
        return {cell.number: self.state(cell) for cell in self.cells}

    def failed(self) -> list[SweepCell]:
        """The cells that have a log to read.

        Returns:
            Those that failed, in the order of the file.
        """
        return [cell for cell in self.cells if self.state(cell) == "failed"]

    def summary(self) -> list[dict[str, Any]]:
        """What has become of every cell, JSON-able.

        Returns:
            One entry for each cell: its number, values, state, run folder, and log or None.
        """
        states = self.states()
        return [
            {
                "cell": cell.number,
                "values": cell.values,
                "state": states[cell.number],
                "run": str(cell.folder),
                "log": str(self.log(cell)) if states[cell.number] == "failed" else None,
            }
            for cell in self.cells
        ]

    def dataset(self) -> ds.Dataset:
        """The measurements of all finished cells, which are read only when they are asked.

        To the columns of every run's table it adds `cell`, the number, and `cell.KEY` for each
        dotted key of the cells' values; a filter on these leaves the files of other cells unread.
        Values of mixed kinds are text.

        Returns:
            One table over all finished cells.

        Raises:
            UserError: where the experiment measures nothing, or no cell is finished.
        """
        if "info.json" not in self.experiment.last_written:
            raise UserError(f"{self.experiment.name} measures nothing: sweep compare or probe.")
        finished = self._finished()
        measured = pa.Schema.from_pandas(table([]), preserve_index=False).remove_metadata()
        own = pa.table(_columns(self.cells))
        schema = pa.schema([*measured, *own.schema])
        rows = {row["cell"]: row for row in own.to_pylist()}
        checked = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        parquet = ds.ParquetFileFormat(default_fragment_scan_options=checked)
        fragments = [
            parquet.make_fragment(
                str(RunFolder(cell.folder).measurements),
                filesystem=LocalFileSystem(),
                partition_expression=_equals(rows[cell.number]),
            )
            for cell in finished
        ]
        return ds.FileSystemDataset(fragments, schema, parquet)

    def measurements(self, *columns: str, where: pc.Expression | None = None) -> pd.DataFrame:
        """Some columns, or all, of the rows that `where` picks, over all finished cells.

        Args:
            columns: their names; none takes all.
            where: which rows; None takes all.

        Returns:
            The rows, in the columns' kinds.

        Raises:
            UserError: as `dataset` does, for an unknown column, and for damaged measurements.

        Example:
            >>> of_mae = pc.field("metric") == "mae"
            >>> sweep.measurements("cell.seed", "value", where=of_mae)  # doctest: +SKIP
        """
        dataset = self.dataset()
        for column in columns:
            if column not in dataset.schema.names:
                raise unknown_name("column", column, dataset.schema.names)
        try:
            # Of ten thousand files the metadata alone would fill half a gigabyte.
            found = dataset.to_table(
                columns=list(columns) or None, filter=where, cache_metadata=False
            )
        except (pa.ArrowException, OSError) as error:
            for cell in self._finished():
                read_table(RunFolder(cell.folder).measurements)  # names what is damaged
            why = str(error).splitlines()[0]
            raise UserError(f"cannot read the sweep {str(self.folder)!r} ({why}).") from error
        kinds = {name: kind for name, kind in COLUMNS.items() if name in found.column_names}
        return found.to_pandas().astype(kinds)

    def _finished(self) -> list[SweepCell]:
        found = [cell for cell in self.cells if self.state(cell) == "done"]
        if not found:
            raise UserError(f"no cell of {str(self.folder)!r} is finished yet: run the sweep.")
        return found

    def verdicts(self) -> pd.DataFrame:
        """What the finished comparisons say of each code; needs no torch.

        Returns:
            `cell` and `cell.KEY` as in `dataset`; what `experiments.results.trainings.verdict_rows`
            says of each code.

        Raises:
            UserError: where the sweep is one of another experiment, no cell is finished, or one is
                damaged.
        """
        if self.experiment.name != Comparison.experiment:
            raise UserError(f"{self.experiment.name} says nothing of codes: sweep compare.")
        named = {row["cell"]: row for row in pa.table(_columns(self.cells)).to_pylist()}
        rows = [
            named[cell.number] | row
            for cell in self._finished()
            for row in verdict_rows(Comparison.load(cell.folder).answer)
        ]
        return pd.DataFrame(rows)

    def agreement(self) -> pd.DataFrame:
        """What the finished comparisons that differ in their seeds alone say of each code.

        Returns:
            As `experiments.results.trainings.agreement`.

        Raises:
            UserError: as `verdicts`.
        """
        return agreement(self.verdicts())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While it is open, no other process runs this sweep.

        The lock dies with its process, so a killed sweep leaves none behind.

        Raises:
            UserError: where another process runs it.
        """
        with (self.folder / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"the sweep {str(self.folder)!r} is being run by another process: wait for it, "
                    "or stop it."
                ) from None
            yield


def read_sweep(folder: Path | str) -> Sweep:
    """The sweep of a folder that `run_sweep` made.

    Args:
        folder: a sweep's own, `runs/sweep-...`.

    Returns:
        The sweep.

    Raises:
        UserError: where there is none, or it is damaged or of another format.
    """
    folder = given_path(folder)
    found = read_json(folder / SWEEP_FILE)
    try:
        check_format(found, folder)
        cells = tuple(
            SweepCell(number, cell["values"], cell["config"], folder.parent / cell["folder"])
            for number, cell in enumerate(found["cells"], start=1)
        )
        return Sweep(folder, experiment(found["experiment"]), cells)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{str(folder / SWEEP_FILE)!r} is damaged: delete it and run the sweep again."
        ) from error


def _locked(path: Path) -> bool:
    """Whether a living process holds the lock on a file."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False


def _columns(cells: tuple[SweepCell, ...]) -> dict[str, pa.Array]:
    """The cells' numbers and values as columns; a key that a cell lacks is null there."""
    keys = dict.fromkeys(key for cell in cells for key in cell.values)
    columns = {"cell": pa.array([cell.number for cell in cells], pa.int64())}
    for key in keys:
        values = [cell.values.get(key) for cell in cells]
        columns[f"{OF_CELL}{key}"] = _column(values)
    return columns


def _column(values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values} - {type(None)}
    if kinds <= {int, float} or (len(kinds) == 1 and kinds <= {bool, str}):
        # Too large an integer for 64 bits, or for a float without loss, becomes text below.
        with suppress(pa.ArrowException, OverflowError):
            return pa.array(values, pa.float64() if float in kinds else None)
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _equals(row: Mapping[str, Any]) -> pc.Expression:
    """What is known of every row of a cell, so that its columns need no file."""
    known = pc.scalar(True)
    for name, value in row.items():
        column = pc.field(name)
        known &= column.is_null() if value is None else column == value
    return known
