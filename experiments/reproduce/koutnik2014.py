"""Koutnik et al. 2014 (arXiv 1402.3511): a Clockwork RNN against an RNN and an LSTM, its clocks."""

import numpy as np
from jaxtyping import Float
from scipy.stats import spearmanr

from experiments.clocks import SCALES, clocks_beside_rotary
from experiments.reproduce.config import ReproduceConfig
from experiments.reproduce.findings import (
    Cells,
    Figure,
    Findings,
    Measured,
    Panel,
    Series,
    curve,
    line,
    over_seeds,
)
from experiments.waveforms import (
    LEARNING_RATES,
    NETWORKS,
    fit_waveform,
    make_network,
    matched_sizes,
    waveform,
)
from nope_interp.clockwork_config import POWERS_OF_TWO

_NAMES = {"clockwork": "Clockwork RNN", "rnn": "RNN", "lstm": "LSTM"}
_CLOCK_SEEDS = 3
_CHANCE_DRAWS = 300


def reproduce(config: ReproduceConfig, cells: Cells, device: str) -> Findings:
    """What each network leaves of a waveform, and which clock tells which scale."""
    d_hidden = config.scaled("width", 64, multiple_of=8, least=32)
    epochs = config.scaled("training", 800)
    sizes = matched_sizes(d_hidden)

    def left(network: str, seed: int) -> dict[str, np.ndarray]:
        model = make_network(network, sizes[network], seed)
        nmse = fit_waveform(model, waveform(seed), epochs, LEARNING_RATES[network])
        return {"nmse": np.array(nmse)}

    nmse = {
        network: cells.per_seed(
            _NAMES[network],
            config.seeds,
            lambda seed, network=network: left(network, seed),  # type: ignore[misc]
        )["nmse"]
        for network in NETWORKS
    }
    clocks = cells.per_seed(
        "clocks",
        config.seeds[:_CLOCK_SEEDS],
        lambda seed: _clocks(d_hidden, epochs, seed),
    )
    claims = {
        "against-rnn": over_seeds(nmse["clockwork"] - nmse["rnn"]),
        "against-lstm": over_seeds(nmse["clockwork"] - nmse["lstm"]),
        "clocks": _rank_correlation(clocks["trained"]),
    }
    return Findings(
        claims,
        (_waveforms(nmse), _beside_rotary(clocks)),
        setting=f"{len(config.seeds)} waveforms of 320 samples, {d_hidden} clocked units against "
        f"{sizes['rnn']} of an RNN and {sizes['lstm']} of an LSTM, {epochs} steps of Adam",
        notes=(
            "NMSE is that of the fit after the same number of steps, not of a continuation; 1 is "
            "the best constant, and each sine that is missed leaves a quarter.",
            "The likeness of clocks and rotary frequencies is an analogy.",
        ),
    )


def _clocks(d_hidden: int, epochs: int, seed: int) -> dict[str, np.ndarray]:
    both = clocks_beside_rotary(d_hidden=d_hidden, epochs=epochs, seed=seed, show_progress=False)
    return {
        "trained": both.trained.r2,
        "random": both.random.r2,
        "rotary": both.rotary,
        "frequencies": both.frequencies,
    }


def _waveforms(nmse: dict[str, Float[np.ndarray, " seed"]]) -> Figure:
    at = np.arange(len(nmse))
    left = np.stack(list(nmse.values()), axis=1)
    difference = nmse["clockwork"][:, None] - left
    return Figure(
        "waveforms",
        "What is left of a waveform",
        "After as many steps, with as many parameters; bars are 95% intervals over seeds. The "
        "second panel is the difference that the claims are about.",
        "network",
        "NMSE",
        (
            Panel(
                "NMSE",
                (
                    line("the best constant", "chance", at, 1.0),
                    curve("mean over seeds", "measured", at, left),
                ),
            ),
            Panel(
                "Clockwork RNN less this network",
                (
                    line("no difference", "chance", at, 0.0),
                    curve("mean over seeds", "measured", at, difference),
                ),
            ),
        ),
        claims=("against-rnn", "against-lstm"),
        ticks=tuple(_NAMES[name] for name in nmse),
    )


def _beside_rotary(clocks: dict[str, np.ndarray]) -> Figure:
    at = np.arange(len(SCALES))

    def rows(r2: Float[np.ndarray, "row scale"], names: list[str]) -> tuple[Series, ...]:
        return tuple(line(name, "measured", at, row) for name, row in zip(names, r2, strict=True))

    periods = [f"period {period}" for period in POWERS_OF_TWO]
    frequencies = [f"{g:.3g} radians" for g in clocks["frequencies"][0]]
    return Figure(
        "clocks",
        "Which clock tells which scale",
        "R² of the phase of position at each scale, in time steps: from each module's state, "
        "before and after training, mean over seeds, and from each rotary frequency.",
        "scale, time steps",
        "R²",
        (
            Panel("modules, trained", rows(clocks["trained"].mean(axis=0), periods)),
            Panel("modules, before training", rows(clocks["random"].mean(axis=0), periods)),
            Panel("rotary frequencies", rows(clocks["rotary"][0], frequencies)),
        ),
        claims=("clocks",),
        ticks=tuple(map(str, SCALES)),
        heat_about=0.0,
    )


def _rank_correlation(r2: Float[np.ndarray, "seed module scale"]) -> Measured:
    """Spearman's, over modules, of the period and the scale told best, above chance.

    Scales that divide a module's period are out of its reach, its R² there is 0 or less: slow
    modules are left with long scales, whatever they learn. Chance is the mean correlation where
    each module picks one of the scales in its reach at random.
    """
    periods, scales = np.array(POWERS_OF_TWO), np.array(SCALES)
    blind = periods[:, None] % scales == 0
    # A module whose period is the longest scale sees none: it is left out.
    sees = ~blind.all(axis=1)
    drawn = np.random.default_rng(0).random((_CHANCE_DRAWS, *blind.shape))
    told, by_chance = (
        np.array(
            [_spearman(periods[sees], row[sees]) for row in scales[np.argmax(reached, axis=-1)]]
        )
        for reached in (np.where(blind, -np.inf, r2), np.where(blind, -np.inf, drawn))
    )
    return over_seeds(told - by_chance.mean())


def _spearman(x: np.ndarray, y: np.ndarray) -> float:
    # Where all modules tell one scale best, their order says nothing.
    return float(spearmanr(x, y).statistic) if len(set(y)) > 1 else 0.0
