"""How much memory a model, a forward pass or a step of training takes, and whether it is there."""

import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nope_interp.attention_shapes import head_size
from nope_interp.errors import FieldError, UserError
from nope_interp.files import given_path
from nope_interp.hooked_model import HookedModel
from nope_interp.query_blocks import block_size

_MEMINFO = Path("/proc/meminfo")
_CONTAINER = Path("/sys/fs/cgroup")
_GIB = 2**30
# Bytes of a number.
_PRECISIONS = {"float32": 4, "bfloat16": 2, "float16": 2}
_DAMAGED = (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
_MOST_HEADER = 100 * 10**6  # bytes, as their library has it

# How many tensors of a kind stand beside one another at the fullest moment of a forward pass, and
# how many a layer keeps for the backward pass. A test holds both to what is measured.
_STREAMS, _HEADS, _INNER, _MAPS = 6, 4, 3, 4
_KEPT_STREAMS, _KEPT_HEADS, _KEPT_INNER, _LOGITS, _READ_LOGITS = 8, 6, 5, 4, 3
_MASKS = 5  # bytes for a pair of tokens


@dataclass(frozen=True)
class Widths:
    """What the memory of a model's pass depends on.

    Attributes:
        n_layers: of the model.
        n_heads: of a layer.
        d_model: numbers in an activation of the residual stream.
        d_heads: in the queries of all heads of a layer.
        d_mlp: in a layer's widest inner activation.
        number: bytes of each.
    """

    n_layers: int
    n_heads: int
    d_model: int
    d_heads: int
    d_mlp: int
    number: int

    @classmethod
    def of(cls, model: HookedModel) -> "Widths":
        """Those of a HookedTransformer or a bridge."""
        cfg = model.cfg
        number = next(model.parameters()).element_size()
        heads = cfg.n_heads * cfg.d_head
        inner = cfg.d_mlp or 4 * cfg.d_model
        return cls(cfg.n_layers, cfg.n_heads, cfg.d_model, heads, inner, number)

    @classmethod
    def of_plain(cls, model: Any) -> "Widths":
        """Those of a model of transformers."""
        config, number = model.config, next(model.parameters()).element_size()
        n_heads, d_model = config.num_attention_heads, config.hidden_size
        heads = n_heads * head_size(config)
        inner = getattr(config, "intermediate_size", None) or 4 * d_model
        return cls(config.num_hidden_layers, n_heads, d_model, heads, inner, number)

    @property
    def at_once(self) -> int:
        """Numbers for each token at the fullest moment of a forward pass, without maps."""
        return _STREAMS * self.d_model + max(_HEADS * self.d_heads, _INNER * self.d_mlp)


def forward_bytes(model: HookedModel, n_sequences: int, length: int) -> float:
    """About how much a forward pass takes that is listened to, beside the weights.

    Args:
        model: a HookedTransformer or a bridge.
        n_sequences: in the pass.
        length: tokens in each.

    Returns:
        Bytes.
    """
    of = Widths.of(model)
    queries = block_size(model, n_sequences, length) or length
    tokens = n_sequences * length
    return of.number * tokens * (of.at_once + _MAPS * of.n_heads * queries)


def last_bytes(model: Any, n_sequences: int, length: int, *, n_last: int, n_kinds: int) -> float:
    """The same where nobody listens, and the log-probabilities of the last tokens are read:
    attention is fused, and only a window has a mask.

    Args:
        model: of transformers.
        n_sequences: in the pass.
        length: tokens in each.
        n_last: how many of them are read.
        n_kinds: kinds of tokens that their log-probabilities are over.

    Returns:
        Bytes.
    """
    of = Widths.of_plain(model)
    masks = 0 if getattr(model.config, "sliding_window", None) is None else _MASKS
    read = 4.0 * _READ_LOGITS * n_sequences * min(n_last, length) * n_kinds
    return of.number * n_sequences * length * of.at_once + masks * length**2 + read


def training_bytes(
    model: Any, n_sequences: int, length: int, *, n_kinds: int, n_weights: int
) -> float:
    """About how much a step of training takes, beside the weights.

    Args:
        model: of transformers.
        n_sequences: in a step.
        length: tokens in each.
        n_kinds: kinds of tokens that losses are over.
        n_weights: numbers that are trained.

    Returns:
        Bytes: activations kept for the gradient, logits, gradients and moments.
    """
    of = Widths.of_plain(model)
    kept = _KEPT_STREAMS * of.d_model + _KEPT_HEADS * of.d_heads + _KEPT_INNER * of.d_mlp
    tokens = n_sequences * length
    # Of each weight a gradient and two moments.
    numbers = tokens * (of.n_layers * kept + _LOGITS * n_kinds) + 3 * n_weights
    return 4.0 * numbers


def check_room(
    name: str, length: int, needed: Callable[[int], float], model: HookedModel | nn.Module
) -> None:
    """Refuse sequences that memory cannot hold.

    Args:
        name: of the field that says how long they are.
        length: tokens in a sequence.
        needed: the bytes that a pass takes, by the length; it grows with it.
        model: that the pass is of, on one device or spread over several.

    Raises:
        UserError: with the largest length that fits.
    """
    free = free_beside(model)
    if needed(length) <= free:
        return
    fits, too_long = 0, length
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        fits, too_long = (middle, too_long) if needed(middle) <= free else (fits, middle)
    remedy = f"give at most {fits}, or" if fits else "free some memory, or give"
    raise FieldError(
        name,
        f"is {length}: a pass takes about {needed(length) / _GIB:,.1f} GiB, and {free / _GIB:,.1f} "
        f"GiB are free: {remedy} fewer sequences at a time.",
    )


def check_weights(model: Path, device: str, dtype: str) -> None:
    """Refuse a model on disk that memory cannot hold, before any of it is loaded.

    Args:
        model: a file or a folder, if it is on disk.
        device: where it is to be.
        dtype: the precision that it is to have.

    Raises:
        UserError: where the weights take more than is free.
    """
    needed = _PRECISIONS[dtype] * sum(map(_numbers, _files(given_path(model))))
    check_fits(str(model), needed, device, dtype)


def _files(model: Path) -> list[Path]:
    """What transformers loads of a folder, whatever else lies there: one file, or its parts."""
    whole = model / "model.safetensors" if model.is_dir() else model
    return [whole] if whole.is_file() else [*model.glob("model-*-of-*.safetensors")]


def check_fits(model: str, needed: float, device: str, dtype: str) -> None:
    """Refuse a model that memory cannot hold: the processor's, where weights are read, or that of
    the device where they go.

    Args:
        model: its name.
        needed: the bytes that its weights take.
        device: where it is to be.
        dtype: the precision that it is to have.

    Raises:
        UserError: where the weights take more than is free.
    """
    free = min(free_bytes(torch.device(place)) for place in {"cpu", device})
    if needed > free:
        raise UserError(
            f"the model {model!r} takes {needed / _GIB:,.1f} GiB in {dtype}, more than the "
            f"{free / _GIB:,.1f} GiB of memory that are free: choose a smaller model."
        )


def _numbers(file: Path) -> int:
    """How many a safetensors file says that it holds; 0 for one that is damaged.

    Their library maps the whole file, which fails for one that is larger than the memory.
    """
    with suppress(*_DAMAGED), file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        tensors = json.loads(opened.read(size)) if size <= _MOST_HEADER else {}
        tensors.pop("__metadata__", None)
        return sum(math.prod(tensor["shape"]) for tensor in tensors.values())
    return 0


def free_beside(model: HookedModel | nn.Module) -> float:
    """The memory that is left on all devices that a model stands on.

    Args:
        model: of any kind.
    """
    return sum(free_bytes(device) for device in {weight.device for weight in model.parameters()})


def free_bytes(device: torch.device) -> float:
    """The memory that a device has left; infinite where that is not told."""
    if device.type == "cuda":
        # What torch keeps for later tensors counts as used there.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + kept)
    if device.type != "cpu" or not _MEMINFO.is_file():
        return float("inf")
    told = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    return min(1024.0 * int(told["MemAvailable"].split()[0]), _left_in_container())


def _left_in_container() -> float:
    limit, used = _CONTAINER / "memory.max", _CONTAINER / "memory.current"
    if not (limit.is_file() and used.is_file()) or limit.read_text().strip() == "max":
        return float("inf")
    left = float(limit.read_text()) - float(used.read_text()) + _files_let_go()
    return max(left, 0.0)


def _files_let_go() -> float:
    """What the container's memory holds of files that were read, and gives up where it is short."""
    told = _CONTAINER / "memory.stat"
    lines = told.read_text().splitlines() if told.is_file() else []
    return sum(float(line.split()[1]) for line in lines if line.startswith("inactive_file "))
