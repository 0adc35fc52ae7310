"""Options that are no part of what a run is asked: where it runs, and what is shown of it."""

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.options import path_of, whole_number

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        parser=path_of,
        help="TOML or JSON file, or a run folder's config.json.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="DEVICE",
        help="A torch device: cpu, cuda, cuda:1, mps; auto spreads a pretrained model over all.",
    ),
]
Shards = Annotated[
    int,
    typer.Option(
        metavar="N",
        parser=whole_number,
        help="Workers that share the sequences, each with a model of its own.",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Ray cluster to run on, with a shared --out."),
]
List = Annotated[
    bool, typer.Option("--list", help="Every paper, or every claim of one, and what runs say.")
]
Out = Annotated[
    Path,
    typer.Option(metavar="FOLDER", parser=path_of, help="Folder that run folders are made in."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Draw no progress bars.")]

RUNS = Path("runs")
