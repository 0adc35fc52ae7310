"""What `sweep` is asked to do: many configs of one experiment, from a YAML file.

    experiment: compare
    base: {seq_len: 64, transformer: {n_layers: 2}}
    grid: {seed: [0, 1, 2], transformer.positions: [none, rotary]}

`base` lies over the defaults, and a cell's own values, a point of `grid` or an entry of `list`, lie
over it. Both are asked in the command line's words, with underscores: a seed or a length stands for
that of weights and training too, unless they are given. Imports nothing heavy.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, no_type_check

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent

from experiments.sweeps.registry import AnyConfig, Experiment, experiment
from experiments.variants.words import expanded, flat, nested, word_for
from nope_interp.errors import FieldError, UserError, shown, unknown_name
from nope_interp.files import file_slug, given_path, utf8_of

MOST_CELLS = 100_000
# What tells the folder of a sweep.
SWEEP_FILE = "sweep.json"

_KEYS = ("experiment", "base", "grid", "list")


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
    def read(cls, path: Path | str) -> "SweepConfig":
        """Read a YAML file; raises UserError where it is missing, malformed or asks nonsense."""
        path = given_path(path)
        text = utf8_of(path, "the sweep", "give a YAML file")
        try:
            values = _read_yaml(text)
        except DuplicateKeyError as error:  # which tells how to let both be
            key, line = error.problem.split('"')[1], error.problem_mark.line + 1
            raise UserError(
                f"the sweep {str(path)!r} gives {key!r} twice, again in line {line}: leave one of "
                "them out."
            ) from error
        except (YAMLError, ValueError, RecursionError) as error:
            raise UserError(
                f"the sweep {str(path)!r} is not valid YAML ({error}): mend that place."
            ) from error
        if not isinstance(values, dict):
            raise UserError(
                f"the sweep {str(path)!r} holds no named values: give an experiment, and a grid or "
                "a list of it."
            )
        return cls.from_dict(values, file_slug(path.stem))

    @classmethod
    def from_dict(cls, values: Any, name: str = "sweep") -> "SweepConfig":
        """From what the file holds; every cell is checked, and an impossible one is named.

        Args:
            values: the experiment, a base, and a grid or a list.
            name: the readable half of the sweep folder's name.

        Returns:
            The sweep.

        Raises:
            UserError: for unknown keys, a grid or list without cells or with more than
                `MOST_CELLS`, and cells whose configs make no sense.
        """
        if not isinstance(values, dict):
            raise UserError(f"the sweep is {type(values).__name__}: give named values.")
        for key in values:
            if key not in _KEYS:
                raise unknown_name("key of the sweep", key, _KEYS)
        if "experiment" not in values:
            raise UserError("the sweep names no experiment: add one, such as experiment: compare.")
        if ("grid" in values) == ("list" in values):
            raise UserError("the sweep has to have either a grid or a list: give one of them.")
        kind = experiment(_word(values["experiment"]))
        base = flat("the base", {} if values.get("base") is None else values["base"])
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
        fields = {**expanded(kind.config, base), **expanded(kind.config, own)}
        if "positions" not in own:  # the base's would win over the cell's transformer.positions
            kind.config.check_agreement(fields)
        config = kind.read(nested(fields))
        kind.refuse_meaningless({**base, **own})
        # What all cells share may be of those that train.
        if (model := getattr(config, "model", None)) is not None:
            kind.refuse_training(own, model)
        return CellConfig(number, own, config)
    except FieldError as error:
        word = word_for(kind.config, {**base, **own}, error.field) or error.field
        raise UserError(f"{label(number, own)}: {error.renamed(word)}") from error
    except UserError as error:
        raise UserError(f"{label(number, own)}: {error}") from error


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
        yield flat("the grid", dict(zip(grid, point, strict=True)))


def _listed(entries: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise UserError("the list has to hold at least one cell, such as list: [{seed: 0}].")
    _check_number(len(entries))
    for number, entry in enumerate(entries, start=1):
        yield flat(f"cell {number}", entry)


def _check_number(cells: int) -> None:
    if cells > MOST_CELLS:
        raise UserError(f"the sweep has {cells} cells: the most is {MOST_CELLS}, so split it.")


def _read_yaml(text: str) -> Any:
    """YAML 1.2, in which 1e-3 is a number and no is a word; a key that comes twice is refused.

    So are aliases: nested in one another, a few lines of them stand for billions of values.
    """
    yaml = YAML(typ="safe", pure=True)
    for event in yaml.parse(text):
        if isinstance(event, AliasEvent):
            line = event.start_mark.line + 1
            raise ValueError(
                f"line {line}: the alias *{event.anchor} is not allowed: write the value out"
            )
    return YAML(typ="safe", pure=True).load(text)
