"""PCFG SET: strings edited by nested functions (Hupkes et al. 2020, arXiv 1908.08351).

`length` is the number of functions, as in the productivity split that Kazemnejad et al. 2023 use:
up to 8 in training, more in tests. The original's grammar has probabilities fitted to English,
which are not known here: functions are equally likely, and so are all ways to share the inner
functions between two arguments. Expressions that mean more than sixty symbols are drawn again.
"""

import random
import string
from collections.abc import Callable

import torch
from torch import Generator

from nope_interp.tasks.answers import AnswerTask, Problem
from nope_interp.tasks.token_grid import GAP

Symbols = tuple[str, ...]

_UNARY: dict[str, Callable[[Symbols], Symbols]] = {
    "copy": lambda x: x,
    "reverse": lambda x: x[::-1],
    "shift": lambda x: x[1:] + x[:1],
    "echo": lambda x: x + x[-1:],
    "swap_first_last": lambda x: x if len(x) < 2 else x[-1:] + x[1:-1] + x[:1],
    "repeat": lambda x: x + x,
}
_BINARY: dict[str, Callable[[Symbols, Symbols], Symbols]] = {
    "append": lambda x, y: x + y,
    "prepend": lambda x, y: y + x,
    "remove_first": lambda x, y: y,
    "remove_second": lambda x, y: x,
}
_FUNCTIONS = (*_UNARY, *_BINARY)
# The original has 520. These leave the vocabulary small enough for the embedded model's 257 tokens.
_SYMBOLS = tuple(f"{letter}{index}" for letter in string.ascii_uppercase for index in range(1, 9))
_LONGEST_ARGUMENT = 5
_LONGEST_ANSWER = 60


class PcfgTask(AnswerTask):
    """ "Solve: append reverse A1 B2 , echo C3 [SEP]" and "B2 A1 C3 C3".

    Functions stand before their arguments, and a comma stands between two arguments, so every
    expression can be read in one way only. The innermost arguments are strings of one to five
    symbols.
    """

    name = "pcfg"
    symbols = (*_SYMBOLS, *_FUNCTIONS)
    frame = "Solve: , [SEP]"
    training_lengths = range(1, 9)
    test_lengths = range(9, 36)

    def problem(self, n: int, length: int, generator: Generator) -> Problem:
        draw = random.Random(int(torch.randint(2**62, (), generator=generator)))
        pairs = [_short_expression(length, draw) for _ in range(n)]
        # The longest expression has binary functions only, and a comma for each of them.
        most = 2 * length + _LONGEST_ARGUMENT * (length + 1)
        expressions = torch.tensor([self._padded(words, most) for words, _ in pairs])
        answers = torch.tensor([self._padded(answer, _LONGEST_ANSWER) for _, answer in pairs])
        return self.row("Solve:", expressions, "[SEP]"), answers

    def _padded(self, words: Symbols, width: int) -> list[int]:
        return self.tokenizer.encode(" ".join(words)) + [GAP] * (width - len(words))


def _short_expression(n_functions: int, draw: random.Random) -> tuple[Symbols, Symbols]:
    while True:
        words, meaning = _expression(n_functions, draw)
        if len(meaning) <= _LONGEST_ANSWER:
            return words, meaning


def _expression(n_functions: int, draw: random.Random) -> tuple[Symbols, Symbols]:
    """A random expression of that many functions, and what it means."""
    if n_functions == 0:
        symbols = tuple(draw.choices(_SYMBOLS, k=draw.randint(1, _LONGEST_ARGUMENT)))
        return symbols, symbols
    function = draw.choice(_FUNCTIONS)
    if function in _UNARY:
        words, meaning = _expression(n_functions - 1, draw)
        return (function, *words), _UNARY[function](meaning)
    inside_first = draw.randint(0, n_functions - 1)
    first, first_meaning = _expression(inside_first, draw)
    second, second_meaning = _expression(n_functions - 1 - inside_first, draw)
    return (function, *first, ",", *second), _BINARY[function](first_meaning, second_meaning)


TASKS = (PcfgTask,)
