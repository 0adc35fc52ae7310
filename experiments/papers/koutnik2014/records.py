"""Real periodic series beside the sums of sines: monthly temperatures of the equatorial Pacific.

They have the year's period and the slower, irregular one of El Niño. The networks, their sizes and
their training are those of the waveforms. Of each record the months that follow are held out.
"""

from functools import cache
from importlib.resources import files

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from experiments.papers.koutnik2014.waveforms import LENGTH, fit_waveform, make_network

MONTHS_A_YEAR = 12
REGIONS = ("Niño 1+2", "Niño 3", "Niño 4", "Niño 3.4")
N_RECORDS = 2 * len(REGIONS)
SPAN = 366
"""In months, of a record: half of those from 1950 to 2010."""


@cache
def sea_temperatures() -> Float[np.ndarray, "month region"]:
    """Monthly means in degrees Celsius from January 1950 to December 2010, region by region.

    Where they come from stands in the file.
    """
    file = files("experiments.papers") / "koutnik2014" / "sea_temperatures.csv"
    with file.open(encoding="utf-8") as lines:
        return np.loadtxt(lines, delimiter=",")


def record(seed: int) -> Float[Tensor, "1 time 1"]:
    """One region over half of the years: the four of the first half, then those of the second.

    There are eight; further seeds begin again. The first `LENGTH` months have mean 0 and standard
    deviation 1.
    """
    half, region = divmod(seed % N_RECORDS, len(REGIONS))
    months = sea_temperatures()[half * SPAN : (half + 1) * SPAN, region]
    fitted = months[:LENGTH]
    scaled = torch.tensor((months - fitted.mean()) / fitted.std(), dtype=torch.float32)
    return rearrange(scaled, "time -> 1 time 1")


def fitted_months(seed: int) -> Float[Tensor, "1 time 1"]:
    """What a network is trained on: the record without the months that are held out."""
    return record(seed)[:, :LENGTH]


def onward_error(drawn: Float[Tensor, "1 time 1"], months: Float[Tensor, "1 time 1"]) -> float:
    """Mean squared error over the held-out months, as a share of the fitted months' mean's."""
    held_out = months[:, LENGTH:]
    return float(F.mse_loss(drawn[:, LENGTH:], held_out) / held_out.square().mean())


def month_means(seed: int) -> float:
    """`onward_error` of guessing each month by the fitted ones of its name."""
    months = record(seed)
    fitted = months[0, :LENGTH, 0]
    means = torch.stack([fitted[m::MONTHS_A_YEAR].mean() for m in range(MONTHS_A_YEAR)])
    return onward_error(means[torch.arange(SPAN) % MONTHS_A_YEAR][None, :, None], months)


def fit_record(
    network: str, d_hidden: int, epochs: int, learning_rate: float, seed: int
) -> dict[str, np.ndarray]:
    """Train a network on a record's first months and let it run on over the others.

    Returns:
        "nmse", what it leaves of the first months, by step; and "onward", its `onward_error`.
    """
    model, months = make_network(network, d_hidden, seed), record(seed)
    left = fit_waveform(model, fitted_months(seed), epochs, learning_rate)
    with torch.no_grad():
        drawn = model(torch.ones_like(months))
    return {"nmse": left, "onward": np.array(onward_error(drawn, months))}
