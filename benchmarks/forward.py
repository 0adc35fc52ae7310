"""A forward pass that nobody listens to: the price of hook points, and transformers' GPT-2."""

import copy
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import nn
from transformer_lens.hook_points import HookPoint
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.contest import Claim, paired_ratio
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer

CONFIG = TransformerConfig(
    n_layers=6,
    d_model=384,
    n_heads=6,
    d_vocab=1024,
    n_ctx=256,
    positions="learned",
    activation="gelu_tanh",
    tied_embeddings=True,
)


def _no_hook(x: torch.Tensor) -> torch.Tensor:
    return x


def without_hook_points(model: HookedTransformer) -> HookedTransformer:
    """A copy in which every hook point is a plain function, not even a module call."""
    bare = copy.deepcopy(model)
    for module in bare.modules():
        for name, child in list(module.named_children()):
            if isinstance(child, HookPoint):
                delattr(module, name)
                object.__setattr__(module, name, _BareHook())
    return bare


class _BareHook:
    """What is left of a hook point: called, it returns its input; nobody can listen."""

    __call__ = staticmethod(_no_hook)
    _forward_hooks: Mapping[int, object] = MappingProxyType({})
    _forward_pre_hooks = _backward_hooks = _backward_pre_hooks = _forward_hooks


def gpt2(activation: str) -> nn.Module:
    config = GPT2Config(
        activation_function=activation,
        vocab_size=CONFIG.d_vocab,
        n_positions=CONFIG.n_ctx,
        n_embd=CONFIG.d_model,
        n_layer=CONFIG.n_layers,
        n_head=CONFIG.n_heads,
        attn_implementation="sdpa",
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config).eval()


def claims() -> list[Claim]:
    ours = HookedTransformer(CONFIG).eval()
    bare = without_hook_points(ours)
    # GPT-2's own GELU is written out in Python; torch's fused one computes the same function.
    peer, fused_peer = gpt2("gelu_new"), gpt2("gelu_pytorch_tanh")
    tokens = torch.randint(CONFIG.d_vocab, (8, 256), generator=torch.Generator().manual_seed(0))

    def run(model: nn.Module, **kwargs: object) -> None:
        with torch.no_grad():
            model(tokens, **kwargs)

    return [
        Claim(
            "forward pass: with silent hook points / without them, time",
            paired_ratio(lambda: run(ours), lambda: run(bare), rounds=41),
            1.03,
        ),
        Claim(
            "forward pass: ours / transformers' GPT-2 with sdpa, time",
            paired_ratio(lambda: run(ours), lambda: run(peer, use_cache=False), rounds=21),
            1.00,
        ),
        Claim(
            "  the same, GPT-2 given the fused activation that ours has",
            paired_ratio(lambda: run(ours), lambda: run(fused_peer, use_cache=False), rounds=21),
            None,
        ),
    ]
