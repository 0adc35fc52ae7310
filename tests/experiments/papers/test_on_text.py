"""Papers that read text: how long, and with whose models."""

from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.papers.config import ReproduceConfig
from experiments.papers.reproduce import reproduce
from nope_interp.errors import UserError
from nope_interp.models.checkpoints import save_model
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.registry import make_answer_task, make_task
from tests.huggingface import plain_model, save_folder, words


@pytest.mark.parametrize(
    ("name", "n_sequences", "tokens"),
    [
        ("chi2023", 256, lambda length: round(128 * length) - 1),  # behind a begin token
        ("kim2025", 512, lambda length: round(50 * length)),
        ("gelberg2025", 96, lambda length: 4 * 2 * round(32 * length)),  # four even contexts
    ],
)
def test_a_length_that_the_packages_text_is_too_short_for_is_refused_first(
    tmp_path: Path, name: str, n_sequences: int, tokens: Callable[[float], int]
) -> None:
    with pytest.raises(UserError, match="length is 2: the text that comes with") as refused:
        reproduce(ReproduceConfig(name, length=2.0), out=tmp_path, show_progress=False)
    assert not [*tmp_path.rglob("*.safetensors")]  # nothing was measured
    longest = float(str(refused.value).rstrip(".").rsplit(maxsplit=1)[1])
    source = make_task("text").source()
    for factor, enough in ((longest, True), (longest + 0.01, False)):
        assert (source.available(tokens(factor), "held_out") >= n_sequences) == enough


def test_a_paper_of_text_refuses_a_model_of_a_task_in_its_own_words(tmp_path: Path) -> None:
    task = make_answer_task("reversal")
    model = HookedTransformer(TransformerConfig(1, 8, 1, d_vocab=task.d_vocab, n_ctx=20))
    saved = save_model(model, tmp_path / "model.safetensors", task="reversal")
    config = ReproduceConfig("barbero2024", model=str(saved))
    with pytest.raises(
        UserError, match="was trained on reversal, and barbero2024 reads text: give"
    ):
        reproduce(config, out=tmp_path / "runs", show_progress=False)
    short = HookedTransformer(TransformerConfig(1, 8, 1, d_vocab=257, n_ctx=8))
    config = ReproduceConfig("chi2023", model=str(save_model(short, saved, task="text")))
    with pytest.raises(UserError, match=r"chi2023 reads 16 tokens or more, and .* takes 8: give"):
        reproduce(config, out=tmp_path / "runs", show_progress=False)


@pytest.mark.parametrize("name", ["barbero2024", "kim2025", "kazemnejad2023"])
def test_a_paper_of_heads_refuses_a_hybrid_by_its_layers(name: str, tmp_path: Path) -> None:
    folder, text = save_folder(plain_model("jamba"), tmp_path / "m"), tmp_path / "text.txt"
    text.write_text(words(3000))
    config = ReproduceConfig(name, model=str(folder), text=str(text))
    told = f"{name} reads heads of every layer, and m has none in layers 0-2: give a model"
    with pytest.raises(UserError, match=told):
        reproduce(config, out=tmp_path / "runs", show_progress=False)
