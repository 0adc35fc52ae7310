"""Runs whose sequences are shared out over workers, against the same runs in one piece."""

import dataclasses
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from experiments import Comparison, classify_heads, compare
from experiments.comparison import cells as parts
from experiments.heads import classify as heads
from experiments.heads.config import HeadsConfig
from experiments.heads.result import HeadClassification
from experiments.probing import shards as shards_module
from experiments.probing.measure import Reading, feed, make_probes, measure, reading_of
from experiments.probing.shards import ONE_SHARD, Shards, cut, opened, shard_seed
from experiments.probing.sites import sites
from experiments.probing.split import Split
from experiments.results.heads import settling
from experiments.runs import ray_cluster
from experiments.runs.finished import FinishedRun
from experiments.runs.folder import RunConfig
from experiments.runs.workers import torch_threads
from experiments.variants.ablation import Ablation
from experiments.variants.checks import check_shards
from experiments.variants.variants import bidirectional, random_init, variant_of
from nope_interp.errors import UserError
from nope_interp.models.checkpoints import save_model
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.pretrained.spec import ModelSpec
from nope_interp.training.config import TrainingConfig
from tests import typecheck
from tests.experiments.cli.command import assert_one_sentence, nope_interp
from tests.experiments.runs.sharing import (
    COMPARE,
    assert_same_bits,
    drowned,
    pickling,
    seen,
    travelled,
    with_weights_of,
)
from tests.huggingface import save_folder, tiny_gemma3, words

HEADS = HeadsConfig(
    transformer=TransformerConfig(2, 32, 4, d_vocab=257, n_ctx=32, positions="rotary"),
    training=TrainingConfig(steps=4, batch_size=4, seq_len=32, warmup=2),
    ablate="rotary",
    seq_len=32,
    n_sequences=26,
    batch_size=8,
)
RESAMPLED = ["value", "ci_low", "ci_high"]
# Products of float32 rows are added up in other batches.
ROUNDING = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_module, "opened", pickling)


@pytest.fixture(autouse=True, scope="module")
def no_pages() -> Iterator[None]:
    """None is written here: two tests draw the page of a run in shards themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FinishedRun, "write_report", lambda run: run.folder)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return compare(COMPARE, out=tmp_path_factory.mktemp("whole"), show_progress=False)


# Its model alone, without variants.
ALONE = dataclasses.replace(COMPARE, variants=False)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, whole: Comparison) -> Comparison:
    """The model of `whole`, read in two shards by one thread, as workers would."""
    out = with_weights_of(whole, tmp_path_factory.mktemp("alone"))
    return in_shards(compare, ALONE, out, 2)


@pytest.fixture(scope="module")
def whole_heads(tmp_path_factory: pytest.TempPathFactory) -> HeadClassification:
    return classify_heads(HEADS, out=tmp_path_factory.mktemp("heads"), show_progress=False)


@pytest.fixture(scope="module")
def shared_heads(
    tmp_path_factory: pytest.TempPathFactory, whole_heads: HeadClassification
) -> HeadClassification:
    """The heads of `whole_heads`, read in three shards by one thread."""
    out = with_weights_of(whole_heads, tmp_path_factory.mktemp("shared heads"))
    return in_shards(classify_heads, HEADS, out, 3)


def in_shards(run: Callable[..., Any], config: RunConfig, out: Path, n: int) -> Any:
    """The run by one thread, its shares pickled on their way."""
    with pytest.MonkeyPatch.context() as patch, torch_threads(1):
        patch.setattr(shards_module, "opened", pickling)
        return run(config, out=out, shards=n, show_progress=False)


def assert_same_but_for_resampling(whole: pd.DataFrame, shared: pd.DataFrame) -> None:
    names = [name for name in whole.columns if name not in RESAMPLED]
    pd.testing.assert_frame_equal(shared[names], whole[names])
    np.testing.assert_allclose(shared["value"], whole["value"], **ROUNDING)
    widths = [table["ci_high"] - table["ci_low"] for table in (whole, shared)]
    np.testing.assert_allclose(widths[1], widths[0], rtol=0.5, atol=1e-6)


# ---------------------------------------------------------------- shares


def test_shares_are_all_sequences_in_order() -> None:
    tokens = torch.arange(26)[:, None]
    for n in (1, 2, 3, 13):
        parts = cut(tokens, n)
        assert torch.equal(torch.cat([part for _, part in parts]), tokens)
        assert all(len(part) >= 26 // n for _, part in parts)
        assert [start for start, _ in parts] == [int(part[0]) for _, part in parts]


def test_every_shard_of_every_run_has_another_seed() -> None:
    seeds = {shard_seed(seed, shard) for seed in range(20) for shard in range(50)}
    assert len(seeds) == 20 * 50
    assert shard_seed(7, 0) == 7


# ---------------------------------------------------------------- specs


def test_recipes_make_the_same_models_again(tmp_path: Path, whole: Comparison) -> None:
    text = tmp_path / "text.txt"
    text.write_text(words(3000))
    folder = save_folder(tiny_gemma3(), tmp_path / "gemma")
    ours = with_weights_of(whole, tmp_path / "ours")
    given = dataclasses.replace(COMPARE, model=str(folder), text=str(text))
    for config in (COMPARE, given):
        variant = variant_of(config, ours, "cpu", False, needed={})
        found = [variant, random_init(variant, config.seed)]
        found += [bidirectional(variant)] if config is COMPARE else []
        found.append(random_init(variant, config.seed, draw=1))
        for variant in found:
            again = travelled(variant.spec).make()
            assert again.cfg.n_layers == variant.n_layers
            tokens = torch.arange(4, 14)[None]
            assert torch.equal(again(tokens), variant.model(tokens)), variant.kind
        outputs = [variant.model(tokens) for variant in found]
        assert not any(torch.equal(outputs[-1], other) for other in outputs[:-1])


# ---------------------------------------------------------------- compare


@pytest.mark.parametrize("ablate", [None, "rotary"])
def test_any_number_of_shards_measures_the_same(tmp_path: Path, ablate: str | None) -> None:
    """At sites with a two-layer probe, which one worker trains alone, and at sites without."""
    positions = "none" if ablate is None else ablate
    changes: dict[str, Any] = {"init_scale": 0.3, "positions": positions}
    model = HookedTransformer(dataclasses.replace(COMPARE.transformer, **changes))
    spec = ModelSpec(str(save_model(model, tmp_path / "model.safetensors", task="text")), "cpu")
    tokens = torch.randint(256, (60, 12), generator=torch.Generator().manual_seed(2))
    split, where = Split(tokens[:35], tokens[35:]), sites(1, ["resid_post", "attn_out"])
    how: dict[str, Any] = {"context": {}, "seed": 3, "batch_size": 8}
    how["condition"] = Ablation(ablate).of

    def measured(shards: Shards) -> Reading:
        return measure(model, split, where, shards=shards, spec=spec, **how)

    expected = measured(ONE_SHARD)
    # Some of several batches; and of as few sequences as there may be.
    for n in (2, 5, 12):
        with pickling(n, None, "cpu") as shards:
            found = measured(shards)
        assert len(expected.rows) == len(found.rows)
        for one, other in zip(expected.rows, found.rows, strict=True):
            what = {name: value for name, value in one.items() if name not in RESAMPLED}
            assert what == {name: other[name] for name in what}
            # The control gets the very same shuffled positions.
            said = f"{n} shards: {what}"
            np.testing.assert_allclose(other["value"], one["value"], **ROUNDING, err_msg=said)
        assert expected.arrays.keys() == found.arrays.keys()
        for name, array in expected.arrays.items():
            if not name.endswith(("_low", "_high")):
                np.testing.assert_allclose(found.arrays[name], array, **ROUNDING, err_msg=name)


def test_one_share_is_what_the_probes_themselves_read() -> None:
    """Every bit, intervals too, as when each probe is fed by hand."""
    model = HookedTransformer(dataclasses.replace(COMPARE.transformer, init_scale=0.3)).eval()
    tokens = torch.randint(256, (40, 12), generator=torch.Generator().manual_seed(0))
    split, where = Split(tokens[:24], tokens[24:]), sites(1, ["resid_post"])
    probes = {site: make_probes(site, 3) for site in where}
    feed(model, split.fit, probes, "update", batch_size=8)
    feed(model, split.held_out, probes, "evaluate", batch_size=8)
    expected = reading_of(probes, {})
    found = measure(model, split, where, context={}, seed=3, batch_size=8)
    assert found.rows == expected.rows
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array)


def test_positions_are_taken_away_in_shards_too(here: None, tmp_path: Path) -> None:
    transformer = dataclasses.replace(COMPARE.transformer, positions="rotary", rotary_base=100.0)
    config = dataclasses.replace(COMPARE, transformer=transformer, uses="no", variants=False)
    ablated = dataclasses.replace(config, ablate="rotary")
    whole = compare(ablated, out=tmp_path / "whole", show_progress=False)
    out = with_weights_of(whole, tmp_path / "shared")
    shared = compare(ablated, out=out, shards=2, show_progress=False)
    intact = compare(config, out=out, show_progress=False)
    assert_same_but_for_resampling(whole.measurements, shared.measurements)
    moved = np.abs(intact.measurements["value"] - shared.measurements["value"])
    assert moved.max() > 100 * ROUNDING["atol"]
    assert shared.info["positions"] == "rotary:none"


@pytest.mark.slow
def test_compare_in_shards_is_compare(here: None, tmp_path: Path, whole: Comparison) -> None:
    shared = compare(COMPARE, out=with_weights_of(whole, tmp_path), shards=3, show_progress=False)
    assert shared.folder.name == whole.folder.name
    assert_same_but_for_resampling(whole.measurements, shared.measurements)
    # Intervals differ: some have other resamples, and the reader is told.
    assert (whole.measurements["ci_low"] != shared.measurements["ci_low"]).mean() > 0.3
    assert "in 3 shards" in shared.info["notes"][0]
    assert "in 3 shards" in shared.html()
    assert shared.info["notes"][1:] == whole.info["notes"]
    for name, array in whole.arrays.items():
        if name.startswith("example/"):
            np.testing.assert_allclose(shared.arrays[name], array, atol=1e-3)


def test_what_is_wrong_in_a_worker_is_said_here(here: None, tmp_path: Path) -> None:
    model = HookedTransformer(COMPARE.transformer)
    # Finite weights are read; what they sum to is too large for float32.
    model.blocks[0].attn.b_O.data[:] = 3e38
    model.blocks[0].mlp.b_out.data[:] = 3e38
    path = save_model(model, tmp_path / "broken.safetensors", task="text")
    broken = dataclasses.replace(COMPARE, model=str(path))
    with pytest.raises(UserError, match=r"activations at blocks.0.hook_attn_out, batch 0"):
        compare(broken, out=tmp_path / "runs", shards=2, show_progress=False)
    assert not (tmp_path / "runs").exists()


# ---------------------------------------------------------------- heads


def assert_same_heads(whole: FinishedRun, shared: FinishedRun) -> None:
    # Labels, p-values and what depends on positions are read off resamples.
    read = ["heads", "frequency usage", "loss"]
    one, other = (
        run.measurements[run.measurements["probe"].isin(read)].reset_index(drop=True)
        for run in (whole, shared)
    )
    assert set(one["probe"]) == set(read)
    assert one.groupby(["probe", "positions"]).ngroups == 2 * len(read)
    assert_same_but_for_resampling(one, other)
    assert whole.arrays.keys() == shared.arrays.keys()
    for name, array in whole.arrays.items():
        if name != "frequency/high_share":
            np.testing.assert_allclose(shared.arrays[name], array, **ROUNDING, err_msg=name)


def test_heads_in_shards_are_the_heads(
    whole_heads: HeadClassification, shared_heads: HeadClassification
) -> None:
    assert shared_heads.folder.name == whole_heads.folder.name
    assert_same_heads(whole_heads, shared_heads)
    page = shared_heads.html()
    assert "in 3 shards" in page
    # The first 8 of each, and the first 4.
    assert [line["n"] for line in settling(shared_heads.measurements)] == [[12, 24]] * 2
    assert "are of the first sequences in each shard" in page


@pytest.mark.slow
def test_a_pretrained_model_with_windows_in_shards(here: None, tmp_path: Path) -> None:
    folder, text = save_folder(tiny_gemma3(), tmp_path / "gemma"), tmp_path / "text.txt"
    text.write_text(words(3000))
    config = dataclasses.replace(
        HEADS, model=str(folder), text=str(text), lift_window=True, begin_token=False
    )
    whole = classify_heads(config, out=tmp_path / "whole", show_progress=False)
    # So many that some shares hold no copies of a token.
    shared = classify_heads(config, out=tmp_path / "shared", shards=8, show_progress=False)
    assert_same_heads(whole, shared)


@pytest.mark.parametrize(
    ("module", "reader", "run", "config", "pure", "n"),
    [
        (heads, "read_cell", classify_heads, HEADS, "shared_heads", 3),
        (parts, "measure", compare, ALONE, "alone", 2),
    ],
)
def test_cells_of_other_shards_are_not_mixed(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    reader: str,
    run: Callable[..., Any],
    config: RunConfig,
    pure: str,
    n: int,
) -> None:
    """A run in one piece dies after a cell and goes on in shards: as one in shards all along."""
    expected = request.getfixturevalue(pure)
    real: Callable[..., Any] = getattr(module, reader)
    read: list[int] = []

    def dying(*args: Any, **kwargs: Any) -> Any:
        if read:
            raise KeyboardInterrupt
        read.append(1)
        return real(*args, **kwargs)

    out = with_weights_of(expected, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(module, reader, dying)
        with pytest.raises(KeyboardInterrupt):
            run(config, out=out, show_progress=False)
    assert_same_bits(in_shards(run, config, out, n), expected)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"shards": 0}, "shards is 0: give at least 1"),
        ({"shards": -2}, "shards is -2: give at least 1"),
        ({"shards": "2"}, "shards is '2': give at least 1, a whole number"),
        ({"shards": 14}, "14 shards are too many for 26 sequences: give at most 13"),
        ({"shards": 2, "device": "auto"}, "name one device, or leave the shards out"),
        ({"ray": "127.0.0.1:1"}, "add --shards, or leave --ray out"),
        ({"shards": 2, "ray": "auto"}, "give HOST:PORT"),
    ],
)
def test_shards_that_cannot_be_are_refused_before_anything_is_written(
    tmp_path: Path, asked: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    config = dataclasses.replace(COMPARE, n_held_out=26)
    for run, of in ((compare, config), (classify_heads, HEADS)):
        with pytest.raises(UserError, match=sentence):
            run(of, out=tmp_path / "runs", **asked)  # type: ignore[operator]
    assert not (tmp_path / "runs").exists()


def test_half_as_many_shards_as_sequences_are_allowed() -> None:
    check_shards(13, None, n_sequences=27, device="cpu")
    check_shards(1, None, n_sequences=27, device="auto")


@pytest.mark.parametrize("listening", [False, True], ids=["closed", "mute"])
def test_an_address_where_no_ray_answers_is_refused_before_ray_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listening: bool
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # it would wait for minutes; here it is an error
    monkeypatch.setattr(ray_cluster, "_SECONDS_TO_ANSWER", 0.1)
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        if listening:
            server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UserError, match=f"no Ray cluster answers at '{address}'"):
            compare(COMPARE, out=tmp_path / "runs", shards=2, ray=address)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", ["compare", "probe", "heads"])
def test_mistakes_at_the_command_line_are_one_sentence(tmp_path: Path, command: str) -> None:
    run = nope_interp(command, "--shards", "0", cwd=tmp_path)
    assert_one_sentence(run, "shards is 0: give at least 1")
    assert not list(tmp_path.iterdir())


def test_the_command_line_refuses_an_address_without_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    run = nope_interp("compare", "--shards", "2", "--ray", "127.0.0.1:9", cwd=tmp_path)
    assert_one_sentence(run, "no Ray cluster answers at '127.0.0.1:9'")


# ---------------------------------------------------------------- processes


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers of one thread: the same ones in each test."""
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "2")


@pytest.mark.slow
def test_processes_find_the_same_bits(two_cores: None, tmp_path: Path, alone: Comparison) -> None:
    out = with_weights_of(alone, tmp_path)
    assert_same_bits(compare(ALONE, out=out, shards=2, show_progress=False), alone)


@pytest.mark.slow
def test_workers_keep_their_model_and_their_death_is_one_sentence(
    two_cores: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(HookedTransformer(COMPARE.transformer), Path("a.safetensors"), task="text")
    spec = ModelSpec("a.safetensors", "cpu")
    with opened(2, None, "cpu") as shards:
        first, second = (shards.map(seen, None, spec, range(8)) for _ in range(2))
        models = {process: model for process, model, _ in first}
        assert os.getpid() not in models
        assert all(models.get(process, model) == model for process, model, _ in second)
        assert {folder for *_, folder in first} == {str(tmp_path)}
        # Other weights in the same place are another model.
        weights = HookedTransformer(dataclasses.replace(COMPARE.transformer, seed=1))
        save_model(weights, Path("a.safetensors"), task="text")
        third = shards.map(seen, None, spec, range(8))
        assert all(models.get(process) != model for process, model, _ in third)
        with pytest.raises(UserError, match=r"a worker died .* fewer --shards"):
            shards.map(drowned, None, spec, range(2))
