"""Sweeps: what a file asks, what becomes of cells and workers, and the table of all cells."""

import errno
import fcntl
import io
import itertools
import json
import os
import re
import socket
import sys
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from experiments.comparison.config import CompareConfig
from experiments.runs import ray_cluster
from experiments.runs.folder import FORMAT, RunFolder
from experiments.runs.workers import HERE, Pool, WorkerDied
from experiments.sweeps import registry
from experiments.sweeps import workers as sweep_workers
from experiments.sweeps.checks import check_cells
from experiments.sweeps.config import SweepConfig
from experiments.sweeps.progress import Progress
from experiments.sweeps.registry import Experiment
from experiments.sweeps.run import begin_sweep, run_sweep
from experiments.sweeps.sweep import Sweep, _locked, read_sweep
from experiments.sweeps.workers import _marked, run_all, sweep_pool
from nope_interp.errors import UserError
from tests import typecheck
from tests.experiments.cli.command import JUNK, assert_one_sentence, nope_interp
from tests.experiments.sweeps.sweep_experiment import (
    DIES,
    LEAVES,
    QUICK,
    RAISES,
    REFUSES,
    ROWS,
    leave,
)
from tests.experiments.sweeps.sweep_process import file_of, write_sweep

SMALL = {
    "transformer": {"n_layers": 1, "d_model": 16, "n_heads": 2, "n_ctx": 16},
    "training": {"steps": 4, "batch_size": 2, "seq_len": 16, "warmup": 1},
    "seq_len": 16,
}


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells run in this process, where tests can reach them."""
    monkeypatch.setattr(sweep_workers, "sweep_pool", lambda *_: HERE)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.EXPERIMENTS, "quick", QUICK)


def asked(seeds: list[int]) -> SweepConfig:
    return SweepConfig.from_dict(
        {"experiment": "quick", "base": {"name": "kazemnejad2023"}, "grid": {"seed": seeds}}
    )


def seeds_in(sweep: Sweep, state: str) -> set[int]:
    return {cell.values["seed"] for cell in sweep.cells if sweep.state(cell) == state}


def ran(out: Path) -> Counter[int]:
    return Counter(int(line) for line in (out / "ran").read_text().split())


# ---------------------------------------------------------------- what a file asks


def from_yaml(tmp_path: Path, text: str) -> SweepConfig:
    path = tmp_path / "my sweep.yaml"
    path.write_text(text)
    return SweepConfig.read(path)


def test_a_file_becomes_configs(tmp_path: Path) -> None:
    sweep = from_yaml(
        tmp_path,
        """
        experiment: compare
        base: {seq_len: 64, transformer: {n_layers: 2, seed: 5}, uses: no,
               training.learning_rate: 3e-4}
        grid: {seed: [0, 1], transformer.positions: [none, rotary]}
        """,
    )
    assert sweep.name == "my-sweep"
    assert [cell.label for cell in sweep.cells] == [
        "cell 1 (seed=0, transformer.positions=none)",
        "cell 2 (seed=0, transformer.positions=rotary)",
        "cell 3 (seed=1, transformer.positions=none)",
        "cell 4 (seed=1, transformer.positions=rotary)",
    ]
    last = sweep.cells[3].config
    assert isinstance(last, CompareConfig)
    # A length, and a cell's seed, are those of weights and training, too.
    assert (last.seq_len, last.transformer.n_ctx, last.training.seq_len) == (64, 64, 64)
    assert (last.transformer.n_layers, last.uses) == (2, "no")
    assert last.training.learning_rate == 3e-4
    assert (last.seed, last.transformer.seed, last.training.seed) == (1, 1, 1)
    # What the command line makes of the same options.
    command = last.to_dict()
    assert command == CompareConfig.from_dict(command).to_dict()


def test_a_cell_lies_over_the_base_and_its_own_words_win() -> None:
    sweep = SweepConfig.from_dict(
        {
            "experiment": "probe",
            "base": {"transformer": {"n_layers": 2, "d_model": 32, "n_heads": 4}},
            "list": [
                {},
                {"transformer": {"n_layers": 3}},
                {"seed": 4, "transformer.seed": 9, "seq_len": 32},
            ],
        }
    )
    plain, deep, seeded = (cell.config for cell in sweep.cells)
    for config in (plain, deep, seeded):
        assert isinstance(config, CompareConfig)
        assert config.transformer.d_model == 32
        assert not config.variants
    assert sweep.cells[0].label == "cell 1 (the base)"
    assert sweep.cells[1].values == {"transformer.n_layers": 3}
    assert (deep.transformer.n_layers, plain.transformer.n_layers) == (3, 2)  # type: ignore[union-attr]
    assert isinstance(seeded, CompareConfig)
    assert (seeded.transformer.seed, seeded.training.seed) == (9, 4)
    assert (seeded.transformer.n_ctx, seeded.training.seq_len) == (32, 32)


def test_a_sweep_is_asked_in_the_command_lines_words() -> None:
    base = {"positions": "rotary", "steps": 7, "sequences": 60, "seed": 5, "training.seed": 6}
    values = {"experiment": "compare", "base": base, "grid": {"init": ["uniform", "normal"]}}
    first, second = (cell.config for cell in SweepConfig.from_dict(values).cells)
    assert isinstance(first, CompareConfig)
    assert isinstance(second, CompareConfig)
    assert (first.transformer.init, second.transformer.init) == ("uniform", "normal")
    assert (first.transformer.positions, first.training.steps) == ("rotary", 7)
    assert (first.n_fit, first.n_held_out) == (40, 20)
    assert (first.seed, first.transformer.seed, first.training.seed) == (5, 5, 6)
    with pytest.raises(UserError, match=r"steps is 7, but training\.steps is 8: leave one out"):
        SweepConfig.from_dict({**values, "base": {**base, "training.steps": 8}})


def test_a_cells_positions_lie_over_the_bases() -> None:
    base = {"transformer.positions": "learned"}
    values = {"experiment": "train", "base": base, "list": [{"positions": "rotary"}]}
    (cell,) = SweepConfig.from_dict(values).cells
    assert isinstance(cell.config, CompareConfig)
    assert cell.config.transformer.positions == "rotary"


def test_yaml_is_that_of_version_1_2(tmp_path: Path) -> None:
    words = "{uses: no, training.learning_rate: 1e-3, seed: 010, training.compile: true, text: on}"
    cell = from_yaml(tmp_path, f"experiment: compare\nlist: [{words}]").cells[0]
    assert cell.values == {
        "uses": "no",
        "training.learning_rate": 0.001,
        "seed": 10,
        "training.compile": True,
        "text": "on",
    }


choices = {
    "seed": st.integers(0, 50),
    "transformer.positions": st.sampled_from(["none", "learned", "rotary", "alibi"]),
    "transformer.n_layers": st.integers(1, 4),
    "training.learning_rate": st.floats(1e-5, 1e-2),
    "n_fit": st.integers(8, 90),
}


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(sorted(choices)), min_size=1, unique=True).flatmap(
        lambda keys: st.fixed_dictionaries(
            {key: st.lists(choices[key], min_size=1, max_size=3) for key in keys}
        )
    )
)
def test_a_grid_is_the_product_of_its_lists(grid: dict[str, list[Any]]) -> None:
    sweep = SweepConfig.from_dict({"experiment": "compare", "grid": grid})
    assert [tuple(cell.values.values()) for cell in sweep.cells] == list(
        itertools.product(*grid.values())
    )
    for cell in sweep.cells:
        nested = cell.config.to_dict()
        for key, value in cell.values.items():
            found: Any = nested
            for name in key.split("."):
                found = found[name]
            assert found == value


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (3, "the sweep is int: give named values"),
        ({"experimant": 1}, "unknown key of the sweep 'experimant': did you mean 'experiment'"),
        ({"grid": {"seed": [0]}}, "names no experiment"),
        ({"experiment": "comparre", "grid": {"seed": [0]}}, "did you mean 'compare'"),
        ({"experiment": "compare"}, "either a grid or a list"),
        ({"experiment": "compare", "grid": {"seed": [0]}, "list": [{}]}, "either a grid or a list"),
        ({"experiment": "compare", "grid": {}}, "keys with lists"),
        ({"experiment": "compare", "grid": {"seed": 3}}, "the grid's seed is 3: give a list"),
        ({"experiment": "compare", "grid": {"seed": []}}, "at least one value"),
        ({"experiment": "compare", "list": []}, "at least one cell"),
        ({"experiment": "compare", "list": "seed"}, "at least one cell"),
        ({"experiment": "compare", "list": [3]}, "cell 1 is int"),
        ({"experiment": "compare", "list": [{3: 4}]}, "the key 3"),
        ({"experiment": "compare", "base": [], "grid": {"seed": [0]}}, "the base is list"),
        (
            {"experiment": "compare", "grid": {"seed": list(range(1000)), "n_fit": [8] * 1000}},
            "1000000 cells: the most is 100000",
        ),
        (
            {
                "experiment": "train",
                "grid": {"seed": [1, 2], "transformer.positions": ["none", "rotry"]},
            },
            r"cell 2 \(seed=1, transformer.positions=rotry\): .* did you mean 'rotary'",
        ),
        (
            {"experiment": "heads", "list": [{}, {"transformer": {"n_layer": 2}}]},
            r"cell 2 \(transformer.n_layer=2\): .*did you mean 'transformer.n_layers'",
        ),
        (
            {"experiment": "compare", "grid": {"seed.x": [1]}},
            r"cell 1 \(seed.x=1\): .*give a whole number",
        ),
        (
            {"experiment": "compare", "list": [{"seq_len": 4}]},
            r"cell 1 \(seq_len=4\): seq_len is 4",
        ),
        (
            {"experiment": "compare", "base": {"training": 3}, "list": [{"training.steps": 4}]},
            "'training.steps' is given, but 'training' is a value",
        ),
        (
            {"experiment": "compare", "list": [{"seed": 1, "training": 3}]},
            "names within it are given",
        ),
        (
            {"experiment": "compare", "list": [{"training.steps": 1, "training": {"steps": 2}}]},
            "gives 'training.steps' twice",
        ),
        (
            {"experiment": "reproduce", "base": {"name": "chi2023"}, "list": [{"sed": 3}]},
            "did you mean 'seed'",
        ),
        (
            {"experiment": "compare", "list": [{"n_layers": 3}]},
            "unknown field of the config 'n_layers': did you mean 'transformer.n_layers'",
        ),
        # What would change nothing is no word of a sweep, wherever it stands.
        (
            {"experiment": "train", "grid": {"n_fit": [8, 9]}},
            r"cell 1 \(n_fit=8\): n_fit means nothing to train: leave it out",
        ),
        (
            {"experiment": "probe", "grid": {"uses": [None, "stream"]}},
            r"cell 2 \(uses=stream\): uses means nothing to probe",
        ),
        ({"experiment": "probe", "base": {"variants": True}, "list": [{}]}, "variants means noth"),
        ({"experiment": "train", "base": {"sequences": 60}, "list": [{}]}, "sequences means noth"),
        (
            {"experiment": "drop", "base": {"model": "a/b"}, "list": [{"transformer.n_layers": 3}]},
            "transformer.n_layers means nothing to drop",
        ),
        (
            {
                "experiment": "train",
                "base": {"positions": "rotary"},
                "list": [{"transformer.positions": "t5"}],
            },
            "positions is 'rotary', but transformer.positions is 't5': leave one out",
        ),
        (
            {"experiment": "emergence", "list": [{"transformer.seed": 5}]},
            r"transformer.seed is 5, but seed is that of weights",
        ),
        (
            {"experiment": "emergence", "list": [{"training.seed": 0}]},
            "training.seed means nothing to emergence",
        ),
        # Wrong values are told in the words that were given.
        ({"experiment": "train", "list": [{"steps": 0}]}, r"\(steps=0\): steps is 0"),
        (
            {"experiment": "train", "list": [{"training.steps": 0}]},
            r"\(training.steps=0\): training.steps is 0",
        ),
        (
            {"experiment": "compare", "base": {"sequences": 9}, "list": [{}]},
            "sequences is 9: use at least 24",
        ),
    ],
)
def test_nonsense_is_refused_and_named(values: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        SweepConfig.from_dict(values)


@settings(max_examples=200)
@given(
    st.dictionaries(
        st.sampled_from(["base", "grid", "list", "experiment"]),
        JUNK
        | st.sampled_from(["compare", "train"])
        | st.dictionaries(st.sampled_from(["seed", "transformer", "training.steps"]), JUNK)
        | st.lists(st.dictionaries(st.sampled_from(["seed", "task", "training"]), JUNK)),
    )
)
def test_malformed_sweeps_are_refused_or_read(values: dict[str, Any]) -> None:
    try:
        sweep = SweepConfig.from_dict(values)
    except UserError:
        return  # any other exception fails the test
    assert sweep.cells


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{experiment: compare", "not valid YAML"),
        ("experiment: train\nbase: &a {x: *a}\nlist: [{}]", r"the alias \*a is not allowed"),
        ("experiment: train\ngrid: {seed: &a [*a]}", r"the alias \*a is not allowed"),
        (
            "experiment: train\ngrid:\n  seed: [0]\n  seed: [1]",
            r"\.yaml' gives 'seed' twice, again in line 4: leave one of them out\.$",
        ),
        ("", "holds no named values: give an experiment"),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        from_yaml(tmp_path, text)
    with pytest.raises(UserError, match="cannot read the sweep"):
        SweepConfig.read(tmp_path / "absent.yaml")


def test_cells_that_cannot_be_run_are_refused_before_any_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(sentence: str, options: dict[str, Any], **values: Any) -> None:
        config = SweepConfig.from_dict({"experiment": "train", "base": SMALL, **values})
        with pytest.raises(UserError, match=sentence):
            run_sweep(config, out=tmp_path / "runs", show_progress=False, **options)

    refused(r"cell 2 .*longer than the context", {}, grid={"training.seq_len": [8, 32]})
    refused(r"cell 1 .*bidirectional", {}, grid={"transformer.causal": [False]})
    refused(r"cell 1 .*cannot read", {}, grid={"text": ["absent.txt"]})
    same = r"cell 1 \(seed=1\) and cell 2 \(seed=1\) are the same run: leave one out"
    refused(same, {}, grid={"seed": [1, 1]})
    refused(
        r"cell 2 .*no positional encoding: there is nothing to take away",
        {},
        experiment="probe",
        base={**SMALL, "ablate": "rotary"},
        grid={"transformer.positions": ["rotary", "none"]},
    )
    refused(
        r"cell 1 .*no layer 7",
        {},
        experiment="heads",
        base={"positions": "t5", "transformer.n_layers": 1, "ablate": "t5"},
        grid={"ablate_layers": [[7]]},
    )
    refused("jobs is 0", {"jobs": 0}, grid={"seed": [1]})
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    refused("jobs is '4'", {"jobs": "4"}, grid={"seed": [1]})
    refused("GPUs per cell are '1'", {"gpus_per_cell": "1"}, grid={"seed": [1]})
    refused("device 'quantum'", {"device": "quantum"}, grid={"seed": [1]})
    refused("the device 'auto' is for pretrained models", {"device": "auto"}, grid={"seed": [1]})
    refused("add --ray", {"gpus_per_cell": 1}, grid={"seed": [1]})
    refused("give 0 or more", {"gpus_per_cell": -1.0}, grid={"seed": [1]})
    on_gpus = {"gpus_per_cell": 1, "ray": "somewhere:1", "device": "cpu"}
    refused("on the device 'cpu': add --device cuda", on_gpus, grid={"seed": [1]})
    refused("give HOST:PORT", {"ray": "auto"}, grid={"seed": [1]})
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("experiment", "cell", "sentence"),
    [
        (
            "compare",
            {"model": "absent.safetensors"},
            "there is no checkpoint 'absent.safetensors': check the path",
        ),
        ("heads", {"model": "absent.gguf"}, "there is no GGUF file 'absent.gguf': check the path"),
        ("probe", {"model": "./absent"}, "'./absent' is neither a hub name"),
        ("probe", {"model": "/absent/model"}, "'/absent/model' is neither a hub name"),
        ("probe", {"model": "gpt2", "text": "absent.txt"}, "cannot read the text 'absent.txt'"),
        (
            "reproduce",
            {"model": "absent.gguf"},
            "there is no GGUF file 'absent.gguf': check the path",
        ),
        ("reproduce", {"model": "gpt2", "text": "absent.txt"}, "cannot read the text"),
    ],
)
def test_a_cell_whose_files_are_not_there_is_named(
    tmp_path: Path, experiment: str, cell: dict[str, Any], sentence: str
) -> None:
    base = {"name": "barbero2024"} if experiment == "reproduce" else {}
    # Nothing says that the name of a hub is wrong without asking it.
    fine = {} if experiment == "reproduce" else {"model": "someone/some-model"}
    cells = {"experiment": experiment, "base": base, "list": [{"seed": 1, **fine}, cell]}
    with pytest.raises(UserError, match=rf"cell 2 \(model=.*\): {re.escape(sentence)}"):
        run_sweep(SweepConfig.from_dict(cells), out=tmp_path / "runs", show_progress=False)
    assert not (tmp_path / "runs").exists()


def test_a_drop_of_no_model_is_named_before_any_runs(tmp_path: Path) -> None:
    config = SweepConfig.from_dict({"experiment": "drop", "grid": {"seed": [0, 1]}})
    with pytest.raises(UserError, match=r"cell 1 \(seed=0\): drop takes a pretrained model"):
        run_sweep(config, out=tmp_path / "runs", show_progress=False)
    assert not (tmp_path / "runs").exists()


def test_a_paper_that_does_not_run_on_the_device_is_named() -> None:
    cells = {"experiment": "reproduce", "grid": {"name": ["chi2023", "koutnik2014"]}}
    config = SweepConfig.from_dict(cells)
    check_cells(config, "cpu", here=True)
    said = r"cell 2 \(name=koutnik2014\): koutnik2014 runs on the CPU: leave the device 'cuda' out"
    with pytest.raises(UserError, match=said):
        check_cells(config, "cuda", here=False)


def test_small_trainings_run_on_the_cpu_in_a_sweep_too() -> None:
    config = SweepConfig.from_dict({"experiment": "emergence", "grid": {"seed": [1]}})
    check_cells(config, "cpu", here=True)
    said = r"cell 1 \(seed=1\): emergence runs on the CPU: leave the device 'cuda' out"
    with pytest.raises(UserError, match=said):
        check_cells(config, "cuda", here=False)


# ---------------------------------------------------------------- cells, workers and disks


def test_an_orphan_leaves_the_marker_of_its_successor(tmp_path: Path) -> None:
    path = tmp_path / "cell-00001.running"
    with ExitStack() as successor:
        with _marked(path):
            path.unlink()  # by the sweep that was started again
            successor.enter_context(_marked(path))
        assert _locked(path)
    assert not path.exists()
    with _marked(path):
        path.unlink()
    assert not path.exists()


@pytest.mark.slow
def test_cells_that_go_wrong_do_not_keep_others_from_running(quick: None, tmp_path: Path) -> None:
    config = asked([0, RAISES, 1, REFUSES, 2, LEAVES, DIES, 3, 4])
    sweep = run_sweep(config, out=tmp_path, jobs=2, show_progress=False)
    assert seeds_in(sweep, "done") == {0, 1, 2, 3, 4}
    assert seeds_in(sweep, "failed") == {RAISES, REFUSES, LEAVES, DIES}
    logs = {cell.values["seed"]: sweep.log(cell).read_text() for cell in sweep.failed()}
    assert "ZeroDivisionError: the cell's own mistake" in logs[RAISES]
    assert "Traceback" in logs[RAISES]
    assert logs[REFUSES] == (
        f"cell 4 (seed={REFUSES}):\nthis cell cannot be done: choose another.\n"
    )
    assert "SystemExit: 3" in logs[LEAVES]
    assert "its worker died 3 times" in logs[DIES]
    counts = ran(tmp_path)
    assert counts[DIES] == 3
    # A worker's death takes what others were doing; nothing that was finished is done again.
    assert max(counts.values()) <= 3
    assert {path.suffix for path in sweep.folder.iterdir()} == {".json", ".log", ""}
    before = {c.folder: file_of(c.folder) for c in sweep.cells if QUICK.finished(c.folder)}
    assert len(before) == 5
    (tmp_path / "mended").touch()
    again = run_sweep(config, out=tmp_path, jobs=1, show_progress=False)
    assert again.folder == sweep.folder
    assert set(again.states().values()) == {"done"}
    assert not again.failed()
    assert ran(tmp_path) - counts == Counter([RAISES, REFUSES, LEAVES, DIES])
    assert {folder: file_of(folder) for folder in before} == before


def test_a_longer_sweep_takes_over_what_a_shorter_one_did(
    quick: None, no_processes: None, tmp_path: Path
) -> None:
    run_sweep(asked([0, 1]), out=tmp_path, show_progress=False)
    longer = run_sweep(asked([0, 1, 2]), out=tmp_path, show_progress=False)
    assert set(longer.states().values()) == {"done"}
    assert ran(tmp_path) == Counter([0, 1, 2])


def test_a_full_disk_fails_its_cell_and_no_other(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = begin_sweep(asked([0, 1, 2]), Path("runs"))
    full = sweep.cells[1].folder.name
    real = os.replace

    def replace(source: Any, target: Any) -> None:
        if full in str(target):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    run_all(sweep, sweep.cells, HERE, "cpu")
    assert list(sweep.states().values()) == ["done", "failed", "done"]
    assert "No space left on device" in sweep.log(sweep.cells[1]).read_text()
    full = "nothing"
    run_all(sweep, [sweep.cells[1]], HERE, "cpu")
    assert set(sweep.states().values()) == {"done"}


def test_a_disk_without_room_for_a_log_is_said(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = begin_sweep(asked([0, 1]), Path("runs"))

    def replace(source: Any, target: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(UserError, match=r"cell-00001.log.*No space left on device"):
        run_all(sweep, sweep.cells, HERE, "cpu")
    assert set(sweep.states().values()) == {"queued"}


@pytest.mark.parametrize("jobs", [1, 2, None])
def test_a_cell_has_as_many_threads_however_many_run_at_once(
    monkeypatch: pytest.MonkeyPatch, jobs: int | None
) -> None:
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "4")
    assert sweep_pool(3, jobs, None, 0).threads == 1


def test_workers_that_die_before_they_run_anything_are_an_error(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> dict[int, str]:
        raise WorkerDied("the pool is broken", "have fewer")

    monkeypatch.setattr(Pool, "run", die)
    sweep = begin_sweep(asked([0, 1]), tmp_path)
    with pytest.raises(UserError, match="die before they run anything"):
        run_all(sweep, sweep.cells, HERE, "cpu")


def test_a_sweep_is_run_by_one_process_at_a_time(quick: None, tmp_path: Path) -> None:
    sweep = begin_sweep(asked([0]), tmp_path)
    with sweep.locked(), pytest.raises(UserError, match="being run by another process"):
        run_sweep(asked([0]), out=tmp_path, show_progress=False)
    assert set(sweep.states().values()) == {"queued"}


def test_states_are_read_off_the_files(quick: None, tmp_path: Path) -> None:
    sweep = begin_sweep(asked([0, 1, 2]), tmp_path)
    first, second, third = sweep.cells
    # A marker that no living process holds is what a killed worker leaves.
    sweep.marker(first).touch()
    assert sweep.state(first) == "queued"
    with sweep.marker(first).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert read_sweep(sweep.folder).state(first) == "running"
        progress = Progress(sweep)
        assert progress.line() == "0 of 3 cells done, 1 running, 2 queued"
        assert progress.seconds_left() is None
        sweep.log(second).write_text("cell 2 (seed=1):\nit went wrong\n")
        leave(RunFolder(third.folder), seed=2)
        progress.look()
        assert progress.line().startswith("1 of 3 cells done, 1 failed, 1 running; about ")
        console = Console(file=io.StringIO(), width=100)
        console.print(progress.table())
        said = console.file.getvalue()  # type: ignore[attr-defined]
        assert "cell 1 (seed=0)" in said
        assert "it went wrong" in said
    assert sweep.state(first) == "queued"
    assert [entry["state"] for entry in sweep.summary()] == ["queued", "failed", "done"]
    assert json.loads(json.dumps(sweep.summary()))[1]["log"] == str(sweep.log(second))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("{", "is not valid JSON"),
        ("[]", "is damaged: delete it and run the sweep again"),
        ("{}", "holds files of format 1"),
        (f'{{"format": {FORMAT}}}', "is damaged"),
        (f'{{"format": {FORMAT}, "experiment": "quick", "cells": [{{}}]}}', "is damaged"),
        (f'{{"format": {FORMAT}, "experiment": "x", "cells": []}}', "unknown experiment 'x'"),
    ],
)
def test_damaged_sweeps_are_one_sentence(tmp_path: Path, damage: str, said: str) -> None:
    (tmp_path / "sweep.json").write_text(damage)
    with pytest.raises(UserError, match=said):
        read_sweep(tmp_path)
    with pytest.raises(UserError, match="cannot read"):
        read_sweep(tmp_path / "absent")


# ---------------------------------------------------------------- all cells as one table


def test_the_table_of_all_cells(quick: None, tmp_path: Path) -> None:
    entries: list[dict[str, Any]] = [{"seed": 3, "length": 2}, {"seed": 5}, {"seed": 7}]
    config = SweepConfig.from_dict(
        {"experiment": "quick", "base": {"name": "kazemnejad2023"}, "list": entries}
    )
    sweep = begin_sweep(config, tmp_path)
    with pytest.raises(UserError, match=r"no cell .* is finished yet"):
        sweep.dataset()
    for cell in sweep.cells[:2]:
        leave(RunFolder(cell.folder), cell.values["seed"])
    found = sweep.measurements()
    one_by_one = [
        pd.read_parquet(RunFolder(cell.folder).measurements).assign(cell=cell.number)
        for cell in sweep.cells[:2]
    ]
    expected = pd.concat(one_by_one, ignore_index=True)
    pd.testing.assert_series_equal(found["value"], expected["value"])
    assert found["cell"].tolist() == expected["cell"].tolist() == [1] * ROWS + [2] * ROWS
    assert found["cell.seed"].tolist() == [3] * ROWS + [5] * ROWS
    assert found["cell.length"].isna().tolist() == [False] * ROWS + [True] * ROWS
    assert str(found["step"].dtype) == "Int64"
    picked = sweep.measurements(
        "cell.length", "layer", where=(pc.field("cell.seed") == 3) & (pc.field("layer") > 0)
    )
    assert picked.to_dict("list") == {"cell.length": [2, 2], "layer": [1, 2]}
    with pytest.raises(UserError, match="unknown column 'valeu': did you mean 'value'"):
        sweep.measurements("valeu")
    with pytest.raises(UserError, match="cannot read the sweep"):
        sweep.measurements(where=pc.field("nothing") == 1)
    file = RunFolder(sweep.cells[0].folder).measurements
    whole, values = file.read_bytes(), sweep.measurements("value")
    refused = 0
    for at in range(4, len(whole) // 2, 97):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        try:
            pd.testing.assert_frame_equal(sweep.measurements("value"), values)
        except UserError:
            refused += 1
    assert refused > 0
    file.write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"measurements .* are missing or damaged: delete"):
        sweep.measurements("value")
    # A filter on cells leaves the files of others alone.
    assert len(sweep.measurements("value", where=pc.field("cell.seed") == 5)) == ROWS


def test_only_comparisons_say_which_codes_are_used(quick: None, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="quick says nothing of codes: sweep compare"):
        begin_sweep(asked([0]), tmp_path).verdicts()


def test_a_newer_versions_sweep_is_not_gone_on_with(quick: None, tmp_path: Path) -> None:
    sweep = begin_sweep(asked([0, 1]), tmp_path)
    made = sweep.folder / "sweep.json"
    made.write_text(made.read_text().replace('"nope-interp": "', '"nope-interp": "99.'))
    before = made.read_text()
    with pytest.raises(UserError, match=r"made by nope-interp 99\..*install that version"):
        run_sweep(asked([0, 1]), out=tmp_path, show_progress=False)
    assert made.read_text() == before
    assert len(read_sweep(sweep.folder).cells) == 2  # reading writes nothing


def test_values_of_every_kind_become_columns(quick: None, tmp_path: Path) -> None:
    values = [True, 3, "x", None, 1.5, [1, 2], 2**70]
    sweep = begin_sweep(asked(list(range(len(values)))), tmp_path)
    cells = []
    for cell, value in zip(sweep.cells, values, strict=True):
        leave(RunFolder(cell.folder), cell.number)
        cells.append(type(cell)(cell.number, {"mixed": value, "k": cell.number}, {}, cell.folder))
    found = Sweep(sweep.folder, QUICK, tuple(cells)).measurements("cell.mixed", "cell.k")
    said = found["cell.mixed"].iloc[::ROWS].tolist()
    assert [None if pd.isna(x) else x for x in said] == [
        None if value is None else str(value) for value in values
    ]
    assert found["cell.k"].dtype == "int64"


@pytest.mark.slow
def test_ten_thousand_cells_are_one_table(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 10_000
    sweep = begin_sweep(asked(list(range(n))), tmp_path)
    template = tmp_path / "template"
    leave(RunFolder(template), 0)
    for cell in sweep.cells:
        cell.folder.mkdir()
        for path in template.iterdir():
            os.link(path, cell.folder / path.name)
    looked_at: Counter[Path] = Counter()
    finished = Experiment.finished

    def counted(experiment: Experiment, folder: Path) -> bool:
        looked_at[folder] += 1
        return finished(experiment, folder)

    monkeypatch.setattr(Experiment, "finished", counted)
    sweep = read_sweep(sweep.folder)
    dataset = sweep.dataset()
    assert looked_at == Counter(cell.folder for cell in sweep.cells)  # once each
    few = sweep.measurements("cell", "value", where=pc.field("cell") > n - 10)
    assert few["cell"].tolist() == [c for c in range(n - 9, n + 1) for _ in range(ROWS)]
    columns = ["cell.seed", "value"]
    before = psutil.Process().memory_info().rss
    sums = 0.0
    rows = 0
    for batch in dataset.to_batches(columns=columns, cache_metadata=False, use_threads=False):
        rows += batch.num_rows
        sums += pc.sum(batch.column("cell.seed")).as_py()
    assert rows == n * ROWS
    assert sums == ROWS * n * (n - 1) / 2
    grown = psutil.Process().memory_info().rss - before
    assert grown < 200 * 2**20


# ---------------------------------------------------------------- at the command line


@pytest.mark.slow
def test_sweep_at_the_command_line_trains_the_same_bits(one_thread: None, tmp_path: Path) -> None:
    grid = {"seed": [0, 1], "transformer.positions": ["none", "rotary"]}
    file = write_sweep(tmp_path, experiment="train", base=SMALL, grid=grid)
    run = nope_interp("sweep", file, "--jobs", "2", "--json", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stderr.splitlines()[-1] == "4 of 4 cells done"
    cells = json.loads(run.stdout)["cells"]
    assert [cell["state"] for cell in cells] == ["done"] * 4
    # The same run alone, from the same options.
    (tmp_path / "base.json").write_text(json.dumps(SMALL))
    options = ["--config", "base.json", "--seed", "1", "--positions", "rotary", "--out", "alone"]
    alone = nope_interp("train", *options, "--json", cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    path = tmp_path / json.loads(alone.stdout)["model"]
    assert path.parent.name == Path(cells[3]["run"]).name
    assert path.read_bytes() == (tmp_path / cells[3]["run"] / path.name).read_bytes()
    # What was trained alone is not trained again.
    again = nope_interp("sweep", file, "--out", "alone", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("4 of 4 cells are done.\nSweep: alone/sweep-s-")
    with pytest.raises(UserError, match="train measures nothing"):
        read_sweep(tmp_path / json.loads(run.stdout)["sweep"]).dataset()


def test_a_failed_cell_is_one_sentence_that_names_the_log(
    no_processes: None, tmp_path: Path
) -> None:
    (tmp_path / "damaged.safetensors").write_bytes(b"damaged")
    entries = [{}, {"model": "damaged.safetensors"}]
    base = {**SMALL, "n_fit": 24, "n_held_out": 16}
    file = write_sweep(tmp_path, experiment="probe", base=base, list=entries)
    run = nope_interp("sweep", file, cwd=tmp_path)
    assert run.returncode == 2
    assert run.stdout.startswith("1 of 2 cells are done.\n")
    said = run.stderr.splitlines()[-1]
    assert said.startswith("nope-interp: 1 of 2 cells failed, cell 2 (model=damaged.")
    assert "is damaged or cut short" in (tmp_path / said.split("'")[1]).read_text()


def test_mistakes_in_sweeps_are_one_sentence(tmp_path: Path) -> None:
    file = write_sweep(tmp_path, experiment="train", list=[{"transformer.positions": "rotery"}])
    assert_one_sentence(nope_interp("sweep", file, cwd=tmp_path), "cell 1", "'rotary'")
    assert_one_sentence(nope_interp("sweep", "absent.yaml", cwd=tmp_path), "absent.yaml")
    assert_one_sentence(nope_interp("sweep", cwd=tmp_path), "Missing argument")


@pytest.mark.parametrize("listening", [False, True], ids=["closed", "mute"])
def test_an_address_where_no_ray_answers_is_refused_before_ray_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listening: bool
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # it would wait for minutes; here it is an error
    monkeypatch.setattr(ray_cluster, "_SECONDS_TO_ANSWER", 0.1)
    file = write_sweep(tmp_path, experiment="train", base=SMALL, grid={"seed": [0]})
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        if listening:
            server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        config = SweepConfig.read(tmp_path / file)
        with pytest.raises(UserError, match=f"no Ray cluster answers at '{address}'"):
            run_sweep(config, out=tmp_path / "runs", ray=address)
        run = nope_interp("sweep", file, "--ray", address, cwd=tmp_path)
    assert_one_sentence(run, "no Ray cluster answers", address)
    assert not (tmp_path / "runs").exists()
