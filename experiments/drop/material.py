"""The text that a model is recalibrated and read on, and what is read of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from experiments.drop.config import DropConfig
from experiments.drop.passkeys import Passkeys, check_prompts_fit, drawn, right
from experiments.results.findings import Array
from nope_interp.errors import UserError
from nope_interp.files import read_text
from nope_interp.models.losses import unigram_losses
from nope_interp.shapes import Sequences, Tokens
from nope_interp.tasks.sources import split_generator
from nope_interp.tasks.text import python_documentation
from nope_interp.training.recalibrate import last_log_probabilities, last_losses

Text = Int[Tensor, " token"]

# Of the text, how much is trained on; the rest is read.
_TRAINED_SHARE = 0.65
# So many tokens in a row that stand in the trained text, too, were copied.
_COPIED = 32
# Of the polynomial that tells runs of tokens apart, modulo 2 to the 64: odd, and otherwise any.
_BASE = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Material:
    """What is trained on and read, in a model's own tokens.

    Attributes:
        trained: the text to recalibrate on.
        held_out: windows of the rest, whose scored tokens share no 32 in a row with the trained
            text; those of a length are their last tokens.
        fillers: windows of the rest, for passkeys to stand in.
        passkeys: one for each filler.
        n_scored: tokens at the end of a window that its loss is of.
        begin_id: what sequences begin with; None for nothing.
        vocabulary: the tokens that losses are over; None for all.
        batch_size: sequences in a forward pass.
        depths: of passkeys.
        n_copied: windows of the rest that are left out, since theirs do.
    """

    trained: Text = field(repr=False)
    held_out: Sequences = field(repr=False)
    fillers: Int[Tensor, "prompt room"] = field(repr=False)
    passkeys: list[Passkeys] = field(repr=False)
    n_scored: int
    begin_id: int | None
    vocabulary: Int[Tensor, " kind"] | None
    batch_size: int
    depths: tuple[float, ...]
    n_copied: int

    @classmethod
    def of(cls, config: DropConfig, tokenizer: Any, lengths: Sequence[int]) -> "Material":
        """The material of a run.

        Args:
            config: what is run.
            tokenizer: the model's.
            lengths: that are read.

        Raises:
            UserError: without a tokenizer, and for too short a text.
        """
        if tokenizer is None:
            raise UserError(
                f"the model {config.model!r} has no tokenizer, so text cannot be turned into "
                "tokens: add its tokenizer's files."
            )

        def encode(text: str) -> list[int]:
            ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
            return ids

        text = python_documentation() if config.text is None else read_text(config.text)
        tokens = torch.tensor(encode(text))
        cut = int(len(tokens) * _TRAINED_SHARE)
        longest, shortest = max(lengths), min(lengths)
        n_scored = min(shortest, config.training.seq_len) // 2
        passkeys = drawn(encode, config.n_passkeys, config.seed)
        _check_long_enough(config, cut)
        if passkeys:
            check_prompts_fit(passkeys, shortest)
        of_keys = torch.tensor([t for p in passkeys for t in p.key], dtype=torch.long)
        only = torch.cat((tokens, of_keys)).unique() if config.vocabulary == "text" else None
        spread = np.linspace(0, 1, config.n_depths) if config.n_depths > 1 else np.array([0.5])
        reach = max(longest, config.training.seq_len)
        trained, rest = tokens[:cut], tokens[cut:]
        every = _windows(rest, reach, n_scored)
        again, fillers = copied(every, trained, n_scored), _windows(rest, longest, 1)
        return cls(
            trained=trained,
            held_out=_chosen(every, ~again, config.n_held_out, config.seed),
            fillers=_chosen(fillers, None, len(passkeys), config.seed + 1),
            passkeys=passkeys,
            n_scored=n_scored,
            begin_id=tokenizer.bos_token_id,
            vocabulary=only,
            batch_size=config.batch_size,
            depths=tuple(spread.tolist()),
            n_copied=int(again.sum()),
        )

    def check_known(self, n_kinds: int, model: str) -> None:
        """Raise UserError for tokens that a model has no embeddings of.

        Args:
            n_kinds: of how many it has.
            model: its name, as the user gave it.
        """
        parts = [part for each in self.passkeys for part in (each.given, each.asked, each.key)]
        begin = [] if self.begin_id is None else [self.begin_id]
        every = map(torch.tensor, (*parts, begin))
        largest = max(
            int(of.max()) for of in (self.trained, self.held_out, self.fillers, *every) if len(of)
        )
        if largest >= n_kinds:
            raise UserError(
                f"the tokenizer of {model!r} gives the token {largest}, but the model knows 0 to "
                f"{n_kinds - 1}: give the tokenizer that belongs to it."
            )

    def sequences(self, length: int) -> Sequences:
        """The held-out windows of a length, which all end in the same tokens.

        Args:
            length: in tokens, the begin token included.
        """
        tokens = self.held_out[:, -length:].clone()
        if self.begin_id is not None:
            tokens[:, 0] = self.begin_id
        return tokens

    def losses(self, model: Any, length: int) -> Array:
        """Nats per token of the last tokens of held-out windows, [sequence].

        Args:
            model: of transformers, in evaluation mode.
            length: of the windows.
        """
        sequences = self.sequences(length)
        found = last_losses(model, sequences, self.n_scored, batch_size=self.batch_size)
        return found.double().numpy()

    def chance(self, d_vocab: int) -> float:
        """The same loss, over the same tokens, of a guesser who knows how often each occurs.

        Args:
            d_vocab: kinds of tokens that the model knows.
        """
        seen, scored = self.trained[None], self.held_out[:, -self.n_scored - 1 :]
        if self.vocabulary is not None:
            seen, scored = (
                torch.searchsorted(self.vocabulary, of.contiguous()) for of in (seen, scored)
            )
            d_vocab = len(self.vocabulary)
        return float(unigram_losses(seen, scored, d_vocab).mean())

    def read(self, model: Any, length: int) -> dict[str, Array]:
        """Losses, and which passkeys are said, [depth sequence 2].

        Args:
            model: of transformers, in evaluation mode.
            length: in tokens.
        """

        def said(tokens: Tokens, n_last: int) -> Int[Tensor, "sequence answer"]:
            found = last_log_probabilities(model, tokens, n_last, batch_size=self.batch_size)
            best = found.argmax(dim=-1)
            return best if self.vocabulary is None else self.vocabulary[best]

        begin = [] if self.begin_id is None else [self.begin_id]
        found = {"losses": self.losses(model, length)}
        if self.passkeys:
            every = [
                right(said, self.passkeys, self.fillers, length, depth, begin)
                for depth in self.depths
            ]
            found["passkeys"] = np.stack(every)
        return found


def _check_long_enough(config: DropConfig, n_trained: int) -> None:
    """Raise UserError where a text has too few tokens to train on."""
    needed = config.training.seq_len * config.training.batch_size
    if n_trained < needed:
        raise UserError(
            f"the text is too short to recalibrate on: {n_trained} tokens for batches of {needed}: "
            "give a longer text, or smaller batches."
        )


def _windows(text: Text, length: int, apart: int) -> Sequences:
    """All windows of a text whose ends are so many tokens apart; they share memory."""
    if len(text) < length:
        return text.new_empty(0, length)
    return text.unfold(0, length, apart)


def _chosen(
    windows: Sequences, which: Bool[Tensor, " sequence"] | None, n: int, seed: int
) -> Int[Tensor, "chosen pos"]:
    """So many of the windows that may be read, in random order; None may all."""
    every = torch.arange(len(windows))
    among = every if which is None else every[which]
    if len(among) < n:
        copies = len(every) - len(among)
        beside = f", {copies} more share 32 in a row with the trained text" if copies else ""
        varied = ", one that repeats itself less," if copies else ""
        raise UserError(
            f"the text is too short: what is held out has {len(among)} of {n} windows of "
            f"{windows.shape[1]} tokens{beside}: give a longer text{varied} or shorter sequences "
            "(--seq-len, --read-lengths)."
        )
    order = torch.randperm(len(among), generator=split_generator("held_out", seed))
    return windows[among[order[:n]]]


def copied(windows: Sequences, trained: Text, n_scored: int) -> Bool[Tensor, " sequence"]:
    """Of which windows the scored tokens also stand in the text that is trained on.

    Args:
        windows: of other text.
        trained: that text.
        n_scored: tokens at the end of a window that are scored.

    Returns:
        Whether these, with the ones before where they are few, hold a run of 32 tokens that the
        trained text holds, too.
    """
    run = min(_COPIED, windows.shape[1], len(trained))
    ends = windows[:, -max(n_scored, run) :]
    return torch.from_numpy(np.isin(_runs(ends, run), _runs(trained, run))).any(dim=-1)


def _runs(tokens: Int[Tensor, "*sequence pos"], n: int) -> NDArray[np.uint64]:
    """A number for each run of n tokens: the same for the same ones, and hardly for others."""
    numbers = tokens.numpy().astype(np.uint64)
    found = np.zeros((*numbers.shape[:-1], numbers.shape[-1] - n + 1), dtype=np.uint64)
    for at in range(n):
        found = found * _BASE + numbers[..., at : at + found.shape[-1]]
    return found
