"""`nope-interp explore`: the live page. Nothing heavy is imported before the command runs."""

import os
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.options import whole_number
from experiments.cli.settings import RUNS, Device
from nope_interp.devices import check_device_name

_NO_WINDOW = "No browser could be opened here: open the address in one on this machine."


def explore(
    model: Annotated[
        str | None,
        typer.Argument(metavar="NAME_OR_PATH", help="Any model that heads reads; none: our own."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N", parser=whole_number, help="Port of this machine; by default a free one."
        ),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Open no browser.")] = False,
    text: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Text to read instead of Python's documentation."),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Branch, tag or commit of a hub name.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(metavar="TYPE", help="float32, bfloat16 or float16.")
    ] = "float32",
    positions: Annotated[
        str, typer.Option(metavar="NAME", help="What a pretrained model was trained with.")
    ] = "auto",
    device: Device = "cpu",
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where finished runs of heads lie.")
    ] = RUNS,
) -> None:
    """Type prompts on a live page, see heads, take positions away."""
    if device != "auto":
        check_device_name(device)
    from experiments.explore.serving import opened_page
    from experiments.variants.embedded import EMBEDDED_MODEL

    page = opened_page(
        EMBEDDED_MODEL if model is None else model,
        port=port or 0,
        out=out,
        framed=False,
        text=text,
        revision=revision,
        dtype=dtype,
        positions=positions,
        device=device,
    )
    print(f"Explore: {page.url}\nIt is served on this machine only. Ctrl-C ends it.", flush=True)
    if not no_open and not _opened(page.url):
        print(_NO_WINDOW, flush=True)
    with suppress(KeyboardInterrupt):
        page.run()
    print("Ended.", flush=True)


def _opened(url: str) -> bool:
    """Whether a window shows the page; without a display a browser would take the terminal."""
    displays = ("DISPLAY", "WAYLAND_DISPLAY")
    if sys.platform == "linux" and not any(map(os.environ.get, displays)):
        return False
    try:
        return webbrowser.open(url)
    except (OSError, webbrowser.Error):
        return False
