"""One folder for each run: named for its config, whole or resumable, never computed twice."""

import hashlib
import json
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Protocol, runtime_checkable

from experiments.runs.lock import LOCK, alone_in
from nope_interp.errors import UserError, shown
from nope_interp.files import (
    file_digest,
    given_path,
    make_folder,
    model_files,
    read_json,
    write_json,
)

# What a value of `info.json` has to be.
Kind = type | UnionType


@runtime_checkable
class RunConfig(Protocol):
    """What a run folder needs to know of a config."""

    @property
    def experiment(self) -> str:
        """The name of the experiment."""

    @property
    def model(self) -> str | None:
        """A hub name or a path; None trains one."""

    @property
    def text(self) -> str | None:
        """A file to read, if any."""

    def run_name(self) -> str:
        """The readable half of the run folder's name."""

    def command(self) -> str:
        """The command line that runs this again."""

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON-able values."""


# Raised where what a run writes is called otherwise, so that old numbers are not misread. In 1, of
# which no file tells, necessity, sufficiency, coverage and size-matched controls had other names,
# and so had the random-init variant of `heads`. In 2 the effect of a code that is put back was net
# of its control alone, and no row told what moves break. In 3 a smooth trend that was taken away
# was called counting, and the irregular part positional vectors. In 4 the costs of removals were
# shares of the total effect.
FORMAT = 5

# Beside the cells: how long all starts so far took until the last cell was kept.
SECONDS = "seconds.json"

_REPORTED_PACKAGES = ("nope-interp", "torch", "transformer-lens", "transformers", "scikit-learn")


class _Within:
    """The path of what has this name in a run folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: "RunFolder", kind: type) -> Path:
        return run.path / self._name


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps its files.

    `config.json` is written first and `info.json` last, so a folder with `info.json` is finished.

    Attributes:
        path: the folder.
        config: what was asked, written first.
        info: how it was run and what the page tells beside numbers, written last.
        model: the weights that a training ended in.
        training_state: where a training that was cut short goes on.
        measurements: the tidy table.
        arrays: what figures draw.
        report: the page.
        cells: the folder of the parts of an unfinished run.
    """

    path: Path
    config = _Within("config.json")
    info = _Within("info.json")
    model = _Within("model.safetensors")
    training_state = _Within("training_state.safetensors")
    measurements = _Within("measurements.parquet")
    arrays = _Within("arrays.safetensors")
    report = _Within("report.html")
    cells = _Within("cells")

    @classmethod
    def at(cls, folder: Path | str) -> "RunFolder":
        """The run that somebody names.

        Args:
            folder: where it was kept.

        Returns:
            The folder, which need not be there.

        Raises:
            UserError: for what is no path.
        """
        if not isinstance(folder, str | Path):
            raise UserError(f"the run is {shown(folder)}: give its folder.")
        return cls(given_path(folder))

    @classmethod
    def of(cls, parent: Path, config: RunConfig) -> "RunFolder":
        """Where a config's run is kept, whether it was begun or not.

        A local model or text whose content has changed is another run; the same content is the same
        one, wherever it lies.

        Args:
            parent: the folder that run folders are made in.
            config: what is run.

        Returns:
            The folder, which need not be there.

        Raises:
            UserError: for a model that is a folder without a model in it.
        """
        return cls(parent / f"{config.run_name()}-{short_hash(identity(config))}")

    def begin(self, config: RunConfig) -> "RunFolder":
        """Make the folder, or go on in the one begun before.

        `config` is kept in it, so that the run can be made again. Raises UserError where the folder
        cannot be written to, or was begun by a newer version, whose files are not ours to write.
        """
        make_folder(self.path)
        self.refuse_newer()
        if not self.config.is_file():
            kept = {"config": config.to_dict(), "environment": environment(), "format": FORMAT}
            write_json(self.config, kept)
        return self

    def refuse_newer(self) -> None:
        """Raise UserError where a newer version began the run, whose files are not ours to write,
        and where `config.json` does not say which one did."""
        if self.config.is_file():
            refuse_newer(self.config)

    def model_from(self, out: Path) -> str:
        """The model's path within the folder of run folders."""
        return str(self.model.relative_to(out))

    def history(self, step: int) -> Path:
        """Where the model is kept as it was after `step` optimiser steps."""
        return self.path / "history" / f"step-{step:06}.safetensors"

    @property
    def finished(self) -> bool:
        """Whether everything was written."""
        return self.info.is_file()

    def finish(self, facts: dict[str, Any], config: RunConfig, seconds: float) -> None:
        """Write `info.json`, with how the run was made, and drop the cells.

        Args:
            facts: what the page tells beside numbers, JSON-able.
            config: what was run.
            seconds: that it took, over all of its starts.

        Raises UserError where it cannot be written.
        """
        write_json(self.info, facts | made_by(config) | {"seconds": round(seconds, 1)})
        self.drop_cells()

    def drop_cells(self) -> None:
        """Remove the parts of a run that is finished."""
        shutil.rmtree(self.cells, ignore_errors=True)

    @contextmanager
    def begun(self, config: RunConfig) -> Iterator[None]:
        """`begin` it, and have it `locked` while it is open.

        What is refused with a UserError leaves no folder above this one that was made for it.

        Args:
            config: what is run.
        """
        made = [parent for parent in self.path.parents if not parent.exists()]
        try:
            self.begin(config)
            with self.locked():
                self.begin(config)  # again: whoever was waited for may have been refused
                yield
        except UserError:
            with suppress(OSError):  # something is in it
                for parent in made:
                    parent.rmdir()
            raise

    @contextmanager
    def dropped_if_refused(self) -> Iterator[None]:
        """While it is open: what raises UserError before anything was computed has the folder
        removed."""
        try:
            yield
        except UserError:
            files = {path.name for path in self.path.rglob("*") if path.is_file()}
            if files <= {self.config.name, LOCK}:
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    def read_info(self) -> dict[str, Any]:
        """What was written when the run finished; raises UserError where it is damaged."""
        try:
            info = read_json(self.info)
        except UserError as error:
            culprit, _, _ = str(error).rpartition(": ")
            raise UserError(f"{culprit}: {self._advice()}") from error
        self.require(info, {"experiment": object})
        return info

    def check_finished(self) -> None:
        """Raise UserError where there is no finished run, which says what is there instead."""
        if self.finished:
            return
        name = str(self.path)
        if not self.path.is_dir():
            raise UserError(f"there is no folder {name!r}: check the path.")
        runs = sorted(info.parent for info in self.path.glob(f"*/{self.info.name}"))
        if runs:
            raise UserError(f"{name!r} holds runs and is none: give one, such as {str(runs[0])!r}.")
        if self.model.is_file():
            raise UserError(
                f"{name!r} holds a training and no measurements: load {str(self.model)!r}."
            )
        raise UserError(f"{name!r} holds no finished run: run the command that began it.")

    def require(self, info: Any, needed: Mapping[str, Kind]) -> None:
        """Make sure that a run's info has what a report cannot be drawn without.

        Args:
            info: what `info.json` holds.
            needed: what has to be in it, and of which type.

        Raises:
            UserError: where something is missing, or of another type.
        """
        if not isinstance(info, dict):
            raise UserError(f"the run's info.json is damaged: {self._advice()}")
        for name, kind in needed.items():
            if name not in info or not isinstance(info[name], kind):
                raise UserError(f"the run's info.json is damaged at {name!r}: {self._advice()}")

    def _advice(self) -> str:
        return f"delete {str(self.info)!r} and run the command again."

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While it is open, no other process works in this folder; waits for one that does.

        The lock dies with its process, so a killed run leaves none behind.
        """
        with alone_in(self.path):
            yield


def seconds_before(cells: Path) -> float:
    """How long earlier starts of a run took, each until its last cell was kept.

    Args:
        cells: the folder of its cells, or one with such folders in it.

    Returns:
        Seconds; 0 of what was not kept, or is damaged.
    """
    spent = 0.0
    for file in cells.rglob(SECONDS):
        with suppress(UserError, TypeError, ValueError):
            spent += float(read_json(file))
    return spent


def short_hash(value: Any) -> str:
    """Ten hexadecimal digits that stand for a JSON-able value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]


def environment() -> dict[str, str]:
    """The versions that a result depends on."""
    from importlib import metadata  # heavy, and --help needs none of it

    versions = {name: metadata.version(name) for name in _REPORTED_PACKAGES}
    return {"python": platform.python_version(), "platform": platform.platform(), **versions}


def made_by(config: RunConfig) -> dict[str, Any]:
    """What a report tells of how a run is made, JSON-able."""
    return {
        "experiment": config.experiment,
        "format": FORMAT,
        "config": config.to_dict(),
        "environment": environment(),
        "command": config.command(),
    }


def identity(config: RunConfig) -> dict[str, Any]:
    """What a run is told by: its config, with what lies on disk told by its content, and code of
    the user's own by its digest in the config's `fingerprints`, if it has some.

    Raises UserError for a model that is a folder without a model in it.
    """
    own = getattr(config, "fingerprints", {})
    values = config.to_dict() | {"format": FORMAT, "fingerprints": own}
    for name in ("model", "text", "rules"):
        path = getattr(config, name, None)
        local = None if path is None else given_path(path)
        # What else stands for a text is refused where it is read.
        if local is not None and (local.is_file() or (name == "model" and local.is_dir())):
            values[name] = fingerprint(local)
    return values


def fingerprint(path: Path) -> str:
    """What a model or a text on disk is told by: a digest of its content, wherever it lies.

    Args:
        path: a file, or the folder of a Hugging Face model, of which only the model's own files
            count.

    Returns:
        16 hexadecimal digits. Nothing is kept on disk: hashing is faster than loading, and a
        process hashes a file once, until its size or time changes.

    Raises:
        UserError: for a folder without a model in it, and for files that cannot be read.
    """
    files = model_files(path) if path.is_dir() else [path]
    try:
        digests = [[file.name if path.is_dir() else "", file_digest(file)] for file in files]
    except OSError as error:
        raise UserError(
            f"cannot read {str(path)!r} ({error.strerror or error}): check its files."
        ) from error
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:16]


def check_format(values: Any, folder: Path) -> None:
    """Make sure that what is kept has the format that is written today.

    Args:
        values: what is told of the kept files; where they tell no format it is 1.
        folder: where these lie, for the message.

    Raises:
        UserError: for another format.
    """
    found = values.get("format", 1)
    if found != FORMAT:
        raise UserError(
            f"{str(folder)!r} holds files of format {found!r}, and this version reads format "
            f"{FORMAT}: run the command again, which computes in a new folder."
        )


def refuse_newer(made: Path) -> None:
    """Raise UserError where a newer version made the folder of this file, which tells its
    `environment`, and where it does not say which one did."""
    from importlib import metadata

    from packaging.version import InvalidVersion, Version

    try:
        version = Version(read_json(made)["environment"]["nope-interp"])
    except (KeyError, TypeError, InvalidVersion, UserError) as error:
        if isinstance(error.__cause__, OSError):
            raise  # it could not be read, and may be whole
        raise UserError(
            f"{str(made)!r} does not say what made it: delete its folder and run the command again."
        ) from error
    own = metadata.version("nope-interp")
    if version > Version(own):
        raise UserError(
            f"{str(made.parent)!r} was made by nope-interp {version}, and this is {own}: install "
            "that version, or choose another folder to run in."
        )
