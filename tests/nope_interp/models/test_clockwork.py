"""The Clockwork RNN against a plain masked loop, torch's own RNN, and its definition."""

import copy
import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nope_interp.errors import UserError
from nope_interp.models import clockwork
from nope_interp.models.clockwork import ClockworkConfig, ClockworkRNN

PERIODS = (1, 3, 4)  # the last does not divide the sequence, and 3 does not divide 4
CONFIG = ClockworkConfig(d_in=2, d_hidden=12, d_out=3, periods=PERIODS)


def random_inputs(batch: int = 3, time: int = 26, d_in: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(batch, time, d_in, generator=torch.Generator().manual_seed(seed))


def plain_loop(model: ClockworkRNN, inputs: np.ndarray) -> np.ndarray:
    """The definition, unit by unit: hidden states [batch time hidden] of a masked recurrence."""
    W_H, W_I = model.W_H.detach().numpy(), model.W_I.detach().numpy()
    periods = np.repeat(model.config.periods, model.config.width)
    state = np.zeros((len(inputs), len(W_H)))
    states = []
    for t in range(inputs.shape[1]):
        following = state.copy()
        for unit, period in enumerate(periods):
            if t % period == 0:
                readable = periods >= period
                sums = state[:, readable] @ W_H[unit, readable] + inputs[:, t] @ W_I[unit]
                following[:, unit] = np.tanh(sums)
        state = following
        states.append(state)
    return np.stack(states, axis=1)


@st.composite
def configs(draw: st.DrawFn) -> ClockworkConfig:
    periods = tuple(sorted(draw(st.sets(st.integers(1, 40), min_size=1, max_size=4))))
    width = draw(st.integers(1, 3))
    return ClockworkConfig(
        d_in=draw(st.integers(1, 3)),
        d_hidden=width * len(periods),
        d_out=1,
        periods=periods,
        seed=draw(st.integers(0, 100)),
    )


@settings(max_examples=40)
@given(configs(), st.integers(1, 20), st.integers(1, 3))
def test_equals_a_plain_masked_loop(config: ClockworkConfig, time: int, batch: int) -> None:
    model = ClockworkRNN(config).double()
    inputs = random_inputs(batch, time, config.d_in, config.seed).double()
    outputs, cache = model.run_with_cache(inputs)
    hidden = plain_loop(model, inputs.numpy())
    np.testing.assert_allclose(cache["hidden"].detach(), hidden, atol=1e-12)
    weight, bias = (p.detach().numpy() for p in model.readout.parameters())
    np.testing.assert_allclose(outputs.detach(), hidden @ weight.T + bias, atol=1e-12)


def test_idle_modules_keep_their_state_bit_for_bit() -> None:
    model = ClockworkRNN(CONFIG)
    cache = model.run_with_cache(random_inputs())[1]
    for module, period in enumerate(PERIODS):
        states = cache[f"modules.{module}.hook_hidden"]
        for t in range(1, states.shape[1]):
            unchanged = bool(torch.equal(states[:, t], states[:, t - 1]))
            assert unchanged == (t % period != 0), (module, t)


def test_a_module_is_computed_at_its_active_steps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    real, computed = clockwork._Recurrence.apply, []

    def counted(drive: Tensor, weight: Tensor) -> Tensor:
        computed.append(drive.shape[1])
        return real(drive, weight)

    monkeypatch.setattr(clockwork._Recurrence, "apply", counted)
    ClockworkRNN(CONFIG)(random_inputs(time=26))
    assert computed == [math.ceil(26 / period) for period in reversed(PERIODS)]


def test_modules_read_slower_ones_only() -> None:
    """Inputs given to one module alone change it and the faster ones, and no slower one."""
    model = ClockworkRNN(CONFIG)
    inputs = random_inputs()
    before = model.run_with_cache(inputs)[1]
    for changed in range(3):
        with torch.no_grad():
            model.clocks[changed].W_I.add_(1)
        after = model.run_with_cache(inputs)[1]
        for module in range(3):
            name = f"modules.{module}.hook_hidden"
            assert torch.equal(after[name], before[name]) == (module > changed)
        before = after


def test_gradients_are_those_of_the_plain_loop() -> None:
    """By autograd through a masked loop written with torch, with respect to all weights."""
    model = ClockworkRNN(CONFIG).double()
    inputs = random_inputs(time=9).double().requires_grad_()
    target = random_inputs(time=9, d_in=3, seed=1).double()
    names, parameters = zip(*model.named_parameters(), strict=True)
    ours = torch.autograd.grad(((model(inputs) - target) ** 2).sum(), (inputs, *parameters))

    mask = torch.block_diag(*[torch.ones(4, 4)] * 3).cumsum(1).clamp(max=1).double()
    periods = torch.tensor(PERIODS).repeat_interleave(4)
    W_H, W_I = model.W_H * mask, model.W_I
    state = torch.zeros(3, 12, dtype=torch.float64)
    loss = torch.zeros((), dtype=torch.float64)
    for t in range(9):
        fresh = torch.tanh(state @ W_H.T + inputs[:, t] @ W_I.T)
        state = torch.where(t % periods == 0, fresh, state)
        loss = loss + ((model.readout(state) - target[:, t]) ** 2).sum()
    plain = torch.autograd.grad(loss, (inputs, *parameters))
    for name, mine, theirs in zip(("inputs", *names), ours, plain, strict=True):
        torch.testing.assert_close(mine, theirs, msg=name)


def test_gradients_are_finite_differences() -> None:
    model = ClockworkRNN(ClockworkConfig(d_in=1, d_hidden=4, d_out=1, periods=(1, 2))).double()
    names = [name for name, _ in model.named_parameters()]
    inputs = random_inputs(batch=2, time=6, d_in=1).double().requires_grad_()

    def outputs(inputs: Tensor, *weights: Tensor) -> Tensor:
        for name, weight in zip(names, weights, strict=True):
            owner = model
            *path, last = name.split(".")
            for part in path:
                owner = owner._modules[part]
            del owner._parameters[last]
            owner._parameters[last] = weight
        return model(inputs)

    weights = [p.detach().clone().requires_grad_() for p in model.parameters()]
    assert torch.autograd.gradcheck(outputs, (inputs, *weights))


def test_one_module_at_every_step_is_torchs_rnn() -> None:
    model = ClockworkRNN(ClockworkConfig(d_in=2, d_hidden=7, d_out=1, periods=(1,)))
    torchs = nn.RNN(2, 7, bias=False, batch_first=True)
    with torch.no_grad():
        torchs.weight_ih_l0.copy_(model.W_I)
        torchs.weight_hh_l0.copy_(model.W_H)
    inputs = random_inputs()
    hidden = model.run_with_cache(inputs)[1]["hidden"]
    torch.testing.assert_close(hidden, torchs(inputs)[0])


@pytest.mark.parametrize(("n", "g"), [(8, 1), (64, 8), (36, 9), (10, 5)])
def test_recurrent_parameters_are_n2_over_2_plus_n2_over_2g(n: int, g: int) -> None:
    config = ClockworkConfig(1, n, 1, periods=tuple(2**k for k in range(g)))
    model = ClockworkRNN(config)
    expected = n**2 / 2 + n**2 / (2 * g)
    assert config.n_recurrent == expected
    assert sum(clock.W_H.numel() for clock in model.clocks) == expected
    inputs_and_readout = n + n + 1
    assert sum(p.numel() for p in model.parameters()) == expected + inputs_and_readout
    assert config.n_parameters == expected + inputs_and_readout
    # The forbidden blocks of the assembled matrix are the lower block triangle.
    below = torch.arange(n)[:, None] // (n // g) > torch.arange(n) // (n // g)
    assert torch.equal(model.W_H == 0, below)


def test_training_lowers_the_loss_and_fills_no_forbidden_block() -> None:
    model = ClockworkRNN(ClockworkConfig(1, 16, 1, periods=(1, 2, 4, 8)))
    target = torch.sin(torch.arange(40.0) * 2 * math.pi / 10)[None, :, None]
    inputs = torch.ones_like(target)
    # Weight decay and momentum move weights without a gradient, too.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
    losses = []
    for _ in range(60):
        loss = ((model(inputs) - target) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    hidden = model.run_with_cache(inputs)[1]["hidden"].detach()
    np.testing.assert_allclose(hidden, plain_loop(model, inputs.numpy()), atol=1e-5)
    assert torch.count_nonzero(model.W_H) == model.config.n_recurrent


def test_same_seed_same_bits_and_torchs_generator_is_left_alone() -> None:
    state = torch.random.get_rng_state()
    one, two = ClockworkRNN(CONFIG), ClockworkRNN(CONFIG)
    assert torch.equal(torch.random.get_rng_state(), state)
    other = ClockworkRNN(dataclasses.replace(CONFIG, seed=1))
    inputs = random_inputs()
    assert torch.equal(one(inputs), two(inputs))
    assert not torch.equal(one(inputs), other(inputs))
    for clock in one.clocks:
        bound = 1 / math.sqrt(clock.W_H.shape[1] + clock.W_I.shape[1])
        weights = torch.cat((clock.W_H, clock.W_I), dim=1)
        assert 0.7 * bound < weights.abs().max() <= bound


def test_weights_are_saved_loaded_and_copied() -> None:
    one, other = ClockworkRNN(CONFIG), ClockworkRNN(dataclasses.replace(CONFIG, seed=1))
    other.load_state_dict(one.state_dict())
    inputs = random_inputs()
    assert torch.equal(one(inputs), other(inputs))
    copied = copy.deepcopy(one)
    with torch.no_grad():
        one.clocks[0].W_H.zero_()
    assert torch.equal(copied(inputs), other(inputs))


def test_hooks_fire_in_order_with_the_documented_shapes() -> None:
    model = ClockworkRNN(CONFIG)
    inputs = random_inputs()
    cache = model.run_with_cache(inputs)[1]
    modules = [f"modules.{i}.hook_hidden" for i in (2, 1, 0)]
    assert list(cache.cache_dict) == [*modules, "hook_hidden"]
    assert set(model.hook_dict) == set(cache.cache_dict)
    assert all(cache[name].shape == (3, 26, 4) for name in modules)
    assert torch.equal(cache["hidden"], torch.cat([cache[name] for name in modules[::-1]], dim=-1))
    one = model.run_with_cache(inputs, names_filter="modules.1.hook_hidden")[1]
    assert list(one.cache_dict) == ["modules.1.hook_hidden"]
    with pytest.raises(UserError, match=r"did you mean 'modules\.1\.hook_hidden'"):
        model.run_with_cache(inputs, names_filter="modules.1.hook_hiden")


def test_a_replaced_module_is_read_by_faster_ones_and_not_by_itself() -> None:
    model, inputs = ClockworkRNN(CONFIG), random_inputs()
    seen: dict[str, Tensor] = {}

    def silence(states: Tensor, hook: Any) -> Tensor:
        return torch.zeros_like(states)

    def keep(states: Tensor, hook: Any) -> None:
        seen[hook.name] = states

    names = [f"modules.{i}.hook_hidden" for i in range(3)]
    silenced = model.run_with_hooks(
        inputs, fwd_hooks=[(names[1], silence), *((name, keep) for name in names)]
    )
    before = model.run_with_cache(inputs)[1]
    assert torch.equal(seen[names[2]], before[names[2]])
    assert not seen[names[1]].any()
    with torch.no_grad():
        # The same without a hook: nobody reads module 1.
        model.clocks[0].W_H[:, 4:8] = 0
        model.readout.weight[:, 4:8] = 0
        torch.testing.assert_close(model(inputs), silenced)


def test_a_hook_may_write_in_place_while_gradients_are_kept() -> None:
    model, inputs = ClockworkRNN(CONFIG), random_inputs()

    def double_in_place(states: Tensor, hook: Any) -> None:
        states *= 2

    def double(states: Tensor, hook: Any) -> Tensor:
        return 2 * states

    gradients = []
    for hook in (double, double_in_place):
        hooks = [(f"modules.{module}.hook_hidden", hook) for module in range(3)]
        loss = model.run_with_hooks(inputs, fwd_hooks=hooks).square().sum()
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    for replaced, written in zip(*gradients, strict=True):
        torch.testing.assert_close(replaced, written)


def test_gradients_can_be_cached() -> None:
    model = ClockworkRNN(ClockworkConfig(1, 4, 1, periods=(1, 2)))
    name = "modules.0.hook_hidden"
    cached: dict[str, Tensor] = {}

    def keep(gradient: Tensor, hook: Any) -> None:
        cached[hook.name] = gradient

    with model.hooks(bwd_hooks=[(name, keep)]):
        model(random_inputs(d_in=1)).sum().backward()
    expected = model.readout.weight[0, :2].expand(3, 26, 2)
    torch.testing.assert_close(cached[name], expected)


def test_a_hook_that_returns_nothing_changes_nothing() -> None:
    model, inputs = ClockworkRNN(CONFIG), random_inputs()
    listened = model.run_with_hooks(inputs, fwd_hooks=[(lambda name: True, lambda t, hook: None)])
    assert torch.equal(listened, model(inputs))


def test_a_period_longer_than_any_memory_is_active_once() -> None:
    model = ClockworkRNN(ClockworkConfig(2, 4, 1, periods=(1, 2**59)))
    slow = model.run_with_cache(random_inputs())[1]["modules.1.hook_hidden"]
    assert torch.equal(slow, slow[:, :1].expand_as(slow))


def test_wrong_configs_are_one_sentence() -> None:
    for changes, message in (
        ({"periods": (1, 4, 2)}, "make each larger than the one before"),
        ({"periods": (1, 2, 2)}, "make each larger than the one before"),
        ({"periods": (0, 1, 2)}, "give a list of whole numbers from 1 up"),
        ({"periods": ()}, "periods are none: give at least one"),
        ({"periods": (1, 2.5, 4)}, "clockwork periods is"),
        ({"d_hidden": 13}, "d_hidden 13 does not divide into 3 modules"),
        ({"d_hidden": 0}, "d_hidden is 0: give a whole number from 1 up"),
        ({"d_in": math.nan}, "clockwork d_in is nan"),
        ({"seed": -1}, "clockwork seed is -1"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            dataclasses.replace(CONFIG, **changes)
        assert "\n" not in str(caught.value)


def test_wrong_inputs_are_one_sentence() -> None:
    model, inputs = ClockworkRNN(CONFIG), random_inputs()
    holed = inputs.clone()
    holed[1, 2, 0] = math.nan
    for wrong, message in (
        (inputs[0], r"inputs have shape \(26, 2\): give a tensor of shape \(batch, time, 2\)"),
        (inputs[..., :1], r"inputs have shape \(3, 26, 1\)"),
        (inputs.double(), "inputs are torch.float64: give torch.float32"),
        (inputs[:, :0], "there are no inputs"),
        (holed, "inputs hold NaN or infinite numbers"),
    ):
        with pytest.raises(UserError, match=message):
            model(wrong)
    # Called directly, for the tests' type checker lets no array through to forward.
    with pytest.raises(UserError, match="inputs are a ndarray: give a tensor"):
        model._check_inputs(inputs.numpy())
