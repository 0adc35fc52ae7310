"""Whether a model on disk fits into the memory that is free, before any of it is loaded."""

from pathlib import Path

import torch

from nope_interp.errors import UserError
from nope_interp.memory import free_bytes

_WEIGHTS = (".safetensors", ".gguf", ".bin")
_GIB = 2**30


def refuse_too_large(model: Path, device: str) -> None:
    """Raise UserError where a model's files are larger than the memory that is free.

    Of a hub name, or a model that is spread over devices, nothing is known before it is loaded.

    Args:
        model: a file or a folder, if it is on disk.
        device: where it is to be.
    """
    if device == "auto":
        return
    size, free = _size(model.expanduser()), free_bytes(torch.device(device))
    if size > free:
        raise UserError(
            f"the model {str(model)!r} has {size / _GIB:.1f} GiB, more than the "
            f"{free / _GIB:.1f} GiB of memory that are free: choose a smaller model."
        )


def _size(model: Path) -> int:
    """Bytes of its weights; 0 for what is not on disk."""
    files = model.iterdir() if model.is_dir() else [model]
    return sum(file.stat().st_size for file in files if file.suffix in _WEIGHTS and file.is_file())
