"""The command line as a user meets it: in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.comparison.config import CompareConfig
from nope_interp.errors import UserError
from tests.huggingface import save_folder, tiny_gpt2, words
from tests.paths import ROOT

TINY = {
    "transformer": {"n_layers": 1, "d_model": 16, "n_heads": 2},
    "training": {"steps": 4, "batch_size": 2, "seq_len": 16, "warmup": 1, "checkpoint_every": 2},
    "seq_len": 16,
    "n_fit": 24,
    "n_held_out": 16,
}


def nope_interp(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "experiments.cli", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=300,
    )


def assert_one_sentence(run: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert run.returncode == 2, run.stderr
    assert "Traceback" not in run.stderr
    lines = [line for line in run.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, run.stderr
    for part in parts:
        assert part in lines[0]


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    return str(path)


@pytest.mark.slow
def test_compare_then_report_then_nothing_twice(tmp_path: Path, config: str) -> None:
    run = nope_interp("compare", "--config", config, "--json", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    folder = tmp_path / Path(result["report"]).parent
    files = {path.name for path in folder.iterdir()}
    assert files == {
        "config.json",
        "info.json",
        "measurements.parquet",
        "arrays.safetensors",
        "report.html",
        ".lock",
    }
    before = (folder / "measurements.parquet").stat().st_mtime_ns
    again = nope_interp("compare", "--config", config, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout.strip().splitlines()[-1] == f"Report: {result['report']}"
    assert result["headline"] in again.stdout
    assert (folder / "measurements.parquet").stat().st_mtime_ns == before
    drawn = nope_interp(
        "report", result["report"].rsplit("/", 1)[0], "--to", "p.html", cwd=tmp_path
    )
    assert drawn.returncode == 0, drawn.stderr
    assert (tmp_path / "p.html").read_text() == (folder / "report.html").read_text()
    # A run folder's own config makes the same run again.
    same = nope_interp("compare", "--config", str(folder / "config.json"), cwd=tmp_path)
    assert same.stdout.strip().splitlines()[-1] == f"Report: {result['report']}"


@pytest.mark.slow
def test_compare_reads_a_hugging_face_folder(tmp_path: Path) -> None:
    folder = save_folder(tiny_gpt2(), tmp_path / "gpt2")
    (tmp_path / "text.txt").write_text(words(3000))
    arguments = ["--model", str(folder), "--text", "text.txt", "--seq-len", "16"]
    run = nope_interp("compare", *arguments, "--sequences", "60", "--json", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    rows = [row for verdict in json.loads(run.stdout)["verdicts"] for row in verdict["rows"]]
    assert {row["variant"] for row in rows} == {"pretrained", "random-init"}
    assert {row["tokens"] for row in rows} == {"text", "random"}


@pytest.mark.slow
def test_interrupted_training_says_so_and_goes_on(tmp_path: Path) -> None:
    arguments = ["train", "--steps", "300", "--seq-len", "64"]
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.cli", *arguments],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        # A background job of a shell ignores Ctrl-C, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.rglob("training_state.safetensors")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "Traceback" not in errors
    assert errors.strip().splitlines()[-1].startswith("nope-interp: interrupted")
    assert list(tmp_path.rglob("training_state.safetensors"))  # what was done is kept


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["compare", "--positions", "rotery"], ["'rotery'", "did you mean 'rotary'"]),
        (["compare", "--init", "xavier"], ["'xavier'", "did you mean 'xavier_"]),
        (["compare", "--task", "reversel"], ["'reversel'", "did you mean 'reversal'"]),
        (["compare", "--model", "m.gguf", "--positions", "t5"], ["--positions", "leave one out"]),
        (["heads", "--ablate-layers", "0;1", "--ablate", "all"], ["'0;1'", "0,2,5"]),
        (["heads", "--lift-window"], ["lift_window", "without ablate"]),
        (["heads", "--sequences", "3"], ["n_sequences is 3", "at least 16"]),
        (["heads", "no/such", "--steps", "3"], ["--steps", "'no/such'", "leave one out"]),
        (["heads", "./absent"], ["'./absent'", "neither a hub name"]),
        (["compare", "--layers", "0,x"], ["'0,x'", "0,2,5"]),
        (["compare", "--layers", "0,0"], ["each once"]),
        (["compare", "--sites", "resid_post,atn_out"], ["'atn_out'", "did you mean 'attn_out'"]),
        (["compare", "--modle", "x"], ["--modle", "--model"]),
        (["compare", "--seq-len", "many"], ["--seq-len", "integer"]),
        (["compare", "--seq-len", "4"], ["--seq-len", "greater than or equal to 8"]),
        (["compare", "--steps", "0"], ["steps is 0"]),
        (["compare", "--seed", "-1"], ["seed"]),
        (["compare", "--sequences", "6"], ["--sequences is 6", "at least 24"]),
        (["compare", "--device", "quantum"], ["'quantum'"]),
        (["compare", "--config", "absent.toml"], ["absent.toml"]),
        (["compare", "--model", "absent.gguf"], ["absent.gguf"]),
        (["compare", "--model", "absent/model.safetensors"], ["no checkpoint"]),
        (["compare", "--model", "gpt2-meduim"], ["'gpt2-meduim'", "did you mean 'gpt2-medium'"]),
        (["compare", "--text", "absent.txt"], ["absent.txt"]),
        (["compare", "--out", "/proc/nowhere"], ["/proc/nowhere", "another"]),
        (["compare", "--seed", "9223372036854775807"], ["seed is", "from 0 to"]),
        (["compare", "--device", "meta"], ["'meta'"]),
        ([], ["choose a command"]),
        (["report", "absent"], ["absent", "no finished run"]),
        (["report"], ["Missing argument"]),
        (["comparre"], ["comparre"]),
    ],
)
def test_mistakes_get_one_helpful_sentence(
    tmp_path: Path, arguments: list[str], parts: list[str]
) -> None:
    assert_one_sentence(nope_interp(*arguments, cwd=tmp_path), *parts)
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".parquet"]


def test_short_text_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("Too short to train on.")
    run = nope_interp("compare", "--text", "short.txt", cwd=tmp_path)
    assert_one_sentence(run, "too short")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)
FIELDS = [*CompareConfig().to_dict(), "transformers", "n_fits"]


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.dictionaries(st.sampled_from(FIELDS), JUNK, max_size=3),
    st.dictionaries(st.sampled_from([*CompareConfig().to_dict()["transformer"], "n_layer"]), JUNK),
    st.dictionaries(st.sampled_from([*CompareConfig().to_dict()["training"], "lr"]), JUNK),
)
def test_malformed_configs_are_refused_or_read_back(
    junk: dict[str, object], transformer: dict[str, object], training: dict[str, object]
) -> None:
    values = {"transformer": transformer, "training": training, **junk}
    try:
        config = CompareConfig.from_dict(values)
    except UserError:
        return  # any other exception fails the test
    assert CompareConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    "content",
    [
        '{"config": 3, "environment": {}}',
        "[" * 100_000,
        '{"training": {"learning_rate": 1%s}}' % ("0" * 400),
        '{"text": "a\\u0000b"}',
        '{"transformer": {"d_model": 8388608, "n_heads": 1, "n_layers": 1}}',
    ],
    ids=["no-config", "deep", "huge", "nul", "memory"],
)
def test_odd_config_files_are_one_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "odd.json").write_text(content)
    assert_one_sentence(nope_interp("compare", "--config", "odd.json", cwd=tmp_path))


@settings(max_examples=8, deadline=None)
@given(st.binary(max_size=40) | JUNK.map(lambda value: json.dumps(value).encode()))
def test_malformed_config_files_at_the_command_line(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = tmp_path_factory.mktemp("junk")
    (folder / "junk.json").write_bytes(content)
    # A device that does not exist keeps a config that happens to be valid from running.
    run = nope_interp("compare", "--config", "junk.json", "--device", "quantum", cwd=folder)
    assert_one_sentence(run)


def test_help_names_every_command(tmp_path: Path) -> None:
    run = nope_interp("--help", cwd=tmp_path)
    assert run.returncode == 0
    for command in ("compare", "probe", "train", "report"):
        assert command in run.stdout
