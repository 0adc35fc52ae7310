"""Chi et al. 2023 after training and on a given model, against the plain models; and its probes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from experiments.comparison.config import CompareConfig
from experiments.papers.chi2023 import experiment as chi2023
from experiments.papers.chi2023 import probes as chi2023_probes
from experiments.papers.chi2023 import trained as chi2023_trained
from experiments.papers.chi2023.mean_squares import distinct_tokens, mean_squares
from experiments.papers.chi2023.trained import _trained, given_model, least_shrinkage
from experiments.papers.config import ReproduceConfig
from experiments.papers.registry import paper
from experiments.papers.reproduce import reproduce
from experiments.results.findings import Findings, chances, log_spaced
from experiments.runs.cells import Cells
from experiments.variants.train import train
from nope_interp.errors import UserError
from nope_interp.models.checkpoints import load_model, save_model
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.pretrained.load import load_pretrained
from nope_interp.tasks.registry import make_task
from nope_interp.training.config import TrainingConfig
from tests.gemma import first_blocks
from tests.huggingface import plain_model, save_folder, words

BYTES: dict[str, Any] = {"n_heads": 2, "d_vocab": 257, "n_ctx": 64}


def quietly(title: str, kept: bool) -> None:
    """Stands for a progress bar."""


def read(model: Path, folder: Path, **options: Any) -> Findings:
    config = ReproduceConfig("chi2023", model=str(model), **options)
    return given_model(config, Cells(folder, quietly), "cpu")


def saved(folder: Path, **sizes: Any) -> Path:
    model = HookedTransformer(TransformerConfig(2, **{"d_model": 32, **BYTES, **sizes}))
    return save_model(model, folder / "model.safetensors", task="text")


def curve_of(found: Findings, figure: str, panel: str, name: str) -> np.ndarray:
    [panels] = [f.panels for f in found.figures if f.id == figure]
    [series] = [p.series for p in panels if p.title == panel]
    [y] = [s.y for s in series if s.name == name]
    return y


def test_every_sequence_counts_in_a_mean_square() -> None:
    model = HookedTransformer(TransformerConfig(1, **{"d_model": 32, **BYTES}))
    name, seen = "blocks.0.hook_attn_out", np.array([1, 2, 5])
    found = mean_squares(model, [name], seen, 40, 8)[name]  # more than go into one batch
    _, cache = model.run_with_cache(distinct_tokens(model.config, 40, 8))
    wanted = cache[name][:, seen - 1].double().square().mean(dim=(0, 2))
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


def test_each_law_of_the_sweep_is_held_against_its_own_formula(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variances that are exactly d² s⁴ / m are the paper's law, and not the corrected one."""

    def by_the_paper(base: TransformerConfig, seen: np.ndarray, *rest: Any) -> dict[str, Any]:
        assert base.init_scale is not None
        return {"blocks.0.hook_attn_out": base.d_model**2 * base.init_scale**4 / seen}

    monkeypatch.setattr(chi2023, "_squares", by_the_paper)
    config = ReproduceConfig("chi2023", n_seeds=2)
    figure, found = chi2023._sweep_over_sizes(config, Cells(tmp_path, quietly), "cpu")
    assert found["widths"].value == pytest.approx(0, abs=1e-12)
    # The largest logits have a variance v of d² s⁴: softmax noise makes some exp(v) of it.
    assert found["widths-corrected"].value == pytest.approx(
        1 - np.exp(-(768**2) * 0.03**4), abs=0.05
    )
    assert [panel.title for panel in figure.panels] == [
        f"{law}, s = {spread}"
        for law in ("the paper's formula", "ours, corrected")
        for spread in (0.01, 0.02, 0.03)
    ]
    assert all(len(panel.series) == 5 for panel in figure.panels)


# ---------------------------------------------------------------- a given model


@pytest.fixture
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of any size are read for the claim, as the small ones of these tests."""
    monkeypatch.setattr(chi2023_trained, "_LEAST_MILLIONS", 0)


@pytest.mark.slow
@pytest.mark.usefixtures("of_any_size")
def test_a_trained_checkpoint_is_read_by_layer(tmp_path: Path) -> None:
    config = CompareConfig(
        seq_len=64,
        transformer=TransformerConfig(2, 32, **BYTES),
        training=TrainingConfig(steps=20, seq_len=64, warmup=5),
    )
    path = train(config, out=tmp_path, show_progress=False)
    found = read(path, tmp_path / "cells", length=0.5)
    model, _ = load_model(path)
    task, seen = make_task("text"), log_spaced(64)[1:]
    assert seen[0] == 2
    ratios, shares = [], []
    for source, tokens in (
        (task.source(), "text"),
        (task.uniform_source(), "uniform random tokens"),
    ):
        drawn = source.sequences(64, 64, begin_token=True, split="held_out", seed=0)
        _, cache = model.run_with_cache(drawn)
        for layer in range(2):
            for site, figure in (
                ("resid_post", "given-resid_post"),
                ("attn_out", "given-attn_out"),
            ):
                rows = cache[f"blocks.{layer}.hook_{site}"].double().numpy()
                panel = f"layer {layer + 1}, {tokens}"
                variance = rows.var(axis=-1).mean(axis=0)
                relative = variance[seen - 1] / variance[1]
                measured = curve_of(found, figure, panel, "given")
                np.testing.assert_allclose(measured, relative, rtol=1e-5)
                if site == "resid_post":
                    of_means = np.square(rows.mean(axis=-1)).mean(axis=0)
                    shares.append((of_means / np.square(rows).mean(axis=(0, 2)))[seen - 1].max())
                    if tokens == "text":
                        ratios.append(variance[63] / variance[1])
    assert f"is at most {max(shares):.1%} of its mean square" in found.figures[0].caption
    claim = found.claims["pretrained"]
    assert claim.value == pytest.approx(max(ratios), rel=1e-5)
    assert claim.n == 64
    assert claim.ci_low < claim.value < claim.ci_high
    assert found.notes == ("No positional encoding in layers 0-1.",)


@pytest.mark.slow
@pytest.mark.usefixtures("of_any_size")
def test_a_random_wide_model_shrinks_and_one_without_attention_does_not(tmp_path: Path) -> None:
    """The claim's test says yes and no where the answer is known."""
    test = paper("chi2023").claim("pretrained")
    path = saved(tmp_path, d_model=256)
    falls = read(path, tmp_path / "falls", length=0.5).claims["pretrained"]
    assert test.verdict(falls.value, falls.ci_low, falls.ci_high) == "reproduced"
    model, _ = load_model(path)
    for block in model.blocks:
        with torch.no_grad():
            block.attn.W_O.zero_()
    silent = save_model(model, tmp_path / "silent.safetensors", task="text")
    flat = read(silent, tmp_path / "flat", length=0.5).claims["pretrained"]
    assert test.verdict(flat.value, flat.ci_low, flat.ci_high) == "contradicted"
    assert flat.value == pytest.approx(1, abs=0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("of_any_size")
def test_a_pretrained_model_is_the_plain_one(tmp_path: Path) -> None:
    folder = save_folder(plain_model("llama"), tmp_path / "llama")
    text = tmp_path / "words.txt"
    text.write_text(words(14_000))
    found = read(folder, tmp_path / "cells", text=str(text))
    # Its context of 64 is shorter than the 128 tokens that are read by default.
    assert found.setting == "llama on 64 sequences of 64 tokens"
    rotary, caveat = found.notes
    assert rotary.startswith("Rotary positions (base 10,000, 8 dimensions of a head) in layers 0-1")
    assert "those of llama are at work" in caveat
    assert found.claims == {}
    without = read(folder, tmp_path / "without", text=str(text), positions="none", length=0.5)
    assert "No positional encoding in layers 0-1." in without.notes
    assert "switched off" in without.notes[0]
    assert set(without.claims) == {"pretrained"}
    source = load_pretrained(str(folder)).text_source(text.read_text())
    tokens = source.sequences(64, 64, begin_token=True, split="held_out", seed=0)
    inner: list[torch.Tensor] = []
    plain = plain_model("llama")
    # The last of `hidden_states` has been through the final norm: blocks are listened to instead.
    for layer in plain.model.layers:
        layer.register_forward_hook(lambda module, args, output: inner.append(output))
    with torch.no_grad():
        plain(tokens, use_cache=False)
    for layer, output in enumerate(inner):
        rows = (output[0] if isinstance(output, tuple) else output).double()
        variance = rows.var(dim=-1, correction=0).mean(dim=0).numpy()
        measured = curve_of(found, "given-resid_post", f"layer {layer + 1}, text", "given")
        relative = variance[log_spaced(64)[1:] - 1] / variance[1]
        np.testing.assert_allclose(measured, relative, rtol=1e-4)


@pytest.mark.usefixtures("of_any_size")
def test_no_claim_is_tested_on_an_encoding_that_is_at_work(tmp_path: Path) -> None:
    found = read(saved(tmp_path, positions="rotary"), tmp_path / "cells", length=0.25)
    assert "are at work in what is measured" in found.notes[-1]
    assert found.claims == {}
    assert {figure.id for figure in found.figures} == {"given-resid_post", "given-attn_out"}


def test_no_claim_is_tested_on_a_small_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path)
    # Two layers of four matrices and an MLP of four times the width, with their biases and norms.
    layer = 4 * 32 * 32 + 4 * 32 + 2 * 4 * 32 * 32 + 4 * 32 + 32 + 4 * 32
    millions = (2 * layer + 2 * 257 * 32 + 257 + 2 * 32) / 1e6
    small = read(path, tmp_path / "cells", length=0.25)
    assert small.claims == {}
    assert small.notes[-1].endswith(
        f"100 million parameters or more: model.safetensors has {millions:.3g} million."
    )
    assert {figure.id for figure in small.figures} == {"given-resid_post", "given-attn_out"}
    # From the least size on the claim is tested.
    for least, tested in ((millions, True), (millions * 1.0001, False)):
        monkeypatch.setattr(chi2023_trained, "_LEAST_MILLIONS", least)
        found = read(path, tmp_path / "cells", length=0.25)
        assert ("pretrained" in found.claims) is tested


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no checkpoint"):
        read(tmp_path / "absent.safetensors", tmp_path / "cells")
    short = tmp_path / "short.txt"
    short.write_text("too short " * 60)
    with pytest.raises(UserError, match="the text is too short"):
        read(saved(tmp_path), tmp_path / "cells", text=str(short))


@pytest.mark.slow
@pytest.mark.usefixtures("of_any_size")
def test_a_run_with_a_model_tests_one_more_claim(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"width": 0.07, "length": 0.125, "depth": 0.34, "training": 0.01}
    path = saved(tmp_path)
    found = reproduce(ReproduceConfig("chi2023", 2, model=str(path), **sizes), out=tmp_path)
    row = found.claims.set_index("claim").loc["pretrained"]
    assert row["status"] in ("reproduced small", "uncertain", "contradicted small")
    assert np.isfinite(row["value"])
    assert "model.safetensors on 64 sequences of 16 tokens" in found.info["setting"]
    assert "No positional encoding in layers 0-1." in found.info["notes"]
    assert {"given-resid_post", "given-attn_out"} <= {figure.id for figure in found.figures}


@pytest.mark.gemma
@pytest.mark.slow
def test_gemma_is_read_with_its_encoding_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chi2023_trained, "_GIVEN_SEQUENCES", 8)
    (tmp_path / "gemma").mkdir()
    found = read(first_blocks(6, tmp_path / "gemma"), tmp_path / "cells", length=0.25)
    assert len(found.figures[0].panels) == 2 * 6
    assert found.claims == {}
    assert any("are at work in what is measured" in note for note in found.notes)


# ---------------------------------------------------------------- trained models


@pytest.mark.slow
def test_before_training_the_recursion_predicts_and_the_unmasked_variant_is_flat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chi2023_trained, "_SEQUENCES", 128)
    monkeypatch.setattr(chi2023_trained, "_PREDICTED", 8)
    base = TransformerConfig(2, 128, 4, d_vocab=257, n_ctx=64)
    seen = log_spaced(64)[1:]
    cells = [_trained(base, 1, seen, "cpu", seed) for seed in range(2)]
    for site in ("resid_post", "attn_out"):
        measured, predicted = (
            np.mean([cell[f"random/{name}/{site}"] for cell in cells], axis=0)
            for name in ("random-init", "predicted")
        )
        np.testing.assert_allclose(measured, predicted, rtol=0.15)
    flat = np.mean([cell["text/bidirectional/resid_post"] for cell in cells], axis=0)
    np.testing.assert_allclose(flat / flat[:, :1], 1, atol=0.05)
    falling = np.mean([cell["random/random-init/resid_post"] for cell in cells], axis=0)
    assert (falling[:, -1] / falling[:, 0] < 0.9).all()
    small = TransformerConfig(2, 48, 4, d_vocab=257, n_ctx=16)
    first, again = (_trained(small, 1, log_spaced(16)[1:], "cpu", 0) for _ in range(2))
    assert all(np.array_equal(again[name], first[name]) for name in first)


@given(arrays(np.float64, (3, 4), elements=st.floats(0.01, 100)))
def test_least_shrinkage_is_the_largest_ratio(means: np.ndarray) -> None:
    expected = [max(row[1] / row[0], row[3] / row[2]) for row in means]
    np.testing.assert_allclose(least_shrinkage(means), expected)


# ---------------------------------------------------------------- probes


@pytest.mark.slow
def test_scoring_on_the_way_changes_nothing() -> None:
    base = TransformerConfig(2, 48, 4, d_vocab=1000, n_ctx=16)
    many = chi2023_probes._errors(base, [32, 64, 96], "cpu", 0)
    once = chi2023_probes._errors(base, [96], "cpu", 0)
    for kind, errors in many.items():
        assert errors.shape == (3, 3)
        np.testing.assert_array_equal(errors[-1], once[kind][0])


@pytest.mark.slow
def test_probes_read_position_from_attention_and_not_without_the_mask() -> None:
    base = TransformerConfig(1, 256, 4, d_vocab=1000, n_ctx=32)
    chance = 31 / 4
    causal = chi2023_probes._errors(base, [512], "cpu", 0)
    assert causal["variance"][0, 0] < 0.4 * chance
    assert causal["variance"][0, 1] > 1.5 * causal["variance"][0, 0], "the MLP buries it"
    assert causal["two_layer"][0, 0] < 0.85 * chance
    unmasked = TransformerConfig.from_dict({**base.to_dict(), "causal": False})
    blind = chi2023_probes._errors(unmasked, [512], "cpu", 0)
    for errors in blind.values():
        np.testing.assert_allclose(errors, chance, rtol=0.1)


def errors_that_fall(
    base: TransformerConfig, counts: Sequence[int], device: str, seed: int
) -> dict[str, np.ndarray]:
    """Stands for what probes err by, the less the more sequences they have seen."""
    falling = np.geomspace(8, 1, len(counts))[:, None].repeat(base.n_layers + 1, axis=1)
    return {"two_layer": falling, "variance": falling}


@pytest.mark.parametrize(
    ("training", "left_out"),
    [
        (0.5, {"probe-few": (1024, 512), "probe": (64_000, 32_000)}),
        (1.0, {}),
        (2.0, {"probe-few": (1024, 2048), "probe": (64_000, 128_000)}),
    ],
)
def test_a_claim_that_names_a_count_is_tested_on_no_other(
    training: float,
    left_out: dict[str, tuple[int, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chi2023_probes, "_errors", errors_that_fall)
    config = ReproduceConfig("chi2023", n_seeds=2, training=training, preset="large")
    figures, claims, notes = chi2023_probes.probes(config, Cells(tmp_path, quietly), "cpu")
    every = {"probe-few", "probe", "probe-small-vocabulary", "probe-bidirectional"}
    assert set(claims) == every - set(left_out)
    assert len(figures) == 2
    assert list(notes) == [
        f"The claim {claim} is left out: it is of {named:,} sequences, and the probe has seen "
        f"{seen:,}."
        for claim, (named, seen) in left_out.items()
    ]
    for claim in ("probe-few", "probe"):
        says = paper("chi2023").claim(claim).says.replace(",", "")
        assert f"has seen {chi2023_probes._NAMED[claim]} sequences" in says


def test_a_preset_reads_the_first_block_on_many_more_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[tuple[int, Sequence[int]]] = []

    def errors(base: Any, counts: Sequence[int], device: str, seed: int) -> dict[str, np.ndarray]:
        fitted.append((base.n_layers, counts))
        return errors_that_fall(base, counts, device, seed)

    monkeypatch.setattr(chi2023_probes, "_errors", errors)
    found = {}
    for preset in (None, "large"):
        fitted.clear()
        config = ReproduceConfig("chi2023", n_seeds=2, preset=preset)
        cells = Cells(tmp_path / str(preset), lambda title, kept: None)
        (_, by_data), found[preset], notes = chi2023_probes.probes(config, cells, "cpu")
        assert notes == ()
        most = 64000 if preset else 1024
        n_layers, counts = max(fitted, key=lambda one: one[1][-1])
        assert (n_layers, counts[-1]) == (1 if preset else 3, most)
        assert by_data.panels[0].series[-1].x[-1] == most
    assert "probe" not in found[None]
    assert found[None]["probe-few"] == found["large"]["probe-few"]
    # Of 63 positions, without the first.
    assert found["large"]["probe"].value == pytest.approx(1 / chances(63)[0])
