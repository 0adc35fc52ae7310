"""Can gradient descent find a previous-token head, and with which positional encoding?

One attention layer learns to name, at every position, the token before. A purely positional head
does it on any tokens. Without positions one layer cannot, on none: it sees which tokens came, not
in what order (Barbero et al. 2024, arXiv 2410.06205, say so of repeated tokens; for one layer
without a begin token it holds of all).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Generator, Tensor

from experiments.results.findings import Array
from nope_interp.errors import UserError, unknown_name
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer

ENCODINGS: dict[str, dict[str, Any]] = {
    "NoPE": {"positions": "none"},
    "RoPE": {"positions": "rotary"},
    "p-RoPE 0.5": {"positions": "rotary", "rotary_kept": 0.5},
    "ALiBi": {"positions": "alibi"},
    "T5": {"positions": "t5"},
}
LENGTH, D_VOCAB = 24, 32
_FEW = 3
_BATCH, _HELD_OUT, _LEARNING_RATE = 64, 512, 5e-3


def _random(count: int, generator: Generator) -> Int[Tensor, "sequence pos"]:
    return torch.randint(D_VOCAB, (count, LENGTH), generator=generator)


def _repeated(count: int, generator: Generator) -> Int[Tensor, "sequence pos"]:
    few = torch.rand(count, D_VOCAB, generator=generator).argsort(dim=1)[:, :_FEW]
    return few.gather(1, torch.randint(_FEW, (count, LENGTH), generator=generator))


TOKENS: dict[str, Callable[[int, Generator], Int[Tensor, "sequence pos"]]] = {
    "random": _random,
    "repeated": _repeated,
}
"""Uniform over the vocabulary, or over three tokens of it, other ones in every sequence."""


def trained_run(encoding: str, kind: str, steps: int, seed: int) -> dict[str, Array]:
    """Train one attention layer to name the token before.

    Args:
        encoding: a name in `ENCODINGS`.
        kind: a name in `TOKENS`; training and held-out sequences are of the same kind.
        steps: of Adam, 64 sequences of 24 tokens each; 400 take seconds on one core.
        seed: draws weights and sequences.

    Returns `accuracy`, the share of held-out tokens named, and `order_blind`, what guessing that
    knows no order could reach. Raises UserError for unknown names, and where there is nothing to
    train.
    """
    if encoding not in ENCODINGS:
        raise unknown_name("encoding", encoding, ENCODINGS)
    if kind not in TOKENS:
        raise unknown_name("kind of tokens", kind, TOKENS)
    if steps < 1:
        raise UserError("there is nothing to train: give at least one step.")
    config = TransformerConfig(
        n_layers=1,
        d_model=64,
        n_heads=4,
        d_vocab=D_VOCAB,
        n_ctx=LENGTH,
        attn_only=True,
        init="xavier_normal",
        seed=seed,
        **ENCODINGS[encoding],
    )
    model = HookedTransformer(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = TOKENS[kind](_BATCH, generator)
        loss = F.cross_entropy(_guesses(model, batch).flatten(0, 1), batch[:, :-1].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    held_out = TOKENS[kind](_HELD_OUT, generator)
    with torch.no_grad():
        right = _guesses(model, held_out).argmax(dim=-1) == held_out[:, :-1]
    return {
        "accuracy": np.array(float(right.float().mean())),
        "order_blind": np.array(order_blind_accuracy(held_out)),
    }


def order_blind_accuracy(tokens: Int[Tensor, "sequence pos"]) -> float:
    """The best accuracy, on average, of a guess at the previous token that knows no order.

    Where all orders are equally likely, each of the earlier tokens may be the last one, so the
    guess is their commonest, right as often as it is among them. Positions count from the second.
    """
    counts = F.one_hot(tokens.long()).cumsum(dim=1)[:, :-1]
    seen = torch.arange(1, tokens.shape[1])
    return float((counts.amax(dim=-1) / seen).mean())


def _guesses(model: HookedTransformer, tokens: Int[Tensor, "sequence pos"]) -> Tensor:
    """Logits from the second position on; the first has nothing before it."""
    logits = model(tokens)
    assert logits is not None
    return logits[:, 1:]
