"""Kazemnejad et al. 2023, task by task: which encoding comes first beyond the training lengths?"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float

from experiments.papers.kazemnejad2023.presets import ENCODINGS, Accuracy, Learned
from experiments.papers.kazemnejad2023.published import ACCURACIES, PUBLISHED
from experiments.results.figures import figure
from experiments.results.findings import Array, Panel, Series, curve, line, over_seeds
from experiments.results.intervals import with_interval
from experiments.results.measured import Measured

# An interval over seeds needs so many of them.
_FEWEST = 2


@figure(
    "tasks",
    "encoding",
    "accuracy beyond",
    shares=True,
    claims=("length-generalisation", "explicit-fail"),
    ticks=tuple(ENCODINGS),
)
def by_task_figure(
    tasks: tuple[str, ...], beyond: Accuracy, learned: Learned, published: str
) -> Iterator[Panel]:
    """Accuracy beyond the training lengths, task by task.

    Share of held-out examples answered exactly, mean over all lengths beyond those trained on; bars
    are 95% intervals over seeds, of which {beyond.shape[0]} are few. Only models that learned their
    task count; where some did not, the key says how many did, and one alone has no interval.
    A task that no model learned has no panel. {published}
    """
    for t, task in enumerate(tasks):
        if not learned[:, t].any():
            continue
        series = [_of_learned(e, beyond[:, t, e], learned[:, t, e]) for e in range(len(ENCODINGS))]
        if published and task in ACCURACIES:
            theirs = np.array(ACCURACIES[task])
            series.append(line(PUBLISHED, "reference", np.arange(len(ENCODINGS)), theirs))
        yield Panel(task, tuple(series))


def _of_learned(
    encoding: int, beyond: Float[Array, " seed"], learned: Bool[Array, " seed"]
) -> Series:
    name, at = list(ENCODINGS)[encoding], np.array([float(encoding)])
    if not learned.all():
        name = f"{name}, {learned.sum()} of {len(learned)} learned"
    if not learned.any():
        return Series(name, "measured", at[:0], at[:0])
    return curve(name, "measured", at, beyond[learned, None])


def order_notes(tasks: tuple[str, ...], beyond: Accuracy, learned: Learned) -> tuple[str, ...]:
    """Who comes first in each task, in words: how that is told, then a note for each task."""
    sentences = [order_said(task, beyond[:, t], learned[:, t]) for t, task in enumerate(tasks)]
    return (
        "Order by accuracy beyond the training lengths, of encodings that learned the task under "
        f"at least {_FEWEST} seeds. Brackets are 95% intervals over seeds, {len(beyond)} models at "
        "most, which are few. A lead is the mean difference of models of one seed. These share "
        "training data, test examples and, where their encodings draw none, initial weights. A "
        "lead is called sure where its interval lies above 0. First and second are "
        "named after these same models.",
        *sentences,
    )


def order_said(
    task: str, beyond: Float[Array, "seed encoding"], learned: Bool[Array, "seed encoding"]
) -> str:
    """Which encoding comes first in a task, which second, and whether the lead is sure."""
    names = list(ENCODINGS)
    counts = learned.sum(axis=0)
    means = np.where(learned, beyond, 0).sum(axis=0) / np.maximum(counts, 1)
    order = [e for e in np.argsort(-means, kind="stable") if counts[e] >= _FEWEST]
    missing = ", ".join(names[e] for e in np.flatnonzero(counts < _FEWEST))
    left_out = f" Left out: {missing}." if missing else ""
    if len(order) < 2:
        return f"{task}: fewer than two encodings learned it.{left_out}"
    first, second = order[:2]
    if means[first] == means[second]:
        tied = " and ".join(names[e] for e in order if means[e] == means[first])
        return f"{task}: {tied} share the first place, at {means[first]:.3f}.{left_out}"
    found = [over_seeds(beyond[learned[:, e], e]).as_share for e in (first, second)]
    both = learned[:, first] & learned[:, second]
    return (
        f"{task}: {names[first]} comes first, {_said(found[0])}, before {names[second]}, "
        f"{_said(found[1])}; {_lead_said(beyond[both, first] - beyond[both, second])}.{left_out}"
    )


def _lead_said(leads: Float[Array, " seed"]) -> str:
    if len(leads) < _FEWEST:
        return "too few seeds trained both to say whether that is sure"
    lead = over_seeds(leads)
    sure = "sure" if lead.ci_low > 0 else "not sure"
    return f"the lead, {_said(lead)} over {lead.n} seeds, is {sure}"


def _said(found: Measured) -> str:
    return with_interval(found.value, found.ci_low, found.ci_high, ".3f")
