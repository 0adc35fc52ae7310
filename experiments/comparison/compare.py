"""The main job: which hypothesis explains how this model knows where it is?

One model as it is, its random-init variant and, where the weights are ours, its bidirectional one
are each read on text and on uniform random tokens, with and without a begin token; models of a task
with one alone, as they were trained. That makes the cells of the run; each is one stream through
the model, and is written to disk when it is done. Small models are read side by side, one process
for each core; in text all cores move positions together. The page is drawn as soon as all that is
cheap was read, again when moved positions have answered, and at the end.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor

from experiments.codes.counterfactual import Counterfactual
from experiments.codes.following import movable
from experiments.codes.history import history_rows
from experiments.codes.task import InterventionTask, check_enough_to_fit, intervention_task_of
from experiments.codes.text_interchange import too_little_to_move
from experiments.comparison.cells import (
    MoveInTask,
    MoveInText,
    Read,
    TakeAway,
    conditions_of,
    reads_text,
)
from experiments.comparison.config import CompareConfig, left_out
from experiments.comparison.result import Comparison
from experiments.heads.history import head_history
from experiments.probing.shards import Reader, read_once
from experiments.probing.sites import sites
from experiments.results.measurements import FIRST_POSITION, table
from experiments.results.notes import UNMOVED
from experiments.runs.cells import Cell
from experiments.runs.finished import Made
from experiments.runs.timing import seconds_a_sequence
from experiments.runs.workers import HERE, Pool, one_thread_each
from experiments.variants.ablation import ablation_of, check_ablation
from experiments.variants.checks import check_shards
from experiments.variants.train import training_folder
from experiments.variants.variants import ModelVariant, bidirectional, random_init, variant_of
from experiments.variants.words import asked
from nope_interp.errors import UserError
from nope_interp.models.transformer import HookedTransformer
from probes.regression import enough_to_fit

# How many forward passes of every sequence the parts of a comparison take the time of, roughly, as
# they did with the model that ships with the package: for estimates alone.
_READING = 2.0
_MOVED, _REMOVED, _ORDER = "positions moved", "codes removed", "knowledge of order"
_PASSES = {
    _MOVED: 60.0,
    f"{_MOVED}/stream": 60.0,
    f"{_REMOVED}/stream": 45.0,
    f"{_REMOVED}/sites": 45.0,
}
_PASSES["two-layer"] = 3.0

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
            file or our model.safetensors; by default the embedded small model is read.
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
    check_ablation(config)
    if config.model is None:
        sites(config.transformer.n_layers, config.sites, config.layers)  # refuses others
        positions = config.seq_len - FIRST_POSITION
        check_enough_to_fit(config, config.n_fit, config.transformer.d_model, positions)
    how: dict[str, Any] = {"n": shards, "ray": ray, "device": device}
    how["pool"] = _pool(config, device, shards)
    return read_once(Comparison, _Reader, config, out=out, show_progress=show_progress, **how)


def _pool(config: CompareConfig, device: str, shards: int) -> Pool:
    """Small models are read side by side: they keep no second thread busy."""
    return one_thread_each() if config.is_ours and device == "cpu" and shards == 1 else HERE


@dataclass(frozen=True)
class _Stage:
    """Cells that belong together.

    Attributes:
        name: what they tell, as the page says it while they are missing.
        cells: what makes each, by title.
        drawn: whether the page is drawn when they are there; that costs seconds.
        alone: whether each has all cores to itself, and nothing runs beside it.
    """

    name: str
    cells: Mapping[str, Callable[[], Cell]]
    drawn: bool = False
    alone: bool = False


@dataclass(frozen=True)
class _Reader(Reader[CompareConfig]):
    """Reads every variant under every condition, then takes codes away from the one in question."""

    def made(self) -> Made:
        config, notes = self.config, [*self.notes, *left_out(self.config)]
        if config.code_ablation != "no" and config.task != "text":
            notes.append(_FRAME)
        if (why := self._too_little()) is not None:
            notes.append(f"{UNMOVED} {why}")
        facts: dict[str, Any] = {}
        if config.model is None:
            facts["trained_model"] = training_folder(self.out, config).model_from(self.out)
        every: list[ModelVariant] = []
        for variant in self._variants():
            every.append(variant)
            notes += (*variant.how_read, *variant.notes, *_few_to_fit(config, variant))
            with ablation_of(config).of(variant.model) as ablation:
                # Entered before anything long is read: what cannot be ablated is known at once.
                notes += [] if ablation is None else ablation.caveats(config.seq_len)
        facts |= self._told_of(every[0])
        stages = self._stages(every, notes)
        # What holds of every variant is said once.
        facts["notes"] = list(dict.fromkeys(notes))
        self._announce(stages, every[0])
        self._finish(stages, facts)
        if config.history and every[0].kind == "trained":
            self.cells.get("history", partial(self._history, every[0]))
        return self._made(facts)

    def _told_of(self, variant: ModelVariant) -> dict[str, Any]:
        """What the page says of the model in question."""
        without = ablation_of(self.config).name
        return {
            "model": variant.name if without is None else f"{variant.name}, {without}",
            "positions": without or variant.positions,
            "n_layers": variant.n_layers,
            "layer_positions": variant.position_table(),
            "example_tokens": variant.token_strings(self._example(variant)),
        }

    def _announce(self, stages: Sequence[_Stage], variant: ModelVariant) -> None:
        """Say what will be done, and how long it should take by one pass of the model."""
        if not self.show_progress:
            return
        condition, config = conditions_of(variant)[0], self.config
        seconds = seconds_a_sequence(variant.model, condition.split(config).held_out)
        read = config.n_fit + config.n_held_out
        titles = [title for stage in stages for title in stage.cells]
        weights = {title: read * _passes(title) for title in titles}
        if config.history:
            weights["history"] = read * _READING
        self.steps.plan(weights, seconds, self.cells.at_once)

    def _finish(self, stages: Sequence[_Stage], facts: dict[str, Any]) -> None:
        """Compute all stages, side by side: where one leaves workers idle, the next has begun. The
        page is drawn when the readings are there, and when moved positions have answered."""
        drawn = {[*stage.cells][-1]: n for n, stage in enumerate(stages, 1) if stage.drawn}
        for alone, some in groupby(stages, key=lambda stage: stage.alone):
            cells = {title: cell for stage in some for title, cell in stage.cells.items()}
            for title in self.cells.each(cells, alone=alone):
                if missing := [stage.name for stage in stages[drawn.get(title, len(stages)) :]]:
                    self.draw(self._made(facts), missing)

    def _made(self, facts: dict[str, Any]) -> Made:
        found = self.cells.gathered()
        return Made(found.rows, found.arrays, facts)

    def _variants(self) -> Iterator[ModelVariant]:
        """The model in question, then its random-init variant, then, where it can have one, its
        bidirectional variant."""
        config = self.config
        variant = variant_of(
            config,
            self.out,
            self.device,
            self.show_progress,
            needed={"fit": config.n_fit, "held_out": config.n_held_out},
            keep_history=config.history,
        )
        # What the model lacks is told before anything is measured.
        sites(variant.n_layers, config.sites, config.layers)
        yield variant
        if not config.variants:
            return
        yield random_init(variant, config.seed)
        if isinstance(variant.model, HookedTransformer) and variant.model.config.causal:
            yield bidirectional(variant)

    def _example(self, variant: ModelVariant) -> Int[Tensor, " pos"]:
        return conditions_of(variant)[0].example(self.config)

    def _stages(self, every: Sequence[ModelVariant], notes: list[str]) -> list[_Stage]:
        """What there is to compute, in the order in which a page is of use; what cannot be is added
        to the notes."""
        # Pretrained models are not read twice for what one pass can give.
        apart = self.config.is_ours
        stages = [_Stage("readings", self._read(every, "closed form" if apart else "all"), True)]
        # An untrained variant uses nothing, and what an unmasked one loses says nothing.
        if self.config.code_ablation != "no":
            task = intervention_task_of(self.config, every[0])
            stages += [*self._moved(every[0], task, notes), *self._taken_away(every[0], task)]
        if apart:
            stages.append(_Stage("two-layer probes", self._read(every, "two-layer")))
        return stages

    def _read(self, every: Sequence[ModelVariant], probes: str) -> dict[str, Callable[[], Cell]]:
        found: dict[str, Callable[[], Cell]] = {}
        for variant in every:
            for number, condition in enumerate(conditions_of(variant)):
                key = condition.key(variant.kind)
                title = f"{key}/two-layer" if probes == "two-layer" else key
                example = None
                if number == 0 and probes != "two-layer":
                    example = self._example(variant)
                how = (probes, self.shards, example, self._bar(title))
                found[title] = Read(self.config, variant, condition, *how)
        return found

    def _moved(
        self, variant: ModelVariant, task: InterventionTask, notes: list[str]
    ) -> list[_Stage]:
        if task.source is not None:
            return self._moved_in_task(variant, task, notes)
        if not reads_text(variant) or self._too_little() is not None:
            return []
        cell = MoveInText(self.config, variant, task, self._bar(f"{variant.kind}, {_MOVED}"))
        # The verdict waits for this one long cell, whose passes keep several threads busy.
        return [_Stage(_MOVED, {f"{_MOVED}/stream": cell}, drawn=True, alone=True)]

    def _moved_in_task(
        self, variant: ModelVariant, task: InterventionTask, notes: list[str]
    ) -> list[_Stage]:
        elsewhere: list[Counterfactual] = []
        try:
            elsewhere = movable(task)
        except UserError as error:  # removal decides, of a model that knows order
            notes.append(f"{UNMOVED} {error}")
        name = _MOVED if elsewhere else _ORDER
        bar = self._bar(f"{variant.kind}, {name}")
        cell = MoveInTask(self.config, variant, task, elsewhere, bar)
        return [_Stage(name, {name: cell}, drawn=True)]

    def _too_little(self) -> str | None:
        """Why no position is moved in text."""
        config = self.config
        if config.task != "text" or config.code_ablation == "no":
            return None
        return too_little_to_move(config.n_held_out, config.seq_len)

    def _taken_away(self, variant: ModelVariant, task: InterventionTask) -> list[_Stage]:
        wheres = {"stream": f"{_REMOVED} through the whole stream"}
        if self.config.code_ablation == "sites":
            wheres["sites"] = f"{_REMOVED} site by site"
        return [
            _Stage(
                name,
                {
                    f"{_REMOVED}/{where}": TakeAway(
                        self.config, variant, task, where, self._bar(f"{variant.kind}, {name}")
                    )
                },
            )
            for where, name in wheres.items()
        ]

    def _bar(self, words: str) -> str | None:
        """The label of a progress bar, where no other is drawn at the same time."""
        return self.label(words) if self.cells.at_once == 1 else None

    def _history(self, variant: ModelVariant) -> Cell:
        """What can be read of the model as it was early in its training."""
        config, label = self.config, self.label(f"{variant.kind}, history")
        read = partial(history_rows, experiment=config.experiment, description=label)
        return Cell(table(read(config, self.out, variant, head_history)))


def _few_to_fit(config: CompareConfig, variant: ModelVariant) -> tuple[str, ...]:
    """A sentence where text gives few activations for the model's width."""
    positions, width = config.seq_len - FIRST_POSITION, variant.model.cfg.d_model
    if config.task != "text" or config.n_fit * positions >= enough_to_fit(width):
        return ()
    least = math.ceil(enough_to_fit(width) / positions)
    return (
        f"Linear probes were fitted on {config.n_fit} sequences, few for activations of {width} "
        f"components: they may read position worse than it can be read. {least} are enough "
        "(--n-fit).",
    )


def _passes(title: str) -> float:
    """How many forward passes of every sequence a cell takes the time of."""
    kind = title.split("/")[-1] if title.endswith("/two-layer") else title
    return _PASSES.get(kind, _READING)
