"""T5's decoder as a causal language model with the classic hook names.

The decoder is a causal transformer that also attends to an encoder. Here the encoder reads one
end-of-sequence token whatever the decoder reads, so that cross-attention adds nothing that depends
on a position or on the text, and `blocks.N.attn` is the decoder's self-attention::

    blocks.{l}.hook_resid_pre      ln1, attn       self-attention
    blocks.{l}.hook_resid_mid      ln2, cross_attn cross-attention to the one encoded token
    blocks.{l}.hook_resid_mid2     ln3, mlp
    blocks.{l}.hook_resid_post
"""

from copy import deepcopy
from typing import Any

from torch import nn

from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.shapes import Tokens


class _Trunk(nn.Module):
    """Encoder on one end-of-sequence token, then all decoder layers; no unembedding."""

    def __init__(self, t5: Any) -> None:
        super().__init__()
        self.t5 = t5

    def forward(self, input_ids: Tokens, use_cache: bool = False) -> Any:
        ends = input_ids.new_full((len(input_ids), 1), self.t5.config.eos_token_id)
        return self.t5.decoder(
            input_ids=input_ids,
            encoder_hidden_states=self.t5.encoder(input_ids=ends).last_hidden_state,
            use_cache=use_cache,
        )


class T5DecoderLM(nn.Module):
    """What a bridge wraps: tokens in, logits out, as a decoder-only Hugging Face model.

    `config` is the model's own, with the decoder's depth and `is_encoder_decoder` off.
    """

    def __init__(self, t5: Any) -> None:
        super().__init__()
        self.base_model = _Trunk(t5)
        self.config = deepcopy(t5.config)
        self.config.is_encoder_decoder = False
        self.config.num_layers = t5.config.num_decoder_layers
        # A new module is in training mode, and a bridge puts all its parts into its model's mode.
        self.train(t5.training)

    def forward(self, input_ids: Tokens, use_cache: bool = False, **options: Any) -> Any:
        from transformers.modeling_outputs import CausalLMOutput

        mask = options.get("attention_mask")
        if mask is not None and not mask.all():
            raise UserError("T5's decoder takes no padding here: give sequences of equal length.")
        hidden = self.base_model(input_ids, use_cache=use_cache).last_hidden_state
        if self.config.scale_decoder_outputs:
            hidden = hidden * self.config.d_model**-0.5
        return CausalLMOutput(logits=self.base_model.t5.lm_head(hidden))

    def get_input_embeddings(self) -> nn.Module:
        return self.base_model.t5.get_input_embeddings()


def bridge_t5_decoder(model: T5DecoderLM) -> HookedModel:
    """A TransformerBridge over the decoder, with `blocks`, `ln_final` and `unembed`."""
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.model_bridge.sources import build_bridge_config_from_hf
    from transformer_lens.model_bridge.supported_architectures.t5 import T5ArchitectureAdapter

    parameter = next(model.parameters())
    cfg = build_bridge_config_from_hf(
        model.config, "T5ForConditionalGeneration", "external", parameter.dtype
    )
    cfg.device = str(parameter.device)
    adapter = T5ArchitectureAdapter(cfg)
    whole = adapter.component_mapping
    blocks = whole["decoder_blocks"]
    blocks.submodules["attn"] = blocks.submodules.pop("self_attn")
    blocks.hook_aliases["hook_attn_out"] = "attn.hook_out"
    parts = {
        "embed": type(whole["embed"])(name="decoder.embed_tokens"),
        "blocks": blocks,
        "ln_final": whole["decoder_ln_final"],
        "unembed": whole["unembed"],
    }
    for part in parts.values():
        part.name = f"base_model.t5.{part.name}"
    adapter.component_mapping = parts
    return TransformerBridge(model, adapter, None)
