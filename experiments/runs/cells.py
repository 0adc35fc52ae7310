"""The parts of a run, each computed once and kept until the run is finished."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from experiments.results.findings import Array
from experiments.results.measurements import read_arrays, write_arrays
from experiments.runs.processes import process_map
from nope_interp.errors import UserError


class Cells:
    """The parts of a run, each computed once and kept until the run is finished.

    `at_once` of those that do not depend on each other are computed at a time, in processes.
    """

    def __init__(self, folder: Path, advance: Callable[[str], object], at_once: int = 1) -> None:
        self._folder = folder
        self._advance = advance
        self._at_once = at_once

    def get(self, title: str, compute: Callable[[], dict[str, Array]]) -> dict[str, Array]:
        """The arrays of a cell; computed where they are missing or damaged."""
        self._advance(title)
        path = self._path(title)
        try:
            return read_arrays(path)
        except UserError:
            _keep(path, compute)
            return read_arrays(path)

    def per_seed(
        self, title: str, seeds: Iterable[int], compute: Callable[[int], dict[str, Array]]
    ) -> dict[str, Array]:
        """A cell for each seed; arrays are stacked along a new first axis."""
        every = {seed: partial(compute, seed) for seed in seeds}
        return _stacked([self.get(_title(title, seed), get) for seed, get in every.items()])

    def process_map(
        self,
        computes: Mapping[str, Callable[[int], dict[str, Array]]],
        seeds: Sequence[int],
    ) -> dict[str, dict[str, Array]]:
        """As `per_seed`, for several titles and with all of their cells computed side by side: for
        what takes long and was given nothing that cannot be sent to another process."""
        work = {
            _title(title, seed): partial(compute, seed)
            for title, compute in computes.items()
            for seed in seeds
        }
        missing = {title: get for title, get in work.items() if not self._has(title)}
        jobs = [partial(_keep, self._path(title), get) for title, get in missing.items()]
        for number, _ in process_map(jobs, self._at_once):
            self._advance(list(missing)[number])
        return {
            title: _stacked([read_arrays(self._path(_title(title, seed))) for seed in seeds])
            for title in computes
        }

    def _has(self, title: str) -> bool:
        try:
            read_arrays(self._path(title))
        except UserError:
            return False
        self._advance(title)
        return True

    def _path(self, title: str) -> Path:
        return self._folder / f"{title.replace('/', '-')}.safetensors"


def _title(title: str, seed: int) -> str:
    return f"{title}, seed {seed}"


def _keep(path: Path, compute: Callable[[], dict[str, Array]]) -> None:
    write_arrays({name: np.asarray(value) for name, value in compute().items()}, path)


def _stacked(cells: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    return {name: np.stack([cell[name] for cell in cells]) for name in cells[0]}
