"""A bridge's sites lie where their names say: by sums of the stream, and by transformers."""

from functools import partial

import pytest
import torch
from torch import Tensor

from nope_interp.sites import hook_name
from nope_interp.streams import stream
from tests.huggingface import FAMILIES, HYBRIDS, bridged_model, plain_model
from tests.small_models import random_tokens

TOKENS = random_tokens(batch=2, pos=12)
SITES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
# T5's decoder also attends to its encoder, between attention and the MLP.
MODELS = (*(family for family in FAMILIES if family != "t5"), *HYBRIDS, "jamba")


def kept(found: dict[str, Tensor], name: str, activations: Tensor) -> None:
    found[name] = activations.clone()


@pytest.mark.parametrize("family", MODELS)
def test_sites_lie_where_their_names_say(family: str) -> None:
    model = bridged_model(family)
    layers = range(model.cfg.n_layers)
    names = [hook_name(layer, site) for layer in layers for site in SITES]
    found: dict[str, Tensor] = {}
    here = [name for name in names if name in model.hook_dict]
    stream(model, TOKENS, {name: partial(kept, found, name) for name in here})
    assert found.keys() == set(here)
    with torch.no_grad():
        plain = plain_model(family)(TOKENS, output_hidden_states=True, use_cache=False)
    sums = 0
    for layer in layers:
        at = {site: found[name] for site in SITES if (name := hook_name(layer, site)) in found}
        torch.testing.assert_close(at["resid_pre"], plain.hidden_states[layer])
        if layer > 0:
            assert torch.equal(at["resid_pre"], found[hook_name(layer - 1, "resid_post")])
        if {"attn_out", "resid_mid"} <= at.keys():
            torch.testing.assert_close(at["resid_pre"] + at["attn_out"], at["resid_mid"])
            sums += 1
        elif {"attn_out", "mlp_out"} <= at.keys():  # both read the same, side by side
            both = at["attn_out"] + at["mlp_out"]
            torch.testing.assert_close(at["resid_pre"] + both, at["resid_post"])
            sums += 1
        if {"resid_mid", "mlp_out"} <= at.keys():
            torch.testing.assert_close(at["resid_mid"] + at["mlp_out"], at["resid_post"])
    assert sums > 0
