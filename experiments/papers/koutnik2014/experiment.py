"""Koutnik et al. 2014 (arXiv 1402.3511): a Clockwork RNN against an RNN and an LSTM, its clocks."""

from functools import partial

import numpy as np
from jaxtyping import Float, Real
from scipy.stats import spearmanr

from experiments.papers.config import ReproduceConfig
from experiments.papers.koutnik2014.clocks import SCALES, WAVELENGTHS, clocks_beside_rotary
from experiments.papers.koutnik2014.waveforms import (
    LEARNING_RATES,
    LENGTH,
    NETWORKS,
    best_rate,
    fit_waveform,
    make_network,
    matched_sizes,
    multiply_adds,
    nmse_by_rate,
    tuning_seeds,
    waveform,
)
from experiments.results.findings import (
    Array,
    Figure,
    Findings,
    Panel,
    exactly,
    log_spaced,
    over_seeds,
    panel,
)
from experiments.runs.cells import Cells
from nope_interp.models.clockwork import ClockworkRNN
from nope_interp.models.clockwork_config import POWERS_OF_TWO, ClockworkConfig

_NAMES = {"clockwork": "Clockwork RNN", "rnn": "RNN", "lstm": "LSTM"}
_MODULES = (1, 2, 4, 8)
_CHANCE_DRAWS = 2000
_CONSTANT = {"the best constant": 1}  # and its NMSE


def reproduce(config: ReproduceConfig, cells: Cells, device: str) -> Findings:
    """What each network leaves of a waveform, what a step costs, and which clock tells what."""
    d_hidden = config.scaled("width", 64, multiple_of=8, least=16)
    epochs = config.scaled("training", 800)
    sizes = matched_sizes(d_hidden)
    tried = cells.side_by_side(
        {network: partial(_tried, network, sizes[network], epochs) for network in NETWORKS},
        tuning_seeds(config.seeds),
        title=lambda network: f"{_NAMES[network]}, learning rates",
    )
    rates = {network: best_rate(left["nmse"]) for network, left in tried.items()}
    found = cells.side_by_side(
        {"clockwork": partial(_clocks, d_hidden, epochs, rates["clockwork"])}
        | {
            peer: partial(_fitted, peer, sizes[peer], epochs, rates[peer])
            for peer in ("rnn", "lstm")
        },
        config.seeds,
        title=_NAMES.__getitem__,
    )
    clocks = found["clockwork"]
    curves = {network: of_network["nmse"] for network, of_network in found.items()}
    nmse = {network: left[:, -1] for network, left in curves.items()}
    weights, work = _costs(d_hidden)
    periods = np.array(POWERS_OF_TWO)
    claims = {
        "parameters": exactly(weights[-1:]),
        "work": exactly(work[-1:]),
        "against-rnn": over_seeds(nmse["clockwork"] - nmse["rnn"]),
        "against-lstm": over_seeds(nmse["clockwork"] - nmse["lstm"]),
        "clocks": over_seeds(_order_above_controls(periods, clocks["trained"], clocks["random"])),
        "rotary": exactly(_order(np.array(WAVELENGTHS), clocks["rotary"][:1])),
    }
    return Findings(
        claims,
        (
            _cost_figure(weights, work),
            _waveforms(nmse),
            _learning(curves, epochs),
            _tuning(tried),
            _beside_rotary(clocks),
        ),
        setting=f"{len(config.seeds)} waveforms of {LENGTH} samples, {d_hidden} clocked units "
        f"against {sizes['rnn']} of an RNN and {sizes['lstm']} of an LSTM, {epochs} steps of Adam "
        "at " + ", ".join(f"{rates[n]:g} ({_NAMES[n]})" for n in NETWORKS),
        notes=(
            "NMSE is that of the fit after the same number of steps, not of a continuation; 1 is "
            "the best constant, and each sine that is missed leaves a quarter.",
            "The likeness of clocks and rotary frequencies is an analogy. A module that tells a "
            "long scale as well before training as after it does so by drifting off from its first "
            "state, not by turning as a rotary frequency does.",
        ),
    )


def _tried(network: str, size: int, epochs: int, seed: int) -> dict[str, Array]:
    return {"nmse": nmse_by_rate(network, size, epochs, seed)}


def _fitted(network: str, size: int, epochs: int, rate: float, seed: int) -> dict[str, Array]:
    model = make_network(network, size, seed)
    return {"nmse": fit_waveform(model, waveform(seed), epochs, rate)}


def _clocks(d_hidden: int, epochs: int, learning_rate: float, seed: int) -> dict[str, Array]:
    both = clocks_beside_rotary(
        d_hidden=d_hidden, epochs=epochs, learning_rate=learning_rate, seed=seed
    )
    return {
        "trained": both.trained.r2,
        "random": both.random.r2,
        "rotary": both.rotary,
        "nmse": both.nmse,
    }


def _costs(d_hidden: int) -> tuple[Float[Array, " modules"], Float[Array, " modules"]]:
    """Recurrent weights, and multiplications with them, as shares of an RNN's of equal width.

    Counted on models whose `_MODULES` modules have periods 1, 2, 4, ...
    """
    full = make_network("rnn", d_hidden, seed=0)
    weights, work = [], []
    for n_modules in _MODULES:
        periods = POWERS_OF_TWO[:n_modules]
        model = ClockworkRNN(ClockworkConfig(1, d_hidden, 1, periods=periods))
        weights.append(sum(clock.W_H.numel() for clock in model.clocks) / d_hidden**2)
        work.append(multiply_adds(model, LENGTH) / multiply_adds(full, LENGTH))
    return np.array(weights), np.array(work)


def _cost_figure(weights: Float[Array, " modules"], work: Float[Array, " modules"]) -> Figure:
    at = np.arange(len(_MODULES))
    predicted_weights = np.array([1 / 2 + 1 / (2 * g) for g in _MODULES])
    predicted_work = np.array([sum((g - i) / g**2 / 2**i for i in range(g)) for g in _MODULES])
    peer = {"an RNN of as many units": 1}
    return Figure(
        "cost",
        "What a Clockwork RNN saves",
        "Share of a simple RNN with as many hidden units, by the number g of equal modules of "
        f"periods 1, 2, 4, ...; multiplications in the recurrence, mean over {LENGTH} steps. "
        "Counted, with no interval to have.",
        "modules",
        "share",
        (
            panel(
                "recurrent weights",
                at,
                chance=peer,
                predicted={"1/2 + 1/(2g)": predicted_weights},
                measured={"counted": weights},
            ),
            panel(
                "multiplications per step",
                at,
                chance=peer,
                predicted={"sum over i of (g - i) / (g² 2ⁱ)": predicted_work},
                measured={"counted": work},
            ),
        ),
        claims=("parameters", "work"),
        ticks=tuple(map(str, _MODULES)),
    )


def _waveforms(nmse: dict[str, Float[Array, " seed"]]) -> Figure:
    at = np.arange(len(nmse))
    left = np.stack(list(nmse.values()), axis=1)
    return Figure(
        "waveforms",
        "What is left of a waveform",
        "After as many steps, with as many parameters; bars are 95% intervals over seeds. The "
        "second panel is the difference that the claims are about.",
        "network",
        "NMSE",
        (
            panel("NMSE", at, chance=_CONSTANT, measured={"mean over seeds": left}),
            panel(
                "Clockwork RNN less this network",
                at,
                chance={"no difference": 0},
                measured={"mean over seeds": nmse["clockwork"][:, None] - left},
            ),
        ),
        claims=("against-rnn", "against-lstm"),
        ticks=tuple(_NAMES[name] for name in nmse),
    )


def _learning(curves: dict[str, Float[Array, "seed step"]], epochs: int) -> Figure:
    steps = log_spaced(epochs)
    measured = {_NAMES[network]: left[:, steps] for network, left in curves.items()}
    return Figure(
        "learning",
        "How soon it is learnt",
        "NMSE by the number of steps, mean over seeds with its 95% interval. A curve that still "
        "falls at the end belongs to a network that more steps would help.",
        "steps",
        "NMSE",
        (panel("all networks", steps, chance=_CONSTANT, measured=measured),),
        log="x",
    )


def _tuning(tried: dict[str, dict[str, Array]]) -> Figure:
    return Figure(
        "tuning",
        "Which learning rate each network is given",
        "NMSE by learning rate on the waveforms and weights of the tuning seeds, which no claim is "
        "tested on; each network has the rate of the lowest mean.",
        "learning rate",
        "NMSE",
        tuple(
            panel(
                _NAMES[network],
                np.array(LEARNING_RATES),
                chance=_CONSTANT,
                measured={f"tuning seed {i}": row for i, row in enumerate(left["nmse"], start=1)},
            )
            for network, left in tried.items()
        ),
        log="x",
    )


def _beside_rotary(clocks: dict[str, Array]) -> Figure:
    at = np.arange(len(SCALES))

    def rows(title: str, r2: Float[Array, "row scale"], names: list[str]) -> Panel:
        return panel(title, at, measured=dict(zip(names, r2, strict=True)))

    periods = [f"period {period}" for period in POWERS_OF_TWO]
    wavelengths = [f"wavelength {wavelength:.3g}" for wavelength in WAVELENGTHS]
    return Figure(
        "clocks",
        "Which clock tells which scale",
        "R² of the phase of position at each scale, in time steps: from each module's state, "
        "before and after training, mean over seeds, and from each rotary frequency. The scales "
        "are the clocks' periods, the waveform's (8, 32, 80, 160) and the rotary wavelengths.",
        "scale, time steps",
        "R²",
        (
            rows("modules, trained", clocks["trained"].mean(axis=0), periods),
            rows("modules, before training", clocks["random"].mean(axis=0), periods),
            rows("rotary frequencies", clocks["rotary"][0], wavelengths),
        ),
        claims=("clocks", "rotary"),
        ticks=tuple(f"{scale:.3g}" for scale in SCALES),
        heat_about=0.0,
    )


def _order_above_controls(
    periods: Real[Array, " module"],
    trained: Float[Array, "seed module scale"],
    random: Float[Array, "seed module scale"],
) -> Float[Array, " seed"]:
    """By how much `_order` of trained modules exceeds the larger of its two controls.

    What ticks every T steps tells scales from 2T on (Nyquist): slow modules are left with long
    scales, whatever they learn. The first control is therefore the mean order of modules that pick
    one of the scales in their reach at random; the second is the same network before training.
    """
    reach = np.array(SCALES) >= 2 * periods[:, None]
    # A module that no scale is in reach of is left out.
    sees = reach.any(axis=1)
    drawn = np.random.default_rng(0).random((_CHANCE_DRAWS, *reach.shape))
    told, untold, chance = (
        _order(periods[sees], np.where(reach, r2, -np.inf)[:, sees])
        for r2 in (trained, random, drawn)
    )
    return told - np.maximum(untold, chance.mean())


def _order(
    rates: Real[Array, " clock"], r2: Float[Array, "row clock scale"]
) -> Float[Array, " row"]:
    """Spearman's correlation, over clocks, of period or wavelength and the scale told best."""
    told = np.array(SCALES)[r2.argmax(axis=-1)]
    # Where all clocks tell one scale best, their order says nothing.
    return np.array([spearmanr(rates, row).statistic if len(set(row)) > 1 else 0.0 for row in told])
