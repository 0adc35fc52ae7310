"""Every method's words on every planted model, each model a cell of its own."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments.benchmark.config import BenchmarkConfig
from experiments.benchmark.methods import Method, MethodOnText, method, method_on_text
from experiments.benchmark.result import Benchmark
from experiments.benchmark.task import context, site_of, where
from experiments.probing.sites import Site
from experiments.results.benchmark import judged
from experiments.results.measurements import table
from experiments.results.position_use import Word
from experiments.runs.cells import Cell, Cells
from experiments.runs.finished import Made
from experiments.runs.folder import RunFolder
from experiments.runs.steps import Steps
from experiments.runs.timing import seconds_a_sequence
from experiments.runs.workers import one_thread_each
from experiments.variants.words import asked
from nope_interp.constructions.planted import LANGUAGES, N_CTX, PLANTS, plant, plant_language
from nope_interp.constructions.planted.task import Truth
from nope_interp.errors import UserError, unknown_name
from probes.code_names import JUDGED, SIMILARITY
from probes.errors import ProbeWarning

# How many forward passes of a sequence a method takes the time of on one model, roughly and as
# measured: for estimates alone.
_PASSES = {
    "probing": 900.0,
    "erasure": 5_500.0,
    "LEACE": 2_200.0,
    "DAS": 3_200.0,
    "interchange": 24_000.0,
    "interchange on text": 24_000.0,
}
_OF_YOURS = 5_000.0
_CODES = (SIMILARITY, *JUDGED)
_KINDS = (*PLANTS, *LANGUAGES)
# The truth does not tell how far a code that is used goes.
_USED: dict[str, str] = {Word.CONTRIBUTES: Word.USED}


def judge_methods(
    config: BenchmarkConfig | None = None,
    *,
    out: Path | str = "runs",
    device: str = "cpu",
    show_progress: bool = True,
    **words: Any,
) -> Benchmark:
    """Judge methods by models whose truth is known, or go on, or read what is finished.

    Args:
        config: which methods, and how many models; by default all, and 20 of each kind.
        out: the folder that run folders are made in.
        device: only "cpu", on which models this small run fastest.
        show_progress: draw a bar on standard error.
        words: values laid over `config`, by the words of the command line: `seeds=2`,
            `methods=["interchange"]`.

    Returns:
        The finished run: every word, how often each method is right, and the report.

    Raises:
        UserError: for unknown methods and kinds, another device, a method of one's own that fails,
            one that speaks of an unknown code or says another word than
            `experiments.results.position_use.Word`, methods that say nothing, and an unwritable
            `out`.
    """
    config = asked(BenchmarkConfig, config, words)
    config.check_runs_on(device)
    for kind in config.kinds or ():
        if kind not in _KINDS:
            raise unknown_name("kind of planted model", kind, _KINDS)
    return Benchmark.once(config, out, lambda run: _made(config, run, show_progress), device)


def _made(config: BenchmarkConfig, run: RunFolder, show_progress: bool) -> Made:
    kinds = _KINDS if config.kinds is None else config.kinds
    jobs = {
        title: cell
        for name in config.chosen_methods
        for kind in kinds
        for seed in config.seeds
        for title, cell in _jobs(name, kind, seed)
    }
    with Steps("benchmark", show_progress, len(jobs)) as steps:
        cells = Cells(run.cells, steps.done, one_thread_each())
        if show_progress:
            weights = {title: _PASSES.get(title.split(", ")[0], _OF_YOURS) for title in jobs}
            steps.plan(weights, _seconds_a_sequence(kinds, config.seed), cells.at_once)
        cells.all(jobs)
    rows = cells.gathered().rows
    if rows.empty:
        raise UserError(
            f"the {'methods say' if len(config.chosen_methods) > 1 else 'method says'} nothing of "
            "any code of these models whose truth is known: choose other methods or kinds."
        )
    setting = f"{rows['model'].nunique()} kinds of planted models, {config.n_seeds} of each"
    notes = [
        "Models of one kind differ in their random directions alone: intervals say nothing of "
        "other kinds."
    ]
    return Made(rows, {}, {"setting": setting, "notes": notes})


def _seconds_a_sequence(kinds: Sequence[str], seed: int) -> float:
    """How long a pass takes, on average over kinds: they differ in layers and width."""
    seconds = []
    for kind in kinds:
        planted = plant_language(kind, seed) if kind in LANGUAGES else plant(kind, seed)
        tokens = torch.zeros(1, N_CTX, dtype=torch.long)
        seconds.append(seconds_a_sequence(planted.model, tokens))
    return sum(seconds) / len(seconds)


def _jobs(name: str, kind: str, seed: int) -> Iterator[tuple[str, Callable[[], Cell]]]:
    """One for each model of which the method speaks at all, with its title."""
    if kind in PLANTS:
        yield f"{name}, {kind}, seed {seed}", partial(_said, name, method(name), kind, seed)
    elif judge := method_on_text(name):
        cell = partial(_said_on_text, name, judge, kind, seed)
        yield f"{name} on text, {kind}, seed {seed}", cell


def _said(name: str, judge: Method, kind: str, seed: int) -> Cell:
    """A method's words on one model, through its whole stream and at each of its sites."""
    planted = plant(kind, seed)
    places: dict[Site | None, Truth] = {None: planted.truth}
    places |= {site_of(hook): truth for hook, truth in planted.sites.items()}
    rows = []
    for place, truth in places.items():
        words = _words(name, partial(judge, planted, place, seed))
        rows += _rows(context(planted, seed), name, place, truth, words)
    return Cell(table(rows))


def _said_on_text(name: str, judge: MethodOnText, kind: str, seed: int) -> Cell:
    """A method's words on one language model, through its whole stream."""
    planted = plant_language(kind, seed)
    words = _words(name, partial(judge, planted, seed))
    return Cell(table(_rows(context(planted, seed), name, None, planted.truth, words)))


def _words(name: str, judge: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
    with warnings.catch_warnings():
        # Weights written by hand leave components without variance, which a probe warns of.
        warnings.simplefilter("ignore", ProbeWarning)
        words = judge()
    _check(name, words)
    return words


def _rows(
    columns: Mapping[str, Any],
    name: str,
    place: Site | None,
    truth: Truth,
    words: Mapping[str, str],
) -> list[dict[str, Any]]:
    layer, site = where(place)
    at = {**columns, "layer": layer, "site": site}
    return [
        judged(at, name, code, truth[code], _USED.get(words[code], words[code]))
        for code in truth
        if code in words
    ]


def _check(name: str, words: Any) -> None:
    if not isinstance(words, Mapping):
        raise UserError(
            f"the method {name!r} gives {words!r}: give a word for each code that it speaks of, "
            "such as {'variance': 'used'}, or {} for none."
        )
    for code, word in words.items():
        if code not in _CODES:
            raise unknown_name(f"code of the method {name!r}", code, _CODES)
        if word not in list(Word):
            raise UserError(
                f"the method {name!r} says {word!r} of {code}: give one of {', '.join(Word)}."
            )
