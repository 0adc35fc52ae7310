"""Whether a model that is named can be there at all. Imports nothing heavy."""

from pathlib import Path

from nope_interp.errors import UserError, shown
from nope_interp.files import given_path, model_files

# A training leaves no info.json, and Hugging Face never a state or a lock.
_MARKS_OF_RUNS = ("info.json", "training_state.safetensors", ".lock")


def name_of(model: str | Path) -> str:
    """A model's name, or its path as text; raises UserError for anything else."""
    if not isinstance(model, str | Path):
        raise UserError(f"the model is {shown(model)}: give a hub name, a folder or a file.")
    return str(model)


def is_own(model: str) -> bool:
    """Whether a model's name is that of a file of ours, and no hub name or folder."""
    return model.endswith(".safetensors")


def _check_weights_can_be_read(folder: Path, kinds: set[str]) -> None:
    """Raise UserError for a folder whose weights are pickled: reading them can run code."""
    pickled = sorted(file.name for file in folder.glob("pytorch_model*.bin"))
    if pickled and ".safetensors" not in kinds:
        raise UserError(
            f"the folder {str(folder)!r} has its weights in {pickled[0]}, which is pickled and not "
            "read here: load it with transformers where you trust it, and save_pretrained() it."
        )


def check_source(name_or_path: str) -> None:
    """Raise UserError for a name that is neither a hub's nor that of a file or folder with a model.

    Nothing is loaded, and no hub is asked.
    """
    if not name_or_path:
        raise UserError("the model's name is empty: give a hub name, a folder or a file.")
    path = given_path(name_or_path)
    if name_or_path.endswith("/") and path.is_file():
        raise UserError(f"{name_or_path!r} is a file: leave the last / out.")
    if is_own(str(path)):
        if not path.is_file():
            raise UserError(f"there is no checkpoint {name_or_path!r}: check the path.")
    elif path.is_dir():
        if any((path / mark).is_file() for mark in _MARKS_OF_RUNS):
            raise UserError(
                f"{name_or_path!r} is a run folder of ours: give its model.safetensors instead."
            )
        _check_weights_can_be_read(path, {file.suffix for file in model_files(path)})
    elif path.suffix == ".gguf":
        if not path.is_file():
            raise UserError(f"there is no GGUF file {name_or_path!r}: check the path.")
    elif path.exists() or name_or_path.startswith((".", "/", "~")) or name_or_path.count("/") > 1:
        raise UserError(
            f"{name_or_path!r} is neither a hub name, a Hugging Face folder, a GGUF file nor a "
            "model.safetensors of ours: check the path."
        )
