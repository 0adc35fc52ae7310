"""Verdict words follow the stated rules, from numbers planted in a table."""

from typing import Any

import pandas as pd
import pytest
from scipy.stats import t

from experiments.results.measurements import table
from experiments.results.readability import verdicts
from nope_interp.errors import UserError
from probes.scores import SHUFFLED

CHANCE = 32.0


def row(value: float, half: float, **changes: Any) -> dict[str, Any]:
    return {
        "experiment": "compare",
        "model": "m",
        "variant": "trained",
        "positions": "intact",
        "tokens": "text",
        "begin_token": False,
        "seed": 0,
        "layer": 0,
        "site": "resid_post",
        "probe": "variance",
        "control": "",
        "metric": "mae",
        "value": value,
        "ci_low": value - half,
        "ci_high": value + half,
        "chance": CHANCE,
        "n": 100,
        **changes,
    }


def one_place(value: float, half: float, control: float = CHANCE) -> pd.DataFrame:
    return table([row(value, half), row(control, half, control=SHUFFLED)])


@pytest.mark.parametrize(
    ("value", "half", "control", "word"),
    [
        (10.0, 0.5, CHANCE, "readable"),
        (31.0, 0.5, CHANCE, "faint"),  # better than chance, by 3%
        (28.0, 1.0, CHANCE, "faint"),  # by an eighth, but not surely by a tenth
        (31.9, 0.5, CHANCE, "unreadable"),
        (33.0, 0.5, CHANCE, "unreadable"),
        (31.0, 4.0, CHANCE, "undecided"),  # holds both chance and a tenth better than it
        (10.0, 0.5, 30.5, "readable"),  # the control strays by 5%
        (10.0, 0.5, 28.0, "invalid"),
        (CHANCE - 1e-14, 0.0, CHANCE, "unreadable"),  # rounding alone: nothing varies
        (CHANCE - 1e-14, 0.0, CHANCE - 1e-14, "unreadable"),
        (31.0, 0.5, 31.0, "invalid"),  # a faint signal, and a control as good as it
    ],
)
def test_words(value: float, half: float, control: float, word: str) -> None:
    (verdict,) = verdicts(one_place(value, half, control))
    assert verdict.hypothesis == "variance"
    assert verdict.rows[0]["verdict"] == word
    assert word in verdict.sentence


def test_each_variant_has_a_sentence_of_its_own() -> None:
    rows = [
        row(value, 0.5, variant=variant, control=control)
        for variant, read in (("trained", 10.0), ("random-init", 31.9))
        for value, control in ((read, ""), (CHANCE, SHUFFLED))
    ]
    (verdict,) = verdicts(table(rows))
    trained, untrained, measure = verdict.sentence.split(". ")
    assert trained.startswith("Variance is readable in trained: 10 [")
    assert trained.endswith("] at layer 0 resid_post")
    assert untrained.startswith("Variance is unreadable in random-init: 31.9 [")
    assert measure == "Error in positions on text without a begin token; chance is 32."


def test_the_best_of_many_places_needs_a_wider_interval() -> None:
    few = [row(30.0, 1.5, layer=0), row(CHANCE, 0.5, layer=0, control=SHUFFLED)]
    many = [row(33.0, 1.5, layer=layer) for layer in range(1, 20)]
    assert verdicts(table(few))[0].rows[0]["verdict"] == "faint"
    (verdict,) = verdicts(table(few + many))
    best = verdict.rows[0]
    stretch = t.ppf(1 - 0.025 / 20, 99) / t.ppf(0.975, 99)
    assert best["ci_high"] == pytest.approx(30 + 1.5 * stretch)
    assert best["verdict"] == "undecided"


def test_shares_are_better_when_larger_and_conditions_are_apart() -> None:
    share = {"probe": "positional_vectors", "metric": "share", "chance": 0.0}
    rows = [
        row(0.5, 0.01, **share, layer=0),
        row(0.7, 0.01, **share, layer=1),
        row(0.0, 0.01, **share, layer=1, control=SHUFFLED),
        row(0.01, 0.02, **share, variant="random-init"),
        row(0.0, 0.02, **share, variant="random-init", control=SHUFFLED),
        row(0.3, 0.01, **share, begin_token=True),
        row(0.0, 0.01, **share, begin_token=True, control=SHUFFLED),
    ]
    (verdict,) = verdicts(table(rows))
    trained, untrained, begin = verdict.rows
    assert (trained["layer"], trained["value"], trained["verdict"]) == (1, 0.7, "readable")
    assert (untrained["variant"], untrained["verdict"]) == ("random-init", "unreadable")
    assert begin["begin_token"]


def test_a_missing_control_is_an_error() -> None:
    with pytest.raises(UserError, match="variance lack their shuffled-position control"):
        verdicts(table([row(10.0, 0.5)]))
