"""Pretrained models by hub name, Hugging Face folder or GGUF file, as TransformerBridges.

Every model is checked when it is loaded: its logits equal the unwrapped model's, its attention
weights sum to one, and no query sees the future. Of encoder-decoders T5's decoder can be loaded,
see `t5_decoder`.
"""

import difflib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nope_interp.devices import check_device
from nope_interp.errors import UserError, unknown_name
from nope_interp.files import given_path
from nope_interp.hooked_model import HookedModel
from nope_interp.memory import check_fits, check_weights
from nope_interp.positions.families import WITHOUT
from nope_interp.pretrained.bridges import give_tokenizer, wrap
from nope_interp.pretrained.checkpoint import read_checkpoint
from nope_interp.pretrained.checks import PARITY, check_bridge, check_order, dtype_name
from nope_interp.pretrained.gguf_file import converted_gguf
from nope_interp.pretrained.quiet import quiet
from nope_interp.pretrained.source import check_source, name_of
from nope_interp.pretrained.switched_off import switch_off
from nope_interp.pretrained.t5_decoder import T5DecoderLM
from nope_interp.shapes import Tokens
from nope_interp.tasks.sources import TextSource, UniformSource

_TOKENIZER_FILES = ("tokenizer*", "vocab*", "spiece.model", "sentencepiece*", "*.tiktoken")


@dataclass(frozen=True)
class Pretrained:
    """A bridge, its tokenizer (None where the model comes without one), and where it came from.

    `notes` are sentences about how its files were read.
    """

    model: HookedModel = field(repr=False)
    tokenizer: Any = field(repr=False)
    name: str
    notes: tuple[str, ...] = ()

    @property
    def begin_id(self) -> int | None:
        """The token that begins a sequence: for T5 what its decoder starts from; None without."""
        if isinstance(self.model.original_model, T5DecoderLM):
            return self.model.original_model.config.decoder_start_token_id
        return None if self.tokenizer is None else self.tokenizer.bos_token_id

    def text_source(self, text: str) -> TextSource:
        """`text` in this model's tokens, without special ones.

        Raises:
            UserError: without a tokenizer.
        """
        tokenizer = self._tokenizer("text cannot be turned into tokens")
        ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        return TextSource(torch.tensor(ids), self.begin_id)

    def uniform_source(self) -> UniformSource:
        """Every token of the vocabulary but the special ones.

        Raises:
            UserError: without a tokenizer.
        """
        tokenizer = self._tokenizer("nothing says which of its tokens are special")
        special = torch.tensor(sorted(tokenizer.all_special_ids), dtype=torch.long)
        ids = torch.arange(min(len(tokenizer), self.model.cfg.d_vocab))
        return UniformSource(ids[~torch.isin(ids, special)], self.begin_id)

    def _tokenizer(self, so: str) -> Any:
        if self.tokenizer is None:
            raise UserError(
                f"the model {self.name!r} has no tokenizer, so {so}: add its tokenizer's files."
            )
        return self.tokenizer


def load_pretrained(
    name_or_path: str | Path,
    *,
    revision: str | None = None,
    dtype: str = "float32",
    positions: str = "auto",
    device: str = "cpu",
    device_map: str | dict[str, Any] | None = None,
) -> Pretrained:
    """Load a causal language model, or T5's decoder.

    Args:
        name_or_path: a hub name (`openai-community/gpt2`), a Hugging Face folder with
            safetensors weights, or a `.gguf` file (dequantised once and cached).
        revision: branch, tag or commit of a hub name.
        dtype: "float32", "bfloat16" or "float16".
        positions: which positions its weights were trained with: "none", "rotary", "learned",
            "alibi" or "t5"; "auto" goes by its config and a table of published models.
        device: a torch device.
        device_map: spreads the model over several devices, "auto" or as transformers takes it;
            needs the package accelerate, and `device` left alone.

    Returns:
        The hooked model, with its tokenizer where it has one, in evaluation mode.

    Raises:
        UserError: for an unknown dtype or device, where there is no such model, its files are
            damaged or pickled, it does not run or does not fit the device, TransformerLens does not
            know its architecture, the wrapped model fails its checks, it cannot have these
            positions, or something hints at none that transformers would not heed.
    """
    name = name_of(name_or_path)
    model, tokenizer, notes = load_plain(
        name,
        revision=revision,
        dtype=dtype,
        positions=positions,
        device=device,
        device_map=device_map,
    )
    return Pretrained(_bridge(model, tokenizer, name), tokenizer, name, notes)


def load_plain(
    name_or_path: str | Path,
    *,
    revision: str | None = None,
    dtype: str = "float32",
    positions: str = "auto",
    device: str = "cpu",
    device_map: str | dict[str, Any] | None = None,
) -> tuple[Any, Any, tuple[str, ...]]:
    """A model as transformers has it, without hooks, to be trained.

    Args:
        name_or_path: a hub name, a Hugging Face folder or a `.gguf` file, as for `load_pretrained`.
        revision: branch, tag or commit of a hub name.
        dtype: "float32", "bfloat16" or "float16".
        positions: which positions its weights were trained with, or "auto", as for
            `load_pretrained`.
        device: a torch device.
        device_map: spreads the model over several devices; needs `device` left alone.

    Returns:
        The model, its tokenizer or None, and sentences about how its files were read.

    Raises:
        UserError: as `load_pretrained` does of files, devices and positions.
    """
    if dtype not in PARITY:
        raise unknown_name("dtype", dtype, PARITY)
    _check_device_map(device, device_map)
    check_device(device)
    name = name_of(name_or_path)
    source = _resolve(name)
    if device_map is None:
        check_weights(Path(source), device, dtype)
    if revision is not None and Path(source).exists():
        kind = "folder" if given_path(name).is_dir() else "file"
        raise UserError(f"{name!r} is a local {kind} and has no revisions: leave revision out.")
    where = {"pretrained_model_name_or_path": source, "revision": revision or "main"}
    with quiet(), _one_sentence(name):
        how = {"dtype": getattr(torch, dtype), "device_map": device_map}
        model, notes = read_checkpoint(name, where, positions, device=device, **how)
        tokenizer = _load_tokenizer(where)
    if device_map is None:
        model = _moved(model, device, name)
    return model, tokenizer, notes


def reinitialized(pretrained: Pretrained, seed: int) -> Pretrained:
    """The same architecture with its weights drawn anew by its own initialisation.

    Args:
        pretrained: a loaded model.
        seed: of torch's generator, which is put back.

    Returns:
        A new model of the same precision on the same devices, with the same tokenizer.
    """
    original = pretrained.model.original_model
    if isinstance(original, T5DecoderLM):
        original = original.base_model.t5
    weight = next(original.parameters())
    with quiet(), torch.random.fork_rng():
        torch.manual_seed(seed)
        fresh = type(original)._from_config(original.config, dtype=weight.dtype)
    if getattr(original.config, WITHOUT, False):
        switch_off(fresh)
    device_map = getattr(original, "hf_device_map", None)
    if device_map is not None and len(device_map) > 1:
        from accelerate import dispatch_model

        fresh = dispatch_model(fresh, device_map)
    else:
        fresh = fresh.to(weight.device)
    tokenizer, name = pretrained.tokenizer, pretrained.name
    return Pretrained(_bridge(fresh, tokenizer, name), tokenizer, name)


def _moved(model: Any, device: str, name: str) -> Any:
    try:
        return model.to(device)
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"the model {name!r} does not fit the device {device!r}: give bfloat16, a smaller "
            "model, or a device_map over several devices."
        ) from error


def _check_device_map(device: str, device_map: object) -> None:
    if device_map is None:
        return
    if device != "cpu":
        raise UserError("a device and a device_map contradict each other: give one of them.")
    if importlib.util.find_spec("accelerate") is None:
        raise UserError("device_map needs the package accelerate: install it, or leave it out.")


def _load_tokenizer(where: dict[str, str]) -> Any:
    """The tokenizer, or None where there are no files of one; a damaged one is an error."""
    from transformers import AutoTokenizer

    folder = Path(where["pretrained_model_name_or_path"])
    local = folder.is_dir()
    if local and not any(found for name in _TOKENIZER_FILES for found in folder.glob(name)):
        return None
    try:
        return AutoTokenizer.from_pretrained(**where, trust_remote_code=False)
    # What the hub lacks and what cannot be read there look alike in transformers' exceptions.
    except (OSError, ValueError):
        if local:
            raise
        return None


def _bridge(model: Any, tokenizer: Any, name: str) -> HookedModel:
    model.eval()
    architecture = type(model).__name__
    if hasattr(model, "encoder"):
        model = T5DecoderLM(model)
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    device = next(model.parameters()).device
    probe = torch.randint(vocabulary, (2, 8), generator=generator).to(device)
    expected = _plain_logits(model, probe, name)
    try:
        with quiet():
            bridge = wrap(model)
        check_bridge(bridge, probe, expected, name)
    except UserError:
        raise
    # Whatever an adapter meets in an architecture, or a precision, that it does not fit.
    except Exception as error:
        raise UserError(
            f"TransformerLens cannot wrap {name!r}, a {architecture} in {dtype_name(expected)} "
            f"({_first_line(error)}): choose a model it supports."
        ) from error
    check_order(bridge, name)
    if tokenizer is not None:
        give_tokenizer(bridge, tokenizer)
    return bridge


def _plain_logits(model: Any, tokens: Tokens, name: str) -> Float[Tensor, "batch pos d_vocab"]:
    """What the model itself makes of the tokens, before it is wrapped."""
    try:
        with quiet(), torch.no_grad():
            logits = model(tokens, use_cache=False).logits
    # A config that contradicts itself, or a precision that an operation lacks: any exception.
    except Exception as error:
        raise UserError(
            f"the model {name!r}, a {type(model).__name__}, fails by itself "
            f"({_first_line(error)}): give another dtype, or a model whose config fits it."
        ) from error
    if not logits.isfinite().all():
        raise UserError(
            f"the logits of {name!r} hold NaN or infinite values: its weights are damaged, or need "
            "another dtype."
        )
    return logits


def _resolve(name_or_path: str) -> str:
    """A hub name as it is; a folder or a converted GGUF file as a path."""
    check_source(name_or_path)
    path = given_path(name_or_path)
    if path.is_dir():
        return str(path)
    if path.suffix != ".gguf":
        return name_or_path
    check_fits(str(path), path.stat().st_size, "cpu", "float32")  # at least
    with _one_sentence(str(path)):
        return str(converted_gguf(path))


@contextmanager
def _one_sentence(name: str) -> Iterator[None]:
    """Turn whatever goes wrong while a model is loaded into one sentence that names it."""
    try:
        yield
    except UserError:
        raise
    # Loading crosses five libraries, each with its own exceptions for a damaged file.
    except Exception as error:
        raise UserError(
            f"cannot load the model {name!r} ({_first_line(error)}){_nearest_hub_name(name)}"
        ) from error


def _nearest_hub_name(name: str) -> str:
    if Path(name).exists():
        return (
            ": its files are damaged, or not those of a model that transformers knows; get them "
            "anew, or give another one."
        )
    from transformer_lens.supported_models import OFFICIAL_MODEL_NAMES

    near = difflib.get_close_matches(name, OFFICIAL_MODEL_NAMES, n=1)
    if near and near[0] != name:
        return f"; did you mean {near[0]!r}?"
    return ": check the name and the network, or give a local folder or GGUF file."


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".:")[:200]
