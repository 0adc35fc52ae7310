"""The verdict of a comparison on a task: positions are moved first, codes are taken away second."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from experiments import Comparison, compare
from experiments.cli.shown import SHOWN
from experiments.comparison import cells as parts
from experiments.comparison.config import CompareConfig
from experiments.results.position_use import Word
from nope_interp.models.config import TransformerConfig
from nope_interp.training.config import TrainingConfig
from probes.code_names import MEAN_RESIDUAL, VARIANCE
from probes.head_rules import RANDOM_INIT

LENGTH = 10  # <begin> a b c d = d c b a
CONFIG = CompareConfig(
    task="reversal",
    lengths=(4, 4),
    transformer=TransformerConfig(2, 32, 4, d_vocab=28, n_ctx=LENGTH, positions="learned"),
    training=TrainingConfig(
        steps=200, batch_size=32, seq_len=LENGTH, warmup=50, learning_rate=5e-3
    ),
    seq_len=LENGTH,
    n_fit=64,
    n_held_out=60,
    batch_size=64,
    layers=(0,),
    uses="stream",
)
# Of what a model that answers by chance does, little is to be known.
FEW: dict[str, Any] = {"n_fit": 40, "n_held_out": 24, "sites": ("resid_post",)}


def run(out: Path, **changes: Any) -> Comparison:
    return compare(dataclasses.replace(CONFIG, **changes), out=out, show_progress=False)


def untrained(out: Path, **changes: Any) -> Comparison:
    training = dataclasses.replace(CONFIG.training, steps=2, seq_len=changes.get("seq_len", LENGTH))
    return run(out, training=training, variants=False, **{**FEW, **changes})


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def unlearned(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Comparison]:
    """Of a model without training, killed where codes are removed: its page then, and the run that
    went on from there."""
    out = tmp_path_factory.mktemp("unlearned")

    def killed(self: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts.TakeAway, "__call__", killed)
        with pytest.raises(KeyboardInterrupt):
            untrained(out)
    (page,) = (path.read_text() for path in out.glob("*/report.html"))
    return page, untrained(out)


def test_the_page_has_what_moved_positions_answer_before_codes_are_removed(
    unlearned: tuple[str, Comparison],
) -> None:
    page, _ = unlearned
    assert "Still to come: codes removed through the whole stream, two-layer probes." in page
    assert "The model has not learned order: " in page


@pytest.mark.slow
def test_the_verdict_is_that_of_moved_positions(learned: Comparison) -> None:
    answer = learned.answer
    words = {code.code: code.word for code in answer.codes}
    assert words[MEAN_RESIDUAL] is Word.USED
    assert words[VARIANCE] is Word.NOT_USED
    # Similarity was read, and not moved.
    assert words["similarity"] is None
    assert "counting" in words or "smooth trend" in words
    # Beside the verdict stands what is read of the model before training.
    before = next(code.before for code in answer.codes if code.code == MEAN_RESIDUAL)
    assert before is not None
    assert before.variant == RANDOM_INIT
    assert answer.score is not None
    assert answer.score.name == "accuracy"
    assert answer.score.value[1] > 0.9 > 0.6 > answer.score.chance
    share = next(code.share for code in answer.codes if code.code == MEAN_RESIDUAL)
    stream = learned.followed.query("layer == -1 and code == @MEAN_RESIDUAL")
    assert share is not None
    assert share[0] == pytest.approx(stream["net"].max())
    assert learned.headline.startswith(f"This model uses the {MEAN_RESIDUAL}")
    # What a removal costs stands second.
    (removed,) = learned.uses
    assert {use.code for use in removed.of_stream} >= {"smooth trend", "irregular part"}


@pytest.mark.slow
def test_a_command_prints_the_verdict_and_the_page_tells_it(learned: Comparison) -> None:
    shown = SHOWN["compare"](CONFIG, learned)
    assert learned.headline in shown.lines
    assert {row["code"] for row in shown.value["followed"]} >= {MEAN_RESIDUAL, VARIANCE}
    assert learned.headline in learned.html()


def test_a_model_that_has_not_learned_order_gets_no_verdict(
    unlearned: tuple[str, Comparison],
) -> None:
    _, found = unlearned
    assert found.headline.startswith("The model has not learned order: ")
    assert {code.word for code in found.answer.codes} <= {Word.NO_ORDER, None}
    assert found.followed.empty
    # The second table is there, and says no more than the first.
    (removed,) = found.uses
    assert {use.word for use in removed.uses} == {Word.NO_ORDER}
    assert removed.sentence.endswith("The model has not learned order: no code is called used.")


@pytest.mark.slow
def test_removal_decides_where_nothing_is_moved_in_a_model_that_knows_order(
    learned: Comparison, tmp_path: Path
) -> None:
    model = learned.folder.parent / learned.info["trained_model"]
    few = {**FEW, "n_held_out": 19, "variants": False, "uses": "stream"}
    few |= {"task": "reversal", "lengths": (4, 4), "seq_len": LENGTH}
    found = compare(model, out=tmp_path, show_progress=False, **few)
    assert found.followed.empty
    assert any("19 different examples of" in note for note in found.info["notes"])
    (removed,) = found.uses
    assert {code.code: code.word for code in found.answer.codes if code.word is not None} == {
        use.code: use.word for use in removed.of_stream
    }
    assert Word.NO_ORDER not in {use.word for use in removed.uses}


def test_where_the_answer_elsewhere_is_not_known_a_note_says_so(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG.transformer, d_vocab=120, n_ctx=16)
    found = untrained(tmp_path, task="copy-rdc", seq_len=16, transformer=config)
    assert found.followed.empty
    # A model that has not learned order gets no verdict by removal either.
    assert found.headline.startswith("The model has not learned order: ")
    assert {code.word for code in found.answer.codes} <= {Word.NO_ORDER, None}
    assert any("'copy-rdc' would answer at another position" in of for of in found.info["notes"])
    few = untrained(tmp_path, n_held_out=19)
    assert any("19 different examples of" in note for note in few.info["notes"])
