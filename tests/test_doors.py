"""What users import: the names at the package roots, and a folder of theirs that hides ours."""

import ast
import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import docstring_parser
import pytest

import nope_interp
from tests.paths import ROOT

PACKAGES = ("nope_interp", "experiments", "probes")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_what_its_home_defines(package: str) -> None:
    door = import_module(package)
    assert door.__all__ == sorted(door.__all__) == sorted(door._HOMES)
    for name in door.__all__:
        found = getattr(door, name)
        assert found is getattr(import_module(door._HOMES[name]), name)
        assert found.__module__ == door._HOMES[name]
        assert found.__doc__
    assert set(door.__all__) <= set(dir(door))
    with pytest.raises(AttributeError, match="no_such_name"):
        door.no_such_name  # noqa: B018


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_the_same_names(package: str) -> None:
    door = import_module(package)
    tree = ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    told = {
        alias.name: node.module
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == door._HOMES


def test_at_most_41_names_are_public() -> None:
    doors = [import_module(package) for package in PACKAGES]
    assert len({name for door in doors for name in getattr(door, "__all__", ())}) <= 41


def test_what_is_refused_is_caught_by_a_public_name() -> None:
    with pytest.raises(nope_interp.UserError, match="n_layers is 0"):
        nope_interp.TransformerConfig(0, 64, 4, d_vocab=9, n_ctx=8)


def of_ours(kind: type) -> list[type]:
    """A class and those of its bases that this repository defines."""
    return [base for base in kind.__mro__ if base.__module__.partition(".")[0] in PACKAGES]


def public_members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods, as functions, and properties of a class; inherited ones of ours too."""
    names = {name for base in of_ours(kind) for name in vars(base) if not name.startswith("_")}
    for name in sorted(names):
        member = inspect.getattr_static(kind, name)
        if isinstance(member, property | cached_property):
            yield name, member
        elif isinstance(member, classmethod | staticmethod) or inspect.isfunction(member):
            yield name, getattr(kind, name)  # of the class, whose bases may tell it


def public_things() -> Iterator[tuple[str, Any]]:
    """Everything behind the doors by its dotted name: functions, classes and their members."""
    for package in PACKAGES:
        door = import_module(package)
        for name in door.__all__:
            thing = getattr(door, name)
            if not inspect.isclass(thing):
                yield f"{package}.{name}", inspect.unwrap(thing)
                continue
            yield f"{package}.{name}", thing
            for member, function in public_members(thing):
                yield f"{package}.{name}.{member}", function


def raises_itself(function: Any) -> bool:
    """Whether a `raise` stands in the function, so that its docstring has to name the error."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return any(isinstance(node, ast.Raise) for node in ast.walk(tree))


def arguments(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self", "cls"}


def undocumented(thing: Any) -> list[str]:
    """What the docstring of a public function, method, property or class does not say."""
    if inspect.isclass(thing):
        docs = [parsed(base) for base in of_ours(thing)]
        made_by = "__post_init__" if is_dataclass(thing) else "__init__"
        makers = [vars(thing)[made_by]] if made_by in vars(thing) else []
        taken = set() if issubclass(thing, Exception) else arguments(thing)
        returns = False
    elif isinstance(thing, property | cached_property):
        # Its first line says what it gives.
        docs, makers, taken, returns = [parsed(thing)], [], set(), False
    else:
        docs, makers, taken = [parsed(thing)], [thing], arguments(thing)
        returns = inspect.signature(thing).return_annotation not in (None, Iterator[None])
    described = {p.arg_name.lstrip("*") for doc in docs for p in doc.params if p.description}
    lacks = [f"argument {name}" for name in sorted(taken - described)]
    lacks += [] if docs[0].short_description else ["what it is"]
    lacks += ["Returns"] if returns and not docs[0].returns else []
    told = any(doc.raises for doc in docs)
    lacks += ["Raises"] if not told and any(map(raises_itself, makers)) else []
    return lacks


def parsed(thing: Any) -> docstring_parser.Docstring:
    return docstring_parser.parse(
        inspect.getdoc(thing) or "", docstring_parser.DocstringStyle.GOOGLE
    )


def test_docstrings_behind_the_doors_are_whole() -> None:
    found = {name: undocumented(thing) for name, thing in public_things()}
    assert not {name: lacks for name, lacks in found.items() if lacks}


@pytest.mark.parametrize("package", ["experiments", "probes"])
@pytest.mark.parametrize("kind", ["package", "script", "folder"])
def test_what_hides_a_package_of_ours_is_named(tmp_path: Path, package: str, kind: str) -> None:
    hidden = tmp_path / f"{package}.py" if kind == "script" else tmp_path / package
    if kind == "script":
        hidden.write_text("raise SystemExit('it ran')")
    else:
        hidden.mkdir()
    if kind == "package":
        (hidden / "__init__.py").touch()
    # Names whose homes load nothing heavy: every name asks for both packages first.
    code = (
        "import nope_interp as ni\ntry:\n    ni.TransformerConfig\nexcept ImportError as e:\n"
        "    print(e)\nelse:\n    from experiments import CompareConfig\n"
        "    from probes import ProbeError\n"
        "import sys\nprint('--', flush=True)\nsys.argv = ['nope-interp', '--version']\nni.main()"
    )
    # As it is installed: our packages are found after the folder that Python is started in.
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    library, _, command = run.stdout.partition("--\n")
    if kind != "folder":
        assert f"{str(hidden)!r} hides the package {package!r} of nope-interp" in library
        assert library.count("\n") == 1
        assert (run.returncode, run.stderr, command) == (2, f"nope-interp: {library}", "")
    else:
        # Python prefers our package to a folder without an __init__.py.
        assert (library, run.returncode, run.stderr) == ("", 0, "")
        assert command == f"nope-interp {version('nope-interp')}\n"


def test_an_interrupt_while_the_command_line_is_loaded_is_silent(tmp_path: Path) -> None:
    code = """
import os, signal, sys
import nope_interp

class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == "experiments.cli.commands":
            os.kill(os.getpid(), signal.SIGINT)

# A background job of a shell ignores Ctrl-C, and its children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupted())
nope_interp.main()
"""
    run = subprocess.run(
        [sys.executable, "-c", code, "--version"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "")
