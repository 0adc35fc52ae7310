"""The table of what was moved, out of rows that were made up."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.results.code_ablation import EVERYWHERE, SIZE_MATCHED, STREAM
from experiments.results.interchange import (
    ACCURACY,
    ADDED,
    ADDED_PARTICULAR,
    ADDED_THIS_ORDER,
    BEYOND,
    BROKEN,
    CARRIED,
    GUESSER,
    IN_UNRELATED,
    LOST_BY_SHUFFLE,
    NET,
    ORDER_DESTROYED,
    OVER_TENTH,
    OVER_THOUSANDTH,
    PROBE,
    QUESTION,
    RANK,
    RESTORED,
    THIS_ORDER,
    TOLD_UNRELATED,
    TOWARDS,
    at_dose,
    denoising,
    doses,
    extrapolated,
    followed,
    nearer_than,
    net_rows,
    noising,
    uses,
)
from experiments.results.measurements import table
from experiments.results.position_use import Word
from probes.code_names import HALVES, MEAN_RESIDUAL, SMOOTH, VARIANCE

Place = tuple[int, str]
BLOCK, STREAMED = (0, "resid_post"), (EVERYWHERE, STREAM)


def row(
    condition: str, place: Place, metric: str, value: float, control: str = "", width: float = 0.05
) -> dict[str, Any]:
    layer, site = place
    context = {"experiment": "probe", "model": "m", "variant": "trained", "tokens": "reversal"}
    where = {"begin_token": True, "seed": 0, "layer": layer, "site": site, "probe": PROBE}
    ends = {"ci_low": value - width, "ci_high": value + width, "chance": math.nan, "n": 100}
    own = {"positions": condition, "metric": metric, "value": value, "control": control}
    return {**context, **where, **ends, **own}


def effect(code: str, place: Place, moved: float, restored: float) -> list[dict[str, Any]]:
    """The rows of one code: what is net of a control of a tenth."""
    noised, denoised = noising(code, QUESTION), denoising(code, QUESTION)
    return [
        row(noised, place, CARRIED, 1.0),
        row(noised, place, TOWARDS, moved + 0.1),
        row(noised, place, TOWARDS, 0.1, SIZE_MATCHED),
        row(noised, place, NET, moved),
        row(noised, place, RANK, 0.001 if moved > 0.1 else 0.5, width=0),
        row(denoised, place, CARRIED, 1.0),
        row(denoised, place, RESTORED, restored + 0.1),
        row(denoised, place, RESTORED, 0.1, SIZE_MATCHED),
        row(denoised, place, RESTORED, 0.05, ORDER_DESTROYED),
        row(denoised, place, NET, restored),
        row(denoised, place, RANK, 0.001 if restored > 0.1 else 0.5, width=0),
    ]


def bare(code: str, place: Place) -> list[dict[str, Any]]:
    """The rows of a code that so few positions cannot have."""
    return [
        row(condition, place, CARRIED, 0.0)
        for condition in (noising(code, QUESTION), denoising(code, QUESTION))
    ]


def identified(place: Place, against: float) -> list[dict[str, Any]]:
    condition = extrapolated(QUESTION)
    return [
        row(condition, place, nearer_than("t"), 0.9),
        row(condition, place, nearer_than("log m"), against),
    ]


def test_each_code_has_a_word_and_its_numbers() -> None:
    rows = [
        *effect(MEAN_RESIDUAL, BLOCK, 0.8, 0.7),
        *effect("irregular part", BLOCK, 0.0, 0.5),
        *bare(VARIANCE, BLOCK),
    ]
    found = followed(table(rows)).set_index("code")
    assert found["word"].to_dict() == {
        MEAN_RESIDUAL: Word.USED,
        "irregular part": Word.REDUNDANT,
        VARIANCE: Word.NOT_USED,
    }
    assert next(iter(found.index)) == MEAN_RESIDUAL
    used = found.loc[MEAN_RESIDUAL]
    assert used["towards"] == pytest.approx(0.9)
    assert (used["net"], used["net_low"]) == pytest.approx((0.8, 0.75))
    assert (used["restored"], used["destroyed"]) == pytest.approx((0.8, 0.05))
    # Two p-values of four: 0.001 of 0.001, 0.001, 0.001, 0.5.
    assert used["q"] == pytest.approx(0.001 * 4 / 3)
    assert math.isnan(found.loc[VARIANCE, "q"])


@pytest.mark.parametrize(
    ("against", "at_site", "in_stream"),
    [
        (0.06, "counting", "counting"),
        (0.04, SMOOTH, SMOOTH),
    ],
)
def test_a_trend_counts_where_1_over_m_surely_beats_all_others(
    against: float, at_site: str, in_stream: str
) -> None:
    rows = [
        *effect(SMOOTH, BLOCK, 0.8, 0.7),
        *effect(SMOOTH, STREAMED, 0.8, 0.7),
        *identified(BLOCK, against),
    ]
    names = {use.layer: use.name for use in uses(table(rows))}
    assert names == {0: at_site, EVERYWHERE: in_stream}


def test_a_stream_does_not_count_where_a_site_that_is_used_does_not() -> None:
    later = (1, "resid_post")
    rows = [
        *effect(SMOOTH, BLOCK, 0.8, 0.7),
        *effect(SMOOTH, later, 0.8, 0.7),
        *effect(SMOOTH, STREAMED, 0.8, 0.7),
        *identified(BLOCK, 0.5),
        *identified(later, -0.5),
    ]
    names = {use.layer: use.name for use in uses(table(rows))}
    assert names == {0: "counting", 1: SMOOTH, EVERYWHERE: SMOOTH}
    unused = [*effect(SMOOTH, BLOCK, 0.0, 0.0), *effect(SMOOTH, STREAMED, 0.8, 0.7)]
    found = uses(table([*unused, *identified(BLOCK, 0.5)]))
    assert {use.layer: use.name for use in found}[EVERYWHERE] == SMOOTH


@pytest.mark.parametrize(("later", "name"), [(0.5, "counting"), (-0.5, SMOOTH), (None, SMOOTH)])
def test_where_the_stream_alone_is_moved_1_over_m_has_to_win_at_all_of_its_sites(
    later: float | None, name: str
) -> None:
    rows = effect(SMOOTH, STREAMED, 0.8, 0.7)
    if later is not None:
        rows += [*identified(BLOCK, 0.5), *identified((1, "resid_post"), later)]
    (use,) = uses(table(rows))
    assert use.name == name


@pytest.mark.parametrize(
    ("right", "guesser", "left", "words"),
    [
        # Half of what is right rests on order, and three quarters may be left where it is lost.
        (0.8, 0.4, 0.65, [Word.REDUNDANT, Word.NOT_USED]),
        (0.8, 0.4, 0.75, [Word.UNDECIDED, Word.NOT_USED]),
        (0.8, 0.7, 0.1, [Word.REDUNDANT, Word.UNDECIDED]),
    ],
)
def test_words_are_held_against_what_order_can_tell(
    right: float, guesser: float, left: float, words: list[Word]
) -> None:
    rows = [*effect(MEAN_RESIDUAL, BLOCK, 0.0, 0.5), *effect(VARIANCE, BLOCK, 0.0, 0.0)]
    for one in rows:
        if one["control"] == ORDER_DESTROYED:
            one["value"], one["ci_high"] = left, left + 0.05
    gates = [
        row("", STREAMED, ACCURACY, right),
        row("", STREAMED, ACCURACY, guesser, GUESSER),
        row("", STREAMED, LOST_BY_SHUFFLE, 0.3),
    ]
    assert [use.word for use in uses(table([*rows, *gates]))] == words
    # On a task that no order matters to any change counts, whoever guesses it.
    assert uses(table([*rows, *gates[:2]]))[1].word is Word.NOT_USED


def test_where_no_order_matters_a_control_that_changes_half_of_the_answers_clears_no_code() -> None:
    """There no answer does neither: what changes follows, under the control as well."""
    rows, told = effect(VARIANCE, BLOCK, 0.0, 0.0), noising(VARIANCE, QUESTION)
    gates = [row("", STREAMED, ACCURACY, 0.9), row("", STREAMED, ACCURACY, 0.4, GUESSER)]
    for changed, word in ((0.4, Word.NOT_USED), (0.6, Word.UNDECIDED)):
        for one in rows:
            if (one["positions"], one["metric"]) == (told, TOWARDS):
                one |= {"value": changed, "ci_low": changed - 0.05, "ci_high": changed + 0.05}
        (use,) = uses(table([*rows, *gates]))
        assert use.word is word
    assert use.why == "surely followed less than 10%, but a random move as large may break 65%"
    # Where order matters, answers that neither stay nor follow are broken.
    (use,) = uses(table([*rows, *gates, row("", STREAMED, LOST_BY_SHUFFLE, 0.3)]))
    assert use.word is Word.NOT_USED


def test_no_rows_have_no_uses() -> None:
    assert uses(pd.DataFrame(columns=table([]).columns)) == []


def word_of(rows: list[dict[str, Any]]) -> tuple[str, str]:
    found = followed(table(rows)).iloc[0]
    return str(found["word"]), str(found["why"])


def test_what_a_move_breaks_is_read_off_its_row() -> None:
    idle, moved = effect(VARIANCE, BLOCK, 0.0, 0.0), noising(VARIANCE, QUESTION)
    assert word_of([*idle, row(moved, BLOCK, BROKEN, 0.0)]) == (Word.NOT_USED, "")
    word, why = word_of([*idle, row(moved, BLOCK, BROKEN, 0.3)])
    assert word == Word.UNDECIDED
    assert "minus its control, may reach 10%" in why


def test_what_comes_back_in_the_destroyed_order_alone_is_subtracted() -> None:
    used = effect(MEAN_RESIDUAL, BLOCK, 0.8, 0.7)
    back = denoising(MEAN_RESIDUAL, QUESTION)
    assert word_of([*used, row(back, BLOCK, BEYOND, 0.6)]) == (Word.USED, "")
    found = followed(table([*used, row(back, BLOCK, BEYOND, 0.02)])).iloc[0]
    assert found["restored_net"] == pytest.approx(0.02)
    assert (found["word"], found["why"]) == (Word.CONTRIBUTES, "")


def test_what_an_unrelated_order_does_as_well_follows_no_order() -> None:
    used = effect(MEAN_RESIDUAL, BLOCK, 0.8, 0.7)
    told = noising(MEAN_RESIDUAL, QUESTION)
    assert word_of([*used, row(told, BLOCK, THIS_ORDER, 0.9)]) == (Word.USED, "")
    as_far = table(
        [
            *used,
            row(told, BLOCK, TOWARDS, 0.85, TOLD_UNRELATED),
            row(told, BLOCK, TOWARDS, 0.5, IN_UNRELATED),
            row(told, BLOCK, THIS_ORDER, 0.02),
        ]
    )
    found = followed(as_far).iloc[0]
    assert (found["word"], found["why"]) == (
        Word.UNDECIDED,
        "moved: an unrelated order may do as much",
    )
    assert (found["net"], found["towards"]) == pytest.approx((0.02, 0.9))
    assert (found["unrelated_order"], found["text_unrelated"]) == pytest.approx((0.85, 0.5))
    (least,) = net_rows(as_far)[net_rows(as_far)["positions"] == told].to_dict("records")
    assert (least["metric"], least["value"]) == (THIS_ORDER, 0.02)


def test_a_code_that_is_found_at_no_site_is_not_called_used() -> None:
    used = effect(MEAN_RESIDUAL, BLOCK, 0.8, 0.7)
    hidden = [{**of, "value": 0.0} if of["metric"] == CARRIED else of for of in used]
    assert word_of(used)[0] == Word.USED
    word, why = word_of(hidden)
    assert word == Word.UNDECIDED
    assert why.startswith("found at no site")
    assert followed(table(hidden)).iloc[0]["carried"] == 0


def test_what_smaller_moves_do_stands_by_code_and_dose() -> None:
    there = noising(VARIANCE, QUESTION)
    rows = [
        *effect(VARIANCE, STREAMED, moved=0.6, restored=0.5),
        row(there, STREAMED, at_dose(0.3), 0.2),
        row(there, STREAMED, at_dose(0.3), 0.02, SIZE_MATCHED),
        row(there, STREAMED, at_dose(0.05), 0.1),
        row(there, STREAMED, at_dose(0.05), 0.01, SIZE_MATCHED),
        # Another control of the full move.
        row(there, STREAMED, TOWARDS, 0.4, IN_UNRELATED),
        # Moved all of the way alone: there is nothing to compare.
        *effect(MEAN_RESIDUAL, BLOCK, moved=0.6, restored=0.5),
    ]
    found = doses(table(rows))
    assert set(found["code"]) == {VARIANCE}
    shown = found[["dose", "towards", "towards_low", "towards_high", "size_matched"]]
    expected = [
        [0.05, 0.1, 0.05, 0.15, 0.01],
        [0.3, 0.2, 0.15, 0.25, 0.02],
        [1.0, 0.7, 0.65, 0.75, 0.1],
    ]
    np.testing.assert_allclose(shown, expected)
    assert doses(table(rows[-len(effect(VARIANCE, BLOCK, moved=0, restored=0)) :])).empty


def test_a_short_way_to_text_further_on_is_told_by_its_row() -> None:
    """Undecided there: its interval contains a tenth."""
    rows = effect(MEAN_RESIDUAL, STREAMED, 0.1, 0.0)
    assert [use.word for use in uses(table(rows))] == [Word.UNDECIDED]
    for over, kept in ((0.2, 1), (0.0, 1), (-0.2, 0)):
        assert len(uses(table([*rows, row(QUESTION, STREAMED, OVER_TENTH, over)]))) == kept


def test_of_next_to_no_way_to_text_further_on_no_share_counts() -> None:
    rows = effect(VARIANCE, STREAMED, 0.5, 0.0)
    assert [use.word for use in uses(table(rows))] == [Word.CONTRIBUTES]
    for over, kept in ((0.2, 1), (0.0, 1), (-0.2, 0)):
        short = [row(QUESTION, STREAMED, metric, over) for metric in (OVER_TENTH, OVER_THOUSANDTH)]
        assert len(uses(table([*rows, *short]))) == kept


ADDS = (ADDED, ADDED_PARTICULAR, ADDED_THIS_ORDER)


@pytest.mark.parametrize("named", [noising, denoising])
@pytest.mark.parametrize("metric", ADDS)
def test_a_half_that_adds_too_little_in_one_way_is_not_called_used(
    metric: str, named: Callable[[str, str], str]
) -> None:
    """The whole is used, and neither half does anything alone."""
    rows = effect(MEAN_RESIDUAL, BLOCK, 0.8, 0.7)
    rows += [of for half in HALVES for of in effect(half, BLOCK, 0.0, 0.0)]
    added = {
        (half, direction, kind): 0.5
        for half in HALVES
        for direction in (noising, denoising)
        for kind in ADDS
    }
    words = []
    for value in (0.16, 0.14):  # surely a tenth, and not: the interval is 0.05 to either side
        added[SMOOTH, named, metric] = value
        told = [row(of(half, QUESTION), BLOCK, kind, v) for (half, of, kind), v in added.items()]
        words.append({use.code: use.word for use in uses(table([*rows, *told]))})
    used = dict.fromkeys((MEAN_RESIDUAL, *HALVES), Word.USED)
    assert words == [used, {**used, SMOOTH: Word.NOT_USED}]
