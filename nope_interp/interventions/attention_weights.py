"""Attention weights measured and changed: to the first token, or to any tokens."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel, attention_layers, check_head
from nope_interp.interventions.intervene import Function, Running, intervene
from nope_interp.models.sinks import attention_sinks
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import AttentionMaps, Sequences
from nope_interp.sites import pattern_hook
from nope_interp.streams import run_trunk, stream

Shares = Float[Tensor, "layer head query"]


def mean_first_attention(model: HookedModel, tokens: Sequences, *, batch_size: int = 32) -> Shares:
    """Each head's attention to the first token from each position, mean over sequences, 0 to 1.

    A sequence whose query gives the first token no weight at all does not count, since a window
    hides it; where all are such, the mean is 0.

    Args:
        model: a HookedTransformer or a TransformerBridge, in evaluation mode.
        tokens: sequences of equal length, at least two tokens.
        batch_size: sequences in a forward pass.

    Returns:
        `[layer head query]`, on the CPU; 0 in layers without attention.

    Raises:
        UserError: for sequences too short, and as `stream`.
    """
    length = tokens.shape[1]
    if length < 2:
        raise UserError(
            f"tokens have shape {tuple(tokens.shape)}: a share of attention needs sequences of at "
            "least two tokens."
        )
    # [weight or count, layer, head, query]
    sums = torch.zeros(2, model.cfg.n_layers, model.cfg.n_heads, length, dtype=torch.float64)

    def add(pattern: AttentionMaps, layer: int) -> None:
        first = pattern[..., 0].double().cpu()
        sums[0, layer] += first.sum(dim=0)
        sums[1, layer] += (first > 0).sum(dim=0)

    listeners = {name: partial(add, layer=layer) for layer, name in _patterns(model).items()}
    stream(model, tokens, listeners, batch_size=batch_size)
    return (sums[0] / sums[1].clamp(min=1)).float()


def without_position(shares: Shares) -> Shares:
    """Shares of attention to the first token, each head's brought to their mean over positions.

    Zeros stay, and the first query's share, which is all it has; neither counts in the mean.
    """
    counted = shares > 0
    counted[..., 0] = False
    means = (shares * counted).sum(dim=-1, keepdim=True) / counted.sum(-1, keepdim=True).clamp(1)
    return torch.where(counted, means, shares)


@contextmanager
def freeze_first_attention(model: HookedModel, shares: Shares) -> Iterator[Running]:
    """A context in which queries give the first token shares of their attention that are fixed.

    The token's weight becomes the share, whatever the content, and a query's other weights are
    scaled so that their sum stays, where an attention sink counts as one more token. With the
    shares of `mean_first_attention` a head keeps what they tell of position and loses what they
    tell of content; with those `without_position` it loses both. A begin token tells m, the number
    of tokens seen, by the 1/m that uniform attention gives it (Kazemnejad et al. 2023, Theorem 1).

    Queries that cannot be so scaled stay: those that give the first token all or none of their
    weight, such as the first query. On a bridge, enter this before other interventions: it runs
    four tokens to see whether patterns act.

    Args:
        model: a HookedTransformer, or a TransformerBridge whose patterns act on what follows.
        shares: of each layer, head and position, from 0 to 1; sequences are to be as long.

    Yields:
        What says, by `verify()`, whether every layer was reached.

    Raises:
        UserError: for shares of another shape or out of range, and for a bridge that shows its
            patterns without using them.
    """
    expected = (model.cfg.n_layers, model.cfg.n_heads)
    if shares.ndim != 3 or tuple(shares.shape[:2]) != expected:
        raise UserError(
            f"shares have shape {tuple(shares.shape)}: give one for each layer and head, "
            f"{expected}, and position."
        )
    if not ((shares >= 0) & (shares <= 1)).all():
        raise UserError("shares of attention lie from 0 to 1: measure them on this model.")
    check_patterns_act(model)
    sinks = attention_sinks(model)
    functions = {
        name: partial(_frozen, shares=shares[layer], sunk=layer in sinks)
        for layer, name in _patterns(model).items()
    }
    with intervene(model, functions) as intervention:
        yield intervention


def _frozen(pattern: AttentionMaps, shares: Float[Tensor, "head pos"], sunk: bool) -> AttentionMaps:
    if shares.shape[1] != pattern.shape[2]:
        raise ValueError(
            f"shares are of {shares.shape[1]} positions, sequences of {pattern.shape[2]} tokens: "
            "measure them on sequences as long."
        )
    share = rearrange(shares.to(pattern), "head query -> 1 head query 1")
    first, others = pattern[..., :1], pattern[..., 1:]
    # What is not the first token's: the other tokens', and the sink's where there is one.
    total = 1 - first if sunk else others.sum(dim=-1, keepdim=True)
    # Divided first: 1 / total may overflow.
    changed = torch.cat((share.expand_as(first), others / total * (1 - share)), dim=-1)
    return torch.where((first > 0) & (total > 0), changed, pattern)


@contextmanager
def scale_attention(
    model: HookedModel,
    positions: Sequence[int],
    factor: float,
    *,
    head: tuple[int, int] | None = None,
) -> Iterator[Running]:
    """A context in which attention to some tokens weighs so many times as much.

    It is as if those keys' exponentiated scores were multiplied: a weight a becomes c a / (1 - s +
    c s), with s the sum of the weights of these tokens, and a query's other weights are divided by
    the same. Under uniform attention over m tokens 1/m becomes c / (m - k + k c) for each of k. On
    a bridge, enter this before other interventions, as `freeze_first_attention`.

    Args:
        model: a HookedTransformer, or a TransformerBridge whose patterns act on what follows.
        positions: of the tokens.
        factor: c, 0 or more; with 0 no later query sees the tokens.
        head: the layer and the head whose attention is scaled; every head's without.

    Yields:
        What says, by `verify()`, whether each of these heads' layers was reached.

    Raises:
        UserError: for a factor that is none, for a head that the model lacks, and for a bridge
            that shows its patterns without using them; when the model runs, for positions that it
            lacks.
    """
    if not 0 <= factor < float("inf"):
        raise UserError(f"attention is scaled by {factor}: give a finite factor of 0 or more.")
    check_patterns_act(model)
    chosen = list(positions)

    def scaled(pattern: AttentionMaps, sunk: bool) -> AttentionMaps:
        n = pattern.shape[-1]
        if not all(0 <= position < n for position in chosen):
            raise ValueError(f"positions are {chosen}, but there are {n} tokens: count from 0")
        more = torch.ones_like(pattern)
        more[..., chosen] = factor
        weighed = pattern * more
        # Summed and not subtracted: of a small rest a difference keeps rounding alone.
        precise = torch.promote_types(pattern.dtype, torch.float32)
        total = weighed.to(precise).sum(dim=-1, keepdim=True)
        if sunk:
            total += (1 - pattern.to(precise).sum(dim=-1, keepdim=True)).clamp(min=0)
        # A query that sees these tokens alone goes on seeing them.
        return torch.where(weighed.any(dim=-1, keepdim=True), weighed / total.to(pattern), pattern)

    def scaled_head(pattern: AttentionMaps, sunk: bool, of: int) -> AttentionMaps:
        changed = pattern.clone()
        changed[:, of] = scaled(pattern, sunk)[:, of]
        return changed

    sinks = attention_sinks(model)
    functions: dict[str, Function] = {
        name: partial(scaled, sunk=layer in sinks) for layer, name in _patterns(model).items()
    }
    if head is not None:
        layer, of = check_head(model, *head)
        functions = {pattern_hook(layer): partial(scaled_head, sunk=layer in sinks, of=of)}
    with intervene(model, functions) as intervention:
        yield intervention


def check_patterns_act(model: HookedModel) -> None:
    """Raise UserError where attention goes on without what a pattern hook gives back."""
    if (layer := layer_with_idle_patterns(model)) is not None:
        raise idle_patterns(model, layer)


def idle_patterns(model: HookedModel, layer: int) -> UserError:
    """Why patterns of a model are not changed.

    Args:
        model: the bridge.
        layer: whose attention goes on without what its pattern hook gives back.

    Returns:
        The error, to be raised.
    """
    return UserError(
        f"this {type(model.original_model).__name__} computes attention past its pattern hooks "
        f"(layer {layer}): change what its heads put out instead."
    )


def _patterns(model: HookedModel) -> dict[int, str]:
    """The hook points of attention weights, by layer."""
    return {layer: pattern_hook(layer) for layer in attention_layers(model)}


def layer_with_idle_patterns(model: HookedModel) -> int | None:
    """The first layer whose attention goes on without what its pattern hook gives back, if any.

    Without any attention weights, what attention writes is its bias at every position, hence equal.

    Args:
        model: a HookedTransformer, none of whose patterns are idle, or a bridge; it reads four
            tokens.
    """
    if isinstance(model, HookedTransformer):
        return None
    ignored: list[int] = []

    def note(written: Float[Tensor, "1 pos d_model"], layer: int) -> Tensor:
        if not torch.equal(written, written[:, :1].expand_as(written)):
            ignored.append(layer)
        return written

    patterns = _patterns(model)
    functions: dict[str, Function] = dict.fromkeys(patterns.values(), torch.zeros_like)
    for layer in patterns:
        functions[f"blocks.{layer}.hook_attn_out"] = partial(note, layer=layer)
    device = next(model.parameters()).device
    with torch.no_grad(), intervene(model, functions) as probe, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is asked here, whether edits are discarded
        run_trunk(model, torch.arange(min(4, model.cfg.d_vocab), device=device)[None])
        probe.verify()
    return min(ignored, default=None)
