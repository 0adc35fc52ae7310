"""The command line as a user meets it."""

import contextlib
import json
import operator
import os
import signal
import subprocess
import sys
import tempfile
import termios
from functools import reduce
from importlib.metadata import version
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.cli.commands import _configured
from experiments.cli.options import option_of
from experiments.comparison.config import CompareConfig
from experiments.runs.folder import FORMAT
from experiments.sweeps.config import SweepConfig
from experiments.sweeps.registry import EXPERIMENTS, Experiment
from experiments.variants.words import Field, fields_of
from nope_interp.errors import UserError
from nope_interp.models.checkpoints import load_model
from nope_interp.models.losses import bigram_losses
from nope_interp.tasks.text import TextTask
from tests.experiments.cli.command import JUNK, assert_one_sentence, in_a_process, nope_interp
from tests.huggingface import save_folder, tiny_gpt2, words
from tests.paths import ROOT

MODEL = str(ROOT / "examples" / "copy-rsc.safetensors")

TINY = {
    "transformer": {"n_layers": 1, "d_model": 16, "n_heads": 2},
    "training": {"steps": 4, "batch_size": 2, "seq_len": 16, "warmup": 1, "checkpoint_every": 2},
    "seq_len": 16,
    "n_fit": 24,
    "n_held_out": 16,
}


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    return str(path)


@pytest.mark.slow
def test_compare_then_report_then_nothing_twice(tmp_path: Path, config: str) -> None:
    asked = ["compare", "--config", config, "--uses", "stream", "--no-variants"]
    asked += ["--sites", "resid_post"]
    run = in_a_process(*asked, "--json", cwd=tmp_path)
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
    again = nope_interp(*asked, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout.strip().splitlines()[-1] == f"Report: {result['report']}"
    assert result["headline"] in again.stdout
    assert "This run read" in again.stdout  # fewer sequences than by default
    assert (folder / "measurements.parquet").stat().st_mtime_ns == before
    drawn = nope_interp(
        "report", result["report"].rsplit("/", 1)[0], "--to", "p.html", cwd=tmp_path
    )
    assert (drawn.returncode, drawn.stdout) == (0, "Report: p.html\n"), drawn.stderr
    assert (tmp_path / "p.html").read_text() == (folder / "report.html").read_text()
    # A run folder's own config makes the same run again.
    same = nope_interp("compare", "--config", str(folder / "config.json"), cwd=tmp_path)
    assert same.stdout.strip().splitlines()[-1] == f"Report: {result['report']}"


@pytest.mark.slow
def test_compare_reads_a_hugging_face_folder(tmp_path: Path) -> None:
    folder = save_folder(tiny_gpt2(), tmp_path / "gpt2")
    (tmp_path / "text.txt").write_text(words(3000))
    arguments = ["--model", str(folder), "--text", "text.txt", "--seq-len", "16"]
    arguments += ["--n-fit", "8", "--n-held-out", "16", "--layers", "0", "--sites", "resid_post"]
    run = nope_interp("compare", *arguments, "--json", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    rows = [row for verdict in json.loads(run.stdout)["verdicts"] for row in verdict["rows"]]
    assert {row["variant"] for row in rows} == {"pretrained", "random-init"}
    assert {row["tokens"] for row in rows} == {"text", "random"}
    # Few sequences for its width, under eight readings: one line, and a sentence on the page.
    assert run.stderr.count("nope-interp: warning: 8 sequences are 120 activations, few to") == 1
    assert ".py" not in run.stderr
    page = (tmp_path / json.loads(run.stdout)["report"]).read_text()
    assert "fitted on 8 sequences, few for activations of 32 components" in page
    assert "22 are enough" in page


@pytest.mark.slow
def test_interrupted_training_says_so_and_is_kept(tmp_path: Path, config: str) -> None:
    long = ["--training.steps", "1000000", "--training.checkpoint-every", "1000000"]
    shown, terminal = os.openpty()  # a bar is drawn on a terminal alone, if that has any lines
    termios.tcsetwinsize(terminal, (40, 100))
    command = (
        # A background job of a shell ignores Ctrl-C, and its children would inherit that.
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "runpy.run_module('experiments.cli', run_name='__main__', alter_sys=True)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", command, "train", "--config", config, *long],
        cwd=tmp_path,
        stderr=terminal,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    os.close(terminal)
    errors = ""
    while "loss" not in errors:
        errors += os.read(shown, 4096).decode()
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # once the process has ended, there is no terminal
        while said := os.read(shown, 4096).decode():
            errors += said
    os.close(shown)
    assert process.wait() == 2
    assert "Traceback" not in errors
    assert errors.strip().splitlines()[-1].startswith("nope-interp: interrupted")
    assert list(tmp_path.rglob("training_state.safetensors"))  # what was done is kept


MISTAKES: list[tuple[list[str], list[str]]] = [
    (["compare", "--positions", "rotery"], ["'rotery'", "did you mean 'rotary'"]),
    (["compare", "--init", "xavier"], ["'xavier'", "did you mean 'xavier_"]),
    (["compare", "--task", "reversel"], ["'reversel'", "did you mean 'reversal'"]),
    (
        ["compare", "--positions", "rotary", "--transformer.positions", "alibi"],
        ["--positions is 'rotary', but transformer.positions is 'alibi': leave one out"],
    ),
    (
        ["probe", "--sequences", "30", "--n-fit", "16", "--n-held-out", "16"],
        ["--sequences is 30, but n_fit is 16: leave one out"],
    ),
    (
        ["probe", "--sequences", "30", "--n-fit", "20", "--n-held-out", "16"],
        ["--sequences is 30, but n_held_out is 16: leave one out"],
    ),
    (
        ["compare", "--steps", "5", "--training.steps", "6"],
        ["--steps is 5, but training.steps is 6: leave one out"],
    ),
    (["compare", "--model", "m.gguf", "--init", "uniform"], ["--init", "leave one out"]),
    (
        ["probe", "--model", "m.safetensors", "--positions", "t5"],
        ["--positions are given", "itself"],
    ),
    (["reproduce", "chi2023", "--positions", "none"], ["positions are given without a model"]),
    (
        ["probe", "--model", "m.gguf", "--training.clip", "2"],
        ["--training.clip", "leave one out"],
    ),
    (["heads", "--ablate-layers", "0;1", "--ablate", "all"], ["'0;1'", "0,2,5"]),
    (["heads", "--lift-window"], ["--lift-window", "without ablate"]),
    (["heads", "--sequences", "3"], ["--sequences is 3", "at least 16"]),
    (["heads", "--n-sequences", "3"], ["--n-sequences is 3", "at least 16"]),
    (["heads", "no/such", "--steps", "3"], ["--steps", "'no/such'", "leave one out"]),
    (["heads", "./absent"], ["'./absent'", "neither a hub name"]),
    (["compare", "--layers", "0,x"], ["'0,x'", "0,2,5"]),
    (["compare", "--layers", "0,0"], ["--layers are [0, 0]", "each once"]),
    (["compare", "--sites", "resid_post,atn_out"], ["'atn_out'", "did you mean 'attn_out'"]),
    (["compare", "--modle", "x"], ["--modle", "did you mean --model?"]),
    (["compare", "--n-layers", "6"], ["--n-layers", "did you mean --transformer.n-layers?"]),
    (["train", "--n_layer", "6"], ["--n_layer", "did you mean --transformer.n-layers?"]),
    (["heads", "--learning-rate", "1"], ["did you mean --training.learning-rate?"]),
    (["probe", "--zzz", "1"], ["no option --zzz", "nope-interp probe --help"]),
    (["compare", "--seq-len", "many"], ["--seq-len", "'many' is not a valid integer"]),
    (["compare", "--seq-len", "4"], ["--seq-len is 4", "at least 8"]),
    (["compare", "--steps", "0"], ["--steps is 0"]),
    (["compare", "--training.steps", "0"], ["--training.steps is 0"]),
    (["train", "--transformer.dropout", "nan"], ["--transformer.dropout is nan"]),
    (["train", "--transformer.d-mlp", "x"], ["--transformer.d-mlp", "'x'"]),
    (["compare", "--seed", "-1"], ["--seed is -1"]),
    (["compare", "--sequences", "6"], ["--sequences is 6", "at least 24"]),
    (["compare", "--shards", "0"], ["--shards is 0", "at least 1"]),
    (["compare", "--shards", "200"], ["200 shards are too many"]),
    (["compare", "--device", "quantum"], ["'quantum'"]),
    (["compare", "--device", "auto"], ["'auto' is for pretrained models"]),
    (["reproduce", "koutnik2014", "--device", "cuda"], ["koutnik2014 runs on the CPU"]),
    (["compare", "--config", "absent.toml"], ["absent.toml"]),
    (["compare", "--model", "absent.gguf"], ["absent.gguf"]),
    (["compare", "--model", "absent/model.safetensors"], ["no checkpoint"]),
    (["compare", "--text", "absent.txt"], ["absent.txt"]),
    (["compare", "--out", "/proc/nowhere"], ["/proc/nowhere", "another"]),
    (["compare", "--seed", "9223372036854775807"], ["--seed is", "from 0 to"]),
    (["compare", "--device", "meta"], ["'meta'"]),
    (["reproduce", "chi2023", "--seeds", "1"], ["--seeds is 1"]),
    (["reproduce"], ["takes one paper's name, or --list"]),
    (["sweep", "absent.yaml"], ["absent.yaml"]),
    (["sweep", "absent.yaml", "--job", "2"], ["did you mean --jobs?"]),
    ([], ["choose a command: compare, probe, heads"]),
    (["report", "absent"], ["there is no folder 'absent'", "check the path"]),
    (["report"], ["Missing argument"]),
    (["comparre"], ["comparre", "Did you mean 'compare'?"]),
    (["zzz"], ["'zzz'", "See nope-interp --help."]),
    (["heads", "--prompt", ""], ["is empty: give at least one text"]),
    (["--quiet", "compare"], ["no option --quiet: see nope-interp --help"]),
    (["compare", "--ablate", "rotery"], ["rotery", "did you mean 'rotary'"]),
    (["heads", "--ablate", "rotary:shuffeld"], ["shuffeld", "did you mean 'shuffled'"]),
    (["probe", "--ablate", "rotary:band=8-2"], ["the band 8-2 is empty"]),
    (["compare", "--seq-len", "9" * 5000], [f"'{'9' * 59}... is not a valid integer"]),
    (["explore", "--port", "9" * 5000], [f"'{'9' * 59}... is not a valid integer"]),
    (["compare", "--shards", f"-{'9' * 4000}"], [f"--shards is -{'9' * 59}...: give at least 1"]),
    (["explore", "--port", "99999999"], ["the port is 99999999", "1 to 65535"]),
    (["explore", "--dtype", "f"], ["unknown dtype 'f'", "float32"]),
    (["explore", "--text", "absent.txt"], ["cannot read the text 'absent.txt'"]),
    (["explore", "absent.gguf"], ["absent.gguf"]),
    (["explore", "--device", "auto"], ["'auto' is for pretrained models"]),
    (["heads", "--rules", "absent.toml"], ["cannot read the rules 'absent.toml'"]),
    (["sweep", "--jobs", "0", "f.yaml"], ["jobs is 0", "at least 1"]),
    (["sweep", "--gpus-per-cell", "1", "f.yaml"], ["GPUs per cell are for Ray", "--ray HOST:PORT"]),
]


@pytest.mark.parametrize(("arguments", "parts"), MISTAKES)
def test_mistakes_get_one_helpful_sentence(
    tmp_path: Path, arguments: list[str], parts: list[str]
) -> None:
    assert_one_sentence(nope_interp(*arguments, cwd=tmp_path), *parts)
    assert not [*tmp_path.iterdir()]


_WITHOUT_TORCH = """
import json, sys
from pathlib import Path
sys.modules |= dict.fromkeys(("torch", "numpy", "pandas", "sklearn", "transformers"))
from tests.experiments.cli.command import nope_interp
asked = json.load(sys.stdin)
print(json.dumps([nope_interp(*arguments, cwd=Path(".")).stderr for arguments in asked]))
"""


def test_these_mistakes_are_told_before_anything_heavy_is_loaded(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _WITHOUT_TORCH],  # there an import of torch fails
        input=json.dumps([arguments for arguments, _ in MISTAKES]),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    for said, (arguments, parts) in zip(json.loads(run.stdout), MISTAKES, strict=True):
        assert all(part in said for part in parts), (arguments, said)


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"n_layers": 6}, "'n_layers': did you mean 'transformer.n_layers'"),
        ({"transformer": {"n_layer": 6}}, "did you mean 'transformer.n_layers'"),
        ({"training.stepz": 6}, "did you mean 'training.steps'"),
        ({"training": {"steps": 0}}, "training.steps is 0"),
        ({"transformer.d_mlp": -1}, "transformer.d_mlp is -1"),
        ({"n_fit": 3}, "n_fit is 3"),
        ({"transformer": 3, "transformer.n_layers": 2}, "give one of them"),
    ],
)
def test_a_config_file_is_told_in_its_own_words(
    tmp_path: Path, values: dict[str, object], part: str
) -> None:
    (tmp_path / "c.json").write_text(json.dumps(values))
    # Another option does not claim what the file says.
    run = nope_interp("compare", "--config", "c.json", "--batch-size", "4", cwd=tmp_path)
    assert_one_sentence(run, part)


def test_an_unknown_model_of_the_hub_is_one_sentence(tmp_path: Path) -> None:
    run = nope_interp("compare", "--model", "gpt2-meduim", cwd=tmp_path)
    assert_one_sentence(run, "'gpt2-meduim'", "did you mean 'gpt2-medium'")


def test_short_text_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("Too short to train on.")
    run = nope_interp("compare", "--text", "short.txt", cwd=tmp_path)
    assert_one_sentence(run, "too short")


FIELDS = [*CompareConfig().to_dict(), "transformers", "n_fits"]


@settings(max_examples=300)
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


@settings(max_examples=8)
@given(st.binary(max_size=40) | JUNK.map(lambda value: json.dumps(value).encode()))
def test_malformed_config_files_at_the_command_line(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = tmp_path_factory.mktemp("junk")
    (folder / "junk.json").write_bytes(content)
    # A device that does not exist keeps a config that happens to be valid from running.
    run = nope_interp("compare", "--config", "junk.json", "--device", "quantum", cwd=folder)
    assert_one_sentence(run)


def test_help_and_version_answer_without_anything_heavy(tmp_path: Path) -> None:
    shown = nope_interp("--help", cwd=tmp_path)
    assert shown.returncode == 0
    for command in (*EXPERIMENTS, "sweep", "report"):
        assert f"\n  {command} " in shown.stdout
    told = nope_interp("--version", cwd=tmp_path)
    assert (told.returncode, told.stdout.strip()) == (0, f"nope-interp {version('nope-interp')}")


# ---------------------------------------------------------------- every field is an option

# For each type of a field: what is written, and what the config holds.
WRITTEN: list[tuple[object, list[str], object]] = [
    (int, ["64"], 64),
    (float, ["0.5"], 0.5),
    (int | None, ["none"], None),
    (float | None, ["0.5"], 0.5),
    (str | None, ["none"], None),
    (tuple[int, int] | None, ["2-8"], (2, 8)),
    (tuple[int, ...] | None, ["0, 2,5"], (0, 2, 5)),
    (tuple[str, ...] | None, ["input,output"], ("input", "output")),
]
# Where not every value of the type makes sense, or another one is wanted beside it.
OWN: dict[str, tuple[list[str], object]] = {
    "transformer.n_heads": (["4"], 4),
    "transformer.d_vocab": (["257"], 257),
    "transformer.positions": (["rotary"], "rotary"),
    "transformer.normalization": (["none"], "none"),
    "transformer.norm_placement": (["post"], "post"),
    "transformer.activation": (["relu"], "relu"),
    "transformer.init": (["orthogonal"], "orthogonal"),
    "transformer.rotary_base": (["500"], 500.0),
    "training.schedule": (["linear"], "linear"),
    "training.precision": (["bfloat16"], "bfloat16"),
    "task": (["parity"], "parity"),
    "dtype": (["float32"], "float32"),
    "positions": (["auto"], "auto"),
    "sites": (["resid_pre, mlp_out"], ("resid_pre", "mlp_out")),
    "ablate": (["all"], "all"),
    "uses": (["stream"], "stream"),
    "prompts": (["a, b", "c"], ("a, b", "c")),
    "name": (["kazemnejad2023"], "kazemnejad2023"),
    "preset": (["tiny"], "tiny"),
    "vocabulary": (["text"], "text"),
    "read_lengths": (["16,64"], (16, 64)),
    "methods": (["probing", "DAS"], ("probing", "DAS")),
    "kinds": (["few dimensions"], ("few dimensions",)),
    # What the paper's experiment has of these is one times the default.
    **{size: (["1"], 1.0) for size in ("width", "depth")},
}


def without_ranges(kind: Any) -> Any:
    """The type of a field, without what its numbers are bound to."""
    if get_origin(kind) is Annotated:
        return get_args(kind)[0]
    if get_origin(kind) in (Union, UnionType):
        first, *others = (without_ranges(one) for one in get_args(kind))
        return reduce(operator.or_, others, first)
    return kind


def written(field: Field) -> tuple[list[str], object]:
    if field.word in OWN:
        return OWN[field.word]
    plain = without_ranges(field.kind)
    found = [(texts, value) for kind, texts, value in WRITTEN if kind == plain]
    assert found, f"no value is known for {field}"
    return found[0]


def asked(command: str, *arguments: str) -> Any:
    """The config that a command line asks for."""
    run = mock.Mock(side_effect=UserError("asked"))
    with (
        mock.patch.object(Experiment, "load", return_value=run),
        tempfile.TemporaryDirectory() as out,
    ):
        assert_one_sentence(nope_interp(command, *arguments, cwd=Path(out)), "asked")
    return run.call_args.args[0]


@pytest.mark.parametrize("left_out", ["history", "ablate"])  # one excludes the other
@pytest.mark.parametrize("command", EXPERIMENTS)
def test_every_field_of_every_config_can_be_set(command: str, left_out: str) -> None:
    kind = EXPERIMENTS[command]
    arguments: list[str] = []
    expected: dict[str, object] = {}
    both = {"history", "ablate"} <= {*fields_of(kind.config)}
    absent = {*kind.meaningless, *([left_out] if both else [])}
    for field in fields_of(kind.config).values():
        if {field.word, field.word.partition(".")[0]} & absent:
            continue
        if field.kind is bool:
            default = False if field.word == "history" else nested_value(kind, field.word)
            arguments.append(f"--{'no-' if default else ''}{field.word.replace('_', '-')}")
            expected[field.word] = not default
            continue
        texts, expected[field.word] = written(field)
        option = [] if field.word == kind.config.argument else [option_of(field.word)]
        arguments += [word for text in texts for word in (*option, text)]
    config = asked(command, *arguments)
    for word, value in expected.items():
        found = config
        for name in word.split("."):
            found = getattr(found, name)
        assert found == value, word
    for name, value in kind.fixed.items():
        assert getattr(config, name) == value


def nested_value(kind: Experiment, word: str) -> object:
    found: Any = kind.config()  # type: ignore[call-arg]
    for name in word.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("command", EXPERIMENTS)
def test_help_tells_every_option_and_what_it_means(tmp_path: Path, command: str) -> None:
    kind = EXPERIMENTS[command]
    shown = nope_interp(command, "--help", cwd=tmp_path)
    assert shown.returncode == 0
    text = " ".join(shown.stdout.split())
    for field in fields_of(kind.config).values():
        assert field.help, f"{field.word} is not explained"
        if {field.word, field.word.partition(".")[0]} & kind.meaningless:
            assert f" {option_of(field.word)} " not in text
        elif field.word != kind.config.argument:
            assert f" {option_of(field.word)} " in text


def test_short_names_set_all_that_they_stand_for_and_a_fields_own_name_wins() -> None:
    config = asked("compare", "--seed", "3", "--seq-len", "32", "--sequences", "50")
    assert (config.seed, config.transformer.seed, config.training.seed) == (3, 3, 3)
    assert (config.seq_len, config.transformer.n_ctx, config.training.seq_len) == (32, 32, 32)
    assert (config.n_fit, config.n_held_out) == (34, 16)
    own = ["--training.seed", "9", "--n-fit", "8", "--transformer.n-ctx", "64"]
    config = asked("compare", *own, "--seed", "3", "--seq-len", "32", "--sequences", "50")
    assert (config.seed, config.transformer.seed, config.training.seed) == (3, 3, 9)
    assert (config.n_fit, config.n_held_out, config.transformer.n_ctx) == (8, 16, 64)
    agreed = asked("compare", "--sequences", "30", "--n-fit", "20", "--n-held-out", "10")
    assert agreed == asked("compare", "--sequences", "30")
    plain = asked("heads", "--positions", "t5", "--init", "uniform", "--steps", "7")
    assert (plain.transformer.positions, plain.transformer.init) == ("t5", "uniform")
    assert plain.training.steps == 7
    assert asked("heads", "gpt2", "--positions", "none").positions == "none"
    assert asked("probe", "--ablate", "learned", "--positions", "learned").ablate == "learned"
    assert not asked("probe").variants


def test_options_lie_over_a_config_file(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        "layers = [0]\ntransformer.d_mlp = 8\nseed = 4\n[training]\nsteps = 5\n"
    )
    file = ["--config", str(tmp_path / "c.toml")]
    config = asked("compare", *file)
    # A word means in a file what it means on the command line.
    assert (config.seed, config.transformer.seed, config.training.steps) == (4, 4, 5)
    over = asked("compare", *file, "--layers", "none", "--transformer.d-mlp", "none", "--seed", "1")
    assert (over.layers, over.transformer.d_mlp, over.training.steps) == (None, None, 5)
    assert (over.seed, over.transformer.seed) == (1, 1)


def test_positions_over_a_config_file_are_the_command_lines(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("transformer.positions = 'learned'\n")
    (tmp_path / "own.toml").write_text("positions = 'learned'\n")
    for file in ("c.toml", "own.toml"):
        for option in ("--positions", "--transformer.positions"):
            config = asked("compare", "--config", str(tmp_path / file), option, "rotary")
            assert (config.positions, config.transformer.positions) == ("auto", "rotary")
    agreed = asked("compare", "--positions", "alibi", "--transformer.positions", "alibi")
    assert agreed.transformer.positions == "alibi"


def test_a_config_file_speaks_the_command_lines_words(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"steps": 6, "seq_len": 32, "training.seq_len": 16}')
    config = asked("compare", "--config", str(tmp_path / "c.json"))
    assert config == asked("compare", "--steps", "6", "--seq-len", "32", "--training.seq-len", "16")
    (tmp_path / "c.json").write_text('{"steps": 0}')
    assert_one_sentence(nope_interp("compare", "--config", "c.json", cwd=tmp_path), "steps is 0")
    # A run folder's own says every field by itself.
    whole = {"config": {"seed": 4, "training": {"steps": 5}}, "environment": {}}
    (tmp_path / "c.json").write_text(json.dumps(whole))
    assert asked("compare", "--config", str(tmp_path / "c.json")).transformer.seed == 0


def test_a_trainings_last_line_is_its_loss_and_its_path(tmp_path: Path, config: str) -> None:
    (tmp_path / "short.txt").write_text("To be or not to be. " * 5)
    run = nope_interp("train", "--config", config, "--json", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    # Independently: the mean surprise at every byte but the first, in text kept from training.
    model, _ = load_model(tmp_path / told["model"])
    source = TextTask().source()
    tokens = source.sequences(64, 16, begin_token=False, split="held_out", seed=0)
    with torch.no_grad():
        surprise = -model(tokens)[:, :-1].log_softmax(-1)
    expected = surprise.gather(-1, tokens[:, 1:, None]).mean()
    assert told["held_out_loss"] == pytest.approx(float(expected), rel=1e-5)
    again = nope_interp("train", "--config", config, cwd=tmp_path)
    bigram = bigram_losses(source.known, tokens, model.cfg.d_vocab).mean()
    assert told["bigram"] == pytest.approx(float(bigram), rel=1e-5)
    loss = f"{told['held_out_loss']:.4f} nats per token, a bigram's {told['bigram']:.4f}"
    assert again.stdout.splitlines()[-1] == f"Model: {told['model']} (held-out loss: {loss})"
    short = nope_interp("train", "--config", config, "--text", "short.txt", cwd=tmp_path)
    assert "(held-out loss: none, its text is too short)" in short.stdout


def list_of_papers(redirection: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """What `reproduce --list` says where a shell leads its output elsewhere."""
    return subprocess.run(
        f"{sys.executable} -m experiments.cli reproduce --list {redirection}",
        shell=True,
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.slow
def test_output_that_lacks_letters_or_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    run = in_a_process("reproduce", "--list", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "kazemnejad2023" in run.stdout
    closed = list_of_papers(">&-", tmp_path)
    assert (closed.returncode, closed.stderr) == (0, "")


def test_configs_as_editors_write_them(tmp_path: Path) -> None:
    """With a mark of their encoding, with other letters in their ending, and with a key twice."""
    (tmp_path / "a.toml").write_text("seq_len = 32\n", encoding="utf-8-sig")
    (tmp_path / "B.TOML").write_text("seq_len = 32\n")
    (tmp_path / "c.json").write_text('{"seq_len": 32}', encoding="utf-8-sig")
    for name in ("a.toml", "B.TOML", "c.json"):
        assert CompareConfig.read(tmp_path / name).seq_len == 32
    (tmp_path / "d.json").write_text('{"seq_len": 32, "training": {"steps": 1, "steps": 2}}')
    run = nope_interp("compare", "--config", "d.json", cwd=tmp_path)
    assert_one_sentence(run, "d.json", "'steps' is given twice")


def test_a_name_that_is_no_utf_8_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """Weights could not be kept there, which training found out at its end."""
    for command in (("train", "--out", "runs\udcff"), ("heads", "model\udcff")):
        run = nope_interp(*command, cwd=tmp_path)
        assert run.returncode == 2
        assert "udcff' is no UTF-8: give another file or folder." in run.stderr
        assert "Traceback" not in run.stderr
    assert not list(tmp_path.iterdir())


def test_a_tilde_that_no_shell_expands_is_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    (home / "swept").mkdir(parents=True)
    here.mkdir()
    (home / "swept" / "sweep.json").write_text("{}")
    (home / "c.json").write_text('{"seq_len": 3}')
    (home / "s.yaml").write_text("experiment: cook\ngrid: {seed: [1, 2]}")
    monkeypatch.setenv("HOME", str(home))
    for arguments, said in [
        (("report", "~/swept"), f"'{home}/swept' is a sweep"),
        (("compare", "--config=~/c.json"), "seq_len is 3"),
        (("compare", "--out=~/c.json"), f"{home}/c.json"),
        (("sweep", "~/s.yaml"), "unknown experiment 'cook'"),
        (("report", "~nobody-of-this-name/run"), "begins with a user who has no home here"),
    ]:
        assert_one_sentence(nope_interp(*arguments, cwd=here), said)
    assert not list(here.iterdir())
    with pytest.raises(UserError, match="seq_len is 3"):
        CompareConfig.read("~/c.json")
    with pytest.raises(UserError, match="unknown experiment 'cook'"):
        SweepConfig.read("~/s.yaml")


@pytest.mark.parametrize(
    ("command", "word", "value"),
    [("compare", "steps", 5), ("probe", "training.steps", 5), ("heads", "transformer.n_layers", 2)],
)
def test_how_a_trained_model_is_trained_is_no_question(
    tmp_path: Path, command: str, word: str, value: int
) -> None:
    told = f"{word} says how to train a model, but"
    (tmp_path / "c.json").write_text(json.dumps({"model": MODEL, word: value}))
    assert_one_sentence(nope_interp(command, "--config", "c.json", cwd=tmp_path), told)
    of_cells = {"experiment": command, "base": {"model": MODEL}, "grid": {word: [value, 3]}}
    (tmp_path / "s.yaml").write_text(json.dumps(of_cells))
    assert_one_sentence(nope_interp("sweep", "s.yaml", cwd=tmp_path), "cell 1", told)


def test_a_word_that_is_said_again_takes_back_what_the_files_word_set(tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text(json.dumps({"quick": True, "seed": 3}))
    of_file, plain, slow = (
        _configured(EXPERIMENTS["compare"], path, asked)
        for path, asked in (
            (tmp_path / "q.json", {}),
            (None, {"seed": 3}),
            (tmp_path / "q.json", {"quick": False}),
        )
    )
    assert slow == plain != of_file


def test_the_folder_of_a_sweep_is_no_run_and_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "sweep-seeds").mkdir()
    (tmp_path / "sweep-seeds" / "sweep.json").write_text("{}")
    run = nope_interp("report", "sweep-seeds", cwd=tmp_path)
    assert_one_sentence(run)
    assert "'sweep-seeds' is a sweep: give the folder of one of its cells" in run.stderr


@pytest.mark.parametrize("columns", ["0", "1", "-3", "wide"])
def test_a_width_in_which_nothing_can_be_read_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    usual = nope_interp("reproduce", "--list", cwd=tmp_path).stdout
    monkeypatch.setenv("COLUMNS", columns)
    assert nope_interp("reproduce", "--list", cwd=tmp_path).stdout == usual
    monkeypatch.setenv("COLUMNS", "60")
    narrow = nope_interp("reproduce", "--list", cwd=tmp_path).stdout.splitlines()
    assert max(map(len, narrow[:9])) <= 60


def test_a_file_is_told_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    run = nope_interp("heads", "model.safetensors/", cwd=tmp_path)
    told = "'model.safetensors/' is a file: leave the last / out."
    assert (run.returncode, run.stderr) == (2, f"nope-interp: {told}\n")


def test_a_run_of_no_experiment_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "info.json").write_text(json.dumps({"experiment": [1], "format": FORMAT}))
    run = nope_interp("report", str(tmp_path), cwd=tmp_path)
    assert run.returncode == 2
    assert "unknown experiment '[1]'" in run.stderr


def test_an_output_whose_disk_is_full_is_one_sentence(tmp_path: Path) -> None:
    run = list_of_papers("> /dev/full", tmp_path)
    assert run.returncode == 2
    assert run.stderr == (
        "nope-interp: the output cannot be written (its disk is full): send it elsewhere.\n"
    )
