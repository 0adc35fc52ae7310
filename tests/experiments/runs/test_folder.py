"""Run folders of other versions: read or refused, never written over."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from experiments.comparison.compare import compare
from experiments.comparison.config import CompareConfig
from experiments.papers.config import ReproduceConfig
from experiments.papers.reproduce import listing, reproduce
from experiments.papers.result import NOT_RUN, Reproduction
from experiments.runs import folder as folder_module
from experiments.runs.finished import Made
from experiments.runs.folder import FORMAT, RunFolder
from experiments.sweeps.runs import load_run
from experiments.sweeps.sweep import read_sweep
from experiments.variants.train import train
from nope_interp.errors import UserError
from nope_interp.training.config import TrainingConfig

CONFIG = ReproduceConfig("kazemnejad2023", n_seeds=2, length=0.25)


def run(out: Path) -> Reproduction:
    return reproduce(CONFIG, out=out, show_progress=False)


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    paths = (path for path in folder.iterdir() if path.name != ".lock")
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


@pytest.fixture
def found(tmp_path: Path) -> Reproduction:
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


def test_cells_that_outlive_a_finished_run_are_dropped(found: Reproduction, tmp_path: Path) -> None:
    cells = RunFolder(found.folder).cells
    cells.mkdir()
    (cells / "a.safetensors").write_bytes(b"computed")
    assert run(tmp_path).headline == found.headline
    assert not cells.exists()


@pytest.mark.parametrize(
    "info", [{"experiment": "holograms"}, {"of_the_future": 1}, {"experiment": "reproduce"}, [3]]
)
def test_an_unknown_info_is_refused_and_kept(
    found: Reproduction, tmp_path: Path, info: Any
) -> None:
    folder = RunFolder(found.folder)
    folder.info.write_text(json.dumps(info))
    before = files(folder.path)
    with pytest.raises(UserError):
        run(tmp_path)
    assert files(folder.path) == before


@pytest.mark.parametrize("config", ["{", "[]", "{}", '{"environment": {"nope-interp": "x"}}'])
def test_a_config_that_says_no_version_is_one_sentence(
    found: Reproduction, tmp_path: Path, config: str
) -> None:
    RunFolder(found.folder).config.write_text(config)
    with pytest.raises(UserError, match=r"not valid JSON|does not say what made it"):
        run(tmp_path)


def test_a_run_that_is_refused_leaves_no_folder_behind(tmp_path: Path) -> None:
    absent = ReproduceConfig("barbero2024", n_seeds=2, model=str(tmp_path / "no.safetensors"))
    out = tmp_path / "runs"
    with pytest.raises(UserError, match="no checkpoint"):
        reproduce(absent, out=out, show_progress=False)
    assert list(out.iterdir()) == []


def test_what_was_computed_before_a_refusal_is_kept(tmp_path: Path) -> None:
    def refuse(run: RunFolder) -> Made:
        run.cells.mkdir()
        (run.cells / "a.safetensors").write_bytes(b"computed")
        raise UserError("no")

    with pytest.raises(UserError, match="no"):
        Reproduction.once(CONFIG, tmp_path, refuse)
    assert (RunFolder.of(tmp_path, CONFIG).cells / "a.safetensors").is_file()


def test_a_training_that_is_refused_leaves_no_folder_behind(tmp_path: Path) -> None:
    longer = CompareConfig(training=TrainingConfig(seq_len=500))
    for command in (train, compare):
        with pytest.raises(UserError, match="longer than the context"):
            command(longer, out=tmp_path / "runs", show_progress=False)  # type: ignore[operator]
    assert list((tmp_path / "runs").iterdir()) == []


# ---------------------------------------------------------------- formats


def test_a_run_of_today_says_its_format_and_is_named_for_it(
    found: Reproduction, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(found.folder)
    for path in (folder.config, folder.info):
        assert json.loads(path.read_text())["format"] == FORMAT
    monkeypatch.setattr(folder_module, "FORMAT", FORMAT + 1)
    assert RunFolder.of(found.folder.parent, CONFIG).path != found.folder


@pytest.mark.parametrize("made", [None, 1, 3, "x"])
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
    said = rf"format {1 if made is None else made!r}, and this version reads format 2: run the "
    for read in (Reproduction.load, load_run):
        with pytest.raises(UserError, match=said):
            read(old)
    before = files(old)
    assert run(tmp_path).folder == folder.path
    assert files(old) == before
    shutil.rmtree(folder.path)
    assert set(listing(tmp_path)["status"]) == {NOT_RUN}


def test_a_sweep_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text('{"experiment": "compare", "cells": []}')
    with pytest.raises(UserError, match="format 1, and this version reads format 2"):
        read_sweep(tmp_path)
