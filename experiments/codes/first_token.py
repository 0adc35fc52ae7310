"""The first token's part in counting: attention to it frozen, and other tokens in its place.

Uniform attention to a begin token is 1/m for m tokens seen (Kazemnejad et al. 2023, Theorem 1). The
codes in the stream are left alone here, so this says nothing of codes that are made in another way.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from experiments.codes.task import InterventionTask
from nope_interp.interventions.attention_weights import (
    freeze_first_attention,
    layer_with_idle_patterns,
    mean_first_attention,
    without_position,
)

FROZEN = "attention to the first token frozen"
AT_EACH_POSITION = "frozen at each position"
ANY_TOKEN = "any token in place of the begin token"
ONE_TOKEN = "one token in place of the begin token"


def first_token_conditions(task: InterventionTask) -> Iterator[tuple[str, str, Tensor]]:
    """Names of the conditions, what they are held against, and what the model then loses
    [sequence].

    Every head's attention to the first token is brought to its mean over the fit sequences and all
    positions, held against its mean at each position: both take away what it tells of content, and
    only the first what it tells of position. Left out where a bridge shows patterns without using
    them.

    Where sequences have a begin token, random tokens of the fit sequences stand in its place; and,
    in a condition of its own, one and the same: that would count as well for weights that did not
    know the begin token.
    """
    model, fit, tokens = task.model, task.split.fit, task.split.held_out
    if layer_with_idle_patterns(model) is None:
        shares = mean_first_attention(model, fit, batch_size=task.batch_size)
        for control, frozen_to in (("", without_position(shares)), (AT_EACH_POSITION, shares)):
            with freeze_first_attention(model, frozen_to) as frozen:
                yield FROZEN, control, task.losses(model, tokens)
                frozen.verify()
    if task.begin_token:
        yield ANY_TOKEN, "", task.losses(model, _with_first(tokens, _drawn(task)))
        yield ONE_TOKEN, "", task.losses(model, _with_first(tokens, _commonest(fit[:, 1:])))


def _with_first(tokens: Int[Tensor, "sequence pos"], first: Tensor) -> Tensor:
    changed = tokens.clone()
    changed[:, 0] = first
    return changed


def _drawn(task: InterventionTask) -> Int[Tensor, " sequence"]:
    others = task.split.fit[:, 1:].flatten()
    generator = torch.Generator().manual_seed(task.seed)
    return others[torch.randint(len(others), (len(task.split.held_out),), generator=generator)]


def _commonest(tokens: Int[Tensor, "sequence pos"]) -> Int[Tensor, ""]:
    """Of those that some sequence lacks, where there are any: what stands in all is the frame of a
    task, such as the sign before an answer."""
    kinds, counts = tokens.unique(return_counts=True)
    in_all = torch.stack([(tokens == kind).any(dim=1).all() for kind in kinds])
    if not in_all.all():
        counts = counts.masked_fill(in_all, 0)
    return kinds[counts.argmax()]
