"""Every field of every experiment's config refuses nonsense with one sentence."""

import dataclasses
from typing import Any

import pytest

from experiments.comparison.config import CompareConfig
from experiments.emergence.config import EmergenceConfig
from experiments.heads.config import HeadsConfig
from experiments.papers.config import ReproduceConfig
from experiments.sweeps.config import SweepConfig
from experiments.variants.config import ExperimentConfig, ProbingConfig
from nope_interp.errors import UserError

HUGE = 10**5000
KINDS: dict[type[ExperimentConfig] | type[ReproduceConfig], dict[str, Any]] = {
    ExperimentConfig: {},
    ProbingConfig: {},
    CompareConfig: {},
    HeadsConfig: {},
    EmergenceConfig: {},
    ReproduceConfig: {"name": "chi2023"},
}
FIELDS = [(kind, field.name) for kind in KINDS for field in dataclasses.fields(kind)]


@pytest.fixture(autouse=True)
def _base_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExperimentConfig, "experiment", "an experiment", raising=False)


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=lambda x: getattr(x, "__name__", x))
@pytest.mark.parametrize(
    "value", [HUGE, -HUGE, [HUGE], [HUGE, -HUGE], {"seed": HUGE}, {HUGE: 1}], ids=range(6)
)
def test_numbers_too_long_to_print_are_refused(kind: Any, field: str, value: Any) -> None:
    with pytest.raises(UserError) as caught:
        kind.from_dict({**KINDS[kind], field: value})
    sentence = str(caught.value)
    assert "huge" in sentence or "give named values" in sentence
    assert len(sentence) < 500


@pytest.mark.parametrize(
    "values",
    [
        {"experiment": HUGE, "grid": {"seed": [1]}},
        {"experiment": "compare", "grid": HUGE},
        {"experiment": "compare", "grid": {"seed": HUGE}},
        {"experiment": "compare", "grid": {"seed": [HUGE]}},
        {"experiment": "compare", "grid": {"layers": [[HUGE]]}},
        {"experiment": "compare", "base": HUGE, "grid": {"seed": [1]}},
        {"experiment": "compare", "base": {"training.steps": HUGE}, "grid": {"seed": [1]}},
        {"experiment": "compare", "list": [{HUGE: 1}]},
        {HUGE: 1},
    ],
)
def test_sweeps_of_numbers_too_long_to_print_are_refused(values: dict[Any, Any]) -> None:
    with pytest.raises(UserError):
        SweepConfig.from_dict(values)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"sites": []}, r"sites are \[\]: name at least one, each once\."),
        ({"sites": ["attn_out", "attn_out"]}, r"sites are \['attn_out', 'attn_out'\]: name at"),
        ({"layers": []}, r"layers are \[\]: name at least one, each once, from 0\."),
        ({"layers": [1, 1]}, r"layers are \[1, 1\]: name"),
        ({"layers": [-1]}, r"layers are \[-1\]: name"),
    ],
)
def test_places_that_are_none_or_come_twice_are_refused(
    words: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        CompareConfig.from_dict(words)


def test_what_a_nested_config_leaves_out_is_as_the_experiment_has_it() -> None:
    found = EmergenceConfig.from_dict({"transformer": {"n_heads": 2}, "training": {"warmup": 3}})
    default = EmergenceConfig()
    assert found.transformer == dataclasses.replace(default.transformer, n_heads=2)
    assert found.training == dataclasses.replace(default.training, warmup=3)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("google/gemma-3-270m", "gemma-3-270m"),
        ("runs/train-none-text-1a2b/model.safetensors", "train-none-text-1a2b"),
        ("runs/drop-gemma-3-270m-1a2b/model", "drop-gemma-3-270m-1a2b"),
        ("models/my llama.gguf", "my-llama.gguf"),
    ],
)
def test_a_model_that_a_run_made_is_called_by_its_run(model: str, name: str) -> None:
    assert CompareConfig(model=model).model_name() == name
