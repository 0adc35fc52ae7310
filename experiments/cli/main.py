"""`nope-interp`: every command is three lines of Python behind a typed door.

Nothing heavy is imported until a command needs it, so that `--help` answers at once.
"""

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from experiments.comparison.config import CompareConfig
from experiments.emergence.config import EmergenceConfig
from experiments.heads.config import HeadsConfig
from experiments.papers.config import ReproduceConfig
from experiments.variants.config import ExperimentConfig
from nope_interp.errors import UserError
from probes.errors import ProbeError

Chosen = TypeVar("Chosen", bound=ExperimentConfig)
Options = dict[str, Any]

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
Task = Annotated[str | None, typer.Option(help="text, reversal, addition, copy-cmc, scan, ...")]
Ablate = Annotated[
    str | None,
    typer.Option(
        metavar="POSITIONS",
        help="Positions to take away: all, learned, sinusoidal, rotary, alibi or t5, with a "
        "condition such as rotary:shuffled or rotary:keep_highest=0.25.",
    ),
]
Text = Annotated[str | None, typer.Option(help="UTF-8 file to read instead of Python's manual.")]
Lengths = Annotated[
    str | None,
    typer.Option(
        metavar="SHORTEST-LONGEST", help="Of the task's examples, such as 2-8; else the paper's."
    ),
]
Scratchpad = Annotated[
    str | None,
    typer.Option(
        help="Parts of the task's steps to write down: input,computation,output,variables,remaining"
    ),
]
Positions = Annotated[
    str | None,
    typer.Option(help="Encoding of the model to train: none, learned, sinusoidal, rotary, ..."),
]
Init = Annotated[str | None, typer.Option(help="Initialisation of the model to train.")]
Steps = Annotated[int | None, typer.Option(help="Training steps.")]
SeqLen = Annotated[
    int | None, typer.Option(min=8, help="Tokens in a sequence, begin token included.")
]
Sequences = Annotated[
    int | None,
    typer.Option(help="Sequences in all: two thirds to fit probes on, one third held out."),
]
Layers = Annotated[str | None, typer.Option(help="Comma-separated blocks: 0,2,5. All by default.")]
Sites = Annotated[str | None, typer.Option(help="Comma-separated: resid_post,attn_out,...")]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub name.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; pretrained only.")]
Device = Annotated[
    str,
    typer.Option(
        help="A torch device: cpu, cuda, cuda:1, mps; auto spreads a pretrained model over all."
    ),
]
Shards = Annotated[
    int, typer.Option(help="Workers that share the sequences, each with a model of its own.")
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="Ray cluster that the workers run on, with a shared --out."
    ),
]
Out = Annotated[Path, typer.Option(help="Folder that run folders are made in.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command()
def compare(
    model: Model = None,
    config: Config = None,
    ablate: Ablate = None,
    uses: Annotated[
        str | None,
        typer.Option(
            help="Take position codes away to see which are used: no, stream or sites (slower)."
        ),
    ] = None,
    revision: Revision = None,
    dtype: Dtype = None,
    task: Task = None,
    text: Text = None,
    lengths: Lengths = None,
    scratchpad: Scratchpad = None,
    positions: Positions = None,
    init: Init = None,
    steps: Steps = None,
    seq_len: SeqLen = None,
    sequences: Sequences = None,
    layers: Layers = None,
    sites: Sites = None,
    seed: Seed = None,
    history: Annotated[
        bool,
        typer.Option(
            "--history", help="Keep and read the model after 0, 1, 2, 4, ... training steps, too."
        ),
    ] = False,
    device: Device = "cpu",
    shards: Shards = 1,
    ray: Ray = None,
    out: Out = Path("runs"),
    as_json: Json = False,
) -> None:
    """Read position out of a model and its twins: which hypothesis explains it?"""
    source = {"model": model, "revision": revision, "dtype": dtype}
    chosen = _chosen(
        CompareConfig,
        config,
        source
        | _asked_task(task, text, lengths, scratchpad)
        | _sizes(seq_len, seed)
        | _reading(sequences, layers, sites)
        | {"history": history or None, "ablate": ablate, "uses": uses},
        _trained(positions, init, steps, seq_len, seed),
    )
    _run_comparison(chosen, device, shards, ray, out, as_json)


@app.command()
def probe(
    model: Model = None,
    config: Config = None,
    revision: Revision = None,
    dtype: Dtype = None,
    task: Task = None,
    text: Text = None,
    lengths: Lengths = None,
    scratchpad: Scratchpad = None,
    seq_len: SeqLen = None,
    sequences: Sequences = None,
    layers: Layers = None,
    sites: Sites = None,
    seed: Seed = None,
    device: Device = "cpu",
    shards: Shards = 1,
    ray: Ray = None,
    out: Out = Path("runs"),
    as_json: Json = False,
) -> None:
    """Read position out of one model, without its twins."""
    source = {"model": model, "revision": revision, "dtype": dtype}
    chosen = _chosen(
        CompareConfig,
        config,
        source
        | {"twins": False}
        | _asked_task(task, text, lengths, scratchpad)
        | _sizes(seq_len, seed)
        | _reading(sequences, layers, sites),
        _trained(None, None, None, seq_len, seed),
    )
    _run_comparison(chosen, device, shards, ray, out, as_json)


@app.command()
def heads(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME_OR_PATH",
            help="Hub name, Hugging Face folder, GGUF file, or a model.safetensors of ours. "
            "Without it a small model is trained first.",
        ),
    ] = None,
    ablate: Ablate = None,
    ablate_layers: Annotated[
        str | None, typer.Option(help="Blocks to ablate in: 0,2,5. All by default.")
    ] = None,
    ablate_heads: Annotated[
        str | None, typer.Option(help="Heads to ablate in those blocks. All by default.")
    ] = None,
    lift_window: Annotated[
        bool, typer.Option("--lift-window", help="Let sliding-window layers see all, too.")
    ] = False,
    untrained: Annotated[
        bool, typer.Option("--random-init", help="Classify the untrained twin's heads instead.")
    ] = False,
    prompt: Annotated[
        list[str] | None, typer.Option(help="Text to show attention on; can be given again.")
    ] = None,
    config: Config = None,
    revision: Revision = None,
    dtype: Dtype = None,
    task: Task = None,
    text: Text = None,
    lengths: Lengths = None,
    scratchpad: Scratchpad = None,
    positions: Positions = None,
    init: Init = None,
    steps: Steps = None,
    seq_len: SeqLen = None,
    sequences: Annotated[int | None, typer.Option(help="Sequences of text to read.")] = None,
    seed: Seed = None,
    device: Device = "cpu",
    shards: Shards = 1,
    ray: Ray = None,
    out: Out = Path("runs"),
    as_json: Json = False,
) -> None:
    """Classify a model's attention heads, with its positions intact and ablated."""
    source = {"model": model, "revision": revision, "dtype": dtype}
    own = {
        "ablate": ablate,
        "ablate_layers": _numbers("--ablate-layers", ablate_layers),
        "ablate_heads": _numbers("--ablate-heads", ablate_heads),
        "lift_window": lift_window or None,
        "random_init": untrained or None,
        "prompts": prompt or None,
        "n_sequences": sequences,
    }
    chosen = _chosen(
        HeadsConfig,
        config,
        source | own | _asked_task(task, text, lengths, scratchpad) | _sizes(seq_len, seed),
        _trained(positions, init, steps, seq_len, seed),
    )
    from experiments.heads.classify import classify_heads

    found = classify_heads(chosen, out=out, device=device, shards=shards, ray=ray)
    report = found.folder / "report.html"
    if as_json:
        table = json.loads(found.heads.to_json(orient="records"))
        _print_json({"headline": found.headline, "report": str(report), "heads": table})
    else:
        print(f"{found.markdown()}\n{found.headline}\nReport: {report}")


@app.command()
def emergence(
    config: Config = None,
    task: Task = None,
    text: Text = None,
    lengths: Lengths = None,
    scratchpad: Scratchpad = None,
    positions: Positions = None,
    init: Init = None,
    steps: Steps = None,
    seq_len: SeqLen = None,
    seeds: Annotated[int | None, typer.Option(help="Trainings to watch.")] = None,
    seed: Annotated[int | None, typer.Option(help="First seed.")] = None,
    out: Out = Path("runs"),
    as_json: Json = False,
) -> None:
    """Watch small models train: when does each position code appear?"""
    chosen = _chosen(
        EmergenceConfig,
        config,
        {"n_seeds": seeds} | _asked_task(task, text, lengths, scratchpad) | _sizes(seq_len, seed),
        _trained(positions, init, steps, seq_len, seed),
    )
    from experiments.emergence.watch import watch_emergence as run

    found = run(chosen, out=out)
    report = found.folder / "report.html"
    if as_json:
        onsets = json.loads(found.onsets.to_json(orient="index"))
        _print_json({"headline": found.headline, "report": str(report), "onsets": onsets})
    else:
        print(f"{found.markdown()}\n{found.headline}\nReport: {report}")


@app.command()
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(metavar="PAPER", help="chi2023, zuo2025, ...; --list names them all."),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Every paper and claim, and what finished runs say.")
    ] = False,
    seeds: Annotated[int | None, typer.Option(help="Draws of weights and data.")] = None,
    width: Annotated[float, typer.Option(help="Factor on the default width.")] = 1.0,
    length: Annotated[float, typer.Option(help="Factor on the default length.")] = 1.0,
    depth: Annotated[float, typer.Option(help="Factor on the default number of layers.")] = 1.0,
    training: Annotated[float, typer.Option(help="Factor on the training steps.")] = 1.0,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Train models too: tiny, for kazemnejad2023 (about an hour on two cores) and "
            "zuo2025 (half an hour); small and paper, for kazemnejad2023."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="First seed.")] = 0,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME_OR_PATH", help="One more model to read: chi2023, barbero2024."),
    ] = None,
    text: Text = None,
    device: Device = "cpu",
    out: Out = Path("runs"),
    as_json: Json = False,
) -> None:
    """Hold a paper's claims against our own measurements."""
    if listed == (name is not None):
        raise UserError("reproduce takes one paper's name, or --list to see what there is.")
    if name is None:
        _list_claims(out, as_json)
        return
    chosen = ReproduceConfig(name, seeds, width, length, depth, training, preset, seed, model, text)
    from experiments.papers.reproduce import reproduce as run
    from experiments.results.markdown import markdown_table

    found = run(chosen, out=out, device=device)
    report = found.folder / "report.html"
    if as_json:
        table = json.loads(found.claims.to_json(orient="records"))
        _print_json({"headline": found.headline, "report": str(report), "claims": table})
    else:
        print(f"{markdown_table(found.claims)}\n{found.headline}\nReport: {report}")


def _list_claims(out: Path, as_json: bool) -> None:
    from experiments.papers.reproduce import listing
    from experiments.results.markdown import markdown_table

    table = listing(out)
    if as_json:
        _print_json(json.loads(table.to_json(orient="records")))
    else:
        print(markdown_table(table))


@app.command()
def train(
    config: Config = None,
    task: Task = None,
    text: Text = None,
    lengths: Lengths = None,
    scratchpad: Scratchpad = None,
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
    chosen = _chosen(
        CompareConfig,
        config,
        _asked_task(task, text, lengths, scratchpad) | _sizes(seq_len, seed),
        _trained(positions, init, steps, seq_len, seed),
    )
    from experiments.variants.train import train as run

    path = run(chosen, out=out, device=device)
    if as_json:
        _print_json({"model": str(path)})
    else:
        print(f"Model: {path}")


@app.command()
def sweep(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.yaml", help="An experiment, and a grid or list of it.")
    ],
    jobs: Annotated[
        int | None, typer.Option(help="Cells at once; by default one for each core.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Ray cluster to run on, with a shared --out."),
    ] = None,
    gpus_per_cell: Annotated[float, typer.Option(help="GPUs that Ray keeps for each cell.")] = 0.0,
    device: Device = "cpu",
    out: Out = Path("runs"),
    as_json: Json = False,
) -> None:
    """Run an experiment once for each cell of a grid; started again, it does what is left."""
    from experiments.sweeps.run import run_sweep

    swept = run_sweep(file, out=out, jobs=jobs, ray=ray, gpus_per_cell=gpus_per_cell, device=device)
    failed = swept.failed()
    if as_json:
        _print_json({"sweep": str(swept.folder), "cells": swept.summary()})
    else:
        done = len(swept.cells) - len(failed)
        print(f"{done} of {len(swept.cells)} cells are done.\nSweep: {swept.folder}")
    if failed:
        first = failed[0]
        raise UserError(
            f"{len(failed)} of {len(swept.cells)} cells failed, {first.label} first: "
            f"{str(swept.log(first))!r} says why."
        )


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A finished run folder.")],
    to: Annotated[Path | None, typer.Option(help="File to write instead of report.html.")] = None,
    as_json: Json = False,
) -> None:
    """Draw the report of a finished run again from its measurements."""
    from experiments.sweeps.runs import load_run

    path = load_run(folder).write_report(to)
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
        _fail(
            said
            or "choose a command: compare, heads, probe, emergence, reproduce, sweep, train or "
            "report; see --help."
        )
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


def _run_comparison(
    config: CompareConfig, device: str, shards: int, ray: str | None, out: Path, as_json: bool
) -> None:
    from experiments.comparison.compare import compare as run

    comparison = run(config, out=out, device=device, shards=shards, ray=ray)
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


def _chosen(
    kind: type[Chosen],
    path: Path | None,
    own: Options,
    trained: tuple[Options, Options],
) -> Chosen:
    """The config file, or the defaults, with the given options laid over it."""
    transformer, training = trained
    to_train = [name for name in ("positions", "init") if transformer[name] is not None]
    to_train += ["steps"] if training["steps"] is not None else []
    if own.get("model") is not None and to_train:
        raise UserError(
            f"--{to_train[0]} describes a model to train, but {own['model']!r} is one that is: "
            "leave one out."
        )
    base = (kind() if path is None else kind.read(path)).to_dict()
    values = base | _given(own)
    values["transformer"] = base["transformer"] | _given(transformer)
    values["training"] = base["training"] | _given(training)
    return kind.from_dict(values)


def _asked_task(
    task: str | None, text: str | None, lengths: str | None, scratchpad: str | None
) -> Options:
    """What a model is trained on and read on."""
    try:
        ends = None if lengths is None else [int(end) for end in lengths.split("-")]
    except ValueError:
        raise UserError(
            f"--lengths holds {lengths!r}: give the shortest and the longest, such as 2-8."
        ) from None
    return {"task": task, "text": text, "lengths": ends, "scratchpad": _names(scratchpad)}


def _sizes(seq_len: int | None, seed: int | None) -> Options:
    return {"seq_len": seq_len, "seed": seed}


def _trained(
    positions: str | None,
    init: str | None,
    steps: int | None,
    seq_len: int | None,
    seed: int | None,
) -> tuple[Options, Options]:
    """What the options say of the model to train, and of its training."""
    return (
        {"positions": positions, "init": init, "n_ctx": seq_len, "seed": seed},
        {"steps": steps, "seq_len": seq_len, "seed": seed},
    )


def _reading(sequences: int | None, layers: str | None, sites: str | None) -> Options:
    """Where `compare` and `probe` read, and how much."""
    least = 3 * CompareConfig.least["n_held_out"]
    if sequences is not None and sequences < least:
        raise UserError(f"--sequences is {sequences}: use at least {least}.")
    return {
        "n_fit": None if sequences is None else sequences - sequences // 3,
        "n_held_out": None if sequences is None else sequences // 3,
        "layers": _numbers("--layers", layers),
        "sites": _names(sites),
    }


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _numbers(option: str, text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(number) for number in text.split(",")]
    except ValueError:
        raise UserError(f"{option} holds {text!r}: give numbers such as 0,2,5.") from None


def _given(options: Options) -> Options:
    return {name: value for name, value in options.items() if value is not None}


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))
