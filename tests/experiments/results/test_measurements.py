"""The tidy table and its files."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.results.measurements import (
    COLUMNS,
    read_arrays,
    read_table,
    rows_of,
    table,
    write_arrays,
    write_table,
)
from nope_interp.errors import UserError
from probes.scores import ProbeResult, Score

CONTEXT = {
    "experiment": "compare",
    "model": "m",
    "variant": "trained",
    "tokens": "text",
    "begin_token": True,
    "seed": 3,
    "layer": 1,
    "site": "resid_post",
    "probe": "linear",
}


def example() -> pd.DataFrame:
    scores = (
        Score("mae", 3.5, 3.0, 4.0, 31.75, 64),
        Score("mae", 31.0, 30.0, 32.0, 31.75, 64, control="shuffled positions"),
    )
    return table(rows_of(ProbeResult(scores), CONTEXT))


def test_rows_carry_context_and_score() -> None:
    measurements = example()
    assert list(measurements.columns) == list(COLUMNS)
    first, second = measurements.to_dict("records")
    assert {name: first[name] for name in CONTEXT} == CONTEXT
    assert (first["value"], first["chance"], first["n"], first["control"]) == (3.5, 31.75, 64, "")
    assert second["control"] == "shuffled positions"
    assert measurements["head"].isna().all()
    assert measurements["step"].isna().all()


def test_table_round_trip(tmp_path: Path) -> None:
    measurements = example()
    path = write_table(measurements, tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(read_table(path), measurements)


def test_arrays_round_trip(tmp_path: Path) -> None:
    arrays = {"a/b": np.arange(6.0).reshape(2, 3).T, "c": np.zeros(0, dtype=np.float32)}
    back = read_arrays(write_arrays(arrays, tmp_path / "a.safetensors"))
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)


@pytest.mark.parametrize("keep", [0, 20, 0.9])
@pytest.mark.parametrize("kind", ["table", "arrays"])
def test_damaged_files_are_one_sentence(tmp_path: Path, keep: float, kind: str) -> None:
    path = tmp_path / "file"
    read: Any = read_table if kind == "table" else read_arrays
    if kind == "table":
        write_table(example(), path)
    else:
        write_arrays({"a": np.zeros(100)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep if keep >= 1 else keep * len(whole))])
    with pytest.raises(UserError, match="damaged: delete the run folder"):
        read(path)
    path.unlink()
    with pytest.raises(UserError, match="missing"):
        read(path)
