"""Where a linear probe is at chance in a random NoPE model, and what wakes it, in a few sentences.

At random initialisation position enters even moments only (variance, cosines), which no linear map
reads. It becomes linear where a constant that all tokens share survives the averaging of attention
while everything else shrinks: a begin token (Kazemnejad et al. 2023, Theorem 1), the mean of text
or of a small vocabulary, the mean that an activation gives to an MLP's output. Our tests take these
away one by one (`test_linear_probe_at_initialization.py`); the sentences below only tell the
numbers of the run at hand, and what the tests trace them to.
"""

import numpy as np
import pandas as pd

from experiments.results.measurements import RANDOM_INIT, intact_readings
from experiments.results.readability import site_of, widened

_MOST_NAMED = 3


def linear_probe_sentence(measurements: pd.DataFrame) -> str | None:
    """What a linear probe reads in the random-init model on random tokens; None without such rows.

    Only meant for models without a positional encoding: an encoding is a linear code of its own.

    Args:
        measurements: the tidy table.

    Returns:
        A few short sentences; errors are in tokens, beside their chance level.
    """
    readings = intact_readings(measurements)
    random_init = readings[
        (readings["variant"] == RANDOM_INIT)
        & (readings["tokens"] == "random")
        & (readings["metric"] == "mae")
        & (readings["control"] == "")
    ]
    random_init = _widened(random_init)
    plain = random_init[~random_init["begin_token"]]
    linear = plain[(plain["probe"] == "linear") & (plain["site"] != "resid_pre")]
    if linear.empty:
        return None
    chance = f"chance ({linear['chance'].iloc[0]:.3g} tokens)"
    said = [
        "A linear probe was fitted to the random-init model, on uniform random tokens without a "
        "begin token."
    ]
    blind = linear[linear["ci_high"] >= linear["chance"]]
    if blind.empty:
        said.append(f"Its error is surely below {chance} at every site after the embedding.")
    else:
        said.append(f"Its error is not surely below {chance} at {_sites(blind, len(linear))}.")
        said += _variance_there(plain, blind)
    best = linear.sort_values("value", kind="stable").iloc[0]
    if best["ci_high"] < best["chance"]:
        said += [
            f"The linear probe's lowest error is {_number(best)}, at {site_of(best)}.",
            "This project's tests trace that to constants that all tokens share.",
            "Examples are an MLP's mean output and the mean of a small vocabulary.",
            "Constants outlast the averaging of attention.",
        ]
    begun = random_init[random_init["begin_token"] & (random_init["probe"] == "linear")]
    if not begun.empty:
        best = begun.sort_values("value", kind="stable").iloc[0]
        said += [
            "A begin token is a constant by design.",
            f"With one, the lowest error is {_number(best)}, at {site_of(best)}.",
        ]
    return " ".join(said)


def _variance_there(plain: pd.DataFrame, blind: pd.DataFrame) -> list[str]:
    """What variance alone surely reads where the linear probe reads nothing, if anything."""
    first = blind.iloc[0]
    variance = plain[
        (plain["probe"] == "variance")
        & (plain["layer"] == first["layer"])
        & (plain["site"] == first["site"])
    ]
    if variance.empty or variance["ci_high"].iloc[0] >= variance["chance"].iloc[0]:
        return []
    return [
        f"At {site_of(first)}, variance alone recovers position to within "
        f"{_number(variance.iloc[0])}.",
        "There position changes variances and cosines, which a linear probe cannot read.",
    ]


def _widened(rows: pd.DataFrame) -> pd.DataFrame:
    """With intervals that hold for all sites of a probe and setting at once, as verdicts do."""
    n_sites = rows.groupby(["probe", "begin_token"], observed=True)["value"].transform("size")
    numbers = zip(
        *(rows[name].tolist() for name in ("value", "ci_low", "ci_high", "n")), strict=True
    )
    bounds = np.array(
        [
            widened(value, low, high, sites, n)
            for (value, low, high, n), sites in zip(numbers, n_sites.tolist(), strict=True)
        ]
    ).reshape(-1, 2)
    return rows.assign(ci_low=bounds[:, 0], ci_high=bounds[:, 1])


def _sites(rows: pd.DataFrame, n_all: int) -> str:
    named = ", ".join(site_of(row) for _, row in rows.head(_MOST_NAMED).iterrows())
    if len(rows) <= _MOST_NAMED:
        return named
    return f"{len(rows)} of {n_all} sites ({named}, ...)"


def _number(row: pd.Series) -> str:
    interval = f"[{row['ci_low']:.3g}, {row['ci_high']:.3g}]"
    return f"{row['value']:.3g} tokens {interval} (chance {row['chance']:.3g})"
