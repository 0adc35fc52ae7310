"""Three recurrent networks with one number of parameters draw a waveform from a constant input.

After the sequence generation of Koutnik et al. 2014 (arXiv 1402.3511), with synthetic waveforms
in place of audio: 320 samples of a sum of sines. What the paper reports there, NMSE 0.46
for a simple RNN, 0.04 for an LSTM and 0.007 for a Clockwork RNN, is recalled, unverified and on
other data: it is no number to reproduce.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from tqdm import tqdm

from nope_interp.clockwork import ClockworkRNN
from nope_interp.clockwork_config import ClockworkConfig
from nope_interp.errors import UserError, unknown_name
from probes.controls import SequenceBootstrap

PERIODS = (8, 32, 80, 160)
LENGTH = 320
NETWORKS = ("clockwork", "rnn", "lstm")
# The parameter counts of the three differ by less than this share.
TOLERANCE = 0.05
# One optimiser, schedule and clipping for all. Adam, since under SGD with momentum 0.95, at rates
# from 1e-3 to 3e-1, RNN and LSTM stay above NMSE 0.97, while the Clockwork RNN learns under both.
# Each network has the best of at least five rates, a factor of three apart, on waveforms that a
# comparison does not use (seeds 100 to 102).
LEARNING_RATES = {"clockwork": 3e-2, "rnn": 1e-3, "lstm": 3e-3}
CLIP = 1.0


class TorchRecurrent(nn.Module):
    """torch's RNN or LSTM from one number to one number, with a linear read-out.

    Without hidden biases, as in `ClockworkRNN`: the constant input stands in for them. Weights are
    drawn as torch draws them, from `seed`.
    """

    def __init__(self, network: str, d_hidden: int, seed: int) -> None:
        super().__init__()
        layer = {"rnn": nn.RNN, "lstm": nn.LSTM}[network]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.recurrent = layer(1, d_hidden, bias=False, batch_first=True)
            self.readout = nn.Linear(d_hidden, 1)

    def forward(self, inputs: Float[Tensor, "batch time 1"]) -> Float[Tensor, "batch time 1"]:
        return self.readout(self.recurrent(inputs)[0])


def waveform(seed: int) -> Float[Tensor, "1 time 1"]:
    """A sum of four sines of periods 8, 32, 80 and 160, amplitude 1, and phases drawn by `seed`."""
    generator = torch.Generator().manual_seed(seed)
    phases = 2 * math.pi * torch.rand(len(PERIODS), generator=generator)
    t = torch.arange(LENGTH)[:, None]
    summed = torch.sin(2 * math.pi * t / torch.tensor(PERIODS) + phases).sum(dim=1)
    return rearrange(summed, "time -> 1 time 1")


def nmse(
    outputs: Float[Tensor, "batch time 1"], target: Float[Tensor, "batch time 1"]
) -> Float[Tensor, ""]:
    """Mean squared error as a share of the target's variance: 1 for the best constant.

    Of a waveform, each sine that is missed leaves a quarter.
    """
    return F.mse_loss(outputs, target) / target.var(correction=0)


def matched_sizes(d_hidden: int = 64) -> dict[str, int]:
    """Hidden units of each network, for as many parameters as a Clockwork RNN of `d_hidden` has.

    One input, one output and n hidden units make n² + 2n + 1 parameters in an RNN, 4n² + 5n + 1 in
    an LSTM.

    Raises:
        UserError: where `d_hidden` is no multiple of the eight modules, or too small for the counts
            to come within 5% of each other.
    """
    wanted = ClockworkConfig(1, d_hidden, 1).n_recurrent + 2 * d_hidden + 1
    counts = {"rnn": lambda n: n * n + 2 * n + 1, "lstm": lambda n: 4 * n * n + 5 * n + 1}
    sizes = {"clockwork": d_hidden}
    for network, count in counts.items():
        sizes[network] = min(range(1, d_hidden + 1), key=lambda n: abs(count(n) - wanted))
        if abs(count(sizes[network]) - wanted) >= TOLERANCE * wanted:
            raise UserError(
                f"no {network} comes within {TOLERANCE:.0%} of the {wanted} parameters of a "
                f"Clockwork RNN with {d_hidden} units: raise d_hidden."
            )
    return sizes


def make_network(network: str, d_hidden: int, seed: int) -> nn.Module:
    """An untrained network from one number to one number.

    Raises:
        UserError: for an unknown name.
    """
    if network not in NETWORKS:
        raise unknown_name("network", network, NETWORKS)
    if network == "clockwork":
        return ClockworkRNN(ClockworkConfig(1, d_hidden, 1, seed=seed))
    return TorchRecurrent(network, d_hidden, seed)


def fit_waveform(
    model: nn.Module,
    target: Float[Tensor, "1 time 1"],
    epochs: int,
    learning_rate: float,
    bar: tqdm | None = None,
) -> float:
    """Train a network in place on one waveform, one Adam step an epoch; the NMSE that it ends with.

    The learning rate falls to zero along a cosine, and the gradient's norm is clipped to 1.
    """
    with _one_thread():
        _descend(model, target, epochs, learning_rate, bar)
        with torch.no_grad():
            return float(nmse(model(torch.ones_like(target)), target))


def _descend(
    model: nn.Module,
    target: Float[Tensor, "1 time 1"],
    epochs: int,
    learning_rate: float,
    bar: tqdm | None,
) -> None:
    inputs = torch.ones_like(target)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        loss = F.mse_loss(model(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        if bar is not None:
            bar.update()


@contextmanager
def _one_thread() -> Iterator[None]:
    """While it is open, torch runs on one thread.

    Products of a few dozen units gain nothing from a second one, and where the cores are busy they
    wait for it: training was seen to take twenty times as long.
    """
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)


def waveform_comparison(
    n_seeds: int = 5, epochs: int = 800, d_hidden: int = 64, *, show_progress: bool = True
) -> pd.DataFrame:
    """What a Clockwork RNN, an RNN and an LSTM with as many parameters leave of a waveform.

    A seed is one waveform and one draw of each network's weights. The networks get the same number
    of steps, not of seconds, and the NMSE is that of the fit, not of a continuation: it says how
    soon a network comes to draw 320 samples, and not how well it would in the end. One to three
    minutes on two cores at its default size.

    Returns:
        a row per network and seed: network, seed, d_hidden, n_parameters, epochs, nmse.

    Raises:
        UserError: for fewer than two seeds, no epoch, or a size as `matched_sizes` does.
    """
    if n_seeds < 2:
        raise UserError(f"n_seeds is {n_seeds}: give at least 2, for an interval over seeds.")
    if epochs < 1:
        raise UserError(f"epochs is {epochs}: give at least 1.")
    sizes = matched_sizes(d_hidden)
    rows = []
    total = n_seeds * len(sizes) * epochs
    with tqdm(total=total, unit="epoch", disable=not show_progress) as bar:
        for seed in range(n_seeds):
            for network, size in sizes.items():
                bar.set_description(f"{network}, seed {seed}")
                model = make_network(network, size, seed)
                left = fit_waveform(model, waveform(seed), epochs, LEARNING_RATES[network], bar)
                rows.append(
                    {
                        "network": network,
                        "seed": seed,
                        "d_hidden": size,
                        "n_parameters": sum(p.numel() for p in model.parameters()),
                        "epochs": epochs,
                        "nmse": left,
                    }
                )
    return pd.DataFrame(rows)


def nmse_by_network(rows: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """The mean NMSE of each network with its 95% bootstrap interval over seeds, the best first.

    Args:
        rows: what `waveform_comparison` gave.
        seed: of the resampling.

    Returns:
        a row per network: network, nmse, ci_low, ci_high, chance (1, the best constant), n (seeds).
    """
    scores = []
    for network, of_network in rows.groupby("network", sort=False):
        bootstrap = SequenceBootstrap(seed=seed).update(of_network[["nmse"]].to_numpy())
        score = bootstrap.score("nmse", lambda means: means[..., 0], chance=1.0)
        scores.append(
            {
                "network": network,
                "nmse": score.value,
                "ci_low": score.ci_low,
                "ci_high": score.ci_high,
                "chance": score.chance,
                "n": score.n,
            }
        )
    return pd.DataFrame(scores).sort_values("nmse", ignore_index=True)
