"""Which heads look at positions, which at content, and what is left of them without positions?

The model is read with its positions intact and with them taken away, its random-init variant with
them intact. Each of these cells of the run streams four kinds of tokens through the model, and is
written to disk when it is done.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from experiments.heads.cell import HeadCell, edge_rows
from experiments.heads.checks import check_chance_levels, n_heads
from experiments.heads.config import HeadsConfig
from experiments.heads.found_by import (
    MOST_TEXTS,
    MOST_TOKENS,
    finders_in_text,
    left_out_of_finders,
)
from experiments.heads.judged import edges_of, judged_by, rows_of_run
from experiments.heads.notes import notes_of
from experiments.heads.prompts import prompts_of
from experiments.heads.reading import read_cell
from experiments.heads.result import HeadClassification
from experiments.heads.rules import own_rules
from experiments.heads.tokens import HeadTokens, head_tokens
from experiments.probing.shards import Reader, read_once
from experiments.report.heads_page import CHANCE
from experiments.results.found_by import rows_of_finders
from experiments.results.measurements import INTACT, RANDOM_INIT, Row, table
from experiments.runs.cells import Cell
from experiments.runs.finished import Made
from experiments.runs.folder import RunFolder
from experiments.runs.timing import seconds_a_sequence
from experiments.variants.ablation import Ablation, ablation_of, check_ablation
from experiments.variants.checks import check_shards, check_shared_out
from experiments.variants.train import training_folder, trains_embedded
from experiments.variants.variants import ModelVariant, loaded_variant, random_init, variant_of
from experiments.variants.words import asked
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel, attention_layers
from nope_interp.models.transformer import HookedTransformer
from nope_interp.positions.conditions import parse_condition
from nope_interp.positions.layers import (
    describe_positions,
    layer_positions,
    rotary_frequencies,
)
from nope_interp.shapes import Sequences
from nope_interp.tasks.sources import Split, TextSource
from probes.heads.detectors import offset_chance

# For estimates: forward passes whose time a cell takes, as measured on Gemma 3 270M (SmolLM2 135M:
# 0.6), and how much more where layers are alone.
_PASSES, _ALONE = 1.5, 2.0

# What the cell is called in which layers run with queries of other places and texts.
_QUERIES = "other queries"


def classify_heads(
    config: HeadsConfig | str | Path | None = None,
    *,
    out: Path | str = "runs",
    device: str = "cpu",
    shards: int = 1,
    ray: str | None = None,
    show_progress: bool = True,
    **words: Any,
) -> HeadClassification:
    """Run the classification, or go on with one that was interrupted, or read one that is finished.

    Args:
        config: which model, what to ablate, how much to read, or just the model: a hub name, a
            folder, a GGUF file or our model.safetensors; by default the small model that
            ships with the package.
        out: the folder that run folders are made in.
        device: a torch device, or "auto" to spread a pretrained model over several.
        shards: into how many shares the sequences are cut, each read by a worker with a model of
            its own; see `experiments.probing.shards` for what that leaves as it is.
        ray: HOST:PORT of a running Ray cluster for the workers, of which this machine is part and
            whose machines share `out`; None has them here.
        show_progress: draw progress bars on standard error.
        words: values laid over `config`, by the words of the command line: `ablate="rotary"`,
            `seq_len=64`, `**{"transformer.n_layers": 2}`.

    Returns:
        The finished run: the table of heads, its measurements and report.

    Raises:
        UserError: for anything in `config` that cannot be done, an unwritable `out`, shards that
            the sequences or the device do not allow, a cluster that cannot be used, and activations
            that are not finite.
    """
    config = asked(HeadsConfig, config, words)
    check_shards(shards, ray, n_sequences=config.n_shareable, device=device)
    check_ablation(config)
    how: dict[str, Any] = {"n": shards, "ray": ray, "device": device}
    return read_once(
        HeadClassification, _Reader, config, out=out, show_progress=show_progress, **how
    )


def without_what_is_not_there(config: HeadsConfig, out: Path, device: str) -> HeadsConfig:
    """The same config, without an ablation of "all" positions where its model has none.

    It loads the model, but reads nothing, which takes longer.

    Args:
        config: with an ablation.
        out: the folder that run folders are made in; a finished run is not looked at again.
        device: as `classify_heads` takes it.

    Returns:
        The config to read the model by.

    Raises:
        UserError: with the model's name, where it lacks what is to be taken away.
    """
    assert config.ablate is not None
    if RunFolder.of(out, config).finished:
        return config
    if config.model is None:
        model: HookedModel = HookedTransformer(config.transformer)
    else:
        model = loaded_variant(config, device, needed={}).model
    everything = parse_condition(config.ablate).encoding == "all"
    try:
        encodings = {layer.encoding for layer in layer_positions(model)}
        if everything and encodings <= {"none", "recurrence"}:
            return replace(
                config, ablate=None, ablate_layers=None, ablate_heads=None, lift_window=False
            )
        with ablation_of(config).of(model):
            return config
    except UserError as error:
        own = "the shipped model" if trains_embedded(config) else "the model trained here"
        # Of the refusal its culprit alone: what would help one model is no remedy for several.
        why = str(error).partition(": ")[0]
        raise UserError(
            f"{config.model or own} cannot be read under {config.ablate!r} ({why}): leave this "
            "model out."
        ) from error


_INTACT = Ablation()


@dataclass(frozen=True)
class _Reader(Reader[HeadsConfig]):
    """Reads the model in question and its random-init variant, intact and ablated."""

    @property
    def notes(self) -> list[str]:
        """What a report has to say of the shards."""
        if self.shards.n == 1:
            return []
        return [
            *super().notes,
            "Confidences and kinds of dependence rest on resamples, and differ with these. Labels "
            "by fewer sequences, and settled_at, are of the first sequences in each shard.",
        ]

    def made(self) -> Made:
        config, rules = self.config, own_rules(self.config.rules)
        ablation = ablation_of(config)
        variant = self._variant()
        check_chance_levels(variant.model, config.seq_len, variant.name)
        with ablation.of(variant.model) as taken:
            # Entered before anything long is read, so that what cannot be ablated is known at once.
            name = None if taken is None else taken.name
            caveats = () if taken is None else taken.caveats(config.seq_len)
        tokens = head_tokens(variant, config)
        check_shared_out(self.shards.n, len(tokens.text))
        prompts = prompts_of(variant, config, tokens)
        self._announce(variant, name, tokens)
        cell = partial(self._cell, tokens)
        alone = ablation if name is not None else None
        found = {INTACT: cell(variant, INTACT, _INTACT, prompts, alone=alone, losses=True)}
        if name is not None:
            found[name] = cell(variant, name, ablation, prompts, losses=True)
        begin = bool(tokens.start)
        context = variant.context(config.experiment, config.seed, begin, tokens="")
        finders, unread = self._finders(variant, tokens.text, context | {"tokens": "text"})
        nulls, untrained = self._nulls(variant, cell, {INTACT: _INTACT, name: ablation})
        judged = {
            title: judged_by(of.scores, nulls[title].scores if nulls else None, rules)
            for title, of in found.items()
        }
        each = ablation.of_each_layer(layer_positions(variant.model)) if name else {}
        facts = {
            "model": variant.name,
            "positions": describe_positions(variant.model),
            "layer_positions": variant.position_table(),
            "ablation": name,
            "ablated": ablation.in_words,
            "each_layer_alone": bool(each),
            "own_rules": [vars(rule) for rule in rules],
            "prompts": [variant.token_strings(prompt) for prompt in prompts],
            "notes": [
                *self.notes,
                *variant.how_read,
                *notes_of(tokens, variant.model, ablation, each),
                *filter(None, [unread or left_out_of_finders(variant.model)]),
                *caveats,
            ],
            "finders_unread": unread,
            "left_out": config.left_out,
        }
        if config.model is None:
            facts["trained_model"] = training_folder(self.out, config).model_from(self.out)
        rows = [
            *rows_of_run(context, found, nulls, untrained, judged, ablation.heads, each),
            *edge_rows(edges_of(variant.model, judged[INTACT].labels), context),
        ]
        measurements = pd.concat([table(rows), finders], ignore_index=True)
        return Made(measurements, _arrays(config, variant.model, found), facts)

    def _announce(self, variant: ModelVariant, name: str | None, tokens: HeadTokens) -> None:
        """Say what will be read, and how long it should take by one pass of the model."""
        if not self.show_progress:
            return
        passes = _PASSES * tokens.n_read
        weights = {_title(variant.kind, INTACT, alone=name is not None): passes}
        if name is not None:
            weights[_title(variant.kind, INTACT, alone=True)] *= _ALONE
            weights[_title(variant.kind, name)] = passes
        for condition in (INTACT, name) if self._reads_untrained(variant.model) else ():
            if condition is not None:
                weights[_title(RANDOM_INIT, condition)] = passes
        if _finds_in_text(variant):
            read = min(len(tokens.text), MOST_TEXTS) * min(tokens.length, MOST_TOKENS)
            weights[_title(variant.kind, _QUERIES)] = _PASSES * read / tokens.length
        self.steps.plan(weights, seconds_a_sequence(variant.model, tokens.text))

    def _finders(
        self, variant: ModelVariant, text: Sequences, context: Row
    ) -> tuple[pd.DataFrame, str]:
        """Rows of what leads heads to their tokens in text, or a sentence on why there are none."""
        if not _finds_in_text(variant):
            return table([]), "How heads find their tokens is read in text, not in tasks."

        def read() -> Cell:
            size, seed = self.config.batch_size, self.config.seed
            try:
                found = finders_in_text(variant.model, text, batch_size=size, seed=seed)
            except UserError as error:
                raise _Unread(f"How heads find their tokens was not read: {error}") from error
            return Cell(table(rows_of_finders(found, min(len(text), MOST_TEXTS), context)))

        title = _title(variant.kind, _QUERIES)
        try:
            return self.cells.get(title, read).rows, ""
        except _Unread as error:
            self.steps.done(title, kept=True)
            return table([]), str(error)

    def _nulls(
        self,
        variant: ModelVariant,
        cell: Callable[..., HeadCell],
        conditions: Mapping[str | None, Ablation],
    ) -> tuple[dict[str, HeadCell], str]:
        """What the random-init variant shows under each condition, and what it is called."""
        if not self._reads_untrained(variant.model):
            return {}, ""
        # Where the model in question is untrained itself, the next draw of such weights.
        draw = int(self.config.random_init)
        untrained = random_init(variant, self.config.seed, draw=draw)
        named = {title: of for title, of in conditions.items() if title is not None}
        return {title: cell(untrained, title, of, []) for title, of in named.items()}, (
            untrained.kind
        )

    def _reads_untrained(self, model: HookedModel) -> bool:
        """Whether the random-init variant is read; a single head has no spread."""
        return not self.config.quick and n_heads(model) > 1

    def _variant(self) -> ModelVariant:
        config = self.config
        needed: dict[Split, int] = dict.fromkeys(("fit", "held_out"), config.n_shareable)
        variant = variant_of(config, self.out, self.device, self.show_progress, needed=needed)
        return random_init(variant, config.seed) if config.random_init else variant

    def _cell(
        self,
        tokens: HeadTokens,
        variant: ModelVariant,
        condition: str,
        ablation: Ablation,
        prompts: Sequence[Tensor],
        alone: Ablation | None = None,
        losses: bool = False,
    ) -> HeadCell:
        """What one variant shows under one condition, and where each layer alone is ablated.

        With the whole model ablated a head also loses what earlier heads no longer bring it.
        """
        title = _title(variant.kind, condition)
        kept = _title(variant.kind, condition, alone=alone is not None)
        read = partial(
            read_cell,
            variant.model,
            tokens=tokens,
            positions=ablation.seen(layer_positions(variant.model)),
            prompts=prompts,
            seed=self.config.seed,
            batch_size=self.config.batch_size,
            description=self.label(title),
            condition=ablation.of,
            alone=alone,
            losses=losses,
            shards=self.shards,
            spec=variant.spec,
        )
        return HeadCell.of_arrays(self.cells.arrays(kept, lambda: read().arrays()))


class _Unread(UserError):
    """What leads heads to their tokens cannot be read in this model; all else can."""


def _finds_in_text(variant: ModelVariant) -> bool:
    """Whether a model reads text: examples of a task have tokens in common, at the same places."""
    return isinstance(variant.sources[0], TextSource)


def _title(kind: str, condition: str, alone: bool = False) -> str:
    return f"{kind}/{condition}" + (" and each layer ablated" if alone else "")


def _arrays(
    config: HeadsConfig, model: HookedModel, cells: Mapping[str, HeadCell]
) -> dict[str, np.ndarray]:
    """What the figures draw."""
    layers, positions = attention_layers(model), layer_positions(model)
    n_tokens = cells[INTACT].scores[layers[0]].offset_profile.shape[1]
    # Windows beyond the sequences are no windows; layers that differ have no chance in common.
    windows = {min(positions[layer].window or n_tokens, n_tokens) for layer in layers}
    arrays = {}
    if len(windows) == 1 and not config.lift_window:
        arrays[f"offset_profile/{CHANCE}"] = offset_chance(n_tokens, windows.pop())
    for title, cell in cells.items():
        profiles = [layer.offset_profile for layer in cell.scores.values()]
        arrays[f"offset_profile/{title}"] = np.stack(profiles)
        arrays |= {f"pattern/{title}/{i}": pattern for i, pattern in enumerate(cell.patterns)}
    frequencies = cells[INTACT].frequencies
    arrays |= {f"frequency/{name}": array for name, array in frequencies.items()}
    if frequencies:
        radians = np.full((len(layers), frequencies["query_norm"].shape[-1]), np.nan)
        for row, layer in enumerate(layers):
            found = rotary_frequencies(model, layer)
            if found is not None:
                radians[row, : len(found)] = found.cpu().numpy()
        arrays["frequency/radians_per_token"] = radians
    return arrays
