"""A transformer block: attention, MLP, their norms, and the residual stream between them."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.cache.key_value_cache_entry import (
    TransformerLensKeyValueCacheEntry as KVCache,
)
from transformer_lens.config import TransformerLensConfig
from transformer_lens.hook_points import HookPoint

from nope_interp.models.attention import Attention, AttentionContext, linear, listening
from nope_interp.models.config import TransformerConfig
from nope_interp.models.initialization import Initializer
from nope_interp.shapes import Activations


class Norm(nn.Module):
    """Layer norm (Ba et al. 2016), RMS norm (Zhang & Sennrich 2019), or nothing, with hooks.

    `hook_scale` is what the centred activation is divided by, `[batch pos 1]`; `hook_normalized` is
    the activation after the division and before gain `w` and bias `b`, as in TransformerLens's
    bridges. The kind "none" returns its input; its hooks then carry ones and the input.
    """

    def __init__(self, kind: str, d_model: int, eps: float) -> None:
        super().__init__()
        self.kind, self.eps = kind, eps
        if kind != "none":
            self.w = nn.Parameter(torch.ones(d_model))
        if kind == "layer":
            self.b = nn.Parameter(torch.zeros(d_model))
        self.hook_scale, self.hook_normalized = HookPoint(), HookPoint()

    def forward(self, x: Activations) -> Activations:
        if listening(self.hook_scale, self.hook_normalized):
            return self._forward_explicitly(x)
        if self.kind == "layer":
            return F.layer_norm(x, self.w.shape, self.w, self.b, self.eps)
        return F.rms_norm(x, self.w.shape, self.w, self.eps) if self.kind == "rms" else x

    def _forward_explicitly(self, x: Activations) -> Activations:
        if self.kind == "none":
            return self.hook_normalized(x / self.hook_scale(torch.ones_like(x[..., :1])))
        # Squares of half precision overflow.
        own, x = x.dtype, x.to(torch.promote_types(x.dtype, torch.float32))
        if self.kind == "layer":
            x = x - x.mean(dim=-1, keepdim=True)
        size = (x.pow(2).mean(dim=-1, keepdim=True) + self.eps).sqrt()
        scale = self.hook_scale(size.to(own))
        scaled = self.hook_normalized((x / scale).to(own)) * self.w
        return scaled + self.b if self.kind == "layer" else scaled


# Numbers of an MLP's hidden layer that are held at one time where nobody listens: 1 MiB.
_CACHED = 2**18

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "swiglu": F.silu,
    "geglu": F.gelu,
}


class MLP(nn.Module):
    """Two linear layers: `hook_pre` is what the activation reads and `hook_post` what the output
    projection reads, both `[batch pos d_mlp]`.
    """

    branches = 1

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.into = linear(config.d_model, self.branches * config.mlp_width)
        self.out = linear(config.mlp_width, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()

    def initialize(self, draw: Initializer, shrink_output: float) -> None:
        """Draws each branch's input weights, then the output's; biases start at zero.

        Args:
            draw: fills a weight, in the order of its calls.
            shrink_output: what the output's drawn weights are divided by.
        """
        for weight in self.into.weight.chunk(self.branches):
            draw(weight)
        draw(self.out.weight, shrink=shrink_output)
        nn.init.zeros_(self.into.bias)
        nn.init.zeros_(self.out.bias)

    def hidden(self, x: Activations) -> Float[Tensor, "batch pos d_mlp"]:
        """The activated hidden layer."""
        return self.activation(self.hook_pre(self.into(x)))

    def forward(self, x: Activations) -> Activations:
        at_once = max(1, _CACHED // (x.shape[1] * self.into.out_features))
        few = len(x) <= at_once or x.device.type != "cpu"
        if few or torch.is_grad_enabled() or listening(*self.modules()):
            return self._of(x)
        # Few sequences at a time, the hidden layer stays in the processor's cache.
        return torch.cat([self._of(some) for some in x.split(at_once)])

    def _of(self, x: Activations) -> Activations:
        return self.dropout(self.out(self.hook_post(self.hidden(x))))

    @property
    def W_in(self) -> Float[Tensor, "d_model d_mlp"]:
        """The weights into the hidden layer, `[d_model d_mlp]`; of a gated MLP not the gate's."""
        return self.into.weight.chunk(self.branches)[-1].T

    @property
    def b_in(self) -> Float[Tensor, " d_mlp"]:
        """The bias of `W_in`, `[d_mlp]`."""
        return self.into.bias.chunk(self.branches)[-1]

    @property
    def W_out(self) -> Float[Tensor, "d_mlp d_model"]:
        """What the hidden layer writes, `[d_mlp d_model]`."""
        return self.out.weight.T

    @property
    def b_out(self) -> Float[Tensor, " d_model"]:
        """The bias of `W_out`, `[d_model]`."""
        return self.out.bias


class GatedMLP(MLP):
    """An MLP whose hidden layer is multiplied by a gate (Shazeer 2020, arXiv 2002.05202, eq. 6).

    The activation, and so `hook_pre`, is on the gate; `hook_pre_linear` is the other factor.
    """

    branches = 2

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.hook_pre_linear = HookPoint()

    def hidden(self, x: Activations) -> Float[Tensor, "batch pos d_mlp"]:
        gate, value = self.into(x).chunk(2, dim=-1)
        return self.activation(self.hook_pre(gate)) * self.hook_pre_linear(value)

    @property
    def W_gate(self) -> Float[Tensor, "d_model d_mlp"]:
        return self.into.weight.chunk(2)[0].T

    @property
    def b_gate(self) -> Float[Tensor, " d_mlp"]:
        return self.into.bias.chunk(2)[0]


class Block(nn.Module):
    """Attention and MLP, each reading the residual stream and writing to it.

    Pre-norm: stream + sublayer(norm(stream)). Post-norm: norm(stream + sublayer(stream)), and
    `hook_resid_mid`, `hook_resid_post` carry the normalized stream, which is what the next
    sublayer reads. Without a residual the sublayer's output replaces the stream.
    """

    hook_out_is_single_residual_stream = True
    """TransformerLens's logit lens asks for this promise."""

    def __init__(self, config: TransformerConfig, cfg: TransformerLensConfig) -> None:
        super().__init__()
        self.pre_norm = config.norm_placement == "pre"
        self.residual = config.residual
        self.hook_resid_pre = HookPoint()
        self.ln1 = Norm(config.normalization, config.d_model, config.norm_eps)
        self.attn = Attention(config, cfg)
        self.hook_attn_out = HookPoint()
        self.mlp = None
        if not config.attn_only:
            self.hook_resid_mid = HookPoint()
            self.ln2 = Norm(config.normalization, config.d_model, config.norm_eps)
            self.mlp = GatedMLP(config) if config.gated else MLP(config)
            self.hook_mlp_out = HookPoint()
        self.hook_resid_post = HookPoint()

    def initialize(self, draw: Initializer, shrink_output: float) -> None:
        """Draws the weights of attention, then of the MLP."""
        self.attn.initialize(draw, shrink_output)
        if self.mlp is not None:
            self.mlp.initialize(draw, shrink_output)

    def forward(
        self, stream: Activations, context: AttentionContext, kv_cache: KVCache | None = None
    ) -> Float[Tensor, "batch query d_model"]:
        stream = self.hook_resid_pre(stream)
        read = self.ln1(stream) if self.pre_norm else stream
        written = self.hook_attn_out(self.attn(read, context, kv_cache))
        stream = self._merge(stream[:, -len(context.queries) :], written, self.ln1)
        if self.mlp is not None:
            stream = self.hook_resid_mid(stream)
            read = self.ln2(stream) if self.pre_norm else stream
            stream = self._merge(stream, self.hook_mlp_out(self.mlp(read)), self.ln2)
        return self.hook_resid_post(stream)

    def _merge(self, stream: Activations, written: Activations, norm: Norm) -> Activations:
        merged = stream + written if self.residual else written
        return merged if self.pre_norm else norm(merged)
