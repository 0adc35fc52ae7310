"""One reading of a model's heads: every detector at every layer, losses, frequencies, patterns."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from experiments.heads.cell import HeadCell
from experiments.heads.checks import check_attention
from experiments.heads.rotated import on_rotated
from experiments.heads.tokens import HeadTokens
from experiments.probing.shards import ONE_SHARD, Condition, Shards, cut, shard_seed
from experiments.variants.ablation import Ablation
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel, attention_layers
from nope_interp.interventions.again import AttentionAgain
from nope_interp.models.losses import sequence_losses, unigram_losses
from nope_interp.positions.layers import LayerPositions, layer_positions
from nope_interp.pretrained.spec import ModelSpec
from nope_interp.progress import progress
from nope_interp.sites import pattern_hook
from nope_interp.streams import Listener, stream
from nope_interp.threads import one_thread_pool
from probes.bootstrap import SequenceBootstrap
from probes.heads.detectors import HeadProbe
from probes.heads.frequencies import FrequencyUsage
from probes.scores import Score

# What a layer's attention is under when it runs again, with no other layer ablated.
_ALONE = "ablated alone"


def read_cell(
    model: HookedModel,
    tokens: HeadTokens,
    positions: Sequence[LayerPositions],
    prompts: Sequence[Int[Tensor, " _pos"]] = (),
    *,
    seed: int,
    batch_size: int,
    description: str | None = None,
    condition: Condition = nullcontext,
    alone: Ablation | None = None,
    losses: bool = True,
    shards: Shards = ONE_SHARD,
    spec: ModelSpec | None = None,
) -> HeadCell:
    """Stream every kind of tokens through the model once.

    The same `tokens`, `seed` and number of shards give readings whose bootstrap replicates are
    paired.

    Args:
        model: a HookedTransformer or a bridge, in evaluation mode.
        tokens: every kind of them.
        positions: which layers rotate, and how far each sees.
        prompts: texts whose attention patterns are kept.
        seed: of resamples.
        batch_size: sequences in a forward pass.
        description: label of the progress bars; None draws none.
        condition: what the model is under while it is read.
        alone: what each layer is read under once more, on text and repeated tokens, with no other
            layer ablated; None for nothing. `condition` then leaves the model intact.
        losses: whether the losses on text are computed, which take as long as the layers where the
            vocabulary is large.
        shards: who reads the sequences.
        spec: how workers make the model; see `Shards.map`.

    Raises UserError as `stream` and `check_attention` do, and where a worker dies.
    """
    check_attention(model)
    run = partial(shards.map, model=model, spec=spec, condition=condition)
    parts = _parts(tokens, seed, shards.n)
    attending = [positions[layer] for layer in attention_layers(model)]
    to_read = [(part, HeadReaders.of(attending, own, alone)) for part, own in parts]
    read = partial(_read, batch_size=batch_size, alone=alone, losses=losses)
    readers, *rest = run(read, shares=to_read, description=description)
    for others in rest:
        readers.merge(others)
    # Copies of what was fitted, or for the only share the probes themselves.
    to_judge = [
        (
            part,
            {
                layer: probe if shards.n == 1 else probe.for_shard(own)
                for layer, probe in readers.probes.items()
            },
        )
        for part, own in parts
    ]
    judge = partial(_stream_scores, batch_size=batch_size, held_out=True)
    label = description and f"{description}, scores"
    for judged in run(judge, shares=to_judge, description=label):
        for layer, probe in readers.probes.items():
            if judged[layer] is not probe:
                probe.merge(judged[layer])
    with one_thread_pool():
        scores = {layer: probe.result() for layer, probe in readers.probes.items()}
        scores_alone = {
            layer: readers.alone[layer].result() if layer in readers.alone else intact
            for layer, intact in scores.items()
        }
    with condition(model):
        patterns = [_patterns(model, prompt) for prompt in prompts]
    return HeadCell(
        scores=scores,
        frequencies=_frequencies(readers.usages, [*scores], model.cfg.n_heads),
        loss=_loss(readers.losses, tokens, model.cfg.d_vocab, seed) if losses else None,
        patterns=patterns,
        alone=scores_alone if readers.alone else {},
        n_layers=model.cfg.n_layers,
    )


@dataclass
class HeadReaders:
    """What becomes a `HeadCell`: the probe of every layer with attention, of those that rotate how
    they use their frequencies, the probes of layers that are ablated alone, and the losses on
    text."""

    probes: dict[int, HeadProbe]
    alone: dict[int, HeadProbe]
    usages: dict[int, FrequencyUsage]
    losses: Float[Tensor, " sequence"]

    @classmethod
    def of(
        cls, positions: Sequence[LayerPositions], seed: int, alone: Ablation | None = None
    ) -> "HeadReaders":
        """Readers that have read nothing yet, of these layers, and of those ablated alone too."""
        usages = {
            layer.layer: FrequencyUsage(layer.rotary_dims, seed=seed)
            for layer in positions
            if layer.rotary_dims is not None and layer.keys_of is None
        }
        probes = {at.layer: HeadProbe(seed, window=at.window) for at in positions}
        each = {} if alone is None else alone.of_each_layer(positions)
        ablated = {
            seen.layer: HeadProbe(seed, window=seen.window)
            for at in positions
            if at.layer in each
            for seen in each[at.layer].seen([at])
        }
        return cls(probes, ablated, usages, torch.empty(0))

    def merge(self, other: "HeadReaders") -> None:
        """Adds what `other` read, of later sequences."""
        for layer, probe in self.probes.items():
            probe.merge(other.probes[layer])
        for layer, usage in self.usages.items():
            usage.merge(other.usages[layer])
        for layer, probe in self.alone.items():
            probe.merge(other.alone[layer])
        self.losses = torch.cat([self.losses, other.losses])


def _read(
    model: HookedModel,
    share: tuple[HeadTokens, HeadReaders],
    description: str | None,
    *,
    batch_size: int,
    alone: Ablation | None,
    losses: bool,
) -> HeadReaders:
    """Give the readers every kind of tokens but the held-out scores, which are judged by them."""
    tokens, readers = share

    def how(kind: str, **further: Any) -> dict[str, Any]:
        label = description and f"{description}, {kind}"
        return {"batch_size": batch_size, "description": label, "in_blocks": True, **further}

    conditions = {} if alone is None else alone.of_each_layer(layer_positions(model))
    twice = AttentionAgain(model, {layer: {_ALONE: of.of} for layer, of in conditions.items()})
    text, repeated = _listeners(model, tokens, readers, twice)
    copies: dict[str, Listener] = {
        pattern_hook(layer): partial(probe.read_copies, start=tokens.start, length=tokens.length)
        for layer, probe in readers.probes.items()
    }
    last = pattern_hook(max(readers.probes))
    # A layer that is ablated alone runs once more after it has run.
    first = None if readers.alone else last
    with twice.opened():
        if losses:
            readers.losses = sequence_losses(model, tokens.text, listeners=text, **how("text"))
        else:
            stream(model, tokens.text, text, **how("text", until=first))
        stream(model, tokens.repeated, repeated, **how("repeated tokens", until=first))
    stream(model, tokens.copies, copies, **how("copies", until=last))
    label = description and f"{description}, fit of scores"
    _stream_scores(model, (tokens, readers.probes), label, batch_size=batch_size, held_out=False)
    return readers


def _listeners(
    model: HookedModel, tokens: HeadTokens, readers: HeadReaders, twice: AttentionAgain
) -> tuple[dict[str, Listener], dict[str, Listener]]:
    """Those on text, and those on repeated tokens."""
    rotated = on_rotated(model, {layer: usage.update for layer, usage in readers.usages.items()})
    text = {hook: twice.listener(listener) for hook, listener in rotated.items()}
    repeated: dict[str, Listener] = {}
    for layer, probe in readers.probes.items():
        hook, ablated = pattern_hook(layer), readers.alone.get(layer)
        text[hook], repeated[hook] = _text_reader(tokens, probe), _repeated_reader(tokens, probe)
        if ablated is not None:
            text[hook] = twice.listener(text[hook], {_ALONE: _text_reader(tokens, ablated)})
            again = {_ALONE: _repeated_reader(tokens, ablated)}
            repeated[hook] = twice.listener(repeated[hook], again)
    return text, repeated


def _parts(tokens: HeadTokens, seed: int, n: int) -> list[tuple[HeadTokens, int]]:
    """Every kind of tokens cut into n shares, each with its seed."""
    kinds: dict[str, list[Any]] = {
        name: [part for _, part in cut(sequences, n)]
        for name, sequences in vars(tokens).items()
        if isinstance(sequences, Tensor)
    }
    return [
        (
            replace(tokens, **{name: parts[shard] for name, parts in kinds.items()}),
            shard_seed(seed, shard),
        )
        for shard in range(n)
    ]


def _text_reader(tokens: HeadTokens, probe: HeadProbe) -> Listener:
    return partial(probe.read_text, length=tokens.length)


def _repeated_reader(tokens: HeadTokens, probe: HeadProbe) -> Listener:
    length = tokens.repeated.shape[1]
    return partial(probe.read_repeated, period=tokens.period, start=tokens.start, length=length)


def _stream_scores(
    model: HookedModel,
    share: tuple[HeadTokens, dict[int, HeadProbe]],
    description: str | None,
    *,
    batch_size: int,
    held_out: bool,
) -> dict[int, HeadProbe]:
    """Let probes fit scores of the small alphabet, or judge held-out ones by what was fitted."""
    tokens, probes = share
    alphabet = tokens.alphabet_held_out if held_out else tokens.alphabet_fit
    site = _scores_site(model, alphabet[:1, :2])
    if site == "hook_pattern" and next(model.parameters()).dtype == torch.float16:
        raise UserError(
            "in float16 small attention weights become 0, and this model shows no scores beside "
            "them: read it in float32 or bfloat16 (--dtype)."
        )
    batches = alphabet.split(batch_size)
    # A hook does not see its tokens, which the scores are read with: one batch after another.
    for batch in progress(batches, description, "batch"):
        how = {"tokens": batch, "held_out": held_out, "site": site}
        listeners = {
            f"blocks.{layer}.attn.{site}": partial(_read_scores, probe, **how)
            for layer, probe in probes.items()
        }
        last = f"blocks.{max(probes)}.attn.{site}"
        stream(model, batch, listeners, batch_size=batch_size, in_blocks=True, until=last)
    return probes


def _read_scores(
    probe: HeadProbe, scores: Tensor, *, tokens: Tensor, held_out: bool, site: str
) -> None:
    if site == "hook_pattern":
        # The logarithm of a row's weights is its scores but for a constant, which does not count.
        scores = scores.clamp_min(torch.finfo(scores.dtype).tiny).log()
    # A first token serves as attention sink even where it is no begin token: never a key here.
    probe.read_scores(scores, tokens, held_out=held_out, start=1)


def _scores_site(model: HookedModel, tokens: Int[Tensor, "batch pos"]) -> str:
    """Where scores can be read: at `hook_pattern` where a bridge has its weights at both hooks.

    TransformerLens's bridges for OPT and GPT-Neo leave attention to the wrapped model, which gives
    back no scores.
    """
    seen: dict[str, Tensor] = {}
    names, first = ("hook_attn_scores", "hook_pattern"), attention_layers(model)[0]
    listeners = {f"blocks.{first}.attn.{name}": partial(seen.__setitem__, name) for name in names}
    stream(model, tokens, listeners)
    scores, pattern = (seen[name] for name in names)
    return "hook_pattern" if torch.equal(scores, pattern) else "hook_attn_scores"


def _frequencies(
    usages: Mapping[int, FrequencyUsage], layers: Sequence[int], n_heads: int
) -> dict[str, np.ndarray]:
    if not usages:
        return {}
    widest = max(usage.rotated for usage in usages.values()) // 2
    sizes = {"query_norm": widest, "key_norm": widest, "high_share": 4}
    found = {name: np.full((len(layers), n_heads, size), np.nan) for name, size in sizes.items()}
    for layer, usage in usages.items():
        row, n = layers.index(layer), usage.rotated // 2
        found["query_norm"][row, :, :n] = usage.query_norm()
        found["key_norm"][row, :, :n] = usage.key_norm()
        found["high_share"][row] = [
            (s.value, s.ci_low, s.ci_high, s.chance) for s in usage.high_frequency_share()
        ]
    return found


def _loss(losses: Float[Tensor, " sequence"], tokens: HeadTokens, d_vocab: int, seed: int) -> Score:
    bootstrap = SequenceBootstrap(seed=seed).update(rearrange(losses, "sequence -> sequence 1"))
    unigram = unigram_losses(tokens.text_before, tokens.text, d_vocab)
    return bootstrap.score("loss", lambda means: means[:, 0], chance=float(unigram.mean()))


def _patterns(model: HookedModel, prompt: Int[Tensor, " pos"]) -> np.ndarray:
    """Attention of every head on one prompt, in half precision: it is only looked at."""
    found: dict[int, np.ndarray] = {}

    def keep(pattern: Tensor, layer: int) -> None:
        found[layer] = pattern[0].to(torch.float16).cpu().numpy()

    layers = attention_layers(model)
    listeners = {pattern_hook(layer): partial(keep, layer=layer) for layer in layers}
    last = pattern_hook(layers[-1])
    stream(model, rearrange(prompt, "pos -> 1 pos"), listeners, until=last)
    return np.stack([found[layer] for layer in layers])
