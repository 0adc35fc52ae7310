"""What `sweep` is asked to do: many configs of one experiment, from a YAML file.

    experiment: compare
    base: {seq_len: 64, transformer: {n_layers: 2}}
    grid: {seed: [0, 1, 2], transformer.positions: [none, rotary]}

`base` lies over the defaults, and a cell's own values, a point of `grid` or an entry of `list`, lie
over it. In both, a seed or a length stands for that of weights and training too, unless they are
given, as it does on the command line. Imports nothing heavy.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, no_type_check

import yaml

from experiments.sweeps.registry import AnyConfig, Experiment, experiment
from experiments.variants.config import ExperimentConfig
from nope_interp.errors import UserError, shown, unknown_name

MOST_CELLS = 100_000

_KEYS = ("experiment", "base", "grid", "list")

# What the command line's --seed and --seq-len set beside the config's own value.
_ALSO_SET = {
    "seed": ("transformer.seed", "training.seed"),
    "seq_len": ("transformer.n_ctx", "training.seq_len"),
}


@no_type_check  # it checks itself, in sentences
@dataclass(frozen=True)
class CellConfig:
    """One cell: its number from 1, what tells it from the others by dotted key, and its config."""

    number: int
    values: Mapping[str, Any]
    config: AnyConfig

    @property
    def label(self) -> str:
        """As messages name it: cell 3 (seed=2, transformer.positions=rotary)."""
        return label(self.number, self.values)


@no_type_check  # it checks itself, in sentences
@dataclass(frozen=True)
class SweepConfig:
    """An experiment and the cells that it runs, all of them valid.

    Attributes:
        name: the readable half of the sweep folder's name.
        experiment: what runs each cell.
        cells: in the order of the file; the last key of a grid varies fastest.
    """

    name: str
    experiment: Experiment
    cells: tuple[CellConfig, ...]

    @classmethod
    def read(cls, path: Path) -> "SweepConfig":
        """Read a YAML file; raises UserError where it is missing, malformed or asks nonsense."""
        try:
            values = yaml.load(path.read_text(encoding="utf-8"), _Loader)
        except OSError as error:
            raise UserError(
                f"cannot read the sweep {str(path)!r} ({error.strerror}): give a YAML file."
            ) from error
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise UserError(
                f"the sweep {str(path)!r} is not valid YAML ({error}): mend that place."
            ) from error
        if not isinstance(values, dict):
            raise UserError(
                f"the sweep {str(path)!r} holds no named values: give an experiment, and a grid or "
                "a list of it."
            )
        return cls.from_dict(values, re.sub(r"[^A-Za-z0-9.]+", "-", path.stem).strip("-.")[:60])

    @classmethod
    def from_dict(cls, values: Any, name: str = "sweep") -> "SweepConfig":
        """From what the file holds; every cell is checked, and an impossible one is named.

        Raises UserError for unknown keys, a grid or list without cells or with more than
        `MOST_CELLS`, and cells whose configs make no sense.
        """
        if not isinstance(values, dict):
            raise UserError(f"the sweep is {type(values).__name__}: expected named values.")
        for key in values:
            if key not in _KEYS:
                raise unknown_name("key of the sweep", key, _KEYS)
        if "experiment" not in values:
            raise UserError("the sweep names no experiment: add one, such as experiment: compare.")
        if ("grid" in values) == ("list" in values):
            raise UserError("the sweep has to have either a grid or a list: give one of them.")
        kind = experiment(_word(values["experiment"]))
        base = _flat("the base", {} if values.get("base") is None else values["base"])
        drawn = _grid(values["grid"]) if "grid" in values else _listed(values["list"])
        cells = tuple(_cell(kind, base, number, own) for number, own in enumerate(drawn, start=1))
        return cls(name or "sweep", kind, cells)


def label(number: int, values: Mapping[str, Any]) -> str:
    """The name of a cell in messages."""
    told = ", ".join(f"{key}={_word(value)}" for key, value in values.items())
    return f"cell {number} ({told or 'the base'})"


def _word(value: Any) -> str:
    return value if isinstance(value, str) else shown(value)


def _cell(
    kind: Experiment, base: Mapping[str, Any], number: int, own: Mapping[str, Any]
) -> CellConfig:
    try:
        nested: dict[str, Any] = {}
        for key, value in {**_with_options(kind, base), **_with_options(kind, own)}.items():
            _put(nested, key, value)
        return CellConfig(number, own, kind.read(nested))
    except UserError as error:
        raise UserError(f"{label(number, own)}: {error}") from error


def _with_options(kind: Experiment, own: Mapping[str, Any]) -> dict[str, Any]:
    """Values with what their seed and length set elsewhere, unless they say otherwise."""
    if not issubclass(kind.config, ExperimentConfig):
        return dict(own)
    also = {to: own[key] for key, keys in _ALSO_SET.items() if key in own for to in keys}
    return {**also, **own}


def _put(nested: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for parent in parents:
        nested = nested.setdefault(parent, {})
        if not isinstance(nested, dict):
            raise UserError(f"{dotted!r} is given, but {parent!r} is a value: give one of them.")
    if isinstance(nested.get(last), dict):
        raise UserError(f"{dotted!r} is a value, but names within it are given: give one of them.")
    nested[last] = value


def _flat(what: str, values: Any) -> dict[str, Any]:
    """Nested names as dotted keys; raises UserError where a name is no word or comes twice."""
    if not isinstance(values, dict):
        raise UserError(f"{what} is {type(values).__name__}: expected named values.")
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if not isinstance(key, str):
            raise UserError(f"{what} has the key {shown(key)}: expected the name of a value.")
        inner = _flat(f"{what}'s {key}", value) if isinstance(value, dict) else None
        found = {key: value} if inner is None else {f"{key}.{k}": v for k, v in inner.items()}
        for dotted in found:
            if dotted in flat:
                raise UserError(f"{what} gives {dotted!r} twice: leave one out.")
        flat |= found
    return flat


def _grid(grid: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(grid, dict) or not grid:
        raise UserError("the grid has to be keys with lists, such as grid: {seed: [0, 1]}.")
    for key, choices in grid.items():
        if not isinstance(choices, list) or not choices:
            raise UserError(
                f"the grid's {key} is {shown(choices)}: give a list of at least one value."
            )
    _check_number(math.prod(len(choices) for choices in grid.values()))
    for point in itertools.product(*grid.values()):
        yield _flat("the grid", dict(zip(grid, point, strict=True)))


def _listed(entries: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise UserError("the list has to hold at least one cell, such as list: [{seed: 0}].")
    _check_number(len(entries))
    for number, entry in enumerate(entries, start=1):
        yield _flat(f"cell {number}", entry)


def _check_number(cells: int) -> None:
    if cells > MOST_CELLS:
        raise UserError(f"the sweep has {cells} cells: the most is {MOST_CELLS}, so split it.")


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number and no is a word, as in YAML 1.2, and a key cannot come twice.

    Aliases are refused: nested in one another, a few lines of them stand for billions of values.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(
                None,
                None,
                f"the alias *{event.anchor} is not allowed: write the value out",
                event.start_mark,
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for i, key in enumerate(keys):
            if key in keys[:i]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} comes twice", node.value[i][0].start_mark
                )
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)
# YAML 1.1 reads yes, no, on and off as truth values.
_Loader.yaml_implicit_resolvers = {
    first: [found for found in resolvers if found[0] != "tag:yaml.org,2002:bool"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
