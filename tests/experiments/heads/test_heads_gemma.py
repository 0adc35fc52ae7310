"""The heads of the real Gemma 3 270M: positional ones, and what the rotation is to them.

Only its first blocks, up to that of the first diagonal head, and its commonest tokens are read:
all of them take seven TFLOP.
What the rotation is to the whole model's loss stands in `tests/nope_interp/pretrained`.
"""

from pathlib import Path

import pytest

from experiments import HeadClassification, HeadsConfig, classify_heads
from tests.gemma import first_blocks

pytestmark = [pytest.mark.slow, pytest.mark.gemma]


@pytest.fixture(scope="module")
def gemma_heads(tmp_path_factory: pytest.TempPathFactory) -> HeadClassification:
    model = str(first_blocks(9, tmp_path_factory.mktemp("gemma")))
    config = HeadsConfig(model=model, ablate="rotary", seq_len=64, n_sequences=16, batch_size=16)
    return classify_heads(config, out=tmp_path_factory.mktemp("runs"), show_progress=False)


@pytest.mark.parametrize(
    ("label", "metric"), [("previous-token", "previous_token"), ("diagonal", "diagonal")]
)
def test_positional_heads_are_there_and_go_with_the_rotation(
    gemma_heads: HeadClassification, label: str, metric: str
) -> None:
    table = gemma_heads.heads
    found = table[table["label"] == label]
    assert len(found) >= 1
    # Nearly half of the attention on one offset; chance is a thirtieth.
    assert (found[f"{metric}_low"] > 10 * found[f"{metric}_chance"]).all()
    assert (found["dependence"] == "positional").all()
    assert (found["retention_high"] < 1 / 3).all()
    # None is left anywhere in the model.
    assert label not in set(table["ablated_label"])
    assert table[f"{metric}_ablated"].max() < found[metric].min()


def test_induction_goes_with_the_whole_rotation_and_not_with_its_own_layers(
    gemma_heads: HeadClassification,
) -> None:
    table = gemma_heads.heads
    induction = table[table["label"] == "induction"]
    assert len(induction) >= 1
    # They live off the previous-token heads that the rotation makes in earlier layers.
    assert (induction["retention_whole_model"] < 0.1).all()
    assert (induction["retention_low"] > 0.5).all()


def test_the_first_layer_cannot_tell_copies_apart_without_rotation(
    gemma_heads: HeadClassification,
) -> None:
    first = gemma_heads.heads.query("layer == 0")
    assert (first["repeated_token_ablated"] < 1e-4).all()
    assert (first["repeated_token_low"] > 0.01).any()


def test_the_untrained_model_has_no_positional_heads(gemma_heads: HeadClassification) -> None:
    rows = gemma_heads.measurements
    untrained = rows[(rows["variant"] == "random-init") & (rows["probe"] == "heads")]
    for metric in ("previous_token", "diagonal", "induction"):
        assert untrained[untrained["metric"] == metric]["value"].max() < 0.2


def test_the_page_is_small(gemma_heads: HeadClassification) -> None:
    assert Path(gemma_heads.write_report()).stat().st_size < 40e6
