"""Whose query finds the token so far back: any text's, any text's of that place, or its own?

Nothing is fitted and nothing is taken away. After each layer has run, its attention runs again with
queries made of what it read elsewhere: at an earlier place, of the same text or of another in the
batch. Keys and values stay. `experiments.results.found_by` says what follows from where the
attention goes.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pandas as pd
import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor

from experiments.heads.checks import check_attention, check_chance_levels
from experiments.heads.config import HeadsConfig
from experiments.results.found_by import SHIFT, TOKENS, Finding
from experiments.results.intervals import Interval
from experiments.results.worth import WORTH_NAMING
from experiments.variants.variants import ModelVariant
from nope_interp.errors import UserError, warn
from nope_interp.fields import is_whole
from nope_interp.hooked_model import HookedModel, attention_layers
from nope_interp.interventions.again import AttentionAgain
from nope_interp.interventions.reading import read_changed
from nope_interp.memory import check_room, forward_bytes
from nope_interp.positions.layers import layer_positions
from nope_interp.query_blocks import all_queries_at_once
from nope_interp.shapes import AttentionMaps, Sequences
from nope_interp.sites import layer_ranges, pattern_hook
from nope_interp.streams import stream
from nope_interp.tasks.sources import TextSource
from probes.bootstrap import ArrayFunction, NamedBootstrap, SequenceBootstrap

# Of each head, on the target, on the token `shift` further back, and on the reference token, twice
# as far back.
Weights = Float[np.ndarray, "sequence head offset"]

# Whole maps of attention are made: a classification reads no more of each text, nor more texts.
MOST_TEXTS, MOST_TOKENS = 24, 256

# Whose queries a layer runs with.
_OWN = "own"
_ELSEWHERE = _SAME, _OTHER = "of the same text", "of another text"


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
    source, name = variant.sources[0], variant.name
    if not isinstance(source, TextSource):
        raise UserError(
            f"{name} was trained on a task, whose examples have tokens in common: give a model "
            "of text, so that one text differs from another."
        )
    check_chance_levels(variant.model, config.seq_len, name)
    begin = config.begin_token and source.begin_id is not None
    length, seed = config.seq_len, config.seed
    tokens = source.sequences(
        config.n_sequences, length, begin_token=begin, split="held_out", seed=seed
    )
    back, size = offset + 2 * shift, config.batch_size
    if short := _short_windows(variant.model, back):
        warn(short)
    (table,) = finders(variant.model, tokens, [offset], shift, batch_size=size, seed=seed)
    if table.empty:
        raise UserError(
            f"no head of {name} surely puts 0.1 of its attention more on the token {offset} back "
            f"than on that {back} back: choose another offset, or shift."
        )
    return table


def finders_in_text(
    model: HookedModel, text: Sequences, *, batch_size: int, seed: int
) -> dict[str, pd.DataFrame]:
    """What leads heads to the token before, and to their own, as a classification reads it.

    Args:
        model: a HookedTransformer or a bridge, in evaluation mode.
        text: `[sequence pos]`; the first of them are read, and of long ones the beginning.
        batch_size: sequences in a forward pass.
        seed: of the bootstrap.

    Returns:
        The table of `finders` for each token of `experiments.results.found_by.TOKENS`.

    Raises:
        UserError: as `finders`.
    """
    short, offsets = text[:MOST_TEXTS, :MOST_TOKENS], [*TOKENS.values()]
    found = finders(model, short, offsets, SHIFT, batch_size=batch_size, seed=seed)
    return dict(zip(TOKENS, found, strict=True))


def left_out_of_finders(model: HookedModel) -> str:
    """Which layers a classification does not ask, a sentence; "" where it asks all.

    Args:
        model: a HookedTransformer or a bridge.
    """
    unseen = [name for name, back in TOKENS.items() if not _far_seeing(model, back + 2 * SHIFT)]
    if len(unseen) == len(TOKENS):
        return ""  # that is refused, and told
    short = _short_windows(model, max(TOKENS.values()) + 2 * SHIFT)
    told = [*(f"no layer sees far enough for {name} tokens." for name in unseen), short]
    left_out = " ".join(filter(None, told))
    return left_out and f"How heads find their tokens was not read everywhere: {left_out}"


def finders(
    model: HookedModel,
    tokens: Sequences,
    offsets: Sequence[int],
    shift: int,
    *,
    batch_size: int,
    seed: int,
) -> list[pd.DataFrame]:
    """What leads heads to tokens so far back, in any sequences, by one forward pass.

    Layers that do not see so far back as `offset + 2 * shift` are left out.

    Args:
        model: a HookedTransformer or a bridge, in evaluation mode.
        tokens: `[sequence pos]`, at least two, whose texts differ.
        offsets: how far back the tokens stand.
        shift: how much earlier a query is taken from.
        batch_size: sequences in a forward pass.
        seed: of the bootstrap.

    Returns:
        For each offset one row for each head that surely puts 0.1 of its attention more there than
        on the token `2 * shift` further back, as `HeadsAsked.heads_find_by` describes it; the
        strongest first.

    Raises:
        UserError: for a single sequence, for too long ones, for a model without attention, and
            where no layer sees so far back.
    """
    check_attention(model)
    size = _batch(len(tokens), batch_size)
    at_once = partial(forward_bytes, model, min(size, len(tokens)))
    far = {offset: _far_seeing(model, offset + 2 * shift) for offset in offsets}
    if not any(far.values()):
        nearest = min(offsets) + 2 * shift
        raise UserError(f"no layer sees the token {nearest} back: give a smaller offset, or shift.")
    with all_queries_at_once(model):
        check_room("seq_len", tokens.shape[1], at_once, model)
        weights = _weights(model, tokens, far, shift, size)
    return [_table(weights, offset, far[offset], seed) for offset in offsets]


def _table(
    weights: Mapping[tuple[int, int, str], Weights], offset: int, layers: Sequence[int], seed: int
) -> pd.DataFrame:
    """The rows of heads that look at one token, by what each layer's queries found."""
    rows = []
    for layer in layers:
        for head in _looking(weights[offset, layer, _OWN], seed):
            of = [weights[offset, layer, whose][:, head] for whose in (_OWN, *_ELSEWHERE)]
            rows.append({"layer": layer, "head": head, **_finding(of, seed)})
    if not rows:
        return pd.DataFrame()
    best = pd.DataFrame(rows).sort_values("value", ascending=False, kind="stable")
    return best.reset_index(drop=True)


def _check(config: HeadsConfig, offset: int, shift: int) -> None:
    for name, given, least in (("offset", offset, 0), ("shift", shift, 1)):
        if not is_whole(given, least):
            raise UserError(f"{name} is {given!r}: give a whole number from {least}.")
    needed = offset + 2 * shift + 2
    if config.seq_len < needed:
        raise UserError(
            f"sequences of {config.seq_len} tokens are too short for a token {offset} back and "
            f"queries from {shift} earlier: give at least {needed} tokens, or a smaller shift."
        )


def _batch(n: int, wanted: int) -> int:
    """Sequences in a batch, so that none is alone in one: it would have no other text."""
    if n < 2:
        raise UserError("a single sequence has no other text beside it: give at least two.")
    return next(size for size in count(max(2, wanted)) if n % size != 1)


def _far_seeing(model: HookedModel, back: int) -> list[int]:
    """Layers whose queries see tokens so far back."""
    layers = layer_positions(model)
    seen = {layer: layers[layer].window for layer in attention_layers(model)}
    return [layer for layer, window in seen.items() if window is None or window > back]


def _short_windows(model: HookedModel, back: int) -> str:
    """Which layers do not see so far, where others do; a sentence, or ""."""
    far = _far_seeing(model, back)
    short = [layer for layer in attention_layers(model) if layer not in far]
    if not far or not short:
        return ""
    return f"windows of {layer_ranges(short)} end before the token {back} back; left out here."


def _taken(
    read: Float[Tensor, "batch pos d_model"], shift: int, other: bool
) -> Float[Tensor, "batch pos d_model"]:
    """What was read so much earlier, in the same text or in that before it in the batch; the first
    positions, which have nothing so much earlier, read what stands at the sequence's start."""
    source = read.roll(1, dims=0) if other else read
    places = (torch.arange(read.shape[1], device=read.device) - shift).clamp(min=0)
    return source[:, places]


def _weights(
    model: HookedModel,
    tokens: Sequences,
    far: Mapping[int, Sequence[int]],
    shift: int,
    batch_size: int,
) -> dict[tuple[int, int, str], Weights]:
    """The weights by offset, by layer and by whose queries, of the layers that see so far."""
    found = defaultdict[tuple[int, int, str], list[Weights]](list)

    def keep(pattern: AttentionMaps, layer: int, whose: str) -> None:
        for offset, layers in far.items():
            if layer in layers:
                found[offset, layer, whose].append(_on_places(pattern, offset, shift))

    layers = sorted(set().union(*far.values()))
    queries = {
        layer: {
            whose: partial(_queries_from, layer=layer, shift=shift, other=whose == _OTHER)
            for whose in _ELSEWHERE
        }
        for layer in layers
    }
    again = AttentionAgain(model, queries)
    listeners = {
        pattern_hook(layer): again.listener(
            partial(keep, layer=layer, whose=_OWN),
            {whose: partial(keep, layer=layer, whose=whose) for whose in _ELSEWHERE},
        )
        for layer in layers
    }
    with again.opened():
        stream(model, tokens, listeners, batch_size=batch_size)
    return {key: np.concatenate(parts) for key, parts in found.items()}


def _on_places(pattern: AttentionMaps, offset: int, shift: int) -> Weights:
    """The mean weight on each of the three tokens, over queries for which all of them stand behind
    the first token."""
    places = (offset, offset + shift, offset + 2 * shift)
    first = max(places) + 1
    at = [pattern.diagonal(-back, -2, -1)[..., first - back :] for back in places]
    means = reduce(torch.stack(at).float(), "offset b head query -> b head offset", "mean")
    return means.cpu().double().numpy()


@contextmanager
def _queries_from(model: HookedModel, layer: int, shift: int, other: bool) -> Iterator[None]:
    """While it is open, a layer's queries are made of what it reads elsewhere."""
    taken = partial(_taken, shift=shift, other=other)
    with read_changed(model, {layer: taken}, ("queries",)) as running:
        yield
    running.verify()


def _looking(weights: Weights, seed: int) -> list[int]:
    """Heads that surely put so much more on their target than on the reference token."""
    low, _ = SequenceBootstrap(seed=seed).update(weights[..., 0] - weights[..., 2]).interval()
    return [int(head) for head in np.flatnonzero(low >= WORTH_NAMING)]


def _finding(weights: Sequence[Float[np.ndarray, "sequence offset"]], seed: int) -> dict[str, Any]:
    """A head's row: its weight, and the shares by `experiments.results.found_by`."""
    columns = {
        (name, place): of[:, i]
        for name, of in zip(("own", "same", "other"), weights, strict=True)
        for i, place in enumerate(("here", "there", "reference"))
    }
    bootstrap = NamedBootstrap(columns, seed=seed)

    def more(text: str, place: str) -> ArrayFunction:
        return bootstrap.difference((text, place), (text, "reference"))

    own_here, own_there = more("own", "here"), more("own", "there")
    same_here, same_there = more("same", "here"), more("same", "there")
    other_here, other_there = more("other", "here"), more("other", "there")

    def told(function: ArrayFunction) -> Interval:
        score = bootstrap.score("share", function, chance=0.0)
        return score.value, score.ci_low, score.ci_high

    finding = Finding(
        any_query=told(
            lambda means: np.minimum(same_here(means), other_here(means)) / own_here(means)
        ),
        place=told(lambda means: (other_there(means) - own_there(means)) / own_here(means)),
        text=told(lambda means: (same_there(means) - other_there(means)) / own_here(means)),
    )
    value, low, high = told(bootstrap.mean(("own", "here")))
    return {"value": value, "ci_low": low, "ci_high": high, **finding.columns()}
