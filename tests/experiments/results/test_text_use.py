"""What is said of a language model whose positions were moved, from rows made by hand."""

from typing import Any

import pandas as pd
import pytest

from experiments.results import interchange as names
from experiments.results.answer import answer_of
from experiments.results.code_ablation import EVERYWHERE, STREAM
from experiments.results.measurements import table
from experiments.results.position_use import Word
from experiments.results.text_use import (
    ABOVE_BIGRAM,
    BIGRAM,
    LOST_BY_PERMUTATION,
    NATS,
    PROBE,
    judged_on_text,
    without_order_on_text,
)

SETTING = {
    "experiment": "compare",
    "model": "small",
    "variant": "trained",
    "tokens": "text",
    "begin_token": False,
    "seed": 0,
}


def row(metric: str, value: float, **columns: Any) -> dict[str, Any]:
    ends = {"ci_low": value - 0.02, "ci_high": value + 0.02, "chance": 3.0, "n": 100}
    where = {"layer": EVERYWHERE, "site": STREAM, "positions": "intact", "probe": PROBE}
    named = {"metric": metric, "value": value, "control": ""}
    return {**SETTING, **ends, **where, **named, **columns}


def gate(lost: float) -> list[dict[str, Any]]:
    return [
        row(NATS, 1.9),
        row(NATS, 2.4, control=BIGRAM),
        row(ABOVE_BIGRAM, 0.5),
        row(LOST_BY_PERMUTATION, lost),
    ]


def moved(
    code: str,
    noised: float,
    restored: float,
    layer: int = EVERYWHERE,
    what: str = "earlier tokens",
) -> list[Any]:
    where = {"probe": names.PROBE, "layer": layer}
    return [
        row(metric, value, positions=condition, **where)
        for condition, net in (
            (names.noising(code, what), noised),
            (names.denoising(code, what), restored),
        )
        for metric, value in ((names.CARRIED, 1.0), (names.NET, net), (names.RANK, 0.001))
    ]


def measured(lost: float = 0.3) -> pd.DataFrame:
    return table(
        [
            *gate(lost),
            *moved("mean residual", 0.6, 0.5),
            *moved("variance", 0.01, 0.02),
            *moved("similarity", 0.02, 0.4),
            *moved("variance", 0.9, 0.9, layer=1),
            # Moved in two ways: that counts by which more is said.
            *moved("mean residual", 0.02, 0.5, what="text by 32 positions"),
            *moved("variance", 0.01, 0.02, what="text by 32 positions"),
        ]
    )


def test_the_whole_stream_gives_each_code_its_word() -> None:
    (judged,) = judged_on_text(measured())
    assert judged.words == {
        "mean residual": Word.USED,
        "variance": Word.NOT_USED,
        "similarity": Word.REDUNDANT,
    }
    # What follows the move and what comes back with it are of one and the same move.
    assert judged.shares["mean residual"] == pytest.approx((0.6, 0.58, 0.62))
    assert judged.restored["mean residual"] == pytest.approx((0.5, 0.48, 0.52))
    assert judged.score.value == pytest.approx((1.9, 1.88, 1.92))
    assert judged.reason == ""
    answer = answer_of([], judged)
    assert answer.sentence == (
        "This model uses the mean residual. It does not use variance; similarity is redundant."
    )
    assert [code.code for code in answer.codes] == ["mean residual", "similarity", "variance"]


def test_a_trend_that_1_over_m_predicts_is_called_counting() -> None:
    def said(nearer: float) -> set[str]:
        where = {"probe": names.PROBE, "layer": 0, "site": "resid_post"}
        rivals = [
            row(
                names.nearer_than(rival),
                nearer,
                positions=names.extrapolated("earlier tokens"),
                **where,
            )
            for rival in ("t", "log m")
        ]
        measured = table([*gate(0.3), *moved("smooth trend", 0.6, 0.5), *rivals])
        (judged,) = judged_on_text(measured)
        assert set(judged.shares) == set(judged.words)
        return set(judged.words)

    assert said(0.3) == {"counting"}
    assert said(-0.3) == {"smooth trend"}


def test_a_model_that_has_not_learned_order_gets_no_word() -> None:
    (judged,) = judged_on_text(table(gate(lost=0.01)))
    assert set(judged.words.values()) == {Word.NO_ORDER}
    assert answer_of([], judged).sentence == judged.reason
    assert judged.reason == (
        "The model has not learned order: it loses 1.9 nats per token, a bigram guesser 2.4. "
        "Permuting earlier tokens adds 0.01. Train it longer, or give another one."
    )
    assert without_order_on_text(measured()) is None


def test_who_loses_by_the_order_of_tokens_no_more_than_rounding_has_not_learned_it() -> None:
    for low, learned in ((7e-9, False), (7e-6, True)):
        lost = row(LOST_BY_PERMUTATION, 2 * low, ci_low=low, ci_high=3 * low)
        told = without_order_on_text(table([*gate(0.3)[:-1], lost]))
        assert (told is None) == learned


def test_where_nothing_was_moved_nothing_is_judged() -> None:
    rows = measured()
    assert judged_on_text(rows[rows["probe"] == "linear"]) == []
