"""What is answered, tallied by sequence: against the model's own logits, summed by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from experiments.codes.answering import Answers, Asking
from experiments.codes.counterfactual import counterfactuals
from experiments.codes.task import InterventionTask
from nope_interp.models.transformer import HookedTransformer
from tests.experiments.codes.test_counterfactual import untrained

READ_LAST = "blocks.0.hook_resid_post"


def model_of(task: InterventionTask) -> HookedTransformer:
    assert isinstance(task.model, HookedTransformer)
    return task.model


@torch.no_grad()
def by_hand(asking: Asking, last: Tensor) -> Answers:
    """The tally of logits that the last block's output makes, answer by answer."""
    model = model_of(asking.task)
    logits = model.unembed(model.ln_final(last)).double()
    follows, stays, log_odds = [], [], []
    for sequence, counted in enumerate(asking.counted):
        found = []
        for place in counted.nonzero()[:, 0].tolist():
            own, aim = (int(of[sequence, place]) for of in (asking.own, asking.aim))
            each = logits[sequence, place].tolist()
            said = each.index(max(each))
            others = sum(math.exp(z) for token, z in enumerate(each) if token not in (own, aim))
            odds = each[aim] - math.log(others)
            if asking.away:
                found.append((said != aim, said == own, -odds))
            else:
                found.append((said == aim, said == own, odds))
        followed, stayed, odds = np.array(found, dtype=float).reshape(-1, 3).T
        follows.append(followed.sum())
        stays.append(stayed.sum())
        log_odds.append(odds.mean() if len(odds) else 0.0)
    return Answers(np.array(follows), np.array(stays), np.array(log_odds))


def read_last(task: InterventionTask) -> Tensor:
    """What the last block puts out."""
    kept: list[Tensor] = []
    model = model_of(task)
    with model.hooks(fwd_hooks=[(READ_LAST, lambda x, hook: kept.append(x))]), torch.no_grad():
        model(task.split.held_out)
    return kept[0]


@pytest.mark.parametrize(("name", "away"), [("reversal", False), ("ordering", True)])
def test_answers_are_tallied_towards_the_one_aimed_at_or_away_from_the_own_one(
    name: str, away: bool
) -> None:
    task = untrained(name)
    one = counterfactuals(task)[0]
    assert one.to_stay == away
    counted = one.counted.clone()
    counted[3] = False  # of one sequence none counts
    asking = Asking(task, one.own, one.other, counted, away=one.to_stay)
    last = read_last(task)
    found, wanted = asking.answers({}), by_hand(asking, last)
    np.testing.assert_array_equal(found.follows, wanted.follows)
    np.testing.assert_array_equal(found.stays, wanted.stays)
    np.testing.assert_allclose(found.log_odds, wanted.log_odds, rtol=1e-4, atol=1e-5)
    assert (found.follows[3], found.stays[3], found.log_odds[3]) == (0, 0, 0)

    # Read at all positions, each activation goes against its own answer's logit.
    every = Asking(
        replace(task, positions=slice(None)), one.own, one.other, counted, away=one.to_stay
    )
    against = model_of(task).W_U.T[one.own].detach()
    lowered = every.answers({READ_LAST: lambda x: x - against})
    wanted = by_hand(every, last - against)
    np.testing.assert_array_equal(lowered.follows, wanted.follows)
    np.testing.assert_allclose(lowered.log_odds, wanted.log_odds, rtol=1e-4, atol=1e-5)
    if away:
        some = counted.any(dim=1).numpy()
        assert (lowered.log_odds[some] > found.log_odds[some]).all()
        assert lowered.follows.sum() > found.follows.sum()
