"""Multi-head attention with a hook on every intermediate, fast where nobody reads the scores."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformer_lens.cache.key_value_cache_entry import (
    TransformerLensKeyValueCacheEntry as KVCache,
)
from transformer_lens.config import TransformerLensConfig
from transformer_lens.hook_points import HookPoint

from nope_interp.models.config import TransformerConfig
from nope_interp.models.encodings import PositionalEncoding, RotaryPositions, ScoreBias, rotate
from nope_interp.models.initialization import Initializer
from nope_interp.shapes import Activations

Found = TypeVar("Found")
Bias = Float[Tensor, "1 head query key"]
HeadQueries = Float[Tensor, "batch head query d"]
HeadKeys = Float[Tensor, "batch head key d"]
HeadWeights = Float[Tensor, "head d_model d_head"]
HeadBiases = Float[Tensor, "head d_head"]


def linear(d_in: int, d_out: int) -> nn.Linear:
    """A linear layer with unset weights: torch's own would draw from the global generator."""
    return nn.utils.skip_init(nn.Linear, d_in, d_out)


def listening(*modules: nn.Module) -> bool:
    """Whether any of these modules has a hook, TransformerLens's or torch's own."""
    return any(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        for module in modules
    )


def _hooked(point: HookPoint, shared: Tensor) -> Tensor:
    """What others read, too, as this hook point leaves it; a listener may write into its copy."""
    return point(shared.clone()) if listening(point) else shared


class _Once(Generic[Found]):
    """A property that is worked out when it is first asked for.

    As `functools.cached_property`, without its lock, at which torch.compile cuts a layer in pieces.
    """

    def __init__(self, work: Callable[[Any], Found]) -> None:
        self.work = work
        self.name = work.__name__

    def __get__(self, owner: Any, kind: type | None = None) -> Found:
        found = self.work(owner)
        object.__setattr__(owner, self.name, found)  # from now on it is found there
        return found


@dataclass(frozen=True)
class AttentionContext:
    """Where queries and keys stand in one forward pass, worked out once for all layers.

    The tokens of the pass are the last of the keys, which memory may hold more of; the queries are
    the last of the tokens.
    """

    encoding: PositionalEncoding
    causal: bool
    tokens: Int[Tensor, " pos"]
    queries: Int[Tensor, " query"]
    keys: Int[Tensor, " key"]

    def since(self, first: int) -> "AttentionContext":
        """The same pass with the queries from position `first` on; all keys stay."""
        return replace(self, queries=self.queries[first:]) if first else self

    def block(self, first: int, size: int) -> "AttentionContext":
        """So many queries from the one with index `first` on, and the keys that they can see."""
        queries = self.queries[first : first + size]
        later = len(self.queries) - first - len(queries) if self.causal else 0
        return replace(self, queries=queries, keys=self.keys[: len(self.keys) - later])

    @_Once
    def rotation(self) -> tuple[Tensor, Tensor] | None:
        """Cosines and sines for the tokens of this pass, each `[1 pos half]`."""
        if not isinstance(self.encoding, RotaryPositions):
            return None
        cos, sin = self.encoding(self.tokens)
        return cos.transpose(0, 1), sin.transpose(0, 1)

    @_Once
    def visible(self) -> Bool[Tensor, "query key"] | None:
        """Which keys a query sees; None where it sees them all."""
        sees_all = not self.causal or len(self.queries) == 1
        return None if sees_all else self.keys <= self.queries[:, None]

    @_Once
    def bias(self) -> Bias | None:
        """What is added to the scores: minus infinity where a key is hidden. None where nothing."""
        if not isinstance(self.encoding, ScoreBias):
            return None
        # With a batch axis scaled_dot_product_attention stays on its fast path, 3 times faster.
        bias = self.encoding(self.queries, self.keys).unsqueeze(0)
        return bias if self.visible is None else bias.masked_fill(~self.visible, -math.inf)

    @property
    def plainly_causal(self) -> bool:
        """Whether `is_causal=True` says all there is to say, so that no mask need be built."""
        # torch.compile may know only that the lengths differ from step to step.
        all_ask = bool(len(self.queries) == len(self.keys))
        return self.causal and not isinstance(self.encoding, ScoreBias) and all_ask


class Attention(nn.Module):
    """Softmax attention; `W_Q`, `W_K`, `W_V`, `W_O` are views of the fused weights.

    `hook_in` is what all three are made of, `[batch pos d_model]`; `hook_q|k|v|z` are `[batch pos
    head d_head]`, `hook_attn_scores|pattern` `[batch head query key]` with minus infinity on the
    scores of hidden keys, `hook_result` `[batch pos head d_model]`, computed only while
    `cfg.use_attn_result` is set. `hook_cos|sin`, `[1 pos half]`, and `hook_rot_q|k` exist for
    rotary positions alone, `hook_score_bias`, `[1 head query key]` with minus infinity where a key
    is hidden, for ALiBi and T5 alone.
    """

    def __init__(self, config: TransformerConfig, cfg: TransformerLensConfig) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        self.scale = config.attention_scale
        self.cfg = cfg
        self.qkv = linear(config.d_model, 3 * config.d_model)
        self.out = linear(config.d_model, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.query_block: int | None = None  # how many queries' scores exist at a time
        self.hook_in = HookPoint()
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        if config.positions == "rotary":
            self.hook_cos, self.hook_sin = HookPoint(), HookPoint()
            self.hook_rot_q, self.hook_rot_k = HookPoint(), HookPoint()
        if config.positions in ("alibi", "t5"):
            self.hook_score_bias = HookPoint()
        self.hook_attn_scores, self.hook_pattern = HookPoint(), HookPoint()
        self.hook_z, self.hook_result = HookPoint(), HookPoint()

    def initialize(self, draw: Initializer, shrink_output: float) -> None:
        """Draws queries', keys', values' and output weights in turn; biases start at zero."""
        for weight in self.qkv.weight.chunk(3):
            draw(weight)
        draw(self.out.weight, shrink=shrink_output)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def forward(
        self, x: Activations, context: AttentionContext, kv_cache: KVCache | None = None
    ) -> Float[Tensor, "batch query d_model"]:
        # Without a norm in between, it is the residual stream itself.
        qkv = self.qkv(_hooked(self.hook_in, x))
        qkv = rearrange(
            qkv, "batch pos (qkv head d) -> batch pos qkv head d", qkv=3, head=self.n_heads
        )
        # Taken by index, each would have a gradient as large as all three, to be added up.
        q, k, v = qkv.unbind(dim=2)
        q, k, v = self.hook_q(q), self.hook_k(k), self.hook_v(v)
        if context.rotation is not None:
            cos = _hooked(self.hook_cos, context.rotation[0]).transpose(0, 1)
            sin = _hooked(self.hook_sin, context.rotation[1]).transpose(0, 1)
            q = self.hook_rot_q(rotate(q, cos, sin))
            k = self.hook_rot_k(rotate(k, cos, sin))
        if kv_cache is not None:
            k, v = kv_cache.append(k, v)
        q = q[:, -len(context.queries) :]
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        z = self.hook_z(self._attend(q, k, v, context))
        if self.cfg.use_attn_result:
            result = self.hook_result(
                einsum(z, self.W_O, "batch pos head d, head d d_model -> batch pos head d_model")
            )
            return self.dropout(result.sum(dim=2) + self.out.bias)
        return self.dropout(self.out(z.flatten(2)))

    def _attend(
        self, q: HeadQueries, k: HeadKeys, v: HeadKeys, context: AttentionContext
    ) -> Float[Tensor, "batch query head d"]:
        listened = listening(self.hook_attn_scores, self.hook_pattern)
        attend = self._attend_explicitly if listened else self._attend_fast
        size = self.query_block
        # Without a listener only a bias has a number for each head, query and key.
        grows = listened or isinstance(context.encoding, ScoreBias)
        if size is None or size >= len(context.queries) or not grows:
            return attend(q, k, v, context)
        found = []
        for first in range(0, len(context.queries), size):
            here = context.block(first, size)
            seen = len(here.keys)
            some = (q[:, :, first : first + size], k[:, :, :seen], v[:, :, :seen])
            found.append(attend(*some, here))
        return torch.cat(found, dim=1)

    def _bias_of(self, context: AttentionContext) -> Bias | None:
        return None if context.bias is None else _hooked(self.hook_score_bias, context.bias)

    def _attend_fast(
        self, q: HeadQueries, k: HeadKeys, v: HeadKeys, context: AttentionContext
    ) -> Float[Tensor, "batch query head d"]:
        mask = None
        if not context.plainly_causal:
            bias = self._bias_of(context)
            mask = context.visible if bias is None else bias
        dropout = self.dropout.p if self.training else 0.0
        z = F.scaled_dot_product_attention(
            q, k, v, mask, dropout, is_causal=context.plainly_causal, scale=self.scale
        )
        return z.transpose(1, 2)

    def _attend_explicitly(
        self, q: HeadQueries, k: HeadKeys, v: HeadKeys, context: AttentionContext
    ) -> Float[Tensor, "batch query head d"]:
        scores = (q * self.scale) @ k.transpose(-1, -2)
        bias = self._bias_of(context)
        if bias is not None:
            scores = scores + bias
        elif context.visible is not None:
            scores = scores.masked_fill(~context.visible, -math.inf)
        pattern = self.hook_pattern(self.hook_attn_scores(scores).softmax(dim=-1))
        return (self.dropout(pattern) @ v).transpose(1, 2)

    def _weight(self, index: int) -> HeadWeights:
        weight = self.qkv.weight.chunk(3)[index]
        return rearrange(weight, "(head d_head) d_model -> head d_model d_head", head=self.n_heads)

    def _bias(self, index: int) -> HeadBiases:
        bias = self.qkv.bias.chunk(3)[index]
        return rearrange(bias, "(head d_head) -> head d_head", head=self.n_heads)

    @property
    def W_Q(self) -> HeadWeights:
        return self._weight(0)

    @property
    def W_K(self) -> HeadWeights:
        return self._weight(1)

    @property
    def W_V(self) -> HeadWeights:
        return self._weight(2)

    @property
    def W_O(self) -> Float[Tensor, "head d_head d_model"]:
        return rearrange(
            self.out.weight, "d_model (head d_head) -> head d_head d_model", head=self.n_heads
        )

    @property
    def b_Q(self) -> HeadBiases:
        return self._bias(0)

    @property
    def b_K(self) -> HeadBiases:
        return self._bias(1)

    @property
    def b_V(self) -> HeadBiases:
        return self._bias(2)

    @property
    def b_O(self) -> Float[Tensor, " d_model"]:
        return self.out.bias
