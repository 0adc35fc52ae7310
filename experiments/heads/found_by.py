"""Whose query finds the token so far back: any text's, any text's of that place, or its own?

Nothing is fitted and nothing is taken away. In one layer at a time queries are made of what
attention read elsewhere: at an earlier place, in another text of the batch, or both. Keys and
values stay. `experiments.results.found_by` says what follows from where the attention goes.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from math import ceil
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor

from experiments.heads.checks import check_chance_levels
from experiments.heads.config import HeadsConfig
from experiments.heads.tokens import head_tokens
from experiments.results.found_by import Finding
from experiments.results.position_use import Interval
from experiments.results.worth import WORTH_NAMING
from experiments.variants.variants import ModelVariant
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.interventions.intervene import Function
from nope_interp.interventions.reading import read_changed
from nope_interp.shapes import AttentionMaps, Sequences
from nope_interp.sites import pattern_hook
from nope_interp.streams import stream
from probes.bootstrap import ArrayFunction, NamedBootstrap, ratio

# Of each head, on the token and on that further back.
Weights = Float[np.ndarray, "sequence head offset"]


def found_by(variant: ModelVariant, config: HeadsConfig, offset: int, shift: int) -> pd.DataFrame:
    """What leads a model's heads to the token so far back, in text.

    Args:
        variant: the model with its tokens.
        config: how many sequences, of which length, and the seed.
        offset: how far back the token stands; 0 for a head's own.
        shift: how much earlier a query is taken from, at least 1.

    Returns:
        The table of `finders`.

    Raises:
        UserError: for offsets and shifts that do not fit, heads without chance levels, and where
            no head looks there.
    """
    _check(config, offset, shift)
    check_chance_levels(variant.model, config.seq_len, variant.name)
    tokens = head_tokens(variant, config).text
    how = {"batch_size": config.batch_size, "seed": config.seed}
    table = finders(variant.model, tokens, offset, shift, **how)
    if table.empty:
        raise UserError(
            f"no head of {variant.name} surely puts a tenth of its attention on the token {offset} "
            "back: choose another offset."
        )
    return table


def finders(
    model: HookedModel, tokens: Sequences, offset: int, shift: int, *, batch_size: int, seed: int
) -> pd.DataFrame:
    """What leads heads to the token so far back, in any sequences.

    Args:
        model: a HookedTransformer or a bridge, in evaluation mode.
        tokens: `[sequence pos]`, at least two, whose texts differ.
        offset: how far back the token stands.
        shift: how much earlier a query is taken from.
        batch_size: sequences in a forward pass.
        seed: of the bootstrap.

    Returns:
        One row for each head that surely puts a tenth of its attention there, beyond what it puts
        `shift` further back, as `HeadsAsked.heads_find_by` describes it; the strongest first.
    """
    # Evenly, so that no sequence is alone in its batch: it needs another text beside it.
    size = ceil(len(tokens) / ceil(len(tokens) / max(2, batch_size)))
    read = partial(_weights, model, tokens, (offset, offset + shift), size)
    rows = []
    for layer, weights in read(range(model.cfg.n_layers), None).items():
        looking = _looking(weights, seed)
        if not looking:
            continue
        swapped = [
            read([layer], partial(_taken, shift=shift, other=other))[layer]
            for other in (False, True)
        ]
        for head in looking:
            found = _finding([of[:, head] for of in (weights, *swapped)], seed)
            rows.append({"layer": layer, "head": head, **found})
    if not rows:
        return pd.DataFrame()
    best = pd.DataFrame(rows).sort_values("value", ascending=False, kind="stable")
    return best.reset_index(drop=True)


def _check(config: HeadsConfig, offset: int, shift: int) -> None:
    for name, given, least in (("offset", offset, 0), ("shift", shift, 1)):
        if not isinstance(given, Integral) or given < least:
            raise UserError(f"{name} is {given!r}: give a whole number from {least}.")
    if config.seq_len < 2 * (offset + shift) + 2:
        raise UserError(
            f"sequences of {config.seq_len} tokens are too short for a token {offset} back and "
            f"queries from {shift} earlier: give longer ones, or less."
        )


def _taken(
    read: Float[Tensor, "batch pos d_model"], shift: int, other: bool
) -> Float[Tensor, "batch pos d_model"]:
    """What was read so much earlier, in the same text or in the next of the batch; the first
    positions, which have nothing so much earlier, read what stands at the sequence's start."""
    source = read.roll(1, dims=0) if other else read
    places = (torch.arange(read.shape[1], device=read.device) - shift).clamp(min=0)
    return source[:, places]


def _weights(
    model: HookedModel,
    tokens: Sequences,
    offsets: tuple[int, int],
    batch_size: int,
    layers: Sequence[int],
    change: Function | None,
) -> dict[int, Weights]:
    """By layer the mean weight on the token at each offset, over queries for which both stand
    behind the first token; with other queries in these layers where there is a change."""
    found: dict[int, list[Weights]] = {layer: [] for layer in layers}

    def keep(pattern: AttentionMaps, layer: int) -> None:
        first = max(offsets) + 1
        at = [pattern.diagonal(-back, -2, -1)[..., first - back :] for back in offsets]
        means = reduce(torch.stack(at).double(), "offset b head query -> b head offset", "mean")
        found[layer].append(means.cpu().numpy())

    listeners = {pattern_hook(layer): partial(keep, layer=layer) for layer in layers}
    changed = {} if change is None else dict.fromkeys(layers, change)
    context = read_changed(model, changed, ("queries",)) if changed else nullcontext()
    with context:
        stream(model, tokens, listeners, batch_size=batch_size, until=[*listeners][-1])
    return {layer: np.concatenate(parts) for layer, parts in found.items()}


def _looking(weights: Weights, seed: int) -> list[int]:
    """Heads that surely put so much more on their token than further back."""
    more = weights[..., 0] - weights[..., 1]
    bootstrap = NamedBootstrap(dict(enumerate(more.T)), seed=seed)
    return [
        head
        for head in range(more.shape[1])
        if bootstrap.score("more", bootstrap.mean(head), chance=0.0).ci_low >= WORTH_NAMING
    ]


def _finding(weights: Sequence[Float[np.ndarray, "sequence offset"]], seed: int) -> dict[str, Any]:
    """A head's row: its weight, and the shares of what it puts on its token beyond the other."""
    names = ("own", "same text", "other text")
    columns = {
        (name, place): of[:, i]
        for name, of in zip(names, weights, strict=True)
        for i, place in enumerate(("here", "there"))
    }
    bootstrap = NamedBootstrap(columns, seed=seed)

    def share(*parts: tuple[str, str]) -> ArrayFunction:
        """Of a column less another one, of what own queries put on their token beyond the other."""
        part = bootstrap.difference(*parts)
        return ratio(part, bootstrap.difference(("own", "here"), ("own", "there")))

    def told(function: ArrayFunction) -> Interval:
        score = bootstrap.score("share", function, chance=0.0)
        return score.value, score.ci_low, score.ci_high

    beyond = ("own", "there")
    finding = Finding(
        any_query=told(share(("other text", "here"), beyond)),
        place=told(share(("other text", "there"), beyond)),
        text=told(share(("same text", "there"), ("other text", "there"))),
    )
    value, low, high = told(bootstrap.mean(("own", "here")))
    return {"value": value, "ci_low": low, "ci_high": high, **finding.columns()}
