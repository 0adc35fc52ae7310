"""`nope-interp`: every command is three lines of Python behind a typed door.

Nothing heavy is imported until a command needs it, so that `--help` answers at once.
"""

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.compare_config import CompareConfig
from nope_interp.errors import UserError
from probes.errors import ProbeError

_INTERRUPTED = "interrupted: what was finished is kept, and the same command goes on from there."
_OUT_OF_MEMORY = "out of memory: use fewer or shorter sequences, or a smaller model."

app = typer.Typer(
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="How does a transformer without positional encodings know where it is?",
)

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME_OR_PATH",
        help="Hub name, Hugging Face folder, GGUF file, or a model.safetensors of ours. "
        "Without it a small model is trained first.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="TOML or JSON file, or a run folder's config.json."),
]
Task = Annotated[str | None, typer.Option(help="text or reversal.")]
Text = Annotated[str | None, typer.Option(help="UTF-8 file to read instead of Python's manual.")]
Positions = Annotated[
    str | None,
    typer.Option(help="Encoding of the model to train: none, learned, sinusoidal, rotary, ..."),
]
Init = Annotated[str | None, typer.Option(help="Initialisation of the model to train.")]
Steps = Annotated[int | None, typer.Option(help="Training steps.")]
SeqLen = Annotated[int | None, typer.Option(help="Tokens in a sequence, begin token included.")]
Sequences = Annotated[
    int | None,
    typer.Option(help="Sequences in all: two thirds to fit probes on, one third held out."),
]
Layers = Annotated[str | None, typer.Option(help="Comma-separated blocks: 0,2,5. All by default.")]
Sites = Annotated[str | None, typer.Option(help="Comma-separated: resid_post,attn_out,...")]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random.")]
Device = Annotated[str, typer.Option(help="A torch device: cpu, cuda, cuda:1, mps.")]
Out = Annotated[Path, typer.Option(help="Folder that run folders are made in.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command()
def compare(
    model: Model = None,
    config: Config = None,
    task: Task = None,
    text: Text = None,
    positions: Positions = None,
    init: Init = None,
    steps: Steps = None,
    seq_len: SeqLen = None,
    sequences: Sequences = None,
    layers: Layers = None,
    sites: Sites = None,
    seed: Seed = None,
    device: Device = "cpu",
    out: Out = Path("runs"),
    as_json: Json = False,
) -> None:
    """Read position out of a model and its twins: which hypothesis explains it?"""
    chosen = _compare_config(
        config,
        {"model": model, "task": task, "text": text, "seq_len": seq_len, "seed": seed},
        {"positions": positions, "init": init, "n_ctx": seq_len, "seed": seed},
        {"steps": steps, "seq_len": seq_len, "seed": seed},
        {"sequences": sequences, "layers": layers, "sites": sites}
        | {"positions": positions, "init": init, "steps": steps},
    )
    _run_comparison(chosen, device, out, as_json)


@app.command()
def probe(
    model: Model = None,
    config: Config = None,
    task: Task = None,
    text: Text = None,
    seq_len: SeqLen = None,
    sequences: Sequences = None,
    layers: Layers = None,
    sites: Sites = None,
    seed: Seed = None,
    device: Device = "cpu",
    out: Out = Path("runs"),
    as_json: Json = False,
) -> None:
    """Read position out of one model, without its twins."""
    chosen = _compare_config(
        config,
        {"model": model, "task": task, "text": text, "seq_len": seq_len, "seed": seed}
        | {"twins": False},
        {"n_ctx": seq_len, "seed": seed},
        {"seq_len": seq_len, "seed": seed},
        {"sequences": sequences, "layers": layers, "sites": sites},
    )
    _run_comparison(chosen, device, out, as_json)


@app.command()
def train(
    config: Config = None,
    task: Task = None,
    text: Text = None,
    positions: Positions = None,
    init: Init = None,
    steps: Steps = None,
    seq_len: SeqLen = None,
    seed: Seed = None,
    device: Device = "cpu",
    out: Out = Path("runs"),
    as_json: Json = False,
) -> None:
    """Train a small model; a killed training, started again, goes on to the same bits."""
    chosen = _compare_config(
        config,
        {"task": task, "text": text, "seq_len": seq_len, "seed": seed},
        {"positions": positions, "init": init, "n_ctx": seq_len, "seed": seed},
        {"steps": steps, "seq_len": seq_len, "seed": seed},
        {},
    )
    from experiments.train import train as run

    path = run(chosen, out=out, device=device)
    if as_json:
        _print_json({"model": str(path)})
    else:
        print(f"Model: {path}")


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A finished run folder.")],
    to: Annotated[Path | None, typer.Option(help="File to write instead of report.html.")] = None,
    as_json: Json = False,
) -> None:
    """Draw the report of a finished run again from its measurements."""
    from experiments.hypotheses import Comparison

    path = Comparison.load(folder).write_report(to)
    if as_json:
        _print_json({"report": str(path)})
    else:
        print(f"Report: {path}")


def main() -> None:
    """Run the command line. What a user can put right is one sentence and exit code 2."""
    try:
        # typer returns its exits as codes when it does not stand alone.
        code = app(standalone_mode=False)
    except (UserError, ProbeError) as error:
        _fail(str(error))
    except typer.TyperException as error:
        # Its own classes for wrong options all have this method; the public base does not say so.
        said = getattr(error, "format_message", error.__str__)()
        _fail(said or "choose a command: compare, probe, train or report; --help explains them.")
    except (KeyboardInterrupt, typer.Abort):
        _fail(_INTERRUPTED)
    except MemoryError:
        _fail(_OUT_OF_MEMORY)
    except RuntimeError as error:
        # What torch's allocators say, on every device.
        if not re.search("allocate memory|out of memory", str(error)):
            raise
        _fail(_OUT_OF_MEMORY)
    except OSError as error:
        _fail(f"{error.strerror or error} ({error.filename or 'no file named'}).")
    # typer turns Ctrl-C into this code.
    if code == 130:
        _fail(_INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _run_comparison(config: CompareConfig, device: str, out: Path, as_json: bool) -> None:
    from experiments.hypotheses import compare as run

    comparison = run(config, out=out, device=device)
    report = comparison.folder / "report.html"
    if as_json:
        verdicts = [dataclasses.asdict(verdict) for verdict in comparison.verdicts]
        _print_json(
            {
                "headline": comparison.headline,
                "mechanism": comparison.mechanism,
                "report": str(report),
                "verdicts": verdicts,
            }
        )
        return
    for verdict in comparison.verdicts:
        print(verdict.sentence)
    if comparison.mechanism is not None:
        print(f"\n{comparison.mechanism}")
    print(f"\n{comparison.headline}\nReport: {report}")


def _fail(sentence: str) -> None:
    print(f"nope-interp: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(2)


def _compare_config(
    path: Path | None,
    own: dict[str, Any],
    transformer: dict[str, Any],
    training: dict[str, Any],
    reading: dict[str, Any],
) -> CompareConfig:
    """The config file, or the defaults, with the given options laid over it."""
    to_train = [f"--{name}" for name in ("positions", "init", "steps") if reading.get(name)]
    if own.get("model") is not None and to_train:
        raise UserError(
            f"{to_train[0]} describes a model to train, but --model names one that is: "
            "leave one out."
        )
    base = (CompareConfig() if path is None else CompareConfig.read(path)).to_dict()
    sequences, layers, sites = (reading.get(name) for name in ("sequences", "layers", "sites"))
    if sequences is not None:
        own |= {"n_fit": sequences - sequences // 3, "n_held_out": sequences // 3}
    if layers is not None:
        own["layers"] = [_layer(layer) for layer in layers.split(",")]
    if sites is not None:
        own["sites"] = [site.strip() for site in sites.split(",")]
    values = base | _given(own)
    values["transformer"] = base["transformer"] | _given(transformer)
    values["training"] = base["training"] | _given(training)
    return CompareConfig.from_dict(values)


def _layer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(f"--layers holds {text!r}: give numbers such as 0,2,5.") from None


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


if __name__ == "__main__":
    main()
