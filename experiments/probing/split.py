"""The sequences that are fitted on, and those that are scored."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Int
from torch import Tensor

from nope_interp.errors import UserError
from nope_interp.tasks.examples import first_of_each
from nope_interp.tasks.sources import TextSource, TokenSource

# An interval is over sequences.
FEWEST_SCORED = 2


@dataclass(frozen=True)
class Split:
    """What one cell of an experiment is measured on."""

    fit: Int[Tensor, "fitted pos"]
    held_out: Int[Tensor, "scored pos"]

    @classmethod
    def of(cls, source: TokenSource, n_fit: int, n_held_out: int, **how: Any) -> "Split":
        """So many sequences of each kind; of those scored each once, where a source repeats some.

        Args:
            source: what they are drawn from.
            n_fit: sequences to fit on.
            n_held_out: sequences to score on.
            how: length, begin token and seed, as `source.sequences` takes them.

        Returns:
            The sequences.

        Raises:
            UserError: as `source.sequences` does.
        """
        fit = source.sequences(n_fit, split="fit", **how)
        return cls(fit, scored_once(source, n_held_out, **how))


def scored_once(source: TokenSource, n: int, **how: Any) -> Int[Tensor, "different pos"]:
    """Held-out sequences, each once: drawn again, one tells nothing new.

    Args:
        source: what they are drawn from.
        n: how many are drawn.
        how: as for `Split.of`.

    Returns:
        Tokens, in the order in which they are drawn.

    Raises:
        UserError: where all are the same, and as `source.sequences` does.
    """
    drawn = source.sequences(n, split="held_out", **how)
    different = first_of_each(drawn)
    if len(different) < FEWEST_SCORED:
        text = isinstance(source, TextSource)
        remedy = "a text that varies (--text)" if text else "other lengths (--lengths)"
        raise UserError(f"all {n} held-out sequences of {source.name} are the same: give {remedy}.")
    return drawn[different]
