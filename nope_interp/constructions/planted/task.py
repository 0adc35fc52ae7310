"""A planted model, the task that it solves, and the truth about the codes that it solves it by."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from scipy.stats import binom
from torch import Tensor

from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import PerSequence, Sequences, Tokens

N_CTX = 32
CODES = ("variance", "similarity", "smooth trend", "irregular part")
USED, REDUNDANT, NOT_USED = "used", "redundant", "not used"
# Where the code of most models lies bare.
SITE = "blocks.0.hook_resid_post"

_BATCH = 128

Truth = Mapping[str, str]
# The weights that read or write a code, as views into a model, which zeroing them changes.
Weights = Callable[[HookedTransformer], Sequence[Tensor]]
Answers = Int[Tensor, "batch asked"]


def truth(**words: str) -> Truth:
    """The truth about all codes: those named, `_` for a space, have these words, others are not
    used."""
    named = {code.replace("_", " "): word for code, word in words.items()}
    return {code: named.get(code, NOT_USED) for code in CODES}


@dataclass(frozen=True)
class Planted:
    """A model, what it knows positions by, and the task that it solves with it.

    Attributes:
        kind: its name in `PLANTS`.
        model: in single precision, for sequences of `N_CTX` tokens.
        truth: of each of `CODES`, whether the model uses it: `USED`; `REDUNDANT`, where it is one
            of two codes that either suffice; or `NOT_USED`, whether it can be read or not. A code
            of which that cannot be said is left out.
        sites: the hook names at which codes lie bare and everything later reads them from, each
            with the truth about the codes there.
        task: "position" asks each token for its position, by the logits of tokens 1 to N_CTX - 1;
            "position and kind" for its kind, too, 0 or 1, by as many logits again for kind 1;
            "previous token" asks it for the token before.
        begin_token: what every sequence starts with; None where it is drawn like the others.
        chance: the loss, in nats, of the best answer without a position code: that all positions
            are equally likely; or that the previous token is any one of the tokens before.
        reads: the weights that read a used or redundant code: without them it is not used.
        writes: the weights that write an unread code: without them it is not there.
        kinds: the kind of every token `[batch pos]`, where that is asked for.
    """

    kind: str
    model: HookedTransformer = field(repr=False)
    truth: Truth
    sites: Mapping[str, Truth] = field(repr=False)
    task: Literal["position", "position and kind", "previous token"]
    begin_token: int | None
    chance: float = math.log(N_CTX - 1)
    reads: Mapping[str, Weights] = field(default_factory=dict, repr=False)
    writes: Mapping[str, Weights] = field(default_factory=dict, repr=False)
    kinds: Callable[[Tokens], Tokens] | None = field(default=None, repr=False)

    @property
    def answer_tokens(self) -> slice:
        """The tokens that stand for answers."""
        if self.task == "previous token":
            return slice(None)
        kinds = 1 if self.kinds is None else 2
        return slice(1, 1 + kinds * (N_CTX - 1))

    def sequences(self, n: int, seed: int) -> Sequences:
        """n sequences of `N_CTX` tokens, drawn uniformly.

        Args:
            n: sequences.
            seed: of the draws.

        Returns:
            Tokens, `[sequence pos]`.
        """
        generator = torch.Generator().manual_seed(seed)
        first = 0 if self.begin_token is None else self.begin_token + 1
        tokens = torch.randint(first, self.model.config.d_vocab, (n, N_CTX), generator=generator)
        if self.begin_token is not None:
            tokens[:, 0] = self.begin_token
        return tokens

    def answers(self, tokens: Tokens, told: Int[Tensor, " asked"] | None = None) -> Answers:
        """The right answers at positions from 1 on, as indices into `logits`.

        Args:
            tokens: [batch pos].
            told: for each of these positions the one that it is told to be at, whose answer is then
                right, its content kept; by default its own.

        Returns:
            [batch asked].
        """
        at = torch.arange(1, N_CTX) if told is None else told
        if self.task == "previous token":
            return tokens[:, at - 1]
        position = (at - 1).expand(len(tokens), -1)
        return (
            position if self.kinds is None else position + (N_CTX - 1) * self.kinds(tokens)[:, 1:]
        )

    def answered(self, tokens: Tokens, told: Int[Tensor, " asked"] | None = None) -> Answers:
        """The tokens that stand for the right answers, as `answers` gives these.

        Args:
            tokens: [batch pos].
            told: as in `answers`.

        Returns:
            [batch asked].
        """
        answers = self.answers(tokens, told)
        return answers if self.task == "previous token" else 1 + answers

    def logits(
        self, model: HookedTransformer, tokens: Tokens
    ) -> Float[Tensor, "batch asked answer"]:
        """The logits of all answers at positions from 1 on.

        Args:
            model: the one built here, or a changed one.
            tokens: [batch pos].

        Returns:
            `[batch asked answer]`.
        """
        found = torch.cat([model(batch)[:, 1:] for batch in tokens.split(_BATCH)])
        return found[..., self.answer_tokens]

    @torch.no_grad()
    def losses(self, model: HookedTransformer, tokens: Sequences) -> PerSequence:
        """Mean cross-entropy of the task's answer over positions from 1 on, in nats.

        Args:
            model: the one built here, or a changed one.
            tokens: [batch pos].

        Returns:
            `[batch]`.
        """
        by_class = rearrange(self.logits(model, tokens), "batch pos answer -> batch answer pos")
        return F.cross_entropy(by_class, self.answers(tokens), reduction="none").mean(dim=1)

    @torch.no_grad()
    def accuracy(self, model: HookedTransformer, tokens: Sequences) -> float:
        """The share of answers that are right, 0 to 1.

        Args:
            model: the one built here, or a changed one.
            tokens: [batch pos].

        Returns:
            The share over all sequences and positions.
        """
        said = self.logits(model, tokens).argmax(dim=-1)
        return float((said == self.answers(tokens)).double().mean())


def any_earlier_token(d_vocab: int) -> float:
    """The expected loss of one who knows the bag of t earlier tokens and not their order.

    With c copies of the previous token among them it is log(t / c), and c - 1 is binomial.
    """
    losses = [
        math.log(t) - binom.expect(lambda copies: np.log1p(copies), (t - 1, 1 / d_vocab))
        for t in range(1, N_CTX)
    ]
    return float(np.mean(losses))
