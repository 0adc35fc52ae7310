"""Answers filled in all at once: a format in which a model without a causal mask can be trained.

A bidirectional model that is asked for the next token sees it. Here it sees the prompt and blanks,
which are one repeated token, in place of the answer, and gives at each blank the token that belongs
there. Without positions and mask all blanks are alike by symmetry, and so are the tokens given.
"""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from nope_interp.models.marked import answers_loss
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import Marked, Tokens
from nope_interp.tasks.answers import AnswerTask


@dataclass(frozen=True)
class AnswerMasking:
    """How a task's answers are hidden.

    Attributes:
        fill: the token that is the blank.
        end: the token that ends an answer, which is not asked for; None where there is none.
    """

    fill: int
    end: int | None

    @classmethod
    def of(cls, task: AnswerTask) -> "AnswerMasking":
        """Those of a task: the blank is its begin token, which otherwise stands only at first.

        Args:
            task: any with a begin token.

        Returns:
            The masking.
        """
        assert task.tokenizer.begin_id is not None
        return cls(task.tokenizer.begin_id, task.tokenizer.end_id)

    def hidden(self, tokens: Tokens, answer: Marked) -> Tokens:
        """`tokens` with blanks from the first token of the answer on.

        The end and the padding are blanks too, so that an example does not tell how long its answer
        is.

        Args:
            tokens: `[batch pos]`.
            answer: `[batch pos]`, which of them are the answer or its end.

        Returns:
            `[batch pos]`.
        """
        return tokens.masked_fill(answer.cummax(dim=1).values, self.fill)

    def asked(self, tokens: Tokens, answer: Marked) -> Marked:
        """The answer without its end: what is given at the blanks.

        Args:
            tokens: `[batch pos]`.
            answer: `[batch pos]`, which of them are the answer or its end.

        Returns:
            `[batch pos]`, true at the blanks that are asked for.
        """
        return answer if self.end is None else answer & (tokens != self.end)

    def loss(
        self,
        model: HookedTransformer,
        tokens: Tokens,
        answer: Marked,
        *,
        cross_entropy: Callable[..., Tensor] | None = None,
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy, in nats per token, of the answers' tokens at their own positions.

        Args:
            model: any of ours.
            tokens: `[batch pos]`.
            answer: `[batch pos]`, which of them are the answer or its end.
            cross_entropy: as `answers_loss` takes it.

        Returns:
            One number, with a gradient.
        """
        asked, hidden = self.asked(tokens, answer), self.hidden(tokens, answer)
        return answers_loss(model, hidden, asked, tokens[asked], cross_entropy=cross_entropy)
