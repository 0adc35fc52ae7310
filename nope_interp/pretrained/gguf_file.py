"""GGUF files, dequantised once into an ordinary Hugging Face folder.

Whoever asks while another process converts a file waits for it, and finds the folder.
"""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from filelock import FileLock

from nope_interp.errors import UserError
from nope_interp.files import file_digest, given_path, honour_umask, make_folder, write_json
from nope_interp.pretrained.gguf_rotation import follow_rotation, follow_window
from nope_interp.pretrained.quiet import quiet

# Which way of converting made a folder: what an older one made is made again.
_CONVERSION = 3


def cache_folder() -> Path:
    """Where converted models are kept: $NOPE_INTERP_CACHE, else the user's cache folder."""
    chosen = os.environ.get("NOPE_INTERP_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return given_path(chosen or str(Path(base) / "nope-interp"))


def converted_gguf(path: Path) -> Path:
    """The folder with a file dequantised to float32 safetensors; made on first use.

    Args:
        path: the file.

    Returns:
        The folder, which is named after the file's content.

    Raises:
        UserError: where the cache cannot be written, for a file that lacks weights or has others
            than its model, and for rotations that cannot be followed.
        Exception: what the libraries that read it raise of a damaged file.
    """
    digest = file_digest(path)
    folder = cache_folder() / "gguf" / digest[:16]
    # Written last: a conversion that was killed half-way is made again.
    complete = folder / "complete.json"
    made = {"sha256": digest, "conversion": _CONVERSION}
    if not _is_made(complete, made):
        make_folder(folder)
        with FileLock(folder.with_suffix(".lock")):
            if not _is_made(complete, made):
                _convert(path, folder)
                write_json(complete, made)
    return folder


def _is_made(complete: Path, made: dict[str, Any]) -> bool:
    try:
        return bool(json.loads(complete.read_text(encoding="utf-8")) == made)
    except (OSError, ValueError):  # not there, or damaged
        return False


def _convert(path: Path, folder: Path) -> None:
    import gguf
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    # transformers would take a tokenizer, and code, from what else lies in the file's folder.
    with TemporaryDirectory() as alone, quiet(), _parsed_once():
        (Path(alone) / path.name).symlink_to(path.absolute())
        where: dict[str, Any] = {"pretrained_model_name_or_path": alone, "gguf_file": path.name}
        where["trust_remote_code"] = False
        config = AutoConfig.from_pretrained(**where)
        reader = gguf.GGUFReader(str(path))
        follow_rotation(reader, config, path.name)
        follow_window(reader, config)
        model, loading = AutoModelForCausalLM.from_pretrained(
            **where, config=config, dtype=torch.float32, output_loading_info=True
        )
        _check_whole(reader, model, loading["missing_keys"], path.name)
        # The weights are plain floats from here on; transformers refuses to save them while the
        # config says that they are quantised.
        model.hf_quantizer = None
        del model.config.quantization_config
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(**where).save_pretrained(folder)
    for made in list(folder.iterdir()):
        honour_umask(made)


def _check_whole(reader: Any, model: Any, missing: Iterable[str], name: str) -> None:
    """Raise UserError where transformers drew weights at random, or left some of attention out."""
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    if lacking := sorted(missing):
        raise UserError(
            f"the file {name!r} lacks {len(lacking)} of the model's weights, such as "
            f"{lacking[0]}: give a complete file."
        )
    kind = TENSOR_PROCESSORS.get(model.config.model_type, TensorProcessor)
    placed = get_gguf_hf_weights_map(model, kind(config=model.config.to_dict()))
    others = sorted(t.name for t in reader.tensors if "attn" in t.name and t.name not in placed)
    if others:
        raise UserError(
            f"the file {name!r} has {len(others)} tensors that the model has no place for, such as "
            f"{others[0]}: give the model's Hugging Face folder."
        )


@contextmanager
def _parsed_once() -> Iterator[None]:
    """The file's header is parsed once for config, weights and tokenizer.

    transformers parses it for each of them. With a vocabulary of 262,000 tokens that is 10 seconds
    each time, most of which go to slices of a memory map that are no plain arrays: here 3, once.
    """
    import gguf

    class Reader(gguf.GGUFReader):
        @property
        def data(self) -> np.ndarray:
            return self._plain

        @data.setter
        def data(self, mapped: np.ndarray) -> None:
            self._plain = np.asarray(mapped)

    parsing, gguf.GGUFReader = gguf.GGUFReader, cache(Reader)
    try:
        yield
    finally:
        gguf.GGUFReader = parsing
