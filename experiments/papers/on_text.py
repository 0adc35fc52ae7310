"""Models on text: small ones that are trained on it, and the one that the user gives."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np

from experiments.papers.config import ReproduceConfig
from experiments.results.findings import Array
from experiments.variants.config import ProbingConfig
from experiments.variants.variants import ModelVariant, loaded_variant
from nope_interp.errors import UserError
from nope_interp.hooked_model import layers_without_attention
from nope_interp.models.checkpoints import load_model
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.positions.layers import describe_positions
from nope_interp.pretrained.source import is_own
from nope_interp.shapes import Sequences
from nope_interp.sites import layer_ranges
from nope_interp.tasks.registry import make_task
from nope_interp.tasks.sources import TokenSource
from nope_interp.tasks.text import TextTask
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

    Returns:
        The model, in evaluation mode.
    """
    schedule = TrainingConfig(
        steps=steps, warmup=min(100, steps), seq_len=config.n_ctx, seed=config.seed, **training
    )
    return train(config, schedule, make_task("text"), device=device, show_progress=False)


def held_out(source: TokenSource, count: int, length: int, seed: int) -> Sequences:
    """Sequences for no one to learn from, behind a begin token where the source has one.

    Args:
        source: what they are drawn from.
        count: how many.
        length: tokens in each, the begin token included.
        seed: of the draws.

    Returns:
        Tokens, `[sequence pos]`.

    Raises:
        UserError: where the source has too few tokens.
    """
    begin = source.begin_id is not None
    return source.sequences(count, length, begin_token=begin, split="held_out", seed=seed)


def check_text(
    config: ReproduceConfig, n_sequences: int, tokens: Callable[[ReproduceConfig], int]
) -> None:
    """Refuse lengths at which the text that comes with the package has too few sequences.

    Args:
        config: asks for a length.
        n_sequences: held-out ones that are read.
        tokens: how many of its tokens one of them takes under a config.

    Raises:
        UserError: for such a length, with the longest that is not.
    """
    source = TextTask().source()

    def enough(length: float) -> bool:
        asked = tokens(replace(config, length=length))
        return source.available(asked, "held_out") >= n_sequences

    if enough(config.length):
        return
    below = range(1, ceil(100 * config.length))
    longest = max(n / 100 for n in below if enough(n / 100))
    raise UserError(
        f"length is {config.length:g}: the text that comes with the package holds too few held-out "
        f"sequences of {tokens(config)} bytes: give a length of at most {longest:g}."
    )


def given_variant(
    config: ReproduceConfig, device: str, *, seq_len: int, of_heads: bool = False
) -> ModelVariant:
    """The model that `config.model` names, with text to read it on.

    Args:
        config: names the model, its positions and the text.
        device: a torch device, or "auto" to spread a pretrained model over several.
        seq_len: tokens in a sequence.
        of_heads: whether heads of all layers are read.

    Returns:
        The model, loaded.

    Raises:
        UserError: where it cannot be loaded, was trained on a task, has too short a context for the
            sequences, or lacks heads that are read.
    """
    assert config.model is not None
    _check_ours(config, config.model, seq_len)
    read = ProbingConfig(
        model=config.model, positions=config.positions, text=config.text, seq_len=seq_len
    )
    variant = loaded_variant(read, device, needed={})
    if of_heads and (without := layers_without_attention(variant.model)):
        raise UserError(
            f"{config.name} reads heads of every layer, and {variant.name} has none in "
            f"{layer_ranges(without)}: give a model with attention in all of them."
        )
    return variant


def _check_ours(config: ReproduceConfig, model: str, seq_len: int) -> None:
    """Raise UserError for a model of ours that reads no text, or too little of it."""
    if not is_own(model):
        return
    ours, trained_on = load_model(model)
    if trained_on.task != TextTask.name:
        raise UserError(
            f"{model!r} was trained on {trained_on.task}, and {config.name} reads text: give a "
            "model that was trained on text."
        )
    if ours.config.n_ctx < seq_len:
        raise UserError(
            f"{config.name} reads {seq_len} tokens or more, and {model!r} takes "
            f"{ours.config.n_ctx}: give a model with a longer context."
        )


def told_of(variant: ModelVariant) -> Array:
    """Sentences about a model's positions and files, as an array that a cell keeps.

    Args:
        variant: the given model.
    """
    told = [*variant.how_read, "Where the model keeps its positions is not known here."]
    if variant.positions != "unknown":
        told[-1] = describe_positions(variant.model)
    return np.frombuffer("\n".join(told).encode(), dtype=np.uint8)


def sentences(told: Array) -> list[str]:
    """What `told_of` made an array of.

    Args:
        told: the array.
    """
    return told.tobytes().decode().split("\n")
