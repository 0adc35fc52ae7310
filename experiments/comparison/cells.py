"""The parts of a comparison: a variant read under one condition, or its codes taken away.

Each is a function of plain values, so that small models are read side by side in other processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Int
from torch import Tensor

from experiments.codes.ablation import site_by_site, through_the_stream
from experiments.codes.counterfactual import Counterfactual
from experiments.codes.following import following_rows
from experiments.codes.in_depth import statistics_at
from experiments.codes.shift import shift_rows
from experiments.codes.task import InterventionTask
from experiments.codes.text_interchange import text_rows
from experiments.comparison.config import CompareConfig
from experiments.comparison.example import LONGEST, example_arrays
from experiments.probing.measure import (
    MakeProbes,
    code_probes,
    make_probes,
    measure,
    two_layer_probes,
)
from experiments.probing.shards import Shards
from experiments.probing.sites import Site, sites
from experiments.probing.split import Split
from experiments.results.measurements import table
from experiments.runs.cells import Cell
from experiments.variants.ablation import ablation_of
from experiments.variants.variants import ModelVariant
from nope_interp.tasks.sources import TextSource, TokenSource

# Which probes read: all at once, or the costly two-layer ones by themselves.
PROBES: dict[str, MakeProbes] = {
    "all": make_probes,
    "closed form": code_probes,
    "two-layer": two_layer_probes,
}


@dataclass(frozen=True)
class Condition:
    """The tokens that a variant is read on.

    Attributes:
        source: where they come from.
        begin_token: whether they start with one.
        learned: what the model learned from, which says how long a row is.
    """

    source: TokenSource
    begin_token: bool
    learned: TokenSource

    def key(self, variant: str) -> str:
        """What tells a variant under this condition from the rest of the run."""
        return f"{variant}/{self.source.name}/{'begin' if self.begin_token else 'nobegin'}"

    def split(self, config: CompareConfig) -> Split:
        """Sequences to fit on, and others to score on."""
        source, how = self._rows(config)
        return Split.of(source, config.n_fit, config.n_held_out, **how)

    def example(self, config: CompareConfig) -> Int[Tensor, " pos"]:
        """The start of a held-out sequence."""
        source, how = self._rows(config)
        (sequence,) = source.sequences(1, split="held_out", **how)
        return sequence[:LONGEST]

    def _rows(self, config: CompareConfig) -> tuple[TokenSource, dict[str, Any]]:
        """The source, and how its rows are drawn: of an example each, or as long as those are."""
        learned, seq_len = self.learned.single(config.seq_len)
        source = learned if self.source is self.learned else self.source
        return source, {
            "seq_len": seq_len,
            "seed": config.seed,
            "begin_token": self.begin_token,
        }


def conditions_of(variant: ModelVariant) -> list[Condition]:
    """Each of a variant's sources, with and without a begin token where it has one. A model that
    never saw a sequence without one is not read without one; nor one of examples on longer rows."""
    first = variant.sources[0]
    return [
        Condition(source, begin_token, first)
        for source in variant.sources
        for begin_token in (False, True)
        if (source.begin_id is not None if begin_token else not first.always_begins)
    ]


@dataclass(frozen=True)
class Read:
    """What probes read of a variant under one condition.

    Attributes:
        config: of the run.
        variant: the model.
        condition: its tokens.
        probes: which of `PROBES`.
        shards: who reads the sequences.
        example: tokens for which predictions and patterns are kept, too; None keeps none.
        description: label of the progress bars; None draws none.
    """

    config: CompareConfig
    variant: ModelVariant
    condition: Condition
    probes: str
    shards: Shards
    example: Int[Tensor, " pos"] | None
    description: str | None

    def __call__(self) -> Cell:
        """Read it."""
        config, variant, condition = self.config, self.variant, self.condition
        key, ablation = condition.key(variant.kind), ablation_of(config)
        where = sites(variant.n_layers, config.sites, config.layers)
        if self.probes == "two-layer":
            where = [site for site in where if two_layer_probes(site, config.seed)]
        reading = measure(
            variant.model,
            condition.split(config),
            where,
            context=_context(config, variant, condition.begin_token, condition.source.name),
            seed=config.seed,
            batch_size=config.batch_size,
            probes=PROBES[self.probes],
            description=self.description,
            condition=ablation.of,
            shards=self.shards,
            spec=variant.spec,
        )
        arrays = {f"{key}/{name}": array for name, array in reading.arrays.items()}
        if self.example is not None:
            with ablation.of(variant.model):
                arrays |= example_arrays(variant, reading, self.example)
        return Cell(table(reading.rows), arrays)


@dataclass(frozen=True)
class TakeAway:
    """What a model loses without each position code.

    Attributes:
        config: of the run.
        variant: the model.
        task: what it loses, on which sequences.
        where: through the whole stream, or at single sites.
        description: label of the progress bar; None draws none.
    """

    config: CompareConfig
    variant: ModelVariant
    task: InterventionTask
    where: str
    description: str | None

    def __call__(self) -> Cell:
        """Take them away."""
        task, variant = self.task, self.variant
        # Each row names the condition that it was taken under.
        context = _context(self.config, variant, task.begin_token, variant.sources[0].name)
        with ablation_of(self.config).of(variant.model):
            if self.where == "stream":
                rows = through_the_stream(task, context=context, description=self.description)
            else:
                found = sites(variant.n_layers, self.config.sites, self.config.layers)
                statistics = statistics_at(task, found)
                rows = site_by_site(task, statistics, context=context, description=self.description)
                rows += shift_rows(task, statistics, context=context)
        return Cell(table(rows))


@dataclass(frozen=True)
class MoveInText:
    """What becomes of a language model's predictions where positions are moved.

    Attributes:
        config: of the run.
        variant: the model, which reads text first.
        task: its sequences.
        description: label of the progress bar; None draws none.
    """

    config: CompareConfig
    variant: ModelVariant
    task: InterventionTask
    description: str | None

    def __call__(self) -> Cell:
        """Move them."""
        source = self.variant.sources[0]
        assert isinstance(source, TextSource)  # as `reads_text` saw to
        context = _context(self.config, self.variant, self.task.begin_token, source.name)
        with ablation_of(self.config).of(self.variant.model):
            rows = text_rows(self.task, source, context=context, description=self.description)
        return Cell(table(rows))


@dataclass(frozen=True)
class MoveInTask:
    """What becomes of a model's answers where positions are moved.

    Attributes:
        config: of the run.
        variant: the model, which answers a task's examples.
        task: these.
        elsewhere: the positions that are moved; where there are none, only whether the model knows
            order is asked.
        description: label of the progress bar; None draws none.
    """

    config: CompareConfig
    variant: ModelVariant
    task: InterventionTask
    elsewhere: Sequence[Counterfactual]
    description: str | None

    def __call__(self) -> Cell:
        """Move them."""
        config, task, variant = self.config, self.task, self.variant
        context = _context(config, variant, task.begin_token, variant.sources[0].name)
        where: list[Site] = []
        if config.code_ablation == "sites":
            where = sites(variant.n_layers, config.sites, config.layers)
        how: dict[str, Any] = {"context": context, "description": self.description}
        with ablation_of(config).of(variant.model):
            return Cell(table(following_rows(task, self.elsewhere, where, **how)))


def reads_text(variant: ModelVariant) -> bool:
    """Whether what a variant was made for is text."""
    return isinstance(variant.sources[0], TextSource)


def _context(
    config: CompareConfig, variant: ModelVariant, begin_token: bool, tokens: str
) -> dict[str, Any]:
    return variant.context(config.experiment, config.seed, begin_token, tokens=tokens)
