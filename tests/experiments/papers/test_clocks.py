"""Which clock tells which scale: planted clocks, scikit-learn's regressions, and exact limits."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from experiments.papers.koutnik2014.clocks import ROTARY as LADDER
from experiments.papers.koutnik2014.clocks import (
    SCALES,
    WAVELENGTHS,
    clock_decoding,
    clocks_beside_rotary,
    held_noise,
    held_noise_decoding,
    noisy_inputs,
    rotary_decoding,
)
from experiments.papers.koutnik2014.waveforms import LENGTH, PERIODS, stream
from nope_interp.errors import UserError
from nope_interp.models.clockwork import ClockworkConfig, ClockworkRNN
from nope_interp.models.config import TransformerConfig
from nope_interp.models.encodings import RotaryPositions, rotate

ROTARY = TransformerConfig(1, 8, 1, 1, n_ctx=128, positions="rotary", rotary_base=100.0)


def test_a_planted_clock_tells_its_own_scale_alone() -> None:
    """Two units that turn by 2π/16 at every step, started by the first input."""
    model = ClockworkRNN(ClockworkConfig(1, 2, 1, periods=(1,)))
    angle = 2 * math.pi / 16
    turn = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    with torch.no_grad():
        model.clocks[0].W_H.copy_(torch.tensor(turn))
        model.clocks[0].W_I.copy_(torch.tensor([[1.0], [0.0]]))
    inputs = torch.zeros(16, 64, 1)
    # So small that tanh is linear, and as loud in every sequence, give or take a tenth.
    inputs[:, :1] = 1e-3 * noisy_inputs(16, 1, seed=1)
    r2 = clock_decoding(model, inputs, scales=(4, 8, 16, 32))
    assert r2.shape == (1, 4)
    assert r2[0, 2] > 0.97
    assert (np.abs(r2[0, [0, 1, 3]]) < 0.01).all()


def test_r2_is_scikit_learns_on_held_out_sequences() -> None:
    model = ClockworkRNN(ClockworkConfig(1, 12, 1, periods=(1, 3, 8)))
    inputs = noisy_inputs(12, 50, spread=0.3)
    r2 = clock_decoding(model, inputs, scales=(4, 20))
    cache = model.run_with_cache(inputs)[1]
    t = np.arange(50)
    for module in range(3):
        states = cache[f"modules.{module}.hook_hidden"].detach().double().numpy()
        for column, scale in enumerate((4, 20)):
            turn = 2 * np.pi * t / scale
            y = np.stack((np.sin(turn), np.cos(turn)), axis=1)
            ridge = make_pipeline(StandardScaler(), Ridge(alpha=1.0))
            ridge.fit(np.concatenate(states[:9]), np.tile(y, (9, 1)))
            predicted = ridge.predict(np.concatenate(states[9:]))
            expected = r2_score(np.tile(y, (3, 1)), predicted, multioutput="variance_weighted")
            assert r2[module, column] == pytest.approx(expected, abs=1e-9)


def test_no_module_tells_scales_that_divide_its_period() -> None:
    periods, scales = (1, 4, 16, 32), (2, 4, 8, 16, 32, 64)
    model = ClockworkRNN(ClockworkConfig(1, 16, 1, periods=periods))
    r2 = clock_decoding(model, noisy_inputs(16, 128), scales=scales)
    for module, period in enumerate(periods):
        blind = np.array([period % scale == 0 for scale in scales])
        assert (r2[module, blind] < 1e-9).all()
    assert r2.max() > 0.3  # the approach to the resting state tells long scales


def test_inputs_of_mean_0_tell_a_linear_map_nothing() -> None:
    model = ClockworkRNN(ClockworkConfig(1, 16, 1, periods=(1, 4)))
    inputs = noisy_inputs(256, 64, spread=1.0) - 1
    assert np.abs(clock_decoding(model, inputs, scales=(4, 16, 32))).max() < 0.02


def test_held_noise_changes_at_ticks_alone() -> None:
    states = held_noise(400, 16, 100, stream("test", 0)).numpy()
    assert states.shape == (100, 400)
    changes = np.flatnonzero((np.diff(states, axis=0) != 0).all(axis=1)) + 1
    assert changes.tolist() == [16, 32, 48, 64, 80, 96]
    assert (np.diff(states, axis=0) != 0).any(axis=1).sum() == 6
    ticks = states[::16]
    assert np.abs(np.corrcoef(ticks) - np.eye(7)).max() < 0.2  # four standard errors
    assert ticks.std() == pytest.approx(1, abs=0.05)


def test_held_noise_is_read_as_states_are() -> None:
    """With as many units as ticks any staircase is fitted: what it tells is its steps' means."""
    [found] = held_noise_decoding(8, 1, periods=(64, 40), scales=(100, 128, 160))
    t = np.arange(LENGTH)
    for module, period in enumerate((64, 40)):
        for column, scale in enumerate((100, 128, 160)):
            turn = np.exp(2j * np.pi * t / scale)
            steps = [turn[t // period == tick] for tick in range(LENGTH // period)]
            within = sum((abs(step - step.mean()) ** 2).sum() for step in steps)
            whole = (abs(turn - turn.mean()) ** 2).sum()
            assert found[module, column] == pytest.approx(1 - within / whole, abs=2e-3)
    # White noise of 8 units at all of 320 times explains 8 of 319 parts of anything.
    every = held_noise_decoding(8, 50, periods=(1,), scales=(7, 50))
    assert every.mean() == pytest.approx(8 / 319, abs=0.004)


def test_a_rotary_frequency_of_period_p_tells_scale_p_alone() -> None:
    # With 4 dimensions frequency 1 is base ** -0.5: a turn in 16 positions.
    config = dataclasses.replace(ROTARY, d_model=4, rotary_base=(16 / (2 * math.pi)) ** 2)
    r2 = rotary_decoding(config, 128, scales=(4, 8, 16, 32, 64))
    np.testing.assert_allclose(r2[1], [0, 0, 1, 0, 0], atol=1e-5)


def test_rotary_decoding_is_a_regression_on_a_rotated_constant_query() -> None:
    scales = (4, 16, 50)
    encoding, query = RotaryPositions(ROTARY), torch.randn(8)
    turned = rotate(query.expand(1, 100, 1, 8), *encoding(torch.arange(100)))[0, :, 0]
    r2 = rotary_decoding(ROTARY, 100, scales)
    assert r2.shape == (4, 3)
    for k in range(4):
        chunk = turned[:, [k, k + 4]].double().numpy()
        for column, scale in enumerate(scales):
            turn = 2 * np.pi * np.arange(100) / scale
            y = np.stack((np.sin(turn), np.cos(turn)), axis=1)
            predicted = LinearRegression().fit(chunk, y).predict(chunk)
            expected = r2_score(y, predicted, multioutput="variance_weighted")
            assert r2[k, column] == pytest.approx(expected, abs=1e-4)


def test_a_frequency_that_stands_still_tells_nothing() -> None:
    r2 = rotary_decoding(dataclasses.replace(ROTARY, rotary_kept=0.5), 128, (4, 16, 64))
    assert (r2[:2] > 0).any()
    np.testing.assert_array_equal(r2[2:], 0)


def test_the_two_ladders_come_together() -> None:
    both = clocks_beside_rotary(16, 3, 3e-2, 0, n_sequences=8)
    assert both["trained"].shape == both["random"].shape == (8, len(SCALES))
    assert both["rotary"].shape == (5, len(SCALES))
    assert not np.array_equal(both["trained"], both["random"])
    assert both["nmse"].shape == (4,)
    assert ((both["nmse"] > 0) & (both["nmse"] < 3)).all()


def test_every_rate_has_its_scale_and_the_length_tells_it() -> None:
    turns = 2 * math.pi / RotaryPositions(LADDER).frequencies
    np.testing.assert_allclose(turns, WAVELENGTHS, rtol=1e-6)
    assert set(SCALES) >= {*WAVELENGTHS, *PERIODS}
    assert max(SCALES) <= LENGTH / 2  # two turns
    r2 = rotary_decoding(LADDER)
    for k, wavelength in enumerate(WAVELENGTHS):
        assert r2[k].argmax() == SCALES.index(wavelength)
        assert r2[k].max() == pytest.approx(1, abs=1e-6)


@pytest.mark.slow
def test_training_gives_fast_clocks_the_scales_of_the_waveform() -> None:
    """Sines of periods 8 and 32 are drawn by modules that tell them; no sine has 4 or 64."""
    both = clocks_beside_rotary(64, 125, 3e-2, 0, n_sequences=16)
    fastest, untrained = (
        dict(zip(SCALES, both[which][0], strict=True)) for which in ("trained", "random")
    )
    for period in (8, 32):
        assert fastest[period] > untrained[period] + 0.2
    assert max(fastest[4], fastest[64]) < 0.2


def test_what_cannot_be_is_one_sentence() -> None:
    model = ClockworkRNN(ClockworkConfig(1, 4, 1, periods=(1, 2)))
    inputs = noisy_inputs(8, 20)
    for attempt, message in (
        (lambda: clock_decoding(model, inputs[:7], (2,)), "7 sequences: give at least 8"),
        (
            lambda: clock_decoding(model, inputs, (1, 2)),
            "scales are .*: give time steps from 2 to 10",
        ),
        (lambda: clock_decoding(model, inputs, ()), "give time steps from 2 to 10, for two turns"),
        (lambda: clock_decoding(model, inputs), "give time steps from 2 to 10, for two turns"),
        (lambda: clock_decoding(model, math.nan * inputs, (2,)), "NaN or infinite"),
        (lambda: rotary_decoding(ROTARY, 129, (2,)), "n_ctx is 128"),
        (
            lambda: rotary_decoding(dataclasses.replace(ROTARY, positions="alibi"), 9, (2,)),
            "positions are 'alibi'",
        ),
    ):
        with pytest.raises(UserError, match=message):
            attempt()
