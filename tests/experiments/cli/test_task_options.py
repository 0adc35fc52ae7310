"""Task lengths and scratchpads, from configs and the command line to the saved model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.comparison.config import CompareConfig
from experiments.heads.config import HeadsConfig
from experiments.runs.folder import RunFolder
from experiments.sweeps.checks import check_cells
from experiments.sweeps.config import SweepConfig
from experiments.variants.train import check_training, task_of, train, training_folder
from experiments.variants.variants import loaded_variant
from nope_interp.errors import UserError
from nope_interp.models.checkpoints import TrainedOn, load_model
from nope_interp.tasks.answers import AnswerTask
from nope_interp.tasks.registry import make_answer_task, make_task
from tests.experiments.cli.command import assert_one_sentence, nope_interp
from tests.paths import ROOT

SMALL: dict[str, Any] = {
    "transformer": {"n_layers": 1, "d_model": 16, "n_heads": 2},
    "training": {"steps": 2, "batch_size": 2, "seq_len": 60, "warmup": 1},
    "seq_len": 60,
}


def config(**values: Any) -> CompareConfig:
    return CompareConfig.from_dict(SMALL | values)


@pytest.mark.parametrize(
    ("name", "lengths", "training", "test"),
    [
        ("copy-rsc", (2, 4), [2, 3, 4], [5, 6, 7, 8]),
        ("parity", (3, 3), [3], [4, 5, 6]),
        # Of letters there are 26, and of SCAN's commands none with 37 actions.
        ("indexing", (20, 25), [*range(20, 26)], [26]),
        ("scan", (36, 40), [36, 40], [48]),
    ],
)
def test_lengths_are_trained_on_and_tests_are_up_to_twice_as_long(
    name: str, lengths: tuple[int, int], training: list[int], test: list[int]
) -> None:
    task = task_of(config(task=name, lengths=lengths))
    assert list(task.training_lengths) == training  # type: ignore[attr-defined]
    assert list(task.test_lengths) == test  # type: ignore[attr-defined]


def test_without_options_the_task_is_the_papers() -> None:
    asked, papers = make_task("addition"), make_answer_task("addition")
    assert list(asked.training_lengths) == list(papers.training_lengths)  # type: ignore[attr-defined]
    assert asked.scratchpad is None  # type: ignore[attr-defined]


@given(st.permutations(("input", "computation", "output")))
def test_the_order_of_a_scratchpads_parts_means_nothing(parts: list[str]) -> None:
    asked = config(task="addition", lengths=[1, 2], scratchpad=parts)
    assert asked == config(task="addition", lengths=[1, 2], scratchpad=sorted(parts))
    assert task_of(asked).scratchpad == frozenset(parts)  # type: ignore[attr-defined]
    assert CompareConfig.from_dict(json.loads(json.dumps(asked.to_dict()))) == asked


def test_options_are_part_of_what_a_run_is_and_their_absence_changes_no_name() -> None:
    plain = config(task="addition")
    others = [
        config(task="addition", lengths=[1, 8]),
        config(task="addition", scratchpad=["input"]),
    ]
    for folder in (RunFolder.of, training_folder):
        assert len({folder(Path(), some).path for some in (plain, *others)}) == 3
    assert not {"lengths", "scratchpad"} & plain.to_dict().keys()
    assert "compile" not in plain.to_dict()["training"]
    # As a version without these options named it.
    reversal = CompareConfig(task="reversal")
    assert training_folder(Path(), reversal).path.name == "train-none-reversal-977dd1e6cc"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"lengths": [2, 8]}, "'text' has no lengths"),
        ({"scratchpad": ["input"]}, "'text' has no scratchpad"),
        ({"task": "parity", "lengths": [8, 2]}, r"lengths are \[8, 2\]: give the shortest"),
        ({"task": "parity", "lengths": [2]}, "give the shortest and the longest"),
        ({"task": "parity", "lengths": [0, 2]}, "from 1"),
        ({"task": "parity", "lengths": ["2", "8"]}, "lengths is"),
    ],
)
def test_configs_refuse_what_cannot_be(values: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        config(**values)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"task": "scan", "scratchpad": ["input"]}, "'scan' has no scratchpad"),
        ({"task": "parity", "scratchpad": ["ouput"]}, "did you mean 'output'"),
        ({"task": "parity", "scratchpad": []}, "without parts is empty"),
        ({"task": "lego", "lengths": [2, 27]}, "the nearest length is 26"),
        ({"task": "parity", "lengths": [1, 10**17]}, "the nearest length is 10000"),
        (
            {"task": "copy-cmc", "lengths": [2, 29]},
            "may have 62 tokens, but training sequences have 60",
        ),
    ],
)
def test_a_task_that_cannot_be_trained_on_is_refused_before_anything_runs(
    tmp_path: Path, values: dict[str, Any], why: str
) -> None:
    with pytest.raises(UserError, match=why):
        train(config(**values), out=tmp_path, show_progress=False)
    cells = {"experiment": "train", "base": SMALL, "list": [{"task": "parity"}, values]}
    with pytest.raises(UserError, match=f"cell 2.*{why}"):
        check_cells(SweepConfig.from_dict(cells), "cpu", here=True)
    assert not [*tmp_path.rglob("*.safetensors")]


def test_lengths_that_just_fit_are_trained_on() -> None:
    asked = config(task="copy-cmc", lengths=[2, 28])
    task = make_task("copy-cmc", lengths=(2, 28))
    check_training(asked, task)
    assert task.n_tokens(28) == 60  # type: ignore[attr-defined]


def test_of_the_papers_lengths_those_that_fit_are_trained_on_and_remembered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = config(task="reversal", training={**SMALL["training"], "seq_len": 16})
    path = train(asked, out=tmp_path, show_progress=False)
    longest = max(make_task("reversal").fitting_lengths(16))  # type: ignore[union-attr]
    assert load_model(path)[1].lengths == (2, longest)
    assert f"those from 2 to {longest} fit training sequences of 16 tokens" in caplog.text
    assert list(task_of(asked).training_lengths) == [*range(2, longest + 1)]  # type: ignore[union-attr]


def test_what_is_far_too_long_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task("pcfg", lengths=(1, 2_000))
    assert isinstance(task, AnswerTask)
    seen: list[int] = []
    real = task.n_tokens
    monkeypatch.setattr(task, "n_tokens", lambda length: seen.append(length) or real(length))
    with pytest.raises(UserError, match=r"length 2000 may have \d+ tokens"):
        check_training(config(task="pcfg", lengths=[1, 2_000]), task)
    assert seen == [2_000]


def test_a_model_of_another_text_says_so(tmp_path: Path) -> None:
    own, other = tmp_path / "own.txt", tmp_path / "other.txt"
    own.write_text("one two three four five six seven " * 99)
    other.write_text("seven six five four three two one " * 99)
    path = train(config(text=str(own)), out=tmp_path, show_progress=False)

    def notes(text: Path) -> tuple[str, ...]:
        return loaded_variant(config(model=str(path), text=str(text)), "cpu", needed={}).notes

    assert not notes(own)
    (note,) = notes(other)
    assert "trained on another text" in note


def test_a_saved_model_remembers_its_task_and_is_read_on_that(tmp_path: Path) -> None:
    asked = config(task="addition", lengths=[1, 2], scratchpad=["output", "input"])
    path = train(asked, out=tmp_path, show_progress=False)
    remembered = TrainedOn("addition", (1, 2), ("input", "output"))
    assert load_model(path)[1] == remembered

    def read(**changes: Any) -> Any:
        own = {"task": "addition", "lengths": [1, 2], "scratchpad": ["input", "output"]}
        values = {name: value for name, value in (own | changes).items() if value is not None}
        return loaded_variant(config(model=str(path), **values), "cpu", needed={})

    assert read().sources[0].name == "addition"
    assert list(read(lengths=[1, 3]).sources[0].task.training_lengths) == [1, 2, 3]
    with pytest.raises(UserError, match=r"lengths 1 to 2, .*: add --lengths 1-2"):
        read(lengths=None)
    for other in (None, ["input"]):
        with pytest.raises(UserError, match="add --scratchpad input,output"):
            read(scratchpad=other)
    with pytest.raises(UserError, match=r"on addition of .*: add --task addition"):
        read(task="summation", scratchpad=None)
    plain = train(config(task="parity"), out=tmp_path, show_progress=False)
    assert load_model(plain)[1] == TrainedOn("parity")
    steps = config(model=str(plain), task="parity", scratchpad=["output"])
    with pytest.raises(UserError, match="without a scratchpad: leave it out"):
        loaded_variant(steps, "cpu", needed={})


def test_of_too_long_sequences_those_that_a_model_was_trained_on_are_suggested() -> None:
    shipped = ROOT / "examples" / "copy-rsc.safetensors"
    asked: dict[str, Any] = {"model": str(shipped), "task": "copy-rsc", "lengths": (2, 8)}
    # Its context has 36 tokens, its longest examples 20, and heads reads 24 at least.
    for config, tokens in ((CompareConfig, 20), (HeadsConfig, 24)):
        with pytest.raises(UserError, match=f"context of 36 tokens: add --seq-len {tokens}\\.$"):
            loaded_variant(config(**asked), "cpu", needed={})


def test_the_command_line_says_the_same_as_a_config(tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(json.dumps(SMALL))
    options = ["--task", "addition", "--lengths", "1-2", "--scratchpad", "output, input"]
    run = nope_interp("train", "--config", "small.json", *options, "--json", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    small = CompareConfig.read(tmp_path / "small.json")
    asked = replace(small, task="addition", lengths=(1, 2), scratchpad=("input", "output"))
    path = tmp_path / json.loads(run.stdout)["model"]
    assert path.parent.name == training_folder(Path(), asked).path.name
    assert CompareConfig.read(path.parent / "config.json") == asked


@pytest.mark.parametrize("command", ["train", "compare", "probe", "heads"])
def test_mistakes_get_one_helpful_sentence(tmp_path: Path, command: str) -> None:
    run = nope_interp(command, "--task", "parity", "--lengths", "2:8", cwd=tmp_path)
    assert_one_sentence(run, "'2:8'", "such as 2-8")
