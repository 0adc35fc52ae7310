"""TransformerBridges around loaded Hugging Face models, mended where TransformerLens errs."""

import math
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

from einops import rearrange
from torch import Tensor, nn

from nope_interp.hooked_model import HookedModel
from nope_interp.models.attention import listening
from nope_interp.pretrained.t5_decoder import T5DecoderLM, bridge_t5_decoder

# Families whose sines are in single precision whatever their weights are in.
_ROTATED_IN_SINGLE = ("olmo", "olmo2", "olmo3")


def wrap(model: Any) -> HookedModel:
    """A bridge around a Hugging Face causal language model, whose submodules are replaced in place.

    Attention is computed step by step ("eager"), so that every architecture shows its patterns.

    Args:
        model: a loaded decoder-only model, or a `T5DecoderLM`.

    Returns:
        A TransformerBridge with the classic hook names, around the same weights.
    """
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    if isinstance(model, T5DecoderLM):
        model.base_model.t5.set_attn_implementation("eager")
        return bridge_t5_decoder(model)
    model.set_attn_implementation("eager")
    config = model.config
    mend = _ADAPTERS.get(config.model_type)
    bridge = build_bridge_from_module(
        model,
        type(model).__name__,
        hf_config=config,
        post_adapter_hook=None if mend is None else partial(mend, config),
    )
    _spare_norms(bridge)
    for block in bridge.blocks:
        if config.model_type in _ROTATED_IN_SINGLE:
            weights = next(block.attn.parameters())
            for rotated in (block.attn.hook_rot_q, block.attn.hook_rot_k):
                rotated.register_forward_pre_hook(partial(_as_weights, weights=weights))
        if config.model_type == "falcon" and config.alibi:
            block.attn.register_forward_pre_hook(_drop_second_alibi, with_kwargs=True)
        if config.model_type == "gpt2" and not config.scale_attn_weights:
            block.attn.hook_attn_scores.register_forward_pre_hook(
                partial(_unscaled, factor=math.sqrt(bridge.cfg.d_head))
            )
    return bridge


def _spare_norms(bridge: HookedModel) -> None:
    """Let norms compute their scale only where somebody listens.

    TransformerLens 4.3 computes each norm by itself, for its hooks, and once more as the model has
    it, whose result is what counts.
    """
    from transformer_lens.model_bridge.generalized_components import NormalizationBridge

    for module in bridge.modules():
        if isinstance(module, NormalizationBridge) and module.use_native_layernorm_autograd:
            # Set as a plain attribute it would go to the module that the bridge wraps.
            module.__dict__["forward"] = partial(_normed, module, module.forward)


def _normed(
    norm: Any, hooked: Callable[..., Tensor], hidden_states: Tensor, **options: Any
) -> Tensor:
    if listening(norm.hook_scale, norm.hook_normalized):
        return hooked(hidden_states, **options)
    read = norm.hook_in(hidden_states)
    found: Tensor = norm.hook_out(norm.original_component(read).to(read.dtype))
    return found


def give_tokenizer(bridge: HookedModel, tokenizer: Any) -> None:
    """Let the bridge turn text into tokens: `to_tokens`, `to_str_tokens`, text given to `forward`.

    Without the two facts about it the bridge would take every tokenizer for one that begins its
    texts with a begin token, and shift the positions of those that do not.

    Args:
        bridge: the model; it keeps the tokenizer.
        tokenizer: a transformers tokenizer, which stays as it is.
    """
    if tokenizer.pad_token is None:
        # TransformerLens pads even a single text. Not in the tokenizer that the user holds.
        tokenizer = deepcopy(tokenizer)
        own = (tokenizer.eos_token, tokenizer.bos_token, tokenizer.unk_token)
        tokenizer.pad_token = next(filter(None, own), tokenizer.convert_ids_to_tokens(0))
    bridge.tokenizer = tokenizer
    ids = tokenizer.encode("a")
    bridge.cfg.tokenizer_prepends_bos = len(ids) > 1 and ids[0] == tokenizer.bos_token_id
    bridge.cfg.tokenizer_appends_eos = len(ids) > 1 and ids[-1] == tokenizer.eos_token_id


def _drop_second_alibi(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Falcon's mask holds its ALiBi already; TransformerLens 4.3 would add it once more."""
    return args, {**kwargs, "alibi": None}


def _unscaled(module: nn.Module, args: tuple[Tensor], factor: float) -> tuple[Tensor]:
    """Scores as GPT-2 has them without scaling; TransformerLens 4.3 divides them by `factor`."""
    return (args[0] * factor,)


def _as_weights(module: nn.Module, args: tuple[Tensor], weights: Tensor) -> tuple[Tensor]:
    """Rotated queries or keys in the precision of the weights, as the model itself has them.

    TransformerLens 4.3 leaves them in that of the sines, which half-precision values do not take.
    """
    return (args[0].to(weights.dtype),)


def _mend_falcon(config: Any, adapter: Any) -> None:
    """Falcon's newer architecture stores a group's queries, its key and its value side by side.

    TransformerLens 4.3 splits them as if all queries came first and there were one key for all; and
    it looks for two norms where attention and MLP share one.
    """
    if not config.new_decoder_architecture:
        return
    adapter.cfg.multi_query = False
    adapter.cfg.n_key_value_heads = config.num_kv_heads
    type(adapter).__init__(adapter, adapter.cfg)
    parts = adapter.component_mapping["blocks"].submodules
    d_head = config.hidden_size // config.num_attention_heads
    parts["attn"].split_qkv_matrix = partial(
        _split_groups, groups=config.num_kv_heads, d_head=d_head
    )
    if config.num_ln_in_parallel_attn == 1:
        parts["ln1"].name = "input_layernorm"


def _mend_granite_hybrid(config: Any, adapter: Any) -> None:
    """A Granite hybrid that names no positions has none; TransformerLens 4.3 seeks a rotation."""
    if config.position_embedding_type is None:
        adapter.cfg.position_embedding_type = "nope"
        type(adapter).__init__(adapter, adapter.cfg)


def _mend_neox(config: Any, adapter: Any) -> None:
    """GPT-NeoX may do without biases of attention, which TransformerLens 4.3 insists on.

    A group is one head here: its query, its key and its value.
    """
    if config.attention_bias:
        return
    heads = config.num_attention_heads
    adapter.component_mapping["blocks"].submodules["attn"].split_qkv_matrix = partial(
        _split_groups, groups=heads, d_head=config.hidden_size // heads
    )


def _mend_opt(config: Any, adapter: Any) -> None:
    """A post-norm OPT has no last norm, whatever the width of its embedding.

    Nor has one whose config says so, as it was tuned with an old version of transformers.
    """
    if not config.do_layer_norm_before or config._remove_final_layer_norm:
        adapter.component_mapping.pop("ln_final", None)


def _mend_phi(config: Any, adapter: Any) -> None:
    """Phi may norm the queries and keys of each head, which TransformerLens 4.3 does not know."""
    from transformer_lens.model_bridge.generalized_components import NormalizationBridge

    if not config.qk_layernorm:
        return
    attn = adapter.component_mapping["blocks"].submodules["attn"]
    norms = {
        f"{letter}_norm": NormalizationBridge(
            name=f"{letter}_layernorm", config=adapter.cfg, use_native_layernorm_autograd=True
        )
        for letter in ("q", "k")
    }
    # Built anew, since the hook points of these norms are made with the rest.
    adapter.component_mapping["blocks"].submodules["attn"] = type(attn)(
        name=attn.name,
        config=adapter.cfg,
        submodules={**attn.submodules, **norms},
        requires_attention_mask=True,
        requires_position_embeddings=True,
    )


# What to put right between the choice of an adapter and its use, by `model_type`.
_ADAPTERS: dict[str, Callable[[Any, Any], None]] = {
    "falcon": _mend_falcon,
    "gpt_neox": _mend_neox,
    "granitemoehybrid": _mend_granite_hybrid,
    "opt": _mend_opt,
    "phi": _mend_phi,
}


def _split_groups(
    attention: Any, groups: int, d_head: int
) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
    """Separate projections to queries, keys and values, of which a group has one each."""
    fused = attention.query_key_value

    def parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, out of a weight or a bias."""
        grouped = rearrange(
            x.detach(), "(group member d) ... -> group member d ...", group=groups, d=d_head
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
