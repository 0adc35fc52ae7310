"""Attention that reads changed activations by some of its routes, the others as they were.

Queries, keys and values are three linear maps of what attention reads, `attn.hook_in`: the
normalized stream. Changed there, an activation goes all three ways. Here it goes the chosen ways
only, in the chosen heads: with queries and keys a code acts in the scores alone, and what is
pooled, and the stream itself, stay as they were. The normalization lies before, so that it keeps
its value.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from operator import index

import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from nope_interp.errors import UserError, shown, unknown_name
from nope_interp.hooked_model import HookedModel, check_hooked, key_heads
from nope_interp.interventions.intervene import Function, Running, Where, changed_at, intervene
from nope_interp.models.transformer import HookedTransformer
from nope_interp.sites import missing_hook

ROUTES = ("queries", "keys", "values")
SCORES = ("queries", "keys")


@contextmanager
def read_changed(
    model: HookedModel,
    functions: Mapping[int, Function],
    routes: Collection[str] = SCORES,
    positions: Where = slice(None),
    heads: Collection[int] | None = None,
) -> Iterator[Running]:
    """A context in which attention reads changed activations by some of its routes only.

    What the other routes read, what other heads read and the residual stream stay as they were, bit
    for bit. Where a model's heads share keys and values, these are numbered by what is shared. A
    layer that reads the keys and values of an earlier one has queries alone.

    Args:
        model: a HookedTransformer or a TransformerBridge.
        functions: one for each layer, of what its attention reads, `[batch pos d_model]`, as for
            `intervene`.
        routes: of "queries", "keys" and "values", those that read what it gives.
        positions: activations elsewhere stay.
        heads: those that read it; None for all.

    Yields:
        What says, by `verify()`, whether all of these routes were reached.

    Raises:
        UserError: for an unknown route, a head or layer that the model lacks, no head at all,
            routes that a layer lacks, and as `intervene`.
    """
    check_hooked(model)
    if isinstance(routes, str):
        raise UserError(f"routes are {routes!r}: give a list, [{routes!r}].")
    routes = list(routes)
    for route in routes:
        if route not in ROUTES:
            raise unknown_name("route", route, ROUTES)
    heads = None if heads is None else _numbers(heads)
    if not routes or (heads is not None and not heads):
        raise UserError("nothing would read the changed activations: give a route and a head.")
    added: dict[int, Tensor] = {}
    every: dict[str, Function] = {}
    for layer, function in functions.items():
        read = f"blocks.{layer}.attn.hook_in"
        if read not in model.hook_dict:
            raise missing_hook(read, model.hook_dict)
        every[read] = partial(_noted, function, read, positions, added, layer)
        own = [route for route in routes if route == "queries" or key_heads(model, layer)]
        if not own:
            raise UserError(
                f"layer {layer} reads the keys and values of an earlier layer: add 'queries' to "
                "the routes, or change what is read there."
            )
        for route in own:
            name, projection = _entry(model, layer, route)
            n_heads = model.cfg.n_heads if route == "queries" else key_heads(model, layer)
            every[name] = partial(_with_added, added, layer, projection, heads, n_heads)
    with intervene(model, every) as intervention:
        yield intervention


def _numbers(heads: Collection[int]) -> list[int]:
    """Those of heads, from a list, an array or a tensor of them."""
    try:
        return [index(head) for head in heads]
    except TypeError as error:
        several = isinstance(heads, Collection)
        remedy = "a list of whole numbers" if several else f"a list, [{heads}]"
        raise UserError(f"heads is {shown(heads)}: give {remedy}.") from error


def _noted(
    function: Function,
    name: str,
    positions: Where,
    added: dict[int, Tensor],
    layer: int,
    x: Tensor,
) -> Tensor:
    """The activations as they are; how they would change is kept."""
    added[layer] = changed_at(x, function, name, positions) - x
    return x


def _with_added(
    added: Mapping[int, Tensor],
    layer: int,
    projection: Function,
    heads: Collection[int] | None,
    n_heads: int,
    x: Tensor,
) -> Tensor:
    """Queries, keys or values with what the change adds to them: nothing where it changes nothing,
    since the map is linear and what is added goes by it alone."""
    more = projection(added[layer]).reshape(x.shape)
    if heads is None:
        return x + more
    by_head = rearrange(more.flatten(2), "batch pos (head d) -> batch pos head d", head=n_heads)
    for head in heads:
        if not 0 <= head < n_heads:
            raise ValueError(f"there is no head {head}: choose from heads 0 to {n_heads - 1}.")
    chosen = by_head.new_zeros(n_heads)
    chosen[list(heads)] = 1
    return x + (by_head * rearrange(chosen, "head -> head 1")).reshape(x.shape)


def _entry(model: HookedModel, layer: int, route: str) -> tuple[str, Function]:
    """The hook where a route's result shows, and its linear map."""
    at, letter = f"blocks.{layer}.attn", route[0]
    if route != "queries" and f"{at}.hook_v" not in model.hook_dict:
        # One map makes both, and each has a norm of its own.
        return f"{at}.{letter}_norm.hook_in", _projection(model, layer, "keys")
    return f"{at}.hook_{letter}", _projection(model, layer, route)


def _projection(model: HookedModel, layer: int, route: str) -> Callable[[Tensor], Tensor]:
    """The linear map of a route, without its bias."""
    attention = model.blocks[layer].attn
    if isinstance(model, HookedTransformer):
        weight = attention.qkv.weight.chunk(3)[ROUTES.index(route)]
        return partial(F.linear, weight=weight)
    module = getattr(attention, route[0]).original_component
    return lambda x: module(x) - module(x.new_zeros(1, 1, x.shape[-1]))
