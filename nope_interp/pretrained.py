"""Pretrained models by hub name, Hugging Face folder or GGUF file, as TransformerBridges.

Every model is checked when it is loaded: its logits equal the unwrapped model's, its attention
rows sum to one, and no query sees the future.
"""

import difflib
import hashlib
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from nope_interp.errors import UserError
from nope_interp.files import make_folder, write_json
from nope_interp.tasks.sources import TextSource, UniformSource

# Largest difference of logits, relative to their largest size, between bridge and plain model:
# float32 rounding over a few dozen layers, summed in another order.
_PARITY = 1e-4


@dataclass(frozen=True)
class Pretrained:
    """A bridge, its tokenizer, and where both came from."""

    model: Any
    tokenizer: Any
    name: str

    def text_source(self, text: str) -> TextSource:
        """`text` in this model's tokens, without special ones."""
        ids = self.tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        return TextSource(torch.tensor(ids), self.tokenizer.bos_token_id)

    def uniform_source(self) -> UniformSource:
        """Every token of the vocabulary but the special ones."""
        special = torch.tensor(sorted(self.tokenizer.all_special_ids), dtype=torch.long)
        ids = torch.arange(min(len(self.tokenizer), self.model.cfg.d_vocab))
        return UniformSource(ids[~torch.isin(ids, special)], self.tokenizer.bos_token_id)


def load_pretrained(name_or_path: str, *, device: str = "cpu") -> Pretrained:
    """Load a causal language model in float32.

    Args:
        name_or_path: a hub name (`openai-community/gpt2`), a Hugging Face folder with
            safetensors weights, or a `.gguf` file (dequantised once and cached).
        device: a torch device.

    Raises UserError where there is no such model, its files are damaged or pickled, TransformerLens
    does not know its architecture, or the wrapped model fails its checks.
    """
    source = _resolve(name_or_path)
    with _quiet(), _one_sentence(name_or_path):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
        )
    return Pretrained(_bridge(model.to(device), name_or_path), tokenizer, name_or_path)


def random_twin(pretrained: Pretrained, seed: int) -> Pretrained:
    """The same architecture with its weights drawn anew by its own initialisation."""
    from transformers import AutoModelForCausalLM

    config = pretrained.model.original_model.config
    device = next(pretrained.model.parameters()).device
    with _quiet(), torch.random.fork_rng():
        torch.manual_seed(seed)
        twin = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return Pretrained(
        _bridge(twin.to(device), pretrained.name), pretrained.tokenizer, pretrained.name
    )


def _bridge(model: Any, name: str) -> Any:
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    model.eval()
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    probe = torch.randint(vocabulary, (2, 8), generator=generator).to(model.device)
    with torch.no_grad():
        expected = model(probe, use_cache=False).logits
    architecture = type(model).__name__
    try:
        with _quiet():
            bridge = build_bridge_from_module(model, architecture, hf_config=model.config)
    except (KeyError, ValueError, AttributeError, NotImplementedError) as error:
        raise UserError(
            f"TransformerLens cannot wrap {name!r}, a {architecture} ({_first_line(error)}): "
            "choose a model it supports."
        ) from error
    _check_bridge(bridge, probe, expected, name)
    return bridge


def _check_bridge(
    bridge: Any, tokens: Int[Tensor, "batch pos"], expected: Tensor, name: str
) -> None:
    patterns: list[Tensor] = []

    def keep(pattern: Tensor, hook: object) -> None:
        patterns.append(pattern)

    names = [n for n in bridge.hook_dict if n.endswith("attn.hook_pattern")]
    with torch.no_grad(), bridge.hooks(fwd_hooks=[(n, keep) for n in names]):
        logits = bridge.original_model(tokens, use_cache=False).logits
    difference = (logits - expected).abs().max() / expected.abs().max()
    # Written so that a NaN fails too.
    if not difference <= _PARITY:
        raise UserError(
            f"the hooked {name!r} differs from the plain model by {float(difference):.1e} of its "
            "largest logit: its architecture is not wrapped faithfully, so it is refused."
        )
    if not patterns:
        raise UserError(f"{name!r} shows no attention patterns: its architecture is not supported.")
    for layer, pattern in enumerate(patterns):
        rows = pattern.sum(-1)
        if not torch.allclose(rows, torch.ones_like(rows), atol=1e-4):
            raise UserError(f"attention rows of {name!r} do not sum to one in layer {layer}.")
        if pattern.triu(1).abs().max() > 0:
            raise UserError(f"{name!r} attends to the future in layer {layer}: it is not causal.")


def _resolve(name_or_path: str) -> str:
    """A hub name as it is; a folder or a converted GGUF file as a path."""
    path = Path(name_or_path).expanduser()
    if path.is_dir() and (path / "info.json").is_file():
        raise UserError(
            f"{name_or_path!r} is a run folder of ours: give its model.safetensors instead."
        )
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(
                f"the folder {name_or_path!r} has no config.json: give a Hugging Face folder."
            )
        return str(path)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UserError(f"there is no GGUF file {name_or_path!r}.")
        return str(_converted_gguf(path))
    if path.exists() or name_or_path.startswith((".", "/", "~")) or name_or_path.count("/") > 1:
        raise UserError(
            f"{name_or_path!r} is neither a hub name, a Hugging Face folder nor a GGUF file."
        )
    return name_or_path


def cache_folder() -> Path:
    """Where converted models are kept: $NOPE_INTERP_CACHE, else the user's cache folder."""
    chosen = os.environ.get("NOPE_INTERP_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base) / "nope-interp"


def _converted_gguf(path: Path) -> Path:
    """The folder with `path` dequantised to float32 safetensors; made on first use."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    folder = cache_folder() / "gguf" / digest.hexdigest()[:16]
    if (folder / "complete.json").is_file():
        return folder
    make_folder(folder)
    with _quiet(), _one_sentence(str(path)):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
        model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        # The weights are plain floats from here on; transformers refuses to save them while the
        # config says that they are quantised.
        model.hf_quantizer = None
        del model.config.quantization_config
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(**where).save_pretrained(folder)
    # Written last: a conversion that was killed half-way is made again.
    write_json(folder / "complete.json", {"sha256": digest.hexdigest(), "from": path.name})
    return folder


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
            f"cannot load the model {name!r} ({_first_line(error)}){_nearest_hub_name(name)}."
        ) from error


def _nearest_hub_name(name: str) -> str:
    if Path(name).exists():
        return ""
    from transformer_lens.supported_models import OFFICIAL_MODEL_NAMES

    near = difflib.get_close_matches(name, OFFICIAL_MODEL_NAMES, n=1)
    if near and near[0] != name:
        return f"; did you mean {near[0]!r}?"
    return ": check the name and the network, or give a local folder or GGUF file"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".:")[:200]


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back the progress bars and advice of the libraries underneath."""
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars
    from transformers.utils import logging as transformers_logging

    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    disable_progress_bars()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
        enable_progress_bars()
        transformers_logging.enable_progress_bar()
        transformers_logging.set_verbosity(level)
