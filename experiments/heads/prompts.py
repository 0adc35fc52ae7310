"""Which text is shown: a user's own, or what people can read of it, before tables and markup."""

import re
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from experiments.heads.config import HeadsConfig
from experiments.heads.tokens import HeadTokens
from experiments.variants.variants import ModelVariant
from nope_interp.errors import UserError
from nope_interp.tasks.sources import with_begin_token

# Words of letters alone, each with at most one mark at its end and one space around it.
_PROSE = re.compile(r"(?<!\S)[^\W\d_]+(?:['’-][^\W\d_]+)*[.,;:!?]?(?:[ \n](?=\S)|$)")
# After one of these a sentence begins.
_END = re.compile(r"[.!?]\s+$")
# Prompts that the report takes from the text by itself, and how many of their tokens it shows.
_N_PROMPTS = 4
_SHOWN_TOKENS = 64
_MOST_TOKENS = 128


def prompts_of(
    variant: ModelVariant, config: HeadsConfig, tokens: HeadTokens
) -> list[Int[Tensor, " _pos"]]:
    """The user's texts, or what reads best of the text that was read.

    Args:
        variant: whose tokenizer and context.
        config: which prompts, or none.
        tokens: what was read.

    Returns:
        The ids of each.

    Raises:
        UserError: for a prompt of too few or too many tokens.
    """
    if config.prompts is None:
        shown = {"n": _N_PROMPTS, "length": _SHOWN_TOKENS, "start": tokens.start}
        return readable(tokens.text, variant.token_strings, **shown)
    begin_id = variant.sources[0].begin_id if tokens.start else None
    most = min(_MOST_TOKENS, variant.model.cfg.n_ctx)
    encoded = []
    for prompt in config.prompts:
        ids = torch.tensor(variant.encode(prompt))
        if tokens.start:
            ids = with_begin_token(ids[None], begin_id)[0]
        if not 2 <= len(ids) <= most:
            raise UserError(
                f"the prompt {prompt[:40]!r} has {len(ids)} tokens: write one of 2 to {most}, or "
                "leave it out."
            )
        encoded.append(ids)
    return encoded


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
