"""What the heads of a layer put out, one by one; heads that are ablated or attend otherwise."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nope_interp.errors import UserError, shown, unknown_name
from nope_interp.hooked_model import HookedModel, check_head
from nope_interp.interventions.attention_weights import check_patterns_act
from nope_interp.interventions.intervene import Function, Running, intervene
from nope_interp.models.transformer import HookedTransformer
from nope_interp.positions.layers import LayerPositions
from nope_interp.shapes import AttentionMaps
from nope_interp.sites import pattern_hook

# What a head is changed to: one of these words, or a pattern, `[query key]`.
HeadChange = str | Float[Tensor, "own_query own_key"]
_WORDS = ("ablated", "uniform", "previous_token")
# By which the weights of a query may exceed 1 in sum: what bfloat16 rounds away, and more.
_ROUNDING = 0.01


def head_outputs(layer: int) -> str:
    """The hook name of what all heads of a layer put out, before it is written to the stream.

    Args:
        layer: which block, from 0.
    """
    return f"blocks.{layer}.attn.hook_z"


def by_head(
    z: Float[Tensor, "batch pos *head_d"], n_heads: int
) -> Float[Tensor, "batch pos head d"]:
    """What heads put out, apart from one another: some bridges show all of them in one row.

    Args:
        z: as the hook point shows it.
        n_heads: how many.

    Returns:
        A view of it.
    """
    return z.view(*z.shape[:2], n_heads, -1)


def head_functions(
    model: HookedModel,
    changes: Mapping[tuple[int, int], HeadChange],
    layers: Sequence[LayerPositions],
) -> dict[str, Function]:
    """What `intervene` takes so that heads are ablated, or attend otherwise.

    Args:
        model: a HookedTransformer, or, for patterns, a bridge whose patterns act on what follows.
        changes: by layer and head: "ablated" sets its output to zero; "uniform" gives equal weights
            to all that a query sees and "previous_token" all weight to the token before, as a
            tensor `[query key]` gives its own. Those of a query sum to 1, or to less where a sink
            has a share or tokens are hidden from it. They may lie outside the layer's window.
        layers: what each layer's attention is limited to.

    Returns:
        A function for each hook name.

    Raises:
        UserError: for a head that the model does not have, for what is neither a word nor a
            pattern, and for a pattern that is no attention: negative weights, weights that sum to
            more than 1, and weights on tokens to come where the model is causal; when the model
            runs, for a pattern of another number of tokens.
    """
    removed: dict[int, list[int]] = defaultdict(list)
    given: dict[int, dict[int, HeadChange]] = defaultdict(dict)
    n_heads, causal = model.cfg.n_heads, is_causal(model)
    if not isinstance(changes, Mapping):
        raise UserError(f"changes are {shown(changes)}: give such as {{(0, 1): 'ablated'}}.")
    for key, to in changes.items():
        if not isinstance(key, tuple) or len(key) != 2:
            raise UserError(f"{key!r} is changed: give a layer and a head, such as (0, 1).")
        layer, head = check_head(model, *key)
        _check_change(to, f"head {head} of layer {layer}", causal)
        if isinstance(to, str) and to == "ablated":
            removed[layer].append(head)
        else:
            given[layer][head] = to
    functions: dict[str, Function] = {
        head_outputs(layer): partial(_without, heads=heads, n=n_heads)
        for layer, heads in removed.items()
    }
    for layer, of_layer in given.items():
        sees = partial(layers[layer].sees, causal=causal)
        functions[pattern_hook(layer)] = partial(_replaced, layer=layer, given=of_layer, sees=sees)
    return functions


def change_heads(
    model: HookedModel,
    changes: Mapping[tuple[int, int], HeadChange],
    layers: Sequence[LayerPositions],
) -> AbstractContextManager[Running]:
    """A context in which heads are ablated, or attend otherwise.

    Args:
        model: a HookedTransformer or a bridge.
        changes: as `head_functions` takes them.
        layers: as there.

    Returns:
        The context, as `intervene` gives it.

    Raises:
        UserError: as `head_functions`, and for patterns of a bridge that goes on without them.
    """
    functions = head_functions(model, changes, layers)
    if any(name.endswith("hook_pattern") for name in functions):
        check_patterns_act(model)
    return intervene(model, functions)


def is_causal(model: HookedModel) -> bool:
    """Whether a query sees no later tokens: only models of ours may see them.

    Args:
        model: a HookedTransformer or a bridge.
    """
    return not isinstance(model, HookedTransformer) or model.config.causal


def _without(z: Float[Tensor, "batch pos *head_d"], heads: list[int], n: int) -> Tensor:
    z = z.clone()
    by_head(z, n)[:, :, heads] = 0
    return z


def _replaced(
    pattern: AttentionMaps,
    layer: int,
    given: Mapping[int, HeadChange],
    sees: Callable[[int], Bool[Tensor, "query key"]],
) -> AttentionMaps:
    changed, n = pattern.clone(), pattern.shape[-1]
    for head, to in given.items():
        if isinstance(to, Tensor):
            if len(to) != n:
                raise UserError(
                    f"the pattern for head {head} of layer {layer} is of {len(to)} tokens, and {n} "
                    "are read: give one of as many."
                )
            changed[:, head] = to.to(pattern)
        else:
            changed[:, head] = (_uniform(sees(n)) if to == "uniform" else _previous(n)).to(pattern)
    return changed


def _check_change(to: HeadChange, head: str, causal: bool) -> None:
    """Raise UserError for what no head can be changed to."""
    if isinstance(to, str) and to not in _WORDS:
        raise unknown_name("change of a head", to, _WORDS)
    if not isinstance(to, str | Tensor) or (isinstance(to, Tensor) and to.ndim != 2):
        raise UserError(
            f"{head} would be changed to a {type(to).__name__}: give one of {', '.join(_WORDS)}, "
            "or a tensor [query key]."
        )
    if isinstance(to, Tensor):
        _check_attention(to, f"the pattern for {head}", causal)


def _check_attention(pattern: Float[Tensor, "query key"], name: str, causal: bool) -> None:
    """Raise UserError where no head could attend so: what it reads would say nothing of the model.

    Weights that sum to less are let be: a sink has the rest, or tokens were hidden on purpose.
    """
    n_queries, n_keys = pattern.shape
    if n_queries != n_keys:
        raise UserError(
            f"{name} is of {n_queries} queries and {n_keys} keys: give as many queries as keys."
        )
    if not (pattern >= 0).all():  # NaN is none of them
        raise UserError(f"{name} has negative weights, or NaN: give weights of 0 and more.")
    if causal and pattern.triu(1).any():
        raise UserError(f"{name} lets queries see tokens to come: set weights beyond each to 0.")
    sums = pattern.float().sum(dim=-1)
    if (sums > 1 + _ROUNDING).any():
        query = int(sums.argmax())
        raise UserError(
            f"{name} has weights of query {query} that sum to {sums[query]:.4g}: give weights that "
            "sum to 1."
        )


def _uniform(seen: Bool[Tensor, "query key"]) -> Float[Tensor, "query key"]:
    return seen / seen.sum(dim=-1, keepdim=True)


def _previous(n: int) -> Float[Tensor, "query key"]:
    """All weight on the token before; the first token has none but itself."""
    pattern = torch.zeros(n, n)
    pattern[torch.arange(n), (torch.arange(n) - 1).clamp(min=0)] = 1
    return pattern
