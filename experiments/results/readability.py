"""From numbers to a sentence, by rules stated here and nowhere else.

Each hypothesis has one measure, and a *gain* on it: the share of the chance error removed for
errors in positions, R\u00b2 for 1/m, the share itself for variance explained. Gains of different
measures cannot be compared with each other, and are not.

A setting is a model variant and the tokens that it reads, with a begin token or without. For each
hypothesis and setting the best site is named. Because it is the best of many, and many are
compared, its interval is widened: Bonferroni over all sites and settings that the hypothesis was
measured at, with Student's tails for the number of sequences. The interval speaks of other
sequences, not of other draws of the weights. Position is called

- `readable`   where the widened interval's near end is a gain of a tenth or more;
- `faint`      where the near end is a gain, but not surely a tenth;
- `unreadable` where the near end is no gain (it may be a loss), and the far end less than a tenth;
- `undecided`  where the near end is no gain, but the far end a tenth or more;
- `invalid`    where the shuffled-position control itself gains a tenth, or as much as the near end.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pandas as pd
from scipy.special import stdtrit

from experiments.results.intervals import with_interval
from experiments.results.measurements import intact_readings
from experiments.results.worth import WORTH_NAMING
from nope_interp.errors import UserError
from probes.code_names import COUNTING, IRREGULAR, MEAN_RESIDUAL, SMOOTH
from probes.scores import SHUFFLED

# hypothesis -> (probe, metric, is smaller better)
HYPOTHESES = {
    "variance": ("variance", "mae", True),
    "similarity": ("similarity", "mae", True),
    COUNTING: ("counting", "r2", False),
    MEAN_RESIDUAL: ("positional_vectors", "share", False),
    "any linear code": ("linear", "mae", True),
    "two-layer code in the stream": ("two_layer", "mae", True),
}

# What is read of a code, where that is not all of it and nothing else: of a smooth trend 1/m, of
# the irregular part the whole that it is in.
READ_AS = {SMOOTH: COUNTING, IRREGULAR: MEAN_RESIDUAL}

_UNITS = {
    "mae": "Error in positions",
    "r2": "R\u00b2 of 1/m",
    "share": "Share of held-out variance",
}

# Activations that never vary have an interval of no width: rounding alone puts it beside chance.
_ROUNDING = 1e-9

SETTING = ["variant", "tokens", "begin_token"]
_KEPT = [*SETTING, "layer", "site", "metric", "value", "chance", "n"]
_NEEDED = [*_KEPT, "probe", "control", "ci_low", "ci_high"]


@dataclass(frozen=True)
class Verdict:
    """What one hypothesis comes to.

    Attributes:
        hypothesis: a key of `HYPOTHESES`.
        sentence: what each variant's position is, in the first tokens that were read.
        rows: the best site of each setting, with the keys variant, tokens, begin_token, layer,
            site, metric, value, ci_low, ci_high (widened), chance, gain, n, control_value, verdict.
    """

    hypothesis: str
    sentence: str
    rows: list[dict[str, Any]]


def verdicts(measurements: pd.DataFrame) -> list[Verdict]:
    """One verdict for each hypothesis whose probe read models as they are.

    Args:
        measurements: the tidy table.

    Returns:
        Verdicts in the order of `HYPOTHESES`.

    Raises:
        UserError: a measurement lacks its shuffled-position control.
    """
    # All rows at once: a data frame for each group takes longer than all else here.
    readings: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    table = intact_readings(measurements)[_NEEDED]
    for values in table.itertuples(index=False, name=None):
        row = dict(zip(_NEEDED, values, strict=True))
        readings[row["probe"], row["metric"]].append(row)
    found = []
    for hypothesis, (probe, metric, smaller) in HYPOTHESES.items():
        chosen = readings.get((probe, metric), [])
        n_compared = sum(row["control"] == "" for row in chosen)
        groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
        for row in chosen:
            groups[tuple(row[name] for name in SETTING)].append(row)
        rows = [_best_site(group, smaller, n_compared) for group in groups.values()]
        if rows:
            found.append(Verdict(hypothesis, _sentence(hypothesis, metric, rows), rows))
    return found


def site_of(row: Mapping[str, Any] | pd.Series) -> str:
    """The site of a row of the tidy table, as sentences name it."""
    return layer_and_site(row["layer"], row["site"])


def layer_and_site(layer: object, site: object) -> str:
    """A site of a layer, as sentences and tables name it.

    Args:
        layer: counted from 0.
        site: as the tidy table has it.

    Returns:
        Words that fit within a sentence.
    """
    return f"layer {layer} {site}"


def setting_words(tokens: str, begin_token: bool) -> str:
    """What a model reads, as sentences name it.

    Args:
        tokens: as the tidy table has them, "text" or "random".
        begin_token: whether one stands before them.

    Returns:
        Words that fit within a sentence.
    """
    kind = "uniform random tokens" if tokens == "random" else tokens
    return f"{kind} {'with' if begin_token else 'without'} a begin token"


def _best_site(rows: list[dict[str, Any]], smaller: bool, n_compared: int) -> dict[str, Any]:
    real = [row for row in rows if row["control"] == ""]
    pick = min if smaller else max
    best = pick(real, key=lambda row: row["value"])
    site = (best["layer"], best["site"])
    shuffled = [row for row in rows if row["control"] == SHUFFLED]
    control = [row["value"] for row in shuffled if (row["layer"], row["site"]) == site]
    if not control:
        raise UserError(
            f"the measurements of {best['probe']} lack their shuffled-position control: run the "
            "experiment again."
        )
    low, high = widened(best["value"], best["ci_low"], best["ci_high"], n_compared, best["n"])
    row = {name: best[name] for name in _KEPT} | {
        "ci_low": low,
        "ci_high": high,
        "gain": gain(best["value"], best["chance"], smaller),
        "control_value": control[0],
    }
    return {**row, "verdict": _word(row, smaller)}


def widened(value: float, low: float, high: float, n_compared: int, n: int) -> tuple[float, float]:
    """A 95% interval, which has Student's tails, stretched to hold for many at once.

    Args:
        value: the number.
        low: the lower end of its interval.
        high: the upper end.
        n_compared: how many numbers are compared.
        n: units, such as sequences, behind the number.

    Returns:
        The new ends.
    """
    stretch = _stretch(n_compared, n)
    return value - stretch * (value - low), value + stretch * (high - value)


@cache
def _stretch(n_compared: int, n: int) -> float:
    return float(stdtrit(n - 1, 0.025 / n_compared) / stdtrit(n - 1, 0.025))


def gain(value: float, chance: float, smaller: bool) -> float:
    """The share of the chance error removed where smaller is better, else what is above chance.

    Args:
        value: what was measured.
        chance: what knowing nothing gives, in the same unit.
        smaller: whether a smaller value is better, as of an error.

    Returns:
        0 at chance, 1 where an error is gone.
    """
    return 1 - value / chance if smaller else value - chance


def gain_bounds(row: Mapping[str, Any] | pd.Series, smaller: bool) -> tuple[float, float]:
    """The bounds of the gain of a row of the tidy table.

    Args:
        row: has the interval and the chance level.
        smaller: whether a smaller value is better, as of an error.

    Returns:
        The lower bound first.
    """
    low, high = sorted(gain(row[end], row["chance"], smaller) for end in ("ci_low", "ci_high"))
    return low, high


def _word(row: dict[str, Any], smaller: bool) -> str:
    near, far = gain_bounds(row, smaller)
    control = gain(row["control_value"], row["chance"], smaller)
    if control >= WORTH_NAMING or _ROUNDING < near <= control:
        return "invalid"
    if near > _ROUNDING:
        return "readable" if near >= WORTH_NAMING else "faint"
    return "undecided" if far >= WORTH_NAMING else "unreadable"


def _sentence(hypothesis: str, metric: str, rows: list[dict[str, Any]]) -> str:
    """Each variant's verdict with its number, interval and site on the first tokens, a sentence
    each; then what the numbers are, and chance."""
    tokens, begin_token = rows[0]["tokens"], rows[0]["begin_token"]
    first = [row for row in rows if (row["tokens"], row["begin_token"]) == (tokens, begin_token)]
    name = f"{hypothesis[0].upper()}{hypothesis[1:]}"
    said = [
        f"{name} is {row['verdict']} in {row['variant']}: "
        f"{with_interval(row['value'], row['ci_low'], row['ci_high'])} at {site_of(row)}."
        for row in first
    ]
    said.append(
        f"{_UNITS[metric]} on {setting_words(tokens, begin_token)}; chance is "
        f"{first[0]['chance']:.3g}."
    )
    return " ".join(said)
