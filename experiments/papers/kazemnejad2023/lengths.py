"""Kazemnejad et al. 2023, figure 1: trained on short examples, which encoding answers longer ones?

A run is a task, an encoding and a seed: a model is trained on the task's short lengths, and its
exact answers are counted on held-out examples of these lengths and on longer ones. What else is
measured of it stands in `.models`.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import rankdata

from experiments.papers.answering import FEWEST, LEARNED, by_task, by_unit, enough
from experiments.papers.config import ReproduceConfig
from experiments.papers.kazemnejad2023.attention import similarity_findings
from experiments.papers.kazemnejad2023.counting import counting_findings
from experiments.papers.kazemnejad2023.models import trained_and_read
from experiments.papers.kazemnejad2023.position import position_findings
from experiments.papers.kazemnejad2023.presets import (
    ENCODINGS,
    Accuracy,
    Preset,
    Runs,
    by_length,
    unlearned,
)
from experiments.papers.kazemnejad2023.published import CAPTION, PUBLISHED, RANKS, sizes_match
from experiments.papers.kazemnejad2023.scaling import scaling_findings
from experiments.papers.kazemnejad2023.tasks import by_task_figure, order_notes
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, over_seeds, panel
from experiments.runs.cells import Cells

# Of those in `ENCODINGS`, what the paper calls unsuited to longer sequences.
_UNSUITED = [list(ENCODINGS).index(name) for name in ("ALiBi", "RoPE", "sinusoidal")]


def length_findings(config: ReproduceConfig, preset: Preset, cells: Cells, device: str) -> Findings:
    """Trains and scores every run of the preset; ranks the encodings, where all are trained."""
    steps = config.scaled("training", preset.sizes.steps)
    seeds = [seed + 1 for seed in config.seeds]  # sizes were chosen by pilot runs with seed 0
    runs = cells.side_by_side(
        {
            (task, name): partial(trained_and_read, preset, task, ENCODINGS[name], steps, device)
            for task in preset.trained
            for name in preset.encodings
        },
        seeds,
        title=", ".join,
    )
    alone = len(preset.encodings) < len(ENCODINGS)
    each = f"models for each of {len(preset.trained)} tasks"
    kinds = f"NoPE {each}" if alone else f"{each} and {len(ENCODINGS)} encodings"
    setting = f"{len(seeds)} {kinds}, {steps} steps on {preset.lengths_said}"
    if alone:
        trained = Findings({}, (_curves(preset, runs),), setting, (_learned_note(runs),))
        return trained.and_of(_nope_findings(preset, runs))
    compared = _compared(preset, runs, setting, published=CAPTION if sizes_match(config) else "")
    return compared.and_of(_nope_findings(preset, runs))


def _nope_findings(preset: Preset, runs: Runs) -> Findings:
    """What is asked of NoPE alone."""
    nope = {task: runs[task, "NoPE"] for task in preset.tasks}
    within = [cell["within"].mean(axis=1) for cell in nope.values()]
    learned = np.stack(within, axis=1) >= LEARNED
    return scaling_findings(preset, nope, learned).and_of(counting_findings(preset, nope, learned))


def _learned_note(runs: Runs) -> str:
    return (
        f"A run has learned its task where its mean accuracy on held-out examples of the "
        f"training lengths is at least {LEARNED:g}. Not learned: {unlearned(runs, LEARNED)}."
    )


def _compared(preset: Preset, runs: Runs, setting: str, published: str) -> Findings:
    """What is asked of all encodings; `published` is said where the paper's numbers are drawn."""
    every_within, every_beyond = (
        by_unit(preset.trained, ENCODINGS, lambda *run, part=part: runs[run][part].mean(axis=1))
        for part in ("within", "beyond")
    )
    every = every_beyond, every_within >= LEARNED
    within, beyond = (of[:, : len(preset.tasks)] for of in (every_within, every_beyond))
    learned = within >= LEARNED
    claims = {}
    figures = [_curves(preset, runs), by_task_figure(preset.trained, *every, published)]
    ranked = within.min(axis=2) >= LEARNED
    if enough(ranked):
        ranks = by_task(reciprocal_ranks(beyond), ranked)
        claims["length-generalisation"] = over_seeds(ranks, _lead)
        beside = published and f"{published} They rank all seventeen variants of tasks."
        figures.append(_ranking(beyond, ranked, int(ranked.sum()), beside))
    unsuited = within[..., _UNSUITED].min(axis=2) >= LEARNED
    if enough(unsuited):
        accuracy = np.concatenate([part[..., _UNSUITED] for part in (beyond, within)], axis=-1)
        claims["explicit-fail"] = over_seeds(by_task(accuracy, unsuited), _most_kept)
    accuracies = Findings(
        claims,
        tuple(figures),
        setting,
        notes=(
            f"{_learned_note(runs)} A task and a seed are ranked where every encoding learned: "
            f"{ranked.sum()} of {ranked.size}. With fewer than {FEWEST}, or of one task alone, "
            "there is no ranking.",
            "Intervals of the ranking, and of the claims that say so, are over tasks, since models "
            "of one task are alike under every seed. Those of correlations are over encodings (of "
            "NoPE alone over tasks). Those of the claim scratchpads, of accuracy task by task, and "
            "of all curves by length and by reading of position are over seeds.",
            *order_notes(preset.trained, *every),
            *_beside_notes(preset),
            "Ties share what their ranks bring. The paper's own rule gives them ranks in the order "
            "of its table; both are drawn.",
        ),
    )
    return accuracies.and_of(position_findings(preset, runs, learned, beyond)).and_of(
        similarity_findings(preset, runs, learned)
    )


def _beside_notes(preset: Preset) -> Iterator[str]:
    if preset.beside:
        yield (
            f"{' and '.join(preset.beside)} draw longer training examples more often, as the paper "
            "does. Their accuracies are no more comparable with those of the other tasks than the "
            "paper's are with ours: no ranking and no other claim is of them."
        )


def reciprocal_ranks(
    accuracy: Float[Array, "*unit encoding"], *, ties_share: bool = True
) -> Float[Array, "*unit encoding"]:
    """1 / rank of each encoding, the most accurate first.

    Kazemnejad et al. 2023 average these over tasks and seeds. Tied encodings share the mean of what
    their places bring, so that a unit's numbers always add up to the same; or else, as in the
    paper's notebook, they are ranked in the order of `ENCODINGS`.
    """
    places = 1 / rankdata(-accuracy, method="ordinal", axis=-1)
    if not ties_share:
        return places
    tied = accuracy[..., :, None] == accuracy[..., None, :]
    return (tied * places[..., None, :]).sum(axis=-1) / tied.sum(axis=-1)


def _lead(means: Float[Array, "row encoding"]) -> Float[Array, " row"]:
    """Mean reciprocal rank of the first encoding minus the largest of the others'."""
    return means[..., 0] - means[..., 1:].max(axis=-1)


def _most_kept(means: Float[Array, "row beyond_within"]) -> Float[Array, " row"]:
    """The largest of the encodings' accuracies beyond over those within."""
    beyond, within = np.split(means, 2, axis=-1)
    return (beyond / within).max(axis=-1)


@figure(
    "lengths",
    "length",
    "accuracy",
    shares=True,
    claims=("length-generalisation", "explicit-fail"),
    shaded=lambda preset, runs: preset.lengths,
)
def _curves(preset: Preset, runs: Runs) -> Iterator[Panel]:
    """Accuracy by length.

    Share of held-out examples answered exactly, {preset.n_per_length} of each length; shaded: the
    lengths trained on. A guess is right less than once in a hundred, but for answers of one digit
    or word.
    """
    for task in preset.trained:
        curves = {name: by_length(runs[task, name]) for name in preset.encodings}
        yield panel(task, preset.all_lengths(task), measured=curves)


@figure(
    "ranking",
    "encoding",
    "mean reciprocal rank",
    shares=True,
    claims=("length-generalisation",),
    ticks=tuple(ENCODINGS),
)
def _ranking(
    accuracy: Accuracy, ranked: Bool[Array, "seed task"], n_ranked: int, published: str
) -> Iterator[Panel]:
    """Mean reciprocal rank beyond the training lengths.

    1 is an encoding that is always best. The mean is over {n_ranked} pairs of a task and a seed
    that every encoding learned, tasks weighted alike. Bars are 95% intervals over tasks.
    {published}
    """
    at = np.arange(len(ENCODINGS))
    chance = {"random order": (1 / (at + 1)).mean()}
    for title, share in (("ties share their ranks", True), ("ties in the paper's order", False)):
        yield panel(
            title,
            at,
            chance=chance,
            measured={"measured": by_task(reciprocal_ranks(accuracy, ties_share=share), ranked)},
            reference={} if share or not published else {PUBLISHED: np.array(RANKS)},
        )
