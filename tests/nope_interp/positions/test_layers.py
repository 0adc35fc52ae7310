"""What a layer's attention is limited to."""

import pytest

from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.positions.layers import LayerPositions, layer_positions, positions_in_words
from nope_interp.positions.order import order_dependence


def test_what_a_query_sees_ends_at_windows_and_chunks() -> None:
    assert LayerPositions(0, "rotary", window=2).sees(4).tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [False, True, True, False],
        [False, False, True, True],
    ]
    assert LayerPositions(0, "rotary", chunk=2).sees(4)[2:].tolist() == [
        [False, False, True, False],
        [False, False, True, True],
    ]
    assert LayerPositions(0, "none").sees(3, causal=False).all()


@pytest.mark.parametrize(("kept", "words"), [(0.0, "none"), (0.25, "rotary")])
def test_what_does_not_turn_is_no_position(kept: float, words: str) -> None:
    """Of p-RoPE without a frequency, and in a context shorter than the sequences of the check."""
    config = TransformerConfig(1, 16, 2, d_vocab=50, n_ctx=4, positions="rotary", rotary_kept=kept)
    model = HookedTransformer(config)
    assert positions_in_words(model) == words
    (change,) = order_dependence(model, layer_positions(model)).values()
    assert (change > 1e-4) == (words == "rotary")
