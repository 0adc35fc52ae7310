"""Three recurrent networks with one number of parameters draw a waveform from a constant input.

After the sequence generation of Koutnik et al. 2014 (arXiv 1402.3511), with synthetic waveforms
in place of audio: 320 samples of a sum of sines. What the paper reports there, NMSE 0.46
for a simple RNN, 0.04 for an LSTM and 0.007 for a Clockwork RNN, is recalled, unverified and on
other data: it is no number to reproduce.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from experiments.runs.workers import torch_threads
from nope_interp.errors import UserError
from nope_interp.models.clockwork import ClockworkConfig, ClockworkRNN

PERIODS = (8, 32, 80, 160)
LENGTH = 320
NETWORKS = ("clockwork", "rnn", "lstm")
# The parameter counts of the three differ by less than this share.
TOLERANCE = 0.05
# One optimiser, schedule and clipping for all. Adam, since under SGD with momentum 0.95, at rates
# from 1e-3 to 3e-1, RNN and LSTM stay above NMSE 0.97, while the Clockwork RNN learns under both.
# Each network has the best of these rates, on waveforms and weights that a comparison does not use.
LEARNING_RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
N_TUNING_SEEDS = 2
# Of an LSTM's forget gates: a cell that starts near sigmoid(2) = 0.88 keeps what it holds for some
# eight steps, one that starts near 1/2 for two, and is slow to learn 320 of them.
FORGET_BIAS = 2.0
CLIP = 1.0


class TorchRecurrent(nn.Module):
    """torch's RNN or LSTM from one number to one number, with a linear read-out.

    Without hidden biases, as in `ClockworkRNN`: the constant input stands in for them. Weights are
    drawn as torch draws them, from `seed`; those of an LSTM's input into its forget gates are then
    set to `FORGET_BIAS`, which they are where the input is 1.
    """

    def __init__(self, network: str, d_hidden: int, seed: int) -> None:
        super().__init__()
        layer = {"rnn": nn.RNN, "lstm": nn.LSTM}[network]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.recurrent = layer(1, d_hidden, bias=False, batch_first=True)
            self.readout = nn.Linear(d_hidden, 1)
        if network == "lstm":  # torch's order of gates: input, forget, cell, output
            nn.init.constant_(self.recurrent.weight_ih_l0[d_hidden : 2 * d_hidden], FORGET_BIAS)

    def forward(self, inputs: Float[Tensor, "batch time 1"]) -> Float[Tensor, "batch time 1"]:
        return self.readout(self.recurrent(inputs)[0])


def stream(purpose: str, seed: int) -> torch.Generator:
    """A generator of its own for each purpose.

    One seed serves for a waveform, a network's weights and its noise: without this they would be
    made of the same uniform numbers.
    """
    entropy = np.random.SeedSequence((seed, *purpose.encode()))
    return torch.Generator().manual_seed(int(entropy.generate_state(1, np.uint64)[0]))


def waveform(seed: int) -> Float[Tensor, "1 time 1"]:
    """A sum of four sines of periods 8, 32, 80 and 160, amplitude 1, and phases drawn by `seed`."""
    phases = 2 * math.pi * torch.rand(len(PERIODS), generator=stream("waveform", seed))
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
    wanted = ClockworkConfig(1, d_hidden, 1).n_parameters
    counts: dict[str, Callable[[int], int]] = {
        "rnn": lambda n: n * n + 2 * n + 1,
        "lstm": lambda n: 4 * n * n + 5 * n + 1,
    }
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
    """An untrained network, one of `NETWORKS`, from one number to one number."""
    if network == "clockwork":
        return ClockworkRNN(ClockworkConfig(1, d_hidden, 1, seed=seed))
    return TorchRecurrent(network, d_hidden, seed)


def multiply_adds(network: nn.Module, n_steps: int) -> int:
    """Multiplications in the recurrence over `n_steps`: weights from hidden units to hidden units.

    Every weight of an RNN or an LSTM is used at every step; those of a Clockwork RNN's module at
    its active steps only, 0, T, 2T, ...
    """
    if isinstance(network, ClockworkRNN):
        return sum(math.ceil(n_steps / c.period) * c.W_H.numel() for c in network.clocks)
    return n_steps * sum(p.numel() for name, p in network.named_parameters() if "weight_hh" in name)


def fit_waveform(
    model: nn.Module, target: Float[Tensor, "1 time 1"], epochs: int, learning_rate: float
) -> Float[np.ndarray, " step"]:
    """Train a network in place on one waveform, one Adam step an epoch.

    The learning rate falls to zero along a cosine, and the gradient's norm is clipped to 1.

    Returns:
        the NMSE before the first step and after each one, `epochs` + 1 numbers.
    """
    inputs, variance = torch.ones_like(target), float(target.var(correction=0))
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    left = []
    # A few dozen units gain nothing from a second thread and wait for it where the cores are busy:
    # training was seen to take twenty times as long.
    with torch_threads(1):
        for _ in range(epochs):
            loss = F.mse_loss(model(inputs), target)
            left.append(loss.item() / variance)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            left.append(float(nmse(model(inputs), target)))
    return np.array(left)


def nmse_by_rate(
    sequence: Callable[[int], Tensor], network: str, d_hidden: int, epochs: int, seed: int
) -> dict[str, Float[np.ndarray, " rate"]]:
    """What fresh networks, one for each of `LEARNING_RATES`, leave of the sequence of `seed`:
    "nmse"."""
    fits = (
        fit_waveform(make_network(network, d_hidden, seed), sequence(seed), epochs, rate)
        for rate in LEARNING_RATES
    )
    return {"nmse": np.array([left[-1] for left in fits])}


def best_rate(left: Float[np.ndarray, "seed rate"]) -> float:
    """The learning rate whose mean NMSE over tuning seeds, from `nmse_by_rate`, is lowest."""
    return LEARNING_RATES[int(left.mean(axis=0).argmin())]


def tuning_seeds(seeds: range) -> range:
    """The seeds to choose a learning rate on: those that follow the seeds of a comparison."""
    return range(seeds.stop, seeds.stop + N_TUNING_SEEDS)
