"""The same numbers on every device that this machine has: the CPU, and a GPU where there is one.

What is read is compared with the CPU in double precision, and a run with the same run on the CPU:
there its bits are the same, elsewhere sums are added up in another order.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import nope_interp as ni
from experiments import classify_heads, compare
from experiments.drop.drop import drop
from nope_interp.models.checkpoints import save_model
from nope_interp.models.config import POSITIONS, TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.streams import read_at
from nope_interp.tasks.registry import make_task
from nope_interp.tasks.text import python_documentation
from nope_interp.training.config import TrainingConfig
from nope_interp.training.train import train
from tests.byte_llama import byte_llama
from tests.huggingface import plain_model, save_folder, tiny_gemma3, tiny_gpt2, words
from tests.small_models import model, random_tokens
from tests.trainings import assert_same_bits, dies_after

DEVICES = ("cpu", *(["cuda"] if torch.cuda.is_available() else []))
CONFIG = TransformerConfig(n_layers=2, d_model=32, n_heads=4, d_vocab=257, n_ctx=24)
TRAINING = TrainingConfig(steps=12, batch_size=8, seq_len=24, warmup=2, checkpoint_every=5)
COMPARED: dict[str, Any] = {"seq_len": 24, "n_fit": 48, "n_held_out": 24, "batch_size": 24}
COMPARED |= {"uses": "stream", "sites": ("resid_post",), "layers": (1,)}
LABELLED: dict[str, Any] = {"seq_len": 24, "n_sequences": 16, "ablate": "all", "batch_size": 8}

on_every_device = pytest.mark.parametrize("device", DEVICES)


def kept(a: Tensor) -> Tensor:
    return a.double().cpu()


@on_every_device
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("query_block", [None, 7])
def test_activations_are_those_of_double_precision(
    positions: str, query_block: int | None, device: str
) -> None:
    names = ["hook_embed", "blocks.1.attn.hook_z", "blocks.1.mlp.hook_post", "ln_final.hook_scale"]
    names += [f"blocks.{layer}.hook_resid_post" for layer in range(2)]
    ours, exact = model(positions=positions).to(device), model(double=True, positions=positions)
    for block in ours.blocks:
        block.attn.query_block = query_block
    tokens = random_tokens()
    found = read_at(ours, tokens, dict.fromkeys(names, kept), batch_size=2)
    expected = read_at(exact, tokens, dict.fromkeys(names, kept))
    for name in names:
        torch.testing.assert_close(torch.cat(found[name]), expected[name][0], rtol=1e-4, atol=1e-5)


@on_every_device
@pytest.mark.parametrize("made", [tiny_gpt2, tiny_gemma3])
def test_pretrained_models_answer_as_in_transformers(
    made: Any, device: str, tmp_path: Path
) -> None:
    plain = made()
    lm = ni.load(save_folder(plain, tmp_path), device=device)
    tokens = torch.arange(2, 26)[None]
    with torch.inference_mode():
        found = lm.model(tokens.to(device))
        expected = plain.double()(tokens).logits
    torch.testing.assert_close(kept(found), expected, rtol=1e-3, atol=1e-4)


@on_every_device
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_takes_the_steps_of_the_cpu(precision: str, device: str) -> None:
    training = TrainingConfig(**{**TRAINING.to_dict(), "precision": precision})
    on_cpu = train(CONFIG, TRAINING, make_task("text"), show_progress=False)
    trained = train(CONFIG, training, make_task("text"), device=device, show_progress=False)
    assert {weight.device.type for weight in trained.parameters()} == {device}
    assert {weight.dtype for weight in trained.parameters()} == {torch.float32}
    moved = _moved(on_cpu)
    # A product in bfloat16 keeps 8 bits; a dozen of AdamW's steps carry their errors along.
    off = _distance(on_cpu, trained.cpu())
    assert off < moved * (0.3 if precision == "bfloat16" else 0.01)


def _moved(trained: HookedTransformer) -> float:
    return _distance(HookedTransformer(trained.config), trained)


def _distance(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return float(sum((a - b).detach().square().sum() for a, b in pairs) ** 0.5)


@on_every_device
def test_a_stopped_training_ends_in_the_same_bits(device: str, tmp_path: Path) -> None:
    def run(name: str) -> HookedTransformer:
        state = tmp_path / name
        how: dict[str, Any] = {"state_path": state, "device": device, "show_progress": False}
        return train(CONFIG, TRAINING, make_task("text"), **how)

    with dies_after(7), pytest.raises(KeyboardInterrupt):
        run("stopped")
    assert_same_bits(run("stopped"), run("undisturbed"))


@on_every_device
@pytest.mark.slow
def test_a_comparison_gives_the_cpus_numbers(device: str, tmp_path: Path) -> None:
    trained = train(CONFIG, TRAINING, make_task("text"), show_progress=False)
    file = save_model(trained, tmp_path / "model.safetensors", task="text")
    # Of the CPU by itself one variant tells as much as three.
    asked = COMPARED | {"variants": device != "cpu"}
    on_cpu, found = (
        compare(str(file), out=tmp_path / out, device=where, show_progress=False, **asked)
        for out, where in (("cpu", "cpu"), ("device", device))
    )
    assert_close(found.measurements, on_cpu.measurements, device)
    assert found.answer.sentence == on_cpu.answer.sentence


@on_every_device
@pytest.mark.slow
def test_heads_get_the_cpus_scores_and_labels(device: str, tmp_path: Path) -> None:
    folder = save_folder(plain_model("gemma3"), tmp_path / "gemma")
    text = tmp_path / "text.txt"
    text.write_text(words(4000))
    on_cpu, found = (
        classify_heads(
            str(folder),
            out=tmp_path / out,
            device=where,
            show_progress=False,
            text=str(text),
            **LABELLED,
        )
        for out, where in (("cpu", "cpu"), ("device", device))
    )
    assert_close(found.measurements, on_cpu.measurements, device)
    assert found.heads["label"].tolist() == on_cpu.heads["label"].tolist()


@on_every_device
@pytest.mark.slow
def test_a_dropped_model_is_the_cpus(device: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(python_documentation()[:40_000])
    folder = byte_llama(tmp_path / "llama")
    asked = {"training.steps": 5, "training.batch_size": 2, "training.seq_len": 32}
    asked |= {"training.warmup": 1, "read_lengths": (128, 256), "n_held_out": 8}
    asked |= {"n_passkeys": 2, "n_depths": 2, "text": str(tmp_path / "text.txt")}
    on_cpu, found = (
        drop(str(folder), out=tmp_path / out, device=where, show_progress=False, **asked)
        for out, where in (("cpu", "cpu"), ("device", device))
    )
    assert_close(found.measurements, on_cpu.measurements, device)


def assert_close(found: pd.DataFrame, expected: pd.DataFrame, device: str) -> None:
    """The same rows; the same bits on the CPU, and elsewhere all but a few within a hundredth."""
    if device == "cpu":
        pd.testing.assert_frame_equal(found, expected, check_exact=True)
        return
    values = ["value", "ci_low", "ci_high"]
    keys = [name for name in expected.columns if name not in values]
    pd.testing.assert_frame_equal(found[keys], expected[keys])
    for name in values:
        a, b = found[name].to_numpy(float), expected[name].to_numpy(float)
        assert (np.isnan(a) == np.isnan(b)).all()
        off = np.nan_to_num(np.abs(a - b) / np.maximum(1.0, np.abs(b)))
        # Labels of clusters and ranks among controls can change by a rounding.
        assert np.quantile(off, 0.99) < 0.01, f"{name}: {np.sort(off)[-20:]}"
