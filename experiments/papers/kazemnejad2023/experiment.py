"""Kazemnejad et al. 2023 (arXiv 2305.19466): Theorems 1 and 2 as weights, run and held exact; do
trained models count as Theorem 1 does; with a preset, length generalisation too, by encodings and
by formats of scratchpads."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from experiments.papers.config import ReproduceConfig
from experiments.papers.kazemnejad2023.counter import counter_findings
from experiments.papers.kazemnejad2023.lengths import length_findings
from experiments.papers.kazemnejad2023.presets import PRESETS
from experiments.papers.kazemnejad2023.scratchpads import scratchpad_findings
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, Series, exactly, line, panel
from experiments.runs.cells import Cells
from nope_interp.constructions.kazemnejad import (
    POSITION,
    absolute_position,
    counting_config,
    relative_position,
)
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.streams import read_at

_VOCABULARY, _BEGIN, _SEQUENCES = 20, 0, 8
_NARROW = (4, 8, 16, 32)
_CONTENT = slice(3, None)  # components of the stream


def reproduce(config: ReproduceConfig, cells: Cells, device: str) -> Findings:
    """Builds both theorems with different content, and runs them on random tokens."""
    # First of all: a model that cannot be read is refused here.
    counter = counter_findings(config, cells, device)
    length = config.scaled("length", 64, least=8)
    absolute = cells.per_seed("theorem 1", config.seeds, lambda seed: _absolute(length, seed))
    relative = cells.per_seed("theorem 2", config.seeds, lambda seed: _relative(length, seed))
    widths = [width for width in _NARROW if width < length] + [length]
    fits = cells.arrays("reciprocal", lambda: _fits(length, widths))
    m = np.arange(1.0, length + 1)
    claims = {
        "theorem-1-inverse": exactly(np.abs(absolute["inverse"] - 1 / m).max(axis=(1, 2))),
        "theorem-1": exactly(np.abs(absolute["position"] - m).max(axis=(1, 2))),
        "theorem-2": exactly(np.abs(relative["difference"]).reshape(len(config.seeds), -1).max(1)),
    }
    theorems = Findings(
        claims,
        (_counting(m, absolute), _distance(length, relative), _reciprocal(m, widths, fits)),
        setting=f"built models read on {len(config.seeds)} draws of {_SEQUENCES} sequences of "
        f"{length} tokens",
        notes=(
            "Each draw has other content. Its sequences start with the begin token.",
            "The numbers follow from the weights: the interval is the largest deviation over all "
            "draws, sequences and positions.",
        ),
    )
    found = theorems.and_of(counter)
    if config.preset is None:
        return found
    preset = PRESETS[config.preset]
    found = found.and_of(length_findings(config, preset, cells, device))
    if preset.scratchpads is None:
        return found
    return found.and_of(scratchpad_findings(config, preset.scratchpads, cells, device))


def _tokens(length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, _VOCABULARY, (_SEQUENCES, length), generator=generator)
    tokens[:, 0] = _BEGIN
    return tokens


def _config(length: int, seed: int, **changes: int) -> TransformerConfig:
    return counting_config(length, _VOCABULARY, seed=seed, **changes)


def _read(model: HookedTransformer, length: int, seed: int, **hooks: str) -> dict[str, Tensor]:
    """The activations at hooks, by the names given to these."""
    reads = {f"blocks.{hook}": Tensor.clone for hook in hooks.values()}
    found = read_at(model, _tokens(length, seed), reads)
    return {name: found[f"blocks.{hook}"][0] for name, hook in hooks.items()}


def _absolute(length: int, seed: int) -> dict[str, Array]:
    """Component 3 after attention and after the MLP."""
    model = absolute_position(_config(length, seed), _BEGIN).model
    hooks = {"inverse": "0.hook_resid_mid", "position": "0.hook_resid_post"}
    found = _read(model, length, seed, **hooks)
    return {name: activations[..., POSITION].numpy() for name, activations in found.items()}


def _relative(length: int, seed: int) -> dict[str, Array]:
    """Scores minus their content product, minus the distance; visible keys, hidden ones 0."""
    model = relative_position(_config(length, seed), _BEGIN).model
    scores = _read(model, length, seed, scores="1.attn.hook_attn_scores")["scores"][:, 0]
    # From the embedding and the weights alone, without a look at what the model computed.
    embedded, attention = model.W_E[_tokens(length, seed)][..., _CONTENT], model.blocks[1].attn
    q = embedded @ attention.W_Q[0, _CONTENT, 2:] * model.config.attention_scale
    k = embedded @ attention.W_K[0, _CONTENT, 2:]
    content = (q @ k.transpose(1, 2)).detach()
    at = torch.arange(length)
    visible = at <= at[:, None]
    distance = (at - at[:, None]).double()
    positional = (scores - content).where(visible, 0)
    difference = (positional - distance).where(visible, 0)
    return {"positional": positional.numpy(), "difference": difference.numpy()}


def _fits(length: int, widths: list[int]) -> dict[str, Array]:
    return {
        str(width): absolute_position(_config(length, 0, d_mlp=width), _BEGIN).reciprocal_error
        for width in widths
    }


@figure(
    "counting", "tokens seen, m", "component 3", claims=("theorem-1-inverse", "theorem-1"), log="xy"
)
def _counting(m: Array, absolute: dict[str, Array]) -> Iterator[Panel]:
    """Theorem 1: absolute position.

    Component 3 of the stream in the built model; bars reach from the least to the most over all
    draws and sequences.
    """
    yield _beside_theorem("after attention: 1/m", m, 1 / m, absolute["inverse"])
    yield _beside_theorem("after the MLP: m", m, m, absolute["position"])


def _beside_theorem(title: str, x: Array, exact: Array, found: Array) -> Panel:
    """The mean over draws and sequences, [... point], from the least to the most."""
    values = found.reshape(-1, len(x))
    extent = values.mean(axis=0), values.min(axis=0), values.max(axis=0)
    measured = Series("measured", "measured", x, *extent, len(values))
    return Panel(title, (line("the theorem", "reference", x, exact), measured))


@figure(
    "distance",
    "key's position minus the query's, m - n",
    "score minus content",
    claims=("theorem-2",),
)
def _distance(length: int, relative: dict[str, Array]) -> Iterator[Panel]:
    """Theorem 2: relative position.

    Scores of the last query in the second layer, minus the product of contents.
    """
    away = np.arange(1.0 - length, 1)
    yield _beside_theorem("last query", away, away, relative["positional"][:, :, -1])


@figure("reciprocal", "tokens seen, m", "error, positions", claims=("theorem-1",), log="x")
def _reciprocal(m: Array, widths: list[int], fits: dict[str, Array]) -> Iterator[Panel]:
    """How wide the MLP has to be.

    What the MLP's fit of 1/x writes for m, minus m, by the number of its ReLUs.
    """
    errors = {f"{width} ReLUs": fits[str(width)] for width in widths}
    yield panel("error of the fit", m, measured=errors)
