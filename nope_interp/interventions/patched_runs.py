"""Runs of the corrupted prompt with one column patched, one run for each layer, in few passes.

In a layer a run is told from the corrupted one only from that layer on, and only from the patched
position on. So a run joins the pass in the layer in which it is patched, and of the tokens before
the patched position the keys and values of the corrupted run are kept. Where a model does not bear
that, which is tried on unpatched runs, all runs go all the way. A pass patches some columns: what a
pass costs beside its products is as much for one token as for a hundred.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from nope_interp.hooked_model import HookedModel
from nope_interp.interventions.heads import by_head
from nope_interp.interventions.intervene import Function, intervene
from nope_interp.models.losses import logit_differences, next_log_probabilities
from nope_interp.models.transformer import HookedTransformer

Made = TypeVar("Made")
# Writes of what is clean a column into a run.
Put = Callable[[Tensor, int, Tensor], None]
# Keys and values of each layer, `[1 head pos d_head]`.
Kept = list[tuple[Tensor, Tensor]]
# The logit difference of each layer's run, for the first of some columns: as many as a pass takes.
PatchColumns = Callable[[Sequence[int]], Float[Tensor, "layer column"]]
# What can be patched, and by which hook of a layer.
HOOKS = {"resid_pre": "hook_resid_pre", "head_out": "attn.hook_z", "pattern": "attn.hook_pattern"}
# Tokens that a pass may have in its last layer, of all runs, but for those of a single column. A
# pass is to be short, since others who use the model wait for it.
_MOST_TOKENS = 2048
# What joining may change of the logit difference: the rounding of a few products.
_ROUNDING = 1e-3
# What a model raises that does not bear other numbers of runs, or kept keys.
_UNABLE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def name_of(layer: int, at: str) -> str:
    """The hook name of what is patched in a layer."""
    return f"blocks.{layer}.{HOOKS[at]}"


@dataclass(frozen=True)
class Runs:
    """The two runs, and what is asked of those that are patched.

    Attributes:
        model: what runs.
        at: what is patched.
        corrupted_ids: the corrupted prompt, on the model's device.
        clean: what stood at the hooks of `at` in the clean run, without its batch's axis.
        streams: the corrupted run's stream into each layer, `[pos d_model]`.
        answer: the token whose logit is asked for.
        other: that whose logit is taken from it.
        corrupted: the logit difference of the corrupted run.
    """

    model: HookedModel = field(repr=False)
    at: str
    corrupted_ids: Int[Tensor, "1 pos"] = field(repr=False)
    clean: list[Tensor] = field(repr=False)
    streams: list[Float[Tensor, "pos d_model"]] = field(repr=False)
    answer: int
    other: int
    corrupted: float


def fastest(runs: Runs) -> PatchColumns:
    """What patches columns, in the fastest way that is shown to change nothing on this model.

    Args:
        runs: the two runs.

    Returns:
        A function of columns in rising order, which patches the first of them, at least one.
    """
    if isinstance(runs.model, HookedTransformer):
        return partial(_whole, runs)  # small, and each of its blocks holds the number of runs
    seen = _tried(_keys_and_values, runs)
    if seen and _is_exact(runs, seen, runs.corrupted_ids.shape[1] - 2):
        return partial(_joining, runs, seen if runs.at == "resid_pre" else None)
    return partial(_joining, runs, None) if _is_exact(runs, None, 0) else partial(_whole, runs)


def _is_exact(runs: Runs, seen: Kept | None, first: int) -> bool:
    """Whether runs that join unpatched end as the corrupted run does."""
    found = _tried(_joined, runs, seen, first, [stream[None, first:] for stream in runs.streams])
    expected = torch.full((runs.model.cfg.n_layers, 1), runs.corrupted)
    return (
        found is not None
        and found.shape == expected.shape
        and bool(((found - expected).abs() < _ROUNDING).all())
    )


def _tried(make: Callable[..., Made], *given: Any) -> Made | None:
    """What is made; None where the model does not bear it."""
    try:
        return make(*given)
    except _UNABLE:
        return None


def _in_one_pass(runs: Runs, columns: Sequence[int], first: int) -> Sequence[int]:
    """The first of some columns, as many as a pass takes of runs whose tokens begin at `first`."""
    n_tokens = runs.corrupted_ids.shape[1] - first
    return columns[: max(1, _MOST_TOKENS // (n_tokens * runs.model.cfg.n_layers))]


def _joining(
    runs: Runs, seen: Kept | None, columns: Sequence[int]
) -> Float[Tensor, "layer column"]:
    first = 0 if seen is None else columns[0]
    columns = _in_one_pass(runs, columns, first)
    # Of tokens that both prompts have, the first layer reads the same: nothing is patched.
    start = int(
        runs.at == "resid_pre"
        and torch.equal(runs.clean[0][list(columns)], runs.streams[0][list(columns)])
    )
    unpatched = torch.full((start, len(columns)), runs.corrupted)
    if start == len(runs.streams):
        return unpatched
    patches = _patches(runs, columns, first, dict.fromkeys(range(start, len(runs.streams)), -1))
    joining = [stream[first:].expand(len(columns), -1, -1) for stream in runs.streams[start:]]
    if runs.at == "resid_pre":  # what joins is patched before
        joining = [put(x) for put, x in zip(patches.values(), joining, strict=True)]
        patches = {}
    with intervene(runs.model, patches) as running:
        found = _joined(runs, seen, first, joining)
        running.verify()
    return torch.cat([unpatched, found])


@torch.no_grad()
def _joined(
    runs: Runs, seen: Kept | None, first: int, joining: Sequence[Float[Tensor, "column pos d"]]
) -> Float[Tensor, "layer column"]:
    """The logit differences of runs of the tokens from `first` on, one for each column: those of
    the last layers, as many as `joining` has, each of which is a layer's stream."""
    start, n_columns = len(runs.streams) - len(joining), len(joining[0])
    earlier = None if seen is None else _earlier(seen, first, start, n_columns)
    with ExitStack() as stack:
        for layer, more in enumerate(joining, start):
            hook = partial(_with_more, more, layer > start)
            point = runs.model.hook_dict[name_of(layer, "resid_pre")]
            # Before what changes a layer's heads in those that have joined.
            stack.callback(point.register_forward_hook(hook, prepend=True).remove)
        stack.callback(runs.model.blocks[-1].mlp.register_forward_pre_hook(_of_last_token).remove)
        ids = runs.corrupted_ids[:, first:]
        found = logit_differences(runs.model, ids, runs.answer, runs.other, earlier).cpu()
    return rearrange(found, "(layer column) -> layer column", column=n_columns)


def _with_more(more: Tensor, others: bool, module: object, args: object, x: Tensor) -> Tensor:
    return torch.cat([x, more]) if others else more


def _of_last_token(module: object, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The last MLP, behind which only the last token is read; it is added to all of them."""
    return (args[0][:, -1:], *args[1:])


@torch.no_grad()
def _whole(runs: Runs, columns: Sequence[int]) -> Float[Tensor, "layer column"]:
    n_layers, columns = runs.model.cfg.n_layers, _in_one_pass(runs, columns, 0)
    n = len(columns)
    ids = repeat(runs.corrupted_ids, "1 pos -> (layer column) pos", layer=n_layers, column=n)
    patches = _patches(runs, columns, 0, {layer: layer for layer in range(n_layers)})
    with intervene(runs.model, patches) as running:
        found = next_log_probabilities(runs.model, ids, ids.shape[1] - 1)[:, 0]
        running.verify()
    found = (found[:, runs.answer] - found[:, runs.other]).cpu()
    return rearrange(found, "(layer column) -> layer column", column=n)


def _patches(
    runs: Runs, columns: Sequence[int], first: int, group_of: Mapping[int, int]
) -> dict[str, Function]:
    """What patches the columns, in each of some layers in one group of runs, one run for each
    column; the tokens begin at `first`."""
    n_heads = runs.model.cfg.n_heads
    puts: dict[str, Put] = {
        "resid_pre": partial(_put_stream, first=first),
        "head_out": partial(_put_output, n_heads=n_heads),
        "pattern": _put_pattern,
    }
    return {
        name_of(layer, runs.at): partial(
            _in_group, puts[runs.at], runs.clean[layer], columns, group
        )
        for layer, group in group_of.items()
    }


def _in_group(put: Put, clean: Tensor, columns: Sequence[int], group: int, x: Tensor) -> Tensor:
    """Patches a column in each run of a group; the last group is -1."""
    patched = x.clone()
    groups = rearrange(patched, "(group column) ... -> group column ...", column=len(columns))
    for run, column in zip(groups[group], columns, strict=True):
        put(clean, column, run)
    return patched


def _put_stream(clean: Tensor, column: int, run: Tensor, *, first: int) -> None:
    run[column - first] = clean[column]


def _put_output(clean: Tensor, head: int, run: Tensor, *, n_heads: int) -> None:
    by_head(run[None], n_heads)[0, :, head] = by_head(clean[None], n_heads)[0, :, head]


def _put_pattern(clean: Tensor, head: int, run: Tensor) -> None:
    run[head] = clean[head]


@torch.no_grad()
def _keys_and_values(runs: Runs) -> Kept:
    """Of the layers of a bridge's corrupted run, as transformers keeps them."""
    from transformers import DynamicCache

    cache = DynamicCache()
    runs.model.original_model.base_model(runs.corrupted_ids, past_key_values=cache)
    return [(layer.keys, layer.values) for layer in cache.layers]


def _earlier(seen: Kept, first: int, start: int, n_columns: int) -> Any:
    """A cache of the tokens before `first`, with as many runs in each layer as it will have."""
    from transformers import DynamicCache

    return DynamicCache(
        tuple(
            tensor[:, :, :first].expand(max(1, n_columns * (layer + 1 - start)), -1, -1, -1)
            for tensor in of_layer
        )
        for layer, of_layer in enumerate(seen)
    )
