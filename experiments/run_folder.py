"""One folder for each run: named for its config, whole or resumable, never computed twice."""

import hashlib
import json
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from nope_interp.files import make_folder, read_json, write_json

_REPORTED_PACKAGES = ("nope-interp", "torch", "transformer-lens", "transformers", "scikit-learn")


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps its files.

    `config.json` is written first and `info.json` last, so a folder with `info.json` is finished.
    Cells, the parts of an unfinished run, are kept until then.
    """

    path: Path

    @classmethod
    def create(cls, parent: Path, name: str, config: dict[str, Any]) -> "RunFolder":
        """The folder for this config under `parent`: a new one, or the one begun before.

        Raises UserError where it cannot be written to.
        """
        text = json.dumps(config, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        folder = cls(make_folder(parent / f"{name}-{digest}"))
        if not folder.config.is_file():
            write_json(folder.config, {"config": config, "environment": environment()})
        return folder

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def info(self) -> Path:
        return self.path / "info.json"

    @property
    def model(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def training_state(self) -> Path:
        return self.path / "training_state.safetensors"

    @property
    def measurements(self) -> Path:
        return self.path / "measurements.parquet"

    @property
    def arrays(self) -> Path:
        return self.path / "arrays.safetensors"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def cells(self) -> Path:
        return self.path / "cells"

    @property
    def finished(self) -> bool:
        return self.info.is_file()

    def read_info(self) -> dict[str, Any]:
        """What was written when the run finished; raises UserError where it is damaged."""
        return read_json(self.info)


def environment() -> dict[str, str]:
    """The versions that a result depends on."""
    versions = {name: metadata.version(name) for name in _REPORTED_PACKAGES}
    return {"python": platform.python_version(), "platform": platform.platform(), **versions}


def fingerprint(path: Path) -> str:
    """Changes when a local model's files do: a hash of their names, sizes and times."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    stats = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file()]
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()[:16]
