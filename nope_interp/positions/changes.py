"""A change to a module's arguments or to its output: what an ablation is made of.

It sits on a torch module and not in TransformerLens's lists of hooks, so that contexts of hooks
inside an ablation, and `reset_hooks`, leave it alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn


@dataclass(frozen=True)
class Change:
    """One thing to change in a forward pass.

    Attributes:
        name: what error messages call it.
        module: where it happens.
        what: "output" hands `apply` the module's output and puts what it returns in its place;
            "arguments" hands it the positional and the keyword arguments and does the same.
        apply: the change.
        undo: called once when the change is taken away, for what it did to the module itself.
        gives_back: whether it takes nothing away, but ends another change behind a module's work. A
            pass that ends inside the module never comes to it.
    """

    name: str
    module: nn.Module
    what: Literal["output", "arguments"]
    apply: Callable[..., Any]
    undo: Callable[[], None] | None = None
    gives_back: bool = False


Heads = list[int] | None
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def position_permutation(n: int, seed: int) -> Int[Tensor, " pos"]:
    """The permutation of positions 0..n-1 that `shuffled` uses in every layer and pass.

    Args:
        n: how many positions.
        seed: of the permutation.
    """
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))
