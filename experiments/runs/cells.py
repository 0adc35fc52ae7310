"""The parts of a run, each computed once and kept until the run is finished."""

import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd

from experiments.results.findings import Array
from experiments.results.measurements import read_arrays, read_table, table, write_arrays
from experiments.runs.folder import SECONDS, seconds_before
from experiments.runs.workers import HERE, Pool
from nope_interp.errors import UserError
from nope_interp.files import write_json

# The rows of a cell lie among its arrays, as the bytes of a Parquet file: one file is whole or not.
_ROWS = "rows.parquet"

K = TypeVar("K")


@cache
def _no_rows() -> pd.DataFrame:
    """The table of all cells that are arrays alone: making one for each takes longer than reading
    small ones. It is only read."""
    return table([])


@dataclass(frozen=True)
class Cell:
    """What was found of one model variant under one condition.

    Attributes:
        rows: the tidy table's; none where all that was found is arrays.
        arrays: by name.
    """

    rows: pd.DataFrame = field(default_factory=_no_rows)
    arrays: Mapping[str, Array] = field(default_factory=dict)


# Where a cell is kept, and what makes it.
_Job = tuple[Path, Callable[[], Cell]]


class Cells:
    """The cells of a run: each is computed once, kept, and read back by a run that goes on.

    Cells are gathered in the order in which they were asked for, whatever order they were made in.

    Args:
        folder: where they are kept.
        advance: told the title of each cell when it is there, and whether an earlier run kept it.
        pool: where those are computed that do not depend on each other.
        expect: told the titles of the cells that are asked for, before any of them is computed.
    """

    def __init__(
        self,
        folder: Path,
        advance: Callable[[str, bool], object] = lambda *_: None,
        pool: Pool = HERE,
        expect: Callable[[Iterable[str]], object] = lambda _: None,
    ) -> None:
        self._folder = folder
        self._advance = advance
        self._pool = pool
        self._expect = expect
        self._asked: dict[str, Cell] = {}
        self._earlier, self._began = seconds_before(folder), time.monotonic()

    @property
    def at_once(self) -> int:
        """How many of the cells that `all` is asked for are computed at the same time."""
        return self._pool.at_once

    def get(self, title: str, compute: Callable[[], Cell]) -> Cell:
        """A cell; computed, and kept, where it is missing or damaged.

        Args:
            title: tells the cell from the run's others.
            compute: what makes it.

        Returns:
            The cell as it is kept.

        Raises:
            UserError: where it cannot be kept, and whatever `compute` raises.
        """
        return self._every({title: compute}, HERE)[title]

    def all(self, computes: Mapping[str, Callable[[], Cell]]) -> dict[str, Cell]:
        """Cells that do not depend on each other, by title, computed side by side in the pool.

        Args:
            computes: what makes each; what it was given is sent to another process.

        Returns them in that order.

        Raises UserError where one cannot be kept or a process dies, and whatever one raises; those
        that were finished are kept.
        """
        return self._every(computes, self._pool)

    def each(
        self, computes: Mapping[str, Callable[[], Cell]], *, alone: bool = False
    ) -> Iterator[str]:
        """As `all`, step by step.

        Args:
            computes: what makes each; what it was given is sent to another process.
            alone: whether they are computed in this process instead, one after the other, each with
                all of its threads.

        Returns:
            Their titles in that order, each as soon as it and those before it are there and
            `gathered` has them.

        Raises:
            UserError: as `all` does, once the titles are asked for.
        """
        return self._one_by_one(computes, HERE if alone else self._pool)

    def _every(self, computes: Mapping[str, Callable[[], Cell]], pool: Pool) -> dict[str, Cell]:
        return {title: self._asked[title] for title in self._one_by_one(computes, pool)}

    def _one_by_one(self, computes: Mapping[str, Callable[[], Cell]], pool: Pool) -> Iterator[str]:
        self._expect(computes)
        if len({self._path(title) for title in computes}) < len(computes):
            raise UserError("two names differ only in '/' and '-': rename one.")
        found = {title: self._kept(title) for title in computes}
        missing = [title for title, kept in found.items() if kept is None]
        for title in found:
            if title not in missing:
                self._advance(title, True)
        jobs = [(self._path(title), computes[title]) for title in missing]
        made = pool.run(_keep, jobs, len(missing)) if missing else iter(())
        for title, kept in found.items():
            if kept is None:
                next(made)
                spent = self._earlier + time.monotonic() - self._began
                write_json(self._folder / SECONDS, spent)
                self._advance(title, False)
            self._asked[title] = kept or _read(self._path(title))
            yield title
        next(made, None)  # the pool closes

    def gathered(self) -> Cell:
        """All cells so far, in the order in which they were asked for: their rows below each other,
        and all of their arrays."""
        rows = [cell.rows for cell in self._asked.values() if len(cell.rows)]
        arrays: dict[str, Array] = {}
        for cell in self._asked.values():
            arrays |= cell.arrays
        return Cell(pd.concat(rows, ignore_index=True) if rows else table([]), arrays)

    # Cells of arrays alone, which are all that papers have.

    def arrays(self, title: str, compute: Callable[[], Mapping[str, Array]]) -> dict[str, Array]:
        """The arrays of a cell of arrays alone.

        Args:
            title: tells the cell from the run's others.
            compute: what makes the arrays, by name.

        Returns:
            The arrays as they are kept.

        Raises:
            UserError: as `get` does.
        """
        return dict(self.get(title, partial(_of_arrays, compute)).arrays)

    def per_seed(
        self, title: str, seeds: Sequence[int], compute: Callable[[int], Mapping[str, Array]]
    ) -> dict[str, Array]:
        """A cell of arrays for each seed, computed in this process one after the other.

        Args:
            title: tells these cells from the run's others.
            seeds: in the order of the first axis.
            compute: what makes the cell of a seed.

        Returns:
            The arrays stacked along a new first axis.

        Raises:
            UserError: as `get` does.
        """
        return self._over_seeds({title: compute}, seeds, str, HERE)[title]

    def side_by_side(
        self,
        computes: Mapping[K, Callable[[int], Mapping[str, Array]]],
        seeds: Sequence[int],
        title: Callable[[K], str] = str,
    ) -> dict[K, dict[str, Array]]:
        """As `per_seed`, for several titles and with all of their cells computed in the pool.

        It is for what takes long and was given nothing that cannot be sent to another process.

        Args:
            computes: by key, what makes the cell of a seed.
            seeds: in the order of the first axis.
            title: of a key; by default the key is the title.

        Returns:
            The stacked arrays by key.

        Raises:
            UserError: as `all` does.
        """
        return self._over_seeds(computes, seeds, title, self._pool)

    def _over_seeds(
        self,
        computes: Mapping[K, Callable[[int], Mapping[str, Array]]],
        seeds: Sequence[int],
        title: Callable[[K], str],
        pool: Pool,
    ) -> dict[K, dict[str, Array]]:
        titles = {key: [f"{title(key)}, seed {seed}" for seed in seeds] for key in computes}
        # Seed by seed: a run that is stopped can be finished with the seeds that it has.
        every = {
            names[i]: partial(_of_arrays, partial(computes[key], seed))
            for i, seed in enumerate(seeds)
            for key, names in titles.items()
        }
        found = self._every(every, pool)
        return {key: _stacked([found[name].arrays for name in titles[key]]) for key in computes}

    def _kept(self, title: str) -> Cell | None:
        try:
            return _read(self._path(title))
        except UserError:
            return None

    def _path(self, title: str) -> Path:
        return self._folder / f"{title.replace('/', '-')}.safetensors"


def _of_arrays(compute: Callable[[], Mapping[str, Array]]) -> Cell:
    return Cell(arrays=compute())


def _keep(job: _Job) -> None:
    path, compute = job
    cell = compute()
    arrays = {name: np.asarray(value) for name, value in cell.arrays.items()}
    if len(cell.rows):
        arrays[_ROWS] = np.frombuffer(cell.rows.to_parquet(index=False), np.uint8)
    write_arrays(arrays, path)


def _read(path: Path) -> Cell:
    arrays = read_arrays(path)
    rows = arrays.pop(_ROWS, None)
    return Cell(_no_rows() if rows is None else read_table(io.BytesIO(rows.tobytes())), arrays)


def _stacked(cells: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    return {name: np.stack([cell[name] for cell in cells]) for name in cells[0]}
