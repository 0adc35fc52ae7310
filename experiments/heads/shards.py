"""One reading of a model's heads by several workers, each with a share of every kind of tokens."""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from jaxtyping import Int
from torch import Tensor

from experiments.heads.reading import (
    HeadCell,
    HeadReaders,
    cell_of,
    head_readers,
    judge,
    layer_probe,
    read,
)
from experiments.heads.tokens import HeadTokens
from experiments.probing.shards import Shards, cut, shard_seed
from nope_interp.hooked_model import HookedModel
from nope_interp.positions.layers import LayerPositions
from nope_interp.pretrained.spec import ModelSpec
from nope_interp.streams import one_thread_pool
from probes.heads.detectors import HeadProbe, HeadScores

# What a worker's model is under while it reads: nothing, or an ablation.
Condition = Callable[[HookedModel], AbstractContextManager[Any]]


def read_cell_in_shards(
    shards: Shards,
    spec: ModelSpec,
    condition: Condition,
    model: HookedModel,
    tokens: HeadTokens,
    positions: Sequence[LayerPositions],
    prompts: Sequence[Int[Tensor, " pos"]],
    *,
    seed: int,
    batch_size: int,
    description: str | None,
) -> HeadCell:
    """What `read_cell` reads, in workers that make the model by its recipe.

    `model` is the same one, under the same condition, in this process: it is run on the prompts.
    """
    parts = _parts(tokens, shards.n)
    seeds = [shard_seed(seed, shard) for shard in range(shards.n)]
    to_read = [(part, head_readers(positions, own)) for part, own in zip(parts, seeds, strict=True)]
    read_part = partial(_read, condition=condition, batch_size=batch_size)
    readers, *rest = shards.map(read_part, spec, to_read, description)
    for part_readers in rest:
        readers.merge(part_readers)
    to_judge = [
        (part, [probe.for_shard(own) for probe in readers.probes])
        for part, own in zip(parts, seeds, strict=True)
    ]
    judge_part = partial(_judge, condition=condition, batch_size=batch_size)
    label = description and f"{description}, scores"
    for judged in shards.map(judge_part, spec, to_judge, label):
        for probe, other in zip(readers.probes, judged, strict=True):
            probe.merge(other)
    return cell_of(model, tokens, readers, prompts, seed)


def read_layer_in_shards(
    shards: Shards,
    spec: ModelSpec,
    condition: Condition,
    layer: LayerPositions,
    tokens: HeadTokens,
    *,
    seed: int,
    batch_size: int,
) -> HeadScores:
    """What `read_layer` reads, paired with what `read_cell_in_shards` does in as many shards."""
    work = partial(_read_layer, condition=condition, layer=layer, batch_size=batch_size)
    shares = [
        (part, shard_seed(seed, shard)) for shard, part in enumerate(_parts(tokens, shards.n))
    ]
    probe, *others = shards.map(work, spec, shares)
    for other in others:
        probe.merge(other)
    with one_thread_pool():
        return probe.result()


def _parts(tokens: HeadTokens, n: int) -> list[HeadTokens]:
    """Every kind of tokens cut into n shares."""
    kinds: dict[str, list[Any]] = {
        name: [part for _, part in cut(sequences, n)]
        for name, sequences in vars(tokens).items()
        if isinstance(sequences, Tensor)
    }
    return [
        dataclasses.replace(tokens, **{name: parts[shard] for name, parts in kinds.items()})
        for shard in range(n)
    ]


def _read(
    model: HookedModel,
    share: tuple[HeadTokens, HeadReaders],
    *,
    condition: Condition,
    batch_size: int,
) -> HeadReaders:
    tokens, readers = share
    with condition(model):
        read(model, tokens, readers, batch_size=batch_size)
    return readers


def _judge(
    model: HookedModel,
    share: tuple[HeadTokens, list[HeadProbe]],
    *,
    condition: Condition,
    batch_size: int,
) -> list[HeadProbe]:
    tokens, probes = share
    with condition(model):
        judge(model, tokens, probes, batch_size=batch_size)
    return probes


def _read_layer(
    model: HookedModel,
    share: tuple[HeadTokens, int],
    *,
    condition: Condition,
    layer: LayerPositions,
    batch_size: int,
) -> HeadProbe:
    tokens, seed = share
    with condition(model):
        return layer_probe(model, layer, tokens, seed=seed, batch_size=batch_size)
