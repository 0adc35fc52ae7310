"""Labels of a finished run of `heads` of the same model are taken, and of no other."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import nope_interp as ni
from experiments.explore.finished import finished_labels
from experiments.explore.heads import head
from experiments.explore.model import model
from experiments.explore.playground import Playground
from experiments.variants.embedded import copy_embedded
from tests.experiments.explore.states import state

QUICK: dict[str, Any] = {"quick": True, "n_sequences": 16, "seq_len": 32, "show_progress": False}


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model somewhere else."""
    return copy_embedded(tmp_path_factory.mktemp("model") / "model.safetensors")


@pytest.fixture(scope="module")
def runs(copied: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of it."""
    out = tmp_path_factory.mktemp("runs")
    ni.classify_heads(copied, out=out, **QUICK)
    return out


def with_runs(playground: Playground, runs: Path) -> Playground:
    return Playground(playground.loaded, runs)


def test_a_run_of_the_same_model_labels_its_heads(embedded: Playground, runs: Path) -> None:
    playground = with_runs(embedded, runs)
    found = finished_labels(playground)
    (folder,) = runs.glob("heads-*")
    run = ni.load_run(folder)
    expected = [list(rows["label"]) for _, rows in run.heads.groupby("layer")]  # type: ignore[attr-defined]
    assert found is not None
    assert (found.folder, found.labels) == (folder.name, expected)
    assert model(playground).finished == found
    assert head(playground, state(layer=3, head=1)).label == expected[3][1]


def test_a_run_of_another_model_is_none(llama: Playground, runs: Path) -> None:
    assert finished_labels(with_runs(llama, runs)) is None


def test_where_the_model_has_changed_since_its_run_is_none(
    embedded: Playground, runs: Path, copied: Path
) -> None:
    kept = copied.read_bytes()
    copied.write_bytes(kept[:-1])
    assert finished_labels(with_runs(embedded, runs)) is None
    copied.write_bytes(kept)
    assert finished_labels(with_runs(embedded, runs)) is not None


@pytest.mark.parametrize("damaged", ["config.json", "measurements.parquet", "info.json"])
def test_a_damaged_run_is_passed_over(
    embedded: Playground, runs: Path, tmp_path: Path, damaged: str
) -> None:

    shutil.copytree(runs, tmp_path / "runs")
    (path,) = (tmp_path / "runs").glob(f"heads-*/{damaged}")
    path.write_bytes(b"{")
    assert finished_labels(with_runs(embedded, tmp_path / "runs")) is None


def test_no_runs_are_none(embedded: Playground, tmp_path: Path) -> None:
    assert finished_labels(with_runs(embedded, tmp_path / "absent")) is None
    assert json.loads(model(embedded).model_dump_json())["finished"] is None
