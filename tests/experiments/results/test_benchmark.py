"""What methods said of planted models, counted by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from experiments.results.benchmark import (
    by_kind,
    by_method,
    confusion,
    figures,
    headline,
    judged,
    readable,
    sentences,
)
from experiments.results.measurements import table
from experiments.results.position_use import Word

USED, NOT_USED, REDUNDANT, UNDECIDED = Word.USED, Word.NOT_USED, Word.REDUNDANT, Word.UNDECIDED
CONTEXT = {
    "experiment": "benchmark",
    "tokens": "random",
    "begin_token": False,
    "step": pd.NA,
    "head": pd.NA,
}

# By method, kind and seed: the truth about two codes and what was said of them.
SAID = {
    ("careful", "a", 0): [(USED, USED), (NOT_USED, NOT_USED)],
    ("careful", "a", 1): [(USED, UNDECIDED), (NOT_USED, NOT_USED)],
    ("careful", "b", 0): [(REDUNDANT, REDUNDANT), (REDUNDANT, "has not learned order")],
    ("careful", "b", 1): [(REDUNDANT, USED), (REDUNDANT, UNDECIDED)],
    ("bold", "a", 0): [(USED, USED), (NOT_USED, USED)],
    ("bold", "a", 1): [(USED, NOT_USED), (NOT_USED, REDUNDANT)],
    ("bold", "b", 0): [(REDUNDANT, REDUNDANT), (REDUNDANT, REDUNDANT)],
    ("bold", "b", 1): [(REDUNDANT, USED), (REDUNDANT, USED)],
}


@pytest.fixture(scope="module")
def measurements() -> pd.DataFrame:
    rows = []
    for (method, kind, seed), words in SAID.items():
        stream = {**CONTEXT, "model": kind, "seed": seed, "layer": -1, "site": "resid_post"}
        for code, (truth, word) in zip(("counting", "variance"), words, strict=True):
            rows.append(judged(stream, method, code, truth, word))
        site = {**stream, "layer": 0}
        rows.append(judged(site, method, "counting", *words[0]))
    return table(rows)


def wilson(count: int, n: int) -> tuple[float, float]:
    """Wilson 1927: the shares from which the one found is 1.96 of its standard errors away."""
    z = 1.959963984540054
    middle = (count + z**2 / 2) / (n + z**2)
    half = z / (n + z**2) * math.sqrt(count * (n - count) / n + z**2 / 4)
    return middle - half, middle + half


def test_a_model_is_right_by_all_of_its_codes_and_wrong_by_any(measurements: pd.DataFrame) -> None:
    found = by_method(measurements).set_index(["method", "place"])
    assert [*found.index] == [
        (method, place)
        for method in ("careful", "bold")
        for place in ("whole stream", "single sites")
    ]
    shares = found[["right", "undecided", "wrong", "false positive"]]
    # Of four models each; false positives are of the two that have an unused code.
    assert shares.loc["careful", "whole stream"].to_list() == [0.25, 0.5, 0.25, 0]
    assert shares.loc["bold", "whole stream"].to_list() == [0.25, 0, 0.75, 1]
    assert shares.loc["careful", "single sites"].to_list()[:3] == [0.5, 0.25, 0.25]
    # No code at that site is unused: there is nothing to be falsely positive of.
    assert np.isnan(shares.loc["careful", "single sites"]["false positive"])
    # Every model has a used or redundant code. Of four "bold" says of one that it is not used.
    assert found["missed"].to_dict() == {
        ("careful", "whole stream"): 0,
        ("careful", "single sites"): 0,
        ("bold", "whole stream"): 0.25,
        ("bold", "single sites"): 0.25,
    }
    assert (found["n"] == 4).all()
    assert set(found["codes"]) == {"counting, variance", "counting"}


def test_intervals_are_wilsons(measurements: pd.DataFrame) -> None:
    row = by_method(measurements).iloc[0]
    assert (row["right_low"], row["right_high"]) == pytest.approx(wilson(1, 4))
    assert (row["undecided_low"], row["undecided_high"]) == pytest.approx(wilson(2, 4))
    assert (row["false positive_low"], row["false positive_high"]) == pytest.approx(wilson(0, 2))


def test_words_are_counted_by_truth(measurements: pd.DataFrame) -> None:
    found = confusion(measurements).set_index(["method", "place", "truth"])
    bold = found.sort_index().loc["bold", "whole stream"]
    assert bold.loc["not used"].to_dict() == {
        "used": 1,
        "redundant": 1,
        "not used": 0,
        "undecided": 0,
        "has not learned order": 0,
    }
    assert bold.loc["redundant", "redundant"] == bold.loc["redundant", "used"] == 2
    assert found.to_numpy().sum() == len(measurements)


def test_places_are_not_compared(measurements: pd.DataFrame) -> None:
    rows = measurements.replace({"control": {REDUNDANT: USED}})  # "bold" is right of nothing more
    rows = rows[(rows["probe"] != "bold") | (rows["layer"] == 0)]
    said = headline(rows)
    assert said.startswith("Through the whole stream careful judges ")
    assert "bold" not in said
    assert "methods" not in said
    # Of a row without an unused code no share is taken from another row.
    assert headline(rows[rows["layer"] == 0]).count("false positives") == 0


def test_kinds_keep_apart(measurements: pd.DataFrame) -> None:
    found = by_kind(measurements)
    assert found.loc[("whole stream", "a")].to_dict() == {"careful": 0.5, "bold": 0.0}
    assert found.loc[("whole stream", "b")].to_dict() == {"careful": 0.0, "bold": 0.5}


def test_what_is_said_has_its_numbers(measurements: pd.DataFrame) -> None:
    low, high = wilson(1, 4)
    right = f"25% [{low:.0%}, {high:.0%}]"
    stream = f"Through the whole stream careful judges {right} of 4 planted models right"
    half = "50% [{:.0%}, {:.0%}]".format(*wilson(2, 4))
    more = f"; {half} undecided; false positives: 0% [0%, {wilson(0, 2)[1]:.0%}]."
    assert headline(measurements) == f"{stream}, as does bold{more}"
    careful, bold, *at_sites = sentences(measurements)
    assert careful == f"{stream}{more}"
    assert bold.startswith(f"Through the whole stream bold judges {right}")
    # There every code is used or redundant, and nothing falsely positive.
    assert at_sites[0] == (
        f"At single sites careful judges {half} of 4 sites of planted models right; {right} "
        "undecided."
    )
    shown = readable(by_method(measurements))
    assert shown["right"].iloc[0] == f"25% [{low:.0%}, {high:.0%}]"
    assert shown["false positive"].iloc[1] == "–"
    correctness, kinds = figures(measurements)
    assert correctness.ticks == kinds.ticks == ("careful", "bold")
    whole = {series.name: series.y.tolist() for series in correctness.panels[0].series}
    assert whole["false positive"] == [0, 1]
    assert [series.name for series in kinds.panels[0].series] == ["a", "b"]


@pytest.mark.parametrize("name", ["kind", "place"])
def test_a_method_may_have_the_name_of_a_column(measurements: pd.DataFrame, name: str) -> None:
    renamed = measurements.replace({"probe": {"careful": name}})
    for found, before in zip(figures(renamed), figures(measurements), strict=True):
        assert found.ticks == (name, "bold")
        for panel, as_before in zip(found.panels, before.panels, strict=True):
            assert panel.title == as_before.title
            for series, same in zip(panel.series, as_before.series, strict=True):
                assert series.name == same.name
                np.testing.assert_array_equal(series.y, same.y)
