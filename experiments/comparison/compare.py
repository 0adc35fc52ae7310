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
from experiments.probing.shards import Reader, read_once
from experiments.results.measurements import FIRST_POSITION, table
from experiments.runs.cells import Cell
from experiments.runs.finished import Made
from experiments.variants.ablation import Ablation
from experiments.variants.checks import check_shards
from experiments.variants.train import training_folder
from experiments.variants.variants import ModelVariant, bidirectional, random_init, variant_of
from experiments.variants.words import asked
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.sources import TokenSource
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

    Returns:
        The finished run: its measurements, verdicts and report.

    Raises:
        UserError: for anything in `config` that cannot be done, an unwritable `out`, shards that
            the sequences or the device do not allow, a cluster that cannot be used, and activations
            that are not finite.
    """
    config = asked(CompareConfig, config, words)
    check_shards(shards, ray, n_sequences=config.n_shareable, device=device)
    _ablation(config).check(config)
    if config.model is None:
        sites(config.transformer.n_layers, config.sites, config.layers)  # refuses others
        check_enough_to_fit(config, config.transformer.d_model, config.seq_len - FIRST_POSITION)
    how: dict[str, Any] = {"n": shards, "ray": ray, "device": device}
    return read_once(Comparison, _Reader, config, out=out, show_progress=show_progress, **how)


def _ablation(config: CompareConfig) -> Ablation:
    return Ablation(config.ablate, seed=config.seed)


@dataclass(frozen=True)
class _Condition:
    """The tokens that a variant is read on."""

    source: TokenSource
    begin_token: bool

    def key(self, variant: str) -> str:
        return f"{variant}/{self.source.name}/{'begin' if self.begin_token else 'nobegin'}"

    def how(self, config: CompareConfig) -> dict[str, Any]:
        own = {"seq_len": config.seq_len, "seed": config.seed}
        return own | {"begin_token": self.begin_token}

    def split(self, config: CompareConfig) -> Split:
        return Split.of(self.source, config.n_fit, config.n_held_out, **self.how(config))

    def example(self, config: CompareConfig) -> Int[Tensor, " pos"]:
        """The start of a held-out sequence."""
        (sequence,) = self.source.sequences(1, split="held_out", **self.how(config))
        return sequence[:LONGEST]


def _conditions(variant: ModelVariant) -> list[_Condition]:
    return [
        _Condition(source, begin_token)
        for source in variant.sources
        for begin_token in ((False,) if source.begin_id is None else (False, True))
    ]


@dataclass(frozen=True)
class _Reader(Reader[CompareConfig]):
    """Reads every variant under every condition."""

    def made(self) -> Made:
        config, notes = self.config, self.notes
        if config.code_ablation != "no" and config.task != "text":
            notes.append(_FRAME)
        facts: dict[str, Any] = {}
        for variant in self._variants():
            facts |= {"model": variant.name, "positions": variant.positions}
            facts["n_layers"] = variant.n_layers
            notes += (*variant.how_read, *variant.notes)
            with _ablation(config).of(variant.model) as ablation:
                # Entered before anything long is read: what cannot be ablated is known at once.
                if ablation is not None:
                    facts["model"] += f", {ablation.name}"
                    facts["positions"] = ablation.name
                    notes += ablation.caveats(config.seq_len)
            facts["example_tokens"] = self._read_variant(variant)
        # What holds of every variant is said once.
        facts["notes"] = list(dict.fromkeys(notes))
        if config.model is None:
            facts["trained_model"] = training_folder(self.out, config).model_from(self.out)
        found = self.cells.gathered()
        return Made(found.rows, found.arrays, facts)

    def _variants(self) -> Iterator[ModelVariant]:
        """The model in question, then its random-init variant, then, where it can have one, its
        bidirectional variant; each is made when it is its turn."""
        config = self.config
        variant = variant_of(
            config,
            self.out,
            self.device,
            self.show_progress,
            needed={"fit": config.n_fit, "held_out": config.n_held_out},
            keep_history=config.history,
        )
        yield variant
        if not config.variants:
            return
        yield random_init(variant, config.seed)
        if isinstance(variant.model, HookedTransformer) and variant.model.config.causal:
            yield bidirectional(variant)

    def _read_variant(self, variant: ModelVariant) -> list[str]:
        """Read one variant under all conditions; the tokens of the example, as strings."""
        config, conditions = self.config, _conditions(variant)
        example = conditions[0].example(config)
        # An untrained variant uses nothing, and what an unmasked one loses says nothing.
        ablated = config.code_ablation != "no" and variant.kind in ("trained", "pretrained")
        task = intervention_task_of(config, variant) if ablated else None
        statistics: dict[Site, CodeStatistics] = {}
        for condition in conditions:
            drawn = example if condition is conditions[0] else None
            fitted = statistics if self._streams_the_fit_of(task, condition) else None
            measured = partial(self._measured, variant, condition, drawn, fitted)
            self.cells.get(condition.key(variant.kind), measured)
        if task is not None:
            self.cells.get("uses", partial(self._uses, variant, task, statistics))
        if config.history and variant.kind == "trained":
            self.cells.get("history", partial(self._history, variant))
        return variant.token_strings(example)

    def _streams_the_fit_of(self, task: InterventionTask | None, condition: _Condition) -> bool:
        """Whether the stream of a condition's sequences to fit probes on can also fit
        interventions at single sites."""
        # Shares would be added up in another order, which a control of a small change magnifies.
        if self.shards.n > 1:
            return False
        if task is None or not task.whole or self.config.code_ablation != "sites":
            return False
        return torch.equal(condition.split(self.config).fit, task.split.fit)

    def _sites(self, variant: ModelVariant) -> list[Site]:
        return sites(variant.n_layers, self.config.sites, self.config.layers)

    def _context(self, variant: ModelVariant, begin_token: bool, tokens: str) -> dict[str, Any]:
        experiment, seed = self.config.experiment, self.config.seed
        return variant.context(experiment, seed, begin_token, tokens=tokens)

    def _measured(
        self,
        variant: ModelVariant,
        condition: _Condition,
        example: Tensor | None,
        statistics: dict[Site, CodeStatistics] | None,
    ) -> Cell:
        """What probes read; `statistics`, where they are asked for, are filled on the way."""
        config, key, where = self.config, condition.key(variant.kind), self._sites(variant)
        reading = measure(
            variant.model,
            condition.split(config),
            where,
            context=self._context(variant, condition.begin_token, condition.source.name),
            seed=config.seed,
            batch_size=config.batch_size,
            description=self.label(key),
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
        # Each row names the condition that it was taken under.
        context = self._context(variant, task.begin_token, variant.sources[0].name)
        label = f"{variant.kind}, codes taken away"
        with _ablation(self.config).of(variant.model):
            rows = through_the_stream(task, context=context, description=self.label(label))
            if self.config.code_ablation == "sites":
                # Empty where the cell that was to fill them was read before.
                statistics = statistics or statistics_at(task, self._sites(variant))
                label = f"{label} site by site"
                read = partial(site_by_site, description=self.label(label))
                rows += read(task, statistics, context=context)
                rows += shift_rows(task, statistics, context=context)
        return Cell(table(rows))

    def _history(self, variant: ModelVariant) -> Cell:
        """What can be read of the model as it was early in its training."""
        config, label = self.config, self.label(f"{variant.kind}, history")
        read = partial(history_rows, experiment=config.experiment, description=label)
        return Cell(table(read(config, self.out, variant)))
