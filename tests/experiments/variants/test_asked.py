"""Entry points of the library take plain values in place of a config."""

from typing import Any

import pytest

from experiments.comparison.config import CompareConfig
from experiments.heads.config import HeadsConfig
from experiments.papers.config import ReproduceConfig
from experiments.variants.words import asked
from nope_interp.errors import UserError
from nope_interp.models.config import TransformerConfig

SMALL = TransformerConfig(n_layers=1, d_model=16, n_heads=2, d_vocab=257, n_ctx=24)


def test_a_name_and_words_are_a_config() -> None:
    found = asked(CompareConfig, "openai-community/gpt2", {"ablate": "learned", "layers": (0, 2)})
    assert found == CompareConfig("openai-community/gpt2", ablate="learned", layers=(0, 2))
    assert asked(HeadsConfig, None, {}) == HeadsConfig()
    assert asked(ReproduceConfig, "chi2023", {"n_seeds": 3}) == ReproduceConfig("chi2023", 3)


@pytest.mark.parametrize(
    "words",
    [
        {"transformer": SMALL, "seq_len": 24},
        {"transformer": SMALL.to_dict(), "seq_len": 24},
        {f"transformer.{name}": value for name, value in SMALL.to_dict().items()} | {"seq_len": 24},
    ],
)
def test_a_nested_config_is_given_whole_or_by_dotted_names(words: dict[str, Any]) -> None:
    found = asked(CompareConfig, None, words)
    assert found.transformer == SMALL
    assert found.seq_len == found.training.seq_len == 24


def test_a_shorthand_sets_what_it_sets_on_the_command_line() -> None:
    found = asked(CompareConfig, None, {"seed": 3, "steps": 5, "positions": "rotary"})
    assert found.seed == found.transformer.seed == found.training.seed == 3
    assert found.training.steps == 5
    assert found.transformer.positions == "rotary"


def test_words_are_laid_over_a_config() -> None:
    base = CompareConfig(seq_len=64, n_fit=30)
    assert asked(CompareConfig, base, {}) is base
    found = asked(CompareConfig, base, {"n_fit": 40})
    assert (found.n_fit, found.seq_len) == (40, 64)


@pytest.mark.parametrize(
    ("given", "words", "says"),
    [
        (3, {}, "the config is int: give a CompareConfig, a name, or neither."),
        (HeadsConfig(), {}, "the config is HeadsConfig: give a CompareConfig"),
        (None, {"n_layers": 2}, r"'n_layers': did you mean 'transformer\.n_layers'"),
        (None, {"seq_len": "x"}, "seq_len is 'x'"),
        (None, {"transformer": 3}, "the model's config is int"),
        (
            None,
            {"positions": "none", "transformer": {"positions": "t5"}},
            "positions is 'none', but transformer.positions is 't5': leave one out",
        ),
        (
            None,
            {"sequences": 30, "n_fit": 16, "n_held_out": 16},
            "sequences is 30, but n_fit is 16: leave one out",
        ),
    ],
)
def test_what_makes_no_sense_is_one_sentence(given: Any, words: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        asked(CompareConfig, given, words)
    assert "\n" not in str(error.value)
