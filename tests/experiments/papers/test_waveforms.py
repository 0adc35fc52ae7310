"""Waveforms are what they say, networks are of one size, and training tells them apart."""

import math

import numpy as np
import pytest
import torch

from experiments.papers.koutnik2014.waveforms import (
    FORGET_BIAS,
    LEARNING_RATES,
    LENGTH,
    NETWORKS,
    PERIODS,
    TorchRecurrent,
    best_rate,
    fit_waveform,
    make_network,
    matched_sizes,
    multiply_adds,
    nmse,
    nmse_by_rate,
    stream,
    tuning_seeds,
    waveform,
)
from nope_interp.errors import UserError
from nope_interp.models.clockwork import ClockworkConfig, ClockworkRNN


def test_a_waveform_is_four_sines_of_amplitude_1() -> None:
    """By its spectrum, which phases do not touch: LENGTH / P turns of each."""
    for seed in range(3):
        samples = waveform(seed)[0, :, 0].double().numpy()
        amplitudes = 2 / LENGTH * np.abs(np.fft.rfft(samples))
        expected = np.zeros(LENGTH // 2 + 1)
        expected[[LENGTH // period for period in PERIODS]] = 1
        np.testing.assert_allclose(amplitudes, expected, atol=1e-5)
    assert not torch.equal(waveform(0), waveform(1))
    assert torch.equal(waveform(0), waveform(0))


def test_purposes_of_one_seed_share_no_numbers() -> None:
    drawn = {
        (purpose, seed): torch.rand(1000, generator=stream(purpose, seed)).numpy()
        for purpose in ("waveform", "noise")
        for seed in (0, 1)
    }
    drawn |= {
        ("plain", seed): torch.rand(1000, generator=torch.Generator().manual_seed(seed)).numpy()
        for seed in (0, 1)
    }
    correlations = np.corrcoef(list(drawn.values()))
    assert np.abs(correlations - np.eye(len(drawn))).max() < 0.13  # four standard errors
    again = torch.rand(1000, generator=stream("noise", 1)).numpy()
    np.testing.assert_array_equal(again, drawn["noise", 1])


def test_nmse_is_1_for_the_mean_and_a_quarter_for_a_missed_sine() -> None:
    target = waveform(0)
    assert nmse(target, target) == 0
    assert nmse(target.mean().expand_as(target), target).item() == pytest.approx(1)
    t = torch.arange(LENGTH)[None, :, None]
    # Of period 80: what is left of it after its best fit is removed.
    basis = torch.cat([f(2 * math.pi * t / 80) for f in (torch.sin, torch.cos)], dim=-1)[0]
    sine = basis @ torch.linalg.lstsq(basis, target[0]).solution
    assert nmse(target - sine, target).item() == pytest.approx(0.25, abs=1e-4)


@pytest.mark.parametrize("d_hidden", [16, 24, 32, 64, 128])
def test_networks_have_one_number_of_parameters(d_hidden: int) -> None:
    counts = {
        network: sum(p.numel() for p in make_network(network, size, seed=0).parameters())
        for network, size in matched_sizes(d_hidden).items()
    }
    assert set(counts) == set(NETWORKS)
    assert max(counts.values()) < 1.05 * min(counts.values())
    assert sum(p.numel() for p in TorchRecurrent("lstm", 5, 0).parameters()) == 4 * 30 + 5 + 1


def test_a_constant_input_of_1_is_an_lstms_forget_bias() -> None:
    """torch's own LSTM with biases, all zero but the forget gates', does the same."""
    ours = TorchRecurrent("lstm", 5, seed=3)
    theirs = torch.nn.LSTM(1, 5, batch_first=True)
    gates = ours.recurrent.weight_ih_l0.detach()
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(gates).view(4, 5)[1] = 0
        theirs.weight_hh_l0.copy_(ours.recurrent.weight_hh_l0)
        theirs.bias_ih_l0.zero_().view(4, 5)[1] = FORGET_BIAS
        theirs.bias_hh_l0.zero_()
        inputs = torch.ones(1, 30, 1)
        torch.testing.assert_close(ours.recurrent(inputs)[0], theirs(inputs)[0])
    assert gates.view(4, 5)[[0, 2, 3]].abs().max() < 1 / math.sqrt(5)  # as torch draws them


@pytest.mark.parametrize("n_steps", [1, 7, 40])
def test_multiplications_are_those_of_a_masked_loop(n_steps: int) -> None:
    model = ClockworkRNN(ClockworkConfig(1, 12, 1, periods=(1, 3, 4)))
    by_hand = 0
    for t in range(n_steps):
        for unit, period in enumerate(np.repeat((1, 3, 4), 4)):
            if t % period == 0:
                by_hand += int((model.W_H[unit] != 0).sum())
    assert multiply_adds(model, n_steps) == by_hand
    assert multiply_adds(TorchRecurrent("rnn", 6, 0), n_steps) == n_steps * 36
    assert multiply_adds(TorchRecurrent("lstm", 6, 0), n_steps) == n_steps * 4 * 36


def test_the_published_sizes_are_found() -> None:
    """Those of a public re-implementation: 64 units in 8 modules against 48 in an RNN."""
    assert matched_sizes(64)["rnn"] == 48


@pytest.mark.parametrize("network", NETWORKS)
def test_training_lowers_the_error_and_same_seed_is_same_bits(network: str) -> None:
    target = waveform(3)[:, :40]
    model, again = (make_network(network, 16, seed=2) for _ in range(2))
    with torch.no_grad():
        before = nmse(model(torch.ones_like(target)), target).item()
    state = torch.random.get_rng_state()
    left = fit_waveform(model, target, epochs=40, learning_rate=1e-2)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert left.shape == (41,)
    assert left[0] == pytest.approx(before)
    with torch.no_grad():
        assert left[-1] == pytest.approx(nmse(model(torch.ones_like(target)), target).item())
    assert left[-1] < 0.9 * before
    np.testing.assert_array_equal(left, fit_waveform(again, target, 40, learning_rate=1e-2))
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_best_rate_has_the_lowest_mean_on_other_seeds() -> None:
    left = np.full((2, len(LEARNING_RATES)), 0.5)
    left[:, 2] = 0.3, 0.4
    left[:, 3] = 0.0, 0.8  # best once, and not on average
    assert best_rate(left) == LEARNING_RATES[2]
    for seeds in (range(5), range(3, 9)):
        assert not set(tuning_seeds(seeds)) & set(seeds)
        assert len(tuning_seeds(seeds)) == 2
    tried = nmse_by_rate(waveform, "lstm", 6, epochs=5, seed=4)["nmse"]
    for nth, rate in enumerate(LEARNING_RATES):
        model = make_network("lstm", 6, seed=4)
        assert tried[nth] == fit_waveform(model, waveform(4), 5, rate)[-1]


def test_what_cannot_be_is_one_sentence() -> None:
    for d_hidden, message in (
        (60, "d_hidden 60 does not divide into 8 modules"),
        (8, "no rnn comes within 5% of the 53 parameters"),
    ):
        with pytest.raises(UserError, match=message):
            matched_sizes(d_hidden)


@pytest.mark.slow
def test_a_clockwork_rnn_draws_all_four_sines_where_an_rnn_misses_some() -> None:
    left = {
        (network, seed): fit_waveform(
            make_network(network, size, seed), waveform(seed), epochs=epochs, learning_rate=rate
        )[-1]
        # The RNN is given twice as long.
        for network, size, rate, epochs in (("clockwork", 64, 3e-2, 125), ("rnn", 48, 1e-3, 250))
        for seed in (0, 1)
    }
    assert max(left["clockwork", 0], left["clockwork", 1]) < 0.05
    assert min(left["rnn", 0], left["rnn", 1]) > 0.25  # less than one missed sine


@pytest.mark.slow
def test_an_lstm_learns_sooner_with_its_forget_gates_open() -> None:
    """Against gates as torch draws them, near one half (Jozefowicz et al. 2015)."""
    left = []
    for opened in (True, False):
        model = make_network("lstm", 24, seed=0)
        if not opened:
            with torch.no_grad():
                model.recurrent.weight_ih_l0[24:48] = 0.0
        left.append(fit_waveform(model, waveform(0), epochs=150, learning_rate=2e-2)[-1])
    assert left[0] < left[1] - 0.1
