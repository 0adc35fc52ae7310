"""What Barbero et al. 2024 say of Gemma, read from models whose answers are known; and p-RoPE."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from einops import rearrange

from experiments.papers import on_text
from experiments.papers.barbero2024 import experiment as barbero2024
from experiments.papers.barbero2024 import given as barbero2024_given
from experiments.papers.barbero2024.given import read_given
from experiments.papers.config import ReproduceConfig
from experiments.papers.reproduce import reproduce
from experiments.results.findings import Findings, Series, over_seeds
from experiments.runs.cells import Cells
from nope_interp.constructions.barbero import positional_head, rotary_frequencies, strength_needed
from nope_interp.errors import UserError
from nope_interp.models.checkpoints import save_model
from nope_interp.models.config import TransformerConfig
from nope_interp.models.losses import sequence_losses
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.registry import make_task
from nope_interp.training.config import TrainingConfig
from nope_interp.training.train import train
from tests.gemma import gemma_gguf
from tests.huggingface import plain_model, save_folder, word_tokenizer, words

SIZES: dict[str, Any] = {"n_layers": 2, "d_model": 32, "n_heads": 2, "d_vocab": 257, "n_ctx": 64}
TEXT = words(14_000)


def quietly(title: str, kept: bool) -> None:
    """Stands for a progress bar."""


def read(model: Path, folder: Path, **options: Any) -> Findings:
    config = ReproduceConfig("barbero2024", model=str(model), **options)
    return read_given(config, Cells(folder, quietly), "cpu")


def saved(model: HookedTransformer, folder: Path) -> Path:
    path = folder / "model.safetensors"
    save_model(model, path, task="text")
    return path


def curves(found: Findings, figure: str, panel: str) -> dict[str, Series]:
    [panels] = [f.panels for f in found.figures if f.id == figure]
    [series] = [p.series for p in panels if p.title == panel]
    return {s.name: s for s in series}


def shares(query: torch.Tensor, key: torch.Tensor) -> np.ndarray:
    """[sequence head freq] of `[sequence pos head d]`, pair by pair; heads may share keys."""
    half = query.shape[-1] // 2
    usage = np.empty((query.shape[0], query.shape[2], half))
    for head in range(query.shape[2]):
        shared = head * key.shape[2] // query.shape[2]
        for k in range(half):
            q = query[:, :, head, [k, k + half]].double().square().sum(-1).sqrt().mean(1)
            kk = key[:, :, shared, [k, k + half]].double().square().sum(-1).sqrt().mean(1)
            usage[:, head, k] = (q * kk).numpy()
    return usage / usage.sum(-1, keepdims=True)


def lowest_less_others(share: np.ndarray) -> float:
    """Mean use of the lowest quarter of `[... freq]`, less that of another quarter used most."""
    use = share.reshape(-1, 4, share.shape[-1] // 4).sum(-1).mean(0)
    return float(use[3] - use[:3].max())


# ---------------------------------------------------------------- a given model


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[HookedTransformer, Path]:
    config = TransformerConfig(**SIZES, positions="rotary")
    training = TrainingConfig(steps=20, batch_size=8, seq_len=64, warmup=5)
    model = train(config, training, make_task("text"), show_progress=False)
    return model, saved(model, tmp_path_factory.mktemp("trained"))


def test_frequencies_are_the_norms_of_cached_queries_and_keys(
    trained: tuple[HookedTransformer, Path], tmp_path: Path
) -> None:
    model, path = trained
    found = read(path, tmp_path)
    text = make_task("text").source().sequences(32, 64, begin_token=True, split="held_out", seed=0)
    _, cache = model.run_with_cache(text)
    by_layer = [shares(cache["q", layer], cache["k", layer]) for layer in range(2)]
    share = np.stack(by_layer, axis=1)  # [sequence layer head freq]
    assert found.claims["frequencies"].value == pytest.approx(lowest_less_others(share))
    assert found.claims["frequencies"].n == 4  # heads
    rows = curves(found, "usage", "layers with base 10,000")
    for layer in range(2):
        times = 8 * share[:, layer].mean(axis=(0, 1))
        np.testing.assert_allclose(rows[f"L{layer}"].y, np.log2(times), atol=1e-5)
    low = curves(found, "quarters", "all heads, mean")["lowest quarter"]
    np.testing.assert_allclose(low.y, share[..., 6:].sum(-1).mean(axis=(0, 2)), rtol=1e-5)
    # Hardly trained, it has no positional heads: nothing to compare.
    assert "positional-heads" not in found.claims
    assert any("too little to compare" in note for note in found.notes)


def test_copies_are_alike_to_a_first_layer_without_its_positions(
    trained: tuple[HookedTransformer, Path], tmp_path: Path
) -> None:
    found = read(trained[1], tmp_path)
    assert found.claims["impossible-given"].value < 1e-6
    for panel in ("copies alone", "copies after other tokens"):
        drawn = curves(found, "given-copies", panel)
        assert drawn["positions intact"].y[0] > 1e-3
        assert drawn["positions taken away"].y[0] < 1e-6
    # Alone, copies stay alike in every layer.
    alone = curves(found, "given-copies", "copies alone")["positions taken away"]
    assert alone.y.max() < 1e-6


def test_a_built_head_on_the_highest_frequencies_is_found(tmp_path: Path) -> None:
    """All of its norm lies on the highest quarter, where the random heads have a quarter of it."""
    high = TransformerConfig(**SIZES, positions="rotary", rotary_kept=0.25)
    strength = strength_needed(0.3, 64, 1, rotary_frequencies(high))
    model = HookedTransformer(TransformerConfig(**SIZES, positions="rotary"))
    model.load_state_dict(positional_head(high, 1, strength).float().state_dict())
    found = read(saved(model, tmp_path), tmp_path)
    high = curves(found, "quarters", "highest quarter")
    head = high["L0H0, previous-token"]
    np.testing.assert_array_equal(head.x, [0])
    assert head.y[0] == pytest.approx(1, abs=1e-6)
    others = high["other heads, mean"].y
    assert others == pytest.approx([0.25, 0.25], abs=0.1)
    # One head has no interval.
    assert "positional-heads" not in found.claims
    drawn = curves(found, "given-copies", "copies alone")
    assert drawn["positions intact"].y[0] > 0.6
    assert found.claims["impossible-given"].value < 1e-6


def test_what_has_no_quarters_is_not_asked_for_the_lowest(tmp_path: Path) -> None:
    config = TransformerConfig(**SIZES, positions="rotary", rotary_kept=0.25)  # 2 of 8
    found = read(saved(HookedTransformer(config), tmp_path), tmp_path)
    assert "frequencies" not in found.claims
    assert any("Fewer than 4 frequencies turn in model.safetensors" in of for of in found.notes)


def test_positional_heads_are_held_against_others_of_their_layer() -> None:
    high = np.array([[0.5, 0.1, 0.3], [0.9, 0.8, 0.4], [0.7, 0.7, 0.7]])
    positional = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1]], dtype=bool)
    # The last layer has no others.
    np.testing.assert_allclose(barbero2024_given._ahead(high, positional), [0.3, 0.5, 0.4])


def test_heads_that_use_all_quarters_alike_do_not_use_the_lowest_most() -> None:
    """Whichever quarter random heads happen to use most, it is the lowest by chance."""
    draw = np.random.default_rng(0)
    found = [
        over_seeds(draw.dirichlet(np.full(4, 9.0), size=16), barbero2024_given._last_most)
        for _ in range(100)
    ]
    assert np.mean([measured.ci_low > 0 for measured in found]) < 0.05


def test_a_model_without_rotation_is_read_for_copies_only(tmp_path: Path) -> None:
    model = HookedTransformer(TransformerConfig(**SIZES, init_scale=0.3))
    found = read(saved(model, tmp_path), tmp_path)
    assert set(found.claims) == {"impossible-given"}
    assert found.claims["impossible-given"].value < 1e-6
    assert [figure.id for figure in found.figures] == ["given-copies"]
    assert set(curves(found, "given-copies", "copies alone")) == {"positions intact"}
    assert any("no rotary positions" in note for note in found.notes)
    assert any("no positional encoding: it is read as it is" in note for note in found.notes)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_pretrained_models(family: str, tmp_path: Path) -> None:
    """Against queries and keys of the plain Hugging Face model; Gemma 3 has norms of its own."""
    folder = save_folder(plain_model(family), tmp_path / family)
    (tmp_path / "text.txt").write_text(TEXT)
    found = read(folder, tmp_path, text=str(tmp_path / "text.txt"))
    assert found.claims["impossible-given"].value < 1e-4
    drawn = curves(found, "given-copies", "copies after other tokens")
    assert drawn["positions intact"].y[0] > 0.05
    # Deeper layers tell copies apart by what came before.
    assert drawn["positions taken away"].y[1] > 1e-3
    if family == "gpt2":
        assert set(found.claims) == {"impossible-given"}
        return
    plain = plain_model(family)
    held: dict[str, torch.Tensor] = {}
    for name, module in plain.named_modules():
        wanted = ("q_norm", "k_norm") if family == "gemma3" else ("q_proj", "k_proj")
        if name.endswith(wanted):
            module.register_forward_hook(
                lambda module, args, output, name=name: held.__setitem__(name, output)
            )
    ids = torch.tensor(word_tokenizer()(TEXT, add_special_tokens=False).input_ids)
    config = ReproduceConfig("barbero2024", model=str(folder), text=str(tmp_path / "text.txt"))
    variant = barbero2024_given.given_variant(config, "cpu", seq_len=40)
    text = variant.sources[0].sequences(32, 64, begin_token=True, split="held_out", seed=0)
    assert text[0, 0] == 1
    assert set(text[:, 1:].flatten().tolist()) <= set(ids.tolist())
    with torch.no_grad():
        plain(text, use_cache=False)

    def of(layer: int, letter: str) -> torch.Tensor:
        [found] = [x for n, x in held.items() if f"layers.{layer}." in n and f".{letter}_" in n]
        if found.ndim == 4:  # after Gemma's norms; its heads may stand before or after positions
            return found if found.shape[1] == 64 else rearrange(found, "b h p d -> b p h d")
        return rearrange(found, "b p (h d) -> b p h d", d=8)

    share = np.stack([shares(of(i, "q"), of(i, "k")) for i in range(2)], axis=1)
    assert found.claims["frequencies"].value == pytest.approx(lowest_less_others(share))
    rows = [s for f in found.figures if f.id == "usage" for p in f.panels for s in p.series]
    for series in rows:
        times = 4 * share[:, int(series.name[1:])].mean(axis=(0, 1))
        np.testing.assert_allclose(series.y, np.log2(times), atol=1e-4)


def test_what_cannot_be_read_is_refused_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_text, "train", None)
    config = ReproduceConfig("barbero2024", model=str(tmp_path / "absent.safetensors"))
    with pytest.raises(UserError, match="absent"):
        reproduce(config, out=tmp_path, show_progress=False)


@pytest.mark.slow
def test_a_run_with_a_model_shows_every_claim(
    trained: tuple[HookedTransformer, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(barbero2024, "_HELD_OUT", 64)
    config = ReproduceConfig("barbero2024", n_seeds=2, training=0.01, model=str(trained[1]))
    found = reproduce(config, out=tmp_path, show_progress=False)
    status = found.claims.set_index("claim")["status"]
    # Hardly trained, it has no heads of any kind; nor does training find one with rotary positions.
    removals = {f"removed-{group}" for group in ("previous-token", "diagonal", "content")}
    missing = {"positional-heads", "learned-nope", *removals}
    assert set(status[status == "not measured"].index) == missing
    assert status["impossible-given"] == "reproduced small"
    shown = {claim for figure in found.figures for claim in figure.claims}
    assert set(status.index) - removals <= shown
    assert "model.safetensors on 32 sequences of 64 tokens of text" in found.info["setting"]
    page = (found.folder / "report.html").read_text()
    assert "Rotary frequencies that model.safetensors uses" in page


@pytest.mark.slow
@pytest.mark.gemma
def test_the_real_gemma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("_SEQUENCES", 8), ("_LENGTH", 64), ("_TOKENS", 2)):
        monkeypatch.setattr(barbero2024_given, name, size)
    found = read(gemma_gguf(), tmp_path)
    # Local layers use their third quarter as much as the lowest one.
    lowest = found.claims["frequencies"]
    assert lowest.ci_low < 0 < lowest.ci_high
    assert found.claims["frequencies"].n == 72
    assert found.claims["positional-heads"].n == 3
    assert found.claims["impossible-given"].value < 1e-4
    high = curves(found, "quarters", "highest quarter")
    assert {"L2H3, previous-token", "L4H1, previous-token"} <= set(high)
    assert high["L2H3, previous-token"].y[0] > 0.25
    # Gemma 3's global layers turn with another base than its local ones.
    [usage] = [f for f in found.figures if f.id == "usage"]
    assert [p.title for p in usage.panels] == [
        "layers with base 10,000",
        "layers with base 1,000,000",
    ]
    assert curves(found, "given-copies", "copies alone")["positions intact"].y[0] > 0.1


# ---------------------------------------------------------------- p-RoPE


@pytest.mark.slow
def test_p_rope_of_nothing_is_no_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barbero2024, "_KEPT", (0.0, 1.0))
    monkeypatch.setattr(barbero2024, "_HELD_OUT", 64)
    config = ReproduceConfig("barbero2024", n_seeds=2, training=0.02)
    losses = barbero2024._p_rope_losses(config, Cells(tmp_path / "a", quietly))
    task = make_task("text")
    model = TransformerConfig(2, 64, 2, d_vocab=task.d_vocab, n_ctx=64, seed=1)
    training = TrainingConfig(steps=10, seq_len=64, warmup=10, seed=1)
    text = task.source().sequences(64, 64, begin_token=False, split="held_out", seed=0)
    alone = sequence_losses(train(model, training, task, show_progress=False), text).mean()
    assert losses[0.0][1] == pytest.approx(float(alone), abs=1e-5)
    assert losses[1.0][1] != losses[0.0][1]
    # Same seeds, same bits.
    again = barbero2024._p_rope_losses(config, Cells(tmp_path / "b", quietly))
    for kept, loss in losses.items():
        np.testing.assert_array_equal(loss, again[kept])
