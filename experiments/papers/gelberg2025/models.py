"""Small byte-level Llamas: trained, dropped, recalibrated, and read within and beyond a context."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from experiments.results.findings import Array
from experiments.results.measurements import INTACT
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.pretrained.dropped import drop_positions
from nope_interp.pretrained.scaled import SCALINGS, scaled_rotary
from nope_interp.shapes import Sequences
from nope_interp.sites import pattern_hook
from nope_interp.tasks.text import TextTask
from nope_interp.training.config import TrainingConfig
from nope_interp.training.loop import watched_steps
from nope_interp.training.recalibrate import last_losses, recalibrate

CONTROL = "intact, trained as long"
DROPPED, RECALIBRATED = "dropped", "recalibrated"
TIMES = (1, 2, 4)
"""Lengths that are read, in contexts."""

_BATCH = 64  # sequences in a forward pass


@dataclass(frozen=True)
class Sizes:
    """Of the models and their training.

    Attributes:
        n_layers, width, context: of the models.
        steps: of the training.
        again: of the recalibration, and of the control's training.
        n_windows: held-out windows that losses are taken on.
        device: a torch device.
    """

    n_layers: int
    width: int
    context: int
    steps: int
    again: int
    n_windows: int
    device: str

    def training(self, steps: int, seed: int) -> TrainingConfig:
        """A training of so many steps; its rate is that of models of this width."""
        return TrainingConfig(
            steps=steps,
            batch_size=16,
            seq_len=self.context,
            learning_rate=0.128 / self.width,
            warmup=min(steps, 100),
            seed=seed,
        )


def read_model(sizes: Sizes, seed: int) -> dict[str, Array]:
    """Losses of a rotary model, of one trained without positions, and of all that comes of them.

    Args:
        sizes: of the models.
        seed: of weights, batches and windows.

    Returns:
        "curve/..." by encoding, [step]; "loss/..." by variant, [length] in `TIMES` contexts.
    """
    text, windows = _text(sizes, seed)
    found: dict[str, Array] = {}

    def trained(model: Any, steps: int, seed: int, name: str | None = None) -> Any:
        losses: list[float] = []

        def watch(step: int) -> None:
            losses.append(_loss(model, windows, sizes, 1))

        recalibrate(
            model,
            sizes.training(steps, seed),
            text,
            None,
            header={},
            title="",
            watch=None if name is None else watch,
            show_progress=False,
        )
        if name is not None:
            found[f"curve/{name}"] = np.array(losses)
        return model

    def read(name: str, model: Any) -> None:
        every = [_loss(model, windows, sizes, times) for times in TIMES]
        found[f"loss/{name}"] = np.array(every)

    without = _llama(sizes, seed)
    drop_positions(without)
    trained(without, sizes.steps, seed, "NoPE")
    model = trained(_llama(sizes, seed), sizes.steps, seed, "RoPE")
    weights = {name: x.clone() for name, x in model.state_dict().items()}
    read(INTACT, model)
    trained(model, sizes.again, seed + 1)
    read(CONTROL, model)
    found |= {f"loss/{scaling}": losses for scaling, losses in _scaled(model, windows, sizes)}
    model.load_state_dict(weights)
    drop_positions(model)
    read(DROPPED, model)
    read(RECALIBRATED, trained(model, sizes.again, seed + 1))
    return found


def curve_steps(sizes: Sizes) -> Array:
    """The optimiser steps at which "curve/..." was read.

    Args:
        sizes: of the training.
    """
    return np.array(watched_steps(sizes.steps))


def bias_gradients(sizes: Sizes, positions: Any, seed: int) -> Float[Array, " layer"]:
    """Norm of the gradient of each layer's mean attention on the previous token, by the weights of
    its queries and keys, in a random-init model on text in shuffled order.

    Args:
        sizes: of the model.
        positions: its encoding.
        seed: of weights and sequences.
    """
    config = TransformerConfig(
        sizes.n_layers,
        sizes.width,
        4,
        d_vocab=257,
        n_ctx=sizes.context,
        positions=positions,
        seed=seed,
    )
    model = HookedTransformer(config)
    text = (
        TextTask()
        .source()
        .sequences(_BATCH, sizes.context, begin_token=False, split="held_out", seed=seed)
    )
    generator = torch.Generator().manual_seed(seed)
    tokens = text.gather(1, torch.rand(text.shape, generator=generator).argsort(dim=1))
    norms = []
    for layer in range(sizes.n_layers):
        kept: list[Tensor] = []

        def keep(pattern: Tensor, hook: object, kept: list[Tensor] = kept) -> None:
            kept.append(pattern.diagonal(offset=-1, dim1=-2, dim2=-1).mean())

        model.run_with_hooks(tokens, fwd_hooks=[(pattern_hook(layer), keep)])
        weight = model.blocks[layer].attn.qkv.weight
        (gradient,) = torch.autograd.grad(kept[0], [weight])
        norms.append(float(gradient.norm()))
    return np.array(norms)


def _llama(sizes: Sizes, seed: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=257,
        hidden_size=sizes.width,
        num_hidden_layers=sizes.n_layers,
        num_attention_heads=4,
        intermediate_size=4 * sizes.width,
        max_position_embeddings=sizes.context,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).to(sizes.device)


def _text(sizes: Sizes, seed: int) -> tuple[Int[Tensor, " token"], Sequences]:
    """What is trained on, and held-out windows of the longest length."""
    task = TextTask()
    source = task.source()
    longest = max(TIMES) * sizes.context
    windows = source.sequences(
        sizes.n_windows, longest, begin_token=False, split="held_out", seed=seed
    )
    return task.training_tokens, windows


def _loss(model: Any, windows: Sequences, sizes: Sizes, times: int) -> float:
    """Nats per byte of the last bytes of windows, half a context, read with so many contexts."""
    tokens = windows[:, -times * sizes.context :]
    losses = last_losses(model, tokens, sizes.context // 2, batch_size=_BATCH)
    return float(losses.double().mean())


def _scaled(model: Any, windows: Sequences, sizes: Sizes) -> Iterator[tuple[str, Array]]:
    for scaling in SCALINGS:
        losses = []
        for times in TIMES:
            with scaled_rotary(model, scaling, sizes.context, times * sizes.context):
                losses.append(_loss(model, windows, sizes, times))
        yield scaling, np.array(losses)
