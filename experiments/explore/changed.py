"""The model as a page's change has it: positions taken away, heads ablated or given other patterns.

Positions go by `ablate_positions`, everything else by `intervene`: there is no second way.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from jaxtyping import Float
from torch import Tensor

from experiments.explore.asked import Change, HeadChange
from experiments.explore.one_pass import PatternsOf
from experiments.explore.playground import Playground
from experiments.variants.ablation import Ablation
from nope_interp.errors import UserError
from nope_interp.hooked_model import check_head
from nope_interp.interventions.attention_weights import idle_patterns
from nope_interp.interventions.heads import head_functions
from nope_interp.interventions.intervene import Function, intervene


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
    asked: dict[tuple[int, int], str | Tensor] = {}
    for change in changes:
        at = check_head(playground.model, change.layer, change.head)
        if at in asked:
            raise UserError(f"head {at[1]} of layer {at[0]} is changed twice: choose one change.")
        asked[at] = _lent(other, at) if change.to == "other_prompt" else change.to
    if any(change.to != "ablated" for change in changes) and playground.idle_layer is not None:
        raise idle_patterns(playground.model, playground.idle_layer)
    return head_functions(playground.model, asked, playground.positions)


def _lent(other: PatternsOf | None, at: tuple[int, int]) -> Float[Tensor, "query key"]:
    if other is None:
        raise UserError("no other prompt is given, whose pattern a head should have: type one.")
    return other[at[0]][at[1]]
