"""Words on the use of codes come from a table that holds what they are judged by, or not at all."""

import pytest

from experiments.report.data import ReportData
from experiments.results.percent import percent
from experiments.results.position_use import Word
from experiments.results.usage import Use, UseVerdict, use_verdicts
from nope_interp.errors import UserError


@pytest.mark.parametrize(
    ("column", "ours", "theirs"),
    [
        ("metric", "over_size_matched", "over_displaced"),
        ("control", "size-matched", "displaced"),
        ("positions", "without smooth trend", "without counting"),
    ],
)
def test_a_table_of_another_versions_words_is_refused(
    causal_report: ReportData, column: str, ours: str, theirs: str
) -> None:
    table = causal_report.measurements
    renamed = table.assign(**{column: table[column].replace({ours: theirs})})
    assert (renamed[column] == theirs).any()
    with pytest.raises(UserError, match=r"another version .* delete the run folder"):
        use_verdicts(renamed)
    assert use_verdicts(table)


def test_sentences_name_quantities_with_their_units(causal_report: ReportData) -> None:
    first, second = use_verdicts(causal_report.measurements)
    value, low, high = first.total_effect
    intact = f"{first.intact[0]:.3g} nats per token, of a bigram guesser {first.chance:.3g}."
    assert f"the loss of the trained model is {intact}" in first.sentence
    effect = f"{value:.3g} nats per token [{low:.3g}, {high:.3g}]"
    assert f"adds {effect} to this loss: the total effect." in first.sentence
    (variance,) = (use for use in first.of_stream if use.code == "variance")
    assert variance.word == "used"
    assert variance.necessity is not None
    assert f"Used: variance (necessity {variance.necessity[0]:.0%}" in first.sentence
    lead = first.lead[0]
    assert lead == pytest.approx(first.chance - first.intact[0])
    assert (
        f"Percentages are shares of the lead over that guesser, {lead:.3g} nats." in first.sentence
    )
    assert "Used:" not in second.sentence


def test_of_a_model_without_order_no_code_is_called_used(causal_report: ReportData) -> None:
    first, _ = use_verdicts(causal_report.measurements)
    assert Word.USED in {use.word for use in first.uses}
    judged = first.unjudged
    assert {use.word for use in judged.uses} == {Word.NO_ORDER}
    assert [use.necessity for use in judged.uses] == [use.necessity for use in first.uses]
    assert judged.sentence.endswith("The model has not learned order: no code is called used.")
    assert "Used:" not in judged.sentence


def test_what_rounds_to_zero_has_no_sign() -> None:
    assert [percent(share) for share in (-0.004, 0.004, -0.126, 1)] == ["0%", "0%", "−13%", "100%"]
    assert [percent(share) for share in (0.9975, 1 - 1e-7)] == [">99%", "100%"]
    none, little = (0.0, 0.0, 0.0), (-0.004, -0.2, 0.3)
    use = Use("variance", -1, "stream", Word.USED, none, none, none, little, little, None)
    nats = {
        "intact": (1.0, 0.9, 1.1),
        "chance": 2.0,
        "lead": (1.0, 0.9, 1.1),
        "total_effect": (0.5, 0.4, 0.6),
    }
    verdict = UseVerdict("trained", "text", False, **nats, coverage=1.0, uses=(use,))
    assert "variance (necessity 0% [−20%, 30%], sufficiency 0%)" in verdict.sentence
