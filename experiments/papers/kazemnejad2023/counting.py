"""Do NoPE models contain Theorem 1's head once they have learned a task: one head that weighs the
first tokens by 1/m, and an MLP that inverts it?"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from jaxtyping import Bool, Float

from experiments.papers.answering import by_task, enough
from experiments.papers.kazemnejad2023.counter import (
    LEAST_R2,
    LEAST_R2_OF_M,
    LEAST_READ,
    best_head,
    examples_of,
    inversion,
    no_shift,
    scaled_share,
)
from experiments.papers.kazemnejad2023.first_tokens import (
    FIRST_SITE,
    counted,
    n_shared,
    n_unread,
)
from experiments.papers.kazemnejad2023.presets import Nope, Preset
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, over_seeds, panel, share
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.answers import AnswerTask

# One head is chosen in every second example, and read in the others.
_FEWEST = 4
# The bound of both claims, and of an R²; of a task's models so many make it count.
_HALF = 0.5
# What is read of one model, by the name of its array.
_NUMBERS = ("r2", "all", "head", "position/r2", "inverted", "before", "no shift", "in order")
Each = Float[Array, "seed task"]


def counting(model: HookedTransformer, task: AnswerTask, n: int, seed: int) -> dict[str, Array]:
    """How a model's reading of 1/m shifts where its first tokens weigh twice as much.

    Examples are of the training lengths, twice as many of each for the fit as are read.

    Args:
        model: without positions, whose context holds examples longer than those.
        task: what it was trained on.
        n: examples of each length to read.
        seed: of the examples, and of the permutation.

    Returns:
        `r2`, how well 1/m is read of intact examples; `all`, the share of a counter's shift with
        every head scaled; `head`, that of the head that counts most; `position/r2`, how well m is
        read after the MLP where that is best; `inverted`, the R² of an inverted count's shift
        there; `before`, the same before that MLP, and `no shift`, where nothing shifts; `in order`,
        1 where that MLP is not of an earlier layer than that head. NaN where examples are too
        short, or too few.
    """
    fit, read = (examples_of(task, *drawn, seed) for drawn in (("train", 2 * n), ("validation", n)))
    short = read[-1].shape[1] < n_unread(n_shared(fit)) + LEAST_READ
    if short or len(read[-1]) < _FEWEST:
        return dict.fromkeys(_NUMBERS, np.array(np.nan))
    found = counted(model, fit, read, seed)
    (layer, _), share = best_head(found)
    site = found["position/site"]
    numbers = (
        found["r2"][FIRST_SITE],
        scaled_share(found),
        share.value,
        found["position/r2"][site],
        inversion(found).value,
        inversion(found, "before").value if "position/before" in found else np.nan,
        no_shift(found),
        float(layer <= found["layer"][site]),
    )
    return dict(zip(_NUMBERS, map(np.array, numbers), strict=True))


def counting_findings(preset: Preset, nope: Nope, learned: Bool[Array, "seed task"]) -> Findings:
    """Which NoPE models count as Theorem 1 does; `learned` says which models are asked."""

    def each(name: str, of: str = "") -> Each:
        return np.stack([nope[task][f"{of}counting/{name}"] for task in preset.tasks], axis=1)

    setting = f"first tokens weighed twice in {preset.n_read} examples of each training length"
    counts = learned & (each("r2") >= LEAST_R2)
    inverts = learned & (each("position/r2") >= LEAST_R2_OF_M)
    claims, figures = {}, []
    if enough(counts):
        shares = {
            part: by_task(each(name), counts)
            for name, part in (("all", "all heads"), ("head", "one head"))
        }
        claims["counter-head-tasks"] = over_seeds(shares["one head"])
        tasks = tuple(preset.tasks[t] for t in np.flatnonzero(counts.any(axis=0)))
        figures.append(_drawn(tasks, shares))
    if enough(inverts):
        # Where all tasks are alike nothing spreads; Wilson's interval knows how few they are.
        of_tasks = by_task((each("inverted") >= _HALF).astype(float), inverts)
        claims["counter-inverted-tasks"] = share(int((of_tasks >= _HALF).sum()), len(of_tasks))
    return Findings(
        claims,
        tuple(figures),
        setting,
        (
            *_on_models(learned, each("r2")),
            *_on_heads(counts, each),
            *_on_inversion(inverts, each, counts & (each("head") >= _HALF)),
        ),
    )


def _on_models(learned: Bool[Array, "seed task"], r2: Each) -> Iterator[str]:
    yield (
        f"First tokens are changed in {(learned & (r2 >= LEAST_R2)).sum()} of {learned.sum()} NoPE "
        f"models that learned. The examples of {(learned & np.isnan(r2)).sum()} are too short or "
        f"too few, and in {(learned & (r2 < LEAST_R2)).sum()} the best reading of 1/m has an R² "
        f"below {LEAST_R2}."
    )


def _on_heads(counts: Bool[Array, "seed task"], each: Callable[..., Each]) -> Iterator[str]:
    head, every = each("head"), each("all")
    readable = counts & (each("r2", "untrained/") >= LEAST_R2)
    of_random = each("head", "untrained/")[readable]
    beside = f", where the best head has {of_random.mean():.2f}" if readable.any() else ""
    if counts.any():
        yield (
            f"In {(head[counts] >= _HALF).sum()} of {counts.sum()} models one head has half of a "
            f"counter's shift or more. The mean is {head[counts].mean():.2f}. All heads together "
            f"have {every[counts].mean():.2f}. With random weights 1/m is read as well in "
            f"{readable.sum()} of them{beside}."
        )


def _on_inversion(
    inverts: Bool[Array, "seed task"],
    each: Callable[..., Each],
    one_head: Bool[Array, "seed task"],
) -> Iterator[str]:
    if not inverts.any():
        return
    inverted, untrained = each("inverted"), each("inverted", "untrained/")
    readable = inverts & (each("position/r2", "untrained/") >= LEAST_R2_OF_M)
    passed = inverts & (inverted >= _HALF)
    both = passed & one_head & (each("in order") == 1)

    def median(of: Each) -> str:
        return f"{np.nanmedian(of[inverts]):.2f}"

    yield (
        f"In {passed.sum()} of {inverts.sum()} models the reading of m shifts as an inverted count "
        f"(R² at least {_HALF:g}). Such a head, in no later layer, is also in {both.sum()} of "
        f"them. With random weights m is read as well in {readable.sum()}, and inverted in "
        f"{(readable & (untrained >= _HALF)).sum()}."
    )
    yield (
        f"The median R² of an inverted count is {median(inverted)}. Before the MLP it is "
        f"{median(each('before'))}, and where nothing shifts {median(each('no shift'))}."
    )


@figure(
    "counting-tasks",
    "task",
    "share of a counter's shift",
    claims=("counter-head-tasks",),
    ticks=lambda tasks, shares: tasks,
)
def _drawn(tasks: tuple[str, ...], shares: Mapping[str, Float[Array, " task"]]) -> Iterator[Panel]:
    """Do NoPE models count as Theorem 1 does.

    How far the reading of 1/m shifts where the first tokens weigh twice as much. They do in all
    heads, or in the one that shifts it most. Of a model of Theorem 1 both are 1. Means over models
    that learned, and whose 1/m is read well.
    """
    at = np.arange(float(len(tasks)))
    measured = {name: share[None] for name, share in shares.items()}
    yield panel("every task", at, predicted={"Theorem 1": 1.0}, measured=measured)
