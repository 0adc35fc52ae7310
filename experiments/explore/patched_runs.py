"""Runs of the corrupted prompt with one column patched, one run for each layer, in one pass.

In a layer a run is told from the corrupted one only from that layer on, and only from the patched
position on. So a run joins the pass in the layer in which it is patched, and of the tokens before
the patched position the keys and values of the corrupted run are kept. Where a model does not bear
that, which is tried on unpatched runs, all runs go all the way.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor

from nope_interp.hooked_model import HookedModel
from nope_interp.interventions.heads import by_head
from nope_interp.interventions.intervene import Function, intervene
from nope_interp.models.losses import logit_differences, next_log_probabilities
from nope_interp.models.transformer import HookedTransformer

Site = Literal["resid_pre", "head_out", "pattern"]
Made = TypeVar("Made")
# Keys and values of each layer, `[1 head pos d_head]`.
Kept = list[tuple[Tensor, Tensor]]
# The logit difference of each layer's run, for a column that is patched.
Column = Callable[[int], Float[Tensor, " layer"]]
_HOOKS = {"resid_pre": "hook_resid_pre", "head_out": "attn.hook_z", "pattern": "attn.hook_pattern"}
# What joining may change of the logit difference: the rounding of a few products.
_ROUNDING = 1e-3
# What a model raises that does not bear other numbers of runs, or kept keys.
_UNABLE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def name_of(layer: int, at: Site) -> str:
    """The hook name of what is patched in a layer."""
    return f"blocks.{layer}.{_HOOKS[at]}"


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
    at: Site
    corrupted_ids: Int[Tensor, "1 pos"] = field(repr=False)
    clean: list[Tensor] = field(repr=False)
    streams: list[Float[Tensor, "pos d_model"]] = field(repr=False)
    answer: int
    other: int
    corrupted: float


def fastest(runs: Runs) -> Column:
    """What patches a column, in the fastest way that is shown to change nothing on this model.

    Args:
        runs: the two runs.

    Returns:
        A function of the column.
    """
    if isinstance(runs.model, HookedTransformer):
        return partial(_whole, runs)  # small, and each of its blocks holds the number of runs
    seen = _tried(_keys_and_values, runs)
    if seen and _is_exact(runs, seen, runs.corrupted_ids.shape[1] - 2):
        return partial(_joining, runs, seen if runs.at == "resid_pre" else None)
    return partial(_joining, runs, None) if _is_exact(runs, None, 0) else partial(_whole, runs)


def _is_exact(runs: Runs, seen: Kept | None, first: int) -> bool:
    """Whether runs that join unpatched end as the corrupted run does."""
    found = _tried(_joined, runs, seen, first)
    expected = torch.full((runs.model.cfg.n_layers,), runs.corrupted)
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


def _joining(runs: Runs, seen: Kept | None, column: int) -> Float[Tensor, " layer"]:
    first = 0 if seen is None else column
    # Of a token that both prompts have, the first layer reads the same: nothing is patched.
    start = int(
        runs.at == "resid_pre" and torch.equal(runs.clean[0][column], runs.streams[0][column])
    )
    patches = _patches(runs, column, first, dict.fromkeys(range(start, len(runs.streams)), -1))
    with intervene(runs.model, patches) as running:
        found = _joined(runs, seen, first, start)
        running.verify()
    return torch.cat([torch.full((start,), runs.corrupted), found])


@torch.no_grad()
def _joined(runs: Runs, seen: Kept | None, first: int, start: int = 0) -> Float[Tensor, " layer"]:
    """The logit differences of runs of the tokens from `first` on: each layer adds one, from the
    layer `start` on, and its stream is the corrupted one's."""
    earlier = None if seen is None else _earlier(seen, first, start)
    with ExitStack() as stack:
        for layer, corrupted in enumerate(runs.streams[start:], start):
            hook = partial(_with_one_more, corrupted[None, first:], layer > start)
            point = runs.model.hook_dict[name_of(layer, "resid_pre")]
            # Before the patches, which are put into what has joined.
            stack.callback(point.register_forward_hook(hook, prepend=True).remove)
        stack.callback(runs.model.blocks[-1].mlp.register_forward_pre_hook(_of_last_token).remove)
        ids = runs.corrupted_ids[:, first:]
        return logit_differences(runs.model, ids, runs.answer, runs.other, earlier).cpu()


def _with_one_more(
    corrupted: Tensor, others: bool, module: object, args: object, x: Tensor
) -> Tensor:
    return torch.cat([x, corrupted]) if others else corrupted


def _of_last_token(module: object, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The last MLP, behind which only the last token is read; it is added to all of them."""
    return (args[0][:, -1:], *args[1:])


@torch.no_grad()
def _whole(runs: Runs, column: int) -> Float[Tensor, " layer"]:
    n_layers = runs.model.cfg.n_layers
    ids = repeat(runs.corrupted_ids, "1 pos -> layer pos", layer=n_layers)
    patches = _patches(runs, column, 0, {layer: layer for layer in range(n_layers)})
    with intervene(runs.model, patches) as running:
        found = next_log_probabilities(runs.model, ids, ids.shape[1] - 1)[:, 0]
        running.verify()
    return (found[:, runs.answer] - found[:, runs.other]).cpu()


def _patches(runs: Runs, column: int, first: int, run_of: Mapping[int, int]) -> dict[str, Function]:
    """What patches the column, in each of some layers in one run; the tokens begin at `first`."""
    put = {
        "resid_pre": partial(_put_stream, column=column, first=first),
        "head_out": partial(_put_output, head=column, n_heads=runs.model.cfg.n_heads),
        "pattern": partial(_put_pattern, head=column),
    }[runs.at]
    return {
        name_of(layer, runs.at): partial(put, runs.clean[layer], run)
        for layer, run in run_of.items()
    }


def _put_stream(clean: Tensor, run: int, x: Tensor, *, column: int, first: int) -> Tensor:
    patched = x.clone()
    patched[run, column - first] = clean[column]
    return patched


def _put_output(clean: Tensor, run: int, x: Tensor, *, head: int, n_heads: int) -> Tensor:
    patched = x.clone()
    by_head(patched, n_heads)[run, :, head] = by_head(clean[None], n_heads)[0, :, head]
    return patched


def _put_pattern(clean: Tensor, run: int, x: Tensor, *, head: int) -> Tensor:
    patched = x.clone()
    patched[run, head] = clean[head]
    return patched


@torch.no_grad()
def _keys_and_values(runs: Runs) -> Kept:
    """Of the layers of a bridge's corrupted run, as transformers keeps them."""
    from transformers import DynamicCache

    cache = DynamicCache()
    runs.model.original_model.base_model(runs.corrupted_ids, past_key_values=cache)
    return [(layer.keys, layer.values) for layer in cache.layers]


def _earlier(seen: Kept, first: int, start: int) -> Any:
    """A cache of the tokens before `first`, with as many runs in each layer as it will have."""
    from transformers import DynamicCache

    return DynamicCache(
        tuple(
            tensor[:, :, :first].expand(max(1, layer + 1 - start), -1, -1, -1)
            for tensor in of_layer
        )
        for layer, of_layer in enumerate(seen)
    )
