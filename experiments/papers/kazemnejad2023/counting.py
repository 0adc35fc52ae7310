"""Do NoPE models contain Theorem 1's head once they have learned a task: one head that weighs the
first tokens by 1/m, and an MLP that inverts it?"""

from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Bool, Float

from experiments.papers.answering import by_task, enough
from experiments.papers.kazemnejad2023.counter import (
    LEAST_READ,
    best_head,
    examples_of,
    inversion,
    scaled_share,
)
from experiments.papers.kazemnejad2023.first_tokens import counted, n_shared, n_unread
from experiments.papers.kazemnejad2023.presets import Preset
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, over_seeds, panel
from experiments.results.measurements import RANDOM_INIT
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.answers import AnswerTask

# What is read of one model, by the name of its array.
_NUMBERS = ("r2", "all", "head", "position/r2", "inverted")
# What was measured of NoPE, for each task; seeds along the first axis.
Nope = Mapping[str, Mapping[str, Array]]


def counting(model: HookedTransformer, task: AnswerTask, n: int, seed: int) -> dict[str, Array]:
    """How a model's reading of 1/m shifts where its first tokens weigh twice as much.

    Examples are of the training lengths, as many of each for the fit and half as many to read.

    Args:
        model: without positions, whose context holds examples longer than those.
        task: what it was trained on.
        n: examples of each length to read.
        seed: of the examples, and of the permutation.

    Returns:
        `r2`, how well 1/m is read of intact examples; `all`, the share of a counter's shift with
        every head scaled; `head`, that of the head that counts most; `position/r2`, how well m is
        read after an MLP; `inverted`, the R² of an inverted count's shift. NaN where examples are
        too short.
    """
    fit, read = (examples_of(task, *drawn, seed) for drawn in (("train", 2 * n), ("validation", n)))
    if read[-1].shape[1] < n_unread(n_shared(fit)) + LEAST_READ:
        return dict.fromkeys(_NUMBERS, np.array(np.nan))
    found = counted(model, fit, read, seed)
    numbers = (
        found["r2"].max(),
        scaled_share(found),
        best_head(found)[1].value,
        found["position/r2"].max(),
        inversion(found).value,
    )
    return dict(zip(_NUMBERS, map(np.array, numbers), strict=True))


def counting_findings(preset: Preset, nope: Nope, learned: Bool[Array, "seed task"]) -> Findings:
    """Which NoPE models count as Theorem 1 does; `learned` says which models are asked."""

    def each(name: str, of: str = "") -> Float[Array, "seed task"]:
        return np.stack([nope[task][f"{of}counting/{name}"] for task in preset.tasks], axis=1)

    counts, inverts = (learned & (each(name) > 0) for name in ("r2", "position/r2"))
    if not enough(counts):
        return Findings({}, (), "")
    tasks = tuple(preset.tasks[t] for t in np.flatnonzero(counts.any(axis=0)))
    shares = {
        f"{part}, {model}": by_task(each(name, of), counts)
        for name, part in (("all", "all heads"), ("head", "one head"))
        for model, of in (("trained", ""), (RANDOM_INIT, "untrained/"))
    }
    claims = {"counter-head-tasks": over_seeds(shares["one head, trained"])}
    if enough(inverts):
        claims["counter-inverted-tasks"] = over_seeds(by_task(each("inverted"), inverts))
    return Findings(
        claims,
        (_drawn(tasks, shares),),
        f"first tokens weighed twice in {preset.n_read} held-out examples of each training length",
        tuple(_told(learned, each("r2"), each("head"), each("inverted"), inverts, shares)),
    )


def _told(
    learned: Bool[Array, "seed task"],
    r2: Float[Array, "seed task"],
    head: Float[Array, "seed task"],
    inverted: Float[Array, "seed task"],
    inverts: Bool[Array, "seed task"],
    shares: Mapping[str, Float[Array, " task"]],
) -> Iterator[str]:
    counts = learned & (r2 > 0)
    half = 0.5  # the bound of both claims
    yield (
        f"First tokens are changed in {counts.sum()} of {learned.sum()} NoPE models that learned. "
        f"The examples of {(learned & np.isnan(r2)).sum()} are too short, and of "
        f"{(learned & (r2 <= 0)).sum()} no reading of 1/m is better than a constant."
    )
    yield (
        f"In {(head[counts] >= half).sum()} of {counts.sum()} one head has half of a counter's "
        f"shift or more. Mean over tasks: {shares['one head, trained'].mean():.2f}; with random "
        f"weights {shares[f'one head, {RANDOM_INIT}'].mean():.2f}. All heads together have "
        f"{shares['all heads, trained'].mean():.2f}."
    )
    both = inverts & counts & (head >= half) & (inverted >= half)
    yield (
        f"In {(inverted[inverts] >= half).sum()} of {inverts.sum()} the reading of m shifts as an "
        f"inverted count, with an R² of at least {half:g}. Theorem 1's head and MLP are both in "
        f"{both.sum()}."
    )


@figure(
    "counting-tasks",
    "task",
    "share of a counter's shift",
    claims=("counter-head-tasks", "counter-inverted-tasks"),
    ticks=lambda tasks, shares: tasks,
)
def _drawn(tasks: tuple[str, ...], shares: Mapping[str, Float[Array, " task"]]) -> Iterator[Panel]:
    """Do NoPE models count as Theorem 1 does.

    How far the reading of 1/m shifts where the first tokens weigh twice as much. They do in all
    heads, or in the one that shifts it most. Of a model of Theorem 1 both are 1. Means over models
    that learned.
    """
    at = np.arange(float(len(tasks)))
    measured = {name: share[None] for name, share in shares.items()}
    yield panel("every task", at, predicted={"Theorem 1": 1.0}, measured=measured)
