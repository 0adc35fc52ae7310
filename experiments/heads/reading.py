"""One reading of a model's heads: every detector at every layer, losses, frequencies, patterns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from tqdm import tqdm

from experiments.heads.tokens import HeadTokens
from experiments.results.measurements import read_arrays, write_arrays
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.models.losses import sequence_losses, unigram_losses
from nope_interp.positions.layers import LayerPositions
from nope_interp.streams import Listener, firing_hooks, one_thread_pool, stream
from probes.bootstrap import SequenceBootstrap
from probes.heads.detectors import METRICS, HeadProbe, HeadScores
from probes.heads.frequencies import FrequencyUsage
from probes.scores import Score


@dataclass(frozen=True)
class HeadCell:
    """What one variant of a model, under one condition, showed.

    Attributes:
        scores: one `HeadScores` for each layer.
        frequencies: "query_norm" and "key_norm" `[layer head freq]` and "high_share"
            `[layer head (value, ci_low, ci_high, chance)]`, NaN in layers that do not rotate; empty
            where none does.
        loss: next-token loss on the text, in nats; chance is that of knowing how often each token
            occurs and nothing of the context.
        patterns: attention on each prompt, `[layer head query key]`.
    """

    scores: list[HeadScores]
    frequencies: dict[str, np.ndarray]
    loss: Score
    patterns: list[np.ndarray]


def read_cell(
    model: HookedModel,
    tokens: HeadTokens,
    positions: Sequence[LayerPositions],
    prompts: Sequence[Int[Tensor, " pos"]],
    *,
    seed: int,
    batch_size: int,
    description: str | None,
) -> HeadCell:
    """Stream every kind of tokens through the model once.

    `positions` say which layers rotate and how far each sees. The same `tokens` and `seed` give
    readings whose bootstrap replicates are paired.
    """
    readers = head_readers(positions, seed)
    read(model, tokens, readers, batch_size=batch_size, description=description)
    judge(model, tokens, readers.probes, batch_size=batch_size, description=description)
    return cell_of(model, tokens, readers, prompts, seed)


@dataclass
class HeadReaders:
    """What becomes a `HeadCell`: the probe of every layer, of those that rotate how they use their
    frequencies, and the losses of the sequences of text."""

    probes: list[HeadProbe]
    usages: dict[int, FrequencyUsage]
    losses: Float[Tensor, " sequence"]

    def merge(self, other: "HeadReaders") -> None:
        """Adds what `other` read, of later sequences."""
        for probe, theirs in zip(self.probes, other.probes, strict=True):
            probe.merge(theirs)
        for layer, usage in self.usages.items():
            usage.merge(other.usages[layer])
        self.losses = torch.cat([self.losses, other.losses])


def head_readers(positions: Sequence[LayerPositions], seed: int) -> HeadReaders:
    """Readers that have read nothing yet."""
    return HeadReaders(
        [HeadProbe(seed, window=layer.window) for layer in positions],
        {
            layer.layer: FrequencyUsage(layer.rotary_dims, seed=seed)
            for layer in positions
            if layer.rotary_dims is not None
        },
        torch.empty(0),
    )


def read(
    model: HookedModel,
    tokens: HeadTokens,
    readers: HeadReaders,
    *,
    batch_size: int,
    description: str | None = None,
) -> None:
    """Give the readers every kind of tokens but the held-out scores, which `judge` is for."""
    probes = readers.probes
    run = partial(_stream, model, batch_size=batch_size, description=description)
    run(
        tokens.text,
        _on_patterns(probes, _text_reader)
        | on_rotated(model, {layer: usage.update for layer, usage in readers.usages.items()}),
        "text",
    )
    run(tokens.repeated, _on_patterns(probes, partial(_repeated_reader, tokens)), "repeated tokens")
    run(
        tokens.copies,
        _on_patterns(probes, lambda probe: partial(probe.read_copies, start=tokens.start)),
        "copies",
    )
    label = description and f"{description}, fit of scores"
    _stream_scores(model, tokens.alphabet_fit, probes, batch_size, label, held_out=False)
    readers.losses = sequence_losses(model, tokens.text)


def judge(
    model: HookedModel,
    tokens: HeadTokens,
    probes: Sequence[HeadProbe],
    *,
    batch_size: int,
    description: str | None = None,
) -> None:
    """Judge held-out scores by what `read` has fitted."""
    label = description and f"{description}, scores"
    _stream_scores(model, tokens.alphabet_held_out, probes, batch_size, label, held_out=True)


def cell_of(
    model: HookedModel,
    tokens: HeadTokens,
    readers: HeadReaders,
    prompts: Sequence[Int[Tensor, " pos"]],
    seed: int,
) -> HeadCell:
    """What came out, once all is read and judged; `model` is run on the prompts."""
    with one_thread_pool():
        scores = [probe.result() for probe in readers.probes]
    return HeadCell(
        scores=scores,
        frequencies=_frequencies(readers.usages, len(scores), model.cfg.n_heads),
        loss=_loss(readers.losses, tokens, model.cfg.d_vocab, seed),
        patterns=[_patterns(model, prompt) for prompt in prompts],
    )


def read_layer(
    model: HookedModel,
    layer: LayerPositions,
    tokens: HeadTokens,
    *,
    seed: int,
    batch_size: int,
) -> HeadScores:
    """One layer's scores on text and repeated tokens; passes end there.

    With the same `seed` and `batch_size` they are paired with those of `read_cell`.
    """
    probe = layer_probe(model, layer, tokens, seed=seed, batch_size=batch_size)
    with one_thread_pool():
        return probe.result()


def layer_probe(
    model: HookedModel,
    layer: LayerPositions,
    tokens: HeadTokens,
    *,
    seed: int,
    batch_size: int,
) -> HeadProbe:
    """The probe behind `read_layer`."""
    probe, hook = HeadProbe(seed, window=layer.window), f"blocks.{layer.layer}.attn.hook_pattern"
    for sequences, reader in (
        (tokens.text, _text_reader(probe)),
        (tokens.repeated, _repeated_reader(tokens, probe)),
    ):
        stream(
            model,
            sequences,
            {hook: reader},
            batch_size=batch_size,
            until=hook,
        )
    return probe


def _text_reader(probe: HeadProbe) -> Listener:
    return probe.read_text


def _repeated_reader(tokens: HeadTokens, probe: HeadProbe) -> Listener:
    return partial(probe.read_repeated, period=tokens.period, start=tokens.start)


def _stream_scores(
    model: HookedModel,
    alphabet: Int[Tensor, "sequence pos"],
    probes: Sequence[HeadProbe],
    batch_size: int,
    label: str | None,
    *,
    held_out: bool,
) -> None:
    site = _scores_site(model, alphabet[:1])
    bar = tqdm(alphabet.split(batch_size), desc=label, disable=label is None, leave=False)
    # A hook does not see its tokens, which the scores are read with: one batch after another.
    for batch in bar:
        listeners = {
            f"blocks.{layer}.attn.{site}": partial(
                _read_scores, probe, tokens=batch, held_out=held_out, site=site
            )
            for layer, probe in enumerate(probes)
        }
        stream(model, batch, listeners, batch_size=batch_size)


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
    names = ("hook_attn_scores", "hook_pattern")
    listeners = {f"blocks.0.attn.{name}": partial(seen.__setitem__, name) for name in names}
    stream(model, tokens, listeners)
    scores, pattern = (seen[name] for name in names)
    return "hook_pattern" if torch.equal(scores, pattern) else "hook_attn_scores"


def _stream(
    model: HookedModel,
    tokens: Tensor,
    listeners: Mapping[str, Listener],
    kind: str,
    *,
    batch_size: int,
    description: str | None,
) -> None:
    label = description and f"{description}, {kind}"
    stream(model, tokens, listeners, batch_size=batch_size, description=label)


def _on_patterns(
    probes: Sequence[HeadProbe], reader: Callable[[HeadProbe], Listener]
) -> dict[str, Listener]:
    return {
        f"blocks.{layer}.attn.hook_pattern": reader(probe) for layer, probe in enumerate(probes)
    }


def on_rotated(
    model: HookedModel, readers: Mapping[int, Callable[[Tensor, Tensor], None]]
) -> dict[str, Listener]:
    """Listeners that bring each rotating layer's queries and keys together, for its reader.

    They come after norms of queries and keys: after the rotation where the model shows it there,
    else before, as their norms are the same.
    """
    after = {layer: f"blocks.{layer}.attn.hook_rot_" for layer in readers}
    names = [f"{stem}{of}" for stem in after.values() for of in "qk"]
    firing = firing_hooks(model, names, torch.zeros(1, 2, dtype=torch.long))
    listeners: dict[str, Listener] = {}
    for layer, reader in readers.items():
        stem = after[layer] if f"{after[layer]}q" in firing else f"blocks.{layer}.attn.hook_"
        held: list[Tensor] = []
        listeners[f"{stem}q"] = held.append
        listeners[f"{stem}k"] = partial(_meet, reader, held)
    return listeners


def _meet(reader: Callable[[Tensor, Tensor], None], held: list[Tensor], keys: Tensor) -> None:
    reader(held.pop(), keys)


def _frequencies(
    usages: Mapping[int, FrequencyUsage], n_layers: int, n_heads: int
) -> dict[str, np.ndarray]:
    if not usages:
        return {}
    widest = max(usage.rotated for usage in usages.values()) // 2
    found = {name: np.full((n_layers, n_heads, widest), np.nan) for name in ("query", "key")}
    high = np.full((n_layers, n_heads, 4), np.nan)
    for layer, usage in usages.items():
        n = usage.rotated // 2
        found["query"][layer, :, :n] = usage.query_norm()
        found["key"][layer, :, :n] = usage.key_norm()
        high[layer] = [
            (s.value, s.ci_low, s.ci_high, s.chance) for s in usage.high_frequency_share()
        ]
    return {"query_norm": found["query"], "key_norm": found["key"], "high_share": high}


def _loss(losses: Float[Tensor, " sequence"], tokens: HeadTokens, d_vocab: int, seed: int) -> Score:
    bootstrap = SequenceBootstrap(seed=seed)
    bootstrap.update(rearrange(losses, "sequence -> sequence 1"))
    unigram = unigram_losses(tokens.text_before, tokens.text, d_vocab)
    return bootstrap.score("loss", lambda means: means[:, 0], chance=float(unigram.mean()))


def _patterns(model: HookedModel, prompt: Int[Tensor, " pos"]) -> np.ndarray:
    """Attention of every head on one prompt, in half precision: it is only looked at."""
    layers: dict[int, np.ndarray] = {}

    def keep(pattern: Tensor, layer: int) -> None:
        layers[layer] = pattern[0].to(torch.float16).cpu().numpy()

    listeners = {
        f"blocks.{layer}.attn.hook_pattern": partial(keep, layer=layer)
        for layer in range(model.cfg.n_layers)
    }
    stream(model, rearrange(prompt, "pos -> 1 pos"), listeners)
    return np.stack([layers[layer] for layer in sorted(layers)])


_SCORE_ARRAYS = [f.name for f in fields(HeadScores) if f.name != "metrics"]
_LOSS_NUMBERS = ("value", "ci_low", "ci_high", "chance", "n")


def write_cell(cell: HeadCell, path: Path) -> None:
    """Keep a cell for a run that goes on later, or for its classification."""
    arrays = {
        f"scores/{name}": np.stack([getattr(layer, name) for layer in cell.scores])
        for name in _SCORE_ARRAYS
    }
    arrays |= {f"frequencies/{name}": array for name, array in cell.frequencies.items()}
    arrays |= {f"patterns/{i:03}": pattern for i, pattern in enumerate(cell.patterns)}
    arrays["loss"] = np.array([getattr(cell.loss, name) for name in _LOSS_NUMBERS], dtype=float)
    write_arrays(arrays, path)


def load_cell(path: Path) -> HeadCell | None:
    """What `write_cell` wrote; None where it is missing or damaged, so that it is read again."""
    try:
        return _read_cell_file(path)
    except (UserError, KeyError, ValueError, TypeError):
        return None


def _read_cell_file(path: Path) -> HeadCell:
    arrays = read_arrays(path)
    value, low, high, chance, n = arrays["loss"].tolist()
    n_layers = len(arrays["scores/value"])
    return HeadCell(
        scores=[
            HeadScores(METRICS, **{name: arrays[f"scores/{name}"][i] for name in _SCORE_ARRAYS})
            for i in range(n_layers)
        ],
        frequencies=_under(arrays, "frequencies/"),
        loss=Score("loss", value, low, high, chance, int(n)),
        patterns=list(_under(arrays, "patterns/").values()),
    )


def _under(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {
        key.removeprefix(prefix): array
        for key, array in sorted(arrays.items())
        if key.startswith(prefix)
    }
