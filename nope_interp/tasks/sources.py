"""Where the tokens of a measurement come from: text, uniform draws, or a synthetic task.

A source hands out two disjoint splits of sequences, `fit` and `held_out`, so that no probe is ever
scored on a sequence, or on overlapping text, that it was fitted on.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from nope_interp.errors import UserError
from nope_interp.shapes import Sequences

Split = Literal["fit", "held_out"]

# Of the text that a probe may see: how much is for fitting, the rest is held out.
_FIT_SHARE = 0.65


class TokenSource(ABC):
    """Draws equal-length sequences, the same ones for the same seed.

    Attributes:
        name: what it is called.
        begin_id: the begin token; None where there is none.
        always_begins: whether models that learned from it saw a begin token before everything.
    """

    name: str
    begin_id: int | None
    always_begins: ClassVar[bool] = False

    def single(self, seq_len: int) -> tuple["TokenSource", int]:
        """A source whose rows hold one thing each, such as one example, and how long they are.

        Args:
            seq_len: tokens that a row has at most.

        Returns:
            The source, and so many tokens or fewer.
        """
        return self, seq_len

    def sequences(
        self, n: int, seq_len: int, *, begin_token: bool, split: Split, seed: int
    ) -> Sequences:
        """`n` sequences; those of the two splits come from different random streams.

        Args:
            n: sequences.
            seq_len: tokens in each, begin token included.
            begin_token: whether each begins with it.
            split: `fit` or `held_out`.
            seed: of the draws.

        Returns:
            Tokens, `[sequence pos]`.

        Raises:
            UserError: where the source has too few tokens, and for a begin token that it lacks.
        """
        drawn = self.drawn(n, seq_len, int(begin_token), split, split_generator(split, seed))
        return with_begin_token(drawn, self.begin_id) if begin_token else drawn

    @abstractmethod
    def drawn(
        self, n: int, seq_len: int, begin: int, split: Split, generator: Generator
    ) -> Sequences:
        """`n` sequences of `seq_len - begin` tokens: `begin`, 1 or 0, will come before them.

        Args:
            n: how many sequences.
            seq_len: tokens in each, the begin token included.
            begin: how many begin tokens come before, 1 or 0.
            split: what they are drawn from.
            generator: what they are drawn with.

        Returns:
            Tokens, `[sequence pos]`, without the begin token.
        """


def split_generator(split: Split, seed: int) -> Generator:
    """A random generator whose stream is not shared between the splits of one seed.

    Args:
        split: `fit` or `held_out`.
        seed: any of a config's.

    Returns:
        The generator.
    """
    return Generator().manual_seed(2 * seed + (split == "held_out"))


def with_begin_token(
    tokens: Sequences, begin_id: int | None
) -> Int[Tensor, "sequence pos_plus_one"]:
    """`tokens` behind a begin token.

    Args:
        tokens: `[sequence pos]`.
        begin_id: None where the vocabulary has none.

    Returns:
        `[sequence pos]`, one token longer.

    Raises:
        UserError: where the vocabulary has no begin token.
    """
    if begin_id is None:
        raise UserError("this model's tokenizer has no begin token: measure without one.")
    return torch.nn.functional.pad(tokens, (1, 0), value=begin_id)


class TextSource(TokenSource):
    """Windows of one long text that never overlap: each token is in at most one sequence.

    Args:
        tokens: the text as ids, in reading order.
        begin_id: id of the begin token, None where there is none.
        trained_on: what of the text came before these, where a model of ours was trained on it.
    """

    name = "text"

    def __init__(
        self,
        tokens: Int[Tensor, " token"],
        begin_id: int | None,
        trained_on: Int[Tensor, " earlier"] | None = None,
    ) -> None:
        self.tokens = tokens
        self.begin_id = begin_id
        self._trained_on = tokens[:0] if trained_on is None else trained_on

    @property
    def known(self) -> Int[Tensor, " known"]:
        """All the text that is not held out, `[known]`, in reading order."""
        return torch.cat([self._trained_on, self._part("fit")])

    def drawn(
        self, n: int, seq_len: int, begin: int, split: Split, generator: Generator
    ) -> Sequences:
        """`n` windows in random order."""
        length, part = seq_len - begin, self._part(split)
        available = self.available(length, split)
        if available < n:
            raise UserError(
                f"the text is too short: its {split} split of {len(part)} tokens holds {available} "
                f"of {n} sequences of {length}: give a longer text, or fewer or shorter sequences."
            )
        chosen = torch.randperm(available, generator=generator)[:n]
        return part[: available * length].view(available, length)[chosen]

    def available(self, length: int, split: Split) -> int:
        """How many windows of a length a split holds.

        Args:
            length: tokens in a window, without a begin token.
            split: `fit` or `held_out`.

        Returns:
            Windows that do not overlap.
        """
        return len(self._part(split)) // length if length > 0 else 0

    def _part(self, split: Split) -> Int[Tensor, " token"]:
        cut = int(len(self.tokens) * _FIT_SHARE)
        return self.tokens[:cut] if split == "fit" else self.tokens[cut:]


class UniformSource(TokenSource):
    """Tokens drawn independently and uniformly: nothing but the model can tell a position."""

    name = "random"

    def __init__(self, ids: Int[Tensor, " token"], begin_id: int | None) -> None:
        self.ids = ids
        self.begin_id = begin_id

    def drawn(
        self, n: int, seq_len: int, begin: int, split: Split, generator: Generator
    ) -> Sequences:
        """`n` fresh sequences."""
        shape = (n, seq_len - begin)
        return self.ids[torch.randint(len(self.ids), shape, generator=generator)]


class RepeatedSource(UniformSource):
    """Uniform random tokens, then the same ones again (Olsson et al. 2022, arXiv 2209.11895).

    Where the tokens do not split into two rounds, there is one token fewer than asked for.
    """

    name = "repeated"

    @staticmethod
    def period(seq_len: int, *, begin_token: bool) -> int:
        """How many tokens there are before they come again.

        Args:
            seq_len: tokens in a sequence, the begin token included.
            begin_token: whether it begins with one.

        Returns:
            The distance of a token from its copy, in tokens.
        """
        return (seq_len - begin_token) // 2

    def drawn(
        self, n: int, seq_len: int, begin: int, split: Split, generator: Generator
    ) -> Sequences:
        """Fresh tokens, twice."""
        return super().drawn(n, (seq_len - begin) // 2, 0, split, generator).repeat(1, 2)


class CopiesSource(UniformSource):
    """One random token over and over (Barbero et al. 2024, on what heads without positions do)."""

    name = "copies"

    def drawn(
        self, n: int, seq_len: int, begin: int, split: Split, generator: Generator
    ) -> Sequences:
        """A token for each sequence, as often as it is long."""
        return super().drawn(n, 1, 0, split, generator).repeat(1, seq_len - begin)
