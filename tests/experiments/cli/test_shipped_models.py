"""The trained models that the repository carries, and the configs that make them again."""

from pathlib import Path

import pytest

from experiments.comparison.config import CompareConfig
from experiments.papers.answering import accuracies
from experiments.variants.train import check_training, task_of
from experiments.variants.variants import loaded_variant
from nope_interp.errors import UserError
from nope_interp.models.checkpoints import TrainedOn, load_model, save_model
from nope_interp.tasks.answers import AnswerTask
from tests.paths import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.safetensors"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_shipped_model_is_what_its_config_makes(path: Path) -> None:
    config = CompareConfig.read(path.with_suffix(".toml"))
    model, trained_on = load_model(path)
    assert path.stat().st_size < 1e6
    assert model.config == config.transformer
    assert trained_on == TrainedOn(config.task, config.lengths, config.scratchpad)
    check_training(config, task_of(config))


def test_the_copying_model_answers_beyond_its_training_lengths() -> None:
    path = next(path for path in EXAMPLES if path.stem == "copy-rsc")
    config = CompareConfig.read(path.with_suffix(".toml"))
    model, _ = load_model(path)
    assert model.config.positions == "none"
    task = task_of(config)
    assert isinstance(task, AnswerTask)
    assert [*task.training_lengths, *task.test_lengths] == [*range(2, 17)]
    within = accuracies(model, task, 200, "validation", 0)
    beyond = accuracies(model, task, 200, "test", 0)
    assert within.min() > 0.99
    assert beyond[:3].min() > 0.95  # lengths 9 to 11
    assert beyond[-1] < 0.9  # not for ever
    # A model that has not learned answers none of them: a symbol alone is one in a hundred.
    untrained = type(model)(model.config)
    assert accuracies(untrained, task, 200, "test", 0).max() < 0.05


def test_a_shipped_model_can_be_read() -> None:
    path = EXAMPLES[0]
    values = CompareConfig.read(path.with_suffix(".toml")).to_dict()
    config = CompareConfig.from_dict(values | {"model": str(path)})
    variant = loaded_variant(config, "cpu", needed={"held_out": 4})
    tokens = variant.sources[0].sequences(4, 20, begin_token=True, split="held_out", seed=0)
    assert variant.model(tokens).shape == (4, 20, 110)


def test_lengths_of_which_no_example_fits_are_refused() -> None:
    path = next(path for path in EXAMPLES if path.stem == "copy-rsc")
    values = CompareConfig.read(path.with_suffix(".toml")).to_dict()
    changes = {"model": str(path), "lengths": [7, 16], "seq_len": 16}
    with pytest.raises(
        UserError, match=r"of length 7 may have up to 18 tokens, more than 16.*--seq-len 18"
    ):
        loaded_variant(CompareConfig.from_dict(values | changes), "cpu", needed={"held_out": 4})


def test_a_model_of_a_task_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    model, _ = load_model(EXAMPLES[0])
    path = save_model(model, tmp_path / "model.safetensors", task="chess")
    config = CompareConfig(model=str(path), seq_len=20)
    with pytest.raises(UserError, match="names the task 'chess', which is none of ours"):
        loaded_variant(config, "cpu", needed={"held_out": 4})
