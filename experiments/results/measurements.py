"""The tidy table that every experiment fills and every report reads."""

from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from nope_interp.errors import UserError
from nope_interp.files import digest_of, write_atomically

# Handed on to rooms that may not look into `probes`.
from probes.head_rules import RANDOM_INIT as RANDOM_INIT
from probes.scores import ProbeResult

# One row is one number. `head` and `step` are empty where a number belongs to no head or to no
# moment of the training; `control` is empty for the measurement itself; `positions` is "intact" or
# the name of the ablation under which a number was taken.
COLUMNS = {
    "experiment": "string",
    "model": "string",
    "variant": "string",
    "positions": "string",
    "tokens": "string",
    "begin_token": "bool",
    "seed": "int64",
    "step": "Int64",
    "layer": "int64",
    "head": "Int64",
    "site": "string",
    "probe": "string",
    "control": "string",
    "metric": "string",
    "value": "float64",
    "ci_low": "float64",
    "ci_high": "float64",
    "chance": "float64",
    "n": "int64",
}

# A row of this table or of another one by column, or what its rows have in common.
Row = dict[str, Any]

# Position 0 is left out: the begin token, or the attention sink that a first token becomes, gives
# it away for nothing.
FIRST_POSITION = 1

# What `positions` says of a model as it is, and the probe of rows that tell a loss.
INTACT, LOSS = "intact", "loss"


def rows_of(result: ProbeResult, context: Row) -> list[Row]:
    """One row for each score, with the columns in `context` filled in.

    Args:
        result: what a probe found.
        context: values by column, the same for all rows.

    Returns:
        The rows, by column.
    """
    return [{**context, **vars(score)} for score in result.scores]


def table(rows: Iterable[Row]) -> pd.DataFrame:
    """Rows as the tidy table: all columns, in order, with their types."""
    return pd.DataFrame(list(rows), columns=list(COLUMNS)).astype(COLUMNS)


def finished(measurements: pd.DataFrame) -> pd.DataFrame:
    """The rows of models as they are, and of no earlier moment of their training."""
    return measurements[measurements["step"].isna()]


def intact_readings(measurements: pd.DataFrame) -> pd.DataFrame:
    """The rows of what probes read in models as they are: no ablation's, no loss, and of no earlier
    moment of the training."""
    rows = finished(measurements)
    return rows[(rows["positions"] == INTACT) & (rows["probe"] != LOSS)]


def write_table(measurements: pd.DataFrame, path: Path) -> Path:
    """Write the table as Parquet with checksums, atomically.

    Args:
        measurements: the tidy table.
        path: a Parquet file.

    Returns:
        `path`.

    Raises:
        UserError: where it cannot be written.
    """
    return write_atomically(
        path,
        lambda part: measurements.to_parquet(part, index=False, write_page_checksum=True),
    )


def read_table(path: Path | BytesIO) -> pd.DataFrame:
    """Read what `write_table` wrote; raises UserError where it is missing or damaged."""
    try:
        # Files of older versions have no checksums, and are read all the same.
        measurements = pd.read_parquet(path, page_checksum_verification=True).astype(COLUMNS)
        # Checksums are of pages alone; a damaged footer can hide rows, but it counts them twice.
        if measurements.empty or len(measurements) != pq.read_metadata(path).num_rows:
            raise ValueError("no rows, or not all")
        return measurements
    # The last two: names of types in which a bit was flipped.
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        raise UserError(
            f"the measurements {str(path)!r} are missing or damaged: delete the run folder and "
            "run the command again."
        ) from error


def write_arrays(arrays: Mapping[str, np.ndarray], path: Path) -> Path:
    """Write the arrays that figures draw with a digest of them, atomically.

    Args:
        arrays: by name.
        path: a safetensors file.

    Returns:
        `path`.

    Raises:
        UserError: where it cannot be written.
    """
    # Not ascontiguousarray, which makes a list of one out of a single number.
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    metadata = _metadata(contiguous)
    return write_atomically(path, lambda part: save_file(contiguous, part, metadata))


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read what `write_arrays` wrote; raises UserError where it is missing or damaged."""
    try:
        arrays = load_file(path)
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata()
        # Files of older versions have no metadata, and are read all the same.
        if metadata is not None and metadata != _metadata(arrays):
            raise ValueError("not what was written")
        return arrays
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(
            f"the arrays {str(path)!r} are missing or damaged: delete the run folder and run the "
            "command again."
        ) from error


def _metadata(arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    parts = (
        (name, str(array.dtype), array.shape, array.reshape(-1).view(np.uint8).data)
        for name, array in arrays.items()
    )
    return {"sha256": digest_of("", parts)}
