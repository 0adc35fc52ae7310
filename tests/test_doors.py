"""What users import: the names at the package roots, and a folder of theirs that hides ours."""

import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.paths import ROOT

DOORS = ("nope_interp", "experiments")


@pytest.mark.parametrize("package", DOORS)
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


@pytest.mark.parametrize("package", DOORS)
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


def test_at_most_forty_names_are_public() -> None:
    doors = [import_module(package) for package in (*DOORS, "probes")]
    assert len({name for door in doors for name in getattr(door, "__all__", ())}) <= 40


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
    code = "import nope_interp as ni\ntry:\n    ni.compare\nexcept ImportError as e:\n    print(e)"
    # As it is installed: our packages are found after the folder that Python is started in.
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    if kind != "folder":
        assert f"{str(hidden)!r} hides the package {package!r} of nope-interp" in run.stdout
        assert run.stdout.count("\n") == 1
    else:
        # Python prefers our package to a folder without an __init__.py.
        assert run.stdout == ""
