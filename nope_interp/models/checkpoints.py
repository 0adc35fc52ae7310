"""Weights on disk: safetensors with the config in the header. Nothing is ever unpickled."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nope_interp.errors import UserError
from nope_interp.files import write_atomically
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer


@dataclass(frozen=True)
class TrainedOn:
    """What a saved model remembers of its training: the task, as `make_task` takes it.

    Attributes:
        task: its name.
        lengths: the shortest and the longest, where they were not the paper's.
        scratchpad: the parts of its steps that were written down, where any were.
    """

    task: str
    lengths: tuple[int, int] | None = None
    scratchpad: tuple[str, ...] | None = None


def save_tensors(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> Path:
    """Write tensors with a JSON header, atomically."""
    # Cloned, since safetensors refuses shared storage, and tied embeddings share theirs.
    copies = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
    metadata = {"nope_interp": json.dumps(header, sort_keys=True)}
    return write_atomically(path, lambda part: save_file(copies, part, metadata))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header of a file that `save_tensors` wrote.

    Raises UserError where the file is missing, cut short, damaged or not ours.
    """
    if not path.is_file():
        raise UserError(f"there is no checkpoint {str(path)!r}.")
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["nope_interp"])
            return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(
            f"the checkpoint {str(path)!r} is damaged or cut short ({error}): "
            "train it again, or give another one."
        ) from error
    except KeyError as error:
        raise UserError(
            f"{str(path)!r} was not written by nope-interp: give a Hugging Face folder, a GGUF "
            "file, or a model.safetensors from one of its run folders."
        ) from error


def load_weights(model: HookedTransformer, weights: dict[str, Tensor], path: Path) -> None:
    """Copy `weights` into `model`.

    Raises UserError where names or shapes do not fit, and for weights that are not finite.
    """
    for name, weight in weights.items():
        if not torch.isfinite(weight).all():
            raise UserError(
                f"the checkpoint {str(path)!r} holds NaN or infinite weights at {name}: train it "
                "again, or give another one."
            )
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(
            f"the checkpoint {str(path)!r} does not fit its own config: train it again, or "
            "give another one."
        ) from error


def save_model(
    model: HookedTransformer,
    path: Path,
    *,
    task: str,
    lengths: tuple[int, int] | None = None,
    scratchpad: tuple[str, ...] | None = None,
) -> Path:
    """Write a model with its config and the task that it was trained on, as in `TrainedOn`."""
    asked = asdict(TrainedOn(task, lengths, scratchpad))
    known = {name: value for name, value in asked.items() if value is not None}
    return save_tensors(path, model.state_dict(), {"config": model.config.to_dict(), **known})


def load_model(path: Path) -> tuple[HookedTransformer, TrainedOn]:
    """A model in evaluation mode, and the task that it was trained on."""
    weights, header = load_tensors(path)
    if not isinstance(header, dict) or not {"config", "task"} <= header.keys():
        raise UserError(f"{str(path)!r} does not say which model it holds: train it again.")
    if "training" in header:
        raise UserError(
            f"{str(path)!r} holds a training state, not a model: use model.safetensors."
        )
    model = HookedTransformer(TransformerConfig.from_dict(header["config"]))
    load_weights(model, weights, path)
    lengths, scratchpad = (
        tuple(header[name]) if name in header else None for name in ("lengths", "scratchpad")
    )
    return model.eval(), TrainedOn(header["task"], lengths, scratchpad)


def bidirectional_twin(model: HookedTransformer) -> HookedTransformer:
    """The same weights with the causal mask lifted: a control that cannot know positions.

    Without the mask and without an encoding a transformer is permutation-equivariant whatever its
    weights, so anything a probe still reads from this twin is not position.
    """
    twin = HookedTransformer(
        TransformerConfig.from_dict({**model.config.to_dict(), "causal": False})
    )
    twin.load_state_dict(model.state_dict())
    return twin.to(next(model.parameters()).device, torch.float32).eval()
