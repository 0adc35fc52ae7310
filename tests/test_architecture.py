"""Imports go down only, and cheap things stay cheap."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

# Who may import whom: each floor stands on those below it.
FLOORS = {
    "probes": set(),
    "nope_interp": set(),
    "experiments": {"probes", "nope_interp"},
}
PACKAGES = set(FLOORS)


def imports_of(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("package", sorted(FLOORS))
def test_imports_go_down_only(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        sideways_or_up = imports_of(path) & PACKAGES - FLOORS[package] - {package}
        assert not sideways_or_up, f"{path.relative_to(ROOT)} imports {sideways_or_up}"


def test_probes_stand_on_arrays_alone() -> None:
    allowed = {
        "torch",
        "numpy",
        "scipy",
        "sklearn",
        "einops",
        "jaxtyping",
        "probes",
        "concept_erasure",
    }
    for path in sorted((ROOT / "probes").rglob("*.py")):
        foreign = imports_of(path) - allowed - set(sys.stdlib_module_names)
        assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


@pytest.mark.parametrize("module", ["nope_interp", "probes", "experiments", "experiments.cli.main"])
def test_packages_and_command_line_import_nothing_heavy(module: str) -> None:
    heavy = "{'torch', 'transformers', 'transformer_lens', 'pandas', 'sklearn', 'plotly', 'numpy'}"
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_only_our_own_files_are_tracked_in_the_packages() -> None:
    """The owner fixed the top level."""
    for name in (*PACKAGES, "tests", "pyproject.toml", "README.md"):
        assert (ROOT / name).exists()
