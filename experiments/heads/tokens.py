"""The four kinds of tokens that tell heads apart, drawn once and read by every variant."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Int
from torch import Tensor

from experiments.heads.config import HeadsConfig
from experiments.probing.split import scored_once
from experiments.variants.variants import ModelVariant
from nope_interp.errors import UserError
from nope_interp.tasks.sources import (
    CopiesSource,
    RepeatedSource,
    Split,
    TextSource,
    TokenSource,
    UniformSource,
)

# Few enough that every token is seen often, many enough that none is seen at every offset.
ALPHABET = 64

_KINDS = 4
# So many sequences tell how often random tokens recur.
_LOOKED_AT, _MOST_QUERIES = 2, 256


@dataclass(frozen=True)
class HeadTokens:
    """Sequences of each kind, all of one length but for an odd token that no period holds.

    Attributes:
        text: what the model was made for, each sequence once; losses and most scores are taken on
            it.
        text_before: other sequences of it, which say how often each token occurs.
        repeated: random tokens, then the same again after `period` tokens.
        copies: one token over and over.
        alphabet_fit, alphabet_held_out: uniform draws from a small alphabet, so that offset and key
            token are independent.
        start: how many tokens, one begin token or none, come first.
        period: after how many tokens `repeated` comes again.
    """

    text: Int[Tensor, "text pos"]
    text_before: Int[Tensor, "before pos"]
    repeated: Int[Tensor, "repeated twice_period"]
    copies: Int[Tensor, "copies pos"]
    alphabet_fit: Int[Tensor, "fitted pos"]
    alphabet_held_out: Int[Tensor, "scored pos"]
    start: int
    period: int

    @property
    def n_read(self) -> int:
        """Sequences that heads are read on."""
        read = (self.text, self.repeated, self.copies, self.alphabet_fit, self.alphabet_held_out)
        return sum(map(len, read))

    def perfect(self) -> dict[str, float]:
        """What heads score on `repeated` that match tokens and nothing else, by metric.

        One attends alike to all that followed the query's token before, the other to all tokens
        equal to it. Where random tokens recur within a period, some of these are of chance.
        """
        tokens = self.repeated[:_LOOKED_AT]
        n = tokens.shape[1]
        every = torch.arange(self.start + self.period, n)
        queries = every[:: -(-len(every) // _MOST_QUERIES)]
        seen = torch.arange(n) <= rearrange(queries, "query -> query 1")
        same = rearrange(tokens[:, queries], "n query -> n query 1") == tokens[:, None]
        followed = F.pad(same[..., :-1], (1, 0))
        matched = {"induction": followed, "duplicate_token": same}
        return {name: float((1 / (of & seen).sum(dim=-1)).mean()) for name, of in matched.items()}

    @property
    def length(self) -> int:
        """Tokens in a sequence of text."""
        return self.text.shape[1]


def head_tokens(variant: ModelVariant, config: HeadsConfig) -> HeadTokens:
    """Draws them from `config.seed`; a model without a begin token is read without one."""
    natural, uniform = variant.sources
    if not isinstance(uniform, UniformSource):
        raise UserError(
            f"{variant.name} has no vocabulary to draw random tokens from: choose a model with a "
            "tokenizer."
        )
    begin = config.begin_token and natural.begin_id is not None
    n, length, seed = config.n_shareable, config.seq_len, config.seed
    ids = uniform.ids
    chosen = torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))[:ALPHABET]
    alphabet = UniformSource(ids[chosen], uniform.begin_id)
    repeated = RepeatedSource(ids, uniform.begin_id)
    copies = CopiesSource(ids, uniform.begin_id)

    def how(kind: int) -> dict[str, Any]:
        # Each kind has a seed of its own: the same one would draw the same random numbers.
        return {"seq_len": length, "begin_token": begin, "seed": _KINDS * seed + kind}

    def draw(source: TokenSource, n: int, kind: int, split: Split = "held_out") -> Tensor:
        return source.sequences(n, split=split, **how(kind))

    # Windows of text never come again; a task with few prompts gives some again and again.
    of_text = isinstance(natural, TextSource)
    return HeadTokens(
        text=draw(natural, n, 0) if of_text else scored_once(natural, n, **how(0)),
        text_before=draw(natural, n, 0, "fit"),
        repeated=draw(repeated, n // 2, 1),
        copies=draw(copies, n // 4, 2),
        alphabet_fit=draw(alphabet, n // 2, 3, "fit"),
        alphabet_held_out=draw(alphabet, n // 2, 3),
        start=int(begin),
        period=repeated.period(length, begin_token=begin),
    )
