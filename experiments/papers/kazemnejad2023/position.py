"""Is a model that answers longer examples one whose position code survives beyond its training?"""

from collections.abc import Iterator, Mapping
from dataclasses import astuple, replace

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import rankdata

from experiments.papers.answering import by_unit
from experiments.papers.kazemnejad2023.presets import ENCODINGS, Accuracy, Learned, Preset, Runs
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, Series, line, panel
from experiments.results.measured import Measured
from probes.bootstrap import few_sequences

READINGS = ("within", "extrapolated", "refitted")
# A correlation needs so many models that learned, of two tasks.
_FEWEST_MODELS = 8
_RESAMPLES = 1000


def position_findings(preset: Preset, runs: Runs, learned: Learned, beyond: Accuracy) -> Findings:
    """Errors of position probes in all models, and how they go with accuracy beyond."""
    # Of a task no test example of which stands beyond, nothing is read there.
    reach = np.array(
        [
            all((runs[task, name]["refitted/count"].sum(axis=1) > 0).all() for name in ENCODINGS)
            for task in preset.tasks
        ]
    )
    tasks = tuple(task for task, reaches in zip(preset.tasks, reach, strict=True) if reaches)
    found = _of_tasks(tasks, runs, learned[:, reach], beyond[:, reach])
    left_out = " and ".join(task for task in preset.tasks if task not in tasks)
    note = (
        f"No test example of {left_out} stands where no training example can: position is not read "
        "there."
    )
    setting = f"position read from {preset.n_read} examples of each length"
    return replace(found, setting=setting, notes=(note,) if left_out else ())


def _of_tasks(tasks: tuple[str, ...], runs: Runs, learned: Learned, beyond: Accuracy) -> Findings:
    if not tasks:
        return Findings({}, (), "")
    errors = {
        reading: by_unit(tasks, ENCODINGS, lambda *run, of=reading: error_shares(runs[run], of))
        for reading in READINGS
    }
    figures, claims = [_readings(tasks, runs)], {}
    if learned.sum() >= _FEWEST_MODELS and learned.any(axis=(0, 2)).sum() > 1:
        group = np.broadcast_to(np.arange(len(tasks))[:, None], learned.shape)
        found = {
            reading: _correlations(errors[reading], beyond, group, learned) for reading in READINGS
        }
        claims = {
            "position-extrapolates": found["extrapolated"]["within tasks"],
            "position-remains": found["refitted"]["within tasks"],
        }
        figures += [_models(tasks, errors["extrapolated"], beyond, learned), _correlated(found)]
    return Findings(claims, tuple(figures), "")


def error_shares(cell: Mapping[str, Array], reading: str, model: str = "") -> Float[Array, " seed"]:
    """A position probe's mean absolute error over that of a constant answer.

    The constant is the best one for "within" and "refitted", and the last position within for
    "extrapolated": 1 is then a code that stops there. The layer is the one whose probe errs least
    within, so that it is not chosen by what is read beyond. `model` is "" or "untrained/".
    """
    layer = _mean_error(cell, f"{model}within")[:, 1:].argmin(axis=1) + 1
    error = _mean_error(cell, f"{model}{reading}")[np.arange(len(layer)), layer]
    return error / _constant_error(cell[f"{model}{reading}/count"], reading, cell["edge"])


def _mean_error(cell: Mapping[str, Array], reading: str) -> Float[Array, "seed site"]:
    count = cell[f"{reading}/count"][:, None]
    return (cell[f"{reading}/error"] * count).sum(axis=-1) / count.sum(axis=-1)


def _constant_error(
    count: Float[Array, "seed position"], reading: str, edge: Int[Array, " seed"]
) -> Float[Array, " seed"]:
    at = np.arange(count.shape[1])
    if reading == "extrapolated":
        constant = edge - 1
    else:
        share = count.cumsum(axis=1) / count.sum(axis=1, keepdims=True)
        constant = (share < 0.5).sum(axis=1)  # the median
    return (np.abs(at - constant[:, None]) * count).sum(axis=1) / count.sum(axis=1)


def rank_correlation(
    x: Float[Array, " model"], y: Float[Array, " model"], group: Int[Array, " model"] | None = None
) -> float:
    """Spearman's correlation; within groups where there are any, whose mean ranks are taken off.

    NaN where nothing is left to correlate.
    """
    ranks = np.stack([rankdata(x), rankdata(y)])
    groups = np.zeros(len(x)) if group is None else group
    for members in (groups == one for one in np.unique(groups)):
        ranks[:, members] -= ranks[:, members].mean(axis=1, keepdims=True)
    norms = np.sqrt(np.square(ranks).sum(axis=1))
    return float(ranks[0] @ ranks[1] / norms.prod()) if norms.all() else np.nan


def bootstrapped(
    x: Float[Array, " model"],
    y: Float[Array, " model"],
    cluster: Int[Array, " model"],
    group: Int[Array, " model"] | None = None,
) -> Measured:
    """The correlation with its 95% interval over resampled clusters, ranked anew each time.

    Models of one cluster are near copies and are drawn together. Of few clusters, quantiles spread
    too little: they are drawn out as those of `probes.bootstrap.SequenceBootstrap`.
    """
    value = rank_correlation(x, y, group)
    members = [np.flatnonzero(cluster == one) for one in np.unique(cluster)]
    n = len(members)
    if np.isnan(value) or n < 2:
        return Measured(np.nan, np.nan, np.nan, n)
    generator = np.random.default_rng(0)
    resampled = []
    for drawn in generator.integers(n, size=(_RESAMPLES, n)):
        which = np.concatenate([members[i] for i in drawn])
        resampled.append(
            rank_correlation(x[which], y[which], None if group is None else group[which])
        )
    low, high = np.nanquantile(resampled, [0.025, 0.975])
    few = few_sequences(0.025, n)
    low, high = np.clip([value + few * (low - value), value + few * (high - value)], -1, 1)
    return Measured(value, float(low), float(high), n)


def _correlations(
    errors: Accuracy, beyond: Accuracy, group: Int[Array, "seed task encoding"], learned: Learned
) -> dict[str, Measured]:
    """Intervals over encodings, which recur in every task and seed; for NoPE alone over tasks."""
    encoding = np.broadcast_to(np.arange(len(ENCODINGS)), learned.shape)
    nope = learned & (encoding == 0)
    x, y, of = errors[learned], beyond[learned], encoding[learned]
    return {
        "all models": bootstrapped(x, y, of),
        "within tasks": bootstrapped(x, y, of, group[learned]),
        "NoPE alone, within tasks": bootstrapped(
            errors[nope], beyond[nope], group[nope], group[nope]
        ),
    }


@figure(
    "position",
    "reading",
    "error over a constant answer's",
    claims=("position-extrapolates", "position-remains"),
    ticks=READINGS,
)
def _readings(tasks: tuple[str, ...], runs: Runs) -> Iterator[Panel]:
    """Position within and beyond the training lengths.

    Held-out error of ridge regression of position, over that of a constant answer. Within:
    positions that training examples have. Extrapolated: the same fit read at later positions of
    longer examples, where 1 is the error of always answering the last position within. Refitted: a
    fit to such later positions. At the layer whose probe errs least within. Bars are 95% intervals
    over seeds; position 0 is left out. Models that did not learn are among them.
    """
    models = {name: (name, "") for name in ENCODINGS}
    models["NoPE, random-init"] = "NoPE", "untrained/"
    for task in tasks:
        shares = {
            label: np.stack([error_shares(runs[task, name], r, model) for r in READINGS], axis=1)
            for label, (name, model) in models.items()
        }
        at = np.arange(len(READINGS))
        yield panel(task, at, chance={"a constant answer": 1}, measured=shares)


@figure(
    "position-models",
    "rank by extrapolated error",
    "accuracy beyond",
    claims=("position-extrapolates",),
    ticks=lambda tasks, errors, beyond, learned: tuple(
        str(1 + i) for i in range(learned.sum(axis=(0, 2)).max())
    ),
)
def _models(
    tasks: tuple[str, ...], errors: Accuracy, beyond: Accuracy, learned: Learned
) -> Iterator[Panel]:
    """Position code and accuracy, model by model.

    Each point is a model that learned its task. Across: how well the probe fitted within reads
    positions beyond, where 1 is the best of the task's models. Up: the share of longer examples
    that it answers exactly.
    """
    for t, task in enumerate(tasks):
        chosen = learned[:, t]
        rank = np.full(chosen.shape, np.nan)
        rank[chosen] = rankdata(errors[:, t][chosen], method="ordinal") - 1
        if chosen.any():
            series = (
                Series(name, "measured", rank[of, e], beyond[of, t, e], n=1)
                for e, (name, of) in enumerate(zip(ENCODINGS, chosen.T, strict=True))
                if of.any()
            )
            yield Panel(task, tuple(series))


@figure(
    "position-correlation",
    "reading",
    "rank correlation",
    claims=("position-extrapolates", "position-remains"),
    ticks=READINGS,
)
def _correlated(found: Mapping[str, Mapping[str, Measured]]) -> Iterator[Panel]:
    """Position code and accuracy beyond the training lengths.

    Spearman's correlation between the error of each reading and accuracy beyond, over models that
    learned. Bars are 95% intervals over resampled encodings, over tasks for one encoding alone.
    Below 0: the better the code, the better the model on longer examples. Within tasks: mean ranks
    of each task taken off.
    """
    at = np.arange(float(len(READINGS)))
    series = [line("none", "chance", at, 0.0)]
    for name in found[READINGS[0]]:
        numbers = [astuple(found[reading][name]) for reading in READINGS]
        value, low, high, n = map(np.array, zip(*numbers, strict=True))
        if not np.isnan(value).any():
            series.append(Series(name, "measured", at, value, low, high, int(n[0])))
    yield Panel("correlation", tuple(series))
