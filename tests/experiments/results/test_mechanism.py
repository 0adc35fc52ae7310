"""What is said of a linear probe before training: short sentences, each number beside chance."""

import re

import pandas as pd
import pytest

from experiments.results.measurements import table
from experiments.results.mechanism import linear_probe_sentence

SITES = [(0, "resid_pre"), (0, "attn_out"), (0, "resid_post"), (1, "attn_out")]


def readings(
    linear: list[float], variance: float = 31.0, begun: float | None = None
) -> pd.DataFrame:
    """The linear probe's errors at `SITES`, and those of variance; all are sure to 0.1 tokens."""
    common = {"experiment": "compare", "model": "m", "variant": "random-init", "seed": 0}
    common |= {"positions": "intact", "tokens": "random", "metric": "mae", "control": ""}
    found = [("linear", error, False) for error in linear] + [("variance", variance, False)] * 4
    found += [("linear", begun, True)] * 4 if begun is not None else []
    rows = [
        common
        | {"probe": probe, "begin_token": begin, "layer": layer, "site": site, "n": 64}
        | {"value": error, "ci_low": error - 0.1, "ci_high": error + 0.1, "chance": 31.7}
        for (probe, error, begin), (layer, site) in zip(found, SITES * 3, strict=False)
    ]
    return table(rows)


def test_a_probe_at_chance_and_the_variance_that_tells_position_there() -> None:
    said = linear_probe_sentence(readings([31.7, 31.7, 31.7, 31.7], variance=11.0))
    assert said is not None
    assert "is not surely below chance (31.7 tokens) at layer 0 attn_out, layer 0" in said
    assert "At layer 0 attn_out, variance alone recovers position to within 11 tokens [" in said
    assert "(chance 31.7)" in said
    assert "lowest error" not in said


def test_a_probe_that_reads_constants() -> None:
    said = linear_probe_sentence(readings([31.7, 20.0, 18.0, 25.0], begun=9.0))
    assert said is not None
    assert "surely below chance (31.7 tokens) at every site after the embedding." in said
    assert re.search(r"error is 18 tokens \[.*?\] \(chance 31\.7\), at layer 0 resid_post\.", said)
    assert re.search(r"With one, the lowest error is 9 tokens \[.*?\] \(chance 31\.7\), at", said)


@pytest.mark.parametrize("linear", [[31.7] * 4, [31.7, 31.7, 25.0, 18.0], [31.7, 20.0, 18.0, 25.0]])
def test_no_sentence_is_longer_than_25_words(linear: list[float]) -> None:
    said = linear_probe_sentence(readings(linear, variance=11.0, begun=9.0))
    assert said is not None
    assert all(len(sentence.split()) <= 25 for sentence in said.split(". "))


def test_nothing_is_said_of_a_run_without_random_tokens() -> None:
    table = readings([31.7] * 4)
    assert linear_probe_sentence(table.assign(tokens="text")) is None
