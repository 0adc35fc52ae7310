"""What one pass over a prompt shows of every layer: patterns, surprisal, predictions, frequencies.

The model runs once, under whatever changes are in force, and what hooks show is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from experiments.heads.rotated import on_rotated
from nope_interp.hooked_model import HookedModel, attention_layers
from nope_interp.models.losses import next_log_probabilities
from nope_interp.positions.layers import LayerPositions
from nope_interp.sites import pattern_hook
from nope_interp.streams import Listener
from probes.heads.frequencies import frequency_shares

# A layer of a hybrid may have no heads.
PatternsOf = list[Float[Tensor, "of_layer query key"]]
Scores = dict[str, np.ndarray]


@dataclass(frozen=True)
class Repeated:
    """Scores of heads on repeated tokens under one change.

    Attributes:
        change: as JSON; empty for the model as it is.
        scores: `[layer head]` by metric.
    """

    change: str = field(repr=False)
    scores: Scores = field(repr=False)

    @property
    def n_bytes(self) -> int:
        """Of both: a change of many heads is larger than what it scores."""
        return len(self.change) + _bytes_of(self.scores)


def _bytes_of(scores: Scores) -> int:
    return sum(values.nbytes for values in scores.values())


@dataclass(frozen=True)
class Pass:
    """What a model made of one prompt.

    Attributes:
        patterns: attention of each layer, on the CPU; of no heads where it has none.
        shares: of |q| |k|, by frequency, of the layers that rotate.
        surprisal: of each token but the first, in nats.
        predicted: logarithms of the probabilities of what comes after the last token.
        notes: what a change leaves of positions, in sentences.
        scores: `[layer head]` by metric, once the patterns were scored.
    """

    patterns: PatternsOf = field(repr=False)
    shares: dict[int, Float[Tensor, "head freq"]] = field(repr=False)
    surprisal: Float[Tensor, " later"] = field(repr=False)
    predicted: Float[Tensor, " d_vocab"] = field(repr=False)
    notes: tuple[str, ...] = ()
    scores: Scores = field(default_factory=dict, repr=False)

    @property
    def n_bytes(self) -> int:
        """Of all tensors and scores."""
        tensors = [*self.patterns, *self.shares.values(), self.surprisal, self.predicted]
        held = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return held + _bytes_of(self.scores)


class Rotated:
    """Listeners that read which rotary frequencies heads use; set up once for a model.

    Args:
        model: a HookedTransformer or a bridge.
        positions: of each of its layers.
    """

    def __init__(self, model: HookedModel, positions: Sequence[LayerPositions]) -> None:
        self.shares: dict[int, Float[Tensor, "head freq"]] = {}
        readers = {
            at.layer: partial(self._read, at.layer, at.rotary_dims)
            for at in positions
            if at.rotary_dims
        }
        self.listeners = on_rotated(model, readers) if readers else {}

    def _read(self, layer: int, rotated: int, queries: Tensor, keys: Tensor) -> None:
        self.shares[layer] = frequency_shares(queries, keys, rotated)[0].cpu()


@torch.no_grad()
def read_pass(
    model: HookedModel, ids: Int[Tensor, "1 pos"], rotated: Rotated, notes: Sequence[str] = ()
) -> Pass:
    """Run the model once over a prompt, as it is at present.

    Args:
        model: a HookedTransformer or a bridge.
        ids: the prompt's tokens.
        rotated: of the same model.
        notes: what is to be said of the state that the model is in.

    Returns:
        What was seen.

    Raises:
        UserError: for an architecture whose logits are not its unembedding of the last layer's
            output.
    """
    patterns: dict[int, Tensor] = {}

    def keep(pattern: Tensor, hook: object, layer: int) -> None:
        patterns[layer] = pattern[0].float().cpu()

    hooks = [(pattern_hook(layer), partial(keep, layer=layer)) for layer in attention_layers(model)]
    hooks += [
        (name, partial(_heard, listener=listener)) for name, listener in rotated.listeners.items()
    ]
    rotated.shares = {}
    device = next(model.parameters()).device
    with model.hooks(fwd_hooks=hooks):
        found = next_log_probabilities(model, ids.to(device), 0)[0]
    written = rearrange(ids[0, 1:].to(device), "pos -> pos 1")
    surprisal = -found[:-1].gather(1, written)[:, 0]
    no_heads = torch.empty(0, ids.shape[1], ids.shape[1])
    return Pass(
        patterns=[patterns.get(layer, no_heads) for layer in range(model.cfg.n_layers)],
        shares=rotated.shares,
        surprisal=surprisal.cpu(),
        predicted=found[-1].cpu().clone(),
        notes=tuple(notes),
    )


def _heard(activations: Tensor, hook: object, listener: Listener) -> None:
    listener(activations)


def pattern_distance(
    one: Float[Tensor, "head query key"], other: Float[Tensor, "*some head query key"]
) -> Float[Tensor, "*some head"]:
    """The total-variation distance of two patterns' rows, mean over queries, from 0 to 1."""
    distance: Tensor = (one - other).abs().sum(dim=-1).mean(dim=-1) / 2
    return distance
