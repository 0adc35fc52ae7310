"""Kazemnejad et al. 2023: do scratchpads help on longer examples, and does their format matter?

A run is a task, a format and a seed: a model without positions is trained on the task's short
lengths, to write down the parts of its steps that the format has and then the answer. The right
answers count, on held-out examples of these lengths and on longer ones, whatever the steps say.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from experiments.papers.answering import LEARNED, by_task, trained_to_answer
from experiments.papers.config import ReproduceConfig
from experiments.papers.kazemnejad2023.presets import (
    FULL,
    PLAIN,
    Runs,
    Scratchpads,
    by_length,
    unlearned,
)
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, over_seeds, panel
from experiments.runs.cells import Cells
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.answers import AnswerTask, TaskSplit
from nope_interp.tasks.dataset import dataset
from nope_interp.tasks.examples import Examples
from nope_interp.tasks.scratchpad import without_steps
from nope_interp.training.exact_match import exact_matches

_PARTS: tuple[tuple[str, TaskSplit], ...] = (("within", "validation"), ("beyond", "test"))


def scratchpad_findings(
    config: ReproduceConfig, sizes: Scratchpads, cells: Cells, device: str
) -> Findings:
    """Trains and scores a model of every task, format and seed."""
    steps = config.scaled("training", sizes.sizes.steps)
    runs = cells.side_by_side(
        {
            (task, name): partial(trained_to_write, sizes, task, parts, steps, device)
            for task in sizes.tasks
            for name, parts in sizes.written(task).items()
        },
        config.seeds,
        title=lambda run: ", ".join(("scratchpads", *run)),
    )
    within, beyond = (_units(sizes, runs, part) for part in ("within", "beyond"))
    # Of parity's few held-out prompts of a length most may have one answer.
    learned = (within >= LEARNED) & (within > _units(sizes, runs, "guess/within"))
    plain, full = (sizes.formats.index(name) for name in (PLAIN, FULL))
    # Who knows nothing on longer examples may still give the commonest answer.
    known = np.maximum(beyond, _units(sizes, runs, "guess/beyond"))
    gains = known[..., full] - known[..., plain]
    least, tasks = smallest_gains(gains, learned[..., full] & learned[..., plain])
    steps_only = [f for f in range(len(sizes.formats)) if f != plain]
    spreads, counted = best_less_worst(beyond[..., steps_only], learned[..., steps_only])
    claims = {}
    if len(least) > 1:
        claims["scratchpads"] = over_seeds(least)
    if counted.any(axis=0).sum() > 1:
        claims["scratchpad-format"] = over_seeds(by_task(spreads, counted))
    chosen = Counter(sizes.tasks[task] for task in tasks)
    told = ", ".join(f"{task} for {n} of {len(least)} seeds" for task, n in chosen.items())
    return Findings(
        claims,
        (_curves(sizes, runs),),
        setting=f"{len(config.seeds)} NoPE models for each of {len(sizes.tasks)} tasks and up to "
        f"{len(sizes.formats)} formats of scratchpads, {steps} steps on {sizes.lengths_said}",
        notes=(
            "Of scratchpads, models count that have learned their task as above, by right answers. "
            f"Not learned: {unlearned(runs, LEARNED)}. Right answers beyond the training "
            f"lengths: {_table(sizes, beyond, learned)}.",
            "For each seed the task that gains least is chosen on the other seeds. So are the best "
            "and the worst format of each task. Where seeds differ by chance alone, the expected "
            f"number is 0. Chosen as the task that gains least: {told or 'none'}.",
            "Answers are decoded greedily and compared after the steps, so that a mistake in the "
            "steps is none if the answer is right. Of the right answers beyond the training "
            f"lengths that stand behind steps, {_in_spite(runs):.0%} follow wrong ones.",
        ),
    )


def trained_to_write(
    sizes: Scratchpads,
    task_name: str,
    scratchpad: frozenset[str] | None,
    steps: int,
    device: str,
    seed: int,
) -> dict[str, Array]:
    """Trains a model and scores it.

    For the lengths `within` and `beyond` training, each [length]: the shares of right answers
    under these names, of examples whose steps are right too as "steps/within", and of right answers
    of a guesser who always gives the commonest one as "guess/within".
    """
    task = sizes.task(task_name, scratchpad)
    model = trained_to_answer(task, sizes.sizes, steps=steps, seed=seed, device=device)
    found = {}
    for part, split in _PARTS:
        every = dataset(task, sizes.n_per_length, split=split, seed=seed).values()
        found[part] = _shares([right_answers(model, task, some) for some in every])
        found[f"steps/{part}"] = _shares([exact_matches(model, some) for some in every])
        found[f"guess/{part}"] = np.array([_guessed(task, some) for some in every])
    return found


def right_answers(
    model: HookedTransformer, task: AnswerTask, examples: Examples
) -> Bool[Tensor, " example"]:
    """Whether greedy decoding ends in the right answer, whatever steps it writes down before.

    It has as many tokens for both as the longest of the examples, and has to end within them.
    """
    right = exact_matches(model, examples)
    answers = _answers(task, examples)
    # Only what went wrong somewhere has to be decoded; prompts of one length go together.
    for length in examples.prompt_length[~right].unique().tolist():
        which = (~right & (examples.prompt_length == length)).nonzero()[:, 0].tolist()
        prompts = examples.tokens[which, :length].to(model.W_E.device)
        written = model.generate(prompts, examples.tokens.shape[1] - length)[:, length:].tolist()
        for row, ids in zip(which, written, strict=True):
            right[row] = _answer(task, ids) == answers[row]
    return right


def _answer(task: AnswerTask, ids: list[int]) -> str | None:
    """What stands behind the steps and before the end; None where no end comes."""
    end = task.tokenizer.end_id
    if end not in ids:
        return None
    return without_steps(task.tokenizer.decode(ids[: ids.index(end)]))


def _answers(task: AnswerTask, examples: Examples) -> list[str]:
    return [without_steps(answer) for _, answer in task.text(examples)]


def _guessed(task: AnswerTask, examples: Examples) -> float:
    """The share of the commonest answer."""
    answers = _answers(task, examples)
    return Counter(answers).most_common(1)[0][1] / len(answers)


def _shares(right: Sequence[Bool[Tensor, " example"]]) -> Float[Array, " length"]:
    return torch.stack([some.double().mean() for some in right]).numpy()


def _units(sizes: Scratchpads, runs: Runs, part: str) -> Float[Array, "seed task format"]:
    """Mean accuracy over lengths; NaN where a task has no such format."""
    n_seeds = len(next(iter(runs.values()))[part])
    found = np.full((n_seeds, len(sizes.tasks), len(sizes.formats)), np.nan)
    for (task, name), cell in runs.items():
        found[:, sizes.tasks.index(task), sizes.formats.index(name)] = cell[part].mean(axis=1)
    return found


def smallest_gains(
    gains: Float[Array, "seed task"], counted: Bool[Array, "seed task"]
) -> tuple[Float[Array, " chosen"], list[int]]:
    """The gain of each seed in the task where the mean of the other seeds' is smallest.

    The task is one in which the seed counts and another one does. Seeds without a choice of at
    least two are left out. Returns the tasks too.
    """
    found, tasks = [], []
    for seed in range(len(gains)):
        others = _means_of_others(gains, counted, seed)
        if np.isfinite(others).sum() > 1:
            task = int(np.nanargmin(others))
            found.append(gains[seed, task])
            tasks.append(task)
    return np.array(found), tasks


def best_less_worst(
    accuracy: Float[Array, "seed task format"], counted: Bool[Array, "seed task format"]
) -> tuple[Float[Array, "seed task"], Bool[Array, "seed task"]]:
    """The accuracy of the best format minus that of the worst, both by the mean of the other seeds.

    Formats are those in which the seed counts and another one does. Returns where there are at
    least two of them, too; it is 0 elsewhere.
    """
    n_seeds, n_tasks, _ = accuracy.shape
    spreads, chosen = np.zeros((n_seeds, n_tasks)), np.zeros((n_seeds, n_tasks), dtype=bool)
    for seed, task in np.ndindex(n_seeds, n_tasks):
        others = _means_of_others(accuracy[:, task], counted[:, task], seed)
        if np.isfinite(others).sum() > 1:
            best, worst = np.nanargmax(others), np.nanargmin(others)
            spreads[seed, task] = accuracy[seed, task, best] - accuracy[seed, task, worst]
            chosen[seed, task] = True
    return spreads, chosen


def _means_of_others(
    values: Float[Array, "seed k"], counted: Bool[Array, "seed k"], seed: int
) -> Float[Array, " k"]:
    """Means over the other seeds that count; NaN where this one does not, or none does."""
    others = counted.copy()
    others[seed] = False
    total = np.where(others, values, 0).sum(axis=0)
    n = others.sum(axis=0)
    return np.where(counted[seed] & (n > 0), total / np.maximum(n, 1), np.nan)


def _table(
    sizes: Scratchpads,
    beyond: Float[Array, "seed task format"],
    learned: Bool[Array, "seed task format"],
) -> str:
    """Mean accuracies of the models that learned, in words."""
    told = []
    for t, task in enumerate(sizes.tasks):
        means = [
            f"{beyond[learned[:, t, f], t, f].mean():.2f} with {name}"
            for f, name in enumerate(sizes.formats)
            if learned[:, t, f].any()
        ]
        told.append(f"{task} {', '.join(means) or 'by no model'}")
    return "; ".join(told)


def _in_spite(runs: Runs) -> float:
    """The share of right answers behind steps, beyond, that follow wrong steps."""
    cells = [cell for (_, name), cell in runs.items() if name != PLAIN]
    right = sum(cell["beyond"].sum() for cell in cells)
    both = sum(cell["steps/beyond"].sum() for cell in cells)
    return float(1 - both / right) if right else 0.0


@figure(
    "scratchpads",
    "length",
    "accuracy",
    shares=True,
    claims=("scratchpads", "scratchpad-format"),
    shaded=lambda sizes, runs: sizes.lengths,
)
def _curves(sizes: Scratchpads, runs: Runs) -> Iterator[Panel]:
    """Accuracy by length with scratchpads.

    Share of held-out examples with the right answer behind the steps, {sizes.n_per_length} of each
    length; NoPE. Shaded: the lengths trained on; dotted: always the commonest answer among the
    examples themselves. Models that did not learn are among them.
    """
    for task in sizes.tasks:
        yield panel(
            task,
            sizes.all_lengths(task),
            chance={"commonest answer": by_length(runs[task, PLAIN], "guess/").mean(axis=0)},
            measured={name: by_length(runs[task, name]) for name in sizes.written(task)},
        )
