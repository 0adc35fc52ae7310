"""Which clock tells position at which scale: a Clockwork RNN's modules beside RoPE's frequencies.

Both are fixed ladders of rates, one of periods (Koutnik et al. 2014, arXiv 1402.3511), the other of
angles per position (Su et al. 2021, arXiv 2104.09864). Position t at scale P is the pair
sin(2πt/P), cos(2πt/P); how well a linear map reads it is the R² of both together. That the ladders
resemble each other is an analogy, and the numbers here say how far it goes.
"""

from collections.abc import Sequence

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from experiments.papers.koutnik2014.waveforms import LENGTH, PERIODS, fit_waveform, stream, waveform
from nope_interp.errors import UserError
from nope_interp.models.clockwork import POWERS_OF_TWO, ClockworkConfig, ClockworkRNN
from nope_interp.models.config import TransformerConfig
from nope_interp.models.encodings import RotaryPositions
from probes.estimators.ridge import RidgeRegressor

# A ladder as the clocks': each wavelength is twice the one before it, from the 2π that all rotary
# ladders start at to the 101 that turns three times in a waveform's 320 steps.
ROTARY = TransformerConfig(1, 10, 1, 1, LENGTH, positions="rotary", rotary_base=32.0)
WAVELENGTHS = tuple(2 * np.pi * 2**k for k in range(5))
"""Of the five rotary frequencies, in positions."""
SCALES = tuple(sorted({*POWERS_OF_TWO[1:], *PERIODS, *WAVELENGTHS}))
"""In time steps: the clocks' periods, the waveform's and the rotary wavelengths.

Over 320 steps a rate tells a scale only where the two differ by less than one turn in them, so a
grid that left one ladder's scales out would show that ladder to tell nothing.
"""
_FEWEST = 8  # sequences, to hold some out


def phases(n_steps: int, scales: Sequence[int | float]) -> Float[np.ndarray, "time two_scale"]:
    """sin(2πt/P) for every scale P, then cos(2πt/P) for every scale.

    Raises:
        UserError: for no scale, for scales below 2, which faster turns pass for, and for scales of
            less than two turns, which a slow drift passes for.
    """
    if not len(scales) or min(scales) < 2 or max(scales) > n_steps / 2:
        raise UserError(
            f"the scales are {tuple(scales)}: give time steps from 2 to {n_steps / 2:g}, for two "
            f"turns or more."
        )
    angles = 2 * np.pi * np.arange(n_steps)[:, None] / np.asarray(scales)
    return np.concatenate((np.sin(angles), np.cos(angles)), axis=1)


def noisy_inputs(
    n_sequences: int, n_steps: int, *, spread: float = 0.1, seed: int = 0
) -> Float[Tensor, "sequence time 1"]:
    """The constant input 1 of a waveform, with normal noise of standard deviation `spread`."""
    noise = torch.randn(n_sequences, n_steps, 1, generator=stream("noise", seed))
    return 1 + spread * noise


def clock_decoding(
    model: ClockworkRNN,
    inputs: Float[Tensor, "sequence time d_in"],
    scales: Sequence[int | float] = SCALES,
) -> Float[np.ndarray, "module scale"]:
    """R² of a ridge regression of the phase of position at each scale on each module's states.

    It is fitted on the first three quarters of the sequences and scored on the rest. A module of
    period T cannot tell times between two ticks apart: at scales that divide T its R² is at most 0,
    over sequences of whole periods. Whether it tells longer scales depends on its weights, and on
    inputs whose mean is not 0: W_H and tanh are odd, so that without an offset its mean state, all
    that a linear map reads of position, is 0 at every time.

    Raises:
        UserError: for fewer than 8 sequences, inputs that the model refuses, or wrong scales.
    """
    n_sequences, n_steps = inputs.shape[:2]
    if n_sequences < _FEWEST:
        raise UserError(
            f"there are {n_sequences} sequences: give at least {_FEWEST}, to hold some out."
        )
    targets = phases(n_steps, scales)
    with torch.no_grad():
        cache = model.run_with_cache(inputs)[1]
    names = (f"modules.{module}.hook_hidden" for module in range(len(model.clocks)))
    return np.stack([_told(cache[name], targets) for name in names])


def held_noise(
    width: int, period: int, n_steps: int, generator: torch.Generator
) -> Float[Tensor, "time width"]:
    """White noise drawn anew at times 0, T, 2T, ... and held between: a clock that learned nothing.

    Args:
        width: units.
        period: T, in time steps.
        n_steps: how long it is.
        generator: what draws the noise.
    """
    ticks = torch.randn(-(-n_steps // period), width, generator=generator)
    return ticks.repeat_interleave(period, dim=0)[:n_steps]


def held_noise_decoding(
    width: int,
    n_draws: int,
    *,
    periods: Sequence[int] = POWERS_OF_TWO,
    scales: Sequence[int | float] = SCALES,
) -> Float[np.ndarray, "draw module scale"]:
    """`clock_decoding` of modules whose states are `held_noise`, for each draw of it.

    The sequences of a draw have the same states, as a trained module's nearly are: a linear map can
    read position off them, and what it reads at which scale comes from the clock alone.

    Args:
        width: units of a module.
        n_draws: how often all modules are drawn.
        periods: of the modules, in time steps.
        scales: of position, in time steps.

    Raises:
        UserError: for wrong scales.
    """
    targets = phases(LENGTH, scales)

    def told(draw: int) -> Float[np.ndarray, "module scale"]:
        generator = stream("held noise", draw)
        noise = (held_noise(width, period, LENGTH, generator) for period in periods)
        return np.stack([_told(one.expand(_FEWEST, -1, -1), targets) for one in noise])

    return np.stack([told(draw) for draw in range(n_draws)])


def rotary_decoding(
    config: TransformerConfig, n_steps: int = LENGTH, scales: Sequence[int | float] = SCALES
) -> Float[np.ndarray, "frequency scale"]:
    """How well each rotary frequency tells the phase of an offset at each scale, in closed form.

    Chunk k of a constant query, rotated by an offset of t positions, is a fixed rotation and
    stretch of (cos g_k t, sin g_k t). These are the features of a least-squares fit; they are the
    same in every sequence, so fitted and held-out R² are one.

    Raises:
        UserError: for a config without rotary positions, a context shorter than `n_steps`, or wrong
            scales.
    """
    if config.positions != "rotary":
        raise UserError(f"positions are {config.positions!r}: give a config with rotary ones.")
    if config.n_ctx < n_steps:
        raise UserError(f"n_ctx is {config.n_ctx}: {n_steps} positions need a longer context.")
    encoding = RotaryPositions(config)
    targets = phases(n_steps, scales)
    centred = targets - targets.mean(axis=0)

    def told(k: int) -> Float[np.ndarray, " scale"]:
        chunk = torch.stack((encoding.cos[:n_steps, k], encoding.sin[:n_steps, k]), dim=1)
        features = chunk.double().numpy()
        features = features - features.mean(axis=0)
        left = centred - features @ np.linalg.lstsq(features, centred)[0]
        return 1 - _pair_sums((left**2).sum(axis=0)) / _pair_sums((centred**2).sum(axis=0))

    return np.stack([told(k) for k in range(encoding.cos.shape[1])])


def clocks_beside_rotary(
    d_hidden: int,
    epochs: int,
    learning_rate: float,
    seed: int,
    *,
    n_sequences: int = 64,
) -> dict[str, np.ndarray]:
    """Train a Clockwork RNN on a waveform and lay its clocks beside a rotary head's frequencies.

    The network is read on `noisy_inputs`, before and after training. Ten to twenty seconds at its
    default size.

    Returns:
        `clock_decoding` of the network, "trained" and "random", before training; "rotary", with a
        row for each of `WAVELENGTHS`; and "nmse", what it leaves of its waveform, by step.
    """
    model = ClockworkRNN(ClockworkConfig(1, d_hidden, 1, seed=seed))
    inputs = noisy_inputs(n_sequences, LENGTH, seed=seed)
    random = clock_decoding(model, inputs)
    left = fit_waveform(model, waveform(seed), epochs, learning_rate)
    trained = clock_decoding(model, inputs)
    return {"trained": trained, "random": random, "rotary": rotary_decoding(ROTARY), "nmse": left}


def _told(
    states: Float[Tensor, "sequence time width"], targets: Float[np.ndarray, "time two_scale"]
) -> Float[np.ndarray, " scale"]:
    """R² on the last quarter of the sequences of a map fitted on the others."""
    errors = _squared_errors(states, targets, len(states) * 3 // 4).mean(axis=0)
    return 1 - errors / _pair_sums(np.square(targets - targets.mean(axis=0)).sum(axis=0))


def _squared_errors(
    states: Float[Tensor, "sequence time width"],
    targets: Float[np.ndarray, "time two_scale"],
    n_fit: int,
) -> Float[np.ndarray, "scored scale"]:
    """Squared errors of held-out sequences, summed over time and over sine and cosine."""
    to_fit, held_out = (
        rearrange(part, "sequence time width -> (sequence time) width")
        for part in np.split(states.double().cpu().numpy(), [n_fit])
    )
    predicted = RidgeRegressor().fit(to_fit, np.tile(targets, (n_fit, 1))).predict(held_out)
    by_sequence = rearrange(predicted, "(sequence time) p -> sequence time p", time=len(targets))
    return _pair_sums(np.square(by_sequence - targets).sum(axis=1))


def _pair_sums(values: Float[np.ndarray, "*rows two_scale"]) -> Float[np.ndarray, "*rows scale"]:
    """What belongs to a scale's sine plus what belongs to its cosine."""
    sines, cosines = np.split(values, 2, axis=-1)
    return sines + cosines
