"""Which of the text that was read is shown: what people can read, rather than tables and markup."""

import re
from collections.abc import Callable, Sequence

from jaxtyping import Int
from torch import Tensor

# Words of letters alone, each with at most one mark at its end and one space around it.
_PROSE = re.compile(r"(?<!\S)[^\W\d_]+(?:['’-][^\W\d_]+)*[.,;:!?]?(?:[ \n](?=\S)|$)")
# After one of these a sentence begins.
_END = re.compile(r"[.!?]\s+$")


def readable(
    sequences: Int[Tensor, "sequence pos"],
    token_strings: Callable[[Int[Tensor, " pos"]], Sequence[str]],
    *,
    n: int,
    length: int,
    start: int,
) -> list[Int[Tensor, " shown"]]:
    """The parts of some sequences that read most like prose, at most one of each.

    Text without any prose, such as a task's examples, is shown from its beginning.

    Args:
        sequences: what was read.
        token_strings: each token as text.
        n: how many parts.
        length: tokens in each, the first ones included.
        start: how many tokens, a begin token or none, come first in each sequence and part.

    Returns:
        The parts, the most readable first.
    """
    found = []
    for sequence in sequences:
        words = token_strings(sequence)
        begins = _begins(words, start, len(sequence) - (length - start))
        # A word cut off at the end should not decide: the first begin of those as readable does.
        best = max(begins, key=lambda at: round(prose("".join(words[at : at + length - start])), 1))
        text = "".join(words[best : best + length - start])
        part = [*range(start), *range(best, min(best + length - start, len(sequence)))]
        found.append((prose(text), sequence[part]))
    found.sort(key=lambda scored: -scored[0])
    return [part for _, part in found[:n]]


def prose(text: str) -> float:
    """The share of the characters of a text that stand in plain words, 0 to 1.

    Example:
        >>> prose("It looks back. "), prose("+------+ | 3.5 |")
        (1.0, 0.0)
    """
    text = text.strip()
    return sum(len(word.group()) for word in _PROSE.finditer(text)) / max(len(text), 1)


def _begins(words: Sequence[str], start: int, last: int) -> list[int]:
    """Where a part may begin: with every sentence, and at the sequence's own start."""
    found, before = [], ""
    for at, word in enumerate(words):
        if start < at <= last and _END.search(before) and not word[:1].isspace():
            found.append(at)
        before = (before + word)[-8:]
    return [*found, start]
