"""The tidy table and its files."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

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


def flip(path: Path, whole: bytes, bit: int) -> None:
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)


def test_arrays_with_a_flipped_bit_anywhere_are_refused(tmp_path: Path) -> None:
    arrays = {
        "a/b": np.arange(6.0).reshape(2, 3).T,
        "none": np.zeros((0, 3), np.float32),
        "number": np.array(3.5),
        "bits": np.array([True, False]),
        "bytes": np.arange(9, dtype=np.uint8),
    }
    path = write_arrays(arrays, tmp_path / "a.safetensors")
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 11):
        flip(path, whole, bit)
        with pytest.raises(UserError, match=r"a\.safetensors' are missing or damaged: delete"):
            read_arrays(path)


def test_a_table_with_a_flipped_bit_in_a_page_is_refused(tmp_path: Path) -> None:
    path = write_table(example(), tmp_path / "t.parquet")
    whole, written = path.read_bytes(), pq.read_metadata(path).row_group(0)
    for column in map(written.column, range(written.num_columns)):
        start = column.dictionary_page_offset or column.data_page_offset
        # A page's own header stands before its data.
        last = start + column.total_compressed_size - 1
        for bit in range(8 * last, 8 * last + 8):
            flip(path, whole, bit)
            with pytest.raises(UserError, match=r"t\.parquet' are missing or damaged: delete"):
                read_table(path)


def refused(path: Path, written: pd.DataFrame) -> bool:
    """Whether a damaged table is refused; fails where it is read as another one."""
    try:
        pd.testing.assert_frame_equal(read_table(path), written)
    except UserError:
        return True
    return False


def test_a_table_with_a_flipped_bit_is_refused_or_read_as_written(tmp_path: Path) -> None:
    """Of headers and the footer no checksum is kept, but much of them nobody reads."""
    path = write_table(example(), tmp_path / "t.parquet")
    whole, times = path.read_bytes(), 0
    bits = range(0, 8 * len(whole), 401)
    for bit in bits:
        flip(path, whole, bit)
        times += refused(path, example())
    assert 0.4 * len(bits) < times < len(bits)


def test_a_footer_that_hides_rows_is_refused(tmp_path: Path) -> None:
    written = pd.concat([example()] * 20, ignore_index=True)
    path = write_table(written, tmp_path / "t.parquet")
    whole = path.read_bytes()
    # The number of rows in the only group stands shortly before what pandas adds.
    end = 8 * whole.index(b"\x06pandas")
    times = 0
    for bit in range(end - 8 * 12, end - 8 * 8):
        flip(path, whole, bit)
        times += refused(path, written)
    assert times > 0


def test_files_without_digest_or_checksums_are_read(tmp_path: Path) -> None:
    """As older versions wrote them."""
    arrays, path = {"a": np.arange(3.0)}, tmp_path / "old"
    save_file(arrays, path)
    np.testing.assert_array_equal(read_arrays(path)["a"], arrays["a"])
    example().to_parquet(path, index=False)
    pd.testing.assert_frame_equal(read_table(path), example())
