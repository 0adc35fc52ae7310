"""The model as a page's change has it: positions taken away, heads ablated or given other patterns.

Positions go by `ablate_positions`, everything else by `intervene`: there is no second way.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from experiments.explore.asked import Change, HeadChange
from experiments.explore.one_pass import PatternsOf, pattern_hook
from experiments.explore.playground import Playground
from experiments.variants.ablation import Ablation
from nope_interp.errors import UserError
from nope_interp.interventions.heads import by_head, head_outputs
from nope_interp.interventions.intervene import Function, intervene
from nope_interp.models.transformer import HookedTransformer
from nope_interp.positions.layers import LayerPositions
from nope_interp.shapes import AttentionMaps

# A head's pattern, given to it.
_Given = Callable[[AttentionMaps], Float[Tensor, "#batch query key"]]


@contextmanager
def changed(
    playground: Playground, change: Change | None, other: PatternsOf | None = None
) -> Iterator[list[str]]:
    """While it is open, the model is under a change.

    Args:
        playground: whose model.
        change: what is done to it; None for nothing.
        other: the other prompt's patterns, for heads that get these.

    Yields:
        What still shows position in a prompt of the longest kind, in sentences.

    Raises:
        UserError: for what the model does not have or allow, and at the end where a part of the
            change was never reached.
    """
    notes: list[str] = []
    with ExitStack() as stack:
        if change is not None:
            for ablation in ablations(change):
                taken = stack.enter_context(ablation.of(playground.model))
                if taken is not None:
                    notes += taken.caveats(playground.most_tokens)
            functions = _functions(playground, change.head_changes, other)
            running = stack.enter_context(intervene(playground.model, functions))
            yield list(dict.fromkeys(notes))
            running.verify()
        else:
            yield notes


def ablations(change: Change) -> list[Ablation]:
    """What is taken away: one ablation for all chosen layers, or one for each set of heads.

    Args:
        change: what is done to the model.

    Returns:
        The ablations, none where positions stay.

    Raises:
        UserError: for layers and heads at once.
    """
    if change.positions is None:
        return []
    if change.heads is None:
        layers = None if change.layers is None else tuple(change.layers)
        return [Ablation(change.positions, layers=layers)]
    if change.layers is not None:
        raise UserError("layers and heads are given both: heads name their layers, so leave one.")
    heads: dict[int, set[int]] = defaultdict(set)
    for layer, head in change.heads:
        heads[layer].add(head)
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for layer, of_layer in heads.items():
        alike[tuple(sorted(of_layer))].append(layer)
    return [
        Ablation(change.positions, layers=tuple(layers), heads=some)
        for some, layers in alike.items()
    ]


def _functions(
    playground: Playground, changes: list[HeadChange], other: PatternsOf | None
) -> dict[str, Function]:
    """What is done at which hook."""
    removed: dict[int, list[int]] = defaultdict(list)
    given: dict[int, dict[int, _Given]] = defaultdict(dict)
    for change in changes:
        layer, head = playground.check_head(change.layer, change.head)
        if head in removed[layer] or head in given[layer]:
            raise UserError(f"head {head} of layer {layer} is changed twice: choose one change.")
        if change.to == "ablated":
            removed[layer].append(head)
        else:
            given[layer][head] = _given(playground, change, other)
    if any(given.values()) and playground.idle_layer is not None:
        raise UserError(
            f"this model computes attention past its pattern hooks (layer {playground.idle_layer}):"
            " ablate heads of it instead."
        )
    functions: dict[str, Function] = {
        head_outputs(layer): partial(_without, heads=heads, n=playground.model.cfg.n_heads)
        for layer, heads in removed.items()
        if heads
    }
    return functions | {
        pattern_hook(layer): partial(_replaced, given=patterns)
        for layer, patterns in given.items()
        if patterns
    }


def _given(playground: Playground, change: HeadChange, other: PatternsOf | None) -> _Given:
    at = playground.positions[change.layer]
    if change.to == "uniform":
        return lambda pattern: _uniform(visible(playground, at, pattern.shape[-1])).to(pattern)
    if change.to == "previous_token":
        return lambda pattern: _previous(pattern.shape[-1]).to(pattern)
    if other is None:
        raise UserError("no other prompt is given, whose pattern a head should have: type one.")
    own = other[change.layer][change.head]
    return partial(_of_other, own)


def _of_other(own: Float[Tensor, "own own"], pattern: AttentionMaps) -> Tensor:
    if own.shape[-1] != pattern.shape[-1]:
        raise ValueError(
            f"the other prompt has {own.shape[-1]} tokens and this one {pattern.shape[-1]}: type "
            "two of one length"
        )
    return own.to(pattern)


def _without(z: Float[Tensor, "batch pos *head_d"], heads: list[int], n: int) -> Tensor:
    z = z.clone()
    by_head(z, n)[:, :, heads] = 0
    return z


def _replaced(pattern: AttentionMaps, given: Mapping[int, _Given]) -> AttentionMaps:
    changed = pattern.clone()
    for head, make in given.items():
        changed[:, head] = make(pattern)
    return changed


def visible(playground: Playground, at: LayerPositions, n: int) -> Bool[Tensor, "query key"]:
    """Which keys each of n queries of a layer sees.

    Args:
        playground: whose model.
        at: what the layer's attention is limited to.
        n: tokens.

    Returns:
        True where it sees them.
    """
    query, key = torch.arange(n)[:, None], torch.arange(n)
    model = playground.model
    if isinstance(model, HookedTransformer) and not model.config.causal:
        return torch.ones(n, n, dtype=torch.bool)
    seen = key <= query
    if at.window is not None:
        seen &= key > query - at.window
    if at.chunk is not None:
        seen &= key >= query // at.chunk * at.chunk
    return seen


def _uniform(seen: Bool[Tensor, "query key"]) -> Float[Tensor, "query key"]:
    return seen / seen.sum(dim=-1, keepdim=True)


def _previous(n: int) -> Float[Tensor, "query key"]:
    """All weight on the token before; the first token has none but itself."""
    pattern = torch.zeros(n, n)
    pattern[torch.arange(n), (torch.arange(n) - 1).clamp(min=0)] = 1
    return pattern
