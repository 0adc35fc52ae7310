"""`nope-interp explore`: the live page. Nothing heavy is imported before the command runs."""

import os
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.cli.options import given, parameters, path_of, taking, whole_number
from experiments.cli.settings import RUNS, Device
from experiments.explore.port import check_port
from experiments.variants.checks import check_device_for, check_files
from experiments.variants.config import ProbingConfig
from experiments.variants.embedded import EMBEDDED_MODEL
from experiments.variants.words import asked, fields_of

_NO_WINDOW = "No browser could be opened here: open the address in one on this machine."

_LOADED_WITH = frozenset({"revision", "dtype", "positions", "text"})
_WORDS = parameters(ProbingConfig, frozenset(fields_of(ProbingConfig)) - _LOADED_WITH)


@taking(_WORDS)
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
    device: Device = "cpu",
    out: Annotated[
        Path,
        typer.Option(metavar="FOLDER", parser=path_of, help="Where finished runs of heads lie."),
    ] = RUNS,
    **values: Any,
) -> None:
    """Type prompts on a live page, see heads, take positions away."""
    name = EMBEDDED_MODEL if model is None else model
    config = asked(ProbingConfig, name, given(_WORDS, values))
    check_port(port or 0)
    check_device_for(config, device)
    check_files(config)
    from experiments.explore.serving import opened_page

    how = {word: getattr(config, word) for word in _WORDS}
    page = opened_page(name, port=port or 0, out=out, framed=False, device=device, **how)
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
