"""Copying and reversing symbols (Kazemnejad et al. 2023, arXiv 2305.19466, in eight variants).

A symbol is one token. The paper takes symbols that its subword tokenizer leaves whole: a hundred
of them for strings, and as many as there are examples where one symbol is repeated; here there are
a hundred for all variants. `length` is the number of symbols in the prompt.
"""

import string
from typing import Literal

import torch
from einops import repeat
from torch import Generator

from nope_interp.tasks.answers import AnswerTask, Problem

_SYMBOLS = (*string.digits, *string.ascii_letters, *string.punctuation, *"αβγδεζ")

# What each round of the answer is.
_ROUNDS: dict[str, tuple[Literal["copy", "reverse"], ...]] = {
    "copy-cmc": ("copy",),
    "copy-cmc2x": ("copy", "copy"),
    "reverse-mc": ("reverse",),
    "reverse-mc2x": ("reverse", "reverse"),
    "reverse-mcrv": ("reverse", "copy"),
}


class _SymbolTask(AnswerTask):
    """What all variants share."""

    symbols = _SYMBOLS
    frame = "Copy: Reverse: Replace with in [NEXT] [SEP]"
    training_lengths = range(2, 21)
    test_lengths = range(21, 41)


class StringTask(_SymbolTask):
    """A random string, then the string or its reverse, once or twice.

    Prompt "Copy: a b c [SEP]", answer "a b c" (`copy-cmc`); in two rounds, "a b c [NEXT] a b c"
    (`copy-cmc2x`). `reverse-mc` and `reverse-mc2x` say the string backwards, `reverse-mcrv`
    backwards and then forwards.
    """

    variants = tuple(_ROUNDS)
    moved = "symbol"

    def problem(self, n: int, length: int, generator: Generator) -> Problem:
        symbols = torch.randint(len(_SYMBOLS), (n, length), generator=generator)
        verb = "Copy:" if self.name.startswith("copy") else "Reverse:"
        rounds = [symbols if way == "copy" else symbols.flip(1) for way in _ROUNDS[self.name]]
        answer = self.listed(torch.stack(rounds, dim=1), "[NEXT]")
        return self.row(verb, symbols, "[SEP]"), answer


class RepeatTask(_SymbolTask):
    """One symbol over and over, then as often again (`copy-rsc`) or twice as often (`copy-rsc2x`).

    Prompt "Copy: a a a [SEP]", answer "a a a".
    """

    variants = ("copy-rsc", "copy-rsc2x")

    def problem(self, n: int, length: int, generator: Generator) -> Problem:
        symbol = torch.randint(len(_SYMBOLS), (n,), generator=generator)
        times = 2 * length if self.name == "copy-rsc2x" else length
        prompt, answer = (repeat(symbol, "example -> example pos", pos=n) for n in (length, times))
        return self.row("Copy:", prompt, "[SEP]"), answer


class ReplaceTask(_SymbolTask):
    """One symbol over and over, then another one as often: "Replace a with b in a a a [SEP]"."""

    variants = ("copy-rdc",)

    def problem(self, n: int, length: int, generator: Generator) -> Problem:
        old = torch.randint(len(_SYMBOLS), (n, 1), generator=generator)
        step = torch.randint(1, len(_SYMBOLS), (n, 1), generator=generator)
        new = (old + step) % len(_SYMBOLS)
        prompt, answer = (repeat(x, "example 1 -> example pos", pos=length) for x in (old, new))
        return self.row("Replace", old, "with", new, "in", prompt, "[SEP]"), answer


TASKS = (RepeatTask, ReplaceTask, StringTask)
