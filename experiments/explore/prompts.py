"""Prompts to pick: prose from the text that a model is read on, or examples of its task."""

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from experiments.explore.playground import Playground
from experiments.heads.prompts import readable
from nope_interp.errors import UserError
from nope_interp.tasks.answers import ExampleSource
from nope_interp.tasks.examples import Examples
from nope_interp.tasks.sources import TextSource

_MOST = 6
# Of text: characters of a prompt, and sequences among which to look for prose.
_CHARACTERS, _AMONG = 160, 48
# Two prompts that differ in who acts, with the same words: what is known of the one is patched into
# the other (Wang et al. 2022, arXiv 2211.00593).
_PAIRS = (
    (
        "When Mary and John went to the store, John gave a drink to",
        "When Mary and John went to the store, Mary gave a drink to",
    ),
    (
        "The list holds one, two, three. The list holds one, two,",
        "The list holds one, two, three. The list holds one, one,",
    ),
)


def prompts(playground: Playground) -> list[str]:
    """Prompts that the model can read, the most readable first; none from too short a text.

    Args:
        playground: whose sources.

    Returns:
        Texts.
    """
    try:
        if isinstance(playground.variant.sources[0], TextSource):
            found = _of_text(playground)
        else:
            found = _of_task(playground, _MOST)
    except UserError:
        return []
    return [text for text in dict.fromkeys(found) if _n_tokens(playground, text)]


def pairs(playground: Playground) -> list[tuple[str, str]]:
    """Clean and corrupted prompts of one number of tokens, to patch between.

    Args:
        playground: whose tokenizer and task.

    Returns:
        Two texts each.
    """
    some: list[tuple[str, str]] = list(_PAIRS)
    if not isinstance(playground.variant.sources[0], TextSource):
        examples = _of_task(playground, 2 * _MOST)
        some = list(zip(examples[::2], examples[1::2], strict=False))
    counted = [(pair, [_n_tokens(playground, text) for text in pair]) for pair in some]
    return [pair for pair, (one, other) in counted if one == other and one and pair[0] != pair[1]]


def _of_text(playground: Playground) -> list[str]:
    variant = playground.variant
    how = {"begin_token": False, "split": "held_out", "seed": 0}
    probe: Tensor = variant.sources[0].sequences(1, 32, **how)  # type: ignore[arg-type]
    per_token = max(1.0, len(_text(playground, probe[0])) / 32)
    length = min(round(_CHARACTERS / per_token), playground.most_tokens * 3 // 4)
    source = variant.sources[0]
    assert isinstance(source, TextSource)
    n = min(_AMONG, source.available(3 * length, "held_out"))
    sequences = source.sequences(n, 3 * length, **how)  # type: ignore[arg-type]
    shown = readable(sequences, variant.token_strings, n=_MOST, length=length, start=0)
    # The last word may be cut off.
    return [_text(playground, ids).strip().rpartition(" ")[0] for ids in shown]


def _of_task(playground: Playground, n: int) -> list[str]:
    """Prompts without the answers, which the model is to predict."""
    source = playground.variant.sources[0]
    assert isinstance(source, ExampleSource)
    length = max(source.task.fitting_lengths(playground.most_tokens), default=None)
    if length is None:
        return []
    drawn: Examples = source.task.examples(
        n, length, Generator().manual_seed(0), split="validation"
    )
    begins = int(playground.begin_id is not None)
    ends = drawn.prompt_length.tolist()
    return [
        _text(playground, tokens[begins:end])
        for tokens, end in zip(torch.as_tensor(drawn.tokens), ends, strict=True)
    ]


def _text(playground: Playground, ids: Int[Tensor, " pos"]) -> str:
    return str(playground.variant.tokenizer.decode(ids.tolist()))


def _n_tokens(playground: Playground, text: str) -> int:
    """How many tokens a prompt has; 0 where it cannot be read."""
    try:
        return playground.tokens(text).shape[1]
    except UserError:
        return 0
