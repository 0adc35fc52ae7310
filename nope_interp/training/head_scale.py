"""Attention made sharper or flatter: a factor on the scores of every head.

Wang et al. 2024 (arXiv 2404.12224; its abstract was read) connect NoPE's failure on long sequences
with attention that has become dispersed, and tune a temperature for each head (HeadScale), which
lets it go further. Here a factor for each head is found by plain gradient descent on its logarithm;
the paper's initialisation and its constraint on factors are left out.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from nope_interp.errors import UserError
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import Marked, Tokens
from nope_interp.training.train import masked_loss

Batch = tuple[Tokens, Marked]


@contextmanager
def scaled_scores(
    model: HookedTransformer, factors: Float[Tensor, "layer head"]
) -> Iterator[HookedTransformer]:
    """While it is open, the attention scores of every head are multiplied by its factor.

    Queries are what is multiplied, so gradients reach the factors. The hooks are torch's own:
    contexts of hooks inside, and `reset_hooks`, leave them alone. 1 changes nothing.

    Args:
        model: any of ours, but with alibi or t5 positions.
        factors: `[layer head]`.

    Returns:
        The model.

    Raises:
        UserError: where the factors are not one for each layer and head, and for encodings that add
            to the scores (alibi, t5), whose bias would not be multiplied.
    """
    config = model.config
    if tuple(factors.shape) != (config.n_layers, config.n_heads):
        raise UserError(
            f"factors have shape {tuple(factors.shape)}: give one for each of {config.n_layers} "
            f"layers and {config.n_heads} heads."
        )
    if config.positions in ("alibi", "t5"):
        raise UserError(
            f"{config.positions} positions add to the scores what a factor on queries leaves as it "
            "is: give a model without them."
        )
    with ExitStack() as handles:
        for block, of_layer in zip(model.blocks, factors, strict=True):
            handles.enter_context(block.attn.hook_q.register_forward_hook(_multiply(of_layer)))
        yield model


def _multiply(factors: Float[Tensor, " head"]) -> Callable[[nn.Module, object, Tensor], Tensor]:
    column = rearrange(factors, "head -> head 1")

    def multiply(module: nn.Module, args: object, q: Tensor) -> Tensor:
        return q * column.to(q)

    return multiply


def tuned_factors(
    model: HookedTransformer, batches: Iterable[Batch]
) -> Float[Tensor, "layer head"]:
    """A factor for each head, from one step of Adam on each batch; the model's weights stay.

    Args:
        model: in evaluation mode.
        batches: tokens, and which of them the loss is taken of, as `AnswerTask.batch` gives them.

    Returns:
        `[layer head]`, each above 0.
    """
    shape = model.config.n_layers, model.config.n_heads
    logarithms = torch.zeros(shape, device=model.W_E.device, requires_grad=True)
    optimizer = torch.optim.Adam([logarithms], lr=0.02)
    for tokens, predicted in batches:
        with torch.enable_grad(), scaled_scores(model, logarithms.exp()):
            loss = masked_loss(model, tokens, predicted)
        # Of the factors alone: gradients of weights are neither computed nor left behind.
        [logarithms.grad] = torch.autograd.grad(loss, [logarithms])
        optimizer.step()
    return logarithms.detach().exp()
