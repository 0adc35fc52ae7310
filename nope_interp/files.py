"""Files that are either whole or absent: written beside their place, then renamed into it."""

import glob
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

from safetensors import SafetensorError

from nope_interp.errors import UserError, shown

_LONGEST_PATH = 4095  # bytes that Linux takes, and more than other systems' names
_LONGEST_SHOWN = 200
# Config, tokenizer, weights and chat template, as transformers names them.
_OF_MODELS = (".json", ".safetensors", ".bin", ".model", ".txt", ".tiktoken", ".jinja")


def given_path(path: Path | str) -> Path:
    """Where a path that somebody gave leads: `~` is their home folder.

    Args:
        path: of a file or folder, which need not be there.

    Returns:
        The same as a Path.

    Raises:
        UserError: for what is no path, a name that is no UTF-8, which weights cannot be kept under,
            what is longer than any path, such as a text, and a `~` of somebody without a home.
    """
    if not isinstance(path, str | Path):
        raise UserError(f"the path is {shown(path)}: give that of a file or folder.")
    try:
        n_bytes = len(str(path).encode())
    except UnicodeEncodeError as error:
        told = ascii(str(path))  # what stands for single bytes cannot be printed
        raise UserError(f"the name {told} is no UTF-8: give another file or folder.") from error
    if n_bytes > _LONGEST_PATH:
        raise UserError(
            f"{shown(str(path))} has {n_bytes:,} bytes, too many for a path: give the path of a"
            " file, not what stands in it."
        )
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(
            f"{str(path)!r} begins with a user who has no home here: check the path."
        ) from error


def file_slug(name: str) -> str:
    """A name as a part of a file's: letters, digits, points and dashes, at most 60; "" of none."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[:60].strip("-.")


def make_folder(folder: Path) -> Path:
    """Create `folder` with its parents and prove that it can be written to.

    Args:
        folder: may be there already.

    Returns:
        `folder`.

    Raises:
        UserError: where it cannot be made or written to, before any work is done for it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    check_writable(folder)
    return folder


def check_writable(folder: Path) -> None:
    """Raise UserError where `make_folder` would; leaves nothing behind."""
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> UserError:
    why = error.strerror or error
    return UserError(f"cannot write to the folder {str(folder)!r} ({why}): choose another one.")


def write_atomically(path: Path, write: Callable[[Path], object]) -> Path:
    """Call `write` on a temporary name in `path`'s folder, then rename the result to `path`, or to
    where that leads.

    A killed process leaves the old file, or none; never half of the new one. Whatever `write` does,
    the file may be read and written by whom the umask says.

    Args:
        path: the file to make; its folder is made where it is not there.
        write: given a path, writes the file there.

    Returns:
        `path`.

    Raises:
        UserError: where the folder cannot be written to, the disk is full, or what is there is no
            ordinary file: a device or a pipe would be gone.
    """
    if not path.name:
        raise UserError(f"{str(path)!r} is no file name: give one.")
    try:
        target = path.resolve() if path.is_symlink() else path
        special = target.exists() and not (target.is_file() or target.is_dir())
    except RuntimeError as error:
        raise UserError(f"{str(path)!r} is a link that leads to itself: remove it.") from error
    except OSError as error:  # a name that is too long
        raise cannot_write(path, error) from error
    if special:
        raise UserError(f"{str(path)!r} is a device or a pipe: give the name of a file.")
    make_folder(target.parent)
    temporary = part_of(target)
    try:
        write(temporary)
        honour_umask(temporary)
        os.replace(temporary, target)
    # Its own kind of error, though it be a full disk.
    except (OSError, SafetensorError) as error:
        raise cannot_write(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def part_of(path: Path) -> Path:
    """Where this process makes a file or folder before it renames it to `path`.

    What processes that were killed on this machine have left in such places is removed.

    Args:
        path: what is to be made; its folder is there.

    Returns:
        A hidden name beside it, which tells machine and process.
    """
    # Machines that share a folder do not see each other's processes.
    machine = f".{path.name}.{crc32(os.uname().nodename.encode()):08x}-"
    for part in path.parent.glob(f"{glob.escape(machine)}*.part"):
        process = part.name.removeprefix(machine).removesuffix(".part")
        if process.isdecimal() and not _runs(int(process)):
            with suppress(OSError):  # somebody else's, or just removed
                shutil.rmtree(part) if part.is_dir() else part.unlink()
    return path.with_name(f"{machine}{os.getpid()}.part")


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True


def cannot_write(path: Path, error: Exception) -> UserError:
    """What is said of a file or folder that could not be written.

    Args:
        path: what was to be made.
        error: what stood in the way.

    Returns:
        The error, to be raised.
    """
    reason = getattr(error, "strerror", None) or error
    return UserError(
        f"cannot write {str(path)!r} ({reason}): free some space or choose another folder."
    )


def honour_umask(path: Path) -> None:
    """Let a file be read and written by whom the umask says, as any new file is.

    Args:
        path: a file that a library has made, safetensors for one, which lets its owner alone read
            it.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        new.touch()
        path.chmod(new.stat().st_mode)
    finally:
        new.unlink(missing_ok=True)


def file_digest(path: Path) -> str:
    """SHA-256 of what a file holds, in hexadecimal; one that has not changed is not read again.

    Args:
        path: the file, which may be of gigabytes.

    Raises:
        OSError: where it cannot be read.
    """
    stat = path.stat()
    return _digest_of_file(path.absolute(), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=1024)
def _digest_of_file(path: Path, size: int, modified_ns: int) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def digest_of(header: str, tensors: Iterable[tuple[str, str, Sequence[int], memoryview]]) -> str:
    """What tells whether a file of tensors is as it was written.

    Args:
        header: what the file says beside them.
        tensors: name, type, shape and bytes of each, in any order.

    Returns:
        SHA-256 of all that, in hexadecimal.
    """
    digest = hashlib.sha256(json.dumps(header).encode())
    for name, kind, shape, content in sorted(tensors, key=lambda tensor: tensor[0]):
        digest.update(json.dumps([name, kind, list(shape)]).encode())
        digest.update(content)
    return digest.hexdigest()


def model_files(folder: Path) -> list[Path]:
    """The files of a Hugging Face folder that a model is made of.

    Only what stands in the folder itself is looked at, whatever else lies below it.

    Args:
        folder: with config, weights and tokenizer.

    Returns:
        Their paths, sorted.

    Raises:
        UserError: where there is no `config.json`, so that it holds no model.
    """
    if not (folder / "config.json").is_file():
        raise UserError(
            f"the folder {str(folder)!r} has no config.json: give a Hugging Face folder."
        )
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_file()]
    return [folder / name for name in sorted(names) if name.endswith(_OF_MODELS)]


def write_json(path: Path, value: Any) -> Path:
    """Write `value` as indented JSON, atomically.

    Args:
        path: the file to make.
        value: anything that JSON can hold.

    Returns:
        `path`.

    Raises:
        UserError: as `write_atomically` does.
    """
    return write_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def write_text(path: Path, text: str) -> Path:
    """Write a text as UTF-8, atomically.

    Args:
        path: the file to make.
        text: what it is to hold.

    Returns:
        `path`.

    Raises:
        UserError: as `write_atomically` does.
    """
    return write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Args:
        path: the file.

    Returns:
        What it holds.

    Raises:
        UserError: where the file is missing or is not JSON.
    """
    text = utf8_of(path, "the file", "check the path")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{str(path)!r} is not valid JSON ({error}): mend it, or give another file."
        ) from error


def utf8_of(path: Path | str, what: str, remedy: str) -> str:
    """What a UTF-8 file says, without the mark that some editors put before it.

    Args:
        path: the file; `~` is the home folder.
        what: the file is called so in errors, such as "the config".
        remedy: what to do where it cannot be read.

    Returns:
        Its text.

    Raises:
        UserError: where it is missing, cannot be read or is not UTF-8.
    """
    given = given_path(path)
    try:
        return given.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{what} {str(path)!r} is not UTF-8 ({error.reason}): save it as UTF-8 first."
        ) from error
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot read {what} {shown(str(path), _LONGEST_SHOWN)} ({reason}): {remedy}."
        ) from error


def read_text(path: Path | str) -> str:
    """The text of a UTF-8 file; raises UserError where it is missing, empty or something else."""
    text = utf8_of(path, "the text", "give the path of a UTF-8 file")
    if not text.strip():
        raise UserError(f"the text {str(path)!r} is empty: give a file with text in it.")
    return text
