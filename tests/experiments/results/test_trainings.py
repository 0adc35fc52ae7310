"""What several runs agree on, against pandas' own means and counts."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.results.answer import Answer, CodeAnswer
from experiments.results.guesser import OF_ANSWERS, Score
from experiments.results.intervals import Interval
from experiments.results.position_use import Word
from experiments.results.trainings import agreement, verdict_rows


def answer(words: dict[str, tuple[Word | None, Interval | None]], right: float) -> Answer:
    codes = tuple(
        CodeAnswer(code, word, share, None, None) for code, (word, share) in words.items()
    )
    score = Score("accuracy", OF_ANSWERS, (right, right - 0.1, right), 0.4)
    return Answer(codes, "reversal", score)


def rows(positions: str, seed: int, found: Answer) -> list[dict[str, object]]:
    return [{"cell.seed": seed, "cell.positions": positions} | row for row in verdict_rows(found)]


TRAININGS = [
    *rows("none", 0, answer({"variance": (Word.USED, (0.4, 0.3, 0.5))}, 1.0)),
    *rows("none", 1, answer({"variance": (Word.UNDECIDED, (0.2, 0.0, 0.3))}, 0.8)),
    *rows("none", 2, answer({"variance": (Word.USED, (0.6, 0.5, 0.7))}, 0.6)),
    *rows("none", 3, answer({"variance": (Word.NO_ORDER, None)}, 0.2)),
    *rows("rotary", 0, answer({"variance": (Word.NOT_USED, (0.01, 0.0, 0.02))}, 0.9)),
]


def test_each_code_that_has_a_word_is_a_row() -> None:
    read = {"similarity": (None, None), "variance": (Word.USED, (0.4, 0.3, 0.5))}
    (found,) = verdict_rows(answer(read, 1.0))
    assert found["code"] == "variance"
    assert found["word"] == "used"
    assert [found["share"], found["share_low"], found["share_high"]] == [0.4, 0.3, 0.5]
    assert (found["score"], found["chance"]) == (1.0, 0.4)


def test_words_are_counted_and_shares_averaged_over_seeds() -> None:
    found = agreement(pd.DataFrame(TRAININGS)).set_index("cell.positions")
    assert "cell.seed" not in found
    none = found.loc["none"]
    assert none["words"] == "used 2, undecided 1, has not learned order 1"
    assert none["runs"] == 4
    # The one that has not learned order has no share.
    assert none["share"] == pytest.approx(np.mean([0.4, 0.2, 0.6]))
    # Three trainings leave much open: about as much as Student's t does.
    low, high = stats.t.interval(0.95, 2, loc=0.4, scale=0.2 / 3**0.5)
    assert [none["share_low"], none["share_high"]] == pytest.approx([low, high], abs=0.1)
    assert (none["least"], none["most"]) == (0.2, 0.6)
    assert none["score"] == pytest.approx(np.mean([1.0, 0.8, 0.6, 0.2]))


def test_one_training_has_no_interval() -> None:
    rotary = agreement(pd.DataFrame(TRAININGS)).set_index("cell.positions").loc["rotary"]
    assert (rotary["words"], rotary["runs"]) == ("not used 1", 1)
    assert rotary["share"] == 0.01
    assert np.isnan(rotary["share_low"])


def test_models_told_apart_by_nothing_but_their_seed_are_one_kind() -> None:
    table = pd.DataFrame(TRAININGS[:4]).drop(columns="cell.positions")
    (only,) = agreement(table).to_dict("records")
    assert only["runs"] == 4


@pytest.mark.parametrize("key", ["cell.training.seed", "cell.transformer.seed"])
def test_a_seed_of_weights_or_training_tells_no_kinds_apart(key: str) -> None:
    table = pd.DataFrame(TRAININGS[:4]).rename(columns={"cell.seed": key})
    assert agreement(table)["runs"].tolist() == [4]


def test_a_trend_that_counts_in_one_run_is_a_trend_in_all() -> None:
    share = (0.4, 0.3, 0.5)
    moved = {"mean residual": (Word.USED, share)}
    counts = answer({**moved, "counting": (Word.USED, share)}, 1.0)
    bends = answer({**moved, "smooth trend": (Word.UNDECIDED, share)}, 1.0)
    table = pd.DataFrame([*rows("none", 0, counts), *rows("none", 1, bends)])
    found = agreement(table).set_index("code")["words"]
    assert found.to_dict() == {"mean residual": "used 2", "smooth trend": "used 1, undecided 1"}
    assert table["called"].tolist().count("counting") == 1


def test_where_nothing_was_judged_nothing_is_agreed_on() -> None:
    assert agreement(pd.DataFrame()).empty
