"""Small models trained on text: what several papers share."""

from typing import Any

from jaxtyping import Int
from torch import Tensor

from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.registry import make_task
from nope_interp.tasks.sources import TokenSource
from nope_interp.training.config import TrainingConfig
from nope_interp.training.train import train


def trained_on_text(
    config: TransformerConfig, steps: int, device: str = "cpu", **training: Any
) -> HookedTransformer:
    """A model trained on sequences that fill its context, which its own seed draws.

    Args:
        config: the model.
        steps: of the training, the first 100 of which warm up.
        device: a torch device.
        training: further values of `TrainingConfig`.
    """
    schedule = TrainingConfig(
        steps=steps, warmup=min(100, steps), seq_len=config.n_ctx, seed=config.seed, **training
    )
    return train(config, schedule, make_task("text"), device=device, show_progress=False)


def held_out(
    source: TokenSource, count: int, length: int, seed: int
) -> Int[Tensor, "sequence pos"]:
    """Sequences for no one to learn from, behind a begin token where the source has one."""
    begin = source.begin_id is not None
    return source.sequences(count, length, begin_token=begin, split="held_out", seed=seed)
