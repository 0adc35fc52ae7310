"""Attention that reads changed activations by some routes, against changing what it reads for all,
and against the weights."""

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nope_interp.errors import UserError
from nope_interp.interventions.intervene import intervene
from nope_interp.interventions.reading import ROUTES, read_changed
from nope_interp.sites import ATTENTION_INPUT, hook_name
from nope_interp.streams import stream
from tests import typecheck
from tests.huggingface import bridged_model
from tests.small_models import model as own_model
from tests.small_models import random_tokens

MODELS = ("ours", "gpt2", "gemma3", "gpt_neox", "opt_post_norm")
TOKENS = random_tokens(batch=2, pos=12).clamp(min=4)
LAYER = 1
HOOKS = {route: f"blocks.{LAYER}.attn.hook_{route[0]}" for route in ROUTES}
READ = hook_name(LAYER, ATTENTION_INPUT)
STREAM = hook_name(LAYER, "resid_pre")
LATE = slice(3, None)


@cache
def model(name: str) -> Any:
    return own_model(positions="learned") if name == "ours" else bridged_model(name)


def turned(x: Tensor) -> Tensor:
    return 0.5 * x.flip(-1)


def seen(built: Any) -> dict[str, Tensor]:
    """What the hook points around one layer's attention carry, heads side by side."""
    found: dict[str, Tensor] = {}

    def keep(x: Tensor, name: str) -> None:
        found[name] = x.flatten(2).clone()

    names = (STREAM, READ, *HOOKS.values(), f"blocks.{LAYER}.hook_attn_out")
    stream(built, TOKENS, {name: partial(keep, name=name) for name in names})
    return found


@pytest.mark.parametrize("name", MODELS)
def test_in_the_scores_only_values_and_stream_stay_bit_for_bit(name: str) -> None:
    built = model(name)
    before = seen(built)
    with intervene(built, {READ: turned}, LATE):
        everywhere = seen(built)
    with read_changed(built, {LAYER: turned}, positions=LATE) as running:
        scores_only = seen(built)
        running.verify()
    for hook in (STREAM, READ, HOOKS["values"]):
        assert torch.equal(scores_only[hook], before[hook]), hook
    for hook in (HOOKS["queries"], HOOKS["keys"]):
        torch.testing.assert_close(scores_only[hook], everywhere[hook], rtol=1e-4, atol=1e-4)
        assert torch.equal(scores_only[hook][:, :3], before[hook][:, :3])
        assert not torch.allclose(scores_only[hook], before[hook], rtol=1e-2)
    written = f"blocks.{LAYER}.hook_attn_out"
    assert not torch.allclose(scores_only[written], before[written])
    assert not torch.allclose(scores_only[written], everywhere[written])


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        *((name, LAYER) for name in MODELS),
        ("gemma4", 1),
        ("gemma4_shared", 1),
        ("gemma4_shared", 3),
    ],
)
def test_by_all_routes_attention_does_as_if_it_read_the_change(name: str, layer: int) -> None:
    built, read = model(name), hook_name(layer, ATTENTION_INPUT)
    with torch.no_grad():
        before = built(TOKENS)
        with intervene(built, {read: turned}, LATE):
            expected = built(TOKENS)
        with read_changed(built, {layer: turned}, ROUTES, LATE):
            found = built(TOKENS)
        with read_changed(built, {layer: torch.clone}, ROUTES):
            torch.testing.assert_close(built(TOKENS), before, rtol=0, atol=1e-5)
        assert torch.equal(built(TOKENS), before)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert (found - before).abs().max() > 0.01


@pytest.mark.parametrize("route", ROUTES)
def test_chosen_heads_read_what_their_weights_make_of_it_and_others_nothing(route: str) -> None:
    built = model("ours")
    before = seen(built)
    with read_changed(built, {LAYER: turned}, [route], heads=[1]):
        found = seen(built)
    attention = built.blocks[LAYER].attn
    weight = {"queries": attention.W_Q, "keys": attention.W_K, "values": attention.W_V}[route]
    bias = {"queries": attention.b_Q, "keys": attention.b_K, "values": attention.b_V}[route]
    wanted = turned(before[READ]) @ weight[1] + bias[1]
    of_head, d = before[HOOKS[route]].clone(), built.cfg.d_head
    of_head[..., d : 2 * d] = wanted
    torch.testing.assert_close(found[HOOKS[route]], of_head, rtol=1e-4, atol=1e-5)
    for hook in ({*HOOKS.values(), STREAM} - {HOOKS[route]}) | {READ}:
        assert torch.equal(found[hook], before[hook])
    others = torch.ones(of_head.shape[-1], dtype=torch.bool)
    others[d : 2 * d] = False
    assert torch.equal(found[HOOKS[route]][..., others], before[HOOKS[route]][..., others])


def test_shared_keys_are_numbered_by_what_is_shared() -> None:
    built = model("gemma3")  # four heads share two keys
    before = seen(built)
    with read_changed(built, {LAYER: turned}, ["keys"], heads=[1]):
        found = seen(built)
    assert torch.equal(found[HOOKS["keys"]][..., :8], before[HOOKS["keys"]][..., :8])
    assert not torch.allclose(found[HOOKS["keys"]][..., 8:], before[HOOKS["keys"]][..., 8:])
    with (
        read_changed(built, {LAYER: turned}, ["keys"], heads=[2]),
        pytest.raises(UserError, match=r"there is no head 2: choose from heads 0 to 1\."),
    ):
        seen(built)


@pytest.mark.parametrize("route", ["keys", "values"])
def test_keys_and_values_that_one_map_makes_are_changed_apart(route: str) -> None:
    built = model("gemma4")
    norms = {at: f"blocks.1.attn.{at[0]}_norm.hook_out" for at in ("keys", "values")}

    def normed() -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        stream(built, TOKENS, {hook: partial(found.__setitem__, at) for at, hook in norms.items()})
        return found

    before = normed()
    with intervene(built, {READ: turned}, LATE):
        expected = normed()
    with read_changed(built, {1: turned}, [route], LATE):
        found = normed()
    (other,) = norms.keys() - {route}
    assert torch.equal(found[other], before[other])
    torch.testing.assert_close(found[route], expected[route], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(found[route], before[route], rtol=1e-2)


def test_a_layer_that_reads_the_keys_of_another_has_queries_alone() -> None:
    built = model("gemma4_shared")
    asked = "reads the keys and values of an earlier layer: add 'queries'"
    with (
        pytest.raises(UserError, match=asked),
        read_changed(built, {3: turned}, ["keys", "values"]),
    ):
        pass
    with torch.no_grad():
        with read_changed(built, {3: turned}, ["queries"]):
            queries = built(TOKENS)
        with read_changed(built, {3: turned}):
            assert torch.equal(built(TOKENS), queries)


@pytest.mark.parametrize("given", [torch.tensor, np.array, tuple, set, range])
def test_heads_and_routes_are_given_in_any_collection(
    given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    built = model("ours")
    for heads in ([0], [0, 1]):
        with read_changed(built, {LAYER: turned}, ROUTES, heads=heads):
            wanted = seen(built)
        some = range(len(heads)) if given is range else given(heads)
        routes = np.array(ROUTES) if given is np.array else dict.fromkeys(ROUTES)
        with read_changed(built, {LAYER: turned}, routes, heads=some):
            found = seen(built)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"routes": ["query"]}, "did you mean 'queries'"),
        ({"routes": "keys"}, r"routes are 'keys': give a list, \['keys'\]"),
        ({"routes": []}, "nothing would read"),
        ({"routes": ["keys"], "heads": []}, "nothing would read"),
        ({"routes": ["keys"], "heads": 0}, r"heads is 0: give a list, \[0\]"),
        ({"heads": torch.tensor([], dtype=torch.int64)}, "nothing would read"),
        ({"heads": ["0"]}, r"heads is \['0'\]: give a list of whole numbers"),
        ({"heads": "01"}, "heads is '01': give a list of whole numbers"),
        ({"heads": [0.5]}, r"heads is \[0.5\]: give a list of whole numbers"),
        ({"functions": {7: turned}}, r"has no 'blocks\.7\.attn\.hook_in'"),
    ],
)
def test_nonsense_is_one_sentence(
    options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    with (
        pytest.raises(UserError, match=said),
        read_changed(model("ours"), **{"functions": {LAYER: turned}, **options}),
    ):
        pass
