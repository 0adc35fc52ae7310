"""The real Gemma 3 270M, from its GGUF file: loaded, checked and read like any other model."""

import math

import numpy as np
import pytest
import torch

from experiments.probing.measure import measure
from experiments.probing.sites import Site
from experiments.probing.split import Split
from nope_interp.models.losses import sequence_losses, unigram_losses
from nope_interp.positions.ablation import ablate_positions
from nope_interp.pretrained.load import Pretrained, reinitialized
from nope_interp.sites import hook_name
from nope_interp.streams import stream
from nope_interp.tasks.text import python_documentation
from tests.first_attention import assert_same, differ, first_attention, shuffled_past
from tests.gemma import gemma, gemma_folder

pytestmark = [pytest.mark.gemma, pytest.mark.slow]


def converted() -> int:
    """When the file was converted, which it is now if it was not before."""
    assert (gemma_folder() / "model.safetensors").is_file()
    return (gemma_folder() / "complete.json").stat().st_mtime_ns


@pytest.fixture(scope="module")
def before() -> int:
    return converted()


@pytest.fixture(scope="module")
def loaded(before: int) -> Pretrained:
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


def test_second_load_converts_nothing(before: int, loaded: Pretrained) -> None:
    assert converted() == before


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
    split = Split(text(loaded, 40, 64, "fit"), text(loaded, 16, 64))
    reading = measure(loaded.model, split, [Site(2, "attn_out")], context={})
    mae = {
        row["control"]: row
        for row in reading.rows
        if row["probe"] == "linear" and row["metric"] == "mae"
    }
    assert mae[""]["ci_high"] < 0.7 * mae[""]["chance"]
    control = mae["shuffled positions"]
    assert control["ci_high"] > 0.95 * control["chance"]


def test_without_rotary_positions_the_order_of_earlier_tokens_is_lost(loaded: Pretrained) -> None:
    source = loaded.text_source(python_documentation()[:60_000])
    tokens = text(loaded, 2, 64)
    # Only the first token, which begins the text, and the last one stay where they are.
    permuted = torch.cat((tokens[:, :1], shuffled_past(tokens[:, 1:])), dim=1)
    intact = sequence_losses(loaded.model, tokens)
    # With its positions the model knows far more than how often each token occurs.
    seen = source.sequences(64, 64, begin_token=True, split="fit", seed=0)
    assert (intact < unigram_losses(seen, tokens, loaded.model.cfg.d_vocab) - 2).all()
    assert differ(first_attention(loaded.model, permuted), first_attention(loaded.model, tokens))
    with ablate_positions(loaded.model) as ablation:
        assert_same(first_attention(loaded.model, permuted), first_attention(loaded.model, tokens))
        assert (sequence_losses(loaded.model, tokens) > intact + 1).all()
        ablation.verify()
        assert ablation.caveats(512) == ()
        assert len(ablation.caveats(513)) == 1
    assert torch.equal(sequence_losses(loaded.model, tokens), intact)
