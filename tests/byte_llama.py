"""A tiny random Llama that reads bytes, as a Hugging Face folder: it knows every text."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A begin token, then the 256 bytes."""
    letters = {letter: i + 1 for i, letter in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(vocab={"<bos>": 0, **letters}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>")


def byte_llama(folder: Path, **changes: Any) -> Path:
    """Two layers of width 32 and a context of 128 bytes, saved in the folder."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 257,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
        "bos_token_id": 0,
        "eos_token_id": None,
        "initializer_range": 0.2,
    }
    LlamaForCausalLM(LlamaConfig(**{**sizes, **changes})).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
