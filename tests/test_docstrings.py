"""What another room uses tells its arguments.

A function is public where a module of another folder uses it, or a door hands it on; of a class
that is, so are its methods. Of two parameters or more `Args:` names each, and `Returns:` or
`Yields:` says what comes back. Fewer need a docstring alone, as do properties and the members of a
protocol. What overrides a documented method is told there.
"""

import ast
import gc
from collections.abc import Mapping
from pathlib import PurePosixPath

import docstring_parser
import pytest

from tests.paths import ROOT

PACKAGES = ("nope_interp", "probes", "experiments")
Definition = ast.FunctionDef | ast.ClassDef
# The module that holds a definition, and the name there.
Place = tuple[str, str]


class Module:
    """What the rule looks at of a source file: what it defines, and what it uses of others."""

    def __init__(self, path: str, text: str) -> None:
        tree = ast.parse(text)
        self.path = path
        self.name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        # A door is a room of its own: all that it hands on is public.
        self.room = path if path.endswith("__init__.py") else str(PurePosixPath(path).parent)
        self.defined = {node.name: node for node in _members(tree)}
        # Wherever in the file the import stands.
        self.imported: dict[str, Place] = {}
        attributes: list[tuple[str, str]] = []
        self.used: set[Place] = set()
        for node in ast.walk(tree):
            match node:
                case ast.ImportFrom():
                    for alias in node.names:
                        found = (str(node.module), alias.name)
                        self.imported[alias.asname or alias.name] = found
                        self.used.add(found)
                case ast.Import():
                    # Chains of attributes are not followed here.
                    ours = [one.name for one in node.names if one.name.split(".")[0] in PACKAGES]
                    assert not ours, f"{path}:{node.lineno} imports a module of ours whole"
                case ast.Attribute(value=ast.Name(id=name)):
                    attributes.append((name, node.attr))
                case ast.Tuple(elts=[ast.Constant(str(module)), ast.Constant(str(name))]):
                    self.used.add((module, name))  # as registries name what they import later
                case ast.Assign(targets=[ast.Name(id="_HOMES")]):
                    homes = ast.literal_eval(node.value)
                    self.used |= {(module, name) for name, module in homes.items()}
        # Of modules, once they are imported.
        self.used |= {
            (".".join(self.imported[name]), attribute)
            for name, attribute in attributes
            if name in self.imported
        }


class House:
    """All modules by path, and what of them is public."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        modules = [Module(path, text) for path, text in texts.items()]
        self.modules = {module.name: module for module in modules}

    def place_of(self, module: str, name: str) -> Place | None:
        """Where a name of a module is defined, through modules that hand it on."""
        if (home := self.modules.get(module)) is None:
            return None
        if name in home.defined:
            return module, name
        return self.place_of(*home.imported[name]) if name in home.imported else None

    def public(self) -> dict[Place, Definition]:
        """Functions and classes that another room uses, and our bases of these classes."""
        found: dict[Place, Definition] = {}
        for module in self.modules.values():
            for used in module.used:
                place = self.place_of(*used)
                if place and self.modules[place[0]].room != module.room:
                    found |= {one: self.node(one) for one in (place, *self.bases(place)[0])}
        return {
            place: node
            for place, node in sorted(found.items(), key=lambda item: item[0])
            if isinstance(node, ast.ClassDef) or not node.name.startswith("_")
        }

    def node(self, place: Place) -> Definition:
        module, name = place
        return self.modules[module].defined[name]

    def bases(self, place: Place) -> tuple[list[Place], list[str]]:
        """The bases of a class that are ours, and theirs; and what the others are called."""
        ours: list[Place] = []
        others: list[str] = []
        node = self.node(place)
        for base in node.bases if isinstance(node, ast.ClassDef) else []:
            said = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
            if (found := self.place_of(place[0], said)) is None:
                others.append(said)
            else:
                above, others_above = self.bases(found)
                ours += [found, *above]
                others += others_above
        return ours, others

    def told_above(self, place: Place, method: str) -> bool:
        """Whether a base of the class says what the method does."""
        ours, others = self.bases(place)
        if method == "forward" and "nn.Module" in others:
            return True
        above = [found for base in ours for found in _members(self.node(base))]
        return any(found.name == method and ast.get_docstring(found) for found in above)

    def offenders(self) -> list[str]:
        """A line for each docstring that lacks something."""
        found = []
        for place, node in self.public().items():
            if isinstance(node, ast.FunctionDef):
                checked = {node.name: (node, missing(node))}
            else:
                protocol = any(ast.unparse(base).startswith("Protocol") for base in node.bases)
                checked = {
                    f"{node.name}.{one.name}": (one, missing(one, method=True, brief=protocol))
                    for one in _members(node)
                    if isinstance(one, ast.FunctionDef)
                    and not one.name.startswith("_")
                    and not self.told_above(place, one.name)
                }
            path = self.modules[place[0]].path
            found += [
                f"{path}:{one.lineno} {name}: {', '.join(lacks)}"
                for name, (one, lacks) in checked.items()
                if lacks
            ]
        return found


def _members(node: ast.Module | Definition) -> list[Definition]:
    """Functions and classes that stand in a body, under conditions too."""
    found: list[Definition] = []
    waiting: list[ast.AST] = [*node.body]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Definition):
            found.append(one)
        elif isinstance(one, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            waiting += ast.iter_child_nodes(one)
    return found[::-1]


def missing(function: ast.FunctionDef, *, method: bool = False, brief: bool = False) -> list[str]:
    """What the docstring of a function does not say.

    Args:
        function: its definition.
        method: whether it stands in a class.
        brief: whether any docstring is enough, as for a member of a protocol.

    Returns:
        Words for each thing.
    """
    named = [ast.unparse(one).split("(")[0].split(".")[-1] for one in function.decorator_list]
    if {"setter", "overload"} & {*named}:
        return []
    if not (text := ast.get_docstring(function)):
        return ["no docstring"]
    returns = ast.unparse(function.returns) if function.returns else "None"
    if {"property", "cached_property"} & {*named}:
        return ["no shape"] if "Tensor" in returns and "`[" not in text else []
    asked = function.args
    first = 1 if method and "staticmethod" not in named else 0
    variable = [one for one in (asked.vararg, asked.kwarg) if one]
    taken = [*[*asked.posonlyargs, *asked.args][first:], *asked.kwonlyargs, *variable]
    if brief or len(taken) < 2:
        return []
    told = docstring_parser.parse(text, docstring_parser.DocstringStyle.GOOGLE)
    said = [p.arg_name.lstrip("*") for p in told.params if p.args[0] == "param" and p.description]
    names = [one.arg for one in taken]
    lacks = [f"no argument {name}" for name in names if name not in said]
    lacks += [f"unknown argument {name}" for name in said if name not in names]
    lacks += [f"argument {name} twice" for name in {*said} if said.count(name) > 1]
    return lacks + ([] if told.returns or returns == "None" else ["no Returns"])


@pytest.fixture(scope="module")
def house() -> House:
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    texts = {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in paths}
    gc.disable()  # trees are many objects, and to look for garbage in them takes seconds
    try:
        return House(texts)
    finally:
        gc.enable()


def test_what_another_room_uses_tells_its_arguments(house: House) -> None:
    found = house.offenders()
    assert not found, f"{len(found)} docstrings lack something:\n" + "\n".join(found)


def test_what_is_public_is_found(house: House) -> None:
    public = house.public()
    assert len(public) > 400
    used = {
        ("nope_interp.streams", "stream"),  # imported
        ("experiments.results.interchange", "noising"),  # of an imported module
        ("probes.estimators.ridge", "RidgeRegressor"),  # behind a door
        ("experiments.papers.reproduce", "reproduce"),  # named in a registry
        ("probes.streaming", "StreamingFit"),  # a base
    }
    assert used <= public.keys()


# What `probes.one` offers, and what another room takes of it.
_OFFERED = '''
from typing import Protocol

def whole(x: int, *more: int, key: str) -> int:
    """A number.

    Args:
        x: one.
        *more: others.
        key: how, in words
            of two lines.

    Returns:
        Their sum.
    """

def lacks(x: int, y: int) -> int:
    """A number.

    Args:
        x: one.
        z: no such argument.
    """

def bare(x: int) -> None: ...
def unused(x: int, y: int) -> int: ...

class Base:
    def told(self, x: int, y: int) -> None:
        """Here.

        Args:
            x: one.
            y: another.
        """

    def inherited(self, x: int, y: int) -> None:
        """Not here."""

class Kind(Base):
    def told(self, x: int, y: int) -> None:
        """Told above."""

    def forward(self, x: int, y: int) -> int:
        """Of no torch module."""

    @property
    def weights(self) -> "Float[Tensor, 'd']":
        """Its weights."""

    @staticmethod
    def of(x: int, y: int) -> None:
        """One.

        Args:
            y: another.
        """

    def _own(self, x: int, y: int) -> int: ...

class Module(nn.Module):
    def forward(self, x: int, y: int) -> int: ...

class Member(Protocol):
    def brief(self, x: int, y: int) -> int:
        """One line."""

    def silent(self) -> int: ...
'''
_USER = """
from probes import one
def later() -> None:
    from probes.handing import whole, Kind as K
one.lacks, one.bare, one.Module, one.Member
"""


def test_a_docstring_that_lacks_something_is_found() -> None:
    texts = {
        "probes/one.py": _OFFERED,
        "probes/handing.py": "from probes.one import Kind as Kind, whole as whole",
        "probes/codes/user.py": _USER,
    }
    found = {place.split(" ", 1)[1] for place in House(texts).offenders()}
    assert found == {
        "lacks: no argument y, unknown argument z, no Returns",
        "bare: no docstring",
        "Base.inherited: no argument x, no argument y",
        "Kind.forward: no argument x, no argument y, no Returns",
        "Kind.weights: no shape",
        "Kind.of: no argument x",
        "Member.silent: no docstring",
    }
