"""A model whose own forward pass fails: every command that loads one says so in a sentence."""

from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from tests.experiments.cli.command import assert_one_sentence, nope_interp
from tests.huggingface import VOCABULARY, save_folder, words


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama that can be built and loaded: only its attention finds that 3 heads of keys cannot
    serve 4 of queries."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=3,
        head_dim=8,
        max_position_embeddings=64,
    )
    folder = tmp_path_factory.mktemp("failing")
    (folder / "text.txt").write_text(words(3000))
    return save_folder(LlamaForCausalLM(config), folder / "llama")


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "--text", "text.txt", "--model"],
        ["probe", "--text", "text.txt", "--model"],
        ["heads", "--text", "text.txt"],
        ["drop", "--text", "text.txt", "--training.seq-len", "32"],
        ["reproduce", "chi2023", "--quiet", "--model"],
        ["reproduce", "barbero2024", "--quiet", "--model"],
    ],
    ids=" ".join,
)
def test_a_model_that_fails_by_itself_is_one_sentence(failing: Path, arguments: list[str]) -> None:
    run = nope_interp(*arguments, str(failing), cwd=failing.parent)
    parts = (f"{str(failing)!r}, a LlamaForCausalLM, fails by itself", "a model whose config fits")
    assert_one_sentence(run, *parts)
    assert not [path for path in failing.parent.rglob("runs/*") if path.is_file()]
