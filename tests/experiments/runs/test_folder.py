"""Run folders of other versions: read or refused, never written over."""

import dataclasses
import hashlib
import json
import os
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from experiments.comparison.compare import compare
from experiments.comparison.config import CompareConfig
from experiments.papers.config import ReproduceConfig
from experiments.papers.kazemnejad2023 import counter
from experiments.papers.listing import RECORDED, listing
from experiments.papers.reproduce import reproduce
from experiments.papers.result import Reproduction
from experiments.runs import folder as folder_module
from experiments.runs.finished import Made
from experiments.runs.folder import FORMAT, RunFolder, fingerprint, refuse_newer
from experiments.sweeps.runs import load_run
from experiments.sweeps.sweep import read_sweep
from experiments.variants.train import train
from nope_interp.errors import UserError
from nope_interp.models.config import TransformerConfig
from nope_interp.training.config import TrainingConfig

CONFIG = ReproduceConfig("kazemnejad2023", n_seeds=2, length=0.125)


def run(out: Path) -> Reproduction:
    return reproduce(CONFIG, out=out, show_progress=False)


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    paths = (path for path in folder.iterdir() if path.name != ".lock")
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run in it, which no test may change."""
    out = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        # What is found in them is not looked at.
        patch.setattr(counter, "_SPLITS", (("fit", 16), ("held_out", 8)))
        run(out)
    return out


@pytest.fixture
def found(kept: Path, tmp_path: Path) -> Reproduction:
    shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    return run(tmp_path)


@pytest.mark.parametrize("finished", [True, False])
def test_a_newer_versions_run_is_not_written_to(
    found: Reproduction, tmp_path: Path, finished: bool
) -> None:
    folder = RunFolder(found.folder)
    change(folder.config, environment={"nope-interp": "99.1"}, of_the_future=[1])
    change(folder.info, of_the_future=[1])
    if not finished:
        folder.info.unlink()
    before = files(folder.path)
    with pytest.raises(UserError, match=r"made by nope-interp 99\.1, and this is .*install"):
        run(tmp_path)
    assert files(folder.path) == before
    if finished:
        assert Reproduction.load(folder.path).headline == found.headline
        assert files(folder.path) == before


def test_a_newer_versions_page_is_not_drawn_over(found: Reproduction, tmp_path: Path) -> None:
    folder = RunFolder(found.folder)
    change(folder.config, environment={"nope-interp": "99.1"})
    folder.report.write_text("the newer page")
    newer = load_run(folder.path)
    with pytest.raises(UserError, match=r"made by nope-interp 99\.1, and this is .*install"):
        newer.write_report()
    assert folder.report.read_text() == "the newer page"
    assert newer.write_report(tmp_path / "elsewhere.html").is_file()


def test_a_folder_that_a_refused_process_took_away_says_again_what_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RunFolder.locked

    def locked(folder: RunFolder) -> AbstractContextManager[None]:
        shutil.rmtree(folder.path)  # by a process that had the lock
        return real(folder)

    monkeypatch.setattr(RunFolder, "locked", locked)
    monkeypatch.setattr(counter, "_SPLITS", (("fit", 16), ("held_out", 8)))
    assert RunFolder(run(tmp_path).folder).config.is_file()
    training = TrainingConfig(steps=1, batch_size=2, seq_len=16, warmup=1)
    transformer = TransformerConfig(1, 16, 2, d_vocab=257, n_ctx=16)
    config = CompareConfig(transformer=transformer, training=training, seq_len=16)
    model = train(config, out=tmp_path, show_progress=False)
    assert RunFolder(model.parent).config.is_file()


def test_a_refused_first_run_leaves_no_folder_but_those_that_were_there(tmp_path: Path) -> None:
    own = tmp_path / "mine"
    own.mkdir()
    for out in (own, own / "deep" / "runs"):
        with pytest.raises(UserError, match="length is 2: the text"):
            reproduce("chi2023", length=2.0, out=out, show_progress=False)
        assert [*tmp_path.rglob("*")] == [own]


def test_cells_that_outlive_a_finished_run_are_dropped(found: Reproduction, tmp_path: Path) -> None:
    cells = RunFolder(found.folder).cells
    cells.mkdir()
    (cells / "a.safetensors").write_bytes(b"computed")
    assert run(tmp_path).headline == found.headline
    assert not cells.exists()


@pytest.mark.parametrize(
    ("name", "place"), [("arrays.safetensors", -1), ("measurements.parquet", 40)]
)
def test_a_finished_run_with_a_flipped_bit_is_refused_and_kept(
    found: Reproduction, tmp_path: Path, name: str, place: int
) -> None:
    path = found.folder / name
    whole = bytearray(path.read_bytes())
    whole[place] ^= 1
    path.write_bytes(whole)
    before = files(found.folder)
    with pytest.raises(UserError, match=f"{name}' are missing or damaged: delete the run folder"):
        run(tmp_path)
    assert files(found.folder) == before


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({"experiment": "holograms", "format": FORMAT}, "holds a run of 'holograms', not of"),
        ({"experiment": "holograms"}, "holds files of format 1"),
        ({"experiment": "reproduce", "format": FORMAT}, "delete"),
        ({"of_the_future": 1}, "delete"),
        ([3], "delete"),
    ],
)
def test_an_unknown_info_is_refused_and_kept(
    found: Reproduction, tmp_path: Path, info: Any, said: str
) -> None:
    folder = RunFolder(found.folder)
    folder.info.write_text(json.dumps(info))
    before = files(folder.path)
    with pytest.raises(UserError, match=said):
        run(tmp_path)
    assert files(folder.path) == before


@pytest.mark.parametrize("config", ["{", "[]", "{}", '{"environment": {"nope-interp": "x"}}'])
def test_a_config_that_says_no_version_is_one_sentence(
    found: Reproduction, tmp_path: Path, config: str
) -> None:
    RunFolder(found.folder).config.write_text(config)
    with pytest.raises(UserError, match="does not say what made it: delete its folder"):
        run(tmp_path)


def test_a_config_that_cannot_be_read_is_not_to_be_deleted(
    found: Reproduction, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, opened = RunFolder(found.folder).config, Path.read_text

    def forbidden(path: Path, **how: str) -> str:
        if path == config:
            raise PermissionError(13, "Permission denied")
        return opened(path, **how)

    monkeypatch.setattr(Path, "read_text", forbidden)
    with pytest.raises(UserError, match="Permission denied") as refused:
        refuse_newer(config)
    assert "delete" not in str(refused.value)


def test_a_run_that_is_refused_leaves_no_folder_behind(tmp_path: Path) -> None:
    absent = ReproduceConfig("barbero2024", n_seeds=2, model=str(tmp_path / "no.safetensors"))
    out = tmp_path / "runs"
    with pytest.raises(UserError, match="no checkpoint"):
        reproduce(absent, out=out, show_progress=False)
    assert not out.exists()


def test_what_was_computed_before_a_refusal_is_kept(tmp_path: Path) -> None:
    def refuse(run: RunFolder) -> Made:
        run.cells.mkdir()
        (run.cells / "a.safetensors").write_bytes(b"computed")
        raise UserError("no")

    with pytest.raises(UserError, match="no"):
        Reproduction.once(CONFIG, tmp_path, refuse)
    assert (RunFolder.of(tmp_path, CONFIG).cells / "a.safetensors").is_file()


def folder_name(**changes: Any) -> str:
    return RunFolder.of(Path("runs"), dataclasses.replace(CompareConfig(), **changes)).path.name


def test_the_same_content_is_the_same_run_wherever_it_lies(tmp_path: Path) -> None:
    paths = [tmp_path / where / "model" / "model.safetensors" for where in ("a", "b")]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"weights" * 1000)
    first, second = paths
    of_first = folder_name(model=str(first))
    assert folder_name(model=str(second)) == of_first
    os.utime(first, ns=(1, 1))
    assert folder_name(model=str(first)) == of_first
    assert folder_name(model=os.path.relpath(first)) == of_first
    # One byte in a file of the same size.
    first.write_bytes(b"weighty" + b"weights" * 999)
    assert folder_name(model=str(first)) != of_first


def test_a_folder_is_told_by_the_files_of_its_model(tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "deep").mkdir(parents=True)
    with pytest.raises(UserError, match=r"has no config\.json: give a Hugging Face folder"):
        folder_name(model=str(model))
    for name in ("config.json", "model.safetensors", "notes.md"):
        (model / name).write_text("{}")
    before = fingerprint(model)
    shutil.copytree(model, tmp_path / "elsewhere")
    assert fingerprint(tmp_path / "elsewhere") == before
    (model / "notes.md").write_text("other notes")
    (model / "deep" / "model.safetensors").write_text("of another model")
    assert fingerprint(model) == before
    (model / "tokenizer.json").write_text("{}")
    with_tokenizer = fingerprint(model)
    assert with_tokenizer != before
    (model / "tokenizer.json").rename(model / "vocab.json")
    assert fingerprint(model) not in (before, with_tokenizer)


def test_what_lies_below_a_folder_is_never_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: opened.append(Path(path)) or real(path))
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    with pytest.raises(UserError, match=r"has no config\.json"):
        fingerprint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    fingerprint(tmp_path)
    assert set(opened) == {tmp_path}


def test_a_file_is_hashed_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = []
    real = hashlib.file_digest
    monkeypatch.setattr(
        hashlib, "file_digest", lambda file, name: hashed.append(file.name) or real(file, name)
    )
    path = tmp_path / "model.safetensors"
    path.write_text("a")
    found = [fingerprint(path), fingerprint(path)]
    assert len(hashed) == 1
    path.write_text("bc")
    found.append(fingerprint(path))
    assert len(hashed) == 2
    assert found[0] == found[1] != found[2]


def test_a_training_that_is_refused_leaves_no_folder_behind(tmp_path: Path) -> None:
    longer = CompareConfig(training=TrainingConfig(seq_len=500))
    for command in (train, compare):
        with pytest.raises(UserError, match="longer than the context"):
            command(longer, out=tmp_path / "runs", show_progress=False)  # type: ignore[operator]
    assert not (tmp_path / "runs").exists()


# ---------------------------------------------------------------- formats


def test_a_run_of_today_says_its_format_and_is_named_for_it(
    found: Reproduction, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(found.folder)
    for path in (folder.config, folder.info):
        assert json.loads(path.read_text())["format"] == FORMAT
    monkeypatch.setattr(folder_module, "FORMAT", FORMAT + 1)
    assert RunFolder.of(found.folder.parent, CONFIG).path != found.folder


@pytest.mark.parametrize("made", [None, 1, FORMAT + 1, "x"])
def test_a_run_of_another_format_is_refused_and_run_again_elsewhere(
    found: Reproduction, tmp_path: Path, made: Any
) -> None:
    """As it was found: without a number, and named for a config without one."""
    folder = RunFolder(found.folder)
    old = Path(shutil.copytree(folder.path, tmp_path / "reproduce-kazemnejad2023-0123456789"))
    for name in ("config.json", "info.json"):
        values = json.loads((old / name).read_text())
        del values["format"]
        (old / name).write_text(json.dumps(values if made is None else values | {"format": made}))
    of = 1 if made is None else made
    said = rf"format {of!r}, and this version reads format {FORMAT}: run the "
    for read in (Reproduction.load, load_run):
        with pytest.raises(UserError, match=said):
            read(old)
    before = files(old)
    assert run(tmp_path).folder == folder.path
    assert files(old) == before
    shutil.rmtree(folder.path)
    assert set(listing(tmp_path)["run"]) <= {"", RECORDED}


def test_a_sweep_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text('{"experiment": "compare", "cells": []}')
    with pytest.raises(UserError, match=f"format 1, and this version reads format {FORMAT}"):
        read_sweep(tmp_path)
