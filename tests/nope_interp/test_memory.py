"""Estimates of memory beside what passes were seen to hold, and what is refused by them."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from nope_interp import memory
from nope_interp.errors import FieldError
from nope_interp.memory import (
    check_room,
    forward_bytes,
    free_beside,
    free_bytes,
    last_bytes,
    training_bytes,
)
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.positions.layers import layer_positions
from nope_interp.pretrained.load import load_plain, load_pretrained
from nope_interp.query_blocks import all_queries_at_once
from nope_interp.streams import stream
from nope_interp.training.config import TrainingConfig
from nope_interp.training.recalibrate import chosen, last_losses, recalibrate
from probes.heads.detectors import HeadProbe
from tests.byte_llama import byte_llama
from tests.experiments.cli.command import assert_one_sentence, nope_interp
from tests.peak import Peak

# An estimate may be off by so much.
LOWEST, HIGHEST = 0.8, 2.2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden_size": 64, "intermediate_size": 256, "max_position_embeddings": 4096}
    return byte_llama(tmp_path_factory.mktemp("models") / "llama", **sizes)


def ours(positions: str) -> HookedTransformer:
    return HookedTransformer(TransformerConfig(2, 64, 4, 257, 2048, positions=positions)).eval()


@pytest.mark.parametrize("name", ["llama", "none", "t5"])
def test_a_pass_that_is_listened_to_holds_about_as_much(name: str, folder: Path) -> None:
    model = load_pretrained(str(folder)).model if name == "llama" else ours(name)
    for n_sequences, length in ((4, 128), (1, 2048)):
        probes = [HeadProbe(window=layer.window) for layer in layer_positions(model)]
        listeners = {
            f"blocks.{layer}.attn.hook_pattern": partial(probe.read_text, length=length)
            for layer, probe in enumerate(probes)
        }
        with Peak() as peak:
            stream(model, torch.ones(n_sequences, length).long(), listeners, in_blocks=True)
        assert LOWEST < forward_bytes(model, n_sequences, length) / peak.bytes < HIGHEST


def test_training_and_reading_hold_about_as_much(folder: Path) -> None:
    model = load_plain(str(folder))[0]
    for n_sequences, length in ((8, 64), (1, 1024)):
        training = TrainingConfig(steps=2, warmup=1, batch_size=n_sequences, seq_len=length)
        text = torch.ones(2000).long()
        with Peak() as step:
            recalibrate(model, training, text, 0, header={}, title="", show_progress=False)
        kinds = {"n_kinds": 257}
        trained = sum(weight.numel() for weight in model.parameters())
        needed = training_bytes(model, n_sequences, length, n_weights=trained, **kinds)
        assert LOWEST < needed / step.bytes < HIGHEST
        with Peak() as reading:
            last_losses(model, text[: n_sequences * length].view(-1, length), 8, batch_size=8)
        needed = last_bytes(model, n_sequences, length, n_last=8, **kinds)
        assert LOWEST < needed / reading.bytes < HIGHEST


def test_what_is_not_trained_takes_no_more_than_its_weights(folder: Path) -> None:
    model, text = load_plain(str(folder))[0], torch.ones(2000).long()
    training = TrainingConfig(steps=2, warmup=1, batch_size=1, seq_len=16)
    held, needed = [], []
    for parts in (None, ("self_attn",)):
        with Peak() as step:
            how = {"parts": parts, "header": {}, "title": "", "show_progress": False}
            recalibrate(model, training, text, 0, **how)
        held.append(step.bytes)
        n_weights = sum(weight.numel() for weight in chosen(model, parts))
        needed.append(training_bytes(model, 1, 16, n_kinds=257, n_weights=n_weights))
    assert needed[0] - needed[1] == pytest.approx(held[0] - held[1], rel=0.05)


def test_reading_holds_what_is_said_of_each_token(tmp_path: Path) -> None:
    model = load_plain(str(byte_llama(tmp_path / "llama", vocab_size=20_000)))[0]
    with Peak() as reading:
        last_losses(model, torch.ones(2, 256).long(), 128, batch_size=2)
    needed = last_bytes(model, 2, 256, n_last=128, n_kinds=20_000)
    assert LOWEST < needed / reading.bytes < HIGHEST


def test_the_largest_that_fits_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 3.0 * 2**30)
    needed = partial(lambda each, n: each * n**2, 2**20)  # 55 tokens take 3,025 MiB, 56 too much
    model = nn.Linear(2, 2)
    check_room("seq_len", 55, needed, model)
    said = "seq_len is 64: a pass takes about 4.0 GiB, and 3.0 GiB are free: give at most 55, or"
    with pytest.raises(FieldError, match=said):
        check_room("seq_len", 64, needed, model)


def test_memory_of_all_devices_counts_where_a_model_is_spread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = {"cpu": 2.0**20, "meta": 2.0**30}
    monkeypatch.setattr(memory, "free_bytes", lambda device: free[device.type])
    # Several parameters on each device, which is counted once.
    spread = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    assert free_beside(spread) == 2**20 + 2**30


def test_free_memory_is_the_machines_or_the_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_CONTAINER", tmp_path)
    assert "MemAvailable:" in memory._MEMINFO.read_text()
    (tmp_path / "meminfo").write_text("MemTotal: 16384 kB\nMemAvailable: 8192 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    assert free_bytes(torch.device("cpu")) == 2**23
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1048576\n")
    assert free_bytes(torch.device("cpu")) == 2**23
    (tmp_path / "memory.max").write_text("5242880\n")
    assert free_bytes(torch.device("cpu")) == 2**22
    # Files that were read are in it, and are let go where memory is short.
    (tmp_path / "memory.stat").write_text("anon 7\ninactive_file 524288\nactive_file 9\n")
    assert free_bytes(torch.device("cpu")) == 2**22 + 2**19
    (tmp_path / "memory.current").write_text("9999999\n")
    assert free_bytes(torch.device("cpu")) == 0


@pytest.mark.parametrize("command", ["heads", "drop"])  # the others load as heads does
def test_what_memory_cannot_hold_is_refused_before_it_is_read(
    command: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Enough to look at a few tokens on load, which is not asked for.
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2.0**24)
    for door in ("experiments.drop.material.last_losses", "experiments.drop.drop.recalibrate"):
        monkeypatch.setattr(door, None)
    long = {"heads": ("--seq-len",), "drop": ("--seq-len", "32", "--read-lengths")}[command]
    run = nope_interp(command, str(folder), *long, "2048", "--quiet", cwd=tmp_path)
    said = f"{long[-1]} is 2048: a pass takes about", "GiB are free: give at most"
    assert_one_sentence(run, *said)


def test_moved_codes_take_whole_maps_and_a_probe_takes_blocks(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_pretrained(str(folder)).model
    blocks = forward_bytes(model, 1, 2048)
    with all_queries_at_once(model):
        assert forward_bytes(model, 1, 2048) > 3 * blocks
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2.0 * blocks)
    read = "--seq-len", "2048", "--batch-size", "1", "--quiet"
    # The text is too short for the probe, which is said once memory has been found.
    run = nope_interp("probe", "--model", str(folder), *read, "--sequences", "9000", cwd=tmp_path)
    assert_one_sentence(run, "text")
    run = nope_interp("compare", "--model", str(folder), *read, cwd=tmp_path)
    assert_one_sentence(run, "--seq-len is 2048: a pass takes about", "give at most")
