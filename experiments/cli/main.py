"""`nope-interp`: a typed door to what Python offers as well.

Nothing heavy is imported until a command needs it, so that `--help` answers at once.
"""

import errno
import io
import re
import sys
import warnings
from contextlib import suppress
from typing import Annotated, Any, TextIO

import typer

from experiments.cli.commands import add_commands
from experiments.sweeps.registry import EXPERIMENTS
from nope_interp.errors import UserError, nearest_name
from probes.errors import ProbeError

_INTERRUPTED = "interrupted: what was finished is kept, and the same command goes on from there."
_OUT_OF_MEMORY = "out of memory: use fewer or shorter sequences, or a smaller model."

app = typer.Typer(
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut long names of options short
)
add_commands(app)


def _version(asked: bool) -> bool:
    if asked:
        from importlib import metadata

        print(f"nope-interp {metadata.version('nope-interp')}")
        raise typer.Exit()
    return asked


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """How does a transformer without positional encodings know where its tokens stand?"""


def main() -> None:
    """Run the command line. What a user can put right is one sentence and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # what its encoding lacks
    warnings.showwarning = _Told()
    if len(sys.argv) == 1:
        _fail(f"choose a command: {', '.join(EXPERIMENTS)}, explore, sweep or report; see --help.")
    try:
        # typer returns its exits as codes when it does not stand alone.
        code = app(standalone_mode=False)
    except (UserError, ProbeError) as error:
        _fail(str(error))
    except typer.TyperException as error:
        _fail(_said(error))
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
        if error.filename is None and error.errno == errno.ENOSPC:
            _fail("the output cannot be written (its disk is full): send it elsewhere.")
        _fail(f"{error.strerror or error} ({error.filename or 'no file named'}).")
    # typer turns Ctrl-C into this code.
    if code == 130:
        _fail(_INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _said(error: Any) -> str:
    """What typer says of wrong words; of an unknown option, the nearest one of that command."""
    # Its own classes for wrong options have these; the public base does not say so.
    option, ctx = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if option is None or ctx is None:
        said: str = error.format_message()
        unmended = said.startswith("No such command") and not said.endswith("?")
        return f"{said} See nope-interp --help." if unmended else said
    known = [name for one in ctx.command.params for name in one.opts if name.startswith("--")]
    asked = str(option).lstrip("-").replace("_", "-")
    nearest = nearest_name(asked, [name.removeprefix("--") for name in known], closeness=0.7)
    command = "nope-interp" if ctx.parent is None else f"nope-interp {ctx.info_name}"
    meant = f"did you mean --{nearest}" if nearest else f"see {command} --help"
    return f"there is no option {option}: {meant}{'?' if nearest else '.'}"


class _Told:
    """Says what a user is warned of in one line, each once: where in the code it arose helps nobody
    here. What is for developers goes on as it was.

    Workers have processes, and so warnings, of their own.
    """

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._as_it_was = warnings.showwarning

    def __call__(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        sentence = " ".join(str(message).split())
        if not issubclass(category, UserWarning):
            self._as_it_was(message, category, filename, lineno, file, line)
        elif sentence not in self._said:
            self._said.add(sentence)
            with suppress(OSError):  # nobody listens
                print(f"nope-interp: warning: {sentence}", file=sys.stderr)


def _fail(sentence: str) -> None:
    print(f"nope-interp: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(2)
