"""Prompts and their answers, as the tasks with answers draw them."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def first_of_each(tokens: Int[Tensor, "sequence pos"]) -> Int[Tensor, " different"]:
    """Where each different sequence stands first.

    Args:
        tokens: `[sequence pos]`, in which some may be the same.

    Returns:
        Their numbers, in ascending order.
    """
    _, which = torch.unique(tokens, dim=0, return_inverse=True)
    first = torch.full((int(which.max()) + 1,), len(which))
    return first.scatter_reduce_(0, which, torch.arange(len(which)), "amin").sort().values


@dataclass(frozen=True)
class Examples:
    """Prompts and their answers.

    Attributes:
        tokens: begin token, prompt, answer, end token; then padding, which no token before it can
            see in a causal model.
        prompt_length: tokens of the begin token and the prompt.
        length: tokens without the padding.
    """

    tokens: Int[Tensor, "example pos"]
    prompt_length: Int[Tensor, " example"]
    length: Int[Tensor, " example"]

    @property
    def answer(self) -> Bool[Tensor, "example pos"]:
        """The answer and its end, `[example pos]`: what losses and exact match look at."""
        position = torch.arange(self.tokens.shape[1])
        return (position >= self.prompt_length[:, None]) & (position < self.length[:, None])

    @property
    def different(self) -> "Examples":
        """Each of them once, in the order in which they first came: a prompt that is drawn again
        tells nothing new."""
        return self[first_of_each(self.tokens)]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, which: slice | Int[Tensor, " chosen"]) -> "Examples":
        return Examples(self.tokens[which], self.prompt_length[which], self.length[which])
