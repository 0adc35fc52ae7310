"""Mean attention scores of a model, layer by layer, on text in shuffled order."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from experiments.results.findings import Array
from nope_interp.hooked_model import HookedModel
from nope_interp.shapes import Sequences
from nope_interp.streams import read_at

UNITS = 8
"""Parts of the sequences whose mean scores are kept apart."""


def shuffled(tokens: Sequences, first: int, seed: int) -> Sequences:
    """Each sequence in a random order of its own, so that no token depends on where it stands.

    Args:
        tokens: `[sequence pos]`.
        first: the first position that is shuffled; those before it stay.
        seed: of the orders.

    Returns:
        As `tokens`.
    """
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
    found = read_at(model, tokens, dict.fromkeys(names, _mean), batch_size=len(tokens) // UNITS)
    return np.stack([found[name] for name in names], axis=1)


def _mean(scores: Float[Tensor, "batch head query key"]) -> Float[Array, "later later"]:
    # In single precision until the mean: the maps of all heads are large.
    return scores[:, :, 1:, 1:].mean(dim=(0, 1)).double().cpu().numpy()
