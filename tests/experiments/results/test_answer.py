"""The sentence and the figure that come first follow from words and numbers, and stay short."""

from itertools import product
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from rich.table import Table

from experiments.cli.tables import of_answer, of_claims, of_heads, of_onsets
from experiments.report.data import ReportData
from experiments.results.answer import (
    Answer,
    CodeAnswer,
    Judged,
    Reading,
    answer_of,
    judged_by_removal,
)
from experiments.results.guesser import OF_ANSWERS, Score
from experiments.results.position_use import STRONGEST, Word
from experiments.results.readability import Verdict
from experiments.results.usage import use_verdicts
from probes.code_names import CODES, COUNTING, JUDGED, SMOOTH

LOSS = Score("loss", "nats per token", (3.2, 3.1, 3.3), 5.4)


def answer(*words: Word | None, **more: Any) -> Answer:
    codes = zip(CODES, words, strict=True)
    return Answer(tuple(CodeAnswer(c, w, None, None, None) for c, w in codes), "text", **more)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            (Word.NOT_USED, Word.UNDECIDED, Word.USED, Word.NOT_USED),
            "This model uses the smooth trend. It does not use variance or the irregular part; "
            "similarity is undecided.",
        ),
        (
            (Word.USED, Word.USED, Word.USED, Word.USED),
            "This model uses variance, similarity, the smooth trend and the irregular part.",
        ),
        (
            (Word.USED, Word.NOT_USED, Word.REDUNDANT, Word.UNDECIDED),
            "This model uses variance. It does not use similarity; the smooth trend is redundant; "
            "the irregular part is undecided.",
        ),
        (
            (Word.NOT_USED, Word.NOT_USED, Word.NOT_USED, Word.UNDECIDED),
            "This model does not use variance, similarity or the smooth trend; the irregular "
            "part is undecided.",
        ),
        (
            (Word.REDUNDANT, Word.UNDECIDED, Word.UNDECIDED, Word.REDUNDANT),
            "Variance and the irregular part are redundant; similarity and the smooth trend are "
            "undecided.",
        ),
        (
            (Word.USED, Word.NOT_USED, Word.CONTRIBUTES, Word.UNDECIDED),
            "This model uses variance and follows the smooth trend. It does not use similarity; "
            "the irregular part is undecided.",
        ),
        (
            (Word.CONTRIBUTES, Word.CONTRIBUTES, Word.UNDECIDED, Word.UNDECIDED),
            "This model follows variance and similarity. The smooth trend and the irregular part "
            "are undecided.",
        ),
        (
            (Word.UNDECIDED,) * 4,
            "Whether this model uses any of these position codes is undecided.",
        ),
    ],
)
def test_the_sentence_tells_each_word(words: tuple[Word, ...], sentence: str) -> None:
    assert answer(*words).sentence == sentence


def test_every_sentence_has_at_most_25_words_and_names_every_code_once() -> None:
    for words in product(STRONGEST[:-1], repeat=4):
        said = answer(*words).sentence
        assert len(said.split()) <= 25, said
        if set(words) != {Word.UNDECIDED}:
            assert [said.lower().count(code) for code in CODES] == [1, 1, 1, 1], said


def test_every_sentence_about_readings_has_at_most_25_words() -> None:
    for words in product(("readable", "faint", "unreadable", "undecided", "invalid"), repeat=4):
        codes = tuple(
            CodeAnswer(code, None, None, None, Reading("trained", word, (0.5, 0.4, 0.6), "input"))
            for code, word in zip(CODES, words, strict=True)
        )
        said = Answer(codes, "text").sentence
        assert len(said.split()) <= 25, said
        assert all(said.count(code) == 1 for code in CODES), said


def _read(**words: str) -> str:
    """What is said where each code is read so."""
    codes = [
        CodeAnswer(code, None, None, None, Reading("trained", word, (0.5, 0.4, 0.6), "input"))
        for code, word in words.items()
    ]
    return Answer(tuple(codes), "text").sentence


def test_what_can_be_read_is_told_in_english() -> None:
    assert (
        _read(variance="readable", counting="readable", similarity="faint")
        == "Position can be read from variance and counting; faintly from similarity."
    )
    assert (
        _read(variance="faint", similarity="unreadable", counting="unreadable")
        == "Position can be read faintly from variance; not from similarity or counting."
    )
    assert (
        _read(variance="unreadable", similarity="undecided")
        == "Position cannot be read from variance; undecided: similarity."
    )
    assert (
        _read(variance="undecided", similarity="invalid")
        == "Whether position can be read is not settled; undecided: variance; "
        "control failed: similarity."
    )


def test_accuracy_stands_beside_that_of_a_guesser_who_is_blind_to_order() -> None:
    score = Score("accuracy", OF_ANSWERS, (0.86, 0.8, 0.9), 0.35)
    told = "Its accuracy is 86% [80%, 90%] of answers; an order-blind guesser's is 35%."
    assert score.sentence == told
    assert score.brief == "accuracy 86%, order-blind guesser 35%."
    nearly = Score("accuracy", OF_ANSWERS, (0.9975, 0.99, 1.0), 0.35)
    assert "is >99% [99%, 100%] of answers" in nearly.sentence


def test_a_reason_stands_in_place_of_words() -> None:
    reason = "This model does not surely beat chance."
    assert answer(*[Word.UNDECIDED] * 4, reason=reason).sentence == reason


def verdict(code: str, variant: str, gain: float, word: str, **more: Any) -> dict[str, Any]:
    """A row of a verdict whose value gains so much; of an error where smaller is better."""
    smaller = code in ("variance", "similarity")
    chance = 32.0 if smaller else 0.0
    ends = [chance * (1 - g) if smaller else g for g in (gain, gain - 0.1, gain + 0.1)]
    value, low, high = ends if not smaller else (ends[0], ends[2], ends[1])
    row = {"variant": variant, "tokens": "text", "begin_token": False, "verdict": word}
    row |= {"layer": 2, "site": "resid_post", "chance": chance}
    return row | {"value": value, "ci_low": low, "ci_high": high} | more


@pytest.mark.parametrize("code", ["variance", "similarity", "counting", "mean residual"])
def test_readings_stand_beside_each_other_as_gains(code: str) -> None:
    rows = [
        verdict(code, "trained", 0.9, "readable", tokens="random"),
        verdict(code, "trained", 0.6, "readable"),
        verdict(code, "random-init", 0.2, "faint"),
    ]
    judged = Judged("trained", "text", False, LOSS, {code: Word.USED}, {code: (0.5, 0.4, 0.6)}, "x")
    (found,) = answer_of([Verdict(code, "", rows)], judged).codes
    assert found.before is not None
    assert found.after is not None
    assert (found.before.word, found.after.word) == ("faint", "readable")
    assert found.before.gain == pytest.approx((0.2, 0.1, 0.3))
    # In the setting that was judged, and not in the one that was read first.
    assert found.after.gain == pytest.approx((0.6, 0.5, 0.7))
    assert (found.word, found.share) == (Word.USED, (0.5, 0.4, 0.6))


def test_used_codes_come_first() -> None:
    words = dict(zip(CODES, (Word.UNDECIDED, Word.NOT_USED, Word.USED, Word.USED), strict=True))
    judged = Judged("trained", "text", False, LOSS, words, {}, "x")
    order = [found.code for found in answer_of([], judged).codes]
    assert order == ["smooth trend", "irregular part", "variance", "similarity"]


def test_what_is_read_of_a_smooth_trend_is_counting() -> None:
    """One line, where a trend was moved and counting was read."""
    rows = [verdict("counting", "trained", 0.6, "readable")]
    words = {"smooth trend": Word.USED, "variance": Word.NOT_USED}
    judged = Judged("trained", "text", False, LOSS, words, {}, "x")
    trend, variance = answer_of([Verdict("counting", "", rows)], judged).codes
    assert (trend.code, variance.code) == ("smooth trend", "variance")
    assert trend.after is not None
    assert trend.after.word == "readable"


@pytest.mark.parametrize("trend", [SMOOTH, COUNTING])
def test_the_probe_of_vectors_reads_the_whole_mean_residual(trend: str) -> None:
    """It stands beside the whole, and not beside one of its halves, where the whole was moved."""
    rows = [verdict("mean residual", "trained", 0.4, "readable")]
    moved = [trend if code == SMOOTH else code for code in JUDGED]
    words = dict.fromkeys(moved, Word.UNDECIDED)
    judged = Judged("trained", "text", False, LOSS, words, {}, "x")
    found = {c.code: c.after for c in answer_of([Verdict("mean residual", "", rows)], judged).codes}
    whole = found["mean residual"]
    assert whole is not None
    assert whole.word == "readable"
    assert found["irregular part"] is None


def test_an_untrained_model_alone_has_no_before() -> None:
    rows = [verdict("counting", "random-init", 0.2, "faint")]
    (found,) = answer_of([Verdict("counting", "", rows)], None).codes
    assert found.before is None
    assert found.after is not None


def test_removal_of_codes_fills_the_answer(causal_report: ReportData) -> None:
    on_text, on_random = use_verdicts(causal_report.measurements)
    judged = judged_by_removal(on_text)
    told = {use.code: use.word for use in on_text.of_stream}
    assert judged.words == told
    assert judged.words["variance"] == Word.USED  # the model is planted to use it
    assert judged.shares["variance"] == on_text.of_stream[0].necessity
    assert judged.restored["variance"] == on_text.of_stream[0].sufficiency
    assert judged.score.value == on_text.intact
    found = answer_of(causal_report.verdicts, judged)
    assert found.sentence.startswith("This model uses variance")
    assert "a bigram guesser's is" in found.measured_on
    # The other model is untrained: it does not beat chance.
    reason = judged_by_removal(on_random).reason
    assert reason.startswith("This model does not surely beat an order-blind guesser")
    assert len(reason.split()) <= 25


def test_nothing_read_and_nothing_judged_is_an_answer_too() -> None:
    assert answer_of([], None).codes == ()


def test_tables_for_a_terminal_have_at_most_fifteen_lines(causal_report: ReportData) -> None:
    judged = judged_by_removal(causal_report.uses[0])
    heads = pd.DataFrame(
        [
            {"layer": layer, "head": 0, "label": f"kind {layer}", "ablated_label": "none"}
            | {"confidence": layer / 30}
            for layer in range(30)
        ]
    )
    claims = pd.DataFrame(
        [
            {
                "claim": f"probe-small-vocabulary-{i}"[:22],
                "status": "not testable here",
                "too_small": False,
            }
            | {"test": "reproduced where the 95% interval lies from -0.02 to 0.02"}
            | {"value": 1.11e-8, "ci_low": -3.33e-8, "ci_high": 6.62e-8}
            for i in range(14)
        ]
    )
    onsets = pd.DataFrame({"variance": [1.0, 2.0], "counting": [float("nan"), 8.0]})
    followed = pd.DataFrame({"smooth trend": [4.0, 4.0], "variance": [float("nan")] * 2})
    found = {
        "answer": of_answer(answer_of(causal_report.verdicts, judged), 100),
        "heads": of_heads(heads, ablated=True),
        "claims": of_claims(claims),
        "onsets": of_onsets(onsets, followed),
    }
    printed = {name: rendered(table) for name, table in found.items()}
    assert all(len(text.splitlines()) <= 15 for text in printed.values())
    assert "and 20 more" in printed["heads"]
    assert "and 4 more" in printed["claims"]
    assert "1 to 2" in printed["onsets"]
    assert "1 of 2" in printed["onsets"]
    assert "4 to 4 (2 of 2 seeds)" in printed["onsets"]
    assert "never" in printed["onsets"]
    for word in ("variance", "used", "not used", "readable", "faint"):
        assert word in printed["answer"]


def rendered(table: Table) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(table)
    return capture.get()
