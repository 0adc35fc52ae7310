"""Prompts with a passkey in the middle of other text, and whether a model says it at the end.

After Mohtashami and Jaggi 2023 (arXiv 2305.16300). The text around it is the user's own.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from experiments.results.findings import Array
from nope_interp.errors import UserError
from nope_interp.shapes import Tokens

_GIVEN = "\nThe pass key is {key}. Remember it. {key} is the pass key.\n"
_ASKED = "\nWhat is the pass key? The pass key is"
_DIGITS = 5

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Passkeys:
    """One prompt's parts, as tokens.

    Attributes:
        given: the sentences that tell the key.
        asked: the question, with what any key begins with, such as a space.
        key: what is to be said.
    """

    given: list[int]
    asked: list[int]
    key: list[int]

    @property
    def n_tokens(self) -> int:
        """Of all parts together."""
        return len(self.given) + len(self.asked) + len(self.key)

    def within(self, filler: list[int], length: int, depth: float, begin: list[int]) -> list[int]:
        """The whole prompt with its answer, of `length` tokens.

        Args:
            filler: text, long enough.
            length: tokens in all.
            depth: where the key stands in the text, 0 at its beginning, 1 at its end.
            begin: the begin token, or nothing.
        """
        room = length - self.n_tokens - len(begin)
        before = round(depth * room)
        text = filler[:room]
        return [*begin, *text[:before], *self.given, *text[before:], *self.asked, *self.key]


def drawn(encode: Encode, n: int, seed: int) -> list[Passkeys]:
    """Prompts with a random key of five digits each.

    Args:
        encode: text as tokens, without special ones.
        n: how many.
        seed: of the keys.
    """
    keys = np.random.default_rng(seed).integers(10 ** (_DIGITS - 1), 10**_DIGITS, size=n)
    # Tokenized with its question, as it stands there: alone it may be other tokens.
    others = [encode(_answered(str(digit) * _DIGITS)) for digit in range(1, 10)]
    found = []
    for key in keys.tolist():
        whole = encode(_answered(key))
        asked = _beginning([*others, whole])
        given = encode(_GIVEN.format(key=key))
        found.append(Passkeys(given, asked, whole[len(asked) :]))
    return found


def _answered(key: object) -> str:
    return f"{_ASKED} {key}"


def _beginning(every: list[list[int]]) -> list[int]:
    """The tokens that all begin with."""
    differ = (at for at, tokens in enumerate(zip(*every, strict=False)) if len({*tokens}) > 1)
    return every[0][: next(differ, min(map(len, every)))]


def check_prompts_fit(passkeys: list[Passkeys], shortest: int) -> None:
    """Raise UserError where a prompt is longer than the shortest length that is read.

    Args:
        passkeys: the prompts.
        shortest: in tokens.
    """
    needed = 1 + max(prompt.n_tokens for prompt in passkeys)
    if needed > shortest:
        raise UserError(
            f"a prompt with a passkey takes {needed} tokens, but {shortest} are to be read: give "
            "longer --read-lengths, or --n-passkeys 0."
        )


def right(
    said: Callable[[Tokens, int], Int[Tensor, "sequence answer"]],
    passkeys: list[Passkeys],
    fillers: Int[Tensor, "sequence room"],
    length: int,
    depth: float,
    begin: list[int],
) -> Float[Array, "sequence 2"]:
    """Of each prompt, whether the whole key is said, and the share of its tokens that are.

    A key is read all at once: every token of it is predicted after the right ones before it, so
    that all are right exactly where a greedy reader says the whole key.

    Args:
        said: the most probable tokens at so many last places of sequences.
        passkeys: the prompts.
        fillers: text for each.
        length: tokens of a prompt with its answer.
        depth: where the key stands in the text, 0 at its beginning, 1 at its end.
        begin: the begin token, or nothing.
    """
    prompts = [
        prompt.within(filler, length, depth, begin)
        for prompt, filler in zip(passkeys, fillers.tolist(), strict=True)
    ]
    answers = said(torch.tensor(prompts), max(len(prompt.key) for prompt in passkeys))
    found = []
    for prompt, answer in zip(passkeys, answers, strict=True):
        of_key = (answer[-len(prompt.key) :] == torch.tensor(prompt.key)).double().numpy()
        found.append([of_key.min(), of_key.mean()])
    return np.array(found)
