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
    assert (none["runs"], none["draws"]) == (4, 3)
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


def of_seeds(shares: dict[tuple[int, int], float]) -> dict[str, float]:
    """What is agreed on by runs of these seeds of weights and of training."""
    table = pd.DataFrame(
        [
            {"cell.transformer.seed": weights, "cell.training.seed": training} | row
            for (weights, training), share in shares.items()
            for row in verdict_rows(answer({"variance": (Word.USED, (share, 0.0, 1.0))}, 1.0))
        ]
    )
    (found,) = agreement(table).to_dict("records")
    return found


def test_crossed_seeds_are_as_many_draws_as_the_fewer_of_them() -> None:
    """Eight runs, whose share the seed of weights decides alone: they tell as much as two."""
    found = of_seeds({(w, t): 0.2 + 0.2 * w for w in range(2) for t in range(4)})
    assert (found["runs"], found["draws"]) == (8, 2)
    low, high = stats.t.interval(0.95, 1, loc=0.3, scale=0.1)
    bounds = [found["share_low"], found["share"], found["share_high"]]
    assert bounds == pytest.approx([low, 0.3, high], rel=1e-6)


def test_what_both_seeds_do_adds_up() -> None:
    weights, training = np.array([0.2, 0.4, 0.5]), np.array([0.0, 0.1, 0.3])
    found = of_seeds({(w, t): weights[w] + training[t] for w in range(3) for t in range(3)})
    one, other = (of_seeds({(s, s): by[s] for s in range(3)}) for by in (weights, training))
    assert found["draws"] == 3
    for bound in ("share_low", "share_high"):
        squares = sum((of["share"] - of[bound]) ** 2 for of in (one, other))
        assert (found["share"] - found[bound]) ** 2 == pytest.approx(squares, rel=0.01)


def test_seeds_that_vary_together_are_one_draw_each() -> None:
    shares = [0.1, 0.5, 0.3, 0.2]
    together = of_seeds({(seed, seed + 7): share for seed, share in enumerate(shares)})
    assert (together["runs"], together["draws"]) == (4, 4)
    of_weights = of_seeds({(seed, 0): share for seed, share in enumerate(shares)})
    assert together == of_weights


def test_trainings_of_one_models_weights_are_one_draw() -> None:
    found = of_seeds({(0, 0): 0.2, (0, 1): 0.2, (1, 2): 0.4, (1, 3): 0.4})
    assert found["draws"] == 2
    low, high = stats.t.interval(0.95, 1, loc=0.3, scale=0.1)
    assert [found["share_low"], found["share_high"]] == pytest.approx([low, high], rel=1e-6)
    # Where only one of the two has shares, nothing is known of other weights.
    found = of_seeds({(0, 0): 0.2, (0, 1): 0.3, (1, 2): np.nan, (1, 3): np.nan})
    assert found["draws"] == 1
    assert found["share"] == 0.25
    assert np.isnan(found["share_low"])


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
