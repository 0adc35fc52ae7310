"""Weights on disk: safetensors with the config in the header. Nothing is ever unpickled."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, no_type_check

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nope_interp.errors import UserError, shown
from nope_interp.fields import check_fields, check_lengths, from_mapping
from nope_interp.files import digest_of, given_path, write_atomically
from nope_interp.memory import check_weights
from nope_interp.models.config import TransformerConfig
from nope_interp.models.encodings import T5_BUCKETS
from nope_interp.models.transformer import HookedTransformer

# In a file's metadata stand, under this name, the digest and the header, as JSON. Under one name,
# since files with two hold them in an order that chance decides.
_HEADER = "nope_interp"


@no_type_check  # it checks itself, in sentences
@dataclass(frozen=True)
class TrainedOn:
    """What a saved model remembers of its training: the task, as `make_task` takes it.

    Attributes:
        task: its name.
        lengths: the shortest and the longest, where they were not the paper's.
        scratchpad: the parts of its steps that were written down, where any were.
        text: `TextTask.digest`, where it was not the text that ships with the package.

    Wrong values raise `UserError` with one sentence that names the field and the remedy.
    """

    task: str
    lengths: tuple[int, int] | None = None
    scratchpad: tuple[str, ...] | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.task.isprintable() or not self.task:
            raise UserError(f"task is {shown(self.task)}: give the name of one.")
        check_lengths(self.lengths)
        if self.scratchpad is not None and not self.scratchpad:
            raise UserError("scratchpad has no parts: name at least one, or leave it out.")


def save_tensors(path: Path | str, tensors: dict[str, Tensor], header: dict[str, Any]) -> Path:
    """Write tensors with a JSON header and a digest of both, atomically.

    Args:
        path: the file to make.
        tensors: by name, of any shapes and types.
        header: anything that JSON can hold.

    Returns:
        `path`.

    Raises:
        UserError: where the file cannot be written.
    """
    # Cloned, since safetensors refuses shared storage, and tied embeddings share theirs.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    text = json.dumps(header, sort_keys=True)
    metadata = {_HEADER: f"{_digest(copies, text)} {text}"}
    return write_atomically(given_path(path), lambda part: save_file(copies, part, metadata))


def load_tensors(path: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header of a file that `save_tensors` wrote.

    Args:
        path: the file.

    Returns:
        Tensors by name, on the CPU, and the header.

    Raises:
        UserError: where the file is missing, cut short, damaged or not ours, and where one byte of
            tensors or header is not what was written.
    """
    path = given_path(path)
    if not path.is_file():
        raise UserError(f"there is no checkpoint {str(path)!r}: check the path.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if _HEADER not in metadata:
                raise UserError(
                    f"{str(path)!r} was not written by nope-interp: give a Hugging Face folder, a "
                    "GGUF file, or a model.safetensors from one of its run folders."
                )
            digest, _, text = metadata[_HEADER].partition(" ")
            if digest.startswith("{"):
                raise UserError(
                    f"the checkpoint {str(path)!r} has no digest, so nothing tells whether it is "
                    "whole: it is of an older version, train it again."
                )
            header = json.loads(text)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except UserError:
        raise
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"the checkpoint {str(path)!r} is damaged or cut short ({error}): "
            "delete it and train it again, or give another one."
        ) from error
    if digest != _digest(tensors, text):
        raise UserError(
            f"the checkpoint {str(path)!r} is damaged (its weights or its header are not what was "
            "written): delete it and train it again, or give another one."
        )
    if not isinstance(header, dict):
        raise UserError(f"{str(path)!r} does not say what it holds: train it again.")
    return tensors, header


def _digest(tensors: dict[str, Tensor], header: str) -> str:
    """Of the header and of every tensor's name, type, shape and bytes."""
    parts = (
        (name, str(tensor.dtype), tensor.shape, tensor.reshape(-1).view(torch.uint8).numpy().data)
        for name, tensor in tensors.items()
    )
    return digest_of(header, parts)


def load_weights(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], path: Path) -> None:
    """Copy `weights` into a model's own.

    Args:
        own: the model's, by name; they keep their precision and device.
        weights: by name.
        path: where they come from, for sentences.

    Raises:
        UserError: where names or shapes do not fit, and for weights that are not finite.
    """
    for name, weight in weights.items():
        if not torch.isfinite(weight).all():
            raise UserError(
                f"the checkpoint {str(path)!r} holds NaN or infinite weights at {name}: train it "
                "again, or give another one."
            )
    if {n: w.shape for n, w in own.items()} != {n: w.shape for n, w in weights.items()}:
        raise UserError(
            f"the checkpoint {str(path)!r} does not fit its own config: train it again, or "
            "give another one."
        )
    for name, weight in weights.items():
        own[name].copy_(weight)


def save_model(
    model: HookedTransformer,
    path: Path | str,
    *,
    task: str,
    lengths: tuple[int, int] | None = None,
    scratchpad: tuple[str, ...] | None = None,
    text: str | None = None,
) -> Path:
    """Write a model with its config and the task that it was trained on, as in `TrainedOn`.

    Args:
        model: whose weights are written.
        path: the file to make.
        task: the name of the task.
        lengths: the shortest and the longest, where they were not the paper's.
        scratchpad: the parts of its steps that were written down, where any were.
        text: the digest of the text, where it was not that of the package.

    Returns:
        `path`.

    Raises:
        UserError: for another model than ours, a name that does not end in .safetensors, and where
            the file cannot be written.
    """
    if not isinstance(model, HookedTransformer):
        raise UserError(
            f"a {type(model).__name__} is no model of ours: write a pretrained one by its "
            "save_pretrained."
        )
    if given_path(path).suffix != ".safetensors":
        raise UserError(f"{str(path)!r} does not end in .safetensors: give a name that does.")
    asked = asdict(TrainedOn(task, lengths, scratchpad, text))
    known = {name: value for name, value in asked.items() if value is not None}
    return save_tensors(path, model.state_dict(), {"config": model.config.to_dict(), **known})


def load_model(path: Path | str) -> tuple[HookedTransformer, TrainedOn]:
    """A model that `save_model` wrote, and the task that it was trained on.

    Args:
        path: a model.safetensors of ours.

    Returns:
        The model, in evaluation mode on the CPU, and what it was trained on.

    Raises:
        UserError: as `load_tensors` and `check_weights` do, and where a field of the header is
            wrong, or is not that of a model with these weights.
    """
    check_weights(given_path(path), "cpu", "float32")
    weights, header = load_tensors(path)
    if "training" in header:
        raise UserError(
            f"{str(path)!r} holds a training state, not a model: use model.safetensors."
        )
    if not {"config", "task"} <= header.keys():
        raise UserError(f"{str(path)!r} does not say which model it holds: train it again.")
    try:
        config = TransformerConfig.from_dict(header.pop("config"))
        for name, value in header.items():
            if value is None:
                raise UserError(f"{name!r} is None: give a value, or leave it out.")
        trained_on = from_mapping(TrainedOn, header, "the header")
        _check_config(config, weights)
    except UserError as error:
        raise UserError(f"the header of the checkpoint {str(path)!r} is wrong: {error}") from error
    model = HookedTransformer(config)
    load_weights(model.state_dict(), weights, Path(path))
    return model.eval(), trained_on


def _check_config(config: TransformerConfig, weights: dict[str, Tensor]) -> None:
    """Raise UserError, before anything is built, where the weights tell of another config."""
    remedy = "train it again, or give another one."
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    told = _told_by(shapes)
    own = {name: getattr(config, name) for name in told}
    if not config.attn_only:
        own["d_mlp"] = config.mlp_width
    for name, value in told.items():
        if own[name] != value:
            raise UserError(
                f"{name} is {own[name]!r}, but the weights are of a model with {value!r}: {remedy}"
            )
    tables = {"learned": (config.n_ctx, config.d_model), "t5": (T5_BUCKETS, config.n_heads)}
    needed, found = tables.get(config.positions), shapes.get("positions.table")
    if needed != found:
        raise UserError(
            f"positions are {config.positions!r}, with {_table(needed)}, but the weights have "
            f"{_table(found)}: {remedy}"
        )
    if config.tied_embeddings and not torch.equal(
        weights["embed.weight"], weights.get("unembed.weight", torch.empty(0))
    ):
        raise UserError(f"tied_embeddings is True, but the weights' are not tied: {remedy}")


def _told_by(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """What the shapes of weights say of the config that they belong to."""
    d_vocab, d_model = (*shapes.get("embed.weight", ()), 0, 0)[:2]
    blocks = {name.split(".")[1] for name in shapes if name.startswith("blocks.")}
    biased, normed = ("blocks.0.ln1.b" in shapes), ("blocks.0.ln1.w" in shapes)
    told = {
        "n_layers": len(blocks),
        "d_vocab": d_vocab,
        "d_model": d_model,
        "normalization": "layer" if biased else "rms" if normed else "none",
        "attn_only": "blocks.0.mlp.out.weight" not in shapes,
    }
    if not told["attn_only"]:
        told["d_mlp"] = (0, *shapes["blocks.0.mlp.out.weight"])[-1]
        told["gated"] = (*shapes.get("blocks.0.mlp.into.weight", ()), 0)[0] == 2 * told["d_mlp"]
    return told


def _table(shape: tuple[int, ...] | None) -> str:
    return "no table of positions" if shape is None else f"a table of positions of shape {shape}"


def as_bidirectional(model: HookedTransformer) -> HookedTransformer:
    """The same weights with the causal mask lifted: a control that cannot know positions.

    Without the mask and without an encoding a transformer is permutation-equivariant whatever its
    weights, so anything a probe still reads from this model is not position.

    Args:
        model: any of ours.

    Returns:
        Another model, in evaluation mode and single precision, on the same device.
    """
    lifted = HookedTransformer(
        TransformerConfig.from_dict({**model.config.to_dict(), "causal": False})
    )
    lifted.load_state_dict(model.state_dict())
    return lifted.to(next(model.parameters()).device, torch.float32).eval()
