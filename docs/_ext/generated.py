"""Pages that are written from the code: commands and their options, and what users import."""

import inspect
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from typer.models import ArgumentInfo

from experiments.cli.explore import explore
from experiments.cli.options import option_of, parameters
from experiments.sweeps.registry import EXPERIMENTS, Experiment
from experiments.variants.config import ProbingConfig

_DOORS = ("nope_interp", "experiments", "probes")


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("builder-inited", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "generated"
    folder.mkdir(exist_ok=True)
    pages = {"options.md": options_page(), "api.md": api_page()}
    for name, text in pages.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def options_page() -> str:
    """Every command, with each of its options."""
    parts = [
        "# Command line and configs",
        "",
        "Every field of a config is an option, a word of a `--config` file, a key of a sweep and "
        "an argument in Python. `--transformer.n-layers 6` on the command line is "
        "`transformer.n_layers` elsewhere.",
        "",
        "These options stand on the command line alone: `--config FILE`, `--device`, `--shards`, "
        "`--ray`, `--out`, `--json` and `--quiet`.",
    ]
    for experiment in EXPERIMENTS.values():
        parts += ["", *_command(experiment)]
    parts += ["", *_explore()]
    return "\n".join(parts) + "\n"


def _command(experiment: Experiment) -> Iterator[str]:
    yield f"## `nope-interp {experiment.name}`"
    yield ""
    yield experiment.summary
    yield ""
    rows = []
    for word, parameter in parameters(experiment.config, experiment.meaningless).items():
        (option,) = parameter.annotation.__metadata__
        name = f"`{option_of(word)}`"
        if word == experiment.config.argument:
            name = f"`{option.metavar}`"
        elif option.metavar:
            name += f" `{option.metavar}`"
        rows.append((name, option.help))
    yield from _table(("option", "meaning"), rows)


def _explore() -> Iterator[str]:
    """The command of the live page."""
    yield "## `nope-interp explore`"
    yield ""
    yield inspect.getdoc(explore) or ""
    yield ""
    rows = []
    for name, parameter in inspect.signature(explore).parameters.items():
        (option,) = parameter.annotation.__metadata__
        word = option.metavar if isinstance(option, ArgumentInfo) else option_of(name)
        default = parameter.default or getattr(ProbingConfig, name, None)
        usual = "" if default in (None, False) else f" Default: {default}."
        rows.append((f"`{word}`", f"{option.help}{usual}"))
    yield from _table(("option", "meaning"), rows)


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    header = list(header)
    for row in (header, ["---"] * len(header), *rows):
        cells = (str(cell).replace("|", r"\|").replace("\n", " ") for cell in row)
        yield f"| {' | '.join(cells)} |"


def _inherits_ours_alone(found: Any) -> bool:
    """Whether a class has members of other classes of these packages, and of no library's."""
    bases = found.__mro__[1:-1] if inspect.isclass(found) else ()
    return bool(bases) and all(base.__module__.startswith(_DOORS) for base in bases)


def api_page() -> str:
    """What stands in the `__all__` of each package, with its docstring."""
    parts = ["# Python names", "", "What a user imports. Each name stands here once."]
    told: set[Any] = set()
    for door in _DOORS:
        module = import_module(door)
        parts += ["", f"## `{door}`", ""]
        for name in module.__all__:
            found = getattr(module, name)
            if found in told:
                continue
            told.add(found)
            kind = "autoclass" if inspect.isclass(found) else "autofunction"
            parts += ["```{eval-rst}", f".. {kind}:: {door}.{name}"]
            parts += ["   :members:"] if inspect.isclass(found) else []
            parts += ["   :inherited-members:"] if _inherits_ours_alone(found) else []
            parts += ["```", ""]
    return "\n".join(parts).rstrip() + "\n"
