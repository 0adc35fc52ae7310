"""GGUF files, dequantised once into an ordinary Hugging Face folder.

Whoever asks while another process converts a file waits for it, and finds the folder.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock

from nope_interp.files import honour_umask, make_folder, write_json
from nope_interp.pretrained.quiet import quiet


def cache_folder() -> Path:
    """Where converted models are kept: $NOPE_INTERP_CACHE, else the user's cache folder."""
    chosen = os.environ.get("NOPE_INTERP_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base) / "nope-interp"


def converted_gguf(path: Path) -> Path:
    """The folder with a file dequantised to float32 safetensors; made on first use.

    Args:
        path: the file.

    Returns:
        The folder, which is named after the file's content.

    Raises:
        UserError: where the cache cannot be written.
        Exception: what the libraries that read it raise of a damaged file.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    folder = cache_folder() / "gguf" / digest[:16]
    complete = folder / "complete.json"
    if not complete.is_file():
        make_folder(folder)
        with FileLock(folder.with_suffix(".lock")):
            if not complete.is_file():
                _convert(path, folder)
                # Written last: a conversion that was killed half-way is made again.
                write_json(complete, {"sha256": digest, "from": path.name})
    return folder


def _convert(path: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    with quiet(), _parsed_once():
        model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        # The weights are plain floats from here on; transformers refuses to save them while the
        # config says that they are quantised.
        model.hf_quantizer = None
        del model.config.quantization_config
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(**where).save_pretrained(folder)
    for made in list(folder.iterdir()):
        honour_umask(made)


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
