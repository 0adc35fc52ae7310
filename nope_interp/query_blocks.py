"""Attention few queries at a time, so that memory grows with the length and not with its square.

A block of queries meets all keys that one of them sees, and no others: there is never a map of all
queries and keys, nor a mask. Listeners inside attention see the blocks in order; the sites around
it see whole sequences. Where others' hooks stand inside it, all queries are computed at once.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from nope_interp.attention_shapes import keys_of
from nope_interp.hooked_model import HookedModel, wrapped

# What one block's scores of all sequences and heads have at most: 16 MiB in single precision.
_CELLS = 2**22

# Models that are changed inside attention at present, by how many contexts.
_CHANGED: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

# Families whose score bias or recurrence comes in one piece. Falcon's ALiBi, too.
_WHOLE = ("t5", "olmo_hybrid")


def block_size(model: HookedModel, n_sequences: int, length: int) -> int | None:
    """How many queries of such a batch are computed at a time; None for all of them at once.

    Args:
        model: a HookedTransformer or a bridge.
        n_sequences: in a forward pass.
        length: tokens in each.

    Returns:
        Queries in a block, 16 at least.
    """
    if _CHANGED.get(model) or _is_hooked(model):
        return None
    size = max(16, _CELLS // max(n_sequences * model.cfg.n_heads * length, 1))
    return size if size < length and comes_in_blocks(model) else None


def _is_hooked(model: HookedModel) -> bool:
    """Whether hooks of a user's stand inside attention: they expect all queries, as in a plain run.

    TransformerLens keeps its hooks apart from torch's, by which this project changes models.
    """
    return any(
        point.fwd_hooks
        for block in _attending(model)
        for point in block.attn.modules()
        if isinstance(point, HookPoint)
    )


def _attending(model: HookedModel) -> list[Any]:
    """The blocks that have attention: some of a hybrid have none."""
    return [block for block in model.blocks if hasattr(block, "attn")]


def comes_in_blocks(model: HookedModel) -> bool:
    """Whether a model's attention can be computed few queries at a time.

    Args:
        model: a HookedTransformer or a bridge.
    """
    bridged = wrapped(model)
    if bridged is None:
        # A user's own model has attention of its own.
        return getattr(getattr(model, "config", None), "positions", None) is not None
    config = bridged.config
    alibi = config.model_type == "falcon" and config.alibi
    # Its own forward pass cuts the masks of layers that read an earlier one's keys.
    shared = any(keys_of(config, layer) is not None for layer in range(model.cfg.n_layers))
    return not (alibi or shared) and config.model_type not in _WHOLE


@contextmanager
def all_queries_at_once(model: HookedModel) -> Iterator[None]:
    """While it is open, no batch of a model's is divided: hooks inside attention see all queries.

    Args:
        model: a HookedTransformer or a bridge.
    """
    _CHANGED[model] = _CHANGED.get(model, 0) + 1
    try:
        yield
    finally:
        _CHANGED[model] -= 1


@contextmanager
def queries_in_blocks(model: HookedModel, size: int | None) -> Iterator[None]:
    """While it is open, attention computes so many queries at a time.

    Args:
        model: one that `comes_in_blocks`.
        size: of a block, as `block_size` gives it; the last one may be smaller.

    Yields:
        Nothing.
    """
    with ExitStack() as undo:
        if wrapped(model) is None:
            undo.enter_context(_lazy_of_ours(model, size))
        elif size is not None:
            undo.enter_context(_masks_by_rows())
            for block in _attending(model):
                # Set as a plain attribute it would go to the module that the bridge wraps.
                own = block.attn.__dict__
                own["forward"] = partial(_forward, block.attn.forward, size)
                undo.callback(own.pop, "forward")
        yield


@contextmanager
def _lazy_of_ours(model: HookedModel, size: int | None) -> Iterator[None]:
    for block in model.blocks:
        block.attn.query_block = size
    try:
        yield
    finally:
        for block in model.blocks:
            block.attn.query_block = None


@dataclass(frozen=True)
class MaskRows:
    """A mask that is made when its rows are asked for, by what transformers would make it by."""

    make: Callable[..., Tensor]
    sees: Callable[..., Any]
    device: torch.device

    def to(self, dtype: torch.dtype) -> "MaskRows":
        """The same in another type, as a tensor's `to`: MPT makes its mask of booleans."""
        return replace(self, make=lambda **at: self.make(**at).to(dtype))

    def first_key(self, query: int) -> int:
        """The first key that a query sees."""
        keys = torch.arange(query + 1, device=self.device)
        seen = torch.as_tensor(self.sees(0, 0, keys.new_tensor(query), keys))
        return int(seen.expand(len(keys)).int().argmax())

    def rows(self, first: int, last: int, first_key: int) -> Tensor:
        """The rows of some queries, the columns from a key on up to the last query's own.

        Args:
            first: the first query, counted from 0.
            last: the query after the last one.
            first_key: the key of the first column.

        Returns:
            The part of the mask, as transformers would make it.
        """
        queries, keys = (first, last - first), (first_key, last - first_key)
        return self.make(
            mask_function=self.sees,
            q_offset=queries[0],
            q_length=queries[1],
            kv_offset=keys[0],
            kv_length=keys[1],
        )

    def causal(self) -> "MaskRows":
        """The same without a window."""
        from transformers.masking_utils import causal_mask_function

        return replace(self, sees=causal_mask_function)


@contextmanager
def _masks_by_rows() -> Iterator[None]:
    """While it is open, transformers makes masks that are made by their rows."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASKS

    eager = MASKS["eager"]
    of_places = ("q_length", "kv_length", "q_offset", "kv_offset")

    def lazy(*, mask_function: Any, device: Any, **further: Any) -> MaskRows:
        fixed = {name: value for name, value in further.items() if name not in of_places}
        return MaskRows(partial(eager, device=device, **fixed), mask_function, device)

    MASKS["eager"] = lazy
    try:
        yield
    finally:
        del MASKS["eager"]


class _Keys:
    """The keys and values of the queries so far, as one layer's KV cache, but for those that no
    later query sees."""

    def __init__(self) -> None:
        self._held: tuple[Tensor, Tensor] | None = None
        self.first = 0

    def update(self, keys: Tensor, values: Tensor, *where: Any) -> tuple[Tensor, Tensor]:
        if self._held is not None:
            keys, values = (
                torch.cat((old, new), dim=-2)
                for old, new in zip(self._held, (keys, values), strict=True)
            )
        self._held = keys, values
        return self._held

    def get_seq_length(self, *where: Any) -> int:
        return self.first + (0 if self._held is None else self._held[0].shape[-2])

    def forget(self, first: int) -> None:
        """Drops the keys before this one."""
        if self._held is not None and first > self.first:
            self._held = tuple(x[..., first - self.first :, :] for x in self._held)  # type: ignore[assignment]
            self.first = first


def _forward(forward: Callable[..., Any], size: int, *args: Any, **kwargs: Any) -> Any:
    """Attention's own forward pass, block by block, with what came before as a KV cache."""
    states = args[0] if args else kwargs["hidden_states"]
    keys, found = _Keys(), []
    named = {name: kwargs[name] for name in kwargs if name not in ("past_key_values", "layer_past")}
    for first in range(0, states.shape[1], size):
        last = min(first + size, states.shape[1])
        mask = kwargs.get("attention_mask")
        if isinstance(mask, MaskRows):
            keys.forget(mask.first_key(first))
        of_block = partial(_of_block, first=first, last=last, first_key=keys.first)
        own = {name: of_block(name, value) for name, value in named.items()}
        cache = {"layer_past" if "layer_past" in kwargs else "past_key_values": keys}
        rest = [of_block("hidden_states", x) for x in args]
        output = forward(*rest, **own, **cache)
        found.append(output[0] if isinstance(output, tuple) else output)
    joined = torch.cat(found, dim=1)
    return (joined, *[None] * (len(output) - 1)) if isinstance(output, tuple) else joined


def _of_block(name: str, value: Any, first: int, last: int, first_key: int) -> Any:
    """An argument of attention for the queries from `first` to before `last`."""
    if isinstance(value, MaskRows):
        return value.rows(first, last, first_key)
    if name == "attention_mask" and value is not None:
        return value[..., first:last, first_key:last]
    if name in ("hidden_states", "position_ids") and isinstance(value, Tensor):
        return value[:, first:last]
    if name == "position_embeddings" and value is not None:
        if isinstance(value, tuple):
            return tuple(x[:, first:last] for x in value)
        return value[:, first:last]
    return value[first:last] if name == "cache_position" and value is not None else value
