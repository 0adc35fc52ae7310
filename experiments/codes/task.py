"""What the ablation of position codes is run on: the tokens of a model, and what it loses."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from experiments.codes.guessers import guessed_losses
from experiments.probing.sites import ALL_BUT_FIRST, Site
from experiments.probing.split import Split
from experiments.results.code_ablation import STREAM
from experiments.results.measurements import FIRST_POSITION
from experiments.variants.config import ProbingConfig
from experiments.variants.variants import ModelVariant
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.interventions.intervene import Where
from nope_interp.models.losses import (
    answer_losses,
    bigram_losses,
    sequence_losses,
    unigram_losses,
)
from nope_interp.shapes import PerSequence
from nope_interp.streams import check_tokens
from nope_interp.tasks.answers import AnswerTask, ExampleSource
from nope_interp.tasks.dataset import dataset
from nope_interp.tasks.sources import TextSource, TokenSource

# A smooth trend, an irregular part and a mean are told apart by more positions than these.
_FEWEST_POSITIONS = 4
# Of fewer different examples an interval says little.
FEWEST_EXAMPLES = 8

# What a model loses on sequences, mean over the tokens of each, in nats.
Losses = Callable[[HookedModel, Tensor], Float[Tensor, " sequence"]]


@dataclass(frozen=True)
class InterventionTask:
    """What codes are taken away from.

    Attributes:
        model: a HookedTransformer or a bridge, in evaluation mode.
        split: sequences to fit interventions on, and others to score the model on.
        losses: what the model loses on these.
        guessed: what a guesser who knows no order loses on each held-out sequence, in nats.
        seed: of noise, random directions and resamples.
        batch_size: sequences in a forward pass.
        begin_token: whether the sequences start with one.
        positions: where codes are taken away: all but the first; of a task with answers those at
            which examples differ. Elsewhere stands the task's frame, such as the sign before an
            answer, and the mean there tells that token as well.
        coverage: the share of scored tokens that are predicted from such a position.
        answer: `[sequence pos]`, the held-out tokens that are scored; None where all are.
        fit_answer: the same of the fit sequences.
        source: the task with answers that the sequences are examples of; None for others.
    """

    model: HookedModel = field(repr=False)
    split: Split = field(repr=False)
    losses: Losses
    guessed: Float[Tensor, " sequence"] = field(repr=False)
    seed: int = 0
    batch_size: int = 32
    begin_token: bool = False
    positions: Where = field(default_factory=lambda: ALL_BUT_FIRST)
    coverage: float = 1.0
    answer: Bool[Tensor, "sequence pos"] | None = field(default=None, repr=False)
    fit_answer: Bool[Tensor, "fitted pos"] | None = field(default=None, repr=False)
    source: AnswerTask | None = field(default=None, repr=False)

    @property
    def chance(self) -> float:
        """What that guesser loses, mean over the held-out sequences, in nats."""
        return float(self.guessed.mean())

    @property
    def whole(self) -> bool:
        """Whether codes are taken away at all positions but the first."""
        return isinstance(self.positions, slice)

    @property
    def last(self) -> Site:
        """The last block's output."""
        return Site(self.model.cfg.n_layers - 1, STREAM)

    def numbers(self) -> Int[Tensor, " pos"]:
        """The positions where codes are taken away, counted from 0."""
        return torch.arange(self.split.fit.shape[1])[self.positions]


def check_enough_to_fit(config: ProbingConfig, n_fit: int, d_model: int, positions: int) -> None:
    """Refuse too few sequences to take codes away from activations of that width and number.

    As many numbers as positions are needed to tell the correlation between positions, and more
    activations than directions for LEACE.

    Args:
        config: says whether codes are taken away at all.
        n_fit: different sequences that are fitted on.
        d_model: width of the activations.
        positions: how many positions codes are taken away at.

    Raises:
        UserError: for too few, with the number that is enough.
    """
    least = max(1 + math.ceil(positions / d_model), math.ceil((d_model + 2) / positions))
    if config.code_ablation != "no" and n_fit < least:
        more = f"fit on {least} at least, better ten times that, or give uses='no'."
        if n_fit < config.n_fit:
            more = f"no other differ, of {least} that are needed; give uses='no'."
        raise UserError(
            f"{n_fit} sequences are too few to remove codes at {positions} positions of "
            f"width {d_model}: {more}"
        )


def intervention_task_of(config: ProbingConfig, variant: ModelVariant) -> InterventionTask:
    """The model on the source that it was made for.

    Text of pretrained models starts with their begin token, where they have one: without what they
    always saw in training they may do worse than chance. Ours were trained on text without. On a
    task with answers the sequences are examples of the longest training length that fits, those
    that are scored from prompts that training never saw, and only answers are scored.

    Args:
        config: how many sequences, how long, and their seed.
        variant: the model, with its sources.

    Returns:
        The task.

    Raises:
        UserError: for too few sequences to fit on.
    """
    d_model, d_vocab = variant.model.cfg.d_model, variant.model.cfg.d_vocab
    check_enough_to_fit(config, config.n_fit, d_model, config.seq_len - FIRST_POSITION)
    source = variant.sources[0]
    if isinstance(source, ExampleSource):
        return _of_answers(config, variant, source.task)
    begin_token = variant.kind == "pretrained" and source.begin_id is not None
    how = {"seq_len": config.seq_len, "begin_token": begin_token, "seed": config.seed}
    split = Split.of(source, config.n_fit, config.n_held_out, **how)
    for tokens in (split.fit, split.held_out):
        check_tokens(variant.model, tokens, config.batch_size)
    return InterventionTask(
        variant.model,
        split,
        partial(sequence_losses, batch_size=config.batch_size),
        _without_order(source, split, d_vocab),
        config.seed,
        config.batch_size,
        begin_token,
    )


def _without_order(source: TokenSource, split: Split, d_vocab: int) -> PerSequence:
    """By how often tokens occur, or on text by which one they follow, whichever is less."""
    guessed = [unigram_losses(split.fit, split.held_out, d_vocab)]
    if isinstance(source, TextSource):
        guessed.append(bigram_losses(source.known, split.held_out, d_vocab))
    return min(guessed, key=lambda losses: float(losses.mean()))


def shorter_tasks(
    config: ProbingConfig, variant: ModelVariant, task: InterventionTask
) -> list[InterventionTask]:
    """The same on shorter examples, of each training length that can be read.

    Args:
        config: as for the task.
        variant: the model, with its sources.
        task: that of the longest length; without answers there are no shorter ones.
    """
    if task.source is None:
        return []
    found = []
    for length in task.source.fitting_lengths(config.seq_len)[:-1]:
        # Of some lengths there are too few positions, or examples: none was asked for.
        with suppress(UserError):
            shorter = replace(config, seq_len=task.source.n_tokens(length))
            found.append(intervention_task_of(shorter, variant))
    return found


def _of_answers(config: ProbingConfig, variant: ModelVariant, task: AnswerTask) -> InterventionTask:
    length = max(task.fitting_lengths(config.seq_len), default=min(task.training_lengths))
    seed, lengths = config.seed, [length]
    # Where a task has few prompts, some are drawn again and again, and tell nothing new.
    fit = dataset(task, config.n_fit, split="train", seed=seed, lengths=lengths)[length].different
    held_out = dataset(task, config.n_held_out, split="validation", seed=seed, lengths=lengths)[
        length
    ].different
    # Without padding: every position of every sequence is one of the example's.
    end = int(min(fit.length.min(), held_out.length.min()))
    answered = held_out.answer[:, :end].any(dim=1)  # others are cut off before their answer
    seen, scored = fit.tokens[:, :end], held_out.tokens[answered, :end]
    differs = (seen != seen[0]).any(dim=0)
    asked, answers = held_out.answer[answered, :end] & differs, fit.answer[:, :end] & differs
    positions = FIRST_POSITION + differs[FIRST_POSITION:].nonzero()[:, 0]
    if len(positions) < _FEWEST_POSITIONS:
        raise UserError(
            f"examples of {task.name} with length {length} differ at {len(positions)} positions, "
            f"not at {_FEWEST_POSITIONS}, so no code is removed: give longer ones (--lengths), or "
            "uses='no'."
        )
    if not len(asked) or not asked.any(dim=1).all():
        raise UserError(
            f"all examples of {task.name} with length {length} share their answers: give longer "
            "ones (--lengths), or uses='no'."
        )
    if len(scored) < FEWEST_EXAMPLES:
        raise UserError(
            f"of {config.n_held_out} held-out examples of {task.name} with length {length} only "
            f"{len(scored)} differ, not {FEWEST_EXAMPLES}: draw more, give other --lengths, or "
            "uses='no'."
        )
    check_enough_to_fit(config, len(seen), variant.model.cfg.d_model, len(positions))
    return InterventionTask(
        variant.model,
        Split(seen, scored),
        partial(answer_losses, answer=asked, batch_size=config.batch_size),
        guessed_losses(seen, answers, scored, asked, task.d_vocab),
        config.seed,
        config.batch_size,
        begin_token=True,
        positions=positions,
        coverage=float((asked[:, 1:] & differs[:-1]).sum() / asked.sum()),
        answer=asked,
        fit_answer=answers,
        source=task,
    )
