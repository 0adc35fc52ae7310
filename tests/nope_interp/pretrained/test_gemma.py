"""The real Gemma 3 270M, from its GGUF file: loaded, checked and read like any other model."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.probing.measure import Site, Split, measure
from nope_interp.errors import UserError
from nope_interp.pretrained.load import Pretrained, cache_folder, load_pretrained, reinitialized
from nope_interp.sites import hook_name
from nope_interp.streams import stream
from nope_interp.tasks.text import python_documentation
from tests.gemma import gemma, gemma_gguf

pytestmark = [pytest.mark.gemma, pytest.mark.slow]


@pytest.fixture(scope="module")
def gemma_file() -> Path:
    return gemma_gguf()


@pytest.fixture(scope="module")
def loaded() -> Pretrained:
    return gemma()


def text(loaded: Pretrained, n: int, seq_len: int, split: str = "held_out") -> torch.Tensor:
    source = loaded.text_source(python_documentation()[:60_000])
    return source.sequences(n, seq_len, begin_token=True, split=split, seed=0)  # type: ignore[arg-type]


def loss(model: object, tokens: torch.Tensor) -> float:
    with torch.no_grad():
        logits = model(tokens)[:, :-1]  # type: ignore[operator]
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))


def test_weights_are_the_trained_ones(loaded: Pretrained) -> None:
    tokens = text(loaded, 2, 64)
    assert loss(loaded.model, tokens) < 4.0
    # The random-init variant knows nothing: it is near the loss of a uniform guess.
    assert abs(loss(reinitialized(loaded, 0).model, tokens) - math.log(262_144)) < 1.0


def test_second_load_converts_nothing(loaded: Pretrained) -> None:
    (complete,) = (cache_folder() / "gguf").rglob("complete.json")
    before = complete.stat().st_mtime_ns
    gemma()
    assert complete.stat().st_mtime_ns == before
    assert (complete.parent / "model.safetensors").is_file()


def test_stream_equals_cache(loaded: Pretrained) -> None:
    tokens = text(loaded, 3, 40)
    names = [hook_name(layer, "resid_post") for layer in (0, 8, 17)]
    sums = dict.fromkeys(names, 0.0)

    def adder(name: str):  # type: ignore[no-untyped-def]
        def add(activations: torch.Tensor) -> None:
            sums[name] += float(activations.double().square().sum())

        return add

    stream(loaded.model, tokens, {name: adder(name) for name in names}, batch_size=2)
    _, cache = loaded.model.run_with_cache(tokens, names_filter=names)
    for name in names:
        # float32 rounding through up to 18 layers, in batches of 2 and of 3.
        np.testing.assert_allclose(
            sums[name], float(cache[name].double().square().sum()), rtol=1e-4
        )


def test_rotary_positions_are_read_from_the_trained_model(loaded: Pretrained) -> None:
    split = Split(text(loaded, 48, 64, "fit"), text(loaded, 24, 64))
    reading = measure(loaded.model, split, [Site(0, "resid_pre"), Site(6, "attn_out")], context={})
    mae = {
        (row["layer"], row["control"]): row
        for row in reading.rows
        if row["probe"] == "linear" and row["metric"] == "mae"
    }
    assert mae[6, ""]["ci_high"] < 0.9 * mae[6, ""]["chance"]
    control = mae[6, "shuffled positions"]
    assert control["ci_high"] > 0.95 * control["chance"]


def test_cut_short_gguf_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gemma_file: Path
) -> None:
    monkeypatch.setenv("NOPE_INTERP_CACHE", str(tmp_path / "cache"))
    cut = tmp_path / "cut.gguf"
    with gemma_file.open("rb") as whole:
        cut.write_bytes(whole.read(40_000_000))
    with pytest.raises(UserError, match=r"cannot load the model .*cut\.gguf"):
        load_pretrained(str(cut))
