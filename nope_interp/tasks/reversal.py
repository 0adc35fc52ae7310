"""Reversal: read symbols, then say them backwards. Impossible without knowing positions."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from nope_interp.errors import UserError
from nope_interp.tasks.sources import Split, UniformSource, split_generator


class LetterTokenizer:
    """Letters a to z, the mark `=` between question and answer, and the begin token."""

    separator_id = 26
    begin_id = 27
    d_vocab = 28
    _symbols = "abcdefghijklmnopqrstuvwxyz="

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; raises UserError for a character outside a to z and `=`."""
        try:
            return [self._symbols.index(character) for character in text]
        except ValueError:
            raise UserError(
                f"the reversal task knows the letters a to z and '=': not {text!r}."
            ) from None

    def decode(self, ids: list[int]) -> str:
        """The characters of `ids`; the begin token shows as `<begin>`."""
        return "".join("<begin>" if i == self.begin_id else self._symbols[i] for i in ids)


class ReversalTask:
    """`x1 x2 ... xn = xn ... x2 x1`, with n drawn anew for each batch from 2 to the context.

    The loss counts the answer only. Sequences of one batch have one length, so none is padded.
    """

    name = "reversal"

    def __init__(self) -> None:
        self.tokenizer = LetterTokenizer()

    @property
    def d_vocab(self) -> int:
        return self.tokenizer.d_vocab

    def source(self) -> "ReversalSource":
        """Whole examples, question and answer, as long as the sequence allows."""
        return ReversalSource()

    def uniform_source(self) -> UniformSource:
        """The letters, equally likely, with no question and no answer in them."""
        return UniformSource(torch.arange(self.tokenizer.separator_id), self.tokenizer.begin_id)

    def examples(
        self, n: int, length: int, generator: torch.Generator, *, begin_token: bool
    ) -> Int[Tensor, "batch pos"]:
        """`n` examples of `length` symbols each: 2 length + 1 tokens, and the begin token."""
        symbols = torch.randint(self.tokenizer.separator_id, (n, length), generator=generator)
        separator = torch.full((n, 1), self.tokenizer.separator_id)
        example = torch.cat([symbols, separator, symbols.flip(1)], dim=1)
        if begin_token:
            example = torch.nn.functional.pad(example, (1, 0), value=self.tokenizer.begin_id)
        return example

    def batch(
        self, n: int, seq_len: int, generator: torch.Generator
    ) -> tuple[Int[Tensor, "batch pos"], Bool[Tensor, "batch pos"]]:
        """Examples of one random length, and which tokens are the answer."""
        longest = (seq_len - 2) // 2
        if longest < 2:
            raise UserError(
                f"sequences of {seq_len} tokens are too short for reversal: use at least 6."
            )
        length = int(torch.randint(2, longest + 1, (), generator=generator))
        tokens = self.examples(n, length, generator, begin_token=True)
        predicted = torch.zeros_like(tokens, dtype=torch.bool)
        predicted[:, -length:] = True
        return tokens, predicted


class ReversalSource:
    """Reversal examples for probes. The splits draw from different random streams."""

    name = "reversal"
    begin_id: int | None = LetterTokenizer.begin_id

    def sequences(
        self, n: int, seq_len: int, *, begin_token: bool, split: Split, seed: int
    ) -> Int[Tensor, "sequence pos"]:
        """`n` examples, cut to `seq_len` where the answer's last symbol does not fit."""
        length = seq_len // 2
        examples = ReversalTask().examples(
            n, length, split_generator(split, seed), begin_token=begin_token
        )
        return examples[:, :seq_len]
