"""Which encodings let one attention layer learn to name the token before."""

import pytest
import torch

from experiments.papers.barbero2024 import previous_token
from experiments.papers.barbero2024.previous_token import (
    ENCODINGS,
    TOKENS,
    order_blind_accuracy,
    trained_run,
)
from nope_interp.errors import UserError


def test_order_blind_accuracy_by_hand() -> None:
    """Earlier tokens 7, then {7, 7}, then {7, 7, 8}: right in 1, 1 and 2/3 of the cases."""
    assert order_blind_accuracy(torch.tensor([[7, 7, 8, 9]])) == pytest.approx((1 + 1 + 2 / 3) / 3)


@pytest.mark.slow
def test_encodings_separate(monkeypatch: pytest.MonkeyPatch) -> None:
    # Few tokens and a high rate: T5's bias, the slowest to learn, has learned in 110 steps.
    for name, value in (("_BATCH", 16), ("_LEARNING_RATE", 2e-2), ("D_VOCAB", 16)):
        monkeypatch.setattr(previous_token, name, value)
    found = {(name, kind): trained_run(name, kind, 110, 0) for name in ENCODINGS for kind in TOKENS}
    accuracy = {run: float(numbers["accuracy"]) for run, numbers in found.items()}
    for tokens in ("random", "repeated"):
        for encoding in ("RoPE", "p-RoPE 0.5", "T5"):
            assert accuracy[encoding, tokens] > 0.95
        # 512 sequences of 23 guesses: chance adds at most 4 standard errors.
        error = (0.25 / (512 * 23)) ** 0.5
        assert accuracy["NoPE", tokens] < found["NoPE", tokens]["order_blind"] + 4 * error
        assert accuracy["NoPE", tokens] < accuracy["ALiBi", tokens]
    # ALiBi's slopes are fixed and gentle: many copies of a token outweigh the nearest one.
    assert accuracy["ALiBi", "repeated"] < accuracy["ALiBi", "random"] < accuracy["RoPE", "random"]


def test_same_seed_same_numbers() -> None:
    runs = [trained_run("RoPE", "repeated", 5, 4) for _ in range(2)]
    assert runs[0] == runs[1]


def test_nonsense_is_one_sentence() -> None:
    with pytest.raises(UserError, match="did you mean 'RoPE'"):
        trained_run("Rope", "repeated", 5, 0)
    with pytest.raises(UserError, match="did you mean 'repeated'"):
        trained_run("RoPE", "repeats", 5, 0)
    with pytest.raises(UserError, match="nothing to train"):
        trained_run("RoPE", "repeated", 0, 0)
