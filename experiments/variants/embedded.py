"""The small model that ships with the package, trained already; `embedded_model/` holds it."""

import shutil
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from nope_interp.files import write_atomically

_FOLDER = Path(__file__).parent / "embedded_model"
EMBEDDED_MODEL = _FOLDER / "model.safetensors"


@cache
def made() -> dict[str, Any]:
    """How the model was made: the command that makes the same file again, its digest, its loss on
    held-out text in nats per token, and the processor and versions that it was made with."""
    return tomllib.loads((_FOLDER / "made.toml").read_text(encoding="utf-8"))


def copy_embedded(path: Path) -> Path:
    """Put a copy of the model's file at `path`; raises UserError where it cannot be written."""
    return write_atomically(path, lambda part: shutil.copyfile(EMBEDDED_MODEL, part))


def is_embedded(path: Path) -> bool:
    """Whether the file at `path` is this model, byte for byte: elsewhere its training may end in
    others."""
    return path.read_bytes() == EMBEDDED_MODEL.read_bytes()


def embedded_note() -> str:
    """What a report has to say where this model is read."""
    return (
        f"The model ships with the package; `{made()['command']}` trains it again. Options that "
        "change the training have another one trained."
    )
