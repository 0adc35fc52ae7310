"""Files are whole or absent."""

import json
from pathlib import Path

import pytest

from nope_interp.errors import UserError
from nope_interp.files import check_writable, make_folder, read_json, write_atomically, write_json


def test_failed_write_keeps_the_old_file_and_leaves_no_part(tmp_path: Path) -> None:
    target = tmp_path / "result.txt"
    write_atomically(target, lambda part: part.write_text("old"))

    def fail(part: Path) -> None:
        part.write_text("half of the n")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        write_atomically(target, fail)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_full_disk_is_one_sentence(tmp_path: Path) -> None:
    def full(part: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="No space left on device"):
        write_atomically(tmp_path / "x", full)


def test_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot write to the folder"):
        make_folder(tmp_path / "file" / "runs")


def test_json_round_trip_and_damage(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.json", {"b": [1, 2.5, None]})
    assert read_json(path) == json.loads(path.read_text()) == {"b": [1, 2.5, None]}
    path.write_text('{"b": [1,')
    with pytest.raises(UserError, match="not valid JSON"):
        read_json(path)
    with pytest.raises(UserError, match="cannot read"):
        read_json(tmp_path / "absent.json")


def test_a_folder_that_could_be_written_is_not_made(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    assert not [*tmp_path.iterdir()]
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "file" / "b", Path("/proc/nowhere")):
        with pytest.raises(UserError, match="cannot write to the folder"):
            check_writable(wrong)
