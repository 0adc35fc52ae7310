"""A training step on a task with answers: tokens per second against two other trainers.

Each peer is what one would reach for: transformers' GPT-2 with scaled-dot-product attention and its
labels, and x-transformers with fused attention, with the same encoding where it has one. All take
the same tokens and take part in the same AdamW. The loss counts the answer, half of the tokens.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn
from x_transformers import Decoder, TransformerWrapper

from benchmarks.contest import Claim, paired_ratio
from benchmarks.forward import CONFIG, gpt2
from nope_interp.models.config import Positions, TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.training.train import masked_loss

N_LAYERS, WIDTH, HEADS, D_VOCAB = CONFIG.n_layers, CONFIG.d_model, CONFIG.n_heads, CONFIG.d_vocab
LENGTH, BATCH = 64, 32

# x-transformers' words for the encodings that it has.
PEERS: dict[Positions, dict[str, bool]] = {
    "none": {},
    "learned": {},
    "sinusoidal": {},
    "rotary": {"rotary_pos_emb": True},
    "alibi": {"alibi_pos_bias": True},
    "t5": {"rel_pos_bias": True},
}

Step = Callable[[], object]


def claims() -> Iterator[Claim]:
    """For each encoding, ours against the faster of the peers that have it."""
    for positions in PEERS:
        ours = _our_step(positions)
        peers = {"x-transformers": _x_transformers_step(positions)}
        if positions == "learned":
            peers["GPT-2"] = _gpt2_step()
        ratios = {name: paired_ratio(peer, ours, rounds=21) for name, peer in peers.items()}
        faster = min(ratios, key=lambda name: ratios[name])
        yield Claim(
            f"training step, {positions}: our tokens per second / {faster}'s",
            ratios[faster],
            1.10,
            at_most=False,
        )


def _tokens() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(D_VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
    predicted = torch.zeros_like(tokens, dtype=torch.bool)
    predicted[:, LENGTH // 2 :] = True
    return tokens, predicted


def _step(model: nn.Module, loss: Callable[[], torch.Tensor]) -> Step:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def _our_step(positions: Positions) -> Step:
    model = HookedTransformer(
        TransformerConfig(
            N_LAYERS, WIDTH, HEADS, D_VOCAB, n_ctx=LENGTH, positions=positions, tied_embeddings=True
        )
    )
    tokens, predicted = _tokens()
    return _step(model, lambda: masked_loss(model, tokens, predicted))


def _gpt2_step() -> Step:
    # Ours has torch's fused GELU; so does this one, which makes it faster than by default.
    model = gpt2("gelu_pytorch_tanh")
    tokens, predicted = _tokens()
    labels = tokens.masked_fill(~predicted, -100)
    return _step(model, lambda: model(tokens, labels=labels, use_cache=False).loss)


def _x_transformers_step(positions: Positions) -> Step:
    model = TransformerWrapper(
        num_tokens=D_VOCAB,
        max_seq_len=LENGTH,
        use_abs_pos_emb=positions in ("learned", "sinusoidal"),
        scaled_sinu_pos_emb=positions == "sinusoidal",
        tie_embedding=True,
        attn_layers=Decoder(
            dim=WIDTH,
            depth=N_LAYERS,
            heads=HEADS,
            attn_dim_head=WIDTH // HEADS,
            # Its fused attention takes no learned bias: then it computes the scores, as t5 does.
            attn_flash=positions != "t5",
            **PEERS[positions],
        ),
    )
    tokens, predicted = _tokens()
    labels = tokens.masked_fill(~predicted, -100)

    def loss() -> torch.Tensor:
        logits = model(tokens[:, :-1])
        return F.cross_entropy(logits.transpose(1, 2), labels[:, 1:], ignore_index=-100)

    return _step(model, loss)


if __name__ == "__main__":
    for claim in claims():
        print(claim, flush=True)
