"""TransformerBridges around loaded Hugging Face models, mended where TransformerLens errs."""

from copy import deepcopy
from functools import partial
from typing import Any

from einops import rearrange
from torch import Tensor, nn

from nope_interp.hooked_model import HookedModel
from nope_interp.pretrained.t5_decoder import T5DecoderLM, bridge_t5_decoder


def wrap(model: Any) -> HookedModel:
    """A bridge around `model`, whose submodules are replaced in place.

    Attention is computed step by step ("eager"), so that every architecture shows its patterns.
    """
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    if isinstance(model, T5DecoderLM):
        model.base_model.t5.set_attn_implementation("eager")
        return bridge_t5_decoder(model)
    model.set_attn_implementation("eager")
    falcon = model.config if model.config.model_type == "falcon" else None
    bridge = build_bridge_from_module(
        model,
        type(model).__name__,
        hf_config=model.config,
        post_adapter_hook=partial(_group_falcon_heads, falcon) if falcon else None,
    )
    if falcon and falcon.alibi:
        for block in bridge.blocks:
            block.attn.register_forward_pre_hook(_drop_second_alibi, with_kwargs=True)
    return bridge


def give_tokenizer(bridge: HookedModel, tokenizer: Any) -> None:
    """Let the bridge turn text into tokens: `to_tokens`, `to_str_tokens`, text given to `forward`.

    Without the two facts about it the bridge would take every tokenizer for one that begins its
    texts with a begin token, and shift the positions of those that do not.
    """
    if tokenizer.pad_token is None:
        # TransformerLens pads even a single text. Not in the tokenizer that the user holds.
        tokenizer = deepcopy(tokenizer)
        tokenizer.pad_token = tokenizer.eos_token
    bridge.tokenizer = tokenizer
    ids = tokenizer.encode("a")
    bridge.cfg.tokenizer_prepends_bos = len(ids) > 1 and ids[0] == tokenizer.bos_token_id
    bridge.cfg.tokenizer_appends_eos = len(ids) > 1 and ids[-1] == tokenizer.eos_token_id


def _drop_second_alibi(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Falcon's mask holds its ALiBi already; TransformerLens 4.3 would add it once more."""
    return args, {**kwargs, "alibi": None}


def _group_falcon_heads(config: Any, adapter: Any) -> None:
    """Falcon's newer architecture stores a group's queries, its key and its value side by side.

    TransformerLens 4.3 splits them as if all queries came first and there were one key for all.
    """
    if not config.new_decoder_architecture:
        return
    adapter.cfg.multi_query = False
    adapter.cfg.n_key_value_heads = config.num_kv_heads
    type(adapter).__init__(adapter, adapter.cfg)
    attn = adapter.component_mapping["blocks"].submodules["attn"]
    attn.split_qkv_matrix = _split_groups


def _split_groups(attention: Any) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
    """Separate projections to queries, keys and values."""
    fused = attention.query_key_value

    def parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of queries, of keys and of values, out of a weight or a bias."""
        grouped = rearrange(
            x.detach(),
            "(group member d) ... -> group member d ...",
            group=attention.num_kv_heads,
            d=attention.head_dim,
        )
        sizes = [grouped.shape[1] - 2, 1, 1]
        q, k, v = (part.flatten(0, 2).clone() for part in grouped.split(sizes, dim=1))
        return q, k, v

    biases = (None, None, None) if fused.bias is None else parts(fused.bias)
    q, k, v = (_linear(w, b) for w, b in zip(parts(fused.weight), biases, strict=True))
    return q, k, v


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    linear = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.weight = nn.Parameter(weight)
    if bias is not None:
        linear.bias = nn.Parameter(bias)
    return linear
