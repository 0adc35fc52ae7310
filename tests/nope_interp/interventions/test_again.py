"""Attention of a layer that runs again, under another condition, in the same pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch

from nope_interp.hooked_model import HookedModel
from nope_interp.interventions.again import AttentionAgain
from nope_interp.interventions.intervene import intervene
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.streams import stream

TOKENS = torch.arange(12).reshape(2, 6)
HOOK = "blocks.1.attn.hook_pattern"
LAST = "blocks.2.hook_resid_post"


@pytest.fixture
def model() -> HookedTransformer:
    return HookedTransformer(TransformerConfig(3, 16, 2, d_vocab=12, n_ctx=6)).eval()


@contextmanager
def scaled(model: HookedModel, factor: float) -> Iterator[None]:
    with intervene(model, {"blocks.1.attn.hook_q": lambda x: factor * x}):
        yield


def heard(model: HookedTransformer, again: AttentionAgain, names: list[str]) -> dict[str, list]:
    found: dict[str, list] = {name: [] for name in ("as it is", "after", *names)}
    under = {name: found[name].append for name in names}
    listeners = {
        HOOK: again.listener(found["as it is"].append, under),
        LAST: found["after"].append,
    }
    stream(model, TOKENS, listeners)
    return found


def test_each_condition_is_heard_once_and_the_model_goes_on_as_it_is(
    model: HookedTransformer,
) -> None:
    conditions = {name: partial(scaled, factor=of) for name, of in (("still", 0.0), ("twice", 2.0))}
    again = AttentionAgain(model, {1: conditions})
    with again.opened():
        found = heard(model, again, ["still", "twice"])
    assert {name: len(of) for name, of in found.items()} == dict.fromkeys(found, 1)
    alone = heard(model, AttentionAgain(model, {}), [])
    assert torch.equal(found["as it is"][0], alone["as it is"][0])
    assert torch.equal(found["after"][0], alone["after"][0])
    for name, factor in (("still", 0.0), ("twice", 2.0)):
        with scaled(model, factor):
            changed = heard(model, AttentionAgain(model, {}), [])
        assert torch.equal(found[name][0], changed["as it is"][0])
        assert not torch.equal(found[name][0], found["as it is"][0])


def test_nobody_hears_a_condition_that_is_not_listened_to(model: HookedTransformer) -> None:
    again = AttentionAgain(model, {1: {"twice": partial(scaled, factor=2.0)}})
    with again.opened():
        assert len(heard(model, again, [])["as it is"]) == 1


def test_a_condition_that_fails_leaves_nothing_behind(model: HookedTransformer) -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("this one")

    def failing(model: HookedModel) -> object:
        return intervene(model, {"blocks.1.attn.hook_q": fails})

    again = AttentionAgain(model, {1: {"failing": failing}})
    with pytest.raises(KeyError, match="this one"), again.opened():
        heard(model, again, [])
    before = heard(model, AttentionAgain(model, {}), [])
    after = heard(model, again, [])
    assert torch.equal(before["after"][0], after["after"][0])
    assert len(after["as it is"]) == 1
