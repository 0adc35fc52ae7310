"""Whether a model on disk fits into the memory that is free, before any of it is loaded."""

from pathlib import Path

from nope_interp.errors import UserError

_MEMINFO = Path("/proc/meminfo")
_WEIGHTS = (".safetensors", ".gguf", ".bin")
_GIB = 2**30


def refuse_too_large(model: Path, meminfo: Path = _MEMINFO) -> None:
    """Raise UserError where a model's files are larger than the memory that is free.

    Where the system does not say what is free, or the model is a hub name, nothing is known.

    Args:
        model: a file or a folder, if it is on disk.
        meminfo: where Linux says how much is free.
    """
    size, free = _size(model.expanduser()), _free(meminfo)
    if free is not None and size > free:
        raise UserError(
            f"the model {str(model)!r} has {size / _GIB:.1f} GiB, more than the "
            f"{free / _GIB:.1f} GiB of memory that are free: choose a smaller model."
        )


def _size(model: Path) -> int:
    """Bytes of its weights; 0 for what is not on disk."""
    files = model.iterdir() if model.is_dir() else [model]
    return sum(file.stat().st_size for file in files if file.suffix in _WEIGHTS and file.is_file())


def _free(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
        (kib,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
        return 1024 * int(kib)
    except (OSError, ValueError):
        return None
