"""Tiny random Hugging Face models, made from configs: no download."""

from pathlib import Path
from typing import Any

import torch
import transformers
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

from nope_interp.pretrained.bridges import wrap
from nope_interp.pretrained.t5_decoder import T5DecoderLM

VOCABULARY = 60
WINDOW = 16


def tiny_gpt2(vocab_size: int = VOCABULARY) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=vocab_size, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=1
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


_TOKENS = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}
_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_LLAMA = {
    **_TOKENS,
    **_SIZES,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_GROUPED = {**_LLAMA, "num_key_value_heads": 2}
_WINDOWS = {
    **_GROUPED,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
}
_LOCAL_AND_GLOBAL = {**_WINDOWS, "head_dim": 8}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}

_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
_QWEN_EXPERTS = {
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
_LLAMA4 = {
    **_GROUPED,
    **_EXPERTS,
    "head_dim": 8,
    "intermediate_size_mlp": 64,
    "moe_layers": [1],
    "no_rope_layers": [1, 0],
    "attention_chunk_size": WINDOW,
}
_AFMOE = {
    **_LOCAL_AND_GLOBAL,
    "num_dense_layers": 1,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "num_shared_experts": 1,
    "moe_intermediate_size": 32,
}
_GLM_EXPERTS = {
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
_DELTAS = {
    **_GROUPED,
    "num_hidden_layers": 4,
    "head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
# As in its larger models: global layers have wider heads, fewer keys, and values made of keys.
_GEMMA4 = {
    **_LOCAL_AND_GLOBAL,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 0,
}
_HEADS_OF_8 = {**_GROUPED, "head_dim": 8}
_GPTJ = {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 64}

# One model per family whose positions can be taken away: class, its config, its options.
_FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4}),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": WINDOW,
            "max_position_embeddings": 64,
        },
    ),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {**_SIZES, "word_embed_proj_dim": 32, "ffn_dim": 64, "max_position_embeddings": 64},
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**_LLAMA, "rotary_pct": 0.5}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "llama_yarn": ("LlamaForCausalLM", "LlamaConfig", {**_GROUPED, "rope_parameters": _YARN}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**_GROUPED, "sliding_window": WINDOW}),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", {**_GROUPED, "head_dim": 8}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", _LOCAL_AND_GLOBAL),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", _LOCAL_AND_GLOBAL),
    "gemma4": ("Gemma4ForCausalLM", "Gemma4TextConfig", _GEMMA4),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _GROUPED),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**_GROUPED, "head_dim": 8}),
    "phi": ("PhiForCausalLM", "PhiConfig", _LLAMA),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", {**_GROUPED, "sliding_window": WINDOW}),
    "cohere": ("CohereForCausalLM", "CohereConfig", _GROUPED),
    "cohere2": ("Cohere2ForCausalLM", "Cohere2Config", _LOCAL_AND_GLOBAL),
    "llama4": ("Llama4ForCausalLM", "Llama4TextConfig", _LLAMA4),
    "exaone4": ("Exaone4ForCausalLM", "Exaone4Config", _LOCAL_AND_GLOBAL),
    "afmoe": ("AfmoeForCausalLM", "AfmoeConfig", _AFMOE),
    "apertus": ("ApertusForCausalLM", "ApertusConfig", _GROUPED),
    "arcee": ("ArceeForCausalLM", "ArceeConfig", _GROUPED),
    "ernie4_5": ("Ernie4_5ForCausalLM", "Ernie4_5Config", _HEADS_OF_8),
    "glm": ("GlmForCausalLM", "GlmConfig", _HEADS_OF_8),
    "glm4": ("Glm4ForCausalLM", "Glm4Config", _HEADS_OF_8),
    "glm4_moe": ("Glm4MoeForCausalLM", "Glm4MoeConfig", {**_HEADS_OF_8, **_GLM_EXPERTS}),
    "gpt_bigcode": (
        "GPTBigCodeForCausalLM",
        "GPTBigCodeConfig",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    ),
    "hunyuan": ("HunYuanDenseV1ForCausalLM", "HunYuanDenseV1Config", _HEADS_OF_8),
    "ministral3": ("Ministral3ForCausalLM", "Ministral3Config", _HEADS_OF_8),
    "nanochat": ("NanoChatForCausalLM", "NanoChatConfig", _GROUPED),
    "olmoe": (
        "OlmoeForCausalLM",
        "OlmoeConfig",
        {**_GROUPED, "num_experts": 2, "num_experts_per_tok": 1},
    ),
    "seed_oss": ("SeedOssForCausalLM", "SeedOssConfig", _HEADS_OF_8),
    "vaultgemma": ("VaultGemmaForCausalLM", "VaultGemmaConfig", _LOCAL_AND_GLOBAL),
    "olmo": ("OlmoForCausalLM", "OlmoConfig", _GROUPED),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", _GROUPED),
    "olmo3": (
        "Olmo3ForCausalLM",
        "Olmo3Config",
        {k: v for k, v in _LOCAL_AND_GLOBAL.items() if k != "head_dim"},
    ),
    "starcoder2": (
        "Starcoder2ForCausalLM",
        "Starcoder2Config",
        {**_GROUPED, "sliding_window": WINDOW},
    ),
    "stablelm": (
        "StableLmForCausalLM",
        "StableLmConfig",
        {**_GROUPED, "partial_rotary_factor": 0.5},
    ),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", _GPTJ),
    "codegen": ("CodeGenForCausalLM", "CodeGenConfig", _GPTJ),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**_GROUPED, **_EXPERTS}),
    "granite": ("GraniteForCausalLM", "GraniteConfig", {**_GROUPED, "logits_scaling": 3.0}),
    "granitemoe": ("GraniteMoeForCausalLM", "GraniteMoeConfig", {**_GROUPED, **_EXPERTS}),
    "nemotron": ("NemotronForCausalLM", "NemotronConfig", {**_GROUPED, "head_dim": 8}),
    "qwen2_moe": ("Qwen2MoeForCausalLM", "Qwen2MoeConfig", {**_GROUPED, **_QWEN_EXPERTS}),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {**_GROUPED, **_QWEN_EXPERTS, "head_dim": 8},
    ),
    "gpt_oss": ("GptOssForCausalLM", "GptOssConfig", {**_LOCAL_AND_GLOBAL, **_EXPERTS}),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", {**_GROUPED, "no_rope_layers": [1, 0]}),
    "bloom": ("BloomForCausalLM", "BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "mpt": ("MptForCausalLM", "MptConfig", {"d_model": 32, "n_layers": 2, "n_heads": 4}),
    "falcon": ("FalconForCausalLM", "FalconConfig", _SIZES),
    "falcon_grouped": (
        "FalconForCausalLM",
        "FalconConfig",
        {**_SIZES, "num_kv_heads": 2, "new_decoder_architecture": True},
    ),
    "falcon_alibi": (
        "FalconForCausalLM",
        "FalconConfig",
        {**_SIZES, "alibi": True, "multi_query": False, "bias": True, "parallel_attn": False},
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 3,
            "num_decoder_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
        },
    ),
}
FAMILIES = tuple(_FAMILIES)

# Other configs of the same families, which a bridge has to treat in another way.
_PARALLEL = {**_FAMILIES["falcon_grouped"][2], "num_ln_in_parallel_attn": 1}
# Its first attention reads the embedding as it is, so that this has to be large.
_POST_NORM = {**_FAMILIES["opt"][2], "do_layer_norm_before": False, "init_std": 0.2}
_VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "falcon_one_norm": ("FalconForCausalLM", "FalconConfig", _PARALLEL),
    "phi_normed_heads": ("PhiForCausalLM", "PhiConfig", {**_LLAMA, "qk_layernorm": True}),
    "gpt_neox_no_bias": (*_FAMILIES["gpt_neox"][:2], {**_LLAMA, "attention_bias": False}),
    "gpt2_unscaled": (
        *_FAMILIES["gpt2"][:2],
        {**_FAMILIES["gpt2"][2], "scale_attn_weights": False},
    ),
    "opt_post_norm": (*_FAMILIES["opt"][:2], _POST_NORM),
    "opt_post_norm_projected": (*_FAMILIES["opt"][:2], {**_POST_NORM, "word_embed_proj_dim": 16}),
}
_VARIANTS |= {
    "cohere_normed_heads": (*_FAMILIES["cohere"][:2], {**_GROUPED, "use_qk_norm": True}),
    "exaone4_global": (
        *_FAMILIES["exaone4"][:2],
        {**_GROUPED, "head_dim": 8, "sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    # As in its smaller models: later layers read the keys and values of earlier ones.
    "gemma4_shared": (
        *_FAMILIES["gemma4"][:2],
        {
            **_GEMMA4,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "attention_k_eq_v": False,
            "hidden_size_per_layer_input": 8,
        },
    ),
    "hunyuan_norms": ("HunYuanDenseV1ForCausalLM", "HunYuanDenseV1Config", _HEADS_OF_8),
    "afmoe_norms": ("AfmoeForCausalLM", "AfmoeConfig", _AFMOE),
    "stablelm_normed_heads": (
        *_FAMILIES["stablelm"][:2],
        {**_GROUPED, "qk_layernorm": True, "use_parallel_residual": True},
    ),
}
VARIANTS = tuple(_VARIANTS)

# Models of which only some things are asked.
_OTHERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "olmo_hybrid": (
        "OlmoHybridForCausalLM",
        "OlmoHybridConfig",
        {**_GROUPED, "num_hidden_layers": 4},
    ),
    "qwen3_5": ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", _DELTAS),
    "qwen3_next": ("Qwen3NextForCausalLM", "Qwen3NextConfig", {**_DELTAS, **_QWEN_EXPERTS}),
    "granitemoehybrid": (
        "GraniteMoeHybridForCausalLM",
        "GraniteMoeHybridConfig",
        {
            **_GROUPED,
            **_EXPERTS,
            "num_hidden_layers": 4,
            "layer_types": [*["linear_attention"] * 3, "full_attention"],
            "position_embedding_type": "rope",
            "logits_scaling": 3.0,
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.5,
            "shared_intermediate_size": 64,
            "mamba_n_heads": 4,
            "mamba_d_state": 8,
        },
    ),
    "jamba": (
        "JambaForCausalLM",
        "JambaConfig",
        {
            **_GROUPED,
            "num_hidden_layers": 4,
            "attn_layer_period": 4,
            "attn_layer_offset": 3,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "mamba_d_state": 8,
            "use_mamba_kernels": False,
        },
    ),
    "lfm2": (
        "Lfm2ForCausalLM",
        "Lfm2Config",
        {**_GROUPED, "num_hidden_layers": 3, "layer_types": ["conv", *["full_attention"] * 2]},
    ),
}


HYBRIDS = ("olmo_hybrid", "granitemoehybrid", "qwen3_5", "qwen3_next")


def plain_model(family: str, **changes: Any) -> Any:
    """The Hugging Face model of a family; weights so large that attention is far from uniform.

    `changes` are laid over the options of its config.
    """
    model, config, options = {**_FAMILIES, **_VARIANTS, **_OTHERS}[family]
    torch.manual_seed(0)
    built = getattr(transformers, config)(**{**_TOKENS, **options, **changes})
    plain = getattr(transformers, model)(built)
    with torch.no_grad():
        for weight in plain.parameters():
            if weight.ndim == 2 and family != "t5":  # T5 draws large ones by itself
                weight.mul_(5)
            elif weight.ndim == 1 and family in VARIANTS:  # norms and biases that show
                weight.add_(0.3 * torch.randn_like(weight))
    return plain.eval()


def bridged_model(family: str, **changes: Any) -> Any:
    """The same model as a bridge."""
    plain = plain_model(family, **changes)
    return wrap(T5DecoderLM(plain) if family == "t5" else plain)


def plain_logits(family: str, tokens: torch.Tensor, **options: Any) -> torch.Tensor:
    """Logits of the plain model; T5's encoder reads one end-of-sequence token."""
    return logits_of(plain_model(family), tokens, **options)


def logits_of(plain: Any, tokens: torch.Tensor, **options: Any) -> torch.Tensor:
    with torch.no_grad():
        if not plain.config.is_encoder_decoder:
            return plain(tokens, use_cache=False, **options).logits
        ends = torch.full((len(tokens), 1), plain.config.eos_token_id)
        return plain(input_ids=ends, decoder_input_ids=tokens, **options).logits
