"""Cached greedy decoding against decoding anew."""

import pytest
import torch

from nope_interp.errors import UserError
from nope_interp.models.config import POSITIONS
from tests.small_models import N_CTX, model, random_tokens


@pytest.mark.parametrize("positions", POSITIONS)
def test_cached_decoding_equals_decoding_anew_each_time(positions: str) -> None:
    ours = model(double=True, positions=positions, activation="swiglu", normalization="rms")
    prompts = random_tokens(pos=5)
    expected = prompts
    while expected.shape[1] < N_CTX:
        expected = torch.cat([expected, ours(expected)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(ours.generate(prompts, N_CTX - 5), expected)
    assert len(expected[:, 5:].unique(dim=0)) > 1  # prompts matter


def test_generation_has_no_dropout_and_leaves_the_mode_as_it_was() -> None:
    ours = model(dropout=0.5)
    calm = ours.generate(random_tokens(pos=5), 10)
    ours.train()
    assert torch.equal(ours.generate(random_tokens(pos=5), 10), calm)
    assert ours.training
    assert torch.equal(ours.generate(random_tokens(pos=5), 0), random_tokens(pos=5))


def test_generation_refuses_what_cannot_work() -> None:
    with pytest.raises(UserError, match="20 tokens and 5 new ones do not fit a context of 24"):
        model().generate(random_tokens(), 5)
    with pytest.raises(UserError, match="a bidirectional model cannot generate"):
        model(causal=False).generate(random_tokens(), 1)
