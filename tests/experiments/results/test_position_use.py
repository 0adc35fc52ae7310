"""Words for position codes, by the table of the rule; q-values against scipy."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from experiments.results.position_use import (
    FALSE_DISCOVERIES,
    HIDES,
    Effect,
    Use,
    Word,
    controlled,
    of_halves,
    strongest,
    worth_following,
)
from experiments.results.worth import WORTH_NAMING

YES = Effect((0.5, 0.4, 0.6), 0.001, 0.01)
NO = Effect((0.02, -0.02, 0.06), 0.4, 0.6)
WIDE = Effect((0.3, 0.05, 0.5), 0.001, 0.01)
NO_RANK = Effect((0.5, 0.4, 0.6), 0.2, 0.3)


def use(noising: Effect | None, denoising: Effect | None) -> Use:
    return Use("mean residual", 0, "resid_post", "question", noising, denoising)


@pytest.mark.parametrize(
    ("noising", "denoising", "word"),
    [
        (YES, YES, Word.USED),
        (NO, YES, Word.REDUNDANT),
        (NO, NO, Word.NOT_USED),
        (YES, NO, Word.CONTRIBUTES),
        (WIDE, YES, Word.UNDECIDED),
        (YES, WIDE, Word.CONTRIBUTES),
        (NO_RANK, YES, Word.UNDECIDED),
        (NO, NO_RANK, Word.UNDECIDED),
        (None, None, Word.NOT_USED),
    ],
)
def test_both_directions_have_to_agree(
    noising: Effect | None, denoising: Effect | None, word: Word
) -> None:
    assert use(noising, denoising).word is word


@pytest.mark.parametrize(
    ("noising", "denoising", "why"),
    [
        (YES, YES, ""),
        (NO, NO, ""),
        (None, None, ""),
        (YES, NO, ""),
        (YES, WIDE, ""),
        (WIDE, YES, "moved: its interval contains 10%"),
        (
            replace(WIDE, this_order=(0.0, -0.04, 0.03)),
            YES,
            "moved: its interval against a random change contains 10%",
        ),
        (
            NO_RANK,
            replace(WIDE, beyond=(0.2, 0.12, 0.28)),
            "moved: too many controls do as much; "
            "put back: its interval against a random change contains 10%",
        ),
        (
            NO_RANK,
            replace(YES, beyond=(0.4, 0.05, 0.7), this_order=(0.1, 0.02, 0.08)),
            "moved: too many controls do as much; "
            "put back: its interval against nothing put back contains 10%",
        ),
        (
            replace(YES, particular=(0.4, 0.05, 0.7), this_order=(0.1, 0.02, 0.08)),
            YES,
            "moved: its interval against random functions contains 10%",
        ),
        (replace(WIDE, this_order=(0.2, 0.0, 0.4)), YES, "moved: its interval contains 10%"),
        (
            NO_RANK,
            WIDE,
            "moved: too many controls do as much; put back: its interval contains 10%",
        ),
        (
            replace(NO, broken=(0.2, 0.15, 0.25)),
            NO,
            "surely followed less than 10%, but what it breaks, minus its control, may reach 10%",
        ),
    ],
)
def test_who_is_undecided_says_why(
    noising: Effect | None, denoising: Effect | None, why: str
) -> None:
    assert use(noising, denoising).why == why


SURE, UNSURE = (0.6, 0.5, 0.7), (0.2, 0.05, 0.3)


@pytest.mark.parametrize(
    ("adds", "alone", "word"),
    [
        ((SURE, SURE), use(NO, NO), Word.USED),
        ((SURE, SURE), use(YES, NO), Word.USED),
        ((SURE, UNSURE), use(NO, NO), Word.NOT_USED),
        ((UNSURE, SURE), use(YES, NO), Word.CONTRIBUTES),
        # A half that does it alone needs no other.
        ((UNSURE, UNSURE), use(YES, YES), Word.USED),
        ((SURE, SURE), use(NO, YES), Word.REDUNDANT),
    ],
)
def test_a_half_is_used_where_the_whole_needs_it(
    adds: tuple[tuple[float, float, float], ...], alone: Use, word: Word
) -> None:
    assert replace(alone, adds=adds).word is word


@pytest.mark.parametrize(
    ("broken", "word"),
    [
        ((0.05, 0.0, 0.09), Word.NOT_USED),
        ((0.05, 0.0, WORTH_NAMING), Word.UNDECIDED),
        ((0.4, 0.3, 0.5), Word.UNDECIDED),
        ((-0.4, -0.5, -0.3), Word.NOT_USED),
    ],
)
def test_what_a_move_breaks_is_not_said_to_be_unused(
    broken: tuple[float, float, float], word: Word
) -> None:
    breaking = replace(NO, broken=broken)
    assert use(breaking, NO).word is word
    # Two codes that say different things may give a third answer: each of them alone suffices.
    assert use(breaking, YES).word is Word.REDUNDANT
    # Of a code that is found nowhere mostly noise is put back: that says nothing.
    for denoising in (YES, NO, WIDE):
        assert replace(use(breaking, denoising), found=False).word is word
    assert use(replace(YES, broken=broken), YES).word is Word.USED


@pytest.mark.parametrize(
    ("breaks", "word"), [(HIDES - 1e-9, Word.NOT_USED), (HIDES, Word.UNDECIDED)]
)
def test_a_control_that_breaks_half_clears_no_code(breaks: float, word: Word) -> None:
    hidden = replace(NO, control_breaks=breaks)
    assert use(hidden, NO).word is word
    for of in (use(hidden, NO), replace(use(hidden, NO), found=False)):
        assert of.word is word
        assert ("may break 50%" in of.why) == (word is Word.UNDECIDED)
    # What is followed beyond such a control is followed.
    assert use(replace(YES, control_breaks=breaks), YES).word is Word.USED
    # A code that hides is not surely left unfollowed, though answers come back with it.
    redundant = use(hidden, YES)
    assert redundant.word is (Word.REDUNDANT if word is Word.NOT_USED else word)
    assert ("may break 50%" in redundant.why) == (word is Word.UNDECIDED)


def test_any_code_of_three_positions_is_a_smooth_trend() -> None:
    """There is no irregular part to tell it from; what is followed says nothing of its shape."""
    none = replace(use(None, None), code="irregular part")
    some = replace(use(NO, NO), code="irregular part")
    for effect, word in ((YES, Word.UNDECIDED), (WIDE, Word.UNDECIDED), (NO, Word.NOT_USED)):
        trend = replace(use(effect, effect), code="smooth trend")
        found, *others = of_halves([trend, none, use(YES, YES)])
        assert found.word is word
        assert ("so few positions" in found.why) == (word is Word.UNDECIDED)
        assert others == [none, use(YES, YES)]
        elsewhere = replace(none, moved="asking positions")
        assert of_halves([trend, some, elsewhere])[0] == trend


def test_a_code_that_is_followed_contributes_whatever_comes_back() -> None:
    assert replace(use(YES, NO), destroyed=False).word is Word.CONTRIBUTES
    assert replace(use(YES, NO), found=False).word is Word.UNDECIDED
    # Any few functions of the position tell few positions apart: that takes both directions.
    few = replace(YES, particular=(0.5, 0.4, 0.6))
    assert use(few, NO).word is Word.UNDECIDED
    assert "random functions" in use(few, NO).why
    assert use(few, YES).word is Word.USED
    assert strongest([Word.REDUNDANT, Word.CONTRIBUTES]) is Word.CONTRIBUTES
    assert strongest([Word.USED, Word.CONTRIBUTES]) is Word.USED


def test_a_code_is_redundant_only_where_order_is_destroyed() -> None:
    for destroyed, word in ((True, Word.REDUNDANT), (False, Word.UNDECIDED)):
        found = replace(use(NO, YES), destroyed=destroyed)
        assert found.word is word
    assert "order was not destroyed" in found.why
    # What is followed needs no other to stand in.
    assert replace(use(YES, YES), destroyed=False).word is Word.USED
    assert replace(use(NO, NO), destroyed=False).word is Word.NOT_USED


@pytest.mark.parametrize("found", [True, False])
def test_a_code_is_unused_only_where_a_fifth_of_the_answers_rest_on_order(found: bool) -> None:
    for share, word in ((0.2, Word.NOT_USED), (0.15, Word.UNDECIDED)):
        unused = replace(use(NO, NO), found=found, rests_on_order=share)
        assert unused.word is word
    assert unused.why == (
        "only 15% of the right answers rest on order: too few to say that none follow"
    )
    assert replace(use(YES, YES), rests_on_order=0.15).word is Word.USED
    # With as few of them another reason counts where the word is another's to give.
    few = replace(use(NO, YES), rests_on_order=0.15, destroyed=False)
    assert "order was not destroyed" in few.why
    if found:
        assert replace(use(NO, WIDE), rests_on_order=0.15).why.startswith("put back: ")


@pytest.mark.parametrize(
    ("beyond", "says", "least"),
    [
        ((0.7, 0.6, 0.8), True, (0.5, 0.4, 0.6)),
        ((0.2, 0.05, 0.3), None, (0.2, 0.05, 0.3)),
        ((0.02, 0.0, 0.05), False, (0.02, 0.0, 0.05)),
    ],
)
def test_an_effect_is_net_of_its_other_control_too(
    beyond: tuple[float, float, float], says: bool | None, least: tuple[float, float, float]
) -> None:
    effect = replace(YES, beyond=beyond)
    assert effect.says is says
    assert effect.least == least
    # What an unrelated order does as well may still depend on the code.
    of_any_order = replace(YES, this_order=beyond)
    assert of_any_order.says is (says or None)
    assert of_any_order.least == least
    assert replace(NO, this_order=(0.9, 0.8, 1.0)).says is False


def test_yes_begins_at_a_tenth_and_no_ends_there() -> None:
    sure = (1.0, WORTH_NAMING, 1.0)
    assert Effect(sure, 0.01, FALSE_DISCOVERIES).says is True
    assert Effect(sure, 0.01, FALSE_DISCOVERIES + 1e-9).says is None
    assert Effect((0.05, 0.0, WORTH_NAMING), 0.01, 0.01).says is None
    assert Effect((0.05, 0.0, WORTH_NAMING - 1e-9), 0.01, 0.01).says is False


def test_a_code_that_is_found_nowhere_is_never_said_to_be_used() -> None:
    for noising in (YES, WIDE):
        hidden = replace(use(noising, YES), found=False, adds=(SURE, SURE))
        assert hidden.word is Word.UNDECIDED
        assert hidden.why.startswith("found at no site")


def test_a_rank_that_was_not_corrected_yet_says_no_yes() -> None:
    assert math.isnan(Effect((0.5, 0.4, 0.6), 0.001).q)
    assert Effect((0.5, 0.4, 0.6), 0.001).says is None


def test_false_discoveries_are_held_over_all_effects_of_a_run() -> None:
    p_values = np.array([0.001, 0.2, 0.03, 0.004, 0.5, 0.02])
    effects = [Effect((0.5, 0.4, 0.6), p) for p in p_values]
    uses = [use(*effects[:2]), use(None, None), use(*effects[2:4]), use(*effects[4:])]
    found = controlled(uses)
    q_values = [e.q for u in found for e in (u.noising, u.denoising) if e is not None]
    np.testing.assert_allclose(q_values, stats.false_discovery_control(p_values))
    assert found[1] == uses[1]
    assert controlled([]) == []


def test_a_code_is_used_where_any_of_its_moves_is() -> None:
    assert strongest([Word.NOT_USED, Word.USED, Word.UNDECIDED]) is Word.USED
    assert strongest([Word.UNDECIDED, Word.REDUNDANT]) is Word.REDUNDANT
    assert strongest([Word.NOT_USED, Word.UNDECIDED]) is Word.UNDECIDED


def test_a_smooth_trend_is_called_counting_only_where_it_is() -> None:
    trend = Use("smooth trend", 0, "resid_post", "question", YES, YES)
    assert trend.name == "smooth trend"
    assert replace(trend, counts=True).name == "counting"


def test_a_way_that_is_too_short_counts_only_where_it_is_followed() -> None:
    order = [use(NO, NO), use(WIDE, YES)]
    further = [
        replace(one, moved="text by 16 positions")
        for one in (use(YES, YES), use(YES, NO), use(WIDE, NO), use(NO, YES), use(NO, NO))
    ]
    assert worth_following([*order, *further], ()) == [*order, *further]
    assert worth_following([*order, *further], ["text by 16 positions"]) == [*order, *further[:2]]
    assert worth_following([*order, *further], (), ["text by 16 positions"]) == order
