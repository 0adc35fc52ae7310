"""Koutnik et al. 2014 (arXiv 1402.3511): a Clockwork RNN against an RNN and an LSTM, its clocks."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
from jaxtyping import Float, Real
from scipy.stats import spearmanr
from torch import Tensor

from experiments.papers.config import ReproduceConfig
from experiments.papers.koutnik2014.clocks import (
    SCALES,
    WAVELENGTHS,
    clocks_beside_rotary,
    held_noise_decoding,
)
from experiments.papers.koutnik2014.records import (
    N_RECORDS,
    fit_record,
    fitted_months,
    month_means,
)
from experiments.papers.koutnik2014.waveforms import (
    LEARNING_RATES,
    LENGTH,
    N_TUNING_SEEDS,
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
from experiments.results.figures import figure
from experiments.results.findings import (
    Array,
    Findings,
    Panel,
    exactly,
    log_spaced,
    over_seeds,
    panel,
)
from experiments.runs.cells import Cells
from nope_interp.models.clockwork import POWERS_OF_TWO, ClockworkConfig, ClockworkRNN

_NAMES = {"clockwork": "Clockwork RNN", "rnn": "RNN", "lstm": "LSTM"}
_BARS = tuple(_NAMES[network] for network in NETWORKS)
_MODULES = (1, 2, 4, 8)
_CHANCE_DRAWS = 2000
_NOISE_DRAWS = 1000  # orders spread by 0.19 over draws, which leaves their mean 0.006
_CONSTANT = {"the best constant": 1}  # and its NMSE


def reproduce(config: ReproduceConfig, cells: Cells, device: str) -> Findings:
    """What each network leaves of a waveform, what a step costs, and which clock tells what."""
    d_hidden = config.scaled("width", 64, multiple_of=8, least=16)
    epochs = config.scaled("training", 800)
    sizes = matched_sizes(d_hidden)
    tried, rates = _tuned(cells, waveform, sizes, epochs, config.seeds, "learning rates")
    found = cells.side_by_side(
        {"clockwork": partial(clocks_beside_rotary, d_hidden, epochs, rates["clockwork"])}
        | {
            peer: partial(_fitted, peer, sizes[peer], epochs, rates[peer])
            for peer in ("rnn", "lstm")
        },
        config.seeds,
        title=_NAMES.__getitem__,
    )
    # The last records choose the learning rates.
    records = config.seeds[: N_RECORDS - N_TUNING_SEEDS]
    tried_at_sea, rates_at_sea = _tuned(
        cells, fitted_months, sizes, epochs, records, "learning rates for records"
    )
    at_sea = cells.side_by_side(
        {
            network: partial(fit_record, network, sizes[network], epochs, rates_at_sea[network])
            for network in NETWORKS
        },
        records,
        title=lambda network: f"{_NAMES[network]}, records",
    )
    clocks = found["clockwork"]
    width = ClockworkConfig(1, d_hidden, 1).width
    held = cells.arrays("held noise", partial(_held_noise, width))["held"]
    curves = {network: of_network["nmse"] for network, of_network in found.items()}
    nmse = {network: left[:, -1] for network, left in curves.items()}
    sea = {network: of_network["nmse"][:, -1] for network, of_network in at_sea.items()}
    onward = {network: of_network["onward"] for network, of_network in at_sea.items()}
    weights, work = _costs(d_hidden)
    periods = np.array(POWERS_OF_TWO)
    claims = {
        "parameters": exactly(weights[-1:]),
        "work": exactly(work[-1:]),
        "against-rnn": over_seeds(nmse["clockwork"] - nmse["rnn"]),
        "against-lstm": over_seeds(nmse["clockwork"] - nmse["lstm"]),
        "sea-rnn": over_seeds(sea["clockwork"] - sea["rnn"]),
        "sea-lstm": over_seeds(sea["clockwork"] - sea["lstm"]),
        "onward-rnn": over_seeds(onward["clockwork"] - onward["rnn"]),
        "onward-lstm": over_seeds(onward["clockwork"] - onward["lstm"]),
        "clocks": over_seeds(
            _order_above_controls(periods, clocks["trained"], clocks["random"], held)
        ),
        "rotary": exactly(_order(np.array(WAVELENGTHS), clocks["rotary"][:1])),
    }
    return Findings(
        claims,
        (
            _saved(weights, work),
            _waveforms(nmse),
            _learning(curves, epochs),
            _records(sea),
            _onward(onward, np.array([month_means(seed) for seed in records])),
            _tuning({"waveforms": tried, "records": tried_at_sea}),
            _beside_rotary(clocks, held),
        ),
        setting=f"{len(config.seeds)} waveforms and {len(records)} records, analogues of audio of "
        f"{LENGTH} samples, {d_hidden} clocked units "
        f"against {sizes['rnn']} of an RNN and {sizes['lstm']} of an LSTM, {epochs} steps of Adam "
        f"at {_said(rates)}, for records at {_said(rates_at_sea)}",
        notes=(
            "Waveforms and records of sea temperature are analogues: the paper's audio and its "
            "spoken words could not be had.",
            "NMSE is that of the fit after the same number of steps, not of a continuation. The "
            "best constant has 1, and each sine that is missed leaves a quarter of a waveform.",
            f"There are {N_RECORDS} records, and learning rates are chosen on {N_TUNING_SEEDS}. So "
            f"more than {N_RECORDS - N_TUNING_SEEDS} seeds add waveforms alone.",
            "The likeness of clocks and rotary frequencies is an analogy. Some "
            "modules tell a long scale as well before training as after it. They do so by drifting "
            "off from their first state, not by turning as a rotary frequency does.",
        ),
    )


def _tuned(
    cells: Cells,
    sequence: Callable[[int], Tensor],
    sizes: dict[str, int],
    epochs: int,
    seeds: range,
    title: str,
) -> tuple[dict[str, dict[str, Array]], dict[str, float]]:
    """What each network leaves at each learning rate on the tuning seeds, and its best rate."""
    tried = cells.side_by_side(
        {
            network: partial(nmse_by_rate, sequence, network, sizes[network], epochs)
            for network in NETWORKS
        },
        tuning_seeds(seeds),
        title=lambda network: f"{_NAMES[network]}, {title}",
    )
    return tried, {network: best_rate(left["nmse"]) for network, left in tried.items()}


def _said(rates: dict[str, float]) -> str:
    return ", ".join(f"{rates[network]:g} ({_NAMES[network]})" for network in NETWORKS)


def _fitted(network: str, size: int, epochs: int, rate: float, seed: int) -> dict[str, Array]:
    model = make_network(network, size, seed)
    return {"nmse": fit_waveform(model, waveform(seed), epochs, rate)}


def _held_noise(width: int) -> dict[str, Array]:
    return {"held": held_noise_decoding(width, _NOISE_DRAWS)}


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


# Closed forms for g equal modules of periods 1, 2, 4, ...: module i reads (g - i) / g of the units,
# and is active at one step in 2^i.
def weights_share(g: int) -> float:
    """Recurrent weights of a Clockwork RNN over those of a simple RNN with as many units."""
    return 1 / 2 + 1 / (2 * g)


def work_share(g: int) -> float:
    """Multiplications in its recurrence over those of the simple RNN, of an endless sequence."""
    return sum((g - i) / g**2 / 2**i for i in range(g))


@figure("cost", "modules", "share", claims=("parameters", "work"), ticks=tuple(map(str, _MODULES)))
def _saved(weights: Float[Array, " modules"], work: Float[Array, " modules"]) -> Iterator[Panel]:
    """What a Clockwork RNN saves.

    Share of a simple RNN with as many hidden units, by the number g of equal modules of periods 1,
    2, 4, ... Multiplications are those in the recurrence, mean over {LENGTH} steps. Counted, with
    no interval to have.
    """
    for title, law, predicted, counted in (
        ("recurrent weights", "1/2 + 1/(2g)", weights_share, weights),
        ("multiplications per step", "sum over i of (g - i) / (g² 2ⁱ)", work_share, work),
    ):
        yield panel(
            title,
            np.arange(len(_MODULES)),
            chance={"an RNN of as many units": 1},
            predicted={law: np.array([predicted(g) for g in _MODULES])},
            measured={"counted": counted},
        )


@figure("waveforms", "network", "NMSE", claims=("against-rnn", "against-lstm"), ticks=_BARS)
def _waveforms(nmse: dict[str, Float[Array, " seed"]]) -> Iterator[Panel]:
    """What is left of a waveform.

    After as many steps, with as many parameters; bars are 95% intervals over seeds. The second
    panel is the difference that the claims are about.
    """
    yield from _own_and_less("NMSE", nmse, chance=_CONSTANT)


@figure("records", "network", "NMSE", claims=("sea-rnn", "sea-lstm"), ticks=_BARS)
def _records(nmse: dict[str, Float[Array, " seed"]]) -> Iterator[Panel]:
    """What is left of a record of sea temperature.

    {LENGTH} monthly means of one region of the equatorial Pacific. Otherwise as for waveforms.
    """
    yield from _own_and_less("NMSE", nmse, chance=_CONSTANT)


@figure("onward", "network", "share", claims=("onward-rnn", "onward-lstm"), ticks=_BARS)
def _onward(
    error: dict[str, Float[Array, " seed"]], month_means: Float[Array, " seed"]
) -> Iterator[Panel]:
    """How a record goes on.

    The same networks run on over the 46 months that follow. Shown is their mean squared
    error there, as a share of that of the fitted months' mean. The second reference guesses each
    month by the mean of the fitted ones of its name.
    """
    known = {"the mean of its month": float(month_means.mean())}
    chance = {"the mean of all months": 1}
    yield from _own_and_less("held-out error", error, chance=chance, reference=known)


def _own_and_less(
    title: str, values: dict[str, Float[Array, " seed"]], **levels: Mapping[str, float]
) -> Iterator[Panel]:
    """Each network's values beside levels, and how far the Clockwork RNN's lie below them."""
    at = np.arange(len(values))
    own = np.stack(list(values.values()), axis=1)
    less = values["clockwork"][:, None] - own
    yield panel(title, at, **levels, measured={"mean over seeds": own})
    yield panel(
        "Clockwork RNN less this network",
        at,
        chance={"no difference": 0},
        measured={"mean over seeds": less},
    )


@figure("learning", "steps", "NMSE", log="x")
def _learning(curves: dict[str, Float[Array, "seed step"]], epochs: int) -> Iterator[Panel]:
    """How soon it is learnt.

    NMSE by the number of steps, mean over seeds with its 95% interval. A curve that still falls at
    the end belongs to a network that more steps would help.
    """
    steps = log_spaced(epochs)
    measured = {_NAMES[network]: left[:, steps] for network, left in curves.items()}
    yield panel("all networks", steps, chance=_CONSTANT, measured=measured)


@figure("tuning", "learning rate", "NMSE", log="x")
def _tuning(tried: dict[str, dict[str, dict[str, Array]]]) -> Iterator[Panel]:
    """Which learning rate each network is given.

    NMSE by learning rate on the sequences and weights of the tuning seeds, which no claim is tested
    on. Each network has the rate of the lowest mean.
    """
    for sequences, by_network in tried.items():
        for network, left in by_network.items():
            measured = {f"tuning seed {i}": of for i, of in enumerate(left["nmse"], start=1)}
            title = f"{_NAMES[network]}, {sequences}"
            yield panel(title, np.array(LEARNING_RATES), chance=_CONSTANT, measured=measured)


@figure(
    "clocks",
    "scale, time steps",
    "R²",
    claims=("clocks", "rotary"),
    ticks=tuple(f"{scale:.3g}" for scale in SCALES),
    heat_about=0.0,
)
def _beside_rotary(
    clocks: dict[str, Array], held: Float[Array, "draw module scale"]
) -> Iterator[Panel]:
    """Which clock tells which scale.

    R² of the phase of position at each scale, in time steps: from each module's state, before and
    after training, mean over seeds, and from each rotary frequency. Held noise is drawn anew at a
    module's ticks: its mean over draws shows what clocks alone bring about. The scales are the
    clocks' periods, the waveform's (8, 32, 80, 160) and the rotary wavelengths.
    """
    periods = [f"period {period}" for period in POWERS_OF_TWO]
    wavelengths = [f"wavelength {wavelength:.3g}" for wavelength in WAVELENGTHS]
    for title, names, r2 in (
        ("modules, trained", periods, clocks["trained"].mean(axis=0)),
        ("modules, before training", periods, clocks["random"].mean(axis=0)),
        ("modules of held noise", periods, held.mean(axis=0)),
        ("rotary frequencies", wavelengths, clocks["rotary"][0]),
    ):
        yield panel(title, np.arange(len(SCALES)), measured=dict(zip(names, r2, strict=True)))


def _order_above_controls(
    periods: Real[Array, " module"],
    trained: Float[Array, "seed module scale"],
    random: Float[Array, "seed module scale"],
    held: Float[Array, "draw module scale"],
) -> Float[Array, " seed"]:
    """By how much `_order` of trained modules exceeds the largest of its three controls.

    What ticks every T steps tells scales from 2T on (Nyquist): slow modules are left with long
    scales, whatever they learn. The first control is therefore the mean order of modules that pick
    one of the scales in their reach at random; the second is the same network before training. The
    third is the mean order of modules of held noise: few ticks tell the longest of the scales in
    reach best, whatever is held between them.
    """
    reach = np.array(SCALES) >= 2 * periods[:, None]
    # A module that no scale is in reach of is left out.
    sees = reach.any(axis=1)
    drawn = np.random.default_rng(0).random((_CHANCE_DRAWS, *reach.shape))
    told, untold, chance, noise = (
        _order(periods[sees], np.where(reach, r2, -np.inf)[:, sees])
        for r2 in (trained, random, drawn, held)
    )
    return told - np.maximum(untold, max(chance.mean(), noise.mean()))


def _order(
    rates: Real[Array, " clock"], r2: Float[Array, "row clock scale"]
) -> Float[Array, " row"]:
    """Spearman's correlation, over clocks, of period or wavelength and the scale told best."""
    told = np.array(SCALES)[r2.argmax(axis=-1)]
    # Where all clocks tell one scale best, their order says nothing.
    return np.array([spearmanr(rates, row).statistic if len(set(row)) > 1 else 0.0 for row in told])
