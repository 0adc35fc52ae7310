"""`head`: one head on the prompt; `feeds`: which earlier heads it reads."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.explore.answers import Feed, FeedsAnswer, Frequencies, HeadAnswer, Packed
from experiments.explore.asked import State
from experiments.explore.finished import finished_labels
from experiments.explore.live import live_labels
from experiments.explore.one_pass import Pass
from experiments.explore.playground import Playground
from experiments.explore.reading import changed_pass, known, pass_of
from nope_interp.errors import UserError
from nope_interp.hooked_model import check_head
from nope_interp.models.composition import adds_up, k_composition
from nope_interp.positions.layers import rotary_frequencies
from probes.heads.frequencies import n_high

# How many earlier heads are named, and the share of the others' scores that chance leaves out.
_NAMED, _CHANCE = 8, 0.9


def head(playground: Playground, state: State) -> HeadAnswer:
    """One head's attention on the prompt, before and after the change.

    Args:
        playground: whose model.
        state: what the page shows; its layer and head.

    Returns:
        The answer.

    Raises:
        UserError: for no head, for one that the model lacks, and as `read`.
    """
    layer, number = _looked_at(playground, state)
    ids = playground.tokens(state.prompt)
    before, after = pass_of(playground, ids), changed_pass(playground, state)
    finished = finished_labels(playground)
    labels = (
        live_labels(playground, before.scores, ids.shape[1])
        if finished is None
        else finished.labels
    )
    scores = before.scores.items()
    values = {name: known(playground, numbers)[layer][number] for name, numbers in scores}
    return HeadAnswer(
        layer=layer,
        head=number,
        tokens=playground.token_strings(ids),
        label=labels[layer][number],
        scores=values,
        before=_packed(before, layer, number),
        after=None if after is None else _packed(after, layer, number),
        frequencies=_frequencies(playground, before, layer, number),
    )


def feeds(playground: Playground, state: State) -> FeedsAnswer:
    """Which earlier heads this one may read, by K-composition of the weights.

    Args:
        playground: whose model.
        state: what the page shows; its layer and head, and the prompt for labels.

    Returns:
        The answer.

    Raises:
        UserError: for no head, for one that the model lacks, and as `read`.
    """
    layer, number = _looked_at(playground, state)
    why, earlier = "", [one for one in playground.attending if one < layer]
    if not earlier:
        first = "The first layer has no earlier heads."
        why = first if layer == 0 else "No earlier layer has heads."
    elif not adds_up(playground.model):
        why = "Heads of a post-norm model do not compose linearly."
    if why:
        return FeedsAnswer(feeds=[], chance=None, why=why)
    finished = finished_labels(playground)
    if finished is None:
        ids = playground.tokens(state.prompt)
        labels = live_labels(playground, pass_of(playground, ids).scores, ids.shape[1])
    else:
        labels = finished.labels
    scores = _composition(playground, earlier, layer)
    own = scores[:, :, number]
    order = own.flatten().argsort(descending=True)[:_NAMED].tolist()
    named = [divmod(at, own.shape[1]) for at in order]
    return FeedsAnswer(
        feeds=[
            Feed(
                layer=earlier[row],
                head=of,
                label=labels[earlier[row]][of],
                score=float(own[row, of]),
            )
            for row, of in named
        ],
        chance=float(torch.quantile(scores.flatten(), _CHANCE)),
        why="",
    )


def _looked_at(playground: Playground, state: State) -> tuple[int, int]:
    if state.layer is None or state.head is None:
        raise UserError("no head is looked at: give a layer and a head.")
    return check_head(playground.model, state.layer, state.head)


def _composition(
    playground: Playground, earlier: Sequence[int], later: int
) -> Float[Tensor, "earlier head later_head"]:
    """Of all earlier heads with those of a layer: of the weights, so computed once."""
    key = ("composition", later)
    if key not in playground.made:
        scores = [k_composition(playground.model, layer, later) for layer in earlier]
        playground.made[key] = torch.stack(scores)
    return playground.made[key]


def _packed(read: Pass, layer: int, number: int) -> Packed:
    return Packed.exact(read.patterns[layer][number].numpy())


def _frequencies(playground: Playground, read: Pass, layer: int, number: int) -> Frequencies | None:
    if layer not in read.shares:
        return None
    share, radians = read.shares[layer][number], rotary_frequencies(playground.model, layer)
    assert radians is not None  # it rotates
    high = n_high(len(share))
    return Frequencies(
        radians=radians.tolist(),
        share=share.tolist(),
        high=float(share[:high].sum()),
        chance=high / len(share),
    )
