"""One forward pass, every layer, nothing kept.

`stream` runs a model over batches of tokens and hands each layer's tensor to whoever listens, at
the moment it appears; the tensor is then dropped. Logits are never computed: for a model with a
large vocabulary they cost more than all its layers. The same code runs our `HookedTransformer` and
TransformerLens's `TransformerBridge`.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from nope_interp.errors import UserError, unknown_name
from nope_interp.fields import is_whole
from nope_interp.hooked_model import HookedModel, check_hooked, check_still, wrapped
from nope_interp.progress import progress
from nope_interp.query_blocks import block_size, queries_in_blocks
from nope_interp.shapes import Sequences, Tokens
from nope_interp.sites import layers_with, missing_hook
from nope_interp.threads import one_thread_pool

Listener = Callable[[Tensor], None]
Read = TypeVar("Read")

# Of what type ids have to be: files of them often have 16 bits each, which no embedding takes.
_TOKENS = (torch.int64, torch.int32)
_MAPS = ("hook_attn_scores", "hook_pattern", "hook_score_bias")
# Their axes are not those of all else in attention: they have heads before positions.
_HEADS_FIRST = re.compile(r"\.attn\.(hook_)?[qk]_norm")
# Nor are these where keys and values come of one latent vector, as DeepSeek's.
_HEADS_FIRST_OF_LATENT = re.compile(r"\.attn\.hook_[qkv]$")


def run_trunk(model: HookedModel, tokens: Tokens) -> None:
    """All layers of a model, hooks included, without the unembedding.

    Args:
        model: a HookedTransformer or a TransformerBridge.
        tokens: sequences of equal length, on the model's device.
    """
    bridged = wrapped(model)
    if bridged is None:
        model(tokens, return_type=None)
    else:
        bridged.base_model(tokens, use_cache=False)


def run_until(model: HookedModel, tokens: Tokens, name: str) -> None:
    """The layers of a model up to a hook point.

    Args:
        model: a HookedTransformer or a TransformerBridge.
        tokens: sequences of equal length, on the model's device.
        name: of the hook point. Hooks that stand on it already see its activations.
    """

    def end(activations: Tensor, hook: object) -> None:
        raise Enough

    with model.hooks(fwd_hooks=[(name, end)]), suppress(Enough):
        run_trunk(model, tokens)


def check_tokens(model: HookedModel, tokens: Sequences, batch_size: int) -> None:
    """Refuse what cannot be run.

    Args:
        model: a HookedTransformer or a TransformerBridge.
        tokens: [sequence pos].
        batch_size: sequences in a forward pass.

    Raises:
        UserError: for what is no such tensor, tokens out of the model's vocabulary and a batch size
            below 1.
    """
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.dtype not in _TOKENS:
        shape = getattr(tokens, "shape", None)
        told = type(tokens).__name__ if shape is None else f"{tuple(shape)} of {tokens.dtype}"
        raise UserError(
            f"tokens are {told}: give a tensor of whole numbers (torch.int64 or torch.int32), "
            "[sequence position]."
        )
    if tokens.shape[1] == 0:
        raise UserError("the sequences hold no tokens: give at least one token in each.")
    if not is_whole(batch_size, 1):
        raise UserError(f"batch_size is {batch_size}: give at least 1.")
    outside = (tokens < 0) | (tokens >= model.cfg.d_vocab)
    if outside.any():
        raise UserError(
            f"token {int(tokens[outside][0])} is not in the vocabulary: give ids from 0 to "
            f"{model.cfg.d_vocab - 1}."
        )


def stream(
    model: HookedModel,
    tokens: Sequences,
    listeners: Mapping[str, Listener],
    *,
    batch_size: int = 32,
    until: str | None = None,
    description: str | None = None,
    run: Callable[[HookedModel, Tokens], None] = run_trunk,
    in_blocks: bool = False,
) -> None:
    """Run `model` once over `tokens` and let every listener see its activations.

    Attention over many tokens is computed few queries at a time, unless a listener asks for whole
    maps of it, so that memory grows with the length and not with its square.

    Args:
        model: a HookedTransformer or a TransformerBridge, in evaluation mode.
        tokens: sequences of equal length, never padded.
        listeners: a callable for each hook name; residual sites give it
            `[batch, pos, d_model]`, `attn.hook_pattern` gives `[batch, head, query, key]`.
            The tensor is only valid during the call.
        batch_size: sequences in a forward pass.
        until: the name of a listener after which a forward pass ends: nothing deeper is wanted. In
            blocks it ends after the last of them.
        description: label of the progress bar; None draws no bar.
        run: what a batch goes through, with the model and the batch as arguments.
        in_blocks: whether listeners of attention scores, biases and patterns take some queries of a
            batch after the others, `[batch head query key]` with the keys up to the last of them.
            All others get whole sequences.

    Raises:
        UserError: for a hook that the model lacks (with the layers that have it, or the nearest
            name), an end that is no listener's, a hook that never fired, a model that leaves
            activations out at random, activations that are not finite (with the hook and the
            batch), and, with the same context, for any ValueError of a listener.
    """
    check_hooked(model)
    check_still(model)
    known = model.hook_dict
    for name in listeners:
        if name not in known:
            raise missing_hook(name, known)
    if until is not None and until not in listeners:
        raise unknown_name("listener to end after", until, listeners)
    check_tokens(model, tokens, batch_size)
    device = next(model.parameters()).device
    starts: Iterable[int] = range(0, len(tokens), batch_size)
    bar = progress(starts, description, "batch")
    fired = dict.fromkeys(listeners, 0)
    size, length, n_queries = None, tokens.shape[1], 0
    whole = any(_heads_first(model, name) for name in listeners)
    if not whole and (in_blocks or not any(name.endswith(_MAPS) for name in listeners)):
        size = block_size(model, min(batch_size, len(tokens)), length)
    pieces: dict[str, list[Tensor]] = {}

    def listen(activations: Tensor, hook: object, name: str, batch: int) -> None:
        nonlocal n_queries
        fired[name] += 1
        if size is not None and ("attn" in name) and not name.endswith(_MAPS):
            joined = _joined(pieces.setdefault(name, []), activations, length)
            if joined is None:
                return
            activations = joined
        _hear(listeners[name], activations, name, batch)
        if name == until:
            n_queries += activations.shape[-2] if name.endswith(_MAPS) else length
            if n_queries >= length:
                n_queries = 0
                raise Enough

    for batch, start in enumerate(bar):
        hooks = [(name, partial(listen, name=name, batch=batch)) for name in listeners]
        with (
            torch.no_grad(),
            one_thread_pool(),
            queries_in_blocks(model, size),
            model.hooks(fwd_hooks=hooks),
            suppress(Enough),
        ):
            run(model, tokens[start : start + batch_size].to(device))
        if left := [name for name, some in pieces.items() if some]:
            raise UserError(
                f"{left[0]} does not show all positions one after the other: read shorter "
                "sequences, or fewer in a batch."
            )
    silent = [name for name, count in fired.items() if count == 0]
    if silent and len(tokens):
        raise _never_fired(silent[0], [name for name, count in fired.items() if count])


def read_at(
    model: HookedModel,
    tokens: Sequences,
    reads: Mapping[str, Callable[[Tensor], Read]],
    *,
    batch_size: int = 32,
) -> dict[str, list[Read]]:
    """What functions make of the activations at hooks.

    Args:
        model: a HookedTransformer or a TransformerBridge, in evaluation mode.
        tokens: sequences of equal length, never padded.
        reads: what is made of a batch's activations, by hook name.
        batch_size: sequences in a forward pass.

    Returns:
        By hook name, one result for each batch.

    Raises:
        UserError: as `stream`.
    """
    found: dict[str, list[Read]] = {name: [] for name in reads}

    def keep(activations: Tensor, name: str) -> None:
        found[name].append(reads[name](activations))

    listeners = {name: partial(keep, name=name) for name in reads}
    stream(model, tokens, listeners, batch_size=batch_size)
    return found


def _heads_first(model: HookedModel, name: str) -> bool:
    """Whether a hook in attention shows heads before positions: its blocks cannot be joined."""
    latent = getattr(getattr(wrapped(model), "config", None), "kv_lora_rank", None) is not None
    return bool(_HEADS_FIRST.search(name) or (latent and _HEADS_FIRST_OF_LATENT.search(name)))


def _joined(pieces: list[Tensor], piece: Tensor, length: int) -> Tensor | None:
    """All positions, once the last block of a sequence has come."""
    pieces.append(piece)
    if sum(some.shape[1] for some in pieces) < length:
        return None
    whole = torch.cat(pieces, dim=1) if len(pieces) > 1 else piece
    pieces.clear()
    return whole


class Enough(Exception):
    """Ends a forward pass of which all that anybody wants has been computed."""


def firing_hooks(
    model: HookedModel, names: Iterable[str], tokens: Tokens
) -> dict[str, tuple[int, ...]]:
    """Which of these hooks fire when the model reads `tokens`; names it lacks do not.

    Bridges list hook points that their architecture never computes.

    Args:
        model: a HookedTransformer or a TransformerBridge.
        names: of hook points.
        tokens: one sequence or more; two tokens are enough.

    Returns:
        Those of `names` that fired, with the shape of what they show.
    """
    fired: dict[str, tuple[int, ...]] = {}

    def note(activations: Tensor, hook: object, name: str) -> None:
        fired[name] = tuple(activations.shape)

    hooks = [(name, partial(note, name=name)) for name in names if name in model.hook_dict]
    with torch.no_grad(), model.hooks(fwd_hooks=hooks):
        run_trunk(model, tokens.to(next(model.parameters()).device))
    return fired


def _never_fired(name: str, fired: list[str]) -> UserError:
    """The error for a hook point that the model lists and does not compute."""
    if layers_with(name, fired):
        return missing_hook(name, fired)
    return UserError(
        f"the hook {name!r} exists but never fired, since this architecture does not compute it: "
        "choose another one."
    )


def is_finite(activations: Tensor, name: str) -> bool:
    """Whether no number is NaN or infinite; of hidden keys scores and biases may be minus infinity.

    Args:
        activations: of any shape.
        name: their hook point.

    Returns:
        Whether they are all right.
    """
    # One cheap pass: the sum is finite exactly when every element is, short of overflow.
    total = float(activations.detach().sum(dtype=torch.float32))
    hidden = total == -math.inf and name.endswith(("attn.hook_attn_scores", "attn.hook_score_bias"))
    return math.isfinite(total) or hidden


def _hear(listener: Listener, activations: Tensor, name: str, batch: int) -> None:
    """Hand activations to a listener; an error says where it happened."""
    if not is_finite(activations, name):
        raise UserError(
            f"activations at {name}, batch {batch}, hold NaN or infinite values: "
            "look at the weights, or read them in float32."
        )
    try:
        listener(activations)
    except ValueError as error:
        raise UserError(f"{name}, batch {batch}: {error}") from error
