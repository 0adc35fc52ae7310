"""Waveforms are what they say, networks are of one size, and training tells them apart."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.waveforms import (
    LENGTH,
    NETWORKS,
    PERIODS,
    TorchRecurrent,
    fit_waveform,
    make_network,
    matched_sizes,
    nmse,
    nmse_by_network,
    waveform,
    waveform_comparison,
)
from nope_interp.errors import UserError


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


def test_nmse_is_1_for_the_mean_and_a_quarter_for_a_missed_sine() -> None:
    target = waveform(0)
    assert nmse(target, target) == 0
    assert nmse(target.mean().expand_as(target), target).item() == pytest.approx(1)
    t = torch.arange(LENGTH)[None, :, None]
    # Of period 80: what is left of it after its best fit is removed.
    basis = torch.cat([f(2 * math.pi * t / 80) for f in (torch.sin, torch.cos)], dim=-1)[0]
    sine = basis @ torch.linalg.lstsq(basis, target[0]).solution
    assert nmse(target - sine, target).item() == pytest.approx(0.25, abs=1e-4)


@pytest.mark.parametrize("d_hidden", [32, 64, 128])
def test_networks_have_one_number_of_parameters(d_hidden: int) -> None:
    counts = {
        network: sum(p.numel() for p in make_network(network, size, seed=0).parameters())
        for network, size in matched_sizes(d_hidden).items()
    }
    assert set(counts) == set(NETWORKS)
    assert max(counts.values()) < 1.05 * min(counts.values())
    assert sum(p.numel() for p in TorchRecurrent("lstm", 5, 0).parameters()) == 4 * 30 + 5 + 1


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
    after = fit_waveform(model, target, epochs=40, learning_rate=1e-2)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert after < 0.9 * before
    assert after == fit_waveform(again, target, epochs=40, learning_rate=1e-2)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_comparison_is_a_row_for_each_network_and_seed() -> None:
    rows = waveform_comparison(n_seeds=2, epochs=2, d_hidden=32, show_progress=False)
    assert list(rows) == ["network", "seed", "d_hidden", "n_parameters", "epochs", "nmse"]
    assert set(zip(rows["network"], rows["seed"], strict=True)) == {
        (network, seed) for network in NETWORKS for seed in (0, 1)
    }
    assert rows["nmse"].between(0.5, 3).all()  # two epochs teach nothing
    again = waveform_comparison(n_seeds=2, epochs=2, d_hidden=32, show_progress=False)
    pd.testing.assert_frame_equal(rows, again)


def test_intervals_are_the_bootstrap_of_seeds() -> None:
    values = np.random.default_rng(0).gamma(2, size=40)
    rows = pd.DataFrame({"network": "rnn", "nmse": values})
    rows = pd.concat((rows, pd.DataFrame({"network": "lstm", "nmse": values / 10})))
    best, worst = nmse_by_network(rows).to_dict("records")
    assert (best["network"], worst["network"]) == ("lstm", "rnn")
    assert worst["nmse"] == pytest.approx(values.mean())
    assert (worst["chance"], worst["n"]) == (1, 40)
    normal = 1.96 * values.std(ddof=1) / math.sqrt(40)
    assert worst["ci_high"] - worst["ci_low"] == pytest.approx(2 * normal, rel=0.2)
    assert worst["ci_low"] < values.mean() < worst["ci_high"]


def test_what_cannot_be_is_one_sentence() -> None:
    for arguments, message in (
        ({"n_seeds": 1}, "n_seeds is 1: give at least 2"),
        ({"epochs": 0}, "epochs is 0: give at least 1"),
        ({"d_hidden": 60}, "d_hidden 60 does not divide into 8 modules"),
        ({"d_hidden": 8}, "no rnn comes within 5% of the 53 parameters"),
    ):
        with pytest.raises(UserError, match=message):
            waveform_comparison(**arguments, show_progress=False)
    with pytest.raises(UserError, match="unknown network 'lstn': did you mean 'lstm'"):
        make_network("lstn", 8, 0)


@pytest.mark.slow
def test_a_clockwork_rnn_draws_all_four_sines_where_an_rnn_misses_some() -> None:
    rows = waveform_comparison(n_seeds=2, epochs=250, show_progress=False)
    left = rows.set_index("network")["nmse"]
    assert left["clockwork"].max() < 0.05
    assert left["rnn"].min() > 0.25  # less than one missed sine
    assert left["lstm"].min() > 0.25
