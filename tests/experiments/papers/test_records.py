"""Records of sea temperature have their year, and what is held out of them stays held out."""

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.papers.koutnik2014 import records
from experiments.papers.koutnik2014.records import (
    MONTHS_A_YEAR,
    N_RECORDS,
    REGIONS,
    SPAN,
    fit_record,
    fitted_months,
    month_means,
    onward_error,
    record,
    sea_temperatures,
)
from experiments.papers.koutnik2014.waveforms import LENGTH, N_TUNING_SEEDS, nmse, tuning_seeds


def test_the_temperatures_are_monthly_means_with_a_years_period() -> None:
    months = sea_temperatures()
    assert months.shape == (2 * SPAN, len(REGIONS))
    assert SPAN - LENGTH == 46  # as the claims have it
    assert ((months > 15) & (months < 32)).all()
    # In whole years the year is by far the strongest rate off the coast of Peru.
    power = np.abs(np.fft.rfft(months[:, 0] - months[:, 0].mean())) ** 2
    assert power.argmax() == len(months) // MONTHS_A_YEAR
    assert power.max() > 0.5 * power.sum()
    # Niño 3.4 lies half in Niño 3 and half in Niño 4.
    mixed = months[:, 1:3].mean(axis=1)
    assert np.corrcoef(months[:, 3], mixed)[0, 1] > 0.95


def test_records_are_eight_and_share_no_month() -> None:
    spans = {seed: record(seed)[0, :, 0].double().numpy() for seed in range(8)}
    for seed, months in spans.items():
        assert months.shape == (SPAN,)
        assert months[:LENGTH].mean() == pytest.approx(0, abs=1e-5)
        assert months[:LENGTH].std() == pytest.approx(1, abs=1e-5)
        raw = sea_temperatures()[:, seed % 4]
        correlations = [np.corrcoef(months, raw[start : start + SPAN])[0, 1] for start in (0, SPAN)]
        assert correlations[seed // 4] == pytest.approx(1)
        assert correlations[1 - seed // 4] < 0.95
    assert torch.equal(record(8), record(0))
    for first in range(9):
        tested = range(first, first + N_RECORDS - N_TUNING_SEEDS)
        every = [seed % N_RECORDS for seed in (*tested, *tuning_seeds(tested))]
        assert sorted(every) == list(range(N_RECORDS))
    assert torch.equal(fitted_months(3), record(3)[:, :LENGTH])


@pytest.mark.parametrize("seed", [0, 6])
def test_the_onward_error_is_1_for_the_mean_and_that_of_months_is_pandas(seed: int) -> None:
    months = record(seed)
    assert onward_error(months, months) == 0
    assert onward_error(torch.zeros_like(months), months) == 1
    table = pd.DataFrame({"value": months[0, :, 0].double(), "month": np.arange(SPAN) % 12})
    guessed = table["month"].map(table[:LENGTH].groupby("month")["value"].mean())
    later = table["value"][LENGTH:]
    expected = ((guessed[LENGTH:] - later) ** 2).sum() / (later**2).sum()
    assert month_means(seed) == pytest.approx(expected, rel=1e-4)


def test_what_is_held_out_is_not_learnt_from(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fit_record("lstm", 6, epochs=5, learning_rate=1e-2, seed=1)
    other = sea_temperatures().copy()
    other[LENGTH:SPAN] += 1.0
    monkeypatch.setattr(records, "sea_temperatures", lambda: other)
    again = fit_record("lstm", 6, epochs=5, learning_rate=1e-2, seed=1)
    np.testing.assert_array_equal(found["nmse"], again["nmse"])
    assert found["onward"] != again["onward"]
    assert found["nmse"][-1] < found["nmse"][0]


def test_a_network_that_goes_on_is_the_one_that_was_fitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = []

    def kept(outputs: torch.Tensor, months: torch.Tensor) -> float:
        drawn.append((outputs, months))
        return 0.0

    monkeypatch.setattr(records, "onward_error", kept)
    found = fit_record("clockwork", 16, epochs=3, learning_rate=1e-2, seed=2)
    ((outputs, months),) = drawn
    left = nmse(outputs[:, :LENGTH], months[:, :LENGTH]).item()
    assert left == pytest.approx(found["nmse"][-1], rel=1e-5)
