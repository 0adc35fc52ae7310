"""Every model that our code reads is a HookedModel, and other things are not."""

import pytest
import torch
import transformers

from nope_interp.hooked_model import HookedModel
from nope_interp.models.clockwork import ClockworkConfig, ClockworkRNN
from nope_interp.models.transformer import HookedTransformer
from tests.huggingface import bridged_model, tiny_gpt2


def test_our_models_are_hooked_models(tiny_model: HookedTransformer) -> None:
    assert isinstance(tiny_model, HookedModel)
    assert isinstance(ClockworkRNN(ClockworkConfig(1, 4, 1, periods=(1, 2))), HookedModel)


@pytest.mark.parametrize("family", ["gpt2", "falcon", "t5"])
def test_bridges_are_hooked_models(family: str) -> None:
    assert isinstance(bridged_model(family), HookedModel)


def test_models_without_hook_points_are_not() -> None:
    plain: transformers.GPT2LMHeadModel = tiny_gpt2()
    assert not isinstance(plain, HookedModel)
    assert not isinstance(torch.nn.Linear(2, 2), HookedModel)
