"""The transformer whose activations we study, every intermediate a hook point."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens.cache.key_value_cache_entry import (
    TransformerLensKeyValueCacheEntry as KVCache,
)
from transformer_lens.config import TransformerLensConfig
from transformer_lens.hook_points import HookPoint

from nope_interp.errors import UserError, unknown_name
from nope_interp.models.attention import AttentionContext, linear, listening
from nope_interp.models.blocks import Block, Norm
from nope_interp.models.config import TransformerConfig
from nope_interp.models.encodings import ENCODINGS, AddedToEmbedding
from nope_interp.models.hooked_module import HookedModule, Tokenizer
from nope_interp.models.initialization import Initializer
from nope_interp.models.stream_memory import StreamMemory
from nope_interp.shapes import Tokens

_NORMALIZATION_TYPES = {"layer": "LN", "rms": "RMS", "none": None}
_RETURN_TYPES = ("logits", "loss")


class HookedTransformer(HookedModule):
    """A transformer with TransformerLens's interface and hook names, built from one config.

    The hook points, in the order in which they fire::

        hook_embed                         [batch pos d_model]
        hook_pos_embed                     [batch pos d_model]; learned and sinusoidal only
        blocks.{l}.hook_resid_pre          [batch pos d_model]
          ln1.hook_scale, hook_normalized  [batch pos 1], [batch pos d_model]
          attn.hook_in                     [batch pos d_model]
          attn.hook_q, hook_k, hook_v      [batch pos head d_head]
          attn.hook_cos, hook_sin          [1 pos half]; rotary only
          attn.hook_rot_q, hook_rot_k      [batch pos head d_head]; rotary only
          attn.hook_score_bias             [1 head query key]; ALiBi and T5 only
          attn.hook_attn_scores            [batch head query key]
          attn.hook_pattern                [batch head query key]
          attn.hook_z                      [batch pos head d_head]
          attn.hook_result                 [batch pos head d_model]; after set_use_attn_result(True)
          hook_attn_out                    [batch pos d_model]
          hook_resid_mid                   [batch pos d_model]; from here on not if attn_only
          ln2.hook_scale, hook_normalized
          mlp.hook_pre, hook_post          [batch pos d_mlp]; gated also hook_pre_linear
          hook_mlp_out                     [batch pos d_model]
        blocks.{l}.hook_resid_post         [batch pos d_model]
        ln_final.hook_scale, hook_normalized

    With post-norm, `ln1` and `ln2` come after their sublayer and `ln_final` does nothing.

    `config` is ours; `cfg` is what TransformerLens's tools read. Weights are drawn from
    `config.seed` and leave torch's global generator alone. A new model is in evaluation mode, so
    that reading it is never disturbed by dropout: call `train()` to train it.

    Args:
        config: everything about the model.
        tokenizer: turns text into tokens and back, where the model reads text.

    Example:
        >>> model = HookedTransformer(TransformerConfig(2, 32, 4, d_vocab=50, n_ctx=16))
        >>> logits, cache = model.run_with_cache(torch.arange(8)[None])
        >>> cache["pattern", 1].shape
        torch.Size([1, 4, 8, 8])
    """

    def __init__(self, config: TransformerConfig, tokenizer: Tokenizer | None = None) -> None:
        super().__init__(tokenizer)
        self.config = config
        self._cfg = _transformer_lens_config(config)
        # Still unset. `skip_init` of an embedding would load torch's compiler, for a second.
        unset = torch.empty(config.d_vocab, config.d_model)
        self.embed = nn.Embedding.from_pretrained(unset, freeze=False)
        self.hook_embed = HookPoint()
        self.positions = ENCODINGS[config.positions](config)
        if isinstance(self.positions, AddedToEmbedding):
            self.hook_pos_embed = HookPoint()
        self.dropout = nn.Dropout(config.dropout)
        self.blocks: Sequence[Block] = nn.ModuleList(  # type: ignore[assignment]
            Block(config, self._cfg) for _ in range(config.n_layers)
        )
        final = config.normalization if config.norm_placement == "pre" else "none"
        self.ln_final = Norm(final, config.d_model, config.norm_eps)
        self.unembed = linear(config.d_model, config.d_vocab)
        if config.tied_embeddings:
            self.unembed.weight = self.embed.weight
        self._memory: StreamMemory | None = None
        self._initialize()
        self.setup()
        self.eval()

    @property
    def cfg(self) -> TransformerLensConfig:
        """The config in TransformerLens's words; device and dtype are the model's present ones."""
        self._cfg.device = str(self.embed.weight.device)
        self._cfg.dtype = self.embed.weight.dtype
        return self._cfg

    def forward(
        self, tokens: Tensor, return_type: str | None = "logits", stop_at_layer: int | None = None
    ) -> Tensor | None:
        """Logits, loss, nothing, or the residual stream half-way.

        Args:
            tokens: whole numbers, `[batch pos]`, at most `config.n_ctx` of them in a row.
            return_type: "logits" gives `[batch pos d_vocab]`; "loss" the mean cross-entropy of the
                next token, in nats; None runs the model for its hooks up to `ln_final` and
                computes no logits, as in a bridge.
            stop_at_layer: returns the input of this block, whatever `return_type` says; negative
                ones count from the end, and `n_layers` gives the stream before `ln_final`.

        Returns:
            As `return_type` and `stop_at_layer` say.

        Raises:
            UserError: for tokens of a wrong shape or type, out of vocabulary or longer than the
                context, an unknown return type, a layer out of range, a loss over one token.
        """
        if return_type is not None and return_type not in _RETURN_TYPES:
            raise unknown_name("return type", return_type, _RETURN_TYPES)
        self._check_tokens(tokens)
        stream = self._stream(tokens, self._last_layer(stop_at_layer))
        if stop_at_layer is not None:
            return stream
        normalized = self.ln_final(stream)
        if return_type is None:
            return None
        logits = self.unembed(normalized)
        return logits if return_type == "logits" else _next_token_loss(logits, tokens)

    def read_from(
        self, tokens: Tokens, first: int, *, narrow: bool = False
    ) -> Float[Tensor, "batch asked d_model"]:
        """What the unembedding reads from position `first` on, in less time than all of it takes.

        Of the earlier positions the last block computes keys and values alone, unless something
        listens there or behind it, which then sees all positions.

        Args:
            tokens: `[batch pos]`.
            first: a position from 0.
            narrow: whether what listens behind the last block's attention scores sees the positions
                from `first` on alone, so that no others are computed for it.

        Returns:
            `[batch asked d_model]`: what the final norm gives.

        Raises:
            UserError: as `forward`, and for a position that the tokens lack.
        """
        self._check_tokens(tokens)
        if not 0 <= first < tokens.shape[1]:
            raise UserError(
                f"there is no position {first}: give one from 0 to {tokens.shape[1] - 1}."
            )
        n_blocks = len(self.blocks)
        if not narrow and listening(*self.blocks[-1].modules(), *self.ln_final.modules()):
            return self.ln_final(self._stream(tokens, n_blocks))[:, first:]
        return self.ln_final(self._stream(tokens, n_blocks, first=first))

    @contextmanager
    def remembered_below(self, layer: int) -> Iterator[None]:
        """A context in which the blocks below `layer` run once for each batch of tokens.

        For runs that differ at this block's input or above it only: where the same tokens come
        again, what reached the block is taken as it was, and hooks below do not fire.

        Args:
            layer: 0 to n_layers - 1.

        Yields:
            Nothing.
        """
        before, self._memory = self._memory, StreamMemory(layer)
        try:
            yield
        finally:
            self._memory = before

    @torch.no_grad()
    def generate(self, tokens: Tensor, max_new_tokens: int) -> Int[Tensor, "batch longer"]:
        """The tokens followed by the most likely continuation, one token after the other.

        Keys and values of earlier tokens are kept, so that hooks fire for the whole prompt first
        and then for one position at a time. Dropout is off.

        Args:
            tokens: `[batch pos]`, whole numbers.
            max_new_tokens: how many follow.

        Returns:
            `[batch longer]`.

        Raises:
            UserError: as `forward`; for a bidirectional model, whose earlier tokens would have to
                see the later ones; and where the context is too short for what is asked.
        """
        self._check_tokens(tokens)
        if not self.config.causal:
            raise UserError("a bidirectional model cannot generate: build it with causal=True.")
        if max_new_tokens < 0 or tokens.shape[1] + max_new_tokens > self.config.n_ctx:
            raise UserError(
                f"{tokens.shape[1]} tokens and {max_new_tokens} new ones do not fit a context of "
                f"{self.config.n_ctx}: ask for 0 to {self.config.n_ctx - tokens.shape[1]}."
            )
        was_training = self.training
        self.eval()
        try:
            return torch.cat((tokens, *self._continuation(tokens, max_new_tokens)), dim=1)
        finally:
            self.train(was_training)

    def set_use_attn_result(self, use_attn_result: bool) -> None:
        """Whether to compute what each head adds to the stream, at `attn.hook_result`.

        Args:
            use_attn_result: True to compute it, at a cost in memory.
        """
        self._cfg.use_attn_result = use_attn_result

    def accumulated_bias(
        self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True
    ) -> Float[Tensor, " d_model"]:
        """The sum of the output biases written to the stream before block `layer`.

        Args:
            layer: 0 to n_layers; n_layers takes all blocks.
            mlp_input: adds the bias of this layer's attention.
            include_mlp_biases: False leaves the MLPs' out.

        Returns:
            `[d_model]`.

        Raises:
            UserError: where sublayers do not simply add to the stream (post-norm, no residual).
        """
        if self.config.norm_placement == "post" or not self.config.residual:
            raise UserError(
                "biases accumulate only in a pre-norm model with residual connections; "
                "this one's stream is not a sum of what its sublayers write."
            )
        total = torch.zeros_like(self.unembed.weight[0])
        for block in islice(self.blocks, layer):
            total = total + block.attn.b_O
            if include_mlp_biases and block.mlp is not None:
                total = total + block.mlp.b_out
        return total + self.blocks[layer].attn.b_O if mlp_input else total

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:
        """The embedding, `[d_vocab d_model]`."""
        return self.embed.weight

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        """The unembedding, `[d_model d_vocab]`."""
        return self.unembed.weight.T

    @property
    def b_U(self) -> Float[Tensor, " d_vocab"]:
        """The bias of the logits, `[d_vocab]`."""
        return self.unembed.bias

    def _initialize(self) -> None:
        """Draws all weights from `config.seed`, embedding first, unembedding last."""
        config = self.config
        draw = Initializer(config.init, config.init_scale, config.seed)
        shrink = math.sqrt(2 * config.n_layers) if config.rescale_output_projections else 1.0
        draw(self.embed.weight)
        self.positions.initialize(draw)
        for block in self.blocks:
            block.initialize(draw, shrink)
        if not config.tied_embeddings:
            draw(self.unembed.weight)
        nn.init.zeros_(self.unembed.bias)

    def _stream(
        self, tokens: Tensor, n_blocks: int, kv_caches: list[KVCache] | None = None, first: int = 0
    ) -> Float[Tensor, "batch asked d_model"]:
        """The residual stream after `n_blocks` blocks; after all, only from position `first` on."""
        seen = kv_caches[0].past_keys.shape[1] if kv_caches else 0
        keys = torch.arange(seen + tokens.shape[1], device=tokens.device)
        new = keys[seen:]
        context = AttentionContext(self.positions, self.config.causal, new, new, keys)
        memory = None if kv_caches or self._memory is None else self._memory
        known = None if memory is None or memory.layer > n_blocks else memory.of(tokens)
        start = 0 if memory is None or known is None else memory.layer
        stream = self._embedded(tokens, new) if known is None else known
        for layer, block in enumerate(islice(self.blocks, start, n_blocks), start):
            if memory is not None and layer == memory.layer:
                memory.keep(tokens, stream)
                if listening(block.hook_resid_pre):  # which may write into its tensor
                    stream = stream.clone()
            if layer == len(self.blocks) - 1:
                context = context.since(first)
            stream = block(stream, context, kv_caches[layer] if kv_caches else None)
        return stream

    def _embedded(
        self, tokens: Tensor, new: Int[Tensor, " pos"]
    ) -> Float[Tensor, "batch pos d_model"]:
        """What the first block is given of tokens at these positions."""
        stream = self.hook_embed(self.embed(tokens))
        if isinstance(self.positions, AddedToEmbedding):
            added = self.positions(new).expand_as(stream)
            if listening(self.hook_pos_embed):
                # A copy, since hooks that write into their tensor would fail on an expanded one.
                added = self.hook_pos_embed(added.clone())
            stream = stream + added
        return self.dropout(stream)

    def _continuation(self, tokens: Tensor, length: int) -> Iterator[Int[Tensor, "batch 1"]]:
        cfg = self.cfg
        kv_caches = [KVCache.init_cache_entry(cfg, tokens.device, len(tokens)) for _ in self.blocks]
        for _ in range(length):
            stream = self._stream(tokens, len(self.blocks), kv_caches)
            tokens = self.unembed(self.ln_final(stream[:, -1:])).argmax(dim=-1)
            yield tokens

    def _last_layer(self, stop_at_layer: int | None) -> int:
        n_layers = self.config.n_layers
        if stop_at_layer is None:
            return n_layers
        if not -n_layers <= stop_at_layer <= n_layers:
            raise UserError(
                f"stop_at_layer is {stop_at_layer}: give a layer from {-n_layers} to {n_layers}."
            )
        return stop_at_layer % n_layers if stop_at_layer < 0 else stop_at_layer

    def _check_tokens(self, tokens: object) -> None:
        if not isinstance(tokens, Tensor):
            raise UserError(
                f"tokens are a {type(tokens).__name__}: give a tensor of shape (batch, pos); "
                f"model.to_tokens makes one of text."
            )
        if tokens.ndim != 2:
            shape = tuple(tokens.shape)
            raise UserError(f"tokens have shape {shape}: give a tensor of shape (batch, pos).")
        if tokens.dtype not in (torch.int64, torch.int32):
            raise UserError(f"tokens are {tokens.dtype}: give torch.int64 or torch.int32.")
        if tokens.numel() == 0:
            raise UserError("there are no tokens: give at least one sequence of one token.")
        if tokens.shape[1] > self.config.n_ctx:
            raise UserError(
                f"{tokens.shape[1]} tokens in a row are more than the context of "
                f"{self.config.n_ctx}: cut the sequences or build the model with a larger n_ctx."
            )
        if torch.compiler.is_compiling():  # what tokens hold would cut a compiled loss in pieces
            return
        outside = (tokens < 0) | (tokens >= self.config.d_vocab)
        if outside.any():
            raise UserError(
                f"token {tokens[outside][0].item()} is not in the vocabulary: "
                f"give ids from 0 to {self.config.d_vocab - 1}."
            )

    def _silent_because(self, name: str) -> str | None:
        if name.endswith("attn.hook_result") and not self._cfg.use_attn_result:
            return "call model.set_use_attn_result(True) first."
        return None


def _next_token_loss(
    logits: Float[Tensor, "batch pos d_vocab"], tokens: Tensor
) -> Float[Tensor, ""]:
    if tokens.shape[1] < 2:
        raise UserError("the loss needs sequences of at least two tokens: one to predict the next.")
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten().long())


def _transformer_lens_config(config: TransformerConfig) -> TransformerLensConfig:
    # Post-norm: what reads the stream reads it as it is, so TransformerLens has no norm to apply.
    norm = config.normalization if config.norm_placement == "pre" else "none"
    return TransformerLensConfig(
        d_model=config.d_model,
        d_head=config.d_head,
        n_layers=config.n_layers,
        n_ctx=config.n_ctx,
        n_heads=config.n_heads,
        d_mlp=config.mlp_width,
        d_vocab=config.d_vocab,
        device="cpu",
        default_prepend_bos=False,
        positional_embedding_type="standard" if config.positions == "learned" else config.positions,
        attn_only=config.attn_only,
        gated_mlp=config.gated,
        uses_rms_norm=norm == "rms",
        eps=config.norm_eps,
        act_fn=config.activation,
        normalization_type=_NORMALIZATION_TYPES[norm],
    )
