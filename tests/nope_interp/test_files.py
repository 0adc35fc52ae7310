"""Files are whole or absent."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.results.measurements import write_arrays
from nope_interp.errors import UserError
from nope_interp.files import (
    check_writable,
    file_slug,
    make_folder,
    model_files,
    read_json,
    read_text,
    write_atomically,
    write_json,
    write_text,
)
from nope_interp.models.checkpoints import save_tensors
from tests.paths import ROOT


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


def killed_while_it_writes(target: Path, what: str) -> None:
    """A process that ends by a signal with half of a file, or of a folder, in place."""
    kill = "os.kill(os.getpid(), 9)"
    script = f"""
import os; from pathlib import Path; from nope_interp.files import part_of, write_atomically
target = Path({str(target)!r})
if {what!r} == "file":
    write_atomically(target, lambda part: (part.write_text("half"), {kill}))
part_of(target).mkdir(); {kill}
"""
    subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": str(ROOT)}, check=False)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_a_killed_write_left_is_removed_by_the_next(tmp_path: Path, what: str) -> None:
    target = tmp_path / "re[s]ult.txt"
    killed_while_it_writes(target, what)
    (left,) = tmp_path.iterdir()
    # Of another target, another machine, a process that lives, and of a name that is no process's.
    stay = {
        tmp_path / left.name.replace("re[s]ult", "other"),
        tmp_path / f".{target.name}.0-{left.name.rpartition('-')[2]}",
        tmp_path / f"{left.name.rpartition('-')[0]}-1.part",
        tmp_path / f"{left.name.rpartition('-')[0]}-x.part",
    }
    for other in stay:
        other.touch()
    write_atomically(target, lambda part: part.write_text("new"))
    assert {*tmp_path.iterdir()} == {target, *stay}


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_files_honour_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    """Also those of safetensors, which makes its own with the mode 0600."""
    before = os.umask(umask)
    try:
        paths = [
            write_json(tmp_path / "a.json", {}),
            save_tensors(tmp_path / "a.safetensors", {"x": torch.zeros(2)}, {}),
            write_arrays({"x": np.zeros(2)}, tmp_path / "arrays.safetensors"),
        ]
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in paths] == [mode] * 3


def test_only_a_models_own_files_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("config.json", "model.safetensors", "notes.md", "deep/model.safetensors"):
        (tmp_path / name).write_text("{}")
    assert model_files(tmp_path) == [tmp_path / "config.json", tmp_path / "model.safetensors"]
    with pytest.raises(UserError, match=r"has no config.json: give a Hugging Face folder"):
        model_files(tmp_path / "deep")


def test_full_disk_is_one_sentence(tmp_path: Path) -> None:
    def full(part: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="No space left on device"):
        write_atomically(tmp_path / "x", full)


@pytest.mark.parametrize("write", ["tensors", "arrays"])
def test_a_disk_that_is_really_full_is_one_sentence_too(write: str, tmp_path: Path) -> None:
    """No file may grow beyond some bytes here: the library beneath fails by itself."""
    path = tmp_path / "x.safetensors"
    writers = {
        "tensors": lambda: save_tensors(path, {"x": torch.zeros(9999)}, {}),
        "arrays": lambda: write_arrays({"x": np.zeros(9999)}, path),
    }
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(UserError, match=r"cannot write '.*x.safetensors' .*: free some space"):
            writers[write]()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [*tmp_path.iterdir()]


def test_what_is_no_file_name_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"^'\.' is no file name: give one\.$"):
        write_atomically(Path(), lambda path: None)


def test_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot write to the folder"):
        make_folder(tmp_path / "file" / "runs")


def test_json_round_trip_and_damage(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.json", {"b": [1, 2.5, None]})
    assert read_json(path) == json.loads(path.read_text()) == {"b": [1, 2.5, None]}
    for damaged in ('{"b": [1,', "[" * 100_000, "1" * 5000, "\x00"):
        path.write_text(damaged)
        with pytest.raises(UserError, match="not valid JSON"):
            read_json(path)
    with pytest.raises(UserError, match=r"cannot read .*: check the path"):
        read_json(tmp_path / "absent.json")


def test_a_folder_that_could_be_written_is_not_made(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    assert not [*tmp_path.iterdir()]
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "file" / "b", Path("/proc/nowhere")):
        with pytest.raises(UserError, match="cannot write to the folder"):
            check_writable(wrong)


def test_a_mark_before_a_text_is_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "marked.txt"
    path.write_bytes(b"\xef\xbb\xbf{}")
    assert read_text(path) == "{}"
    assert read_json(path) == {}
    path.write_bytes(b"\xff{}")
    with pytest.raises(UserError, match=r"the text .* is not UTF-8"):
        read_text(path)
    with pytest.raises(UserError, match=r"cannot read the text .* give the path of a UTF-8 file"):
        read_text("no\0file")


@pytest.mark.parametrize("n_characters", [300, 5_000, 3_000_000])
def test_a_text_given_for_its_path_is_not_printed(n_characters: int) -> None:
    with pytest.raises(UserError, match=r"give the path of a") as caught:
        read_text("what is read, " * (n_characters // 14))
    assert "what is read" in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_name_becomes_a_part_of_a_files() -> None:
    assert file_slug("../Qwen 2.5/näme ") == "Qwen-2.5-n-me"
    assert file_slug("a" * 59 + "--b") == "a" * 59
    assert file_slug("/") == ""


def test_what_is_no_ordinary_file_is_not_replaced(tmp_path: Path) -> None:
    pipe, link, aim = tmp_path / "pipe", tmp_path / "link", tmp_path / "elsewhere" / "aim.txt"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="pipe' is a device or a pipe: give the name of a file"):
        write_text(pipe, "it")
    assert pipe.is_fifo()
    link.symlink_to(aim)
    assert write_text(link, "it") == link
    assert link.is_symlink()
    assert aim.read_text() == "it"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(UserError, match="loop' is a link that leads to itself: remove it"):
        write_text(loop, "it")
    with pytest.raises(UserError, match=r"cannot write .*File name too long"):
        write_text(tmp_path / ("x" * 300), "it")
