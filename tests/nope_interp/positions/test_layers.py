"""What a layer's attention is limited to."""

from nope_interp.positions.layers import LayerPositions


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
