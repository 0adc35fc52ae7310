"""Which room may import which, in one table; and cheap things stay cheap.

A room is a folder of one of the three packages. What stands loose in a package is the room with the
package's own name, and a package's `__init__.py`, which hands names on, is its door.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.paths import ROOT

PACKAGES = ("nope_interp", "probes", "experiments")

# The other rooms that a room may look into. `nope_interp` and `probes` stand side by side below
# `experiments`; within a package, `.name` is the room of that name.
ROOMS = {
    "probes": "",
    "probes.heads": "probes",
    "probes.codes": "probes",
    "probes.estimators": "probes",
    "nope_interp": "",
    "nope_interp.models": "nope_interp",
    "nope_interp.tasks": "nope_interp",
    "nope_interp.positions": "nope_interp .models",
    "nope_interp.interventions": "nope_interp .models .positions",
    "nope_interp.pretrained": "nope_interp .models .positions .tasks",
    "nope_interp.training": "nope_interp .models .tasks",
    "nope_interp.theory": "nope_interp .models",
    "nope_interp.constructions": "nope_interp .models",
    "experiments.results": "nope_interp probes",
    "experiments.report": "nope_interp probes .results",
    "experiments.runs": "nope_interp .results .report",
    "experiments.variants": "nope_interp nope_interp.models nope_interp.positions "
    "nope_interp.pretrained nope_interp.tasks nope_interp.training .results .runs",
    "experiments.probing": "nope_interp nope_interp.interventions nope_interp.pretrained "
    "nope_interp.tasks probes .results .runs",
    "experiments.codes": "nope_interp nope_interp.interventions nope_interp.models "
    "nope_interp.tasks nope_interp.training probes probes.codes .results .variants .probing",
    "experiments.heads": "nope_interp nope_interp.interventions nope_interp.models "
    "nope_interp.positions nope_interp.pretrained nope_interp.tasks probes probes.heads .results "
    ".report .runs .variants .probing",
    "experiments.drop": "nope_interp nope_interp.models nope_interp.positions "
    "nope_interp.pretrained nope_interp.tasks nope_interp.training .results .runs .variants",
    "experiments.explore": "nope_interp nope_interp.interventions nope_interp.models "
    "nope_interp.positions nope_interp.tasks probes probes.heads .report .runs .variants .probing "
    ".codes .heads experiments",
    "experiments.emergence": "nope_interp nope_interp.models nope_interp.tasks "
    "nope_interp.training probes .results .runs .variants .codes .heads",
    "experiments.papers": "nope_interp nope_interp.constructions nope_interp.interventions "
    "nope_interp.models "
    "nope_interp.positions nope_interp.pretrained nope_interp.tasks nope_interp.theory "
    "nope_interp.training probes probes.estimators probes.heads .results .report .runs .variants "
    ".probing .heads",
    "experiments.comparison": "nope_interp nope_interp.models nope_interp.tasks probes "
    ".results .report .runs .variants .probing .codes .heads",
    "experiments.benchmark": "nope_interp nope_interp.constructions nope_interp.interventions "
    "nope_interp.models nope_interp.tasks probes probes.codes .results .runs .variants .probing "
    ".codes",
    "experiments.sweeps": "nope_interp nope_interp.tasks probes .results .runs .variants .heads "
    ".emergence .papers .comparison .benchmark .drop",
    "experiments.cli": "nope_interp probes .results .variants .papers .sweeps .explore",
    "experiments": "nope_interp nope_interp.interventions nope_interp.models nope_interp.positions "
    "nope_interp.tasks .variants .probing .codes .heads",
    "door of probes": "probes .heads .codes .estimators",
    # Doors hand on what stands inside, and only when it is asked for. That of `nope_interp`, which
    # a user needs alone, also looks up.
    "door of experiments": "experiments .variants .heads .emergence .papers .comparison .sweeps",
    "door of nope_interp": "nope_interp .models .positions .interventions .pretrained "
    ".training experiments experiments.codes experiments.variants experiments.heads "
    "experiments.emergence experiments.explore experiments.papers experiments.comparison "
    "experiments.sweeps experiments.cli",
}
MOST_FLOORS = 9


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {module_of(path): path for name in PACKAGES for path in (ROOT / name).rglob("*.py")}


def room_of(module: str) -> str:
    path = modules()[module].relative_to(ROOT)
    if len(path.parts) == 2 and path.name == "__init__.py":
        return f"door of {path.parts[0]}"
    return ".".join(path.parent.parts[:2])


def allowed(room: str) -> set[str]:
    package = room.removeprefix("door of ").split(".")[0]
    names = ROOMS[room].split()
    return {f"{package}{name}" if name.startswith(".") else name for name in names}


@cache
def nodes(path: Path) -> list[ast.ImportFrom | ast.Import | ast.Constant]:
    """What the tests look at of a file: its imports and its constants."""
    kinds = (ast.ImportFrom, ast.Import, ast.Constant)
    walked = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in walked if isinstance(node, kinds)]


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of every import of ours, inside functions too, and of every module that is
    named in a string, as for `import_module`."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from ((node.lineno, n if n in modules() else str(node.module)) for n in names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"\w+(\.\w+)+", str(node.value)):
            yield node.lineno, str(node.value)


@pytest.fixture(scope="module")
def crossings() -> list[tuple[str, str, str]]:
    """Room, room that it imports, and the line that does."""
    found = []
    for module, path in modules().items():
        for line, name in imported(path):
            if name in modules() and room_of(name) != room_of(module):
                where = f"{path.relative_to(ROOT)}:{line} imports {name}"
                found.append((room_of(module), room_of(name), where))
    return found


def test_a_room_imports_what_the_table_lets_it_and_nothing_else(
    crossings: list[tuple[str, str, str]],
) -> None:
    wrong = [where for room, other, where in crossings if other not in allowed(room)]
    assert not wrong, "\n".join(wrong)


def test_the_table_knows_every_room_and_lists_no_more_than_is_used(
    crossings: list[tuple[str, str, str]],
) -> None:
    used: dict[str, set[str]] = {room: set() for room in ROOMS}
    for room, other, _ in crossings:
        used[room].add(other)
    assert {room_of(module) for module in modules()} - {f"door of {n}" for n in PACKAGES} == {
        room for room in ROOMS if not room.startswith("door")
    }
    assert {room: allowed(room) - used[room] for room in ROOMS if allowed(room) - used[room]} == {}


def floor(room: str, below: tuple[str, ...] = ()) -> int:
    """A room stands above all that it imports."""
    assert room not in below, f"a circle: {' -> '.join((*below, room))}"
    return 1 + max((floor(other, (*below, room)) for other in allowed(room)), default=0)


def test_there_is_no_circle_and_few_floors() -> None:
    assert max(floor(room) for room in ROOMS if not room.startswith("door")) <= MOST_FLOORS


def test_modules_of_a_room_do_not_import_each_other_in_a_circle() -> None:
    edges = {
        module: {name for _, name in imported(path) if name in modules()} - {module}
        for module, path in modules().items()
    }
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in done:
            for other in sorted(edges[module]):
                visit(other, (*path, module))
            done.add(module)

    for module in sorted(modules()):
        if not room_of(module).startswith("door"):
            visit(module, ())


def test_the_top_level_is_as_the_owner_fixed_it() -> None:
    for name in (*PACKAGES, "tests", "pyproject.toml", "README.md"):
        assert (ROOT / name).exists()


def test_few_files_stand_loose_in_experiments() -> None:
    assert len(list((ROOT / "experiments").glob("*.py"))) <= 3


def test_no_source_file_is_long() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in modules().values()
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert long == {}


def test_names_of_models_as_they_are_and_untrained_are_written_once() -> None:
    found: dict[str, set[str]] = {"intact": set(), "random-init": set()}
    for module, path in modules().items():
        for node in nodes(path):
            if isinstance(node, ast.Constant) and node.value in found:
                found[node.value].add(module)
    # A type has to be spelled out, and `nope_interp` may not look into `probes`.
    assert found == {
        "intact": {"experiments.results.measurements"},
        "random-init": {"probes.head_rules", "nope_interp.pretrained.spec"},
    }


def test_probes_stand_on_arrays_alone() -> None:
    known = {"torch", "numpy", "scipy", "sklearn", "einops", "jaxtyping", "concept_erasure"}
    for module, path in modules().items():
        if module.split(".")[0] == "probes":
            for node in nodes(path):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
                foreign = {n.split(".")[0] for n in names} - known - {"probes"}
                assert not foreign - set(sys.stdlib_module_names), f"{path}:{node.lineno}"


def test_what_looks_for_an_extra_imports_none_of_it() -> None:
    """So that it can say what to install."""
    extra = "{'starlette', 'fastapi', 'uvicorn'}"
    code = f"import sys, experiments.explore.serving; print(sorted({extra} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_what_papers_claim_is_told_without_torch() -> None:
    code = "import sys, experiments.papers.listing; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_workers_import_no_scikit_learn() -> None:
    """It takes most of a second, in every process that reads a model."""
    rooms = "experiments.comparison.compare, experiments.heads.classify, experiments.sweeps.sweep"
    code = f"import sys, {rooms}; print('sklearn' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_packages_and_command_line_import_nothing_heavy() -> None:
    heavy = "{'torch', 'transformers', 'transformer_lens', 'pandas', 'sklearn', 'plotly', 'numpy'}"
    # The first to import something heavy is the first whose list is not empty.
    modules = ("nope_interp", "probes", "experiments", "experiments.cli.main")
    told = f"print(name, sorted({heavy} & set(sys.modules)))"
    code = f"import importlib, sys\nfor name in {modules}:\n importlib.import_module(name); {told}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [f"{name} []" for name in modules]
