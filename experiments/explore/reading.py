"""`read`: a prompt's surprisal, predictions and heads, before and after a change."""

import math
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from experiments.explore.answers import Both, Difference, Packed, Prediction, ReadAnswer, Reading
from experiments.explore.asked import Change, State
from experiments.explore.changed import changed
from experiments.explore.live import live_labels, live_scores
from experiments.explore.one_pass import Pass, pattern_distance, read_pass
from experiments.explore.playground import Playground
from experiments.prompt import SHOWN
from nope_interp.errors import UserError

# The sides of a thumbnail.
_SIDE = 32


def read(playground: Playground, state: State) -> ReadAnswer:
    """Read the prompt, and once more under the change.

    Args:
        playground: whose model.
        state: what the page shows.

    Returns:
        The answer.

    Raises:
        UserError: for a prompt that cannot be read, and for a change that the model does not allow.
    """
    ids = playground.tokens(state.prompt)
    before = pass_of(playground, ids)
    after = changed_pass(playground, state)
    return ReadAnswer(
        tokens=playground.token_strings(ids),
        before=_reading(playground, before),
        after=None if after is None else _reading(playground, after),
        difference=None if after is None else _difference(playground, before, after),
        notes=[] if after is None else list(after.notes),
    )


def pass_of(
    playground: Playground,
    ids: Int[Tensor, "1 pos"],
    change: Change | None = None,
    other: Pass | None = None,
    other_prompt: str = "",
) -> Pass:
    """The pass over a prompt under a change, read now or kept from before.

    Args:
        playground: whose model.
        ids: the prompt's tokens.
        change: None for the model as it is.
        other: the pass over the other prompt, for heads that get its patterns.
        other_prompt: what it was of.

    Returns:
        The pass.

    Raises:
        UserError: as `changed`.
    """

    def make() -> Pass:
        patterns = None if other is None else other.patterns
        with changed(playground, change, patterns) as notes:
            read = read_pass(playground.model, ids, playground.rotated, notes)
        return replace(read, scores=live_scores(playground, read.patterns, change))

    key = (tuple(ids[0].tolist()), None if change is None else change.model_dump_json())
    return playground.passes.get((*key, other_prompt), make)


def changed_pass(playground: Playground, state: State) -> Pass | None:
    """The pass over a state's prompt under its change; None where it changes nothing.

    Args:
        playground: whose model.
        state: what the page shows.

    Returns:
        The pass.

    Raises:
        UserError: as `changed`, and for another prompt that cannot be read.
    """
    change = state.changes
    if change is None:
        return None
    ids = playground.tokens(state.prompt)
    lends = any(head.to == "other_prompt" for head in change.head_changes)
    if not lends or not state.other_prompt:  # what lacks a prompt that it needs is refused there
        return pass_of(playground, ids, change)
    other_ids = playground.tokens(state.other_prompt)
    if other_ids.shape != ids.shape:
        raise UserError(
            f"the other prompt has {other_ids.shape[1]} tokens and this one {ids.shape[1]}: type "
            "two of one length."
        )
    other = pass_of(playground, other_ids)
    return pass_of(playground, ids, change, other, state.other_prompt)


def both(
    playground: Playground, before: Float[Tensor, " d_vocab"], after: Float[Tensor, " d_vocab"]
) -> list[Both]:
    """Both probabilities of the tokens that are among the likeliest in either, likeliest first.

    Args:
        playground: whose tokenizer.
        before: logarithms of probabilities.
        after: the same.

    Returns:
        One for each token.
    """
    top = torch.cat([before.topk(_shown(before)).indices, after.topk(_shown(after)).indices])
    likeliest = sorted(set(top.tolist()), key=lambda id: -max(float(before[id]), float(after[id])))
    return [
        Both(
            id=id,
            token=playground.variant.token_string(id),
            before=math.exp(float(before[id])),
            after=math.exp(float(after[id])),
        )
        for id in likeliest
    ]


def known(playground: Playground, values: np.ndarray) -> list[list[float | None]]:
    """Numbers `[layer head]` of the heads that there are, None where there is none."""
    return [
        [None if math.isnan(value) else value for value in row[: playground.heads_of(layer)]]
        for layer, row in enumerate(values.tolist())
    ]


def _reading(playground: Playground, read: Pass) -> Reading:
    probabilities = read.predicted.topk(_shown(read.predicted))
    return Reading(
        surprisal=[None, *read.surprisal.tolist()],
        loss=float(read.surprisal.mean()),
        predictions=[
            Prediction(
                id=id, token=playground.variant.token_string(id), probability=math.exp(value)
            )
            for value, id in zip(*map(Tensor.tolist, probabilities), strict=True)
        ],
        thumbnails=[Packed.shares(_thumbnail(pattern).numpy()) for pattern in read.patterns],
        labels=live_labels(playground, read.scores, 1 + len(read.surprisal)),
        scores={name: known(playground, values) for name, values in read.scores.items()},
    )


def _shown(predicted: Float[Tensor, " d_vocab"]) -> int:
    return min(SHOWN, len(predicted))


def _thumbnail(pattern: Float[Tensor, "head query key"]) -> Float[Tensor, "head small small"]:
    """The greatest weight of each cell: a line one token wide stays a line."""
    side = min(_SIDE, pattern.shape[-1])
    small: Tensor = (
        F.adaptive_max_pool2d(pattern, side) if len(pattern) else pattern.new_empty(0, side, side)
    )
    return small


def _difference(playground: Playground, before: Pass, after: Pass) -> Difference:
    moved = after.surprisal - before.surprisal
    pairs = zip(before.patterns, after.patterns, strict=True)
    return Difference(
        surprisal=[None, *moved.tolist()],
        loss=float(moved.mean()),
        patterns=[pattern_distance(one, other).tolist() for one, other in pairs],
        predictions=both(playground, before.predicted, after.predicted),
    )
