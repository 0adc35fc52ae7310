"""Scaled scores against the same weights multiplied by hand, and what is left behind."""

import pytest
import torch

from nope_interp.errors import UserError
from nope_interp.training.head_scale import scaled_scores, tuned_factors
from nope_interp.training.train import masked_loss
from tests.small_models import model, random_tokens


@pytest.mark.parametrize("positions", ["none", "rotary", "sinusoidal"])
def test_scores_are_multiplied_head_by_head(positions: str) -> None:
    built, tokens = model(double=True, positions=positions), random_tokens()
    factors = torch.tensor([[0.5, 1.0, 2.0], [1.5, 0.1, 1.0]])
    plain, cache = built.run_with_cache(tokens)
    with scaled_scores(built, factors):
        scaled, scaled_cache = built.run_with_cache(tokens)
    expected = cache["attn_scores", 0] * factors[0, :, None, None]
    assert torch.allclose(scaled_cache["attn_scores", 0], expected)
    for block, of_layer in zip(built.blocks, factors, strict=True):
        width = built.config.d_head
        queries = slice(0, built.config.d_model)
        rows = of_layer.repeat_interleave(width).double()
        block.attn.qkv.weight.data[queries] *= rows[:, None]
        block.attn.qkv.bias.data[queries] *= rows
    by_hand = built(tokens)
    assert torch.allclose(scaled, by_hand)
    assert not torch.allclose(scaled, plain)


def test_nothing_is_left_behind() -> None:
    built, tokens = model(), random_tokens()
    before = built(tokens)
    with scaled_scores(built, torch.full((2, 3), 3.0)):
        built.reset_hooks()
        assert not torch.equal(built(tokens), before)
    assert torch.equal(built(tokens), before)
    with pytest.raises(UserError), scaled_scores(built, torch.full((2, 3), 3.0)):
        built(tokens[0])
    assert torch.equal(built(tokens), before)
    predicted = torch.ones_like(tokens, dtype=torch.bool)
    tuned_factors(built, [(tokens, predicted)] * 3)
    assert torch.equal(built(tokens), before)
    assert all(p.grad is None and p.requires_grad for p in built.parameters())


def test_tuned_factors_lower_the_loss() -> None:
    built, tokens = model(init_scale=0.5), random_tokens(batch=16)
    predicted = torch.ones_like(tokens, dtype=torch.bool)
    batches = [(tokens, predicted)] * 60
    factors = tuned_factors(built, batches)
    with scaled_scores(built, factors):
        tuned = masked_loss(built, tokens, predicted)
    assert factors.shape == (2, 3)
    assert (factors > 0).all()
    assert tuned < masked_loss(built, tokens, predicted)
    assert torch.equal(factors, tuned_factors(built, batches))
    assert torch.equal(tuned_factors(built, []), torch.ones(2, 3))


def test_factors_that_fit_no_model_are_refused() -> None:
    with pytest.raises(UserError, match=r"shape \(3, 2\): give one for each of 2 layers and 3"):
        scaled_scores(model(), torch.ones(3, 2)).__enter__()
    with pytest.raises(UserError, match="alibi positions add to the scores"):
        scaled_scores(model(positions="alibi"), torch.ones(2, 3)).__enter__()
