"""Tiny random Hugging Face models, made from configs: no download."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

VOCABULARY = 60


def tiny_gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=1
    )
    return GPT2LMHeadModel(config).eval()


def tiny_gemma3() -> Gemma3ForCausalLM:
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        max_position_embeddings=64,
    )
    return Gemma3ForCausalLM(config).eval()


def word_tokenizer() -> PreTrainedTokenizerFast:
    """Words w4 ... w59, and special tokens 0 to 3."""
    special = ["<unk>", "<bos>", "<eos>", "<pad>"]
    words = {word: i for i, word in enumerate([*special, *(f"w{i}" for i in range(4, VOCABULARY))])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<bos>", eos_token="<eos>"
    )


def save_folder(model: Any, folder: Path) -> Path:
    """A Hugging Face folder with safetensors weights and a tokenizer."""
    model.save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


def words(n: int, seed: int = 0) -> str:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(4, VOCABULARY, (n,), generator=generator).tolist()
    return " ".join(f"w{i}" for i in drawn)
