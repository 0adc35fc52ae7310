"""What a tournament of position codes is held on: the tokens of a model, and what it loses."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from experiments.compare_config import CompareConfig
from experiments.measure import FIRST_POSITION, Split
from experiments.subjects import Subject
from nope_interp.errors import UserError
from nope_interp.losses import answer_losses, sequence_losses, unigram_losses
from nope_interp.tasks.answers import AnswerTask, ExampleSource, dataset

# What a model loses on sequences, mean over the tokens of each, in nats.
Losses = Callable[[Any, Tensor], Float[Tensor, " sequence"]]


@dataclass(frozen=True)
class Contest:
    """What a tournament is held on.

    Attributes:
        model: a HookedTransformer or a bridge, in evaluation mode.
        split: sequences to fit interventions on, and others to score the model on.
        losses: what the model loses on these.
        chance: what it would lose if it saw no context, in nats.
        seed: of noise, random directions and resamples.
        batch_size: sequences in a forward pass.
        begin_token: whether the sequences start with one.
    """

    model: Any
    split: Split
    losses: Losses
    chance: float
    seed: int = 0
    batch_size: int = 32
    begin_token: bool = False


def check_enough_to_fit(config: CompareConfig, d_model: int, seq_len: int) -> None:
    """Raise UserError where codes cannot be taken away from rows of that width and number.

    As many numbers as positions are needed to tell the correlation between positions, and more rows
    than directions for LEACE.
    """
    positions = seq_len - FIRST_POSITION
    least = max(1 + math.ceil(positions / d_model), math.ceil((d_model + 2) / positions))
    if config.tournament != "no" and config.n_fit < least:
        raise UserError(
            f"{config.n_fit} sequences to fit on are too few to take codes away from {positions} "
            f"positions of width {d_model}: give {least} at least, better ten times that, or read "
            "the model only, with uses = 'no'."
        )


def contest_of(config: CompareConfig, subject: Subject) -> Contest:
    """The model on the source that it was made for.

    Text of pretrained models starts with their begin token, where they have one: without what they
    always saw in training they may do worse than chance. Ours were trained on text without. On a
    task with answers the sequences are examples of the longest training length that fits,
    those that are scored from prompts that training never saw, and only answers are scored.

    Raises UserError for too few sequences to fit on.
    """
    d_model = subject.model.cfg.d_model
    check_enough_to_fit(config, d_model, config.seq_len)
    source = subject.sources[0]
    if isinstance(source, ExampleSource):
        return _of_answers(config, subject, source.task)
    begin_token = subject.variant == "pretrained" and source.begin_id is not None
    drawn = partial(
        source.sequences, seq_len=config.seq_len, begin_token=begin_token, seed=config.seed
    )
    split = Split(drawn(config.n_fit, split="fit"), drawn(config.n_held_out, split="held_out"))
    return Contest(
        subject.model,
        split,
        partial(sequence_losses, batch_size=config.batch_size),
        float(unigram_losses(split.fit, split.held_out, subject.model.cfg.d_vocab).mean()),
        config.seed,
        config.batch_size,
        begin_token,
    )


def _of_answers(config: CompareConfig, subject: Subject, task: AnswerTask) -> Contest:
    length = max(task.fitting_lengths(config.seq_len), default=min(task.training_lengths))
    seed, lengths = config.seed, [length]
    fit = dataset(task, config.n_fit, split="train", seed=seed, lengths=lengths)[length]
    held_out = dataset(task, config.n_held_out, split="validation", seed=seed, lengths=lengths)[
        length
    ]
    # Without padding: every position of every sequence is one of the example's.
    end = int(min(fit.length.min(), held_out.length.min()))
    check_enough_to_fit(config, subject.model.cfg.d_model, end)
    asked = held_out.answer[:, :end]
    # All answers as one sequence, of which the first token does not count.
    seen, wanted = (
        F.pad(tokens[answer], (1, 0))[None]
        for tokens, answer in (
            (fit.tokens[:, :end], fit.answer[:, :end]),
            (held_out.tokens[:, :end], asked),
        )
    )
    return Contest(
        subject.model,
        Split(fit.tokens[:, :end], held_out.tokens[:, :end]),
        partial(answer_losses, answer=asked, batch_size=config.batch_size),
        float(unigram_losses(seen, wanted, task.d_vocab).mean()),
        config.seed,
        config.batch_size,
        begin_token=True,
    )
