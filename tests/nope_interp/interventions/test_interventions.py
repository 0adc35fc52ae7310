"""Activations are changed where they should be, what follows follows, and everything comes back."""

import copy
from functools import cache
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nope_interp.errors import UserError
from nope_interp.interventions.attention_weights import (
    _frozen,
    freeze_first_attention,
    mean_first_attention,
    scale_attention,
    without_position,
)
from nope_interp.interventions.heads import change_heads
from nope_interp.interventions.intervene import intervene
from nope_interp.models.losses import sequence_losses
from nope_interp.models.marked import logits_at
from nope_interp.positions.layers import layer_positions
from nope_interp.sites import hook_name
from nope_interp.streams import stream
from nope_interp.tasks.examples import Examples
from nope_interp.training.exact_match import exact_matches
from tests import typecheck
from tests.huggingface import FAMILIES, WINDOW, bridged_model
from tests.small_models import model as own_model
from tests.small_models import random_tokens

BRIDGES = ("gpt2", "llama", "gemma", "gemma3", "gpt_neox", "t5")
# Longer than the attention window of those that have one.
TOKENS = random_tokens(batch=2, pos=WINDOW + 4).clamp(min=4)
PLACES = [hook_name(layer, site) for layer in range(2) for site in ("attn_out", "resid_post")]


@cache
def model(name: str) -> Any:
    """Shared by all tests: every one of them leaves it as it was."""
    return own_model() if name == "ours" else bridged_model(name)


def logits(built: Any, tokens: Tensor = TOKENS) -> Tensor:
    with torch.no_grad():
        return built(tokens)


def activations(built: Any, name: str, tokens: Tensor = TOKENS) -> Tensor:
    kept: list[Tensor] = []
    stream(built, tokens, {name: lambda x: kept.append(x.clone())})
    return torch.cat(kept)


def turned(x: Tensor) -> Tensor:
    """Something that no norm undoes."""
    return 0.5 * x.flip(-1)


def attached(built: Any) -> int:
    modules = list(built.modules())
    modules += list(getattr(built, "original_model", built).modules())
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        *((name, place) for name in ("ours", *BRIDGES) for place in PLACES),
        *((name, PLACES[-2]) for name in FAMILIES if name not in BRIDGES),
        *((hybrid, hook_name(3, "attn_out")) for hybrid in ("granitemoehybrid", "jamba")),
    ],
)
def test_what_follows_follows_as_under_transformer_lens_own_hooks(name: str, place: str) -> None:
    built = model(name)

    def lens_hook(x: Tensor, hook: object) -> Tensor:
        return torch.cat((x[:, :3], turned(x[:, 3:])), dim=1)

    before, rows = logits(built), activations(built, place)
    with torch.no_grad():
        expected = built.run_with_hooks(TOKENS, fwd_hooks=[(place, lens_hook)])
    with intervene(built, {place: turned}, positions=slice(3, None)) as intervention:
        changed = logits(built)
        seen = activations(built, place)
        intervention.verify()
    assert torch.equal(changed, expected)
    assert (changed - before)[:, 3:].abs().amax(dim=-1).min() > 1e-3 * before.abs().max()
    # Listeners see what follows sees; earlier rows are the same to the bit.
    assert torch.equal(seen[:, :3], rows[:, :3])
    assert torch.equal(seen[:, 3:], turned(rows[:, 3:]))
    # The mask is causal: positions before the first changed one are as before.
    torch.testing.assert_close(changed[:, :3], before[:, :3], rtol=0, atol=1e-6)


def fail_while_changed(built: Any, before: Tensor) -> None:
    with intervene(built, dict.fromkeys(PLACES, turned)):
        assert not torch.equal(logits(built), before)
        raise ZeroDivisionError


@pytest.mark.parametrize("name", ["ours", *BRIDGES])
def test_the_model_comes_back_bit_for_bit(name: str) -> None:
    built = model(name)
    before, hooks = logits(built), attached(built)
    with pytest.raises(ZeroDivisionError):
        fail_while_changed(built, before)
    assert attached(built) == hooks
    assert torch.equal(logits(built), before)
    with intervene(built, dict.fromkeys(PLACES, torch.clone)):
        assert torch.equal(logits(built), before)
    with intervene(built, dict.fromkeys(PLACES, turned)):
        changed = logits(built)
        # Contexts of hooks inside, and resetting hooks, do not end the intervention.
        stream(built, TOKENS, {PLACES[0]: lambda x: None}, batch_size=1)
        built.reset_hooks()
        assert torch.equal(logits(built), changed)
    assert attached(built) == hooks
    assert torch.equal(logits(built), before)


def test_interventions_nest_and_each_sees_what_the_outer_one_left() -> None:
    built, place = model("ours"), PLACES[1]
    with intervene(built, {place: lambda x: x + 1}):
        with intervene(built, {place: lambda x: 3 * x}):
            both = activations(built, place)
        outer = activations(built, place)
    assert torch.equal(both, 3 * outer)
    assert torch.equal(outer, activations(built, place) + 1)


@pytest.mark.parametrize("name", ["ours", *BRIDGES])
def test_losses_are_those_of_the_changed_model(name: str) -> None:
    built = model(name)
    intact = sequence_losses(built, TOKENS)
    with intervene(built, {hook_name(1, "resid_post"): turned}, positions=slice(1, None)):
        found = sequence_losses(built, TOKENS, batch_size=1)
        changed = logits(built)
    expected = F.cross_entropy(changed[:, :-1].transpose(1, 2), TOKENS[:, 1:], reduction="none")
    torch.testing.assert_close(found, expected.mean(dim=1), rtol=1e-4, atol=1e-4)
    assert (found - intact).abs().min() > 1e-3
    assert torch.equal(sequence_losses(built, TOKENS), intact)


def test_exact_matches_and_single_logits_are_those_of_the_changed_model() -> None:
    built = model("ours")
    with torch.no_grad():
        answered = built.generate(TOKENS[:, :8], 4)
    lengths = torch.full((2,), 8), torch.full((2,), 12)
    examples = Examples(answered, *lengths)
    wanted = torch.rand(TOKENS.shape, generator=torch.Generator().manual_seed(0)) < 0.3
    assert exact_matches(built, examples).all()
    with intervene(built, {hook_name(0, "resid_post"): torch.neg}, positions=slice(1, None)):
        assert not exact_matches(built, examples).any()
        with torch.no_grad():
            some = logits_at(built, TOKENS, wanted)
        torch.testing.assert_close(some, logits(built)[wanted], rtol=0, atol=1e-5)
    assert exact_matches(built, examples).all()


def test_functions_that_go_wrong_are_named() -> None:
    built, place = model("ours"), PLACES[1]

    def refuse(x: Tensor) -> Tensor:
        raise ValueError("too flat")

    functions: dict[str, Any] = {
        r"gave shape \(2, 18, 24\) for activations of shape \(2, 19, 24\)": lambda x: x[:, 1:],
        "gave None for activations": lambda x: None,
        "gave NaN or infinite values": lambda x: x / 0,
        "too flat": refuse,
    }
    before = logits(built)
    for sentence, function in functions.items():
        with (
            pytest.raises(UserError, match=rf"function at blocks\.0\.hook_resid_post.*{sentence}"),
            intervene(built, {place: function}, positions=slice(1, None)),
        ):
            logits(built)
    assert torch.equal(logits(built), before)


def test_unknown_names_and_positions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    built, hooks = model("ours"), attached(model("ours"))
    with (
        pytest.raises(UserError, match=r"did you mean 'blocks\.1\.hook_resid_post'"),
        intervene(built, {PLACES[0]: turned, "blocks.1.hook_residpost": turned}),
    ):
        pass
    assert attached(built) == hooks
    # Decoded one by one, tokens come without those before: their positions cannot be told.
    for positions in (slice(1, None), torch.tensor([1, 3])):
        with (
            pytest.raises(UserError, match="have 1 positions and lack some of those to change"),
            intervene(built, {PLACES[0]: turned}, positions=positions),
        ):
            built.generate(TOKENS[:, :4], 3)
    n = TOKENS.shape[1]
    for positions in (slice(2, n + 1), slice(-n - 1, None), torch.tensor([2, n])):
        with (
            pytest.raises(UserError, match=f"have {n} positions and lack some of those to change"),
            intervene(built, {PLACES[0]: turned}, positions=positions),
        ):
            built(TOKENS)
    with intervene(built, {PLACES[0]: turned}, positions=slice(-n, n)) as intervention:
        built(TOKENS)
        intervention.verify()
    with (
        pytest.raises(UserError, match="give a step of 1 or more"),
        intervene(built, {PLACES[0]: turned}, positions=slice(None, None, -1)),
    ):
        built(TOKENS)
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    for wrong in (3, None, np.int64(3), torch.tensor(3)):
        with (
            pytest.raises(UserError, match=r"positions are .*(3|None).*: give a list or a slice"),
            intervene(built, {PLACES[0]: turned}, positions=cast(Any, wrong)),
        ):
            pass
    with (
        pytest.raises(UserError, match=f"no positions are given for {PLACES[0]}"),
        intervene(built, {PLACES[0]: turned}, positions={}),
    ):
        pass


@pytest.mark.parametrize("name", ["ours", *BRIDGES])
def test_rows_at_other_positions_stay(name: str) -> None:
    built, place, chosen = model(name), PLACES[1], torch.tensor([2, 5, 6])
    rows = activations(built, place)
    with intervene(built, {place: turned}, positions=chosen) as intervention:
        seen = activations(built, place)
        intervention.verify()
    others = [i for i in range(rows.shape[1]) if i not in chosen]
    assert torch.equal(seen[:, others], rows[:, others])
    assert torch.equal(seen[:, chosen], turned(rows[:, chosen]))


def test_a_place_that_is_never_reached_is_an_error() -> None:
    llama = model("llama")  # lists the hook, and has nothing to put in it
    with intervene(llama, {PLACES[0]: turned, "hook_pos_embed": turned}) as intervention:
        logits(llama)
        with pytest.raises(UserError, match="never reached hook_pos_embed: the model ran"):
            intervention.verify()


def test_a_copy_that_ran_in_the_models_place_is_an_error() -> None:
    built = model("ours")
    copied = copy.deepcopy(built)
    with intervene(built, {PLACES[0]: turned}) as intervention:
        sequence_losses(copied, TOKENS)
        with pytest.raises(UserError, match=f"never reached {PLACES[0]}"):
            intervention.verify()


def test_precision_is_the_models() -> None:
    built = model("ours")
    with intervene(built, {PLACES[1]: lambda x: turned(x.double())}):
        in_double = logits(built)
    with intervene(built, {PLACES[1]: turned}):
        assert torch.equal(in_double, logits(built))


@pytest.mark.parametrize("name", ["ours", "gpt2", "llama", "gemma", "gemma3", "gpt_neox"])
def test_attention_to_the_first_token_is_frozen_and_the_rest_keeps_its_proportions(
    name: str,
) -> None:
    built = model(name)
    before = logits(built)
    patterns = [f"blocks.{layer}.attn.hook_pattern" for layer in range(2)]
    intact = torch.stack([activations(built, pattern) for pattern in patterns])
    shares = mean_first_attention(built, TOKENS, batch_size=1)
    torch.testing.assert_close(shares, intact[..., 0].mean(dim=1), rtol=1e-5, atol=1e-7)
    flat = without_position(shares)
    for layer, found in enumerate(layer_positions(built)):
        # The first token leaves the window.
        end = min(found.window or TOKENS.shape[1], TOKENS.shape[1])
        mean = shares[layer, :, 1:end].mean(dim=-1, keepdim=True)
        torch.testing.assert_close(flat[layer, :, 1:end], mean.expand(-1, end - 1))
        assert not flat[layer, :, end:].any()
    for frozen_to in (shares, flat):
        with freeze_first_attention(built, frozen_to) as frozen:
            changed = logits(built)
            first = activations(built, patterns[0])
            frozen.verify()
        window = layer_positions(built)[0].window or TOKENS.shape[1]
        given = first[:, :, 1:window, 0]
        wanted = frozen_to[0, :, 1:window].expand_as(given)
        torch.testing.assert_close(given, wanted, rtol=1e-5, atol=1e-7)
        for other in (slice(0, 1), slice(window, None)):
            assert torch.equal(first[:, :, other], intact[0, :, :, other])
        torch.testing.assert_close(first.sum(dim=-1), torch.ones_like(first[..., 0]))
        others = [rows[:, :, 1:, 1:] for rows in (first, intact[0])]
        proportions = [rows / rows.sum(dim=-1, keepdim=True) for rows in others]
        torch.testing.assert_close(*proportions, rtol=1e-4, atol=1e-6)
        assert not torch.equal(changed, before)
        assert torch.equal(logits(built), before)


def test_a_head_that_all_but_ignores_the_rest_is_frozen_without_overflow() -> None:
    weight = torch.tensor([1.0, 5.5e-42])
    pattern = torch.stack([torch.tensor([1.0, 0.0]), weight])[None, None]
    frozen = _frozen(pattern, torch.tensor([[1.0, 0.5]]), sunk=False)
    torch.testing.assert_close(frozen[0, 0, 1], torch.tensor([0.5, 0.5]))


def test_a_sink_keeps_its_proportion_to_the_other_tokens() -> None:
    # The sink has 0.2 of the attention, and half of what it had once the first token has 0.6.
    pattern = torch.tensor([0.2, 0.3, 0.3]).expand(1, 1, 3, 3)
    frozen = _frozen(pattern, torch.tensor([[0.6, 0.6, 0.6]]), sunk=True)
    torch.testing.assert_close(frozen[0, 0, 2], torch.tensor([0.6, 0.15, 0.15]))


def test_the_sink_of_a_model_is_one_more_token() -> None:
    """What is left of the first token's share goes to the others and the sink as they had it."""
    built, name = model("gpt_oss"), "blocks.0.attn.hook_pattern"
    intact, shares = activations(built, name), torch.full((2, 4, TOKENS.shape[1]), 0.7)
    with freeze_first_attention(built, shares) as frozen:
        changed = activations(built, name)
        frozen.verify()
    # The first query sees nothing else; at the end the first token has left the window.
    before, after = (
        torch.cat((rows, 1 - rows.sum(dim=-1, keepdim=True)), dim=-1)[:, :, 1:WINDOW]
        for rows in (intact, changed)
    )
    assert before[..., -1].min() > 0.01
    expected = before[..., 1:] * (1 - 0.7) / (1 - before[..., :1])
    torch.testing.assert_close(after[..., 1:], expected)
    torch.testing.assert_close(after[..., 0], torch.full_like(after[..., 0], 0.7))


def test_a_uniform_head_sees_what_its_own_layer_sees() -> None:
    """The first layer has a window, the second none."""
    built, n = model("gemma3"), TOKENS.shape[1]
    back = torch.arange(n)[:, None] - torch.arange(n)
    with change_heads(
        built, {(0, 1): "uniform", (1, 1): "uniform"}, layer_positions(built)
    ) as changed:
        found = [activations(built, f"blocks.{layer}.attn.hook_pattern") for layer in range(2)]
        changed.verify()
    for pattern, window in zip(found, (WINDOW, n), strict=True):
        seen = (back >= 0) & (back < window)
        expected = seen / seen.sum(dim=-1, keepdim=True)
        torch.testing.assert_close(pattern[:, 1], expected.expand(len(TOKENS), -1, -1))


@pytest.mark.parametrize(
    ("first", "last", "told"),
    [
        ([0.5, 0.5, 0], [0, 0, 1], "lets queries see tokens to come: set weights beyond each to 0"),
        ([1, 0, 0], [1.5, 0, -0.5], "has negative weights, or NaN: give weights of 0 and more"),
        ([1, 0, 0], [float("nan"), 0, 0], "has negative weights, or NaN: give"),
        ([1, 0, 0], [1, 1, 1], "has weights of query 2 that sum to 3: give weights that sum to 1"),
    ],
)
def test_a_pattern_that_is_no_attention_is_refused(
    first: list[float], last: list[float], told: str
) -> None:
    pattern = torch.tensor([first, [0, 1, 0], last], dtype=torch.float32)
    built = model("ours")
    with (
        pytest.raises(UserError, match=f"^the pattern for head 2 of layer 1 {told}"),
        change_heads(built, {(1, 2): pattern}, layer_positions(built)),
    ):
        pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["ours", "gemma3", "gpt_oss"])
def test_a_pattern_of_another_prompt_is_taken_as_it_is(name: str, dtype: torch.dtype) -> None:
    """That of gpt-oss, whose sinks have a share, sums to less than 1."""
    built, at = model(name), "blocks.1.attn.hook_pattern"
    other = activations(built, at, TOKENS.flip(-1))[0, 1].to(dtype)
    other[3] = 0  # a query from which all tokens are hidden
    with change_heads(built, {(1, 1): other}, layer_positions(built)):
        found = activations(built, at)[:, 1]
    assert torch.equal(found, other.float().expand_as(found))


def test_a_pattern_may_lie_beyond_the_window_and_never_beyond_the_query() -> None:
    """As it does that was read while the window was lifted."""
    built, n = model("gemma3"), TOKENS.shape[1]
    whole = torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]
    with change_heads(built, {(0, 1): whole}, layer_positions(built)):
        assert torch.equal(activations(built, "blocks.0.attn.hook_pattern")[0, 1], whole)


def test_queries_that_see_what_is_to_come_may_be_given_it() -> None:
    built, n = own_model(causal=False), TOKENS.shape[1]
    even = torch.full((n, n), 1 / n)
    with change_heads(built, {(0, 1): even}, layer_positions(built)):
        assert torch.equal(activations(built, "blocks.0.attn.hook_pattern")[0, 1], even)


def test_layers_without_attention_are_passed_over() -> None:
    hybrid = model("lfm2")
    before, shares = logits(hybrid), mean_first_attention(hybrid, TOKENS)
    assert shares.any(dim=-1).any(dim=-1).tolist() == [False, True, True]
    with freeze_first_attention(hybrid, without_position(shares)):
        assert not torch.equal(logits(hybrid), before)
    with scale_attention(hybrid, [0], 2.0):
        assert not torch.equal(logits(hybrid), before)
    assert torch.equal(logits(hybrid), before)


def test_scores_of_hidden_keys_are_no_mistake() -> None:
    built = model("ours")
    before = logits(built)
    with intervene(built, {"blocks.0.attn.hook_attn_scores": lambda scores: scores.clone()}):
        torch.testing.assert_close(logits(built), before)


@pytest.mark.parametrize("name", ["gpt_neo", "opt", "t5", "olmo_hybrid"])
def test_bridges_that_show_patterns_without_using_them_are_refused(name: str) -> None:
    built = model(name)
    shares, hooks = mean_first_attention(built, TOKENS), attached(built)
    with (
        pytest.raises(UserError, match="computes attention past its pattern hooks"),
        freeze_first_attention(built, shares),
    ):
        pass
    assert attached(built) == hooks


def test_wrong_shares_are_refused() -> None:
    built = model("ours")
    for shares, sentence in [
        (
            torch.zeros(3, 2, 9),
            r"shares have shape \(3, 2, 9\): give one for each layer and head, \(2, 3",
        ),
        (torch.full((2, 3, 9), 1.1), "lie from 0 to 1"),
        (torch.full((2, 3, 9), float("nan")), "lie from 0 to 1"),
    ]:
        with pytest.raises(UserError, match=sentence), freeze_first_attention(built, shares):
            pass
    with (
        freeze_first_attention(built, torch.zeros(2, 3, 4)),
        pytest.raises(UserError, match="shares are of 4 positions, sequences of"),
    ):
        logits(built)
    with pytest.raises(UserError, match="at least two tokens"):
        mean_first_attention(built, TOKENS[:, :1])
