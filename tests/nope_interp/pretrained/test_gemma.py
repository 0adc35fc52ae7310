"""The real Gemma 3 270M, from its GGUF file: loaded, checked and read like any other model."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.probing.measure import Site, Split, measure
from nope_interp.models.losses import sequence_losses, unigram_losses
from nope_interp.positions.ablation import ablate_positions
from nope_interp.pretrained.load import Pretrained, load_pretrained, reinitialized
from nope_interp.sites import hook_name
from nope_interp.streams import stream
from nope_interp.tasks.text import python_documentation
from tests.first_attention import assert_same, differ, first_attention, shuffled_past
from tests.gemma import first_blocks, gemma, gemma_folder

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


@pytest.fixture(scope="module")
def intact(loaded: Pretrained) -> torch.Tensor:
    """The trained model's loss on each of two sequences."""
    return sequence_losses(loaded.model, text(loaded, 2, 64))


def test_weights_are_the_trained_ones(loaded: Pretrained, intact: torch.Tensor) -> None:
    assert intact.mean() < 4.0
    # These losses are those of the plain logits, but for rounding.
    short = text(loaded, 1, 16)
    of_logits = loss(loaded.model, short)
    assert of_logits == pytest.approx(float(sequence_losses(loaded.model, short)), rel=1e-4)


def test_a_random_init_variant_knows_nothing(tmp_path: Path) -> None:
    """It is near the loss of a uniform guess, of the first blocks as of all: to draw all anew takes
    long."""
    first = load_pretrained(str(first_blocks(2, tmp_path)))
    tokens = text(first, 2, 64)
    uniform = math.log(first.model.cfg.d_vocab)
    assert abs(loss(first.model, tokens) - uniform) > 1.0
    assert abs(loss(reinitialized(first, 0).model, tokens) - uniform) < 1.0


def test_second_load_converts_nothing(before: int, loaded: Pretrained) -> None:
    assert converted() == before


def test_stream_equals_cache(loaded: Pretrained) -> None:
    tokens = text(loaded, 3, 12)
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


def test_without_rotary_positions_the_order_of_earlier_tokens_is_lost(
    loaded: Pretrained, intact: torch.Tensor
) -> None:
    source = loaded.text_source(python_documentation()[:60_000])
    tokens = text(loaded, 2, 64)
    # Attention is looked at on their beginnings, which take less time.
    short = tokens[:, :20]
    before = sequence_losses(loaded.model, short)
    # Only the first token, which begins the text, and the last one stay where they are.
    permuted = torch.cat((short[:, :1], shuffled_past(short[:, 1:])), dim=1)
    # With its positions the model knows far more than how often each token occurs.
    seen = source.sequences(64, 64, begin_token=True, split="fit", seed=0)
    assert (intact < unigram_losses(seen, tokens, loaded.model.cfg.d_vocab) - 2).all()
    assert differ(first_attention(loaded.model, permuted), first_attention(loaded.model, short))
    with ablate_positions(loaded.model) as ablation:
        assert_same(first_attention(loaded.model, permuted), first_attention(loaded.model, short))
        assert (sequence_losses(loaded.model, tokens) > intact + 1).all()
        ablation.verify()
        assert ablation.caveats(512) == ()
        assert len(ablation.caveats(513)) == 1
    assert torch.equal(sequence_losses(loaded.model, short), before)
