"""The main job: which hypothesis explains how this model knows where it is?

One model as it is, its random-init variant and, where the weights are ours, its bidirectional one
are each read on text and on uniform random tokens, with and without a begin token. That makes the
cells of the run; each is one stream through the model, and is written to disk when it is done.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from experiments.codes.ablation import site_by_site, statistics_at, through_the_stream
from experiments.codes.shift import shift_rows
from experiments.codes.task import InterventionTask, check_enough_to_fit, intervention_task_of
from experiments.comparison.config import CompareConfig
from experiments.comparison.example import LONGEST, example_arrays
from experiments.comparison.result import Comparison
from experiments.emergence.history import history_rows
from experiments.probing.measure import Site, Split, measure, sites
from experiments.probing.shards import Shards, note_on, read_once
from experiments.results.measurements import FIRST_POSITION, INTACT, table
from experiments.runs.cells import Cell, Cells
from experiments.runs.finished import Made
from experiments.variants.ablation import Ablation
from experiments.variants.checks import check_shards
from experiments.variants.train import training_folder
from experiments.variants.variants import ModelVariant, bidirectional, random_init, variant_of
from experiments.variants.words import asked
from nope_interp.models.transformer import HookedTransformer
from probes.codes.statistics import CodeStatistics

_FRAME = (
    "Where codes are taken away, all examples of a task have one length. The frame, tokens that "
    "they share, is left as it is and not scored: its mean activation tells a token as well as a "
    "position. At other positions the mean may still depend on the frame."
)


def compare(
    config: CompareConfig | str | Path | None = None,
    *,
    out: Path | str = "runs",
    device: str = "cpu",
    shards: int = 1,
    ray: str | None = None,
    show_progress: bool = True,
    **words: Any,
) -> Comparison:
    """Run the comparison, or go on with one that was interrupted, or read one that is finished.

    Args:
        config: which model, which tokens, how many, or just the model: a hub name, a folder, a GGUF
            file or our model.safetensors; by default the embedded small model is trained.
        out: the folder that run folders are made in.
        device: a torch device, or "auto" to spread a pretrained model over several.
        shards: into how many shares the sequences are cut, each read by a worker with a model of
            its own; see `experiments.probing.shards` for what that leaves as it is.
        ray: HOST:PORT of a running Ray cluster for the workers, of which this machine is part and
            whose machines share `out`; None has them here.
        show_progress: draw progress bars on standard error.
        words: values laid over `config`, by the words of the command line: `ablate="rotary"`,
            `seq_len=64`, `**{"transformer.n_layers": 2}`.

    Raises UserError for anything in `config` that cannot be done, an unwritable `out`, shards that
    the sequences or the device do not allow, a cluster that cannot be used, and activations that
    are not finite.
    """
    config = asked(CompareConfig, config, words)
    check_shards(shards, ray, n_sequences=config.n_shareable, device=device)
    _ablation(config).check(config)
    if config.model is None:
        sites(config.transformer.n_layers, config.sites, config.layers)  # refuses others
        check_enough_to_fit(config, config.transformer.d_model, config.seq_len - FIRST_POSITION)

    def read(folder: Path, cells: Cells, readers: Shards) -> Made:
        return _Reader(config, folder, show_progress, readers).read(cells, device)

    return read_once(Comparison, config, out, read, n=shards, ray=ray, device=device)


def _ablation(config: CompareConfig) -> Ablation:
    return Ablation(config.ablate, seed=config.seed)


@dataclass(frozen=True)
class _Condition:
    """The tokens that a variant is read on."""

    source: Any
    begin_token: bool

    def key(self, variant: str) -> str:
        return f"{variant}/{self.source.name}/{'begin' if self.begin_token else 'nobegin'}"


def _conditions(variant: ModelVariant) -> Iterator[_Condition]:
    for source in variant.sources:
        yield _Condition(source, begin_token=False)
        if source.begin_id is not None:
            yield _Condition(source, begin_token=True)


@dataclass(frozen=True)
class _Reader:
    """Reads every variant under every condition.

    Attributes:
        config: what is read.
        out: the folder of the folder of the run, where the model that it trains is kept.
        show_progress: draw progress bars on standard error.
        shards: who reads the sequences.
    """

    config: CompareConfig
    out: Path
    show_progress: bool
    shards: Shards

    def read(self, cells: Cells, device: str) -> Made:
        config = self.config
        notes = [*note_on(self.shards)]
        if config.code_ablation != "no" and config.task != "text":
            notes.append(_FRAME)
        facts: dict[str, Any] = {}
        for variant in self._variants(device):
            facts |= {"model": variant.name, "positions": variant.positions}
            facts["n_layers"] = variant.n_layers
            notes += variant.notes
            with _ablation(config).of(variant.model) as ablation:
                # Entered before anything long is read: what cannot be ablated is known at once.
                if ablation is not None:
                    facts["model"] += f", {ablation.name}"
                    facts["positions"] = ablation.name
                    notes += ablation.caveats(config.seq_len)
            facts["example_tokens"] = self._read_variant(variant, cells)
        # What holds of every variant is said once.
        facts["notes"] = list(dict.fromkeys(notes))
        if config.model is None:
            facts["trained_model"] = training_folder(self.out, config).model_from(self.out)
        found = cells.gathered()
        return Made(found.rows, found.arrays, facts)

    def _variants(self, device: str) -> Iterator[ModelVariant]:
        """The model in question, then its random-init variant, then, where it can have one, its
        bidirectional variant; each is made when it is its turn."""
        config = self.config
        variant = variant_of(
            config,
            self.out,
            device,
            self.show_progress,
            needed={"fit": config.n_fit, "held_out": config.n_held_out},
            keep_history=config.history,
        )
        yield variant
        if not config.twins:
            return
        yield random_init(variant, config.seed)
        if isinstance(variant.model, HookedTransformer) and variant.model.config.causal:
            yield bidirectional(variant)

    def _read_variant(self, variant: ModelVariant, cells: Cells) -> list[str]:
        """Read one variant under all conditions; the tokens of the example, as strings."""
        config = self.config
        first, *others = _conditions(variant)
        example = _example(config, first)
        # An untrained variant uses nothing, and what an unmasked one loses says nothing.
        ablated = config.code_ablation != "no" and variant.kind in ("trained", "pretrained")
        task = intervention_task_of(config, variant) if ablated else None
        statistics: dict[Site, CodeStatistics] = {}
        for condition in (first, *others):
            drawn = example if condition is first else None
            fitted = statistics if self._streams_the_fit_of(task, condition) else None
            measured = partial(self._measured, variant, condition, drawn, fitted)
            cells.get(condition.key(variant.kind), measured)
        if task is not None:
            cells.get("uses", partial(self._uses, variant, task, statistics))
        if config.history and variant.kind == "trained":
            cells.get("history", partial(self._history, variant))
        return variant.token_strings(example)

    def _streams_the_fit_of(self, task: InterventionTask | None, condition: _Condition) -> bool:
        """Whether the stream of a condition's sequences to fit probes on can also fit
        interventions at single sites."""
        # Shares would be added up in another order, which a control of a small change magnifies.
        if self.shards.n > 1:
            return False
        if task is None or not task.whole or self.config.code_ablation != "sites":
            return False
        return torch.equal(_split(self.config, condition).fit, task.split.fit)

    def _sites(self, variant: ModelVariant) -> list[Site]:
        return sites(variant.n_layers, self.config.sites, self.config.layers)

    def _context(self, variant: ModelVariant, **more: Any) -> dict[str, Any]:
        return variant.context(self.config.experiment, self.config.seed, **more)

    def _measured(
        self,
        variant: ModelVariant,
        condition: _Condition,
        example: Tensor | None,
        statistics: dict[Site, CodeStatistics] | None,
    ) -> Cell:
        """What probes read; `statistics`, where they are asked for, are filled on the way."""
        config, key, where = self.config, condition.key(variant.kind), self._sites(variant)
        tokens, begin_token = condition.source.name, condition.begin_token
        reading = measure(
            variant.model,
            _split(config, condition),
            where,
            context=self._context(
                variant, positions=INTACT, tokens=tokens, begin_token=begin_token
            ),
            seed=config.seed,
            batch_size=config.batch_size,
            description=key if self.show_progress else None,
            also_fitted={} if statistics is None else {site: CodeStatistics() for site in where},
            condition=_ablation(config).of,
            shards=self.shards,
            spec=variant.spec,
        )
        if statistics is not None:
            statistics |= reading.also_fitted
        arrays = {f"{key}/{name}": array for name, array in reading.arrays.items()}
        if example is not None:
            with _ablation(config).of(variant.model):
                arrays |= example_arrays(variant, reading, example)
        return Cell(table(reading.rows), arrays)

    def _uses(
        self,
        variant: ModelVariant,
        task: InterventionTask,
        statistics: Mapping[Site, CodeStatistics],
    ) -> Cell:
        """What the model loses without each position code."""
        tokens = variant.sources[0].name
        context = self._context(variant, tokens=tokens, begin_token=task.begin_token)
        label = f"{variant.kind}, codes taken away" if self.show_progress else None
        with _ablation(self.config).of(variant.model):
            rows = through_the_stream(task, context=context, description=label)
            if self.config.code_ablation == "sites":
                # Empty where the cell that was to fill them was read before.
                statistics = statistics or statistics_at(task, self._sites(variant))
                rows += site_by_site(
                    task,
                    statistics,
                    context=context,
                    description=label and f"{label} site by site",
                )
                rows += shift_rows(task, statistics, context=context)
        return Cell(table(rows))

    def _history(self, variant: ModelVariant) -> Cell:
        """What can be read of the model as it was early in its training."""
        label = f"{variant.kind}, history" if self.show_progress else None
        config = self.config
        rows = history_rows(
            config, self.out, variant, experiment=config.experiment, description=label
        )
        return Cell(table(rows))


def _split(config: CompareConfig, condition: _Condition) -> Split:
    draw = {"seq_len": config.seq_len, "begin_token": condition.begin_token, "seed": config.seed}
    return Split(
        fit=condition.source.sequences(config.n_fit, split="fit", **draw),
        held_out=condition.source.sequences(config.n_held_out, split="held_out", **draw),
    )


def _example(config: CompareConfig, condition: _Condition) -> Int[Tensor, " pos"]:
    """The start of a held-out sequence under the first condition."""
    (sequence,) = condition.source.sequences(
        1,
        config.seq_len,
        begin_token=condition.begin_token,
        split="held_out",
        seed=config.seed,
    )
    return sequence[:LONGEST]
