"""Mean attention scores of a model, layer by layer, on text in shuffled order."""

import numpy as np
import torch
from einops import reduce
from jaxtyping import Float, Int
from torch import Tensor

from experiments.results.findings import Array
from nope_interp.hooked_model import HookedModel
from nope_interp.shapes import Sequences
from nope_interp.streams import read_at

# Sequences in a forward pass, at most.
_AT_ONCE = 64

UNITS = 8
"""Parts of the sequences whose mean scores are kept apart."""


ORDERS = 16
"""Random orders that signs of means are read in: what one order happens to show hides the rest."""


def shuffled(
    tokens: Sequences, first: int, seed: int, orders: int = ORDERS
) -> Int[Tensor, "ordered pos"]:
    """Each sequence in random orders of its own, so that no token depends on where it stands.

    Args:
        tokens: `[sequence pos]`.
        first: the first position that is shuffled; those before it stay.
        seed: of the orders.
        orders: how many of each sequence.

    Returns:
        All orders of one sequence after those of another.
    """
    tokens = tokens.repeat_interleave(orders, dim=0)
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(tokens[:, first:].shape, generator=generator).argsort(dim=1)
    return torch.cat((tokens[:, :first], tokens[:, first:].gather(1, order)), dim=1)


def mean_scores(model: HookedModel, tokens: Sequences) -> Float[Array, "unit layer later later"]:
    """Mean scores over the heads of a layer and the sequences of a unit, without position 0.

    Args:
        model: in evaluation mode.
        tokens: `[sequence pos]`, a multiple of `UNITS` sequences.

    Returns:
        Scores; infinite for hidden keys.

    Raises:
        UserError: as `read_at`.
    """
    names = [f"blocks.{layer}.attn.hook_attn_scores" for layer in range(model.cfg.n_layers)]
    size = next(size for size in range(_AT_ONCE, 0, -1) if len(tokens) // UNITS % size == 0)
    found = read_at(model, tokens, dict.fromkeys(names, _mean), batch_size=size)
    by_batch = np.stack([found[name] for name in names], axis=1)
    return np.asarray(reduce(by_batch, "(unit batch) ... -> unit ...", "mean", unit=UNITS))


def _mean(scores: Float[Tensor, "batch head query key"]) -> Float[Array, "later later"]:
    # In single precision until the mean: the maps of all heads are large.
    return scores[:, :, 1:, 1:].mean(dim=(0, 1)).double().cpu().numpy()
