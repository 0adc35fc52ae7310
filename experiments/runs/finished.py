"""A run that is done: its numbers, what they say, and the page that shows them."""

import html
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
import pandas as pd

from experiments.results.measurements import read_arrays, read_table, write_arrays, write_table
from experiments.results.summary import summary
from experiments.runs.folder import (
    Kind,
    RunConfig,
    RunFolder,
    check_format,
    made_by,
    seconds_before,
)
from nope_interp.errors import UserError, unknown_name
from nope_interp.files import given_path, write_text

Run = TypeVar("Run", bound="FinishedRun")


@runtime_checkable
class Picture(Protocol):
    """A figure that can be saved."""

    def save(self, path: Path | str) -> Path:
        """Write it.

        Args:
            path: a file that ends in .svg, .png or .pdf.

        Returns:
            The file.

        Raises:
            UserError: for another ending, and where the file cannot be written.
        """


def chosen(pictures: Mapping[str, Picture], name: str) -> Picture:
    """The figure of that name.

    Args:
        pictures: a run's figures by name.
        name: which one.

    Returns:
        The figure.

    Raises:
        UserError: where there is none.
    """
    if name not in pictures:
        raise unknown_name("figure", name, pictures)
    return pictures[name]


@dataclass(frozen=True)
class Made:
    """What a run comes to, before it is written down.

    Attributes:
        measurements: the tidy table.
        arrays: what figures draw, by name.
        facts: what the page tells beside them, JSON-able.
    """

    measurements: pd.DataFrame
    arrays: Mapping[str, np.ndarray]
    facts: dict[str, Any]


@dataclass(frozen=True, repr=False)
class FinishedRun(ABC):
    """What every experiment returns.

    Attributes:
        folder: where it was kept.
        measurements: the tidy table, one number per row.
        arrays: what figures draw.
        info: how it was run, JSON-able.
    """

    experiment: ClassVar[str]
    # What a page cannot be drawn without, and of which type it is.
    needs_info: ClassVar[Mapping[str, Kind]]
    # Whether what a cell holds is read while a run is made: what it lacks is then a KeyError.
    looks_into_cells: ClassVar[bool] = True
    # What `repr` points to beside the table and the page.
    leads_to: ClassVar[tuple[str, ...]] = ()

    folder: Path
    measurements: pd.DataFrame
    arrays: dict[str, np.ndarray]
    info: dict[str, Any]

    @classmethod
    def load(cls: type[Run], folder: Path | str) -> Run:
        """Read a run folder.

        Args:
            folder: where the run was kept.

        Returns:
            The run.

        Raises:
            UserError: it is unfinished, damaged, of another experiment or of another format.
        """
        run = RunFolder.at(folder)
        run.check_finished()
        info = run.read_info()
        check_format(info, run.path)
        if info["experiment"] != cls.experiment:
            raise UserError(
                f"{str(folder)!r} holds a run of {info['experiment']!r}, not of "
                f"{cls.experiment!r}: draw it with `nope-interp report`."
            )
        run.require(info, cls.needs_info)
        return cls(run.path, read_table(run.measurements), read_arrays(run.arrays), info)

    @classmethod
    def once(
        cls: type[Run],
        config: RunConfig,
        out: Path | str,
        make: Callable[[RunFolder], Made],
        device: str | None = None,
    ) -> Run:
        """The finished run of a config: made now, gone on with, or read back; its page is drawn.

        The page is drawn every time, so that one that was cut short, or that an older version drew,
        heals itself.

        Args:
            config: what is run.
            out: the folder that run folders are made in.
            make: makes the run in its folder, keeping cells there.
            device: where it is computed, which the page tells: other devices round differently. A
                run that is there is read back, wherever it was computed.

        Returns:
            The run, read back from its folder.

        Raises:
            UserError: where the folder cannot be written to or is a newer version's, and what
                `make` raises; one that is refused before it has computed anything leaves no folder.
        """
        run = RunFolder.of(given_path(out), config)
        with run.begun(config):
            if run.finished:
                # One that was killed as soon as it was finished still has them.
                run.drop_cells()
            else:
                began, goes_on = time.monotonic(), run.cells.exists()
                earlier = seconds_before(run.cells)
                with run.dropped_if_refused():
                    try:
                        made = make(run)
                    except KeyError as error:
                        if not (goes_on and cls.looks_into_cells):
                            raise
                        raise UserError(
                            f"the kept parts of the run in {str(run.cells)!r} are of another "
                            f"version ({error} is missing): delete them and run the command again."
                        ) from error
                write_arrays(made.arrays, run.arrays)
                write_table(made.measurements, run.measurements)
                where = {} if device is None else {"device": device}
                run.finish(made.facts | where, config, earlier + time.monotonic() - began)
        found = cls.load(run.path)
        found.write_report()
        return found

    @classmethod
    def draw_unfinished(
        cls: type[Run], run: RunFolder, config: RunConfig, made: Made, missing: Sequence[str]
    ) -> None:
        """Draw the page of a run that goes on.

        Args:
            run: its folder.
            config: what is run.
            made: what there is so far.
            missing: names of what is still to come, which the page tells.

        Raises:
            UserError: where the page cannot be drawn or written.
        """
        info = made.facts | made_by(config) | {"missing": list(missing)}
        cls(run.path, made.measurements, dict(made.arrays), info).write_report()

    @property
    @abstractmethod
    def headline(self) -> str:
        """What came out, in a sentence or a few."""

    @abstractmethod
    def html(self) -> str:
        """The report: one page that needs no network.

        Returns:
            HTML.
        """

    @property
    @abstractmethod
    def pictures(self) -> Mapping[str, Picture]:
        """What can be drawn for a paper, by name."""

    def figure(self, name: str) -> Picture:
        """A figure in a paper's style, to be saved: `result.figure("verdict").save("x.pdf")`.

        Args:
            name: one of `pictures`.

        Returns:
            The figure, which `save` draws.

        Raises:
            UserError: there is no figure of that name.
        """
        with self._of_one_run():
            return chosen(self.pictures, name)

    def write_report(self, path: Path | str | None = None) -> Path:
        """Write the report.

        Args:
            path: the file to write; None takes `report.html` in the run folder.

        Returns:
            The file.

        Raises:
            UserError: it cannot be drawn or written, or it is to be written into a run folder that
                a newer version made.
        """
        run = RunFolder(self.folder)
        if path is None:
            run.refuse_newer()
        target = run.report if path is None else given_path(path)
        with self._of_one_run():
            page = self.html()
        return write_text(target, page)

    @contextmanager
    def _of_one_run(self) -> Iterator[None]:
        """Where its files are of different runs, what they lack is a UserError."""
        try:
            yield
        except (KeyError, IndexError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else "rows are missing"
            raise UserError(
                f"the files of the run {str(self.folder)!r} do not belong together ({what}): "
                "delete the run folder and run the command again."
            ) from error

    def __repr__(self) -> str:
        facts = {
            "folder": self.folder,
            "measurements": f"{len(self.measurements)} rows, and {len(self.arrays)} arrays",
        }
        return summary(
            f"{type(self).__name__} of {self.about}",
            facts,
            self._told(),
            [*self.leads_to, ".measurements", ".pictures", ".figure(name)", ".write_report()"],
        )

    @property
    def about(self) -> str:
        """What the run is about: its model."""
        return str(self.info["model"])

    def _told(self) -> str:
        # A run that cannot be told any more is still shown.
        try:
            return self.headline
        except (KeyError, IndexError, UserError):
            return "Its measurements do not belong together: run the command again."

    def _repr_html_(self) -> str:
        """The report in a notebook's cell, walled off in a frame of its own."""
        return (
            f'<iframe srcdoc="{html.escape(self.html())}" '
            'style="width:100%;height:900px;border:0" title="nope-interp report"></iframe>'
        )
