"""How well a model predicts each sequence, in memory that does not grow with the vocabulary."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel, check_hooked, check_still, wrapped
from nope_interp.models.marked import before, logits_at
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import Activations, PerSequence, Sequences, Tokens
from nope_interp.streams import Enough, Listener, check_tokens, stream

# Logits held at one time, 16 MiB in single precision, and of how many kinds of tokens: those of all
# kinds are of so few tokens that to read the weights again for each of them takes half of the time.
_LOGITS, _KINDS = 2**22, 2**12

_ALL = slice(None)
# Logits of all kinds of tokens, or of some.
Unembedding = Callable[..., Tensor]


def sequence_losses(
    model: HookedModel,
    tokens: Sequences,
    *,
    batch_size: int = 32,
    listeners: Mapping[str, Listener] | None = None,
    description: str | None = None,
    in_blocks: bool = False,
) -> PerSequence:
    """Mean cross-entropy of the next token, in nats, of each sequence.

    Hooks on the unembedding see pieces of the sequences and of the vocabulary; all others see what
    they always see.

    Args:
        model: a HookedTransformer or a bridge, in evaluation mode.
        tokens: sequences of equal length, at least two tokens, never padded.
        batch_size: sequences in a forward pass.
        listeners: a callable for each hook name, as `stream` takes them.
        description: label of the progress bar; None draws no bar.
        in_blocks: how listeners take attention maps, as `stream` says.

    Returns:
        `[sequence]`, on the CPU.

    Raises:
        UserError: for tokens out of vocabulary, sequences too short, losses that are not finite,
            an architecture whose logits are not its unembedding of the last layer's output, and, of
            listeners, as `stream`.
    """
    how: dict[str, Any] = {"description": description, "in_blocks": in_blocks}
    found = token_losses(model, tokens, batch_size=batch_size, listeners=listeners, **how)
    return found.mean(dim=1)


def token_losses(
    model: HookedModel,
    tokens: Sequences,
    *,
    batch_size: int = 32,
    listeners: Mapping[str, Listener] | None = None,
    description: str | None = None,
    in_blocks: bool = False,
) -> Float[Tensor, "sequence predicted"]:
    """Cross-entropy, in nats, of each token but the first.

    Args:
        model: as in `sequence_losses`.
        tokens: as there.
        batch_size: as there.
        listeners: as there.
        description: as there.
        in_blocks: as there.

    Returns:
        `[sequence predicted]`, on the CPU.

    Raises:
        UserError: as `sequence_losses`.
    """
    check_hooked(model)
    check_tokens(model, tokens, batch_size)
    if len(tokens) == 0 or tokens.shape[1] < 2:
        raise UserError(
            f"tokens have shape {tuple(tokens.shape)}: a loss needs at least one sequence of at "
            "least two tokens."
        )
    losses: list[Tensor] = []
    stream(
        model,
        tokens,
        listeners or {},
        batch_size=batch_size,
        description=description,
        run=lambda of, batch: losses.append(_losses(of, batch).cpu()),
        in_blocks=in_blocks,
    )
    every = torch.cat(losses)
    if not every.isfinite().all():
        raise UserError("the model's losses hold NaN or infinite values: is it damaged?")
    return every


@torch.no_grad()
def answer_losses(
    model: HookedTransformer,
    tokens: Sequences,
    answer: Bool[Tensor, "sequence pos"],
    *,
    batch_size: int = 32,
) -> PerSequence:
    """Mean cross-entropy, in nats, of the tokens of each sequence that are marked as its answer.

    The first token cannot be predicted and does not count.

    Args:
        model: in evaluation mode.
        tokens: `[sequence pos]`.
        answer: `[sequence pos]`, which of them are scored.
        batch_size: sequences in a forward pass.

    Returns:
        `[sequence]`, on the CPU.

    Raises:
        UserError: for tokens out of vocabulary, and for a sequence without an answer.
    """
    check_tokens(model, tokens, batch_size)
    asked = before(answer)
    if not asked.any(dim=1).all():
        raise UserError(
            "a sequence has no answer to score: mark at least one token after the first."
        )
    found = []
    for some, wanted in zip(tokens.split(batch_size), asked.split(batch_size), strict=True):
        targets = some.roll(-1, dims=1)[wanted].long()
        logits = logits_at(model, some, wanted).float().cpu()
        losses = torch.zeros(wanted.shape)
        losses[wanted] = F.cross_entropy(logits, targets, reduction="none")
        found.append(losses.sum(dim=1) / wanted.sum(dim=1))
    return torch.cat(found)


def unigram_losses(
    fit: Sequences, tokens: Int[Tensor, "other other_pos"], d_vocab: int
) -> Float[Tensor, " other"]:
    """The loss of a guesser who knows how often each token occurs and sees no context.

    In nats, of each sequence's tokens but the first. Frequencies are those of `fit`, with the
    smoothing of Witten and Bell 1991: n tokens of k kinds leave k / (n + k) to the kinds unseen.

    Args:
        fit: `[sequence pos]`, what frequencies are counted in.
        tokens: `[other other_pos]`, what is scored.
        d_vocab: kinds of tokens.

    Returns:
        `[other]`.
    """
    counts = torch.bincount(fit[:, 1:].flatten(), minlength=d_vocab).double()
    n, seen = counts.sum(), counts > 0
    # Where all kinds were seen, nothing is left to others.
    k = seen.sum() if (~seen).any() else 0
    unseen = k / ((n + k) * (~seen).sum().clamp(min=1))
    probability = torch.where(seen, counts / (n + k), unseen)
    return -probability.log()[tokens[:, 1:]].mean(dim=1).float()


def bigram_losses(
    text: Int[Tensor, " read"], tokens: Int[Tensor, "other other_pos"], d_vocab: int
) -> Float[Tensor, " other"]:
    """The loss of a guesser who knows which token follows which, and sees one token of context.

    In nats, of each sequence's tokens but the first. Smoothed after Witten and Bell 1991: where n
    tokens of k kinds followed a token, k / (n + k) is shared out by how often tokens occur at all;
    and there, of n tokens of k kinds, k / (n + k) equally among all.

    Args:
        text: what was read, in reading order.
        tokens: `[other other_pos]`, what is scored.
        d_vocab: kinds of tokens.

    Returns:
        `[other]`.
    """
    counts = torch.bincount(text, minlength=d_vocab).double()
    kinds = (counts > 0).sum()
    any_token = (counts + kinds / d_vocab) / (counts.sum() + kinds)
    pairs, seen = (text[:-1].long() * d_vocab + text[1:]).unique(return_counts=True)
    firsts = pairs // d_vocab
    followed = torch.bincount(text[:-1], minlength=d_vocab)
    followers = torch.bincount(firsts, minlength=d_vocab)
    before, wanted = tokens[:, :-1].long(), tokens[:, 1:].long()
    asked = before * d_vocab + wanted
    at = torch.searchsorted(pairs, asked).clamp(max=len(pairs) - 1)
    together = torch.where(pairs[at] == asked, seen[at], 0).double()
    n, k = followed[before].double(), followers[before].double()
    probability = torch.where(
        n > 0, (together + k * any_token[wanted]) / (n + k).clamp(min=1), any_token[wanted]
    )
    return -probability.log().mean(dim=1).float()


@torch.no_grad()
def next_log_probabilities(
    model: HookedModel, tokens: Tokens, first: int, *, narrow: bool = False
) -> Float[Tensor, "batch asked d_vocab"]:
    """Logarithms of the probabilities of each next token, from a position on.

    Args:
        model: a HookedTransformer or a bridge, in evaluation mode.
        tokens: `[batch pos]`, on the model's device.
        first: the first position that is asked for its next token, from 0.
        narrow: of a HookedTransformer, as `read_from` takes it.

    Returns:
        `[batch asked d_vocab]`, float32.

    Raises:
        UserError: for an architecture whose logits are not its unembedding of the last layer's
            output, and for a model that leaves activations out at random.
    """
    check_still(model)
    if isinstance(model, HookedTransformer):
        read = model.read_from(tokens, first, narrow=narrow)
        return model.unembed(read).float().log_softmax(dim=-1)
    final, unembed = _bridged(model, tokens)
    logits = unembed(rearrange(final[:, first:], "batch pos d -> (batch pos) d")).float()
    return rearrange(logits.log_softmax(dim=-1), "(batch pos) v -> batch pos v", batch=len(tokens))


@torch.no_grad()
def logit_differences(
    model: HookedModel, tokens: Tokens, one: int, other: int, seen: Any = None
) -> Float[Tensor, " runs"]:
    """The logit of one token less that of another behind the last token: no others are computed.

    Whether a bridge's logits are its unembedding of what this reads, the caller makes sure, as by
    `next_log_probabilities`; of a large vocabulary that takes as long as a dozen tokens.

    Args:
        model: a HookedTransformer or a bridge, in evaluation mode.
        tokens: `[batch pos]`, on the model's device.
        one: a token.
        other: another one.
        seen: of a bridge, a cache of transformers with keys and values of the tokens before these.

    Returns:
        `[run]`: hooks may make more of them, or fewer, than there are sequences.

    Raises:
        UserError: for a model that leaves activations out at random.
    """
    check_still(model)
    if isinstance(model, HookedTransformer):
        logits = model.unembed(model.read_from(tokens, tokens.shape[1] - 1))[:, 0, [one, other]]
    else:
        unembed = model.unembed.original_component
        bias = None if unembed.bias is None else unembed.bias[[one, other]]
        final = _read_last(model, tokens, seen)
        logits = _scaled(model, F.linear(final, unembed.weight[[one, other]], bias))
    difference: Tensor = logits.float() @ logits.new_tensor([1.0, -1.0], dtype=torch.float32)
    return difference


def _read_last(model: HookedModel, tokens: Tokens, seen: Any) -> Tensor:
    """What a bridge's unembedding reads behind the last token, `[run d_model]`."""
    kept: list[Tensor] = []

    def keep(module: object, args: tuple[Tensor, ...]) -> None:
        kept.append(args[0][:, -1])
        raise Enough

    handle = model.unembed.register_forward_pre_hook(keep)
    try:
        with suppress(Enough):
            model.original_model(tokens, use_cache=False, past_key_values=seen)
    finally:
        handle.remove()
    return kept[0]


def _losses(model: HookedModel, tokens: Tokens) -> Float[Tensor, "batch predicted"]:
    if isinstance(model, HookedTransformer):
        final, unembed = _own(model, tokens)
    else:
        final, unembed = _bridged(model, tokens)
    activations = rearrange(final[:, :-1], "batch pos d -> (batch pos) d")
    targets = rearrange(tokens[:, 1:], "batch pos -> (batch pos)").long().to(activations.device)
    kinds = _kinds_at_a_time(model)
    size = max(1, _LOGITS // len(kinds[0]))
    pieces = [
        _cross_entropy(unembed, some, wanted, kinds)
        for some, wanted in zip(activations.split(size), targets.split(size), strict=True)
    ]
    return rearrange(torch.cat(pieces), "(batch pos) -> batch pos", batch=len(tokens))


def _kinds_at_a_time(model: HookedModel) -> list[range]:
    """All kinds of tokens in pieces; in one where accelerate brings all weights for each call."""
    d_vocab = model.cfg.d_vocab
    offloaded = any(weights.is_meta for weights in model.unembed.parameters())
    size = d_vocab if offloaded else min(_KINDS, d_vocab)
    return [range(first, min(first + size, d_vocab)) for first in range(0, d_vocab, size)]


def _cross_entropy(
    unembed: Unembedding,
    activations: Float[Tensor, "asked d"],
    targets: Int[Tensor, " asked"],
    kinds: Sequence[range],
) -> Float[Tensor, " asked"]:
    """That of each target, from the logits of some kinds of tokens after the others.

    What stays is written into tensors that are there before. A result that is allocated between two
    pieces of logits would split the memory of the first, so that the second takes other memory: the
    process then grows to what all logits at once would take.
    """
    sums = torch.empty(len(kinds), len(targets), device=activations.device)
    own = torch.zeros(len(targets), device=activations.device)
    for some, total in zip(kinds, sums, strict=True):
        logits = unembed(activations, slice(some.start, some.stop)).float()
        torch.logsumexp(logits, dim=-1, out=total)
        at = targets - some.start
        found = logits.gather(1, rearrange(at.clamp(0, len(some) - 1), "asked -> asked 1"))[:, 0]
        torch.where((at >= 0) & (at < len(some)), found, own, out=own)
    return sums.logsumexp(dim=0) - own


def _own(model: HookedTransformer, tokens: Tokens) -> tuple[Activations, Unembedding]:
    stream = model(tokens, stop_at_layer=model.config.n_layers)
    return model.ln_final(stream), partial(_products, model.unembed)


def _products(unembedding: nn.Module, final: Tensor, kinds: slice = _ALL) -> Tensor:
    """The products of an unembedding with its weights of some kinds of tokens; its hooks run."""
    # A bridge's bias is a buffer where the checkpoint has none.
    held = [*unembedding.named_parameters(), *unembedding.named_buffers()]
    some = {name: of[kinds] for name, of in held if not of.is_meta}
    return functional_call(unembedding, some, (final,))


def _bridged(model: HookedModel, tokens: Tokens) -> tuple[Activations, Unembedding]:
    """What the unembedding reads, and the unembedding; the model itself computes one token's."""
    if wrapped(model) is None:
        raise UserError(
            f"how a {type(model).__name__} makes its predictions is not known here: give a "
            "HookedTransformer or the model of load_pretrained."
        )
    kept: list[Tensor] = []

    def keep(module: object, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        kept.append(args[0])
        return (args[0][:1, -1:],)

    handle = model.unembed.register_forward_pre_hook(keep)
    try:
        expected = model.original_model(tokens, use_cache=False).logits
    finally:
        handle.remove()

    def unembed(final: Tensor, kinds: slice = _ALL) -> Tensor:
        batch = rearrange(final, "asked d -> 1 asked d")
        return _scaled(model, _products(model.unembed, batch, kinds)[0])

    found = unembed(kept[0][:1, -1])
    # The same products, perhaps added up in another order: a few roundings apart, of any precision.
    error = (found - expected[:, -1]).abs().max() / expected.abs().max()
    if error > 16 * torch.finfo(found.dtype).eps:
        raise UserError(
            f"a {type(model.original_model).__name__}'s logits are not just its unembedding of the "
            "last layer's output: its losses cannot be computed here."
        )
    return kept[0], unembed


def _scaled(model: HookedModel, logits: Tensor) -> Tensor:
    """What some families do to the products of their unembedding."""
    config = model.original_model.config
    cap = getattr(config, "final_logit_softcapping", None)
    scale = 1.0
    if config.model_type in ("cohere", "cohere2"):
        scale = config.logit_scale
    if config.model_type in ("granite", "granitemoe", "granitemoehybrid"):
        scale = 1 / config.logits_scaling
    # To multiply by one, too, takes a tenth of the time of all these products.
    logits = logits if scale == 1 else scale * logits
    return logits if cap is None else cap * torch.tanh(logits / cap)
