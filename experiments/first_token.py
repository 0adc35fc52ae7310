"""The first token's part in counting: attention to it frozen, and another token in its place.

Uniform attention to a begin token is 1/m for m tokens seen (Kazemnejad et al. 2023, Theorem 1). No
row of the stream is changed here, so these say nothing of codes that are made in another way.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from experiments.contest import Contest
from nope_interp.interventions import (
    freeze_attention_to,
    layer_with_idle_patterns,
    mean_attention_to,
)

FROZEN, THE_SECOND = "attention to the first token frozen", "to the second token"
NO_BEGIN, ANOTHER = "any token in place of the begin token", "the same other token"


def first_token_arms(contest: Contest) -> Iterator[tuple[str, str, Tensor]]:
    """Names of the arms, what they are held against, and what the model then loses [sequence].

    Every head's attention to the first token is brought to its mean over the fit sequences, held
    against the same for the second; left out where a bridge shows patterns without using them.
    Where sequences have a begin token, random tokens of the fit sequences stand in its place, held
    against one and the same: that would still count, but for what weights have learned of the
    begin token itself.
    """
    model, tokens = contest.model, contest.split.held_out
    if layer_with_idle_patterns(model) is None and contest.split.fit.shape[1] > 2:
        for key, control in ((0, ""), (1, THE_SECOND)):
            shares = mean_attention_to(key, model, contest.split.fit, batch_size=contest.batch_size)
            with freeze_attention_to(key, model, shares) as frozen:
                yield FROZEN, control, contest.losses(model, tokens)
                frozen.verify()
    if contest.begin_token:
        yield NO_BEGIN, "", contest.losses(model, _with_first(tokens, _drawn(contest)))
        yield NO_BEGIN, ANOTHER, contest.losses(model, _with_first(tokens, _commonest(contest)))


def _with_first(tokens: Int[Tensor, "sequence pos"], first: Tensor) -> Tensor:
    changed = tokens.clone()
    changed[:, 0] = first
    return changed


def _drawn(contest: Contest) -> Int[Tensor, " sequence"]:
    others = contest.split.fit[:, 1:].flatten()
    generator = torch.Generator().manual_seed(contest.seed)
    return others[torch.randint(len(others), (len(contest.split.held_out),), generator=generator)]


def _commonest(contest: Contest) -> Int[Tensor, ""]:
    return contest.split.fit[:, 1:].flatten().mode().values
